"""Puts a prompt together from stretches of text and replies as their ids. Pure Python; engine thread.

    stretch 0             reply 2     stretch 1     reply 4     stretch 2
    <system 0> <user 1>   known ids   <user 3>      known ids   <user 5> <where the reply begins>

The ids of a stretch are a *part*, kept beside its last message that is no reply (1, 3 and 5), so that
the next prompt takes them from there. Nothing that was tokenised once is tokenised again.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from inference.request import PART_DIGEST_BYTES, ChatMessage, PromptPart
from inference.text.message_starts import Place, Stretch
from inference.text.prompt_marks import BREAK
from inference.text.tokenizer import After, Tokenizer

# Counts up when the same text would get other ids than before, so that old parts are made anew.
_DIGEST_KINDS = {True: b"prompt 1 markup", False: b"prompt 1 plain"}


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads.

    Attributes:
        token_ids: All of it.
        message_starts: Per message, the index of its first token, markup of the template included;
            never falling. A message that is not in the prompt starts where the next one does. Empty
            if the request has no messages.
        new_parts: Parts that were tokenised now, each with the index of the message to keep it with.
        changed_replies: Replies with known ids that went in as text, or not at all, since the
            template writes them differently than they were read.
    """

    token_ids: tuple[int, ...]
    message_starts: tuple[int, ...] = ()
    new_parts: tuple[tuple[int, PromptPart], ...] = ()
    changed_replies: frozenset[int] = frozenset()


