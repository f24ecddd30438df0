"""From text fields to sampling settings and back. Pure Python.

The engine's own checks decide what is allowed; its words stand at the field.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from inference.config import SamplingParams
from inference.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class FormField:
    """One field: its name in SamplingParams, and its words for people."""

    name: str
    label: str
    tip: str
    hint: str = ""


FORM_FIELDS = (
    FormField("temperature", "Temperature", "0 always takes the likeliest word; higher is freer"),
    FormField("top_k", "Top k", "Chooses among the k likeliest tokens; 0 is off"),
    FormField("top_p", "Top p", "Chooses among the likeliest tokens with this share; 1 is off"),
    FormField("min_p", "Min p", "Leaves out tokens less likely than this share of the best"),
    FormField("repetition_penalty", "Repetition penalty", "Above 1 avoids repeating; 1 is off"),
    FormField("presence_penalty", "Presence penalty", "Above 0 favours new words; 0 is off"),
    FormField("frequency_penalty", "Frequency penalty", "Above 0 avoids frequent words; 0 is off"),
    FormField("seed", "Seed", "The same seed gives the same reply", hint="A new one each time"),
    FormField("max_tokens", "Longest reply", "In tokens", hint="As long as fits"),
    FormField(
        "stop", "Stop at", "The reply ends before the first of these, separated by commas", "Never"
    ),
)

_WHOLE_NUMBERS = ("top_k", "seed", "max_tokens")
_OPTIONAL = ("seed", "max_tokens")


def texts_of(params: SamplingParams) -> dict[str, str]:
    """The text of each field for these settings."""
    texts: dict[str, str] = {}
    for field in FORM_FIELDS:
        value = getattr(params, field.name)
        if value is None:
            texts[field.name] = ""
        elif field.name == "stop":
            texts[field.name] = ", ".join(_shown(item) for item in value)
        else:
            texts[field.name] = f"{value:g}" if isinstance(value, float) else str(value)
    return texts


def read_form(texts: Mapping[str, str]) -> tuple[SamplingParams, dict[str, str]]:
    """Read all fields.

    Returns:
        The settings, with defaults for fields that are wrong; and for each wrong field what the
        engine says about it.
    """
    params = SamplingParams()
    problems: dict[str, str] = {}
    for field in FORM_FIELDS:
        try:
            value = _value(field.name, texts[field.name])
            params = dataclasses.replace(params, **{field.name: value})  # type: ignore[arg-type]  # checked there
        except InvalidRequestError as error:
            problems[field.name] = _sentence(error.reason)
    return params, problems


def _value(name: str, text: str) -> object:
    """The value for the engine; text that is no number is handed on for it to refuse.

    Both a point and a comma are understood, whatever the locale writes.
    """
    text = text.strip()
    if name == "stop":
        return tuple(_meant(item.strip()) for item in text.split(",") if item.strip())
    if not text and name in _OPTIONAL:
        return None
    try:
        return int(text) if name in _WHOLE_NUMBERS else float(text.replace(",", "."))
    except ValueError:
        return text


def _shown(stop: str) -> str:
    return stop.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace(",", "\\c")


def _meant(text: str) -> str:
    """The stop string that was typed: a backslash with n, t or c is a line break, tab or comma."""
    meanings = {"n": "\n", "t": "\t", "c": ",", "\\": "\\"}
    made = ""
    chars = iter(text)
    for char in chars:
        if char != "\\":
            made += char
            continue
        follower = next(chars, "")
        made += meanings.get(follower, "\\" + follower)
    return made


def _sentence(reason: str) -> str:
    """What is allowed, as a sentence; what was typed stands in the field above it."""
    allowed, _, _ = reason.rstrip(".").partition(", not ")
    return f"{allowed[:1].upper()}{allowed[1:]}."
