"""Chats that another process stores come into the list by themselves, and never under a press."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from PySide6.QtCore import QEvent, QPoint, QPointF, Qt
from PySide6.QtGui import QMouseEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget

from app.conversation import Conversation, ConversationId
from app.storage import ConversationStore
from tests.app.fake_engine import FakeScript
from tests.ui.open_window import OpenWindow
from ui.replies.message_view import OwnMessageView
from ui.replies.reply_view import ReplyView
from ui.sidebar.chat_list import ChatList

Opener = Callable[..., OpenWindow]
LEFT = Qt.MouseButton.LeftButton
CTRL = Qt.KeyboardModifier.ControlModifier


class Others:
    """Another process with the same chats."""

    def __init__(self, window: OpenWindow) -> None:
        self.window = window
        self.store = ConversationStore(window.paths.database_file)

    def ask(self, title: str) -> None:
        chat = Conversation(ConversationId(title), title, created_at=1.0, updated_at=1.0)
        self.store.add_conversation(chat)
        self.store.touch(chat.id)


@pytest.fixture
def window(open_window: Opener) -> OpenWindow:
    """A chat, and no pointer over the list."""
    window = open_window(FakeScript(replies=["One."]))
    window.start_engine()
    window.say("Mine")
    return window


@pytest.fixture
def others(window: OpenWindow) -> Iterator[Others]:
    others = Others(window)
    yield others
    others.store.close()


def place_of(window: OpenWindow, title: str) -> QPoint:
    chats = window.sidebar.chat_list
    return chats.visualRect(chats.rows.index_of(window.chat_id(title))).center() - QPoint(40, 0)


def press(chats: ChatList, place: QPoint) -> None:
    QTest.mousePress(chats.viewport(), LEFT, pos=place)


def release(chats: ChatList, place: QPoint) -> None:
    QTest.mouseRelease(chats.viewport(), LEFT, pos=place)


def test_chat_of_another_process_comes_into_the_list_by_itself(
    window: OpenWindow, others: Others
) -> None:
    assert window.titles == ["Mine"]
    others.ask("Asked")
    window.wait(lambda: window.titles == ["Asked", "Mine"])
    chats = window.sidebar.chat_list
    assert "open" in chats.row_state(chats.rows.index_of(window.chat_id("Mine")))
    assert window.texts == ["Mine", "One."]


def test_list_is_read_only_when_another_process_stored_something(
    window: OpenWindow, others: Others
) -> None:
    told: list[object] = []
    window.session.subscribe(told.append)
    window.session.notice_others()
    window.session.notice_others()
    assert told == []
    others.ask("Asked")
    window.session.notice_others()
    window.session.notice_others()
    assert len(told) == 1


def test_rows_stay_where_they_are_while_the_mouse_is_pressed(
    window: OpenWindow, others: Others
) -> None:
    window.press(Qt.Key.Key_N, CTRL)
    chats = window.sidebar.chat_list
    place = place_of(window, "Mine")
    press(chats, place)
    others.ask("Asked")
    window.session.notice_others()
    assert window.titles == ["Mine"]
    release(chats, place)
    assert window.texts == ["Mine", "One."]
    assert window.titles == ["Asked", "Mine"]


def test_rows_that_wait_for_a_press_never_come_after_newer_ones(
    window: OpenWindow, others: Others
) -> None:
    chats = window.sidebar.chat_list
    press(chats, place_of(window, "Mine"))
    others.ask("Asked")
    window.session.notice_others()
    release(chats, QPoint(5, chats.viewport().height() - 5))  # on no row
    assert window.titles == ["Asked", "Mine"]
    window.session.rename_chat(ConversationId("Asked"), "Otherwise")
    assert window.titles == ["Otherwise", "Mine"]


@pytest.mark.parametrize("how", ["move", "focus"])
def test_press_that_ended_elsewhere_does_not_hold_the_rows(
    window: OpenWindow, others: Others, how: str
) -> None:
    chats = window.sidebar.chat_list
    chats.setFocus()
    press(chats, place_of(window, "Mine"))
    others.ask("Asked")
    window.session.notice_others()
    assert window.titles == ["Mine"]
    if how == "focus":
        window.chat.composer.input.setFocus()
    else:
        _move(chats.viewport(), QPoint(20, 20))
    assert window.titles == ["Asked", "Mine"]


def test_rows_stay_while_the_pointer_aims_and_move_when_it_has_gone(
    window: OpenWindow, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = window.sidebar.chat_list
    viewport = chats.viewport()

    def is_aimed_at() -> bool:
        return chats.is_aimed_at

    monkeypatch.setattr(viewport, "underMouse", lambda: True)
    assert not is_aimed_at()
    _move(viewport, QPoint(20, 20))
    assert is_aimed_at()
    monkeypatch.setattr("ui.sidebar.chat_list.AIM_MS", 0)
    window.qtbot.wait(2)
    assert not is_aimed_at()  # it came to rest
    monkeypatch.setattr("ui.sidebar.chat_list.AIM_MS", 3_600_000)
    assert is_aimed_at()
    monkeypatch.setattr(viewport, "underMouse", lambda: False)
    assert not is_aimed_at()


def test_same_rows_are_not_shown_anew(window: OpenWindow) -> None:
    resets: list[bool] = []
    window.sidebar.chat_list.rows.modelReset.connect(lambda: resets.append(True))
    window.session.rename_chat(ConversationId(window.chat_id("Mine")), "Mine")
    assert resets == []
    window.session.rename_chat(ConversationId(window.chat_id("Mine")), "Yours")
    assert resets == [True]


def test_nothing_is_looked_for_when_the_window_is_closed(window: OpenWindow) -> None:
    window.close()
    window.session.notice_others()


def _move(widget: QWidget, place: QPoint) -> None:
    """The pointer moves, no button is pressed."""
    none = Qt.MouseButton.NoButton
    event = QMouseEvent(
        QEvent.Type.MouseMove,
        QPointF(place),
        QPointF(widget.mapToGlobal(place)),
        none,
        none,
        Qt.KeyboardModifier.NoModifier,
    )
    QApplication.sendEvent(widget, event)


def test_what_another_process_says_in_the_open_chat_comes_by_itself(
    window: OpenWindow, others: Others
) -> None:
    """Without moving what the person is at: an open editor, the composer's text and the focus stay."""
    own = window.view(window.messages[0].id)
    assert isinstance(own, OwnMessageView)
    own.start_editing("Mine, edited")
    window.type("half a thou")
    focused = window.window.focusWidget()
    chat_id = ConversationId(window.chat_id("Mine"))
    asked = others.store.add_message(
        chat_id, parent_id=window.messages[-1].id, role="user", content="Asked"
    )
    reply = others.store.add_message(
        chat_id, parent_id=asked.id, role="assistant", content="", status="streaming"
    )
    window.wait(lambda: len(window.texts) == 4)
    view = window.view(reply.id)
    assert isinstance(view, ReplyView)
    assert view.is_streaming
    assert window.chat.composer.button.mode == "send"  # it is not ours to stop
    others.store.update_message(replace(reply, content="Two.", status="complete"))
    window.wait(lambda: not view.is_streaming)
    window.wait(lambda: view.plain_text() == "Two.")
    assert window.texts == ["Mine", "One.", "Asked", "Two."]
    assert own.edited_text == "Mine, edited"
    assert window.chat.composer.text == "half a thou"
    assert window.window.focusWidget() is focused
