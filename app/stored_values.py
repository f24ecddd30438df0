"""How values lie in the database: token ids as a blob, metrics and settings as JSON. Pure Python.

Reading is forgiving: what a hand, another version or a damaged disk left there that does not fit is
left out, or the nearest value taken, so that one odd row never hides a chat.
"""

import dataclasses
import difflib
import json
import logging
import struct
from collections.abc import Iterable, Sequence
from typing import Any, Protocol, get_args

from app.conversation import (
    ChatSettings,
    Conversation,
    ConversationId,
    ConversationSummary,
    Message,
    MessageId,
    MessageStatus,
    OnFull,
)
from app.failure_kind import FailureKind
from app.settings import sampling_from_raw
from inference.errors import InvalidRequestError
from inference.metrics import RequestMetrics, ReuseStop
from inference.request import PromptPart, Role

logger = logging.getLogger(__name__)

_METRICS = frozenset(item.name for item in dataclasses.fields(RequestMetrics))
_FAILURE_KINDS: dict[str, FailureKind] = {kind: kind for kind in get_args(FailureKind)}
_REUSE_STOPS: dict[str, ReuseStop] = {stop: stop for stop in get_args(ReuseStop)}
_ROLES: dict[str, Role] = {role: role for role in get_args(Role)}
_STATUSES: dict[str, MessageStatus] = {status: status for status in get_args(MessageStatus)}
_ON_FULL: dict[str, OnFull] = {choice: choice for choice in get_args(OnFull)}


class Row(Protocol):
    """One row of a table, its values by column."""

    def __getitem__(self, column: str, /) -> Any:
        """The value in this column."""


def summary_from_row(row: Row) -> ConversationSummary:
    """A row of the chat list from one of the table of chats."""
    return ConversationSummary(
        ConversationId(text_from(row["id"])),
        text_from(row["title"]),
        number_from(row["updated_at"]),
    )


def conversation_from_row(row: Row, messages: Iterable[Message]) -> Conversation:
    """A whole chat from its row and its messages, oldest first."""
    found = {message.id: message for message in with_known_parents(messages)}
    leaf_id = row["leaf_id"]
    return Conversation(
        ConversationId(row["id"]),
        text_from(row["title"]),
        number_from(row["created_at"]),
        number_from(row["updated_at"]),
        settings=chat_settings_from_text(row["settings"]),
        messages=found,
        leaf_id=leaf_id if leaf_id in found else max(found, default=None),
    )


def message_from_row(row: Row) -> Message:
    """A message from its row, which has all columns of the table."""
    return Message(
        MessageId(row["id"]),
        ConversationId(row["conversation_id"]),
        row["parent_id"],
        _role(row),
        text_from(row["content"]),
        number_from(row["created_at"]),
        status=status_from(row["status"]),
        token_ids=ids_from_blob(row["token_ids"]),
        model_key=None if row["model_key"] is None else text_from(row["model_key"]),
        metrics=metrics_from_text(row["metrics"]),
        error=None if row["error"] is None else text_from(row["error"]),
        failure_kind=_FAILURE_KINDS.get(row["failure_kind"]),
        part=part_from_blobs(row["part_ids"], row["part_digest"]),
        left_out=_count(row["left_out"]),
    )


def with_known_parents(messages: Iterable[Message]) -> list[Message]:
    """Messages of a chat, oldest first, each after one of those before it.

    Where that is not what is stored, it is the newest one that it may have answered.
    """
    found: list[Message] = []
    known: set[MessageId | None] = {None}
    newest: dict[Role, MessageId] = {}
    for message in messages:
        if message.parent_id not in known:
            logger.warning("What message %s follows is damaged", message.id)
            parent_id = newest.get("assistant" if message.role == "user" else "user")
            message = dataclasses.replace(message, parent_id=parent_id)
        known.add(message.id)
        newest[message.role] = message.id
        found.append(message)
    return found


def text_from(value: object) -> str:
    """A stored text; a sign stands for each letter that is damaged."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else ""


def number_from(value: object) -> float:
    """A stored time; 0 if it is damaged."""
    return float(value) if isinstance(value, int | float) else 0.0


def status_from(value: object) -> MessageStatus:
    """The state of a message; of a damaged one the nearest."""
    status = _STATUSES.get(str(value))
    if status is None:
        status = _STATUSES[_nearest(value, _STATUSES) or "complete"]
        logger.warning("The state of a message is damaged; it counts as %s", status)
    return status


def _role(row: Row) -> Role:
    role = _ROLES.get(str(row["role"]))
    if role is None:
        # Only a reply has ids of its own.
        likely = "user" if row["token_ids"] is None else "assistant"
        role = _ROLES[_nearest(row["role"], _ROLES) or likely]
        logger.warning("The role of message %s is damaged; it counts as %s", row["id"], role)
    return role


def _nearest(value: object, known: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(text_from(value), known, 1)), None)


def ids_to_blob(token_ids: Sequence[int] | None) -> bytes | None:
    """Unsigned 32-bit, little-endian; 4 bytes per token."""
    if token_ids is None:
        return None
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def ids_from_blob(blob: object) -> tuple[int, ...] | None:
    """The opposite of `ids_to_blob`; None for what is not a whole number of ids."""
    if not isinstance(blob, bytes) or len(blob) % 4:
        return None
    return struct.unpack(f"<{len(blob) // 4}I", blob)


def part_to_blobs(part: PromptPart | None) -> tuple[bytes | None, bytes | None]:
    """Its ids as `ids_to_blob` has them, and its digest."""
    return (None, None) if part is None else (ids_to_blob(part.token_ids), part.digest)


def part_from_blobs(token_ids: object, digest: object) -> PromptPart | None:
    """The opposite of `part_to_blobs`; None for what is incomplete or damaged."""
    ids = ids_from_blob(token_ids)
    if ids is None or not isinstance(digest, bytes):
        return None
    try:
        return PromptPart(ids, digest)
    except InvalidRequestError:  # a digest of another length
        return None


def metrics_to_text(metrics: RequestMetrics | None) -> str | None:
    """As JSON."""
    return None if metrics is None else json.dumps(dataclasses.asdict(metrics))


def metrics_from_text(text: object) -> RequestMetrics | None:
    """From JSON; unknown fields are left out, unreadable text gives None."""
    if text is None:
        return None
    raw = _object(text)
    known = {name: value for name, value in raw.items() if name in _METRICS}
    if "reuse_stop" in known:
        # Replies of the first version have other words there, which name no reason.
        known["reuse_stop"] = _REUSE_STOPS.get(str(known["reuse_stop"]))
    return RequestMetrics(**known) if known else None  # type: ignore[arg-type]  # written by us


def chat_settings_to_text(settings: ChatSettings) -> str:
    """As JSON."""
    return json.dumps(dataclasses.asdict(settings), ensure_ascii=False)


def chat_settings_from_text(text: object) -> ChatSettings:
    """From JSON; what is not usable takes the general setting."""
    raw = _object(text)
    prompt = raw.get("system_prompt")
    sampling = raw.get("sampling")
    return ChatSettings(
        system_prompt=prompt if isinstance(prompt, str) else "",
        sampling=sampling_from_raw(sampling, []) if isinstance(sampling, dict) else None,
        on_full=_ON_FULL.get(str(raw.get("on_full")), "ask"),
    )


def _count(raw: object) -> int:
    return raw if isinstance(raw, int) and raw > 0 else 0


def _object(text: object) -> dict[str, object]:
    try:
        raw = json.loads(text_from(text))
    except ValueError:
        return {}
    return raw if isinstance(raw, dict) else {}
