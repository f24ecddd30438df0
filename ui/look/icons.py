"""Icons: Lucide drawings (and our mark) in any colour, size and pixel ratio. GUI thread.

QtSvg paints `currentColor` black, so colour and stroke go into the SVG text before it is read.
"""

from functools import lru_cache

from PySide6.QtCore import QByteArray, QRectF, Qt
from PySide6.QtGui import QGuiApplication, QIcon, QPainter, QPixmap
from PySide6.QtSvg import QSvgRenderer

import resources

STROKE_WIDTH = 1.75


def icon(name: str, color: str, size: int = 18) -> QIcon:
    """An icon for Qt's own widgets (menus); sharp at ratio 1 and at that of the finest screen.

    Args:
        name: File name in `resources/icons` without its ending.
        color: "#RRGGBB".
        size: Edge in logical pixels.
    """
    made = QIcon()
    for ratio in sorted({1.0, 2.0, _finest_ratio()}):
        made.addPixmap(pixmap(name, color, size, ratio))
    return made


@lru_cache(maxsize=1024)
def pixmap(name: str, color: str, size: int, device_pixel_ratio: float) -> QPixmap:
    """The drawing in device pixels, `size` logical pixels wide and high; shared, do not paint on."""
    edge = max(1, round(size * device_pixel_ratio))
    made = QPixmap(edge, edge)
    made.fill(Qt.GlobalColor.transparent)
    painter = QPainter(made)
    renderer = QSvgRenderer(QByteArray(svg_text(name, color).encode()))
    renderer.render(painter, QRectF(0, 0, edge, edge))
    painter.end()
    made.setDevicePixelRatio(device_pixel_ratio)
    return made


def paint_icon(painter: QPainter, name: str, color: str, rect: QRectF) -> None:
    """Paint the drawing into `rect`, sharp at the painter's pixel ratio.

    Args:
        painter: An active painter; its state is left as it was.
        name: As for `icon`.
        color: As for `icon`.
        rect: A square in logical pixels.
    """
    ratio = float(painter.device().devicePixelRatioF())
    painter.drawPixmap(rect.topLeft(), pixmap(name, color, round(rect.width()), ratio))


@lru_cache(maxsize=256)
def svg_text(name: str, color: str) -> str:
    """The SVG source with colour and stroke width filled in.

    Raises:
        FileNotFoundError: There is no such icon: a mistake in the program.
    """
    source = resources.path("icons", f"{name}.svg").read_text(encoding="utf-8")
    source = source.replace("currentColor", color)
    return source.replace('stroke-width="2"', f'stroke-width="{STROKE_WIDTH}"')


def _finest_ratio() -> float:
    return max((screen.devicePixelRatio() for screen in QGuiApplication.screens()), default=1.0)
