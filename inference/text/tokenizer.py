"""Text to token ids and back. Pure Python around the `tokenizers` library; engine thread.

The one rule that everything here serves: **text that a person typed never becomes a control
token**. So two ways in are kept apart: `encode_text` for contents, which knows no control tokens,
and `encode_markup` for text that a chat template wrote, in which they are recognised.

Three kinds of tokens matter:

    control    <|im_end|>, <s>: structure. Not in the decoded text.
    visible    <think>, <tool_call>: structure that the model writes as part of its reply. In the
               decoded text, so that the reply can be shown and folded; not typeable either.
    plain      everything else, also added tokens for runs of spaces or HTML tags: just text.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import tokenizers

from inference.text.channels import find_channels
from inference.text.vocabulary import Vocabulary

REPLACEMENT = "\ufffd"
_SURROGATES = re.compile("[\ud800-\udfff]")

# What stands before a stretch of text: nothing, a control token, or more text.
After = Literal["start", "control", "text"]
# Where a space is put before text: nowhere, at the start of the prompt, also after control tokens.
LeadingSpace = Literal["never", "start", "sections"]


@dataclass(frozen=True, slots=True)
class Markup:
    """The tokens with which a template structures a prompt.

    Attributes:
        control: String to id of tokens that are never part of the text.
        visible: String to id of tokens that are structure and yet shown.
        strips_left: Those that swallow white space before them.
        strips_right: Those that swallow white space after them.
    """

    control: Mapping[str, int]
    visible: Mapping[str, int] = field(default_factory=dict)
    strips_left: frozenset[str] = frozenset()
    strips_right: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """The ids at the borders of prompts and turns.

    Attributes:
        bos_id: Begins a prompt; None if the model has none.
        eos_id: The id that the model file calls end of sequence; None if it names none.
        eos_ids: All ids that end a reply.
        add_bos: Whether a prompt must begin with `bos_id`.
    """

    bos_id: int | None
    eos_id: int | None
    eos_ids: frozenset[int]
    add_bos: bool


@dataclass(frozen=True, slots=True)
class SpacePrefix:
    """How a sentence vocabulary marks that text begins.

    Attributes:
        where: Before which stretches of text a space is put.
        unless_spaced: Not where the text already begins with a space.
        is_stripped: Whether decoding takes one leading space away again.
    """

    where: LeadingSpace = "never"
    unless_spaced: bool = False
    is_stripped: bool = False


class Tokenizer:
    """One model's tokenizer.

    Attributes:
        vocabulary: Pieces and their bytes.
        markup: Control and visible tokens.
        vocab_size: Number of ids; each id that `encode_*` yields is below.
        bos_id: Begins a prompt, or None.
        eos_ids: All ids that end a turn.
        add_bos: Whether a prompt must begin with `bos_id`.
        prefix: The rule for the leading space.
        channels: How replies are written in channels; None if they are not.
    """

    def __init__(
        self,
        core: tokenizers.Tokenizer,
        vocabulary: Vocabulary,
        markup: Markup,
        *,
        turns: TurnTokens,
        prefix: SpacePrefix,
    ) -> None:
        """Take the parts; see `tokenizer_gguf` and `tokenizer_folder` for who builds them.

        Args:
            core: Encodes plain text, adds no prefix space and no BOS.
            vocabulary: Must cover every id of `core`.
            markup: Tokens with one character are left out: they could not be told from text.
            turns: Ids at the borders.
            prefix: The rule for the leading space.
        """
        self._core = core
        self.vocabulary = vocabulary
        self.markup = markup
        self.prefix = prefix
        self.vocab_size = len(vocabulary)
        self.channels = find_channels(markup.control)
        self.bos_id = turns.bos_id
        self.eos_ids = turns.eos_ids
        self.add_bos = turns.add_bos and turns.bos_id is not None
        self._eos_id = turns.eos_id
        self._control_ids = frozenset(markup.control.values())
        self._untypeable_ids = self._control_ids | frozenset(markup.visible.values())
        self._markup_ids = {
            name: token_id
            for name, token_id in {**markup.visible, **markup.control}.items()
            if len(name) > 1
        }
        self._splitter = _splitter(self._markup_ids, markup)
        self._missing_bytes = vocabulary.missing_bytes()

    @property
    def control_tokens(self) -> Mapping[str, int]:
        """String to id of the tokens that no text may turn into."""
        return self.markup.control

    @property
    def markup_tokens(self) -> Mapping[str, int]:
        """String to id of all tokens that `encode_markup` recognises: control and visible."""
        return self._markup_ids

    @property
    def bos_token(self) -> str:
        """The string of `bos_id`; "" without one."""
        return "" if self.bos_id is None else self.vocabulary.piece(self.bos_id)

    @property
    def eos_token(self) -> str:
        """The string of the main end token; "" without one."""
        return "" if self._eos_id is None else self.vocabulary.piece(self._eos_id)

    def is_control(self, token_id: int) -> bool:
        """Whether the id is left out of decoded text."""
        return token_id in self._control_ids

    def reply_reader(self) -> Callable[[int], bytes]:
        """For one reply: gives what each of its ids, in their order, adds to its text."""
        if self.channels is None:
            return self._text_of
        reader = self.channels.new_reader()
        return lambda token_id: reader.push(token_id, self.vocabulary.bytes_of(token_id))

    def encode_text(self, text: str, *, after: After = "start") -> list[int]:
        """Ids of plain text; never a control or visible markup token, whatever the text says.

        What the vocabulary cannot write (lone surrogates, and bytes that it has no piece for)
        becomes U+FFFD instead of vanishing.

        Args:
            text: Any string.
            after: What stands before it in the prompt; decides about the leading space.
        """
        if not text:
            return []
        text = self._writable(text)
        if self._takes_space(text, after):
            text = " " + text
        ids: list[int] = self._core.encode(text, add_special_tokens=False).ids
        if self._untypeable_ids.isdisjoint(ids):
            return ids
        return [plain for token_id in ids for plain in self._without_markup(token_id)]

    def encode_markup(self, text: str, *, after: After = "start") -> list[int]:
        """Ids of text that a template wrote: control and visible tokens are recognised.

        NOTE: never give it text of a person or of a model; see `prompt.build_prompt`.
        """
        ids: list[int] = []
        for part in self.split_markup(text):
            if isinstance(part, int):
                ids.append(part)
                after = "control" if part in self._control_ids else "text"
            else:
                ids += self.encode_text(part, after=after)
                after = "text"
        return ids

    def split_markup(self, text: str) -> Iterator[str | int]:
        """Cut text at its markup tokens: stretches of text as they are, tokens as their ids.

        At each place the longest token counts. No empty stretches come out.
        """
        if self._splitter is None:
            if text:
                yield text
            return
        done = 0
        for match in self._splitter.finditer(text):
            if match.start() > done:
                yield text[done : match.start()]
            yield self._markup_ids[match[match.lastgroup or 0]]
            done = match.end()
        if done < len(text):
            yield text[done:]

    def decode(self, ids: Iterable[int], *, skip_control: bool = True) -> str:
        """The text of the ids of a reply; bytes that are no UTF-8 become U+FFFD.

        Args:
            ids: Any ids; one outside the vocabulary says nothing.
            skip_control: Leave control tokens out; else they appear as their strings.
        """
        bytes_of = self.reply_reader() if skip_control else self.vocabulary.bytes_of
        data = b"".join(map(bytes_of, ids))
        text = data.decode("utf-8", "replace")
        return text.removeprefix(" ") if self.prefix.is_stripped else text

    def said(self, ids: Iterable[int]) -> str:
        """The text of a reply without what was thought in channels."""
        if self.channels is None:
            return self.decode(ids)
        reader, bytes_of = self.channels.new_reader(), self.vocabulary.bytes_of
        data = b"".join(reader.said(token_id, bytes_of(token_id)) for token_id in ids)
        return data.decode("utf-8", "replace")

    def _text_of(self, token_id: int) -> bytes:
        return b"" if token_id in self._control_ids else self.vocabulary.bytes_of(token_id)

    def _takes_space(self, text: str, after: After) -> bool:
        where = self.prefix.where
        if where == "never" or after == "text" or (where == "start" and after != "start"):
            return False
        return not (self.prefix.unless_spaced and text[0] in " \u2581")

    def _writable(self, text: str) -> str:
        if not text.isascii() and _SURROGATES.search(text):
            text = _SURROGATES.sub(REPLACEMENT, text)
        if not self._missing_bytes:
            return text
        data = text.encode()
        if len(data.translate(None, self._missing_bytes)) == len(data):
            return text
        missing = frozenset(self._missing_bytes)
        return "".join(char if missing.isdisjoint(char.encode()) else REPLACEMENT for char in text)

    def _without_markup(self, token_id: int) -> list[int]:
        """The id, or if it is markup the ids of its characters one by one.

        Only a vocabulary whose merges lead to a control token comes here.
        """
        if token_id not in self._untypeable_ids:
            return [token_id]
        ids = [
            part
            for char in self.vocabulary.piece(token_id)
            for part in self._core.encode(char, add_special_tokens=False).ids
        ]
        return [part for part in ids if part not in self._untypeable_ids]


def _splitter(tokens: Mapping[str, int], markup: Markup) -> re.Pattern[str] | None:
    """One pattern that finds any token, the longest first, and the space that it swallows."""
    if not tokens:
        return None
    by_strips: dict[tuple[bool, bool], list[str]] = {}
    for name in tokens:
        strips = (name in markup.strips_left, name in markup.strips_right)
        by_strips.setdefault(strips, []).append(name)
    if set(by_strips) == {(False, False)}:
        return re.compile(f"(?P<t>{_any_of(tokens)})")
    branches = []
    for n, name in enumerate(sorted(tokens, key=len, reverse=True)):
        left = r"\s*" if name in markup.strips_left else ""
        right = r"\s*" if name in markup.strips_right else ""
        branches.append(f"{left}(?P<t{n}>{re.escape(name)}){right}")
    return re.compile("|".join(branches))


def _any_of(names: Iterable[str]) -> str:
    return "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
