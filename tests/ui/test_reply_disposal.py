from PySide6.QtWidgets import QWidget
from shiboken6 import isValid

from tests.ui.reply_helpers import make_list, make_message, make_parent
from ui.replies.reply_disposal import Disposal
from ui.replies.reply_view import ReplyView


def test_widgets_are_destroyed_a_few_at_a_time(qtbot, monkeypatch):
    monkeypatch.setattr("ui.replies.reply_disposal._SLICE_S", -1.0)  # one for each frame
    parent = make_parent(qtbot, 100, 100)
    widgets = [QWidget(parent) for _ in range(3)]
    disposal = Disposal(parent)
    for widget in widgets:
        disposal.add(widget)
    alive = []
    for _ in range(3):
        disposal._pacer.flush()  # a frame
        alive.append([isValid(widget) for widget in widgets])
    assert alive == [[True, True, False], [True, False, False], [False, False, False]]


def test_widget_that_is_gone_already_is_passed_over(qtbot):
    parent = make_parent(qtbot, 100, 100)
    widget = QWidget(parent)
    disposal = Disposal(parent)
    disposal.add(widget)
    widget.deleteLater()
    qtbot.waitUntil(lambda: disposal.num_left == 0 and not isValid(widget))


def test_views_of_the_chat_before_are_hidden_at_once_and_destroyed_soon(qtbot):
    shown = make_list(qtbot, *[make_message(n, content="text") for n in range(1, 9)])
    before = shown.findChildren(ReplyView)
    assert len(before) == 8
    shown.show_path([make_message(20, content="other")], {})
    assert not any(view.isVisible() for view in before)
    qtbot.waitUntil(lambda: len(shown.findChildren(ReplyView)) == 1)
    assert not any(isValid(view) for view in before)
