"""Why a model reads again what it has read before in a chat. Pure Python; any thread.

What a chat *had* is all up to the end of its last reply in the prompt, whoever wrote it, or of a later
message that this model began to read, and all that the prompt shares with the chat's last sequence (its
*trail*). If the trail ends in that message, reading was broken off there, and that is all it had. Nothing was lost if that was reused but
for the one token that must always be computed: so it is with a first message, a next one, an edit of
the last message, another reply to it, and a branch whose blocks are all there. Otherwise, the first
that holds:

    damaged         a file could not be verified
    evicted         blocks are missing that are known to have given way to others
    not_kept        blocks are missing whose text is the trail's, and nobody knows why: files were
                    removed, or gave way while another process ran
    system_prompt   the trail has another text where this prompt has its system prompt, or before its
                    first message
    left_out        the oldest messages are not sent, and the trail has another text in what is now
                    the first message
    then, from the message at which reading begins anew, up to the first one that this model has read
    as it is now (a reply with its ids in the prompt, or a message that was answered):
    template        a reply with known ids is text, or is not there; or a message that was answered is
                    written in another way
    other_model     a reply has no ids of this model
    edited          the trail has another text in a person's message before the last
    at last, or in place of other_model, what the trail says that has more of the prompt and was left by
    other_weights   the model, before its file became another one
    other_computing the same weights, computed in another way
    other_precision the same, stored with another precision; not in place of other_model
    and if there is none
    not_kept        it was cleared, or nobody knows why
and wherever that would be said
    no_room         the disk is too small for what the chat had, or takes nothing: it is full, or closed
"""

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from inference.kv_cache.disk.trail import TrailElsewhere
from inference.kv_cache.prefix_search import ChainEnd
from inference.metrics import ReuseStop
from inference.request import ChatMessage
from inference.text.prompt_writer import Prompt


def why_reuse_stopped(
    *,
    prompt: Prompt,
    messages: Sequence[ChatMessage] | None,
    num_reused: int,
    trail: Sequence[int] | None,
    chain_end: ChainEnd,
    was_damaged: bool,
    has_left_out: bool,
    room_tokens: int | None = None,
    other_trails: Callable[[], Iterable[TrailElsewhere]] = tuple,
) -> tuple[ReuseStop | None, int | None]:
    """Judge one request, once it is known how much of its prompt was reused.

    Args:
        prompt: What the model reads.
        messages: From which the prompt was made; None if it came as ids.
        num_reused: Its first tokens that need not be computed.
        trail: Ids of this chat's last sequence, prompt and reply, as far as they were computed; None
            if unknown.
        chain_end: Why the cache had no more.
        was_damaged: Whether something that was found could not be loaded.
        has_left_out: Whether the chat's oldest messages are not among `messages`.
        room_tokens: The most tokens of a chat that the disk holds, 0 if nothing can be written to it;
            None if nothing is to be kept there.
        other_trails: Gives the chat's trails of other models, precisions and ways to compute; called
            when nothing else is the reason.

    Returns:
        The reason and the message's number as in `RequestMetrics`: of the message that is another
        than before, else of the one where reading begins anew. Both None if nothing was lost.
    """
    view = _View(prompt, messages or (), num_reused, trail, has_left_out)
    if num_reused >= min(view.had, len(prompt.token_ids)) - 1:
        return None, None
    reason: ReuseStop
    index: int | None = view.read_from
    if was_damaged or chain_end == "damaged":
        reason = "damaged"
    elif chain_end == "evicted":
        reason = "evicted"
    elif num_reused < view.common - 1:
        reason = "not_kept"
    else:
        reason, index = view.text_reason() or ("not_kept", index)
        if reason in ("not_kept", "other_model"):
            reason = _elsewhere(view, other_trails(), reason)
    if reason == "not_kept" and room_tokens is not None and view.had > room_tokens:
        reason = "no_room"
    return reason, view.number(index)


def _elsewhere(view: "_View", trails: Iterable[TrailElsewhere], reason: ReuseStop) -> ReuseStop:
    """What another maker's trail with the most of the prompt says; `reason` if none has more than here.

    Another model that has the same beginning has lost nothing of this one's. And where there are no ids
    of a reply, only the same weights say more than that it is of another model.
    """
    found, most = reason, view.num_reused
    for trail in trails:
        difference = trail.difference
        is_told = difference == "other_computing" or reason != "other_model"
        shared = _num_common(view.prompt.token_ids, trail.token_ids)
        if difference != "other_model" and is_told and shared > most:
            most, found = shared, difference
    return found


