"""Files that wait for the end of a step, as until then all cores are taken."""

import sys
import threading
import time
from pathlib import Path

import pytest

from inference.kernels.library import load_kernels
from inference.kv_cache.disk.row_source import RowFile
from inference.kv_cache.kv_rows import KvRows
from inference.model.step import Chunk
from tests.inference.native_models import native_of, run_step
from tests.inference.tiny_decoders import make_variant

pytestmark = pytest.mark.skipif(
    load_kernels() is None or sys.platform == "win32", reason="needs the kernels and POSIX"
)

LONG_S = 60.0


class Steps:
    """A model that computes one step after the other, on a thread of its own."""

    def __init__(self) -> None:
        self._model = native_of(make_variant("llama"))
        self.kv = self._model.new_kv("fp16")
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Steps":
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.is_set():
            run_step(self._model, self.kv, [Chunk([5], 0, [1], needs_logits=True)])


def written(rows: KvRows, folder: Path, num_files: int) -> float:
    """Write files; the seconds that this took."""
    files = [
        RowFile(3, 0, 8, b"header", str(folder / "1.tmp"), str(folder / f"piece{number}"), 1.0)
        for number in range(num_files)
    ]
    began = time.monotonic()
    assert rows.write_files(files) == [True] * num_files
    return time.monotonic() - began


def test_files_are_written_when_steps_end(tmp_path: Path) -> None:
    with Steps() as steps:
        rows = KvRows(steps.kv)
        rows.spread_s = LONG_S
        assert written(rows, tmp_path, 20) < LONG_S / 4


def test_files_are_written_though_no_step_ends_each_in_its_share_of_the_time(
    tmp_path: Path,
) -> None:
    rows = KvRows(Steps().kv)
    rows.spread_s = 0.4
    assert written(rows, tmp_path, 4) >= 0.1  # a thread that goes to sleep may end one wait early


def test_files_are_written_at_once_when_somebody_comes_to_wait_for_them(tmp_path: Path) -> None:
    rows = KvRows(Steps().kv)
    rows.spread_s = LONG_S
    timer = threading.Timer(0.1, lambda: rows.set_hurried(is_hurried=True))
    timer.start()
    assert written(rows, tmp_path, 20) < LONG_S / 4
    timer.join()
    assert written(rows, tmp_path, 20) < LONG_S / 4
    rows.set_hurried(is_hurried=False)
    rows.spread_s = 0.4
    assert written(rows, tmp_path, 4) >= 0.1
