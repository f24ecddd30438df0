"""What a model that writes in channels says, as other models say it. Pure Python; engine thread.

gpt-oss writes what it thinks and what it says as messages, each in a channel:

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>

As text that is `<think>…</think>…`, like the replies of models that think without channels. The ids of a
reply stay as they were written.
"""

from collections.abc import Mapping

_CHANNEL, _START, _MESSAGE = "<|channel|>", "<|start|>", "<|message|>"
_THOUGHTS = ("analysis", "commentary")
_OPENER, _CLOSER, _BLANK_LINE = b"<think>", b"</think>", b"\n\n"


def has_channels(control_tokens: Mapping[str, int]) -> bool:
    """Whether a model with these control tokens writes in channels."""
    return all(name in control_tokens for name in (_CHANNEL, _START, _MESSAGE))


class ChannelReader:
    """Reads one reply, token by token."""

    def __init__(self, control_tokens: Mapping[str, int]) -> None:
        """Take the ids of control tokens, of which `has_channels` is true."""
        self._channel_id = control_tokens[_CHANNEL]
        self._start_id = control_tokens[_START]
        self._message_id = control_tokens[_MESSAGE]
        self._control_ids = frozenset(control_tokens.values())
        self._header: bytes | None = None  # of a message that has not begun
        self._names_channel = False  # whether that is the channel's name
        self._is_thinking = False
        self._has_text = False

    def push(self, token_id: int, data: bytes) -> bytes:
        """What a token adds to the reply's text.

        Args:
            token_id: The next one.
            data: What it says by itself.
        """
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
        """The same as `push` without thoughts and their marks."""
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
