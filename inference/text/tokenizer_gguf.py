"""Builds a tokenizer from the metadata of a GGUF file. Pure Python; engine thread.

No tokenizer.json is made or needed: vocabulary and merges go straight into `tokenizers`. Control
tokens stay out of the core's vocabulary, so plain text cannot become one by any path.

Source: the GGUF specification, section "Tokenizer".
"""

import contextlib
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import tokenizers
from tokenizers import models, normalizers

from inference.errors import ModelFileError, UnsupportedModelError
from inference.text.markup_names import end_ids, is_control_name, is_visible_name
from inference.text.pre_tokenizers import build_pre_tokenizer, find_rule
from inference.text.sentence_merges import merges_from_scores
from inference.text.tokenizer import Markup, SpacePrefix, Tokenizer, TurnTokens
from inference.text.vocabulary import BYTE_PIECE, SPACE_MARK, Vocabulary

logger = logging.getLogger(__name__)

_KEY = "tokenizer.ggml."
_MAX_PIECE_CHARS = 4096
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_Use = Literal["plain", "added", "control", "visible"]


def tokenizer_from_metadata(metadata: Mapping[str, object], path: Path | str) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes.

    Args:
        metadata: All keys of the file; only those beginning with "tokenizer.ggml." are read.
        path: Only named in errors.

    Raises:
        UnsupportedModelError: A kind of tokenizer that Quire does not know.
        ModelFileError: A key is missing, has another type, or contradicts the others.
    """
    reader = _Reader(metadata, Path(path))
    model = reader.text("model")
    if model == "gpt2":
        return _byte_level(reader)
    if model in ("llama", "gemma4"):
        return _sentence(reader, has_merges=model == "gemma4")
    raise UnsupportedModelError(
        path,
        f"Its tokenizer is of the kind {model!r:.60}, which Quire does not know.",
        hint="Choose a model with a byte-pair (gpt2) or SentencePiece (llama, gemma4) tokenizer.",
    )


@dataclass(frozen=True, slots=True)
class _Pieces:
    """The vocabulary sorted by what its tokens are for."""

    names: list[str]
    plain: dict[str, int]  # what text may become; first id of a name counts
    added: list[str]  # the plain ones that are matched as a whole, before all merging
    markup: Markup
    literal_ids: frozenset[int]


class _Reader:
    """Takes typed values out of the metadata, or says which key is wrong."""

    def __init__(self, metadata: Mapping[str, object], path: Path) -> None:
        self._metadata = metadata
        self._path = path

    def error(self, key: str, reason: str) -> ModelFileError:
        """The error that names this key."""
        return ModelFileError(
            self._path,
            f"{_KEY}{key} {reason}.",
            hint="The file is damaged or was converted wrongly: download it again.",
        )

    def has(self, key: str) -> bool:
        """Whether the file has the key at all."""
        return _KEY + key in self._metadata

    def text(self, key: str, default: str | None = None) -> str:
        """A string; required without a default."""
        value = self._metadata.get(_KEY + key, default)
        if not isinstance(value, str):
            raise self.error(key, _missing_or("is not text", value))
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A truth value, or the default if the file has none."""
        value = self._metadata.get(_KEY + key, default)
        if not isinstance(value, bool):
            raise self.error(key, "is not true or false")
        return value

    def token_id(self, key: str, num_tokens: int) -> int | None:
        """An id within the vocabulary, or None if the file has none."""
        if not self.has(key):
            return None
        value = self._metadata[_KEY + key]
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, "is not a whole number")
        if value in (-1, 0xFFFFFFFF):  # how some converters write "none"
            return None
        if not 0 <= value < num_tokens:
            raise self.error(key, f"is {value}, but there are only {num_tokens} tokens")
        return value

    def texts(self, key: str) -> list[str]:
        """A list of strings, not empty."""
        value = self._metadata.get(_KEY + key)
        if not isinstance(value, list) or not value:
            raise self.error(key, _missing_or("is not a list with something in it", value))
        if not all(type(item) is str for item in value):
            raise self.error(key, "holds something that is not text")
        return value

    def numbers(self, key: str, num_tokens: int, default: float) -> list[float]:
        """A list of finite numbers, one for each token; all the default if the file has none."""
        value = self._metadata.get(_KEY + key)
        if value is None:
            return [default] * num_tokens
        if not isinstance(value, list) or len(value) != num_tokens:
            size = len(value) if isinstance(value, list) else "no"
            raise self.error(key, f"has {size} entries for {num_tokens} tokens")
        for item in value:
            if type(item) not in (int, float) or not math.isfinite(item):
                raise self.error(key, "holds something that is not a number")
        return value


def _missing_or(reason: str, value: object) -> str:
    return "is missing" if value is None else reason


def _read_pieces(reader: _Reader, *, is_byte_level: bool) -> _Pieces:
    names = reader.texts("tokens")
    if max(map(len, names)) > _MAX_PIECE_CHARS:
        raise reader.error("tokens", f"holds a token of over {_MAX_PIECE_CHARS} characters")
    types = reader.numbers("token_type", len(names), 1)
    by_use: dict[_Use, dict[str, int]] = {
        use: {} for use in ("plain", "added", "control", "visible")
    }
    literal: set[int] = set()
    for token_id, (name, kind) in enumerate(zip(names, types, strict=True)):
        use = _use_of(name, kind)
        if use is not None:
            by_use[use].setdefault(name, token_id)
            if use in ("control", "visible") or (use == "added" and is_byte_level):
                literal.add(token_id)
    control, visible = by_use["control"], by_use["visible"]
    if "" in control:
        raise reader.error("tokens", "holds a control token without a name")
    plain = by_use["plain"] | by_use["added"]
    for name in (*control, *visible):
        plain.pop(name, None)
    added = [name for name in by_use["added"] if name in plain]
    return _Pieces(names, plain, added, Markup(control, visible), frozenset(literal))


