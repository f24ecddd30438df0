"""Noncharacters that show where the contents are in a rendered conversation. Pure Python; any thread.

They are code points that no text uses, and survive trimming and cutting by a template.

    FDD0         breaks strings in contents that would read as markup: <FDD0|im_end|>
    FDD1 n FDD2  around a reply whose ids are known; n is its index in digits FDE0..FDEF
    FDD3         ends such a reply
    FDD4 n FDD5  after the last character of content n that is no white space

The last ones are not in the text that becomes ids, but only in a second rendering that tells where
contents lie: a template that looks at the end of a content would write something else with them.
"""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from inference.request import ChatMessage
from inference.text.markup_names import without_thoughts
from inference.text.tokenizer import REPLACEMENT, Tokenizer

BREAK = "\ufdd0"
_START, _START_END, _END = "\ufdd1", "\ufdd2", "\ufdd3"
_STOP, _STOP_END = "\ufdd4", "\ufdd5"
_FIRST_DIGIT = 0xFDE0
_DIGITS = "[\ufde0-\ufdef]+"
_NONCHARACTERS = re.compile("[\ufdd0-\ufdef]")
_REPLY = re.compile(f"{_START}({_DIGITS}){_START_END}([^{_START}{_END}]*){_END}")
_STOP_MARK = re.compile(f"{_STOP}({_DIGITS}){_STOP_END}")
_ALL_BUT_STOPS = re.compile(f"({_STOP}{_DIGITS}{_STOP_END})|[\ufdd1-\ufdef]")


class Preparation:
    """Puts noncharacters into contents."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        initials = {re.escape(name[0]) for name in tokenizer.markup_tokens}
        controls = [name for name in tokenizer.control_tokens if name in tokenizer.markup_tokens]
        self._initial = re.compile(f"[{''.join(sorted(initials))}]") if initials else None
        self._tokenizer = tokenizer
        self._control = re.compile("|".join(map(re.escape, controls))) if controls else None

    def prepare(self, index: int, message: ChatMessage, *, marks_end: bool = False) -> ChatMessage:
        """The message as the template may see it; its ids are left out."""
        content, is_reply = message.content, message.role == "assistant"
        channels = self._tokenizer.channels if is_reply else None
        is_retold = channels is not None and channels.retells(message.token_ids)
        if is_retold or (channels is not None and not message.token_ids):
            content = self._said(message)
        content = _NONCHARACTERS.sub(REPLACEMENT, content)
        if is_reply:
            content = self._broken_controls(content)
        elif self._initial:
            content = self._initial.sub(lambda m: m[0] + BREAK, content)
        spoken = content.rstrip()
        if marks_end and spoken:  # templates ask whether a content is empty
            content = f"{spoken}{_STOP}{_digits(index)}{_STOP_END}{content[len(spoken) :]}"
        if is_reply and message.token_ids and not is_retold:
            content = f"{_START}{_digits(index)}{_START_END}{content}{_END}"
        return ChatMessage(message.role, content)

    def _said(self, message: ChatMessage) -> str:
        """A reply without thoughts; its text may speak of their marks, its ids never do."""
        if message.token_ids:
            return self._tokenizer.said(message.token_ids)
        return without_thoughts(message.content)

    def _broken_controls(self, content: str) -> str:
        """A reply's text with only its control strings broken.

        Not every "<", since templates look for `</think>` in replies. Again until none is left: one
        control string may overlap another.
        """
        while self._control and self._control.search(content):
            content = self._control.sub(lambda m: m[0][0] + BREAK + m[0][1:], content)
        return content


@dataclass(frozen=True, slots=True)
class Cut:
    """A rendered conversation, cut at the replies that go in as their ids.

    Attributes:
        texts: What stands around the replies: one more than there are of them.
        replies: Their indices among the messages.
    """

    texts: tuple[str, ...]
    replies: tuple[int, ...]

    def stretches(self, num_messages: int) -> list[tuple[str, range]]:
        """Each text, and which messages can be in it: those between the replies beside it."""
        borders = [-1, *self.replies, num_messages]
        return [
            (text, range(before + 1, after))
            for text, (before, after) in zip(self.texts, itertools.pairwise(borders), strict=True)
        ]

    def without_last_space(self) -> "Cut":
        """This cut, a space before each reply left out."""
        return Cut(
            (*(text.removesuffix(" ") for text in self.texts[:-1]), self.texts[-1]), self.replies
        )

    def without_stops(self) -> "Cut":
        """This cut without the marks at the ends of contents."""
        return Cut(tuple(_STOP_MARK.sub("", text) for text in self.texts), self.replies)


def cut(rendered: str, prepared: Sequence[ChatMessage]) -> Cut:
    """Cut a rendered conversation.

    A reply of which the template kept only a piece, or that it changed, stays text.
    """
    texts, replies, done = [], [], 0
    for match in _REPLY.finditer(rendered):
        index = _index(match[1])
        if index >= len(prepared) or match[0] != prepared[index].content:
            continue
        texts.append(_without_wraps(rendered[done : match.start()]))
        replies.append(index)
        done = match.end()
    texts.append(_without_wraps(rendered[done:]))
    return Cut(tuple(texts), tuple(replies))


def content_ends(text: str, messages: range) -> list[tuple[int, int]]:
    """Where contents end in a text with marks, as index and offset without the marks; rising."""
    ends: list[tuple[int, int]] = []
    marks_chars = 0
    for match in _STOP_MARK.finditer(text):
        index = _index(match[1])
        # A template may write the system prompt into the last message.
        if index in messages and (not ends or index > ends[-1][0]):
            ends.append((index, match.start() - marks_chars))
        marks_chars += len(match[0])
    return ends


def to_search(prepared: ChatMessage) -> str:
    """A content as a rendered text may have it, for where there are no marks."""
    return _without_wraps(prepared.content).strip()


def _without_wraps(text: str) -> str:
    return _ALL_BUT_STOPS.sub(lambda match: match[1] or "", text)


def _digits(number: int) -> str:
    return "".join(chr(_FIRST_DIGIT + int(digit, 16)) for digit in f"{number:x}")


def _index(digits: str) -> int:
    return int("".join(f"{ord(digit) - _FIRST_DIGIT:x}" for digit in digits), 16)
