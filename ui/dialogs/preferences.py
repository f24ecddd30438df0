"""General settings: look and memory, which act at once. GUI thread."""

from collections.abc import Callable, Iterator
from typing import cast

from PySide6.QtCore import QTimer, Signal
from PySide6.QtGui import QShowEvent
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget
from shiboken6 import isValid

from ui.controls.labels import Label
from ui.controls.segmented import Segmented
from ui.controls.slider import Slider
from ui.dialogs.base import Dialog
from ui.dialogs.memory_page import MemoryPage
from ui.look.theme import MAX_TEXT_SIZE_PERCENT, MIN_TEXT_SIZE_PERCENT, Theme, ThemeChoice

TEXT_SIZE_STEP = 10
THEME_NAMES: tuple[tuple[ThemeChoice, str], ...] = (
    ("system", "System"),
    ("light", "Light"),
    ("dark", "Dark"),
    ("contrast", "High contrast"),
)
PAGES = (("look", "Look"), ("memory", "Memory"))
_WIDTH = 520
_PREPARE_MS = 20
_POLISHED_AT_ONCE = 8


class LookPage(QWidget):
    """Theme and text size.

    Signals:
        theme_chosen: A ThemeChoice.
        text_size_chosen: Percent.
    """

    theme_chosen = Signal(str)
    text_size_chosen = Signal(int)

    def __init__(self, theme: Theme) -> None:
        super().__init__()
        self.theme_choice = Segmented(theme, "Theme", THEME_NAMES)
        self.theme_choice.set_key(theme.choice)
        self.theme_choice.chosen.connect(self.theme_chosen)
        head = QHBoxLayout()
        head.addWidget(Label(theme, "Text size", style="label"))
        head.addStretch()
        self._value = Label(theme, style="small_strong")
        head.addWidget(self._value)
        self.text_size = Slider(
            theme,
            "Text size",
            low=MIN_TEXT_SIZE_PERCENT,
            high=MAX_TEXT_SIZE_PERCENT,
            step=TEXT_SIZE_STEP,
        )
        self.text_size.setValue(theme.text_size_percent)
        self.text_size.valueChanged.connect(self._size_changed)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(12)
        column.addWidget(Label(theme, "Theme", style="label"))
        column.addWidget(self.theme_choice)
        column.addSpacing(4)
        column.addLayout(head)
        column.addWidget(self.text_size)
        self._show_size(theme.text_size_percent)

    def _size_changed(self, percent: int) -> None:
        rounded = round(percent / TEXT_SIZE_STEP) * TEXT_SIZE_STEP
        self._show_size(rounded)
        self.text_size_chosen.emit(rounded)

    def _show_size(self, percent: int) -> None:
        self._value.setText(f"{percent}%")


class PreferencesDialog(Dialog):
    """Two pages, of which one is shown.

    Args:
        theme: Colours and fonts.
        parent: The window.
        make_memory: Makes the page of memory, piece by piece, the page itself last; its argument owns
            the pieces. Called once.

    Attributes:
        pages: Chooses the page.
        look: The first page.
    """

    def __init__(
        self,
        theme: Theme,
        parent: QWidget | None,
        *,
        make_memory: Callable[[QWidget], Iterator[MemoryPage | None]],
    ) -> None:
        super().__init__(theme, "Settings", parent, width=_WIDTH)
        self.pages = Segmented(theme, "Page", PAGES)
        self.pages.chosen.connect(self.show_page)
        self.look = LookPage(theme)
        self._memory: MemoryPage | None = None
        self._parts = make_memory(self.area)
        self._preparation = self._prepare_memory()
        self._is_prepared = False
        self._prepare_later = QTimer(self)
        self._prepare_later.setInterval(_PREPARE_MS)
        self._prepare_later.timeout.connect(self._prepare)
        self.finished.connect(self._prepare_later.stop)
        self.head.addWidget(self.pages)
        self.head.addSpacing(16)
        self.content.addWidget(self.look)
        self.add_button("Close", is_first=True).clicked.connect(self.accept)
        self.show_page("look")

    @property
    def is_prepared(self) -> bool:
        """Whether the page of memory can be shown at once."""
        return self._is_prepared

    @property
    def memory(self) -> MemoryPage:
        """The page of memory; what is not made of it yet is made now."""
        while self._memory is None:
            self._make_part()
        return self._memory

    def _make_part(self) -> None:
        page = next(self._parts)
        if page is not None:
            page.hide()
            page.height_changed.connect(self.fit)
            self.content.addWidget(page)
            self._memory = page

    def showEvent(self, event: QShowEvent) -> None:
        """Qt override."""
        super().showEvent(event)
        if not self._is_prepared:
            self._prepare_later.start()

    def _prepare(self) -> None:
        try:
            next(self._preparation)
        except StopIteration:
            self._is_prepared = True
            self._prepare_later.stop()

    def _prepare_memory(self) -> Iterator[None]:
        """Make the page of memory while the other one is looked at: it has many parts, and a style sheet.

        All of it at once would hold up the window for 20 ms when the page is chosen.
        """
        while self._memory is None:
            self._make_part()
            yield
        for number, widget in enumerate(self._memory.findChildren(QWidget)):
            if isValid(widget):  # the choices of a model go with it
                widget.ensurePolished()
            if number % _POLISHED_AT_ONCE == 0:
                yield

    def show_page(self, key: str) -> None:
        """Show the page of this key of `PAGES`."""
        self.pages.set_key(key)
        self.look.setVisible(key == "look")
        if key == "memory" or self._memory is not None:
            self.memory.setVisible(key == "memory")
        self.area.verticalScrollBar().setValue(0)
        self.area.fit()


def theme_choice(key: str) -> ThemeChoice:
    """The choice of this key, which came through a signal as text."""
    assert any(key == known for known, _ in THEME_NAMES), "a key of THEME_NAMES"
    return cast(ThemeChoice, key)
