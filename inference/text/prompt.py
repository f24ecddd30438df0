"""From a conversation to the ids of a prompt. Pure Python; engine thread.

The template sees the real contents, once, but prepared with noncharacters (code points that no text
uses): they survive trimming and cutting by the template, and tell afterwards which characters came
from a person, from a model, and from the template itself.

    FDD0         breaks strings in contents that would read as markup: <FDD0|im_end|>
    FDD1 n FDD2  around a reply whose ids are known; n is its index in digits FDE0..FDEF
    FDD3         ends such a reply

    contents -> prepared -> template -> text -> cut at markup and replies -> ids

Spaces: some templates write "[/INST] " before an old reply but end a prompt with "[/INST]". The
known ids were sampled right after the latter, so the space is left out before them.
"""

import re
from collections.abc import Iterator, Sequence

from inference.errors import InvalidRequestError
from inference.request import ChatMessage
from inference.text.chat_template import ChatTemplate
from inference.text.tokenizer import REPLACEMENT, After, Tokenizer

_BREAK, _START, _START_END, _END = "\ufdd0", "\ufdd1", "\ufdd2", "\ufdd3"
_FIRST_DIGIT = 0xFDE0
_NONCHARACTERS = re.compile("[\ufdd0-\ufdef]")
_WRAP_MARKS = re.compile("[\ufdd1-\ufdef]")
_REPLY = re.compile("\ufdd1([\ufde0-\ufdef]+)\ufdd2([^\ufdd1\ufdd3]*)\ufdd3")
_BLANK_LINE = "\n\n"


def build_prompt(
    messages: Sequence[ChatMessage], *, template: ChatTemplate, tokenizer: Tokenizer
) -> list[int]:
    """The ids of a conversation, ending where the reply begins.

    Markup of the template becomes control tokens; contents never do. Replies with known token ids
    go in as those ids, so that a prompt begins with exactly the prompt and reply before it, unless
    the template itself changes old replies (then their text is used). Exactly one BOS.

    Raises:
        ChatTemplateError: The template fails or exceeds its bounds.
        InvalidRequestError: There are no messages.
    """
    _check_not_empty(messages)
    preparation = _Preparation(tokenizer)
    prepared = [preparation.prepare(n, message) for n, message in enumerate(messages)]
    rendered = template.render(prepared)
    parts = list(_parts(rendered, prepared, messages))
    drops_space = messages[-1].role != "assistant" and not rendered.endswith(" ")
    ids: list[int] = []
    after: After = "start"
    for n, part in enumerate(parts):
        if isinstance(part, tuple):
            new_ids = list(part)
        else:
            if drops_space and n + 1 < len(parts):
                part = part.removesuffix(" ")  # see the module's notes on spaces
            new_ids = _encode_rendered(part, tokenizer, after)
        if new_ids:
            after = "control" if tokenizer.is_control(new_ids[-1]) else "text"
        ids += new_ids
    return _with_one_bos(ids, tokenizer)


def build_plain_prompt(messages: Sequence[ChatMessage], tokenizer: Tokenizer) -> list[int]:
    """The ids of a conversation without any template: the contents, blank lines between.

    For models that only continue text. Known ids are used as they are; exactly one BOS.

    Raises:
        InvalidRequestError: There are no messages.
    """
    _check_not_empty(messages)
    ids: list[int] = []
    pending = ""
    after: After = "start"
    for n, message in enumerate(messages):
        pending += _BLANK_LINE if n else ""
        if message.token_ids:
            ids += tokenizer.encode_text(pending, after=after)
            ids += message.token_ids
            pending, after = "", "text"
        else:
            pending += message.content
    ids += tokenizer.encode_text(pending, after=after)
    return _with_one_bos(ids, tokenizer)


class _Preparation:
    """Puts noncharacters into contents."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        initials = {re.escape(name[0]) for name in tokenizer.markup_tokens}
        controls = [name for name in tokenizer.control_tokens if name in tokenizer.markup_tokens]
        self._initial = re.compile(f"[{''.join(sorted(initials))}]") if initials else None
        self._control = re.compile("|".join(map(re.escape, controls))) if controls else None

    def prepare(self, index: int, message: ChatMessage) -> ChatMessage:
        """The message as the template may see it; its ids are left out."""
        content = _NONCHARACTERS.sub(REPLACEMENT, message.content)
        if message.role == "assistant":
            content = self._broken_controls(content)
            if message.token_ids:
                content = f"{_START}{_digits(index)}{_START_END}{content}{_END}"
        elif self._initial:
            content = self._initial.sub(lambda m: m[0] + _BREAK, content)
        return ChatMessage(message.role, content)

    def _broken_controls(self, content: str) -> str:
        """A reply's text with only its control strings broken.

        Not every "<", since templates look for `</think>` in replies. Again until none is left: one
        control string may overlap another.
        """
        while self._control and self._control.search(content):
            content = self._control.sub(lambda m: m[0][0] + _BREAK + m[0][1:], content)
        return content


def _digits(number: int) -> str:
    return "".join(chr(_FIRST_DIGIT + int(digit, 16)) for digit in f"{number:x}")


def _index(digits: str) -> int:
    return int("".join(f"{ord(digit) - _FIRST_DIGIT:x}" for digit in digits), 16)


def _parts(
    rendered: str, prepared: Sequence[ChatMessage], messages: Sequence[ChatMessage]
) -> Iterator[str | tuple[int, ...]]:
    """Cut rendered text into text and whole replies, the latter as their ids.

    A reply of which the template kept only a piece, or that it changed, stays text.
    """
    done = 0
    for match in _REPLY.finditer(rendered):
        index = _index(match[1])
        if index >= len(messages) or match[0] != prepared[index].content:
            continue
        yield _WRAP_MARKS.sub("", rendered[done : match.start()])
        yield messages[index].token_ids or ()
        done = match.end()
    yield _WRAP_MARKS.sub("", rendered[done:])


def _encode_rendered(text: str, tokenizer: Tokenizer, after: After) -> list[int]:
    """Ids of rendered text: its markup recognised, what contents only look like it not."""
    ids: list[int] = []
    for part in tokenizer.split_markup(text):
        if isinstance(part, int):
            ids.append(part)
            after = "control" if tokenizer.is_control(part) else "text"
        else:
            ids += tokenizer.encode_text(part.replace(_BREAK, ""), after=after)
            after = "text"
    return ids


def _with_one_bos(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    bos_id = tokenizer.bos_id
    if bos_id is None:
        return ids
    while len(ids) > 1 and ids[0] == ids[1] == bos_id:
        ids = ids[1:]
    if tokenizer.add_bos and ids[:1] != [bos_id]:
        return [bos_id, *ids]
    return ids


def _check_not_empty(messages: Sequence[ChatMessage]) -> None:
    if not messages:
        raise InvalidRequestError("messages", "must hold at least one message.")
