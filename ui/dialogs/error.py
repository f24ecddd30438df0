"""The one place that puts failures into words for people. GUI thread.

A failure of one reply is a card in the chat, a failed load a notice above the composer; only what
concerns the whole program becomes a dialog. The traceback is in the log, whose place is shown.
"""

from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from app.messages import Failure
from ui.dialogs.base import Dialog
from ui.look.theme import Theme

_TITLES = {
    "model_file": "This model cannot be opened",
    "memory": "Not enough memory for this model",
    "context_full": "This chat is full",
    "template": "This model does not say how to chat",
    "request": "This cannot be answered as it is set",
    "compute": "The computation failed",
    "bug": "Something in Quire went wrong",
}


@dataclass(frozen=True, slots=True)
class FailureWords:
    """A title of a few words, and what happened with what one can do."""

    title: str
    text: str


def failure_words(failure: Failure) -> FailureWords:
    """Title and text of a failure."""
    text = f"{failure.message} {failure.hint}".strip()
    return FailureWords(_TITLES[failure.kind], text)


class ErrorDialog(Dialog):
    """Tells a failure that concerns the whole program; details and the log's place on request."""

    def __init__(
        self,
        theme: Theme,
        title: str,
        text: str,
        *,
        details: str = "",
        log_file: Path | None = None,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(theme, title, parent)
        self.add_text(text, role="text")
        lines = [details] if details else []
        if log_file is not None:
            lines.append(f"The log has more: {log_file}")
        self._details = self.add_text("\n".join(lines))
        self._details.setTextInteractionFlags(
            Qt.TextInteractionFlag.TextSelectableByMouse
            | Qt.TextInteractionFlag.TextSelectableByKeyboard
        )
        self._details.hide()
        if lines:
            self.add_left_button("Details").clicked.connect(self._show_details)
        self.add_button("Close", is_first=True).clicked.connect(self.accept)

    @property
    def details(self) -> str:
        """What "Details" shows."""
        return self._details.text()

    def _show_details(self) -> None:
        self._details.setVisible(self._details.isHidden())
        self.area.fit()
