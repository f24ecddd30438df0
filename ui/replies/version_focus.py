"""The keyboard focus on a version switch, which goes on from one version to the next. GUI thread."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from ui.controls.buttons import IconButton
from ui.replies.reply_footer import VersionSwitch


def focused_step(view: QWidget) -> str:
    """The name of the arrow in this view that has the focus; "" if none has."""
    focused = view.window().focusWidget()
    if isinstance(focused, IconButton) and isinstance(focused.parent(), VersionSwitch):
        return focused.accessibleName() if view.isAncestorOf(focused) else ""
    return ""


def focus_step(view: QWidget, name: str) -> None:
    """Give the focus to the arrow of this name, or to the other one where that leads nowhere."""
    arrows = [
        arrow
        for switch in view.findChildren(VersionSwitch)
        for arrow in switch.findChildren(IconButton)
        if arrow.isEnabled() and arrow.isVisibleTo(view)
    ]
    arrows.sort(key=lambda arrow: arrow.accessibleName() != name)
    if arrows:
        arrows[0].setFocus(Qt.FocusReason.ShortcutFocusReason)
