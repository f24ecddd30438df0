"""Fields take no text that would stop the window."""

import pytest
from PySide6.QtCore import QMimeData
from PySide6.QtGui import QTextOption
from PySide6.QtWidgets import QPlainTextEdit, QToolTip, QWidget
from pytestqt.qtbot import QtBot

from ui.controls.fields import AreaField
from ui.controls.text_bounds import MAX_CHARS, BoundedTextEdit, has_long_word
from ui.look.theme import Theme
from ui.replies.reply_editor import MessageEditor


def _paste(field: QPlainTextEdit, text: str) -> None:
    data = QMimeData()
    data.setText(text)
    field.insertFromMimeData(data)


def test_field_refuses_what_is_too_long_and_says_so(
    qtbot: QtBot, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(QToolTip, "showText", lambda _place, text, _widget: told.append(text))
    field = BoundedTextEdit()
    qtbot.addWidget(field)
    _paste(field, "ab " * (MAX_CHARS // 3))
    kept = field.toPlainText()
    assert len(kept) == MAX_CHARS - MAX_CHARS % 3
    _paste(field, "x" * 1_000)
    assert field.toPlainText() == kept
    assert told == ["This text is too long: 1,000 characters. A message takes 200,000."]
    field.selectAll()
    _paste(field, "short")
    assert field.toPlainText() == "short"


def test_field_breaks_very_long_words_anywhere(qtbot: QtBot) -> None:
    field = BoundedTextEdit()
    qtbot.addWidget(field)
    _paste(field, "two words")
    assert field.wordWrapMode() == QTextOption.WrapMode.WrapAtWordBoundaryOrAnywhere
    _paste(field, "x" * 2_000)
    assert field.wordWrapMode() == QTextOption.WrapMode.WrapAnywhere
    assert not has_long_word("x" * 1_999 + " y")


def test_instructions_and_edited_messages_are_bounded(qtbot: QtBot) -> None:
    theme = Theme("light")
    area = AreaField(theme, "Instructions")
    around = QWidget()
    qtbot.addWidget(area)
    qtbot.addWidget(around)
    editor = MessageEditor("x" * 5_000, theme, around)
    assert isinstance(area.input, BoundedTextEdit)
    assert isinstance(editor.field, BoundedTextEdit)
    assert editor.field.wordWrapMode() == QTextOption.WrapMode.WrapAnywhere
