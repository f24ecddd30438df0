"""How much text a field takes: fields lay their text out anew with each key. GUI thread."""

from PySide6.QtCore import QMimeData
from PySide6.QtGui import QTextOption
from PySide6.QtWidgets import QPlainTextEdit, QToolTip

MAX_CHARS = 200_000
# Qt looks for a place to break from the start of the word, line by line: a word of this size and
# more (a key, a picture as text) is broken anywhere instead, else its cost grows as its square.
_LONG_WORD = 2_000


def has_long_word(text: str) -> bool:
    """Whether `text` must be broken anywhere."""
    return max(map(len, text.split()), default=0) >= _LONG_WORD


def too_long(num_chars: int) -> str:
    """The sentence for people about a text of so many characters."""
    return f"This text is too long: {num_chars:,} characters. A message takes {MAX_CHARS:,}."


class BoundedTextEdit(QPlainTextEdit):
    """Takes no text beyond the bound, and says so beside the caret."""

    def insertFromMimeData(self, source: QMimeData) -> None:
        """Qt override: what is pasted or dropped."""
        text = source.text()
        cursor = self.textCursor()
        kept = self.document().characterCount() - 1 - len(cursor.selectedText())
        if kept + len(text) > MAX_CHARS:
            place = self.viewport().mapToGlobal(self.cursorRect().bottomLeft())
            QToolTip.showText(place, too_long(len(text)), self)
            return
        if has_long_word(text):
            self.setWordWrapMode(QTextOption.WrapMode.WrapAnywhere)
        super().insertFromMimeData(source)
