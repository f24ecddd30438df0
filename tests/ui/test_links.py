"""Links: asked about with the whole address, only http and https, everything else refused."""

from collections.abc import Callable

import pytest
from PySide6.QtCore import QUrl
from PySide6.QtGui import QDesktopServices
from PySide6.QtWidgets import QPlainTextEdit

from tests.ui.open_window import OpenWindow
from ui.dialogs.link import LinkDialog, address_text, checked_address

Opener = Callable[..., OpenWindow]


@pytest.mark.parametrize(
    "address",
    [
        "file:///etc/passwd",
        "javascript:alert(1)",
        "data:text/html,x",
        "mailto:a@b.org",
        "ftp://host/x",
        "file://host/x",
        "javascript://host/%0aalert(1)",
        "data://host/x",
        "data:text/html,<script>alert(1)</script>",
        "smb://host/share",
        "http://",
        "//host/path",
        "host.org",
        "",
        "http://a/" + "x" * 5000,
        "vscode://file/x",
    ],
)
def test_address_that_is_no_web_address_is_refused(address: str) -> None:
    assert checked_address(address) is None


@pytest.mark.parametrize("address", ["http://a.org", "https://a.org/b?c=d#e", "HTTPS://A.ORG/"])
def test_web_address_is_allowed(address: str) -> None:
    assert checked_address(address) is not None


def test_host_with_look_alike_letters_is_shown_in_ascii() -> None:
    url = checked_address("https://аpple.com/")  # the first letter is Cyrillic
    assert url is not None
    assert "xn--" in address_text(url)


@pytest.mark.parametrize("answer", [True, False])
def test_link_opens_only_after_yes(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    asked: list[str] = []
    opened: list[QUrl] = []

    def ask(cls: type, theme: object, url: QUrl, parent: object) -> bool:
        asked.append(url.toString())
        return answer

    monkeypatch.setattr(LinkDialog, "ask", classmethod(ask))
    monkeypatch.setattr(QDesktopServices, "openUrl", opened.append)
    window = open_window()
    window.chat.messages.link_activated.emit("https://example.org/a")
    assert asked == ["https://example.org/a"]
    assert [url.toString() for url in opened] == (["https://example.org/a"] if answer else [])


def test_refused_link_is_told_and_not_opened(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[QUrl] = []
    monkeypatch.setattr(QDesktopServices, "openUrl", opened.append)
    window = open_window()
    window.chat.messages.link_activated.emit("file:///etc/passwd")
    assert opened == []
    assert window.chat.toast.text == "Only http and https links can be opened."


def test_dialog_shows_the_whole_address_and_cancel_has_the_focus(open_window: Opener) -> None:
    window = open_window()
    address = "https://example.org/" + "a" * 300
    dialog = LinkDialog(window.program.theme, QUrl(address), window.window)
    dialog.show()
    shown = dialog.findChild(QPlainTextEdit)
    assert shown is not None
    assert shown.toPlainText() == address
    assert dialog.focusWidget() is window.button("Cancel", dialog)
    dialog.close()
