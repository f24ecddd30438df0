"""Version, places of files, and the licences of what ships with Quire and of what it uses. GUI thread."""

import platform
from pathlib import Path

import PySide6
from PySide6.QtWidgets import QPlainTextEdit, QWidget

import resources
from ui.controls.segmented import Segmented
from ui.dialogs.base import Dialog
from ui.look.field_look import dress_field
from ui.look.theme import Theme

_WIDTH = 560
_WORKS = (
    ("libraries.txt", "Libraries"),
    ("licences/Inter-OFL.txt", "Inter"),
    ("licences/JetBrainsMono-OFL.txt", "JetBrains Mono"),
    ("licences/Lucide-ISC.txt", "Lucide"),
)


class AboutDialog(Dialog):
    """What this program is made of.

    Args:
        theme: Colours and fonts.
        version: Of Quire.
        profile_dir: Where chats and settings lie.
        log_file: The newest log.
        parent: The window.
    """

    def __init__(
        self,
        theme: Theme,
        *,
        version: str,
        profile_dir: Path,
        log_file: Path,
        parent: QWidget | None,
    ) -> None:
        super().__init__(theme, "About Quire", parent, width=_WIDTH)
        self.add_text(
            f"Quire {version} · Qt {PySide6.__version__} · Python {platform.python_version()}",
            role="text",
        )
        self.add_text(f"Chats and settings: {profile_dir}\nLog: {log_file}")
        self.chooser = Segmented(theme, "Licence", _WORKS)
        self.text = QPlainTextEdit()
        self.text.setReadOnly(True)
        self.text.setProperty("field", True)
        dress_field(self.text, theme)
        self.text.setFont(theme.font("code"))
        self.text.setFixedHeight(theme.px(220))
        self.text.setTabChangesFocus(True)
        self.text.setAccessibleName("Text of the licence")
        self.chooser.chosen.connect(self._show)
        self.content.addWidget(self.chooser)
        self.content.addWidget(self.text)
        self.add_button("Close", is_first=True).clicked.connect(self.accept)
        self._show(self.chooser.key)

    def _show(self, place: str) -> None:
        text = resources.path(*place.split("/")).read_text(encoding="utf-8")
        self.text.setPlainText(text)
