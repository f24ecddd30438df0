"""What a model that writes in channels says, as other models say it. Pure Python; engine thread.

gpt-oss writes what it thinks and what it says as messages, each in a channel; Gemma 4 has one for thoughts:

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>
    <|channel>thought
    …<channel|>…<turn|>

As text that is `<think>…</think>…`, like the replies of models that think without channels. The ids of a
reply stay as they were written.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

_CHANNEL, _START, _MESSAGE = "<|channel|>", "<|start|>", "<|message|>"
_THOUGHTS = ("analysis", "commentary")
_OPEN, _CLOSE = "<|channel>", "<channel|>"
_OPENER, _CLOSER, _BLANK_LINE = b"<think>", b"</think>", b"\n\n"


class ReplyReader(Protocol):
    """Reads one reply, token by token."""

    def push(self, token_id: int, data: bytes) -> bytes:
        """What a token adds to the reply's text.

        Args:
            token_id: The next one.
            data: What it says by itself.
        """

    def said(self, token_id: int, data: bytes) -> bytes:
        """The same as `push` without thoughts and their marks."""


class Channels:
    """How the models of one vocabulary write in channels."""

    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        """Take the ids of control tokens, of which `find_channels` has found some of channels."""
        self._control_tokens = control_tokens
        self._open_id = None if has_messages(control_tokens) else control_tokens[_OPEN]

    def new_reader(self) -> ReplyReader:
        """For the next reply."""
        if self._open_id is None:
            return MessageReader(self._control_tokens)
        return ThoughtReader(self._control_tokens)

    def retells(self, token_ids: Sequence[int] | None) -> bool:
        """Whether later prompts have a reply as what was said and not as these ids of it, if they are known.

        Templates leave thoughts out. gpt-oss's writes the header of what was said too.
        """
        return self._open_id is None or self._open_id in (token_ids or ())


def find_channels(control_tokens: Mapping[str, int]) -> Channels | None:
    """How models with these control tokens write in channels; None if they do not."""
    if has_messages(control_tokens) or (_OPEN in control_tokens and _CLOSE in control_tokens):
        return Channels(control_tokens)
    return None


def has_messages(control_tokens: Mapping[str, int]) -> bool:
    """Whether a model with these control tokens writes messages in channels, as gpt-oss does."""
    return all(name in control_tokens for name in (_CHANNEL, _START, _MESSAGE))


class MessageReader:
    """Reads a reply of gpt-oss; a `ReplyReader`."""

    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        """Take the ids of control tokens, of which `has_messages` is true."""
        self._channel_id = control_tokens[_CHANNEL]
        self._start_id = control_tokens[_START]
        self._message_id = control_tokens[_MESSAGE]
        self._control_ids = frozenset(control_tokens.values())
        self._header: bytes | None = None  # of a message that has not begun
        self._names_channel = False  # whether that is the channel's name
        self._is_thinking = False
        self._has_text = False

    def push(self, token_id: int, data: bytes) -> bytes:
        """See `ReplyReader`."""
        if token_id in (self._channel_id, self._start_id):
            self._header, self._names_channel = b"", token_id == self._channel_id
            return b""
        if token_id == self._message_id:
            return self._begin_message()
        if token_id in self._control_ids:
            return b""
        if self._header is not None:
            self._header += data
            return b""
        self._has_text = True
        return data

    def said(self, token_id: int, data: bytes) -> bytes:
        """See `ReplyReader`."""
        shown = self.push(token_id, data)
        if self._is_thinking or (token_id == self._message_id and shown == _CLOSER):
            return b""
        return shown

    def _begin_message(self) -> bytes:
        """The channel's name is complete."""
        name = (
            (self._header or b"").decode("utf-8", "replace").strip() if self._names_channel else ""
        )
        self._header = None
        is_thought = name.partition(" ")[0] in _THOUGHTS
        if is_thought and not self._has_text:
            # Only at the very beginning are thoughts told from text.
            begins, self._is_thinking = not self._is_thinking, True
            return _OPENER if begins else b""
        if not is_thought and self._is_thinking:
            self._is_thinking = False
            self._has_text = True
            return _CLOSER
        return _BLANK_LINE if self._has_text else b""


class ThoughtReader:
    """Reads a reply of Gemma 4; a `ReplyReader`.

    Larger models open the channel even if they are not to think, and close it at once: nothing is shown of
    that.
    """

    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        """Take the ids of control tokens, those of the channel among them."""
        self._open_id, self._close_id = control_tokens[_OPEN], control_tokens[_CLOSE]
        self._control_ids = frozenset(control_tokens.values())
        self._is_open = False
        self._has_header = False  # of the channel that is open: its first line, the name
        self._is_thinking = False  # whether that was shown
        self._has_text = False

    def push(self, token_id: int, data: bytes) -> bytes:
        """See `ReplyReader`."""
        if token_id == self._open_id:
            self._is_open, self._has_header = True, False
            return b""
        if token_id == self._close_id:
            return self._close()
        if token_id in self._control_ids:
            return b""
        return self._thought(data) if self._is_open else self._text(data)

    def said(self, token_id: int, data: bytes) -> bytes:
        """See `ReplyReader`."""
        shown = self.push(token_id, data)
        return b"" if self._is_open or token_id == self._close_id else shown

    def _text(self, data: bytes) -> bytes:
        self._has_text = self._has_text or bool(data.strip())
        return data

    def _thought(self, data: bytes) -> bytes:
        if not self._has_header:
            _, line_end, data = data.partition(b"\n")
            self._has_header = bool(line_end)
        if self._is_thinking or not data.strip():
            return data if self._is_thinking else b""
        self._is_thinking = True
        # Only at the very beginning are thoughts told from text.
        return (_BLANK_LINE if self._has_text else _OPENER) + data

    def _close(self) -> bytes:
        was_thinking = self._is_open and self._is_thinking
        self._is_open = self._is_thinking = False
        if not was_thinking:
            return b""
        return _BLANK_LINE if self._has_text else _CLOSER
