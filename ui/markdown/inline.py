"""Inline tokens of markdown-it to runs. Pure Python; any thread."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ui.markdown.blocks import Run

if TYPE_CHECKING:
    from markdown_it.token import Token

OPENABLE_SCHEMES = ("http://", "https://")


@dataclass(slots=True)
class _Look:
    """How many openers of each kind are in force, and the address of the open link."""

    bold: int = 0
    italic: int = 0
    strike: int = 0
    href: str | None = None


_COUNTED = {"strong": "bold", "em": "italic", "s": "strike"}


def runs_of(tokens: "Sequence[Token]") -> tuple[Run, ...]:
    """The children of one inline token as runs; neighbours with the same look are joined.

    Only addresses that a browser opens become links. Any other address is written out behind its
    text, so that nothing is hidden and nothing of this machine or a mail program is reached.
    """
    joined: list[Run] = []
    for run in _raw_runs(tokens):
        if joined and replace(joined[-1], text=run.text) == run:
            joined[-1] = replace(run, text=joined[-1].text + run.text)
        elif run.text:
            joined.append(run)
    return tuple(joined)


def is_openable(address: str) -> bool:
    """Whether a click on `address` may ask to open it."""
    return address.lower().startswith(OPENABLE_SCHEMES)


def _raw_runs(tokens: "Sequence[Token]") -> Iterator[Run]:
    look = _Look()
    for token in tokens:
        kind, _, edge = token.type.rpartition("_")
        if kind in _COUNTED:
            name = _COUNTED[kind]
            setattr(look, name, getattr(look, name) + (1 if edge == "open" else -1))
        elif token.type == "link_open":
            look.href = str(token.attrs.get("href", ""))
        elif token.type == "link_close":
            is_written_out = token.info == "auto"  # <a@b.org>: the text is the address
            if look.href and not is_openable(look.href) and not is_written_out:
                yield _run(look, f" ({look.href})")
            look.href = None
        elif token.type == "image":
            yield from _image_runs(look, token)
        elif token.type in ("softbreak", "hardbreak"):
            yield _run(look, "\n")
        else:
            yield replace(_run(look, token.content), code=token.type == "code_inline")


def _image_runs(look: _Look, token: "Token") -> Iterator[Run]:
    """A picture is never fetched: its description and its address stand for it."""
    address = str(token.attrs.get("src", ""))
    label = token.content or address
    if is_openable(address):
        yield replace(_run(look, label), link=address)
    else:
        yield _run(look, label if label == address else f"{label} ({address})")


def _run(look: _Look, text: str) -> Run:
    link = look.href if look.href and is_openable(look.href) else None
    return Run(text, bold=look.bold > 0, italic=look.italic > 0, strike=look.strike > 0, link=link)
