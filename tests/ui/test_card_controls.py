"""Controls of cards and settings: rows that wrap, choices, the card itself."""

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QLineEdit, QVBoxLayout, QWidget
from pytestqt.qtbot import QtBot

from tests.ui.reply_helpers import make_parent, make_theme
from ui.controls.buttons import Button
from ui.controls.choice_row import ChoiceRow
from ui.controls.flow_row import FlowRow
from ui.controls.hint_line import HintLine
from ui.controls.meter import Meter
from ui.controls.notice import Notice
from ui.controls.segmented import Segmented


def _row(parent: QWidget, *names: str) -> tuple[FlowRow, list[Button]]:
    theme = make_theme()
    row = FlowRow(gap=8, row_gap=4, parent=parent)
    buttons = [Button(theme, name) for name in names]
    row.set_controls(buttons)
    parent.show()
    return row, buttons


def test_flow_row_goes_on_in_the_next_row_where_the_width_ends(qtbot: QtBot) -> None:
    parent = make_parent(qtbot, 600, 200)
    row, (one, two, three) = _row(parent, "One button", "Another", "Third")
    whole = row.sizeHint()
    assert row.heightForWidth(whole.width()) == whole.height() == one.sizeHint().height()
    row.resize(whole.width(), whole.height())
    assert one.y() == two.y() == three.y() == 0
    assert two.x() == one.width() + 8
    row.resize(whole.width() - 1, 200)
    assert (three.x(), three.y()) == (0, one.height() + 4)
    assert row.heightForWidth(whole.width() - 1) == 2 * one.height() + 4
    assert row.heightForWidth(10) == 3 * one.height() + 2 * 4


def test_flow_row_leaves_no_gap_for_what_is_hidden(qtbot: QtBot) -> None:
    row, (one, two, three) = _row(make_parent(qtbot, 600, 200), "One", "Two", "Three")
    row.resize(600, 40)
    two.hide()
    row.refresh()
    assert three.x() == one.width() + 8


def test_flow_row_keeps_to_the_size_that_a_control_may_have(qtbot: QtBot) -> None:
    parent = make_parent(qtbot, 600, 200)
    row = FlowRow(parent=parent)
    field, after = QLineEdit(), Button(make_theme(), "After")
    field.setFixedWidth(50)
    row.set_controls([field, after])
    parent.show()
    row.resize(600, 60)
    assert field.width() == 50
    assert after.x() == 58


def test_empty_flow_row_takes_no_room(qtbot: QtBot) -> None:
    row, _ = _row(make_parent(qtbot, 100, 100))
    assert row.heightForWidth(100) == 0
    assert row.minimumSizeHint().width() == 0


def _choices(qtbot: QtBot) -> tuple[QWidget, list[ChoiceRow]]:
    parent = make_parent(qtbot, 400, 300)
    column = QVBoxLayout(parent)
    theme = make_theme()
    words = "A sentence that is long enough to need more than one line in a narrow place."
    rows = [
        ChoiceRow(theme, name, value="40 MB per 1,000 tokens", hint=words, parent=parent)
        for name in ("Automatic (fp16)", "int8", "int4")
    ]
    for row in rows:
        column.addWidget(row)
    parent.show()
    return parent, rows


def test_choice_is_taken_by_a_click_anywhere_in_its_row(qtbot: QtBot) -> None:
    _parent, (first, second, _third) = _choices(qtbot)
    first.setChecked(True)
    place = second.rect().bottomRight() * 0.9
    QTest.mouseClick(second, Qt.MouseButton.LeftButton, pos=place)
    assert second.isChecked()
    assert not first.isChecked()


def test_arrows_take_the_next_choice_that_is_offered_and_go_round(qtbot: QtBot) -> None:
    _parent, (first, second, third) = _choices(qtbot)
    second.setEnabled(False)
    first.setChecked(True)
    first.setFocus()
    QTest.keyClick(first, Qt.Key.Key_Down)
    assert third.isChecked()
    QTest.keyClick(third, Qt.Key.Key_Right)
    assert first.isChecked()
    QTest.keyClick(first, Qt.Key.Key_Left)
    assert third.isChecked()
    assert not second.isChecked()


def test_choice_grows_where_its_words_need_more_lines(qtbot: QtBot) -> None:
    _parent, (row, *_) = _choices(qtbot)
    assert row.heightForWidth(150) > row.heightForWidth(350) > row.heightForWidth(900)
    value, _hint = row._places(200)  # too narrow for name and value side by side
    assert value.top() > 6
    row.grab()


