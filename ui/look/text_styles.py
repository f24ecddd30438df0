"""Sizes and shapes of all text in the window, as plain values: no Qt, any thread."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextStyle:
    """Size and shape of one kind of text, at 100 % text size.

    Attributes:
        size, line: Font size and line height in logical pixels.
        weight: 400, 500 or 600 (700 for bold code).
        spacing: Extra space between letters in pixels.
        is_code: Fixed-width family, without ligatures.
    """

    size: int
    line: int
    weight: int = 400
    spacing: float = 0.0
    is_code: bool = False


TEXT_STYLES: dict[str, TextStyle] = {
    "display": TextStyle(34, 40, 600, -0.8),
    "welcome": TextStyle(26, 36, 600, -0.5),
    "title": TextStyle(15, 22, 600, -0.1),
    "h1": TextStyle(20, 28, 600),
    "h2": TextStyle(17, 26, 600),
    "h3": TextStyle(15, 24, 600),
    "body": TextStyle(15, 24),
    "body_strong": TextStyle(15, 24, 600),
    "ui": TextStyle(14, 20),
    "ui_strong": TextStyle(14, 20, 500),
    "ui_title": TextStyle(14, 20, 600),
    "button": TextStyle(13, 20, 500),
    "label": TextStyle(13, 20),
    "table_head": TextStyle(13, 20, 600),
    "small": TextStyle(12, 18),
    "small_strong": TextStyle(12, 18, 500),
    "group": TextStyle(12, 18, 600),
    "key": TextStyle(11, 16, 500),
    "code": TextStyle(13, 20, is_code=True),
    "code_strong": TextStyle(13, 20, 700, is_code=True),
}
