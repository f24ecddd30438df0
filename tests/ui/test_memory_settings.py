"""The memory of chats in the settings, and clearing it."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAccessible
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QRadioButton
from pytestqt.qtbot import QtBot

from app.messages import ModelReady, StatsSampled
from inference.errors import NotEnoughMemoryError
from inference.kv_cache.disk.format import Miss
from inference.metrics import EngineStats, KvSchemeInfo, TierStats
from tests.app.fake_engine import FakeScript, make_model_info
from tests.ui.open_window import OpenWindow, wait_for
from tests.ui.reply_helpers import collected, make_theme
from ui.controls.numbers import size
from ui.dialogs.memory_page import MemoryPage
from ui.dialogs.memory_words import (
    cleared_text,
    scheme_choices,
    tiers_tip,
    trouble_text,
    usage_text,
    written_text,
)
from ui.dialogs.preferences import PreferencesDialog
from ui.dialogs.tier_section import AUTOMATIC, OFF, OWN, TierSection

Opener = Callable[..., OpenWindow]
GB = 10**9
STATS = EngineStats(
    device=TierStats(412_000_000, 2 * GB),
    ram=TierStats(100_000_000, GB),
    disk=TierStats(1_312_000_000, 10 * GB),
    disk_written_bytes=96_000_000,
)
SCHEMES = (
    KvSchemeInfo("fp32", 80_000),
    KvSchemeInfo("fp16", 40_000),
    KvSchemeInfo("int8", 20_600),
    KvSchemeInfo("int4", 12_500, is_offered=False, reason="It would make this model worse."),
)


# ---------------------------------------------------------------- words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 MB"),
        (40_000, "0.0 MB"),
        (6_540_000, "6.5 MB"),
        (9_960_000, "10 MB"),
        (412_400_000, "412 MB"),
        (999_400_000, "999 MB"),
        (999_600_000, "1.0 GB"),
        (2 * GB, "2.0 GB"),
        (1_500 * GB, "1.5 TB"),
    ],
)
def test_size_takes_the_unit_that_suits_it(value: int, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("tier", "text"),
    [
        (None, "–"),
        (TierStats(412_000_000, 2 * GB), "412 MB of 2.0 GB"),
        (TierStats(0, 0), "Off"),
        (TierStats(5_000_000, 0), "Off, 5.0 MB left"),
    ],
)
def test_usage_text_names_use_and_budget(tier: TierStats | None, text: str) -> None:
    assert usage_text(tier) == text


def test_tiers_tip_names_all_three() -> None:
    assert tiers_tip(STATS) == "Chats in memory 412 MB, put aside 100 MB, on disk 1.3 GB"


def test_written_text_has_a_dash_before_it_is_known() -> None:
    assert written_text(None) == "Written to disk since the model was opened: –"
    assert written_text(STATS) == "Written to disk since the model was opened: 96 MB"


def test_trouble_text_puts_reasons_into_plain_words() -> None:
    assert trouble_text(None) == trouble_text(STATS) == ""
    misses = (
        ("damaged", 1),
        ("evicted", 4),
        ("missing", 1200),
        ("no_space", 3),
        ("other_model", 0),
        ("truncated", 1),
    )
    stats = replace(STATS, disk_misses=misses, disk_problem="The disk is full.")
    assert trouble_text(stats) == (
        "The disk is full. "
        "Files that could not be used, so their text was read again: 2 damaged, 1,200 gone. "
        "Files that were not written: 3 because the disk was full."
    )


@pytest.mark.parametrize("miss", sorted({*get_args(Miss)} - {"evicted"}))
def test_trouble_text_has_words_for_every_miss(miss: str) -> None:
    assert "1 " in trouble_text(replace(STATS, disk_misses=((miss, 1),)))


@pytest.mark.parametrize(
    ("freed", "is_one_chat", "text"),
    [
        (1_200_000_000, False, "1.2 GB freed, memory and disk together"),
        (3_000_000, True, "3.0 MB of this chat freed, memory and disk together"),
        (0, False, "Nothing was cached"),
        (0, True, "This chat had nothing cached"),
    ],
)
def test_cleared_text_says_how_much(freed: int, is_one_chat: bool, text: str) -> None:
    assert cleared_text(freed, is_one_chat=is_one_chat) == text


def test_scheme_choices_say_what_each_takes_and_saves() -> None:
    info = make_model_info(kv_scheme="int8", kv_schemes=SCHEMES)
    automatic, int8, int4 = scheme_choices(info)
    assert (automatic.key, automatic.name) == ("auto", "Automatic (fp16)")
    assert automatic.value == "40 MB per 1,000 tokens"
    assert int8.value == "21 MB per 1,000 tokens, half"
    assert int8.is_offered
    assert int4.value == "13 MB per 1,000 tokens, 69% less"
    assert not int4.is_offered
    assert int4.hint == "It would make this model worse."


def test_scheme_choices_name_the_automatic_one_in_use() -> None:
    info = make_model_info(kv_scheme="fp32", kv_schemes=SCHEMES)
    assert scheme_choices(info)[0].name == "Automatic (fp32)"
    assert scheme_choices(make_model_info()) == []


# ---------------------------------------------------------------- one tier


@pytest.fixture
def tier(qtbot: QtBot) -> TierSection:
    made = TierSection(make_theme(), "On disk", "For all chats.", (AUTOMATIC, OFF, OWN))
    qtbot.addWidget(made)
    made.resize(400, 200)
    made.show()
    return made


def _choose(tier: TierSection, key: str) -> None:
    keys = [AUTOMATIC[0], OFF[0], OWN[0]]
    while tier.choice.key != key:
        back = keys.index(tier.choice.key) > keys.index(key)
        QTest.keyClick(tier.choice, Qt.Key.Key_Left if back else Qt.Key.Key_Right)


def _type(tier: TierSection, text: str) -> None:
    tier.field.selectAll()
    QTest.keyClicks(tier.field, text)
    QTest.keyClick(tier.field, Qt.Key.Key_Return)


def test_tier_shows_the_field_only_for_an_own_size(tier: TierSection) -> None:
    assert not tier.field.isVisible()
    tier.set_budget(0)
    assert tier.choice.key == "off"
    tier.set_budget(2_500_000_000)
    assert tier.choice.key == "own"
    assert tier.field.text() == "2.5"
    assert tier.field.isVisible()


def test_tier_begins_an_own_size_with_what_is_in_force(tier: TierSection) -> None:
    chosen = collected(tier.budget_chosen)
    tier.show_use(TierStats(0, 10 * GB))
    QTest.mouseClick(
        tier.choice, Qt.MouseButton.LeftButton, pos=tier.choice.rect().center() * 2 * 0.95
    )
    assert tier.choice.key == "own"
    assert chosen == [(10 * GB,)]
    assert tier.field.text() == "10.0"


def test_tier_tells_a_typed_size_once(tier: TierSection) -> None:
    tier.set_budget(GB)
    chosen = collected(tier.budget_chosen)
    _type(tier, "2.5")
    tier.field.editingFinished.emit()  # as when it loses the focus
    assert chosen == [(2_500_000_000,)]


@pytest.mark.parametrize("text", ["", "much", "0", "-1", "0.05", "1001", "nan", "inf"])
def test_tier_says_what_is_allowed_and_changes_nothing(tier: TierSection, text: str) -> None:
    tier.set_budget(GB)
    chosen = collected(tier.budget_chosen)
    tier.field.setText(text)
    tier.field.editingFinished.emit()
    assert tier.problem == "Must be a number from 0.1 to 1,000."
    assert tier.field.accessibleDescription() == tier.problem
    assert chosen == []
    _type(tier, "3")
    assert tier.problem == ""
    assert chosen == [(3 * GB,)]


@pytest.mark.parametrize("text", ["0.5", "0,5", " .5 "])
def test_tier_reads_a_point_and_a_comma(tier: TierSection, text: str) -> None:
    tier.set_budget(GB)
    chosen = collected(tier.budget_chosen)
    tier.field.setText(text)
    tier.field.editingFinished.emit()
    assert chosen == [(500_000_000,)]


def test_tier_that_is_costly_tells_an_own_size_only_when_it_is_typed(qtbot: QtBot) -> None:
    tier = TierSection(make_theme(), "Memory", "In use.", (AUTOMATIC, OWN), is_costly=True)
    qtbot.addWidget(tier)
    tier.show()
    tier.show_use(TierStats(0, 1_509_949_440))
    chosen = collected(tier.budget_chosen)
    QTest.keyClick(tier.choice, Qt.Key.Key_Right)
    tier.field.editingFinished.emit()  # as when it loses the focus
    assert (tier.choice.key, tier.field.text()) == ("own", "1.5")
    tier.field.setText("many")
    tier.field.editingFinished.emit()
    assert tier.problem
    tier.field.setText("1.5")
    tier.field.editingFinished.emit()
    assert (tier.problem, chosen) == ("", [])
    _type(tier, "2")
    _type(tier, "1.5")
    QTest.keyClick(tier.choice, Qt.Key.Key_Left)
    assert chosen == [(2 * GB,), (1_500_000_000,), (None,)]


def test_tier_off_and_automatic_are_told(tier: TierSection) -> None:
    chosen = collected(tier.budget_chosen)
    _choose(tier, "off")
    _choose(tier, "auto")
    assert chosen == [(0,), (None,)]


def test_tier_has_names_for_a_screen_reader(tier: TierSection) -> None:
    tier.show_use(TierStats(412_000_000, 2 * GB))
    assert tier.choice.accessibleName() == "Budget: On disk: Automatic"
    assert tier.field.accessibleName() == "Budget in GB: On disk"
    assert tier._use.accessibleName() == "On disk: 412 MB of 2.0 GB"
    assert tier._meter.fraction == pytest.approx(0.206)


# ---------------------------------------------------------------- the page in the window


def _open(window: OpenWindow) -> MemoryPage:
    window.controller.open_settings()
    dialog = window.controller.dialog
    assert isinstance(dialog, PreferencesDialog)
    QTest.keyClick(dialog.pages, Qt.Key.Key_Right)
    assert dialog.memory.isVisible()
    assert not dialog.look.isVisible()
    return dialog.memory


def _sample(window: OpenWindow, stats: EngineStats) -> None:
    window.session.handle_event(StatsSampled(stats, 900_000_000, 16 * GB))


@pytest.fixture
def window(open_window: Opener) -> OpenWindow:
    """A model with ways to store what it has read."""
    made = open_window(FakeScript())
    made.start_engine()
    info = made.session.model.info
    assert info is not None
    made.session.handle_event(ModelReady(replace(info, kv_schemes=SCHEMES)))
    return made


def test_page_tells_use_and_what_was_written(open_window: Opener) -> None:
    window = open_window()  # its engine is not started, so it sends no numbers of its own
    page = _open(window)
    assert page.device.use == page.disk.use == "–"
    _sample(window, replace(STATS, disk_problem="The disk is full."))
    assert page.device.use == "412 MB of 2.0 GB"
    assert page.ram.use == "100 MB of 1.0 GB"
    assert page.disk.use == "1.3 GB of 10.0 GB"
    assert page.written == "Written to disk since the model was opened: 96 MB"
    assert page.trouble == "The disk is full."
    _sample(window, STATS)
    assert page.trouble == ""
    page.grab()


def test_page_opened_later_knows_the_last_numbers(window: OpenWindow) -> None:
    _sample(window, STATS)
    assert _open(window).device.use == "412 MB of 2.0 GB"


def test_budget_reaches_settings_and_engine(window: OpenWindow) -> None:
    page = _open(window)
    QTest.keyClick(page.disk.choice, Qt.Key.Key_Right)
    assert window.program.settings.value.disk_cache_bytes == 0
    window.wait(lambda: ("set_cache_budgets", None, 0) in window.engine.calls)
    page.ram.set_budget(GB)
    page.ram.field.setText("2")
    page.ram.field.editingFinished.emit()
    assert window.program.settings.value.ram_cache_bytes == 2 * GB
    window.wait(lambda: ("set_cache_budgets", 2 * GB, 0) in window.engine.calls)
    page = _open(window)
    assert page.disk.choice.key == "off"
    assert page.ram.field.text() == "2.0"


def test_memory_of_the_model_that_finds_no_room_is_as_before(window: OpenWindow) -> None:
    page = _open(window)

    def fail_if_too_large(_stage: str) -> None:
        is_too_large = window.factory.calls[-1][1].kv_cache_bytes == 1000 * GB
        error = NotEnoughMemoryError(1000 * GB, 20 * GB)
        window.script.load_error = error if is_too_large else None

    window.script.before_stage = fail_if_too_large
    page.device.choice.set_key("own")
    _type(page.device, "1000")
    window.wait(window.chat.toast.isVisible)
    assert window.chat.toast.text == (
        "The model needs 1000.0 GB and 20.0 GB are free. The size is as it was before."
    )
    assert page.device.problem == window.chat.toast.text
    window.wait(lambda: window.session.model.kind == "ready")
    assert page.device.choice.key == "auto"
    assert window.program.settings.value.kv_cache_bytes is None
    page.ram.choice.chosen.emit("off")
    assert window.program.settings.value.ram_cache_bytes == 0
    assert window.program.settings.value.kv_cache_bytes is None


def test_clearing_all_is_told_where_one_looks(window: OpenWindow) -> None:
    window.script.freed_bytes = 1_200_000_000
    page = _open(window)
    assert page.clear_hint.startswith("No text is lost.")
    QTest.mouseClick(page.clear_button, Qt.MouseButton.LeftButton)
    window.wait(window.chat.toast.isVisible)
    assert window.chat.toast.text == "1.2 GB freed, memory and disk together"
    assert page.clear_hint.startswith("1.2 GB freed, memory and disk together. No text is lost.")
    assert ("clear_cache",) in window.engine.calls


def test_scheme_is_taken_for_this_model(window: OpenWindow) -> None:
    page = _open(window)
    assert page.choices["auto"].isChecked()
    assert page.scheme_words == "For Fake 1B. Another choice opens the model again."
    gate = threading.Event()
    window.script.before_stage = lambda _: wait_for(gate)
    QTest.mouseClick(page.choices["int8"], Qt.MouseButton.LeftButton)
    window.wait(lambda: len(window.factory.calls) == 2)
    assert page.choices["int8"].isChecked()  # and still there while the model is opened again
    path, config = window.factory.calls[-1]
    assert config.kv_scheme == "int8"
    assert window.program.settings.value.kv_schemes == ((path, "int8"),)
    gate.set()


def test_scheme_that_is_not_offered_is_off_and_says_why(window: OpenWindow) -> None:
    page = _open(window)
    int4 = page.choices["int4"]
    assert not int4.isEnabled()
    told = QAccessible.queryAccessibleInterface(int4)
    assert told.role() == QAccessible.Role.RadioButton
    assert told.text(QAccessible.Text.Name) == "int4, 13 MB per 1,000 tokens, 69% less"
    assert told.text(QAccessible.Text.Description) == "It would make this model worse."
    QTest.mouseClick(int4, Qt.MouseButton.LeftButton)
    assert page.choices["auto"].isChecked()
    page.choices["auto"].setFocus()
    QTest.keyClick(page.choices["auto"], Qt.Key.Key_Up)  # past the one that is off
    assert page.choices["int8"].isChecked()


def test_refused_scheme_is_told_and_the_automatic_one_marked(window: OpenWindow) -> None:
    window.script.refused_scheme = "int8"
    page = _open(window)
    QTest.mouseClick(page.choices["int8"], Qt.MouseButton.LeftButton)
    window.wait(window.chat.toast.isVisible)
    assert "int8 would make this model worse" in window.chat.toast.text
    window.wait(lambda: window.session.model.kind == "ready")
    info = window.session.model.info
    assert info is not None
    window.session.handle_event(ModelReady(replace(info, kv_schemes=SCHEMES)))
    assert page.choices["auto"].isChecked()


def test_page_without_a_model_says_how_to_come_to_its_choices(open_window: Opener) -> None:
    page = _open(open_window())
    assert page.choices == {}
    assert page.scheme_words == "Each model has its own. Open one to choose."


def test_page_that_is_gone_is_left_alone(window: OpenWindow) -> None:
    page = _open(window)
    window.controller.open_about()
    gone = collected(page.destroyed)
    window.wait(lambda: gone != [])
    _sample(window, STATS)
    assert _open(window).device.use == "412 MB of 2.0 GB"


@pytest.mark.parametrize("percent", [100, 200])
def test_page_scrolls_where_the_screen_is_low(window: OpenWindow, percent: int) -> None:
    window.controller.appearance.choose_text_size(percent)
    page = _open(window)
    dialog = window.controller.dialog
    assert isinstance(dialog, PreferencesDialog)
    assert dialog.height() < dialog.screen().availableGeometry().height()
    assert dialog.width() <= 640
    window.wait(dialog.area.verticalScrollBar().isVisible)
    _sample(window, STATS)
    inside = page.parentWidget()
    assert inside is not None
    window.wait(lambda: inside.width() == dialog.area.viewport().width())
    assert inside.minimumSizeHint().width() <= inside.width(), "nothing is cut at the right"
    dialog.area.ensureWidgetVisible(page.clear_button)
    assert page.clear_button.visibleRegion().boundingRect().size() == page.clear_button.size()
    for row in page.findChildren(QRadioButton):
        assert row.height() >= row.heightForWidth(row.width())
        row.grab()


# ---------------------------------------------------------------- menus and status bar


def test_menu_of_the_chat_clears_what_is_cached_of_it(window: OpenWindow) -> None:
    name = "Clear cached memory of this chat"
    actions = {action.text(): action for action in window.controller.build_chat_menu().actions()}
    assert not actions[name].isEnabled()
    window.say("Hello")
    window.script.freed_bytes = 3_000_000
    actions = {action.text(): action for action in window.controller.build_chat_menu().actions()}
    actions[name].trigger()
    window.wait(window.chat.toast.isVisible)
    assert window.chat.toast.text == "3.0 MB of this chat freed, memory and disk together"
    assert ("forget", window.chat_id("Hello")) in window.engine.calls
    assert window.texts[0] == "Hello"


def test_menu_of_a_row_clears_that_chat_and_not_the_open_one(window: OpenWindow) -> None:
    window.say("Hello")
    hello = window.chat_id("Hello")
    window.controller.new_chat()
    window.sidebar.chat_list.clear_requested.emit(hello)
    window.wait(window.chat.toast.isVisible)
    assert window.chat.toast.text == "This chat had nothing cached"
    assert [call for call in window.engine.calls if call[0] == "forget"] == [("forget", hello)]


def test_memory_item_tells_the_tiers_on_hover(window: OpenWindow) -> None:
    _sample(window, STATS)
    memory = window.window.status.memory
    assert memory.text == "Memory 0.9 of 16.0 GB"
    assert memory.toolTip().split("\n")[1] == tiers_tip(STATS)
    assert memory.accessibleDescription() == tiers_tip(STATS)
