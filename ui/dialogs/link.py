"""Asks before a link opens the browser, with the whole address in sight. GUI thread."""

from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QDialog, QPlainTextEdit, QWidget

from ui.dialogs.base import Dialog
from ui.look.field_look import dress_field
from ui.look.theme import Theme

_SCHEMES = ("http", "https")
_MAX_ADDRESS_CHARS = 4000


class LinkDialog(Dialog):
    """Shows the address and asks."""

    def __init__(self, theme: Theme, url: QUrl, parent: QWidget | None) -> None:
        super().__init__(theme, "Open this link?", parent)
        self.add_text("Your browser will open this address and connect to its server.")
        address = QPlainTextEdit(address_text(url))
        address.setReadOnly(True)
        address.setProperty("field", True)
        dress_field(address, theme)
        address.setFont(theme.font("code"))
        address.setFixedHeight(theme.px(84))
        address.setTabChangesFocus(True)
        address.setAccessibleName("Address")
        self.content.addWidget(address)
        self.add_button("Cancel", is_first=True).clicked.connect(self.reject)
        self.add_button("Open in browser", "primary").clicked.connect(self.accept)

    @classmethod
    def ask(cls, theme: Theme, url: QUrl, parent: QWidget | None) -> bool:
        """Whether the person wants it opened."""
        dialog = cls(theme, url, parent)
        is_wanted = dialog.exec() == QDialog.DialogCode.Accepted
        dialog.deleteLater()
        return is_wanted


def address_text(url: QUrl) -> str:
    """The address with its host spelt in ASCII, so that look-alike letters cannot deceive."""
    return bytes(url.toEncoded().data()).decode("ascii", "replace")


def checked_address(address: str) -> QUrl | None:
    """The address as a URL if it may be opened at all: http or https with a host."""
    if len(address) > _MAX_ADDRESS_CHARS:
        return None
    url = QUrl(address.strip(), QUrl.ParsingMode.StrictMode)
    is_allowed = url.isValid() and url.scheme().lower() in _SCHEMES and bool(url.host())
    return url if is_allowed else None


def open_link(theme: Theme, address: str, parent: QWidget | None) -> bool:
    """Ask, then open; anything but http and https is refused without asking.

    Returns:
        False if the address may not be opened.
    """
    url = checked_address(address)
    if url is None:
        return False
    if LinkDialog.ask(theme, url, parent):
        QDesktopServices.openUrl(url)
    return True
