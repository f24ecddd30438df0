"""What Quire needs to know about a tokenizer.json, and changes in it. Pure Python; any thread.

The leading space is taken out of the description and kept as a rule (`SpacePrefix`), because a
prompt is encoded in stretches: the library would put a space before each of them.
"""

from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from inference.errors import ModelFileError, UnsupportedModelError
from inference.text.tokenizer import LeadingSpace, Markup, SpacePrefix
from inference.text.vocabulary import SPACE_MARK

Step = dict[str, object]


@dataclass(frozen=True, slots=True)
class AddedToken:
    """One entry of "added_tokens"."""

    name: str
    token_id: int
    is_special: bool
    strips_left: bool
    strips_right: bool


class TokenizerJson:
    """A parsed tokenizer.json.

    Attributes:
        added_tokens: In the file's order.
        is_byte_level: Whether pieces are in the byte alphabet.
        prefix: The rule for the leading space.
        adds_first: The id that the file puts before each text, None if it puts none.
    """

    def __init__(self, path: Path, content: Mapping[str, object]) -> None:
        """Look through the file.

        Raises:
            ModelFileError: Something in it is not what it should be.
            UnsupportedModelError: It is of a kind that Quire does not know.
        """
        self._path = path
        self._content = content
        model = content.get("model")
        if not isinstance(model, dict) or not isinstance(model.get("vocab"), (dict, list)):
            raise ModelFileError(path, "It has no vocabulary.")
        kind = model.get("type", "BPE")
        if kind not in ("BPE", "Unigram"):
            raise UnsupportedModelError(
                path,
                f"Its tokenizer is of the kind {kind!r:.60}, which Quire does not know.",
                hint="Choose a model with a byte-pair or Unigram tokenizer.",
            )
        self.added_tokens = tuple(self._read_added())
        self.is_byte_level = any(
            step.get("type") == "ByteLevel"
            for name in ("decoder", "pre_tokenizer")
            for step in _steps(content.get(name))
        )
        self.prefix = self._read_prefix()
        self.adds_first = self._read_first()

    def without_prefix_and_with_markup(self, markup: Markup) -> dict[str, object]:
        """The file's content for the core: no leading space, nothing added, all markup special."""
        content = dict(self._content)
        content.update(truncation=None, padding=None, post_processor=None, decoder=None)
        content["normalizer"] = _without_prefix(content.get("normalizer"))
        content["pre_tokenizer"] = _without_prefix(content.get("pre_tokenizer"))
        special = {*markup.control, *markup.visible}
        content["added_tokens"] = [
            {**token, "special": token["content"] in special} for token in self._added_objects()
        ]
        return content

    def _added_objects(self) -> list[Step]:
        added = self._content.get("added_tokens") or []
        if not isinstance(added, list) or not all(isinstance(item, dict) for item in added):
            raise ModelFileError(self._path, 'Its "added_tokens" is no list of objects.')
        return added

    def _read_added(self) -> Iterator[AddedToken]:
        for item in self._added_objects():
            name, token_id = item.get("content"), item.get("id")
            if not isinstance(name, str) or not name or type(token_id) is not int or token_id < 0:
                raise ModelFileError(self._path, "One of its added tokens has no text or no id.")
            yield AddedToken(
                name,
                token_id,
                is_special=item.get("special") is True,
                strips_left=item.get("lstrip") is True,
                strips_right=item.get("rstrip") is True,
            )

    def _read_prefix(self) -> SpacePrefix:
        is_stripped = any(map(_strips_space, _steps(self._content.get("decoder"))))
        for step in _steps(self._content.get("normalizer")):
            if step.get("type") == "Prepend" and step.get("prepend") in (SPACE_MARK, " "):
                return SpacePrefix("sections", is_stripped=is_stripped)
        for step in _steps(self._content.get("pre_tokenizer")):
            scheme = _prepend_scheme(step)
            if scheme != "never":
                where: LeadingSpace = "start" if scheme == "first" else "sections"
                return SpacePrefix(where, unless_spaced=True, is_stripped=is_stripped)
        return SpacePrefix(is_stripped=is_stripped)

    def _read_first(self) -> int | None:
        """Look for a template such as `<s> $A`."""
        ids = {token.name: token.token_id for token in self.added_tokens}
        for step in _steps(self._content.get("post_processor")):
            single = step.get("single")
            if step.get("type") == "TemplateProcessing" and isinstance(single, list) and single:
                first = single[0].get("SpecialToken") if isinstance(single[0], dict) else None
                if isinstance(first, dict):
                    return ids.get(str(first.get("id")))
        return None


def _steps(value: object) -> Iterator[Step]:
    """A component and, if it is a sequence, all components in it."""
    if not isinstance(value, dict):
        return
    yield value
    for name in ("normalizers", "pretokenizers", "processors", "decoders"):
        inner = value.get(name)
        for item in inner if isinstance(inner, list) else ():
            yield from _steps(item)


def _prepend_scheme(step: Step) -> str:
    """Where a pre-tokenizer puts a space: "always", "first" or "never"."""
    if step.get("type") == "ByteLevel":
        return "always" if step.get("add_prefix_space") is True else "never"
    if step.get("type") != "Metaspace":
        return "never"
    default = "never" if step.get("add_prefix_space") is False else "always"
    return str(step.get("prepend_scheme", default))


def _strips_space(step: Step) -> bool:
    """Whether a decoder takes one leading space away."""
    if step.get("type") == "Strip":
        return step.get("content") == " " and step.get("start") == 1
    return step.get("type") == "Metaspace" and _prepend_scheme(step) != "never"


def _without_prefix(value: object) -> object:
    """A normaliser or pre-tokenizer that puts no space before text; None if nothing is left."""
    if not isinstance(value, dict):
        return value
    if value.get("type") == "Prepend":
        return None
    changed = copy(value)
    if value.get("type") == "Metaspace":
        changed.pop("add_prefix_space", None)
        changed["prepend_scheme"] = "never"
    elif value.get("type") == "ByteLevel":
        changed["add_prefix_space"] = False
    for name in ("normalizers", "pretokenizers"):
        inner = value.get(name)
        if isinstance(inner, list):
            kept = [_without_prefix(item) for item in inner]
            changed[name] = [item for item in kept if item is not None]
    return changed
