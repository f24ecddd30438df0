"""What Qt's own widgets look like: one proxy style over Fusion. GUI thread.

Menus are drawn here, because a style sheet can neither mute nor right-align a shortcut. Keep a
Python reference to the style while the application lives.
"""

from PySide6.QtCore import QMargins, QPoint, QRect, QRectF, QSize, Qt
from PySide6.QtGui import QColor, QFontMetrics, QPainter
from PySide6.QtWidgets import (
    QMenu,
    QProxyStyle,
    QScrollBar,
    QStyle,
    QStyleHintReturn,
    QStyleOption,
    QStyleOptionComplex,
    QStyleOptionMenuItem,
    QStyleOptionSlider,
    QWidget,
)

from ui.look.compositing import can_blend_windows
from ui.look.icons import paint_icon
from ui.look.painting import paint_rounded, paint_shadow, shadow_margins
from ui.look.scroll_bars import BAR_WIDTH, LEAST_HANDLE, bar_part, paint_bar
from ui.look.theme import Theme

_MENU_SHADOW_LEVEL = 3
_MENU_PADDING = 6
_MENU_RADIUS = 10
_ROW_RADIUS = 6
_ROW_HEIGHT = 32
_LINE_HEIGHT = 13
_CHEVRON = 14
_CHEVRON_ROOM = 20
_NOTE_PADDING = 12
_ICON_SIZE = 16
_TOOLTIP_DELAY_MS = 600
_TOOLTIP_RADIUS = 6
_TOOLTIP_MARGINS = QMargins(12, 8, 12, 8)


def menu_margins() -> QMargins:
    """Space between a menu's window and its panel: room for the shadow, if there can be one."""
    return shadow_margins(_MENU_SHADOW_LEVEL) if can_blend_windows() else QMargins()


