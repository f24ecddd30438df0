"""The theme in force: colours, fonts and sizes that widgets ask for. GUI thread.

A widget keeps the `Theme` it was given, reads colours while it paints, and sets its fonts again
when `changed` is emitted.
"""

from collections.abc import Callable
from typing import Literal

from PySide6.QtCore import QLocale, QObject, Qt, Signal
from PySide6.QtGui import QColor, QFont, QGuiApplication, QPalette

from ui.look.fonts import family_list, make_font
from ui.look.text_styles import TEXT_STYLES
from ui.look.tokens import CONTRAST, DARK, LIGHT, Palette

ThemeChoice = Literal["system", "light", "dark", "contrast"]

MIN_TEXT_SIZE_PERCENT = 80
MAX_TEXT_SIZE_PERCENT = 200


class Theme(QObject):
    """One per program.

    Args:
        choice: What the person chose.
        text_size_percent: 80 to 200.
        parent: Owner.
        system_palette: Asks the desktop; tests bring their own answer.

    Attributes:
        reduce_motion: All durations are 0 and the caret stands still.

    Signals:
        changed: Colours or text sizes are new.
    """

    changed = Signal()

    def __init__(
        self,
        choice: ThemeChoice = "system",
        text_size_percent: int = 100,
        parent: QObject | None = None,
        *,
        system_palette: Callable[[], Palette] | None = None,
    ) -> None:
        super().__init__(parent)
        self._system_palette = system_palette or _system_palette
        self._choice: ThemeChoice = choice
        self._percent = _clamped(text_size_percent)
        self._fonts: dict[str, QFont] = {}
        self._colors: dict[str, QColor] = {}
        self.reduce_motion = False
        hints = QGuiApplication.styleHints()
        hints.colorSchemeChanged.connect(self._follow_system)
        hints.accessibility().contrastPreferenceChanged.connect(self._follow_system)
        self._palette = self._chosen_palette()

    @property
    def choice(self) -> ThemeChoice:
        """What the person chose."""
        return self._choice

    @property
    def palette(self) -> Palette:
        """The colours in force."""
        return self._palette

    @property
    def text_size_percent(self) -> int:
        """80 to 200; scales every text size and line height."""
        return self._percent

    def set_choice(self, choice: ThemeChoice) -> None:
        """Take this theme; "system" follows the desktop from now on."""
        self._choice = choice
        self._follow_system()

    def set_text_size(self, percent: int) -> None:
        """Take this text size; out of range gives the nearest allowed one."""
        percent = _clamped(percent)
        if percent != self._percent:
            self._percent = percent
            self._fonts.clear()
            self.changed.emit()

    def font(self, style: str, *, italic: bool = False) -> QFont:
        """A font for a style of `text_styles.TEXT_STYLES`, at the chosen text size; a fresh copy."""
        key = f"{style}/i" if italic else style
        if key not in self._fonts:
            text_style = TEXT_STYLES[style]
            families = family_list(QLocale.system(), is_code=text_style.is_code)
            font = make_font(text_style, percent=self._percent, families=families)
            font.setItalic(italic)
            self._fonts[key] = font
        return QFont(self._fonts[key])

    def line_height(self, style: str) -> int:
        """Height of one line of this style in logical pixels."""
        return self.px(TEXT_STYLES[style].line)

    def px(self, size: float) -> int:
        """A measure that grows with the text, such as the height of a row of text."""
        return round(size * self._percent / 100)

    def color(self, role: str) -> QColor:
        """The colour of a field of `Palette`, as a QColor; do not change it."""
        if role not in self._colors:
            self._colors[role] = QColor(getattr(self._palette, role))
        return self._colors[role]

    def duration_ms(self, milliseconds: int) -> int:
        """How long an animation may take: 0 when motion is reduced."""
        return 0 if self.reduce_motion else milliseconds

    def qt_palette(self) -> QPalette:
        """The colours for what Qt paints by itself: selections, links, disabled text."""
        colors = self._palette
        made = QPalette()
        role = QPalette.ColorRole
        for qt_role, color in {
            role.Window: colors.surface,
            role.WindowText: colors.text,
            role.Base: colors.raised,
            role.AlternateBase: colors.sunken,
            role.Text: colors.text,
            role.Button: colors.raised,
            role.ButtonText: colors.text,
            role.BrightText: colors.danger,
            role.Highlight: colors.accent,
            role.HighlightedText: colors.on_accent,
            role.Link: colors.accent_text,
            role.LinkVisited: colors.accent_text,
            role.PlaceholderText: colors.text_3,
            role.ToolTipBase: colors.tooltip,
            role.ToolTipText: colors.tooltip_text,
            role.Accent: colors.accent,
        }.items():
            made.setColor(qt_role, QColor(color))
        for qt_role in (role.WindowText, role.Text, role.ButtonText):
            made.setColor(QPalette.ColorGroup.Disabled, qt_role, QColor(colors.disabled))
        return made

    def _follow_system(self) -> None:
        palette = self._chosen_palette()
        if palette is not self._palette:
            self._palette = palette
            self._colors.clear()
            self.changed.emit()

    def _chosen_palette(self) -> Palette:
        if self._choice == "light":
            return LIGHT
        if self._choice == "dark":
            return DARK
        if self._choice == "contrast":
            return CONTRAST
        return self._system_palette()


def _system_palette() -> Palette:
    hints = QGuiApplication.styleHints()
    if hints.accessibility().contrastPreference() == Qt.ContrastPreference.HighContrast:
        return CONTRAST
    return DARK if hints.colorScheme() == Qt.ColorScheme.Dark else LIGHT


def _clamped(percent: int) -> int:
    return min(max(percent, MIN_TEXT_SIZE_PERCENT), MAX_TEXT_SIZE_PERCENT)