def test_meter_keeps_its_share_between_none_and_all(qtbot: QtBot) -> None:
    theme = make_theme()
    meter = Meter(theme)
    qtbot.addWidget(meter)
    meter.resize(100, 6)
    seen = []
    for fraction in (-1.0, 0.0, 0.5, 2.0):
        meter.set_fraction(fraction)
        image = meter.grab().toImage()
        seen.append((meter.fraction, image.pixelColor(75, 3).name()))
    empty, full = theme.palette.track.lower(), theme.palette.data.kv.lower()
    assert seen == [(0.0, empty), (0.0, empty), (0.5, empty), (1.0, full)]


def _card(qtbot: QtBot) -> tuple[QWidget, Notice, list[str]]:
    parent = make_parent(qtbot, 600, 400)
    home = QLineEdit(parent)
    card = Notice(make_theme(), parent)
    card.focus_home = home
    parent.show()
    parent.activateWindow()
    home.setFocus()
    return parent, card, []


def test_card_runs_the_newest_action_of_a_button_that_stayed(qtbot: QtBot) -> None:
    parent, card, done = _card(qtbot)
    card.show_words("Title", "One", [("Go", lambda: done.append("old"))], kind="warning")
    (button,) = card.buttons
    button.setFocus()
    card.show_words("Title", "Two", [("Go", lambda: done.append("new"))], kind="warning")
    assert card.buttons == [button]
    assert parent.focusWidget() is button
    button.click()
    assert done == ["new"]
    assert card.text == "Title\nTwo"
    assert card.accessibleName() == "Title Two"


def test_card_gives_the_focus_back_when_its_buttons_are_others(qtbot: QtBot) -> None:
    parent, card, done = _card(qtbot)
    card.show_words("Title", "", [("Go", lambda: done.append("go"))], kind="warning")
    card.buttons[0].setFocus()
    card.show_words("Title", "", [("Stop", lambda: done.append("stop"))], kind="work")
    assert parent.focusWidget() is card.focus_home


def test_kinds_of_cards_differ_in_colour_and_buttons(qtbot: QtBot) -> None:
    _parent, card, _done = _card(qtbot)
    seen = {}
    actions = [(name, lambda: None) for name in ("First", "Second", "Third")]
    for kind in ("failure", "warning", "work"):
        card.show_words("Title", "Text", actions, kind=kind)
        card.resize(500, card.height_within(500, 400))
        image = card.grab().toImage()
        seen[kind] = ([button.kind for button in card.buttons], image.pixelColor(250, 4).name())
    assert seen["failure"][0] == ["secondary", "quiet", "quiet"]
    assert seen["warning"][0] == ["primary", "secondary", "quiet"]
    assert seen["work"][0] == ["secondary", "secondary", "secondary"]
    assert len({color for _, color in seen.values()}) == 3


def test_card_makes_its_sentence_a_tooltip_where_there_is_no_room(qtbot: QtBot) -> None:
    _parent, card, _done = _card(qtbot)
    card.show_words("Title", "A sentence.", [("Go", lambda: None)], kind="warning")
    whole = card.height_within(500, 400)
    short = card.height_within(500, whole - 1)
    assert short < whole
    assert card.toolTip() == "A sentence."
    assert card.accessibleName() == "Title A sentence."
    assert card.height_within(500, whole) == whole
    assert card.toolTip() == ""


def test_hint_line_wraps_and_tells_its_tip(qtbot: QtBot) -> None:
    hint = HintLine(make_theme(), make_parent(qtbot, 400, 100))
    hint.show_text("The oldest messages will be left out.", tip="Choose otherwise.")
    assert hint.text == hint.accessibleName() == "The oldest messages will be left out."
    assert hint.toolTip() == hint.accessibleDescription() == "Choose otherwise."
    assert hint.wanted_height(100) > hint.wanted_height(400)
    hint.grab()


def test_controls_that_remember_their_sizes_follow_the_text_size(qtbot: QtBot) -> None:
    theme, parent = make_theme(), make_parent(qtbot, 600, 200)
    row = ChoiceRow(theme, "int8", value="21 MB", hint="Rounds a little. " * 8, parent=parent)
    choice = Segmented(theme, "Page", (("a", "Automatic"), ("b", "Own size")))
    qtbot.addWidget(choice)
    before = [(row.heightForWidth(width), choice.sizeHint().width()) for width in (200, 300)]
    theme.set_text_size(200)
    large = [(row.heightForWidth(width), choice.sizeHint().width()) for width in (200, 300)]
    assert all(new[0] > old[0] and new[1] > old[1] for old, new in zip(before, large, strict=True))
    theme.set_text_size(100)
    again = [(row.heightForWidth(width), choice.sizeHint().width()) for width in (200, 300)]
    assert again == before
