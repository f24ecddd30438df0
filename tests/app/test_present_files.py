"""Which files are there."""

import os
import threading
from pathlib import Path

import pytest

from app.present_files import PresentFiles

LONG_S = 10.0


def test_files_that_are_there_are_given_in_their_order(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("c", "a", "b")]
    for name in names[:2]:
        Path(name).touch()
    files = PresentFiles()
    assert files.of(names, wait_s=LONG_S) == names[:2]
    assert files.of([], wait_s=LONG_S) == []
    os.unlink(names[0])
    Path(names[2]).touch()
    assert files.of(names, wait_s=LONG_S) == names[1:]


def test_disk_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick, slow = str(tmp_path / "quick"), str(tmp_path / "slow")
    gate, looks, exists = threading.Event(), [], os.path.exists
    is_asked = threading.Event()

    def exists_late(path: str) -> bool:
        looks.append(path)
        is_asked.set()
        return path == slow and gate.wait(LONG_S) and exists(path)

    monkeypatch.setattr("app.present_files.os.path.exists", exists_late)
    files = PresentFiles()
    assert files.of([slow], wait_s=0.0) == [slow]  # nobody knows better
    assert is_asked.wait(LONG_S)
    assert files.of([quick, slow], wait_s=LONG_S) == [slow]
    assert looks == [slow, quick]  # no second thread waits for it
    gate.set()
    while slow in files._looked_at:
        pass
    assert files.of([slow], wait_s=LONG_S) == []
