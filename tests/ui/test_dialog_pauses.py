"""The settings hold up the window at no moment: their page of memory is made in slices."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.messages import ModelReady
from inference.metrics import KvSchemeInfo
from tests.ui.beat import Beat
from tests.ui.machine_speed import slowness
from tests.ui.open_window import OpenWindow
from ui.dialogs.memory_page import MemoryPage
from ui.dialogs.preferences import PreferencesDialog
from ui.dialogs.tier_section import TierSection

pytestmark = pytest.mark.usefixtures("spared_collector")

WORST_MS = 25.0
SCHEMES = (KvSchemeInfo("fp16", 40_000), KvSchemeInfo("int8", 20_600), KvSchemeInfo("int4", 12_500))


@pytest.fixture
def window(open_window: Callable[..., OpenWindow]) -> OpenWindow:
    made = open_window()
    made.start_engine()
    info = made.session.model.info
    assert info is not None
    made.session.handle_event(ModelReady(replace(info, kv_schemes=SCHEMES)))
    return made


def open_settings(window: OpenWindow) -> PreferencesDialog:
    window.controller.open_settings()
    dialog = window.controller.dialog
    assert isinstance(dialog, PreferencesDialog)
    return dialog


def test_memory_page_is_prepared_while_the_other_page_is_shown(window: OpenWindow) -> None:
    dialog = open_settings(window)
    assert dialog.findChildren(TierSection) == []
    window.wait(lambda: dialog.is_prepared)
    assert len(dialog.findChildren(TierSection)) == 3
    (page,) = dialog.findChildren(MemoryPage)
    assert dialog.look.isVisible()
    assert not page.isVisible()
    assert dialog.memory is page


def test_memory_page_that_is_wanted_at_once_is_whole(window: OpenWindow) -> None:
    dialog = open_settings(window)
    window.wait(lambda: len(dialog.findChildren(TierSection)) >= 1)
    QTest.keyClick(dialog.pages, Qt.Key.Key_Right)
    assert dialog.memory.isVisible()
    assert all(tier.isVisible() for tier in dialog.findChildren(TierSection))
    window.wait(lambda: dialog.is_prepared)
    assert len(dialog.findChildren(MemoryPage)) == 1
    assert len(dialog.findChildren(TierSection)) == 3


def test_settings_closed_before_the_page_is_made_leave_nothing(window: OpenWindow) -> None:
    dialog = open_settings(window)
    window.wait(lambda: len(dialog.findChildren(TierSection)) >= 1)
    gone: list[object] = []
    dialog.destroyed.connect(lambda: gone.append(1))
    dialog.accept()
    window.controller.open_about()
    window.wait(lambda: gone != [])
    assert window.window.findChildren(TierSection) == []


def test_opening_the_settings_and_their_memory_keeps_the_window_alive(window: OpenWindow) -> None:
    window.qtbot.wait(100)
    beat = Beat()
    dialog = open_settings(window)
    window.wait(lambda: dialog.is_prepared)
    QTest.keyClick(dialog.pages, Qt.Key.Key_Right)
    window.qtbot.wait(100)
    beat.stop()
    assert dialog.memory.isVisible()
    assert beat.share(1.0) < WORST_MS * slowness()
