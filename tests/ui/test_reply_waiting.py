"""A reply to which the model does not come yet: in words, beside the caret or below the text."""

import threading
from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from pytestqt.qtbot import QtBot

from app.conversation import MessageId
from app.messages import StatsSampled
from inference.metrics import BlockCounts, EngineStats
from tests.app.fake_engine import FakeScript
from tests.ui.open_window import OpenWindow, wait_for
from tests.ui.reply_helpers import make_list, make_message, reply_view, settle
from ui.controls.labels import Label
from ui.replies.message_list import MessageList
from ui.replies.reply_view import ReplyView

MEMORY = "Waiting for another reply to end: memory for chats is full"
READING = "Waiting while another message is read"
FULL = EngineStats(blocks=BlockCounts(total=8, used=8), block_size=16, num_running=2, num_waiting=1)
REPLY = MessageId(2)


def begin(qtbot: QtBot, text: str = "", *, width: int = 800) -> tuple[MessageList, ReplyView]:
    shown = make_list(qtbot, make_message(1, "user", "question"))
    shown.resize(width, 600)
    shown.begin_reply(make_message(2, status="streaming"))
    shown.append_text(REPLY, text)
    settle(qtbot, shown)
    return shown, reply_view(shown, 2)


def labels(view: ReplyView) -> list[Label]:
    return [label for label in view.findChildren(Label) if not label.isHidden()]


def texts(view: ReplyView) -> list[str]:
    return [label.text() for label in labels(view)]


def test_reply_that_waits_says_why_until_it_is_read(qtbot: QtBot) -> None:
    shown, view = begin(qtbot)
    view._started -= 1.0  # as if a second had passed
    shown.set_waiting(REPLY, "reading")
    assert texts(view) == [READING]
    shown.set_waiting(REPLY, "memory")
    assert texts(view) == [MEMORY]
    shown.set_prefill(REPLY, 10, 100)
    assert texts(view) == ["Reading your message… 10%"]
    shown.append_text(REPLY, "word")
    settle(qtbot, shown)
    assert texts(view) == []


def test_reply_that_is_put_back_says_so_below_its_text_until_it_goes_on(qtbot: QtBot) -> None:
    shown, view = begin(qtbot, "So far")
    before = view.height()
    shown.set_waiting(REPLY, "memory")
    settle(qtbot, shown)
    (label,) = labels(view)
    assert label.text() == MEMORY
    assert label.y() >= view.leaves()[-1].geometry().bottom()
    assert view.height() == before + label.height() + 10
    shown.append_text(REPLY, " and more")
    settle(qtbot, shown)
    assert texts(view) == []
    assert view.height() == before


def test_reply_that_is_put_back_is_read_anew_without_words_of_waiting(qtbot: QtBot) -> None:
    shown, view = begin(qtbot, "So far")
    shown.set_waiting(REPLY, "memory")
    shown.set_prefill(REPLY, 10, 100)
    assert texts(view) == []


def test_reply_that_was_stopped_while_it_waited_says_only_that(qtbot: QtBot) -> None:
    shown, view = begin(qtbot)
    shown.set_waiting(REPLY, "memory")
    shown.update_message(make_message(2, status="stopped"), [2])  # type: ignore[list-item]
    shown.set_waiting(REPLY, "memory")
    assert texts(view) == ["Stopped before the first word."]


def test_words_of_waiting_are_whole_in_a_narrow_window_with_large_text(qtbot: QtBot) -> None:
    shown, view = begin(qtbot, width=300)
    shown._theme.set_text_size(200)
    shown.set_waiting(REPLY, "memory")
    settle(qtbot, shown)
    (label,) = labels(view)
    assert label.height() == label.heightForWidth(label.width())
    assert label.height() >= 2 * label.fontMetrics().height()
    assert view.height() >= label.geometry().bottom()


def test_window_says_that_a_reply_waits(
    open_window: Callable[..., OpenWindow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.reply_waits.WAIT_AFTER_S", 0.0)
    gate = threading.Event()
    window = open_window(FakeScript(before_step=lambda: wait_for(gate)))
    window.start_engine()
    window.type("Question")
    window.press(Qt.Key.Key_Return)
    view = window.view(REPLY)
    assert isinstance(view, ReplyView)
    window.session.handle_event(StatsSampled(FULL, 1, 2))
    assert texts(view) == [MEMORY]
    gate.set()
    window.wait(lambda: not window.session.is_replying)
    window.wait(lambda: texts(view) == [])
