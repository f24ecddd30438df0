"""Colours against the contrast that people need to read (WCAG 2.2: text 4.5, marks 3.0)."""

import dataclasses

import pytest

from ui.look.tokens import CONTRAST, DARK, LIGHT, Palette

PALETTES = [pytest.param(palette, id=palette.name) for palette in (LIGHT, DARK, CONTRAST)]
GROUNDS = ("surface", "sidebar", "raised", "sunken", "select")


def _luminance(color: str) -> float:
    parts = [int(color[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("palette", PALETTES)
def test_text_is_readable_on_every_ground(palette: Palette) -> None:
    for ground in (*GROUNDS, "bubble", "pill"):
        assert contrast(palette.text, getattr(palette, ground)) >= 4.5, ground
    for ground in GROUNDS:
        assert contrast(palette.text_2, getattr(palette, ground)) >= 4.5, ground
    for ground in ("surface", "sidebar", "raised", "sunken"):
        assert contrast(palette.text_3, getattr(palette, ground)) >= 4.5, ground
        assert contrast(palette.accent_text, getattr(palette, ground)) >= 4.5, ground


@pytest.mark.parametrize("palette", PALETTES)
def test_words_on_fills_are_readable(palette: Palette) -> None:
    for fill in (palette.accent, palette.accent_hover, palette.accent_pressed):
        assert contrast(palette.on_accent, fill) >= 4.5
    for fill in (palette.danger_fill, palette.danger_fill_hover):
        assert contrast(palette.on_danger, fill) >= 4.5
    assert contrast(palette.tooltip_text, palette.tooltip) >= 4.5
    for role in ("success", "warn", "danger"):
        assert contrast(getattr(palette, role), getattr(palette, f"{role}_soft")) >= 4.5, role


@pytest.mark.parametrize("palette", PALETTES)
def test_marks_and_code_stand_out(palette: Palette) -> None:
    for ground in ("surface", "raised"):
        assert contrast(palette.control, getattr(palette, ground)) >= 3.0, ground
        assert contrast(palette.ring, getattr(palette, ground)) >= 3.0, ground
    for value in dataclasses.astuple(palette.data):
        assert contrast(value, palette.sidebar) >= 3.0, value
    for value in dataclasses.astuple(palette.code):
        assert contrast(value, palette.sunken) >= 4.5, value


def test_values_of_the_design_are_taken_over_exactly() -> None:
    assert (LIGHT.surface, LIGHT.accent, LIGHT.text) == ("#FDFCFA", "#2C57C9", "#1E2329")
    assert (DARK.surface, DARK.accent, DARK.text) == ("#1A1B1E", "#4467DA", "#E4E2DD")
    assert (CONTRAST.surface, CONTRAST.ring, CONTRAST.text) == ("#000000", "#FFE14A", "#FFFFFF")