@dataclass(frozen=True, slots=True)
class _View:
    """One request, and the questions about it. A message is named by its index, -1 what is before."""

    prompt: Prompt
    messages: Sequence[ChatMessage]
    num_reused: int
    trail: Sequence[int] | None
    has_left_out: bool

    @property
    def common(self) -> int:
        """How many tokens the prompt shares with the trail."""
        return _num_common(self.prompt.token_ids, self.trail or ())

    @property
    def had(self) -> int:
        """How many tokens of the prompt the chat had, before the message that is answered now."""
        last = max((n for n in range(len(self.messages) - 1) if self._was_read(n)), default=None)
        if last is None or (self.messages[last].role != "assistant" and self._breaks_off_in(last)):
            return self.common
        return max(self.common, self._end_of(last))

    def _was_read(self, index: int) -> bool:
        """Whether a model began to read a message, or wrote it."""
        message = self.messages[index]
        if message.role == "assistant":
            return bool(message.content or message.token_ids)
        return message.part is not None

    def _breaks_off_in(self, index: int) -> bool:
        """Whether the trail ends within a message: no more of it was ever read."""
        is_whole = not self._differs
        return is_whole and self.prompt.message_starts[index] < self.common < self._end_of(index)

    def message_at(self, position: int) -> int:
        """The message that a token belongs to."""
        starts = self.prompt.message_starts
        return max((n for n, start in enumerate(starts) if start <= position), default=-1)

    @property
    def read_from(self) -> int:
        """The message where reading begins anew: the one after a reply of which only the end is read again.

        A reply's last token is not computed before the next message comes, nor what the template writes then.
        """
        index = self.message_at(self.num_reused)
        is_reply = 0 <= index < len(self.messages) - 1 and bool(self.messages[index].token_ids)
        return index + 1 if is_reply and self.num_reused >= self._end_of(index) - 1 else index

    def number(self, index: int | None) -> int | None:
        """The message's number in `RequestMetrics`."""
        if index is None or not self.messages:
            return None
        return max(0, index + 1 - self._first)

    def text_reason(self) -> tuple[ReuseStop, int | None] | None:
        """What of the text is another than before."""
        at = self.message_at(self.common) if self._differs else None
        if at is not None and at < self._first:
            return "system_prompt", self._after_beginning
        at = max(self.message_at(self.num_reused), -1 if at is None else at)
        if self._differs and at == self._first:
            if self.has_left_out:
                return "left_out", at
            if self._begins_otherwise(at):
                return "system_prompt", self._after_beginning
        return self._changed_from(max(0, at))

    def _changed_from(self, first: int) -> tuple[ReuseStop, int] | None:
        asked = [n for n, message in enumerate(self.messages) if message.role != "assistant"]
        edited = self.message_at(self.common) if self._differs else None
        for n, message in enumerate(self.messages):
            end = self._end_of(n)
            if n < first or end <= self.num_reused:
                continue
            if n in self.prompt.changed_replies or self._is_rewritten(n):
                return "template", n
            if (message.token_ids or message.part is not None) and end > self.num_reused + 1:
                break  # this was read as it is now, so its blocks are missing
            if message.role == "assistant" and message.content and not message.token_ids:
                has_begun = bool(self.trail) or self.read_from > self._first
                return "other_model", n if has_begun else -1
            if n == edited and n in asked[:-1]:
                return "edited", n
        return None

    @property
    def _after_beginning(self) -> int:
        """Where reading begins anew if it is the beginning that is another: mostly there."""
        return self.read_from if self.read_from > self._first else -1

    def _begins_otherwise(self, index: int) -> bool:
        """Whether the first message is the same as before, and only what is before it another."""
        starts = (*self.prompt.message_starts, len(self.prompt.token_ids))
        if index == 1 and starts[0] == starts[1]:
            return False  # the template writes the system prompt somewhere else
        message_ids = self.prompt.token_ids[self.common : starts[index + 1]]
        return self._is_rewritten(index) or (
            index == 0 and _contains(self.trail or (), message_ids)
        )

    def _is_rewritten(self, index: int) -> bool:
        """Whether a message was answered by this model, and is now written in another way."""
        is_new = any(n == index for n, _ in self.prompt.new_parts)
        return is_new and self.messages[index].part is not None

    @property
    def _differs(self) -> bool:
        """Whether the trail has another text somewhere, and does not just end."""
        return self.common < min(self._lengths)

    @property
    def _lengths(self) -> tuple[int, int]:
        return len(self.prompt.token_ids), len(self.trail or ())

    @property
    def _first(self) -> int:
        """The first message that is not the system prompt."""
        return 1 if self.messages and self.messages[0].role == "system" else 0

    def _end_of(self, index: int) -> int:
        """Where a reply ends in the prompt: its markup is not counted, if its ids are there."""
        message = self.messages[index]
        starts = (*self.prompt.message_starts, len(self.prompt.token_ids))
        if message.token_ids and index not in self.prompt.changed_replies:
            return starts[index] + len(message.token_ids)
        return starts[index + 1]


def _num_common(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _contains(token_ids: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether ids are somewhere in others, one after the other."""
    where = struct.pack(f"<{len(token_ids)}I", *token_ids)
    what = struct.pack(f"<{len(wanted)}I", *wanted)
    found = where.find(what)
    while found >= 0 and found % 4:
        found = where.find(what, found + 1)
    return found >= 0
