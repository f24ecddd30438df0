"""Packing a whole model: the same bytes however it is cut up, and no end of the load while a thread packs."""

import mmap
from collections import Counter
from collections.abc import Sized
from pathlib import Path

import numpy as np
import pytest

from inference.formats.gguf import GgufFile
from inference.kernels.library import Kernels, load_kernels
from inference.kernels.structures import Matrix
from inference.model import packed_weights
from inference.model.memory_ahead import memory_ahead, take
from inference.model.packed_weights import PackedWeights, pack_weights
from inference.model.progress import LoadReporter
from inference.request import LoadProgress
from tests.inference.packed_models import make_twin, weights_in

pytestmark = pytest.mark.skipif(load_kernels() is None, reason="no kernels")


def packed(
    path: Path, *, num_threads: int = 2, seen: list[LoadProgress] | None = None
) -> PackedWeights:
    kernels = load_kernels()
    assert kernels is not None
    with GgufFile.read(path) as file:
        reporter = LoadReporter(None if seen is None else seen.append)
        reporter.begin("Loading weights", until=1.0)
        return pack_weights(weights_in(file), kernels, num_threads=num_threads, reporter=reporter)


@pytest.mark.parametrize("quantization", ["Q4_0", "Q8_0", "F16"])
def test_pieces_make_the_bytes_of_the_whole(
    tmp_path: Path, quantization: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_twin(tmp_path, quantization)
    monkeypatch.setattr(packed_weights, "_PIECE_ROWS", 2**20)
    whole = packed(path, num_threads=1)
    monkeypatch.setattr(packed_weights, "_PIECE_ROWS", 16)
    seen: list[LoadProgress] = []
    parts = packed(path, num_threads=3, seen=seen)
    assert list(parts.matrices) == list(whole.matrices)
    for key, matrix in whole.matrices.items():
        assert np.array_equal(matrix.data, parts.matrices[key].data), key
        assert parts.matrices[key].data.ctypes.data % 64 == 0
    assert len({bytes(matrix.data) for matrix in whole.matrices.values()}) > 10
    fractions = [progress.fraction for progress in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0


def test_pages_of_each_matrix_are_given_back_when_all_its_rows_are_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_weights, "_PIECE_ROWS", 16)
    num_packed: Counter[int] = Counter()
    released: list[tuple[str, int]] = []
    pack = Kernels.pack

    def note(self: Kernels, matrix: Matrix, first_row: int, rows: Sized) -> None:
        pack(self, matrix, first_row, rows)  # type: ignore[arg-type]
        num_packed[matrix.data] += len(rows)

    def release(self: GgufFile, name: str) -> None:
        released.append((name, sum(num_packed.values())))

    monkeypatch.setattr(Kernels, "pack", note)
    monkeypatch.setattr(GgufFile, "release", release)
    path = make_twin(tmp_path, "Q4_0")
    packed(path, num_threads=1)
    with GgufFile.read(path) as file:
        weights = weights_in(file)
    sources = [weights.sources[key] for key in weights.matrix_keys]
    assert len(sources) > 10
    num_rows = 0
    for (name, num_done), source in zip(released[-len(sources) :], sources, strict=True):
        num_rows += source.num_rows
        assert name == source.tensor_name
        assert num_done >= num_rows


@pytest.mark.skipif(not hasattr(mmap, "MAP_PRIVATE"), reason="the system gives no such memory")
def test_memory_that_was_made_ready_is_where_weights_are_packed(tmp_path: Path) -> None:
    path = make_twin(tmp_path, "Q4_0")
    plain = packed(path)
    with memory_ahead(4 * plain.num_bytes):
        ready = packed(path)
        assert take(1) is None  # it was taken
    assert ready.num_bytes == plain.num_bytes
    for key, matrix in plain.matrices.items():
        assert np.array_equal(matrix.data, ready.matrices[key].data), key
        assert ready.matrices[key].data.ctypes.data % 64 == 0


def test_error_of_a_piece_ends_the_load_when_no_thread_packs_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_twin(tmp_path, "Q4_0")
    monkeypatch.setattr(packed_weights, "_PIECE_ROWS", 16)
    running: list[int] = []
    pack = Kernels.pack

    def fail_late(self: Kernels, matrix: Matrix, first_row: int, rows: object) -> None:
        running.append(first_row)
        try:
            pack(self, matrix, first_row, rows)  # type: ignore[arg-type]
            if first_row == 32:
                raise RuntimeError("a piece went wrong")
        finally:
            running.pop()

    monkeypatch.setattr(Kernels, "pack", fail_late)
    with pytest.raises(RuntimeError, match="a piece went wrong"):
        packed(path)
    assert running == []
