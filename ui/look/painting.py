"""Rounded surfaces, veils and soft shadows, shared by all hand-painted widgets. GUI thread."""

import math
from functools import lru_cache

from PySide6.QtCore import QMargins, QPointF, QRect, QRectF, Qt
from PySide6.QtGui import QColor, QImage, QPainter, QPen, QPixmap

from ui.look.tokens import Palette

# Depth level -> layers of (blur, down, opacity); the blur is the reach of the soft edge in pixels.
_SHADOW_LAYERS: dict[int, tuple[tuple[int, int, float], ...]] = {
    2: ((16, 3, 0.07), (4, 1, 0.05)),
    3: ((28, 8, 0.11), (6, 1, 0.06)),
}


def paint_rounded(
    painter: QPainter,
    rect: QRectF,
    radius: float,
    *,
    fill: QColor | str | None = None,
    outline: QColor | str | None = None,
    width: float = 1.0,
) -> None:
    """Paint a rounded rectangle whose outline lies inside `rect`, sharp at any pixel ratio."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    inset = width / 2 if outline is not None else 0.0
    painter.setBrush(QColor(fill) if fill is not None else Qt.BrushStyle.NoBrush)
    painter.setPen(QPen(QColor(outline), width) if outline is not None else Qt.PenStyle.NoPen)
    painter.drawRoundedRect(
        rect.adjusted(inset, inset, -inset, -inset), radius - inset, radius - inset
    )
    painter.restore()


def shadow_margins(level: int) -> QMargins:
    """How far the shadow of this depth reaches beyond its surface."""
    reach = max(blur for blur, _, _ in _SHADOW_LAYERS[level])
    down = max(down for _, down, _ in _SHADOW_LAYERS[level])
    return QMargins(reach, reach - down, reach, reach + down)


def paint_shadow(
    painter: QPainter, surface: QRect, radius: int, level: int, palette: Palette
) -> None:
    """Paint the shadow that lies under `surface`; nothing in high contrast.

    One image per depth, radius, theme and pixel ratio is made, and stretched like a frame:

        corner | edge | corner        corners keep their size, edges grow along one
        edge   | fill | edge          axis, so any surface size uses the same image
        corner | edge | corner
    """
    if palette.shadow_strength == 0:
        return
    ratio = float(painter.device().devicePixelRatioF())
    image = _shadow_image(level, radius, palette.shadow, palette.shadow_strength, ratio)
    margins = shadow_margins(level)
    target = surface.marginsAdded(margins)
    corner = _corner(level, radius)
    half_width = min(corner, target.width() // 2)
    half_height = min(corner, target.height() // 2)
    source_edge = image.width() / ratio
    columns = _thirds(target.left(), target.width(), half_width, source_edge)
    rows = _thirds(target.top(), target.height(), half_height, source_edge)
    for target_x, target_width, source_x, source_width in columns:
        for target_y, target_height, source_y, source_height in rows:
            painter.drawPixmap(
                QRectF(target_x, target_y, target_width, target_height),
                image,
                QRectF(
                    source_x * ratio, source_y * ratio, source_width * ratio, source_height * ratio
                ),
            )


def _corner(level: int, radius: int) -> int:
    return 2 * max(blur for blur, _, _ in _SHADOW_LAYERS[level]) + radius + 8


def _thirds(
    start: float, length: float, half: float, source_length: float
) -> list[tuple[float, float, float, float]]:
    """Three (target start, target length, source start, source length) along one axis."""
    parts = [
        (start, half, 0.0, half),
        (start + half, length - 2 * half, source_length / 2 - 0.5, 1.0),
        (start + length - half, half, source_length - half, half),
    ]
    return [part for part in parts if part[1] > 0]


@lru_cache(maxsize=32)
def _shadow_image(level: int, radius: int, color: str, strength: float, ratio: float) -> QPixmap:
    """The shadow of a small surface, with its margins; rows and columns in the middle are equal."""
    margins = shadow_margins(level)
    corner = _corner(level, radius)
    edge = 2 * corner + 2
    size = round(edge * ratio)
    image = QImage(size, size, QImage.Format.Format_ARGB32_Premultiplied)
    image.fill(Qt.GlobalColor.transparent)
    surface = QRectF(0, 0, edge, edge).marginsRemoved(margins.toMarginsF())
    painter = QPainter(image)
    painter.scale(ratio, ratio)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    for blur, down, opacity in _SHADOW_LAYERS[level]:
        _paint_layer(painter, surface.translated(0, down), radius, blur, opacity * strength, color)
    painter.end()
    made = QPixmap.fromImage(image)
    made.setDevicePixelRatio(1.0)  # paint_shadow works in device pixels of the source
    return made


def _paint_layer(
    painter: QPainter, rect: QRectF, radius: float, blur: int, opacity: float, color: str
) -> None:
    """Stack thin rings from the outside in, whose sum follows a smooth falling curve."""
    steps = blur * 2
    reached = 0.0
    for step in range(steps):
        outside = blur * (1 - 2 * step / steps)  # from +blur to -blur around the edge
        wanted = opacity * _smooth((step + 1) / steps)
        # Alpha that lifts `reached` to `wanted` when laid over it.
        alpha = (wanted - reached) / (1 - reached)
        reached = wanted
        ring = QColor(color)
        ring.setAlphaF(min(max(alpha, 0.0), 1.0))
        painter.setBrush(ring)
        grown = rect.adjusted(-outside, -outside, outside, outside)
        if grown.width() > 0 and grown.height() > 0:
            corner = max(radius + outside, 1.0)
            painter.drawRoundedRect(grown, corner, corner)


def _smooth(position: float) -> float:
    return 0.5 - 0.5 * math.cos(math.pi * position)


def paint_dot(painter: QPainter, center: QPointF, diameter: float, color: QColor | str) -> None:
    """Paint a filled round mark."""
    painter.save()
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(QColor(color))
    painter.drawEllipse(center, diameter / 2, diameter / 2)
    painter.restore()
