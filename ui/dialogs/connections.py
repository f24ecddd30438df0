"""Lists what Quire is connected to. GUI thread."""

from PySide6.QtWidgets import QWidget

from ui.dialogs.base import Dialog
from ui.look.theme import Theme


class ConnectionsDialog(Dialog):
    """There are none, and this says what that means."""

    def __init__(self, theme: Theme, parent: QWidget | None) -> None:
        super().__init__(theme, "No connections", parent)
        self.add_text("Nothing you write leaves this computer. The model runs inside Quire.")
        self.add_text(
            "A link in a reply opens in your browser, and only after you agreed to its address. "
            "Pictures from the web are not fetched."
        )
        self.add_button("Close", is_first=True).clicked.connect(self.accept)