def _use_of(name: str, kind: float) -> _Use | None:
    """What a token is for; None for those that text never becomes."""
    if kind in (_NORMAL, _BYTE):
        return "plain"
    if kind in (_CONTROL, _UNKNOWN):
        return "control"
    if kind != _USER_DEFINED or not name:
        return None
    if is_control_name(name):
        return "control"
    return "visible" if is_visible_name(name) else "added"


def _byte_level(reader: _Reader) -> Tokenizer:
    pieces = _read_pieces(reader, is_byte_level=True)
    rule = find_rule(reader.text("pre", "default"))
    core = tokenizers.Tokenizer(_byte_pairs(reader, pieces, ignore_merges=rule.ignores_merges))
    core.pre_tokenizer = build_pre_tokenizer(rule)
    core.add_tokens([tokenizers.AddedToken(name, normalized=False) for name in pieces.added])
    return Tokenizer(
        core,
        Vocabulary(pieces.names, is_byte_level=True, literal_ids=pieces.literal_ids),
        pieces.markup,
        turns=_read_turns(reader, pieces, adds_bos=rule.adds_bos),
        prefix=_read_prefix(reader, default=False),
    )


def _byte_pairs(reader: _Reader, pieces: _Pieces, **options: Any) -> models.BPE:
    """The model of vocabulary and merges, with the library's options.

    The library refuses merges that are no pairs of the vocabulary, as few files have any. Only then they are
    looked at one by one, which takes several times as long.
    """
    make = partial(models.BPE, vocab=pieces.plain, **options)
    if "" not in pieces.plain:  # else it would take a pair with nothing
        with contextlib.suppress(Exception):  # it raises that class itself
            pairs: list[Any] = [tuple(line.split(" ")) for line in reader.texts("merges")]
            return make(merges=pairs)
    return make(merges=_read_merges(reader, pieces))


def _read_merges(reader: _Reader, pieces: _Pieces) -> list[tuple[str, str]]:
    """Pairs from strings such as "Ġ the"; those with a piece that text cannot become are left out.

    A few such merges occur in sound files whose vocabulary was cut or given new control tokens;
    if most are, the lists do not belong together.
    """
    lines = reader.texts("merges")
    merges = []
    plain = pieces.plain
    for index, line in enumerate(lines):
        cut = line.find(" ", 1)
        if cut < 0 or cut == len(line) - 1:
            raise reader.error("merges", f"has no pair at index {index}")
        left, right = line[:cut], line[cut + 1 :]
        if left in plain and right in plain and left + right in plain:
            merges.append((left, right))
    if len(merges) < len(lines):
        if len(merges) < len(lines) / 2:
            raise reader.error("merges", "does not fit the list of tokens")
        logger.warning("%d of %d merges lead nowhere.", len(lines) - len(merges), len(lines))
    return merges


def _sentence(reader: _Reader, *, has_merges: bool) -> Tokenizer:
    """SentencePiece's, whose merges follow from scores; Gemma 4 lists them."""
    pieces = _read_pieces(reader, is_byte_level=False)
    if has_merges:
        model = _byte_pairs(reader, pieces, byte_fallback=True, fuse_unk=True)
    else:
        merges = _scored_merges(reader, pieces)
        model = models.BPE(vocab=pieces.plain, merges=merges, byte_fallback=True, fuse_unk=True)
    core = tokenizers.Tokenizer(model)
    core.normalizer = normalizers.Replace(" ", SPACE_MARK)
    core.add_tokens([tokenizers.AddedToken(name, normalized=True) for name in pieces.added])
    return Tokenizer(
        core,
        Vocabulary(pieces.names, is_byte_level=False, literal_ids=pieces.literal_ids),
        pieces.markup,
        turns=_read_turns(reader, pieces, adds_bos=True),
        prefix=_read_prefix(reader, default=not has_merges),
    )


def _scored_merges(reader: _Reader, pieces: _Pieces) -> list[tuple[str, str]]:
    scores = reader.numbers("scores", len(pieces.names), 0.0)
    mergeable = {
        name: token_id
        for name, token_id in pieces.plain.items()
        if name and not BYTE_PIECE.fullmatch(name)
    }
    return merges_from_scores(mergeable, scores)


def _read_prefix(reader: _Reader, *, default: bool) -> SpacePrefix:
    if not reader.flag("add_space_prefix", default):
        return SpacePrefix()
    return SpacePrefix("sections", is_stripped=True)


def _read_turns(reader: _Reader, pieces: _Pieces, *, adds_bos: bool) -> TurnTokens:
    """The border ids: those that the file names, and the known ends of turns in its vocabulary."""
    num_tokens = len(pieces.names)
    eos_id = reader.token_id("eos_token_id", num_tokens)
    told = {eos_id, *(reader.token_id(key, num_tokens) for key in ("eot_token_id", "eom_token_id"))}
    return TurnTokens(
        bos_id=reader.token_id("bos_token_id", num_tokens),
        eos_id=eos_id,
        eos_ids=end_ids(pieces.markup.control, told),
        add_bos=reader.flag("add_bos_token", adds_bos),
    )
