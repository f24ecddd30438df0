"""The theme: following the system, fonts, sizes; icons and fonts that ship."""

import re
from pathlib import Path

import pytest
from PySide6.QtCore import QLocale, Qt
from PySide6.QtGui import QFont, QFontInfo, QGuiApplication
from pytestqt.qtbot import QtBot

import resources
from ui.look.fonts import han_families
from ui.look.icons import icon, pixmap, svg_text
from ui.look.text_styles import TEXT_STYLES
from ui.look.theme import Theme
from ui.look.tokens import CONTRAST, DARK, LIGHT
from ui.start import make_application


def test_system_choice_follows_the_desktop_at_once(qtbot: QtBot) -> None:
    desktop = [LIGHT]
    theme = Theme("system", system_palette=lambda: desktop[-1])
    assert theme.palette is LIGHT
    desktop.append(DARK)
    with qtbot.waitSignal(theme.changed):
        QGuiApplication.styleHints().colorSchemeChanged.emit(Qt.ColorScheme.Dark)
    assert theme.palette is DARK


def test_own_choice_does_not_follow_the_desktop(qtbot: QtBot) -> None:
    theme = Theme("contrast", system_palette=lambda: DARK)
    with qtbot.assertNotEmitted(theme.changed):
        QGuiApplication.styleHints().colorSchemeChanged.emit(Qt.ColorScheme.Dark)
    assert theme.palette is CONTRAST
    assert theme.color("ring").name().upper() == "#FFE14A"


def test_colours_are_new_after_a_change(qtbot: QtBot) -> None:
    theme = Theme("light")
    assert theme.color("surface").name().upper() == LIGHT.surface
    with qtbot.waitSignal(theme.changed):
        theme.set_choice("dark")
    assert theme.color("surface").name().upper() == DARK.surface


@pytest.mark.parametrize(("percent", "size", "line"), [(80, 12, 19), (100, 15, 24), (200, 30, 48)])
def test_text_size_scales_size_and_line(qtbot: QtBot, percent: int, size: int, line: int) -> None:
    theme = Theme("light", percent)
    assert theme.font("body").pixelSize() == size
    assert theme.line_height("body") == line


def test_text_size_out_of_range_takes_the_nearest(qtbot: QtBot) -> None:
    assert Theme("light", 10).text_size_percent == 80
    assert Theme("light", 900).text_size_percent == 200


def test_every_style_uses_a_shipped_family_unhinted_with_equal_figures(qtbot: QtBot) -> None:
    make_application()
    theme = Theme("light")
    for name, style in TEXT_STYLES.items():
        font = theme.font(name)
        family = "JetBrains Mono" if style.is_code else "Inter"
        assert QFontInfo(font).family() == family, name
        assert font.hintingPreference() == QFont.HintingPreference.PreferNoHinting
        assert font.featureValue(QFont.Tag("tnum")) == 1


def test_han_family_follows_the_language() -> None:
    assert han_families(QLocale("zh_CN"))[0] == "PingFang SC"
    assert han_families(QLocale("zh_TW"))[0] == "PingFang TC"
    assert han_families(QLocale("ja_JP"))[0] == "Hiragino Sans"
    assert han_families(QLocale("ko_KR"))[0] == "Apple SD Gothic Neo"
    assert han_families(QLocale("en_US"))[0] == "PingFang SC"


def test_icon_takes_colour_and_stroke_and_stays_sharp(qtbot: QtBot) -> None:
    text = svg_text("copy", "#123456")
    assert 'stroke="#123456"' in text
    assert 'stroke-width="1.75"' in text
    assert pixmap("copy", "#123456", 18, 1.5).width() == 27
    image = pixmap("square", "#FF0000", 18, 2.0).toImage()
    colors = {image.pixelColor(x, 18).name() for x in range(36) if image.pixelColor(x, 18).alpha()}
    assert "#ff0000" in colors
    assert not icon("quire-mark", "#000000").isNull()


def test_every_icon_that_the_window_names_ships() -> None:
    shipped = {path.stem for path in resources.path("icons").glob("*.svg")}
    named: set[str] = set()
    for path in Path(resources.path()).parent.joinpath("ui").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        named |= set(re.findall(r'icon_name="([a-z0-9-]+)"', source))
        named |= set(
            re.findall(r'(?:paint_icon\(\w+|IconButton\(\s*theme|icon\(), "([a-z0-9-]+)"', source)
        )
    assert len(named) > 10
    assert named - shipped == set()


def test_licences_ship_for_all_that_was_taken() -> None:
    texts = {p.name: p.read_text(encoding="utf-8") for p in resources.path("licences").iterdir()}
    assert "SIL OPEN FONT LICENSE Version 1.1" in texts["Inter-OFL.txt"]
    assert "SIL OPEN FONT LICENSE Version 1.1" in texts["JetBrainsMono-OFL.txt"]
    assert "ISC License" in texts["Lucide-ISC.txt"]
