"""Messages, a theme and a message list for the tests of replies."""

from collections.abc import Callable
from typing import TypeVar

from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.conversation import ConversationId, Message, MessageId, MessageStatus
from app.failure_kind import FailureKind
from inference.metrics import RequestMetrics
from inference.request import Role
from ui.look.theme import Theme
from ui.replies.message_list import MessageList
from ui.replies.message_view import MessageView, OwnMessageView
from ui.replies.reply_view import ReplyView

NO_DEADLINE = float("inf")


def make_message(
    message_id: int,
    role: Role = "assistant",
    content: str = "",
    *,
    status: MessageStatus = "complete",
    metrics: RequestMetrics | None = None,
    error: str | None = None,
    failure_kind: FailureKind | None = None,
) -> Message:
    return Message(
        id=MessageId(message_id),
        conversation_id=ConversationId("c"),
        parent_id=None,
        role=role,
        content=content,
        created_at=0.0,
        status=status,
        metrics=metrics,
        error=error,
        failure_kind=failure_kind,
    )


def make_theme() -> Theme:
    return Theme("light")


def make_parent(qtbot: QtBot, width: int, height: int) -> QWidget:
    """A widget that lives as long as the test: pytest-qt itself holds it weakly."""
    parent = QWidget()

    def keep(_widget: QWidget) -> None:
        assert parent is not None

    qtbot.addWidget(parent, before_close_func=keep)
    parent.resize(width, height)
    return parent


def make_list(qtbot: QtBot, *messages: Message, width: int = 800, height: int = 600) -> MessageList:
    """A shown list that has settled."""
    made = MessageList(make_theme())
    qtbot.addWidget(made)
    made.resize(width, height)
    with qtbot.waitExposed(made):
        made.show()
    made.show_path(messages, {})
    settle(qtbot, made)
    return made


def settle(qtbot: QtBot, shown: MessageList) -> None:
    qtbot.waitUntil(lambda: shown.is_settled, timeout=20_000)


def reply_view(shown: MessageList, message_id: int) -> ReplyView:
    view = shown.view_of(MessageId(message_id))
    assert isinstance(view, ReplyView)
    return view


def own_view(shown: MessageList, message_id: int) -> OwnMessageView:
    view = shown.view_of(MessageId(message_id))
    assert isinstance(view, OwnMessageView)
    return view


AnyWidget = TypeVar("AnyWidget", bound=QWidget)


def button_named(
    parent: QWidget,
    name: str,
    kind: type[AnyWidget] = QWidget,  # type: ignore[assignment]  # mypy: defaults of type variables
) -> AnyWidget:
    """The one visible control with this accessible name."""
    found = [
        child
        for child in parent.findChildren(kind)
        if child.accessibleName() == name and child.isVisibleTo(parent)
    ]
    assert len(found) == 1, f"{len(found)} controls named {name!r}"
    return found[0]


def any_view(shown: MessageList, message_id: int) -> MessageView:
    view = shown.view_of(MessageId(message_id))
    assert view is not None
    return view


def collected(signal: object) -> list[tuple[object, ...]]:
    """What a signal sends from now on."""
    received: list[tuple[object, ...]] = []
    connect: Callable[[object], object] = signal.connect  # type: ignore[attr-defined]  # bound signal
    connect(lambda *values: received.append(values))
    return received
