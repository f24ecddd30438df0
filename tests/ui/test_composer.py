"""The composer: keys, input methods, growth, pasting."""

import itertools

import pytest
from PySide6.QtCore import QMimeData, Qt
from PySide6.QtGui import QInputMethodEvent, QTextOption
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from ui.chat.composer import Composer
from ui.controls.text_bounds import MAX_CHARS
from ui.look.theme import Theme


@pytest.fixture
def composer(qtbot: QtBot) -> Composer:
    made = Composer(Theme("light"))
    made.resize(680, 90)
    qtbot.addWidget(made)
    with qtbot.waitExposed(made):
        made.show()
    made.activateWindow()
    made.input.setFocus()
    return made


def _sent(composer: Composer) -> list[str]:
    sent: list[str] = []
    composer.sent.connect(sent.append)
    return sent


def test_enter_sends_the_text_as_typed(composer: Composer) -> None:
    sent = _sent(composer)
    QTest.keyClicks(composer.input, " two  words ")
    QTest.keyClick(composer.input, Qt.Key.Key_Return)
    QTest.keyClick(composer.input, Qt.Key.Key_Enter)
    assert sent == [" two  words ", " two  words "]


def test_enter_without_text_sends_nothing(composer: Composer) -> None:
    sent = _sent(composer)
    QTest.keyClicks(composer.input, "   ")
    QTest.keyClick(composer.input, Qt.Key.Key_Return)
    assert sent == []


def test_text_of_which_nothing_can_be_seen_is_not_sent(composer: Composer) -> None:
    sent = _sent(composer)
    composer.set_text("\u200b \u2060")
    assert not composer.button.isEnabled()
    QTest.keyClick(composer.input, Qt.Key.Key_Return)
    assert sent == []
    composer.set_text("\u200ba")
    assert composer.button.isEnabled()
    QTest.keyClick(composer.input, Qt.Key.Key_Return)
    assert sent == ["\u200ba"]


def test_shift_enter_makes_a_new_line(composer: Composer) -> None:
    sent = _sent(composer)
    QTest.keyClicks(composer.input, "a")
    QTest.keyClick(composer.input, Qt.Key.Key_Return, Qt.KeyboardModifier.ShiftModifier)
    QTest.keyClicks(composer.input, "b")
    assert composer.text == "a\nb"
    assert sent == []


def test_enter_during_a_composition_does_not_send(composer: Composer) -> None:
    sent = _sent(composer)
    QTest.keyClicks(composer.input, "x")
    QApplication.sendEvent(composer.input, QInputMethodEvent("ni", []))
    QTest.keyClick(composer.input, Qt.Key.Key_Return)
    assert sent == []
    done = QInputMethodEvent("", [])
    done.setCommitString("你")
    QApplication.sendEvent(composer.input, done)
    QTest.keyClick(composer.input, Qt.Key.Key_Return)
    assert len(sent) == 1
    assert "你" in sent[0]


def test_height_grows_with_lines_up_to_eight(composer: Composer) -> None:
    heights = []
    for lines in range(1, 12):
        composer.set_text("\n".join("line" for _ in range(lines)))
        heights.append(composer.wanted_height())
    assert heights[0] == 52
    assert [after - before for before, after in itertools.pairwise(heights[:8])] == [24] * 7
    assert heights[7:] == [heights[7]] * 4


def test_long_line_wraps_and_grows(composer: Composer) -> None:
    composer.set_text("word " * 60)
    assert composer.wanted_height() > 52


def test_paste_takes_plain_text_only(composer: Composer) -> None:
    source = QMimeData()
    source.setHtml("<h1>Big</h1>")
    source.setText("plain")
    composer.input.insertFromMimeData(source)
    assert composer.text == "plain"
    assert "<h1" not in composer.input.toHtml().lower()
    assert composer.wanted_height() == 52


def test_escape_stops_only_while_replying(composer: Composer, qtbot: QtBot) -> None:
    with qtbot.assertNotEmitted(composer.stop_requested):
        QTest.keyClick(composer.input, Qt.Key.Key_Escape)
    composer.set_replying(True)
    with qtbot.waitSignal(composer.stop_requested):
        QTest.keyClick(composer.input, Qt.Key.Key_Escape)


def test_button_names_what_it_does(composer: Composer) -> None:
    assert composer.button.toolTip() == "Write a message first"
    QTest.keyClicks(composer.input, "x")
    assert composer.button.accessibleName() == "Send"
    composer.set_replying(True)
    assert composer.button.accessibleName() == "Stop"
    assert composer.button.toolTip() == "Stop  (Esc)"


def test_up_asks_for_the_last_message_only_when_empty(composer: Composer, qtbot: QtBot) -> None:
    with qtbot.waitSignal(composer.edit_last_requested):
        QTest.keyClick(composer.input, Qt.Key.Key_Up)
    QTest.keyClicks(composer.input, "x")
    with qtbot.assertNotEmitted(composer.edit_last_requested):
        QTest.keyClick(composer.input, Qt.Key.Key_Up)


def test_undo_after_typing_goes_back_to_the_given_text(composer: Composer) -> None:
    composer.set_text("given")
    QTest.keyClicks(composer.input, " more")
    composer.input.undo()
    assert composer.text == "given"


@pytest.mark.parametrize(("percent", "is_kept"), [(100, True), (150, False)])
def test_undo_is_kept_over_another_theme_but_not_over_another_text_size(
    composer: Composer, percent: int, is_kept: bool
) -> None:
    theme = composer.input._theme
    QTest.keyClicks(composer.input, "one")
    theme.set_choice("dark")
    theme.set_text_size(percent)
    assert composer.input.document().isUndoAvailable() is is_kept
    assert composer.input.wanted_height() == theme.line_height("body") + 2


def _paste(composer: Composer, text: str) -> None:
    data = QMimeData()
    data.setText(text)
    composer.input.insertFromMimeData(data)


def test_paste_beyond_the_bound_is_refused_whole(composer: Composer) -> None:
    refused: list[int] = []
    composer.refused.connect(refused.append)
    _paste(composer, "a " * (MAX_CHARS // 2))
    assert len(composer.text) == MAX_CHARS
    _paste(composer, "bc")
    assert (len(composer.text), refused) == (MAX_CHARS, [2])
    composer.input.selectAll()
    _paste(composer, "instead")
    assert (composer.text, refused) == ("instead", [2])


def test_very_long_word_is_broken_anywhere_until_the_field_is_empty(composer: Composer) -> None:
    mode = QTextOption.WrapMode
    _paste(composer, "x" * 5_000)
    assert composer.input.wordWrapMode() == mode.WrapAnywhere
    QTest.keyClicks(composer.input, " and words")
    assert composer.input.wordWrapMode() == mode.WrapAnywhere
    composer.set_text("")
    assert composer.input.wordWrapMode() == mode.WrapAtWordBoundaryOrAnywhere