class PromptWriter:
    """Writes one prompt, from its beginning to its end.

    Args:
        messages: All of the conversation.
        tokenizer: The model's.
        contents: Of each message, what to look for in texts where nobody knows where it ends; "" for
            what cannot be found.
        has_markup: Whether texts have markup of a template, and contents with breaks.
    """

    def __init__(
        self,
        messages: Sequence[ChatMessage],
        tokenizer: Tokenizer,
        *,
        contents: Sequence[str],
        has_markup: bool,
    ) -> None:
        self._messages = messages
        self._tokenizer = tokenizer
        self._contents = contents
        self._has_markup = has_markup
        self._markup_ids = frozenset(tokenizer.markup_tokens.values())
        self._ids: list[int] = []
        self._after: After = "start"
        self._starts: dict[int, int] = {}
        self._replies: set[int] = set()
        self._new_parts: dict[int, PromptPart] = {}

    def add_reply(self, index: int) -> None:
        """Add message `index` as its known ids."""
        self._starts.setdefault(index, len(self._ids))
        self._replies.add(index)
        self._add_ids(self._messages[index].token_ids or ())

    def add_text(self, text: str, messages: range, ends: Sequence[tuple[int, int]]) -> None:
        """Add a stretch of text, as ids that are known or else new.

        Args:
            text: All between two replies.
            messages: Which messages can be in it.
            ends: Where their contents end in it, as index and offset, both rising; empty if unknown.
        """
        if not text:
            return
        markup, texts = self._split(text)
        ids = self._part_ids(text, messages, markup, texts)
        places = self._places(text, ends, markup) or self._searched(texts, messages)
        stretch = Stretch(markup, texts, ids, self._tokenizer, is_first=not self._ids)
        for index, start in stretch.starts(places).items():
            self._starts.setdefault(index, len(self._ids) + start)
        self._add_ids(ids)

    def finish(self) -> Prompt:
        """The prompt, with exactly one BOS if the model wants one."""
        ids = _with_one_bos(self._ids, self._tokenizer)
        shift = len(ids) - len(self._ids)
        starts = [len(ids)] * len(self._messages)
        following = len(ids)
        for index in reversed(range(len(starts))):
            start = self._starts.get(index)
            if start is not None:
                # What begins the prompt has the BOS, but a reply is its ids and nothing else.
                moved = max(0, start + shift) if start or index in self._replies else 0
                following = min(following, moved)
            starts[index] = following
        return Prompt(
            tuple(ids),
            tuple(starts),
            tuple(sorted(self._new_parts.items(), key=lambda item: item[0])),
            frozenset(
                index
                for index, message in enumerate(self._messages)
                if message.role == "assistant" and message.token_ids and index not in self._replies
            ),
        )

    def _add_ids(self, ids: Sequence[int]) -> None:
        if ids:
            self._after = "control" if self._tokenizer.is_control(ids[-1]) else "text"
            self._ids += ids

    def _split(self, text: str) -> tuple[list[int], list[str]]:
        """Ids of the markup in a text, and the texts around them: one more."""
        markup: list[int] = []
        texts = [""]
        pieces = self._tokenizer.split_markup(text) if self._has_markup else (text,)
        for piece in pieces:
            if isinstance(piece, int):
                markup.append(piece)
                texts.append("")
            else:
                texts[-1] += piece
        return markup, texts

    def _part_ids(
        self, text: str, messages: range, markup: list[int], texts: list[str]
    ) -> tuple[int, ...]:
        owner = next((n for n in reversed(messages) if self._messages[n].role != "assistant"), None)
        digest = self._digest(text)
        known = None if owner is None else self._messages[owner].part
        if known is not None and known.digest == digest and self._is_sound(known, markup):
            return known.token_ids
        ids = tuple(self._encode(markup, texts))
        if owner is not None:
            self._new_parts[owner] = PromptPart(ids, digest)
        return ids

    def _digest(self, text: str) -> bytes:
        kind = _DIGEST_KINDS[self._has_markup]
        data = f"{self._after} {text}".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(data, digest_size=PART_DIGEST_BYTES, person=kind).digest()

    def _is_sound(self, part: PromptPart, markup: list[int]) -> bool:
        """Whether ids from a file can be those of a text: contents must never become markup."""
        is_known = max(part.token_ids, default=0) < self._tokenizer.vocab_size
        return is_known and [n for n in part.token_ids if n in self._markup_ids] == markup

    def _encode(self, markup: list[int], texts: list[str]) -> list[int]:
        """Ids of a stretch: its markup recognised, what contents only look like it not."""
        ids: list[int] = []
        after = self._after
        for token_id, text in zip([None, *markup], texts, strict=True):
            if token_id is not None:
                ids.append(token_id)
                after = "control" if self._tokenizer.is_control(token_id) else "text"
            if text:
                plain = text.replace(BREAK, "") if self._has_markup else text
                ids += self._tokenizer.encode_text(plain, after=after)
                after = "text"
        return ids

    def _places(
        self, text: str, ends: Sequence[tuple[int, int]], markup: list[int]
    ) -> dict[int, Place]:
        """Where each content ends, counted in the markup before it."""
        places: dict[int, Place] = {}
        found: list[int] = []
        done = offset = 0
        for index, end in ends:
            new_markup, texts = self._split(text[done:end])
            found += new_markup
            offset = len(texts[-1]) + (0 if new_markup else offset)
            places[index] = Place(len(found), offset)
            done = end
        found += self._split(text[done:])[0]
        # A template could write markup around a content, so that it ends in the middle of a token.
        return places if found == markup else {}

    def _searched(self, texts: list[str], messages: range) -> dict[int, Place]:
        """Like `_places`; a guess, which may take a short content's letters from other words."""
        places: dict[int, Place] = {}
        piece = offset = 0
        for index in messages:
            content = self._contents[index] if self._contents else ""
            for n in range(piece, len(texts)) if content else ():
                found = texts[n].find(content, offset if n == piece else 0)
                if found >= 0:
                    piece, offset = n, found + len(content)
                    places[index] = Place(piece, offset)
                    break
        return places


def _with_one_bos(ids: list[int], tokenizer: Tokenizer) -> list[int]:
    bos_id = tokenizer.bos_id
    if bos_id is None:
        return ids
    while len(ids) > 1 and ids[0] == ids[1] == bos_id:
        ids = ids[1:]
    if tokenizer.add_bos and ids[:1] != [bos_id]:
        return [bos_id, *ids]
    return ids
