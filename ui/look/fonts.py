"""The shipped fonts: registered once, before the first widget. GUI thread."""

import logging

from PySide6.QtCore import QLocale
from PySide6.QtGui import QFont, QFontDatabase

import resources
from ui.look.text_styles import TextStyle

logger = logging.getLogger(__name__)

UI_FAMILIES = ("Inter", "Segoe UI", "SF Pro Text", "Noto Sans", "DejaVu Sans")
CODE_FAMILIES = ("JetBrains Mono", "Cascadia Mono", "Menlo", "DejaVu Sans Mono")

# Han letters look different by language; a system left alone often takes the Japanese shapes.
_HAN_FAMILIES: dict[str, tuple[str, ...]] = {
    "zh_hans": ("PingFang SC", "Microsoft YaHei UI", "Noto Sans CJK SC", "Source Han Sans SC"),
    "zh_hant": ("PingFang TC", "Microsoft JhengHei UI", "Noto Sans CJK TC", "Source Han Sans TC"),
    "ja": ("Hiragino Sans", "Yu Gothic UI", "Noto Sans CJK JP", "Source Han Sans"),
    "ko": ("Apple SD Gothic Neo", "Malgun Gothic", "Noto Sans CJK KR", "Source Han Sans K"),
}


def load_fonts() -> None:
    """Register all shipped font files; a missing one is logged and the system's takes its place."""
    for path in sorted(resources.path("fonts").glob("*.ttf")):
        if QFontDatabase.addApplicationFont(str(path)) < 0:
            logger.warning("Font %s could not be read", path.name)


def han_families(locale: QLocale) -> tuple[str, ...]:
    """Families for Han letters in the shapes of this language; Chinese if it writes none itself."""
    language = locale.language()
    if language == QLocale.Language.Japanese:
        return _HAN_FAMILIES["ja"]
    if language == QLocale.Language.Korean:
        return _HAN_FAMILIES["ko"]
    if locale.script() == QLocale.Script.TraditionalHanScript:
        return _HAN_FAMILIES["zh_hant"]
    return _HAN_FAMILIES["zh_hans"]


def make_font(style: TextStyle, *, percent: int, families: list[str]) -> QFont:
    """A font for `style` at a text size of `percent`, unhinted, with figures of equal width."""
    font = QFont()
    font.setFamilies(families)
    font.setPixelSize(max(1, round(style.size * percent / 100)))
    font.setWeight(QFont.Weight(style.weight))
    font.setHintingPreference(QFont.HintingPreference.PreferNoHinting)
    font.setFeature(QFont.Tag("tnum"), 1)
    if style.is_code:
        font.setFixedPitch(True)
        font.setStyleHint(QFont.StyleHint.Monospace)
        for ligatures in ("calt", "liga"):
            font.setFeature(QFont.Tag(ligatures), 0)
    if style.spacing:
        spacing = style.spacing * percent / 100
        font.setLetterSpacing(QFont.SpacingType.AbsoluteSpacing, spacing)
    return font


def family_list(locale: QLocale, *, is_code: bool) -> list[str]:
    """The families to try, in order: ours, then Han, then what systems bring."""
    first, *others = CODE_FAMILIES if is_code else UI_FAMILIES
    return [first, *han_families(locale), *others]
