"""How values lie in the database: token ids as a blob, metrics and settings as JSON. Pure Python.

Reading is forgiving: what a hand or another version left there that does not fit is left out, so
that one odd row never hides a chat.
"""

import dataclasses
import json
import struct
from collections.abc import Sequence
from typing import Any, Protocol, get_args

from app.conversation import ChatSettings, ConversationId, Message, MessageId, OnFull
from app.failure_kind import FailureKind
from app.settings import sampling_from_raw
from inference.errors import InvalidRequestError
from inference.metrics import RequestMetrics, ReuseStop
from inference.request import PromptPart

_METRICS = frozenset(item.name for item in dataclasses.fields(RequestMetrics))
_FAILURE_KINDS: dict[str, FailureKind] = {kind: kind for kind in get_args(FailureKind)}
_REUSE_STOPS: dict[str, ReuseStop] = {stop: stop for stop in get_args(ReuseStop)}
_ON_FULL: dict[str, OnFull] = {choice: choice for choice in get_args(OnFull)}


class Row(Protocol):
    """One row of a table, its values by column."""

    def __getitem__(self, column: str, /) -> Any:
        """The value in this column."""


def message_from_row(row: Row) -> Message:
    """A message from its row, which has all columns of the table."""
    return Message(
        MessageId(row["id"]),
        ConversationId(row["conversation_id"]),
        row["parent_id"],
        row["role"],
        row["content"],
        row["created_at"],
        status=row["status"],
        token_ids=ids_from_blob(row["token_ids"]),
        model_key=row["model_key"],
        metrics=metrics_from_text(row["metrics"]),
        error=row["error"],
        failure_kind=_FAILURE_KINDS.get(row["failure_kind"]),
        part=part_from_blobs(row["part_ids"], row["part_digest"]),
        left_out=_count(row["left_out"]),
    )


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


def metrics_from_text(text: str | None) -> RequestMetrics | None:
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


def chat_settings_from_text(text: str) -> ChatSettings:
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


def _object(text: str) -> dict[str, object]:
    try:
        raw = json.loads(text)
    except ValueError:
        return {}
    return raw if isinstance(raw, dict) else {}
