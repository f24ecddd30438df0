"""The application's style sheet, filled from the colours of the theme. Pure text.

Only what style sheets do well: fields, scroll bars, tooltips. Menus are drawn by `ui.look.style`,
buttons and everything else by their own widgets.
"""

from string import Template

from ui.look.tokens import Palette

_TEMPLATE = Template("""
QToolTip {
    background: $tooltip; color: $tooltip_text; border: 1px solid $tooltip_outline;
    border-radius: 6px; padding: 1px 5px; font-size: ${tooltip_font_px}px; font-weight: 500;
}
QLineEdit, QPlainTextEdit[field="true"] {
    background: $raised; color: $text; border: 1px solid $control; border-radius: 8px;
    padding: 0 11px; selection-background-color: $accent; selection-color: $on_accent;
    placeholder-text-color: $text_3;
}
QLineEdit { min-height: ${field_height}px; }
QPlainTextEdit[field="true"] { padding: 6px 7px; }
QLineEdit:focus { border: ${focus}px solid $ring; padding: 0 ${focused_padding}px; }
QPlainTextEdit[field="true"]:focus {
    border: ${focus}px solid $ring; padding: ${focused_area_y}px ${focused_area_x}px;
}
QLineEdit[invalid="true"] { border: 2px solid $danger; padding: 0 10px; }
QPlainTextEdit[invalid="true"] { border: 2px solid $danger; padding: 5px 6px; }
QLineEdit:disabled { background: $sunken; color: $disabled; border-color: $border_2; }
QLineEdit[look="row"] {
    background: transparent; border-color: transparent; placeholder-text-color: $text_2;
}
QLineEdit[look="row"]:focus { background: $raised; border-color: $ring; }
QLineEdit[inline="true"] { min-height: 0; padding: 0 10px; border: ${focus}px solid $ring; }
QScrollBar:vertical { background: transparent; width: 10px; margin: 0; border: none; }
QScrollBar:horizontal { background: transparent; height: 10px; margin: 0; border: none; }
QScrollBar::handle { background: $handle; border-radius: 3px; }
QScrollBar::handle:vertical { min-height: 32px; margin: 2px 2px; }
QScrollBar::handle:horizontal { min-width: 32px; margin: 2px 2px; }
QScrollBar::handle:hover, QScrollBar::handle:pressed { background: $control; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0; height: 0; background: none; border: none; }
QScrollBar::add-page, QScrollBar::sub-page { background: none; }
""")


def make_style_sheet(palette: Palette, *, field_height: int, tooltip_font_px: int) -> str:
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
        tooltip=palette.tooltip,
        tooltip_text=palette.tooltip_text,
        tooltip_outline=palette.tooltip_outline,
        handle=palette.control if palette.is_contrast else palette.border_2,
        field_height=field_height - 2,
        tooltip_font_px=tooltip_font_px,
        focus=focus,
        focused_padding=12 - focus,
        focused_area_x=8 - focus,
        focused_area_y=7 - focus,
    )
