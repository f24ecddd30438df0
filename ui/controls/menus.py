"""Menus with our icons and shortcuts, opened where their panel (not their shadow) belongs."""

from collections.abc import Callable
from textwrap import wrap
from typing import NamedTuple

from PySide6.QtCore import QPoint, QRect
from PySide6.QtGui import QAction, QActionGroup
from PySide6.QtWidgets import QMenu, QWidget

from ui.controls.buttons import native_keys
from ui.look.icons import icon
from ui.look.style import menu_margins
from ui.look.theme import Theme

MENU_GAP = 4
_NOTE_CHARS = 44


class _Drawn(NamedTuple):
    """A row with an icon."""

    action: QAction
    icon_name: str
    is_danger: bool


class Menu(QMenu):
    """A menu that is filled anew each time it opens, so it never shows an old state."""

    def __init__(self, theme: Theme, title: str = "", parent: QWidget | None = None) -> None:
        super().__init__(title, parent)
        self._theme = theme
        self._drawn: list[_Drawn] = []
        self.setAccessibleName(title)
        theme.changed.connect(self._draw_anew)

    def add(
        self,
        text: str,
        run: Callable[[], object],
        *,
        icon_name: str = "",
        shortcut: str = "",
        is_danger: bool = False,
        is_enabled: bool = True,
    ) -> QAction:
        """Add a row.

        Args:
            text: Label; an ampersand in it is shown as such.
            run: Called when it is chosen.
            icon_name: A drawing of `ui.look.icons`, or none.
            shortcut: Only shown, at the right; the window owns the shortcut itself.
            is_danger: Deletes something: painted in the danger colour.
            is_enabled: Whether it can be chosen.
        """
        label = text.replace("&", "&&")
        action = self.addAction(f"{label}\t{native_keys(shortcut)}" if shortcut else label)
        if icon_name:
            self._draw(action, icon_name, is_danger=is_danger)
            action.setIconVisibleInMenu(True)
        action.setProperty("danger", is_danger)
        action.setEnabled(is_enabled)
        action.triggered.connect(lambda _checked=False: run())
        return action

    def add_choice(
        self,
        text: str,
        run: Callable[[], object],
        *,
        is_chosen: bool,
        group: QActionGroup,
        state: str = "",
    ) -> QAction:
        """Add a row of which one in `group` is ticked; `state` stands at its right."""
        action = self.add(text, run)
        if state:
            action.setText(f"{action.text()}\t{state}")
        action.setCheckable(True)
        action.setChecked(is_chosen)
        group.addAction(action)
        return action

    def add_heading(self, text: str) -> None:
        """Add a row that only tells."""
        action = self.addAction(text.replace("&", "&&"))
        action.setProperty("heading", True)
        action.setEnabled(False)

    def add_note(self, text: str) -> None:
        """Add a sentence or two that only tell, in lines of some words."""
        action = self.addAction("\n".join(_even_lines(text)).replace("&", "&&"))
        action.setProperty("note", True)
        action.setEnabled(False)

    def add_menu(self, text: str, *, icon_name: str = "", state: str = "") -> "Menu":
        """Add a row that opens another menu, and give that menu; `state` stands at its right."""
        menu = Menu(self._theme, text, self)
        if state:
            menu.menuAction().setText(f"{text}\t{state}".replace("&", "&&"))
        if icon_name:
            self._draw(menu.menuAction(), icon_name)
        self.addMenu(menu)
        return menu

    def _draw(self, action: QAction, icon_name: str, *, is_danger: bool = False) -> None:
        self._drawn.append(_Drawn(action, icon_name, is_danger))
        self._draw_one(self._drawn[-1])

    def _draw_one(self, drawn: _Drawn) -> None:
        colors = self._theme.palette
        color = colors.danger if drawn.is_danger else colors.text_2
        drawn.action.setIcon(icon(drawn.icon_name, color, self._theme.px(16)))

    def _draw_anew(self) -> None:
        """An icon is a picture in a colour: another theme needs others."""
        for drawn in self._drawn:
            self._draw_one(drawn)

    def open_below(self, anchor: QWidget, *, align_right: bool = False) -> None:
        """Open under `anchor`, edges in line, without waiting for a choice."""
        area = QRect(anchor.mapToGlobal(QPoint(0, 0)), anchor.size())
        margins = menu_margins()
        size = self.sizeHint()
        left = area.left() - margins.left()
        if align_right:
            left = area.right() + 1 - size.width() + margins.right()
        self.popup(QPoint(left, area.bottom() + 1 + MENU_GAP - margins.bottom()))

    def open_at(self, place: QPoint) -> None:
        """Open with the panel's corner at this point of the screen, without waiting."""
        margins = menu_margins()
        self.popup(place - QPoint(margins.left(), margins.bottom()))


def _even_lines(text: str) -> list[str]:
    """As few lines as possible, and those as short as possible, so that no word stands alone."""
    lines = wrap(text, _NOTE_CHARS)
    for width in range(_NOTE_CHARS - 1, 0, -1):
        narrower = wrap(text, width)
        if len(narrower) > len(lines):
            break
        lines = narrower
    return lines
