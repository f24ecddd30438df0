"""How fields look where text is typed: a style sheet for each, which is what style sheets do well.

Not one for the application: with it Qt looks at every widget there is whenever the theme changes, and holds
the window for seconds in a long chat.
"""

from string import Template

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QWidget

from ui.look.theme import Theme
from ui.look.tokens import Palette

FIELD_HEIGHT = 34

_TEMPLATE = Template("""
QLineEdit, QPlainTextEdit[field="true"] {
    background: $raised; color: $text; border: 1px solid $control; border-radius: 8px;
    padding: 0 11px; selection-background-color: $accent; selection-color: $on_accent;
    placeholder-text-color: $text_3;
}
QLineEdit { min-height: ${field_height}px; }
QPlainTextEdit[field="true"] { padding: 6px 7px; }
QLineEdit:hover, QPlainTextEdit[field="true"]:hover { border-color: $text_3; }
QLineEdit:focus { border: ${focus}px solid $ring; padding: 0 ${focused_padding}px; }
QPlainTextEdit[field="true"]:focus {
    border: ${focus}px solid $ring; padding: ${focused_area_y}px ${focused_area_x}px;
}
QLineEdit[invalid="true"] { border: 2px solid $danger; padding: 0 10px; }
QPlainTextEdit[invalid="true"] { border: 2px solid $danger; padding: 5px 6px; }
QLineEdit[invalid="true"]:focus {
    border: ${invalid_focus}px solid $danger; padding: 0 ${invalid_padding}px;
}
QPlainTextEdit[invalid="true"]:focus {
    border: ${invalid_focus}px solid $danger; padding: ${invalid_area_y}px ${invalid_area_x}px;
}
QLineEdit:disabled { background: $sunken; color: $disabled; border-color: $border_2; }
QLineEdit[look="row"] {
    background: transparent; border-color: transparent; placeholder-text-color: $text_2;
}
QLineEdit[look="row"]:focus { background: $raised; border-color: $ring; }
QLineEdit[inline="true"] { min-height: 0; padding: 0 10px; border: ${focus}px solid $ring; }
""")


def dress_field(field: QWidget, theme: Theme) -> None:
    """Give a field Quire's look, now and whenever the theme changes."""
    _Dresser(field, theme)


class _Dresser(QObject):
    """Lives as long as its field, so that the theme does not tell one that is gone."""

    def __init__(self, field: QWidget, theme: Theme) -> None:
        super().__init__(field)
        self._field = field
        self._theme = theme
        theme.changed.connect(self._apply)
        self._apply()

    def _apply(self) -> None:
        height = self._theme.px(FIELD_HEIGHT)
        self._field.setStyleSheet(make_field_sheet(self._theme.palette, field_height=height))


def make_field_sheet(palette: Palette, *, field_height: int) -> str:
    """The sheet for these colours; `field_height` is that of a one-line field with its outline."""
    focus = palette.focus_width
    return _TEMPLATE.substitute(
        raised=palette.raised,
        sunken=palette.sunken,
        control=palette.control,
        text=palette.text,
        accent=palette.accent,
        on_accent=palette.on_accent,
        ring=palette.ring,
        danger=palette.danger,
        disabled=palette.disabled,
        text_2=palette.text_2,
        text_3=palette.text_3,
        border_2=palette.border_2,
        field_height=field_height - 2,
        focus=focus,
        focused_padding=12 - focus,
        focused_area_x=8 - focus,
        focused_area_y=7 - focus,
        invalid_focus=focus + 1,  # it is told by the width alone, as the colour is taken
        invalid_padding=11 - focus,
        invalid_area_x=7 - focus,
        invalid_area_y=6 - focus,
    )
