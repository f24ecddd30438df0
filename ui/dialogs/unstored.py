"""Asks before the window closes while something is in memory only. GUI thread."""

from PySide6.QtWidgets import QDialog, QWidget

from ui.dialogs.base import Dialog
from ui.look.theme import Theme


class UnstoredDialog(Dialog):
    """Says what would be lost, and how to keep it.

    Args:
        theme: Colours and fonts.
        what: Could not be stored; begins a sentence.
        parent: The window.
    """

    def __init__(self, theme: Theme, what: str, parent: QWidget | None) -> None:
        super().__init__(theme, "Close without storing?", parent)
        self.add_text(
            f"{what} could not be stored and is in memory only: it is lost if Quire closes now. Free "
            "some space on the disk, and it is stored by itself."
        )
        self.add_button("Close anyway", "danger").clicked.connect(self.accept)
        self.add_button("Stay", "primary").clicked.connect(self.reject)

    @classmethod
    def ask(cls, theme: Theme, what: str, parent: QWidget | None) -> bool:
        """Whether the person wants to close all the same."""
        dialog = cls(theme, what, parent)
        is_wanted = dialog.exec() == QDialog.DialogCode.Accepted
        dialog.deleteLater()
        return is_wanted
