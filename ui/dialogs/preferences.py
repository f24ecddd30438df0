"""General settings: theme and text size, which act at once. GUI thread."""

from typing import cast

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QWidget

from ui.controls.labels import Label
from ui.controls.segmented import Segmented
from ui.controls.slider import Slider
from ui.dialogs.base import Dialog
from ui.look.theme import MAX_TEXT_SIZE_PERCENT, MIN_TEXT_SIZE_PERCENT, Theme, ThemeChoice

TEXT_SIZE_STEP = 10
THEME_NAMES: tuple[tuple[ThemeChoice, str], ...] = (
    ("system", "System"),
    ("light", "Light"),
    ("dark", "Dark"),
    ("contrast", "High contrast"),
)


class PreferencesDialog(Dialog):
    """Theme and text size.

    Signals:
        theme_chosen: A ThemeChoice.
        text_size_chosen: Percent.
    """

    theme_chosen = Signal(str)
    text_size_chosen = Signal(int)

    def __init__(self, theme: Theme, parent: QWidget | None) -> None:
        super().__init__(theme, "Settings", parent)
        self.content.addWidget(Label(theme, "Theme", style="label"))
        self.theme_choice = Segmented(theme, "Theme", THEME_NAMES)
        self.theme_choice.set_key(theme.choice)
        self.theme_choice.chosen.connect(self.theme_chosen)
        self.content.addWidget(self.theme_choice)
        head = QHBoxLayout()
        head.addWidget(Label(theme, "Text size", style="label"))
        head.addStretch()
        self._value = Label(theme, style="small_strong")
        head.addWidget(self._value)
        self.content.addSpacing(4)
        self.content.addLayout(head)
        self.text_size = Slider(
            theme,
            "Text size",
            low=MIN_TEXT_SIZE_PERCENT,
            high=MAX_TEXT_SIZE_PERCENT,
            step=TEXT_SIZE_STEP,
        )
        self.text_size.setValue(theme.text_size_percent)
        self.text_size.valueChanged.connect(self._size_changed)
        self.content.addWidget(self.text_size)
        self.add_button("Close", is_first=True).clicked.connect(self.accept)
        self._show_size(theme.text_size_percent)

    def _size_changed(self, percent: int) -> None:
        rounded = round(percent / TEXT_SIZE_STEP) * TEXT_SIZE_STEP
        self._show_size(rounded)
        self.text_size_chosen.emit(rounded)

    def _show_size(self, percent: int) -> None:
        self._value.setText(f"{percent}%")


def theme_choice(key: str) -> ThemeChoice:
    """The choice of this key, which came through a signal as text."""
    assert any(key == known for known, _ in THEME_NAMES), "a key of THEME_NAMES"
    return cast(ThemeChoice, key)
