"""A widget that comes and goes, and leaves the focus where it was. GUI thread.

Left to itself, Qt moves the focus of a widget that hides to the next one in the tab order, which
for a short notice is nothing that the person had in mind.
"""

from typing import cast

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QApplication, QWidget
from shiboken6 import isValid


class FocusGuest(QWidget):
    """Base of notices with buttons.

    Whoever came here by key sees the ring again where the focus goes back to.

    Attributes:
        focus_home: Takes the focus when what had it before is gone or out of sight.
    """

    def __init__(self, parent: QWidget) -> None:
        super().__init__(parent)
        self.focus_home: QWidget | None = None
        self._had_focus: QWidget | None = None
        application = cast(QApplication, QApplication.instance())
        application.focusChanged.connect(self._focus_changed)

    def setVisible(self, visible: bool) -> None:
        """Qt override: `hide` and `show` come here too."""
        if not visible:
            self._give_focus_back()
        super().setVisible(visible)

    def _focus_changed(self, old: QWidget | None, new: QWidget | None) -> None:
        if new is None or not self.isAncestorOf(new):
            return
        if old is None or not isValid(old) or not self.isAncestorOf(old):
            self._had_focus = old

    def _give_focus_back(self) -> None:
        focused = cast("QWidget | None", self.window().focusWidget())  # its stub leaves out None
        if focused is None or not self.isAncestorOf(focused):
            return
        reason = focused.property("focusReason")
        if reason is None:
            reason = Qt.FocusReason.OtherFocusReason
        for target in (self._had_focus, self.focus_home):
            if target is not None and isValid(target) and target.isVisible():
                target.setFocus(reason)
                return
