"""Qt's own widgets as Quire shows them: scroll bars, tooltips, fields; and what another theme costs."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QEvent, QObject, QPoint, QRect, Qt
from PySide6.QtGui import QColor
from PySide6.QtTest import QTest
from PySide6.QtWidgets import (
    QApplication,
    QLineEdit,
    QScrollBar,
    QStyle,
    QStyleOptionSlider,
    QToolTip,
    QWidget,
)
from pytestqt.qtbot import QtBot

from app.settings import SettingsStore
from tests.ui.test_message_list import long_chat
from ui.look.appearance import Appearance
from ui.look.field_look import dress_field
from ui.look.scroll_bars import LEAST_HANDLE, bar_part
from ui.look.theme import Theme
from ui.look.tokens import DARK, LIGHT
from ui.replies.message_list import MessageList
from ui.start import make_application

Part = QStyle.SubControl


@pytest.fixture
def worn(qtbot: QtBot, tmp_path: Path) -> Iterator[Theme]:
    """The theme of the application, light at first."""
    application, theme, owner = make_application(), Theme("light"), QObject()
    settings = SettingsStore(tmp_path / "settings.json")
    before = application.style().name()
    appearance = Appearance(application, theme, settings, owner)
    yield theme
    assert appearance.style is not None
    application.setStyle(before)


class StyleChanges(QObject):
    """Counts widgets that are told of another style: each is looked at by Qt from its rules on."""

    def __init__(self) -> None:
        super().__init__()
        self.widgets: list[QWidget] = []

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:  # noqa: N802  # Qt's name
        """Qt override."""
        if event.type() == QEvent.Type.StyleChange and isinstance(watched, QWidget):
            self.widgets.append(watched)
        return False


def test_another_theme_does_not_look_at_every_message(worn: Theme, qtbot: QtBot) -> None:
    messages = MessageList(worn)
    qtbot.addWidget(messages)
    messages.show()
    messages.show_path(long_chat(10), {})
    qtbot.waitUntil(lambda: messages.is_settled)
    changes = StyleChanges()
    application = QApplication.instance()
    assert application is not None
    application.installEventFilter(changes)
    for choice in ("dark", "contrast"):
        worn.set_choice(choice)
    worn.set_text_size(150)
    application.removeEventFilter(changes)
    assert [each for each in changes.widgets if messages.isAncestorOf(each)] == []


def test_field_follows_the_theme_as_long_as_it_is_there(worn: Theme, qtbot: QtBot) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    field, gone = QLineEdit(window), QLineEdit(window)
    for each in (field, gone):
        dress_field(each, worn)
    field.resize(100, 40)
    window.show()
    assert _color_at(field, QPoint(50, 8)) == QColor(LIGHT.raised)
    gone.deleteLater()
    qtbot.wait(1)
    worn.set_choice("dark")
    assert _color_at(field, QPoint(50, 8)) == QColor(DARK.raised)
    height = field.minimumSizeHint().height()
    worn.set_text_size(200)
    assert field.minimumSizeHint().height() == height + 34


def test_tip_has_the_colours_of_the_theme(worn: Theme, qtbot: QtBot) -> None:
    window = QWidget()
    qtbot.addWidget(window)
    window.show()
    worn.set_choice("dark")
    QToolTip.showText(QPoint(20, 20), "A tip", window)
    tip = next(each for each in QApplication.topLevelWidgets() if each.inherits("QTipLabel"))
    assert _color_at(tip, QPoint(4, tip.height() // 2)) == QColor(DARK.tooltip)
    assert tip.palette().color(tip.foregroundRole()) == QColor(DARK.tooltip_text)
    tip.hide()


def option(
    *, size: QRect, highest: int, page: int, place: int, is_flat: bool = False
) -> QStyleOptionSlider:
    made = QStyleOptionSlider()
    made.rect = size
    made.orientation = Qt.Orientation.Horizontal if is_flat else Qt.Orientation.Vertical
    made.minimum, made.maximum, made.pageStep, made.sliderPosition = 0, highest, page, place
    return made


@pytest.mark.parametrize("place", [0, 150, 300])
def test_handle_is_as_much_of_the_bar_as_is_in_sight(place: int) -> None:
    bar = option(size=QRect(5, 10, 10, 400), highest=300, page=100, place=place)
    assert bar_part(bar, Part.SC_ScrollBarSlider) == QRect(5, 10 + place, 10, 100)
    assert bar_part(bar, Part.SC_ScrollBarSubPage).height() == place
    assert bar_part(bar, Part.SC_ScrollBarAddPage) == QRect(5, 110 + place, 10, 300 - place)
    assert bar_part(bar, Part.SC_ScrollBarGroove) == QRect(5, 10, 10, 400)
    assert bar_part(bar, Part.SC_ScrollBarAddLine).isEmpty()


def test_handle_stays_large_enough_and_inside() -> None:
    bar = option(size=QRect(0, 0, 200, 10), highest=100_000, page=100, place=100_000, is_flat=True)
    handle = bar_part(bar, Part.SC_ScrollBarSlider)
    assert handle == QRect(200 - LEAST_HANDLE, 0, LEAST_HANDLE, 10)
    bar.direction = Qt.LayoutDirection.RightToLeft
    assert bar_part(bar, Part.SC_ScrollBarSlider).left() == 0
    short = option(size=QRect(0, 0, 10, 20), highest=500, page=10, place=0)
    assert bar_part(short, Part.SC_ScrollBarSlider).height() == 20
    still = option(size=QRect(0, 0, 10, 20), highest=0, page=10, place=0)
    assert bar_part(still, Part.SC_ScrollBarSlider).height() == 20


def test_bar_is_dragged_by_its_handle_and_darker_under_the_pointer(
    worn: Theme, qtbot: QtBot
) -> None:
    bar = QScrollBar(Qt.Orientation.Vertical)
    qtbot.addWidget(bar)
    bar.setRange(0, 300)
    bar.setPageStep(100)
    bar.resize(bar.sizeHint().width(), 400)
    bar.show()
    middle, below = QPoint(5, 50), QPoint(5, 200)
    assert bar.width() == 10
    assert _color_at(bar, middle) == QColor(LIGHT.border_2)
    QTest.mousePress(bar, Qt.MouseButton.LeftButton, pos=middle)
    assert _color_at(bar, middle) == QColor(LIGHT.control)
    QTest.mouseMove(bar, below)
    assert bar.value() == 150
    QTest.mouseRelease(bar, Qt.MouseButton.LeftButton, pos=below)
    QTest.mouseClick(bar, Qt.MouseButton.LeftButton, pos=QPoint(5, 10))
    assert bar.value() == 50


def _color_at(widget: QWidget, place: QPoint) -> QColor:
    return QColor(widget.grab().toImage().pixelColor(place).name())
