"""Fixtures of the window's tests: the real program with the real worker and a scripted engine."""

import functools
import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt import wait_signal
from pytestqt.qtbot import QtBot

from tests.app.fake_engine import FakeScript
from tests.ui.open_window import OpenWindow


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The offscreen platform warns about what it cannot do; that says nothing about Quire."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.qt_log_ignore("This plugin does not support", extend=True))


@pytest.fixture(scope="session", autouse=True)
def _no_collection_in_a_disconnect() -> Iterator[None]:
    """Keep the garbage collector out of pytest-qt's disconnects.

    Qt holds a lock then, of which there are 131 for all objects, and PySide makes Python objects: a collection
    that happens there and finds an old window waits for the same lock now and then, for ever. Quire itself
    disconnects nothing.
    """
    with pytest.MonkeyPatch.context() as patch:
        for kind in (wait_signal.SignalBlocker, wait_signal.MultiSignalBlocker):
            patch.setattr(kind, "_cleanup", _without_collector(kind._cleanup))
        yield


def _without_collector(function: Callable[[Any], None]) -> Callable[[Any], None]:
    @functools.wraps(function)
    def call(self: Any) -> None:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            function(self)
        finally:
            if was_enabled:
                gc.enable()

    return call


@pytest.fixture
def open_window(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., OpenWindow]]:
    """Opens windows with a scripted engine; closes them at the end of the test."""
    monkeypatch.setattr("app.present_files.WAIT_S", 10.0)  # the disk of tests answers, if late
    opened: list[OpenWindow] = []
    font = QApplication.font()  # a window with another text size changes it for all

    def open_one(script: FakeScript | None = None, *, profile: Path | None = None) -> OpenWindow:
        window = OpenWindow(qtbot, profile or tmp_path / "profile", script or FakeScript())
        opened.append(window)
        return window

    yield open_one
    for window in opened:
        window.close()
    QApplication.setFont(font)


@pytest.fixture
def spared_collector() -> Iterator[None]:
    """What exists by now is out of the garbage collector's sight, as in the program.

    There `ui.start` and the import of transformers do it. Here a full collection would search the
    objects of pytest and of all that other tests imported, 50 ms and more; what the window makes
    itself is still collected.
    """
    had_frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    yield
    if not had_frozen:  # else what others hid would come back
        gc.unfreeze()
