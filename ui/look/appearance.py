"""Puts the theme into the application: style, colours, fonts; keeps the choice."""

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QApplication, QToolTip

from app.settings import SettingsStore
from ui.look.style import QuireStyle
from ui.look.theme import Theme, ThemeChoice


class Appearance(QObject):
    """Applies the theme now and whenever it changes.

    Attributes:
        style: Kept here, because Qt does not keep it for Python.
    """

    def __init__(
        self, application: QApplication, theme: Theme, settings: SettingsStore, parent: QObject
    ) -> None:
        super().__init__(parent)
        self._application = application
        self._theme = theme
        self._settings = settings
        self.style = QuireStyle(theme)
        application.setStyle(self.style)
        theme.changed.connect(self._apply)
        self._apply()

    def choose_theme(self, choice: ThemeChoice) -> None:
        """Take a theme, now and for the next start."""
        self._settings.change(theme=choice)
        self._theme.set_choice(choice)

    def choose_text_size(self, percent: int) -> None:
        """Take a text size, now and for the next start; the nearest allowed one."""
        self._theme.set_text_size(percent)
        self._settings.change(text_size_percent=self._theme.text_size_percent)

    def _apply(self) -> None:
        palette = self._theme.qt_palette()
        self._application.setPalette(palette)
        self._application.setFont(self._theme.font("ui"))
        QToolTip.setPalette(palette)
        QToolTip.setFont(self._theme.font("small_strong"))