class QuireStyle(QProxyStyle):
    """Fusion, with our menus, scroll bars and tooltips, the latter after 600 ms, and no dotted focus frames."""

    def __init__(self, theme: Theme) -> None:
        super().__init__("Fusion")
        self._theme = theme

    def polish(self, target: object) -> object:  # type: ignore[override]  # three overloads in Qt
        """Prepare a widget before it is first shown."""
        is_tip = isinstance(target, QWidget) and target.inherits("QTipLabel")
        if (isinstance(target, QMenu) or is_tip) and can_blend_windows():
            target.setAttribute(Qt.WidgetAttribute.WA_TranslucentBackground)  # type: ignore[attr-defined]  # a QWidget
        if isinstance(target, QWidget) and is_tip:
            target.setContentsMargins(_TOOLTIP_MARGINS)
        if isinstance(target, QScrollBar):  # what is behind it must be seen
            target.setAttribute(Qt.WidgetAttribute.WA_OpaquePaintEvent, False)
        if isinstance(target, QMenu):
            target.setWindowFlag(Qt.WindowType.FramelessWindowHint)
            target.setWindowFlag(Qt.WindowType.NoDropShadowWindowHint)
            target.setFont(self._theme.font("label"))
        return super().polish(target)  # type: ignore[call-overload]  # see above

    def styleHint(
        self,
        hint: QStyle.StyleHint,
        option: QStyleOption | None = None,
        widget: QWidget | None = None,
        returnData: QStyleHintReturn | None = None,  # noqa: N803  # Qt's name
    ) -> int:
        """Qt override."""
        if hint == QStyle.StyleHint.SH_ToolTip_WakeUpDelay:
            return _TOOLTIP_DELAY_MS
        if hint == QStyle.StyleHint.SH_Menu_Scrollable:
            return 1
        return super().styleHint(hint, option, widget, returnData)

    def pixelMetric(
        self,
        metric: QStyle.PixelMetric,
        option: QStyleOption | None = None,
        widget: QWidget | None = None,
    ) -> int:
        """Qt override."""
        margins = menu_margins()
        if metric in (
            QStyle.PixelMetric.PM_MenuPanelWidth,
            QStyle.PixelMetric.PM_ToolTipLabelFrameWidth,
        ):
            return 0
        if metric == QStyle.PixelMetric.PM_ScrollBarExtent:
            return BAR_WIDTH
        if metric == QStyle.PixelMetric.PM_ScrollBarSliderMin:
            return LEAST_HANDLE
        if metric == QStyle.PixelMetric.PM_MenuHMargin:
            return margins.left() + _MENU_PADDING
        if metric == QStyle.PixelMetric.PM_MenuVMargin:
            return margins.bottom() + _MENU_PADDING
        if metric == QStyle.PixelMetric.PM_SubMenuOverlap:
            return -2 * margins.left()
        return super().pixelMetric(metric, option, widget)

    def sizeFromContents(
        self,
        type: QStyle.ContentsType,
        option: QStyleOption,
        size: QSize,
        widget: QWidget | None = None,
    ) -> QSize:
        """Qt override."""
        if type == QStyle.ContentsType.CT_MenuItem and isinstance(option, QStyleOptionMenuItem):
            return self._menu_row_size(option)
        return super().sizeFromContents(type, option, size, widget)  # type: ignore[arg-type]  # may be None in Qt

    def drawPrimitive(
        self,
        element: QStyle.PrimitiveElement,
        option: QStyleOption,
        painter: QPainter,
        widget: QWidget | None = None,
    ) -> None:
        """Qt override."""
        if element == QStyle.PrimitiveElement.PE_PanelMenu:
            self._draw_menu_panel(painter, option.rect)
            return
        if element == QStyle.PrimitiveElement.PE_PanelTipLabel:
            self._draw_tip_panel(painter, option.rect)
            return
        if element in (
            QStyle.PrimitiveElement.PE_FrameMenu,
            QStyle.PrimitiveElement.PE_FrameFocusRect,
        ):
            return
        super().drawPrimitive(element, option, painter, widget)

    def subControlRect(
        self,
        control: QStyle.ComplexControl,
        option: QStyleOptionComplex,
        part: QStyle.SubControl,
        widget: QWidget | None = None,
    ) -> QRect:
        """Qt override."""
        is_bar = control == QStyle.ComplexControl.CC_ScrollBar
        if is_bar and isinstance(option, QStyleOptionSlider):
            return bar_part(option, part)
        return super().subControlRect(control, option, part, widget)  # type: ignore[arg-type]  # may be None in Qt

    def drawComplexControl(
        self,
        control: QStyle.ComplexControl,
        option: QStyleOptionComplex,
        painter: QPainter,
        widget: QWidget | None = None,
    ) -> None:
        """Qt override."""
        is_bar = control == QStyle.ComplexControl.CC_ScrollBar
        if is_bar and isinstance(option, QStyleOptionSlider):
            paint_bar(painter, option, self._theme.palette)
            return
        super().drawComplexControl(control, option, painter, widget)

    def drawControl(
        self,
        element: QStyle.ControlElement,
        option: QStyleOption,
        painter: QPainter,
        widget: QWidget | None = None,
    ) -> None:
        """Qt override."""
        if element == QStyle.ControlElement.CE_MenuEmptyArea:
            return
        if element == QStyle.ControlElement.CE_MenuItem and isinstance(
            option, QStyleOptionMenuItem
        ):
            action = widget.actionAt(option.rect.center()) if isinstance(widget, QMenu) else None
            if action is not None and action.property("heading"):
                self._draw_menu_words(painter, option, style="group")
            elif action is not None and action.property("note"):
                self._draw_menu_words(painter, option, style="small")
            else:
                is_danger = action is not None and bool(action.property("danger"))
                self._draw_menu_row(painter, option, is_danger=is_danger)
            return
        super().drawControl(element, option, painter, widget)

    def _menu_row_size(self, option: QStyleOptionMenuItem) -> QSize:
        if option.menuItemType == QStyleOptionMenuItem.MenuItemType.Separator:
            return QSize(10, _LINE_HEIGHT)
        if "\n" in option.text:
            return self._menu_note_size(option.text)
        metrics = QFontMetrics(self._theme.font("label"))
        text, _, shortcut = option.text.partition("\t")
        width = (
            10
            + self._theme.px(_ICON_SIZE)
            + 10
            + metrics.horizontalAdvance(text.replace("&", ""))
            + 24
        )
        if shortcut:
            width += metrics.horizontalAdvance(shortcut) + 12
            if option.menuItemType == QStyleOptionMenuItem.MenuItemType.SubMenu:
                width += self._theme.px(_CHEVRON_ROOM)
        return QSize(max(width, 188), self._theme.px(_ROW_HEIGHT))

    def _menu_note_size(self, text: str) -> QSize:
        metrics = QFontMetrics(self._theme.font("small"))
        lines = text.split("\n")
        width = max(metrics.horizontalAdvance(line) for line in lines)
        height = len(lines) * self._theme.line_height("small")
        return QSize(10 + width + 10, height + _NOTE_PADDING)

    def _draw_menu_panel(self, painter: QPainter, rect: QRect) -> None:
        palette = self._theme.palette
        margins = menu_margins()
        # The margins of a menu are equal above and below, those of a shadow are not.
        panel = rect.adjusted(margins.left(), margins.bottom(), -margins.right(), -margins.bottom())
        if not can_blend_windows():
            painter.fillRect(panel, QColor(palette.border_2))
            painter.fillRect(panel.adjusted(1, 1, -1, -1), QColor(palette.raised))
            return
        paint_shadow(painter, panel, _MENU_RADIUS, _MENU_SHADOW_LEVEL, palette)
        paint_rounded(
            painter, QRectF(panel), _MENU_RADIUS, fill=palette.raised, outline=palette.border_2
        )

    def _draw_tip_panel(self, painter: QPainter, rect: QRect) -> None:
        palette = self._theme.palette
        radius = _TOOLTIP_RADIUS if can_blend_windows() else 0
        paint_rounded(
            painter, QRectF(rect), radius, fill=palette.tooltip, outline=palette.tooltip_outline
        )

    def _draw_menu_row(
        self, painter: QPainter, option: QStyleOptionMenuItem, *, is_danger: bool
    ) -> None:
        palette = self._theme.palette
        rect = QRect(option.rect)
        if option.menuItemType == QStyleOptionMenuItem.MenuItemType.Separator:
            middle = rect.center().y()
            painter.fillRect(rect.left() + 8, middle, rect.width() - 16, 1, QColor(palette.border))
            return
        state = option.state
        is_enabled = bool(state & QStyle.StateFlag.State_Enabled)
        if is_enabled and state & QStyle.StateFlag.State_Selected:
            paint_rounded(painter, QRectF(rect), _ROW_RADIUS, fill=palette.hover)
        color = self._row_color(is_enabled=is_enabled, is_danger=is_danger)
        self._draw_row_icon(painter, option, rect)
        painter.setFont(self._theme.font("label"))
        text, _, shortcut = option.text.partition("\t")
        text_rect = rect.adjusted(10 + self._theme.px(_ICON_SIZE) + 10, 0, -10, 0)
        painter.setPen(QColor(color))
        flags = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(text_rect, flags | Qt.TextFlag.TextHideMnemonic, text)
        if option.menuItemType == QStyleOptionMenuItem.MenuItemType.SubMenu:
            edge = self._theme.px(_CHEVRON)
            place = QRectF(rect.right() - 10 - edge, rect.center().y() - edge / 2, edge, edge)
            paint_icon(painter, "chevron-right", palette.text_3, place)
            text_rect.adjust(0, 0, -self._theme.px(_CHEVRON_ROOM), 0)
        if shortcut:
            painter.setPen(QColor(palette.text_3 if is_enabled else palette.disabled))
            painter.drawText(
                text_rect, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, shortcut
            )

    def _draw_menu_words(
        self, painter: QPainter, option: QStyleOptionMenuItem, *, style: str
    ) -> None:
        """A row that only tells: a heading, or a note of several lines."""
        painter.setFont(self._theme.font(style))
        painter.setPen(self._theme.color("text_3"))
        place = option.rect.adjusted(10, 0, -10, 0)
        flags = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(place, flags | Qt.TextFlag.TextHideMnemonic, option.text)

    def _row_color(self, *, is_enabled: bool, is_danger: bool) -> str:
        if not is_enabled:
            return self._theme.palette.disabled
        return self._theme.palette.danger if is_danger else self._theme.palette.text

    def _draw_row_icon(self, painter: QPainter, option: QStyleOptionMenuItem, rect: QRect) -> None:
        edge = self._theme.px(_ICON_SIZE)
        place = QPoint(rect.left() + 10, rect.center().y() - edge // 2 + 1)
        if option.checkType != QStyleOptionMenuItem.CheckType.NotCheckable and option.checked:
            corner = QRectF(place.x(), place.y(), edge, edge)
            paint_icon(painter, "check", self._theme.palette.accent_text, corner)
            return
        if not option.icon.isNull():
            ratio = float(painter.device().devicePixelRatioF())
            painter.drawPixmap(place, option.icon.pixmap(QSize(edge, edge), ratio))
