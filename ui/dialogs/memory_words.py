"""What the memory of chats takes, in words for people. Pure but for the locale."""

from collections.abc import Sequence
from dataclasses import dataclass

from inference.metrics import EngineStats, KvSchemeInfo, ModelInfo, TierStats
from ui.controls.numbers import count, size

UNKNOWN = "–"
_THOUSAND = 1000
_AUTOMATIC = ("fp16", "bf16", "fp32")

_HINTS = {
    "auto": "As exact as the model itself.",
    "int8": "Rounds a little. Twice as much fits; replies may differ a little.",
    "int4": "Rounds more. More than twice as much fits; replies may differ slightly.",
}

_UNUSED = {
    "missing": "gone",
    "unreadable": "not readable",
    "no_handle": "not readable",
    "not_a_piece": "damaged",
    "truncated": "damaged",
    "damaged": "damaged",
    "wrong_name": "damaged",
    "other_text": "of other text",
    "other_version": "of another version of Quire",
    "other_model": "of another model",
}
_UNWRITTEN = {
    "no_space": "the disk was full",
    "not_writable": "the folder could not be written",
    "over_budget": "there was no room",
}


@dataclass(frozen=True, slots=True)
class SchemeChoice:
    """One way to store what a model has read, as it is offered.

    Attributes:
        key: For the settings: "auto", "int8" or "int4".
        name: What it is called.
        value: What it takes, and what that saves.
        hint: One plain sentence; why it is not offered if it is not.
    """

    key: str
    name: str
    value: str
    hint: str
    is_offered: bool = True


def usage_text(tier: TierStats | None) -> str:
    """Use and budget: "412 MB of 2.0 GB"; a dash before they are known."""
    if tier is None:
        return UNKNOWN
    if tier.budget_bytes == 0:
        return f"Off, {size(tier.used_bytes)} left" if tier.used_bytes else "Off"
    return f"{size(tier.used_bytes)} of {size(tier.budget_bytes)}"


def usage_fraction(tier: TierStats | None) -> float:
    """How full a tier is, 0 to 1."""
    return tier.used_bytes / tier.budget_bytes if tier is not None and tier.budget_bytes else 0.0


def tiers_tip(stats: EngineStats) -> str:
    """The tiers in one line: "Chats in memory 0.4 GB, put aside 0.1 GB, on disk 1.3 GB"."""
    return (
        f"Chats in memory {size(stats.device.used_bytes)}, put aside {size(stats.ram.used_bytes)}, "
        f"on disk {size(stats.disk.used_bytes)}"
    )


def written_text(stats: EngineStats | None) -> str:
    """How much was written to the disk."""
    written = UNKNOWN if stats is None else size(stats.disk_written_bytes)
    return f"Written to disk since the model was opened: {written}"


def trouble_text(stats: EngineStats | None) -> str:
    """What is wrong with the disk, or what could not be used; "" if all is well."""
    if stats is None:
        return ""
    sentences = [stats.disk_problem] if stats.disk_problem else []
    unused = _counted(stats.disk_misses, _UNUSED)
    if unused:
        parts = ", ".join(f"{count(number)} {words}" for words, number in unused.items())
        sentences.append(f"Files that could not be used, so their text was read again: {parts}.")
    unwritten = _counted(stats.disk_misses, _UNWRITTEN)
    if unwritten:
        parts = ", ".join(f"{count(number)} because {words}" for words, number in unwritten.items())
        sentences.append(f"Files that were not written: {parts}.")
    return " ".join(sentences)


def cleared_text(freed_bytes: int, *, is_one_chat: bool) -> str:
    """What a toast says after clearing; what lay both in memory and on disk was freed in both."""
    if not freed_bytes:
        return "This chat had nothing cached" if is_one_chat else "Nothing was cached"
    whose = " of this chat" if is_one_chat else ""
    return f"{size(freed_bytes)}{whose} freed, memory and disk together"


def scheme_choices(info: ModelInfo) -> list[SchemeChoice]:
    """The ways to store what this model has read, the automatic one first."""
    known = {scheme.name: scheme for scheme in info.kv_schemes}
    automatic = next((known[name] for name in _automatic_names(info) if name in known), None)
    if automatic is None:
        return []
    choices = [
        SchemeChoice(
            "auto", f"Automatic ({automatic.name})", _per_thousand(automatic), _HINTS["auto"]
        )
    ]
    for name in ("int8", "int4"):
        scheme = known.get(name)
        if scheme is not None:
            value = f"{_per_thousand(scheme)}, {_saving(scheme, automatic)}"
            hint = _HINTS[name] if scheme.is_offered else scheme.reason
            choices.append(SchemeChoice(name, name, value, hint, scheme.is_offered))
    return choices


def _automatic_names(info: ModelInfo) -> tuple[str, ...]:
    """What "auto" may mean for this model, likeliest first."""
    return (info.kv_scheme, *_AUTOMATIC) if info.kv_scheme in _AUTOMATIC else _AUTOMATIC


def _per_thousand(scheme: KvSchemeInfo) -> str:
    return f"{size(scheme.bytes_per_token * _THOUSAND)} per {count(_THOUSAND)} tokens"


def _saving(scheme: KvSchemeInfo, automatic: KvSchemeInfo) -> str:
    share = scheme.bytes_per_token / max(automatic.bytes_per_token, 1)
    if abs(share - 0.5) <= 0.05:
        return "half"
    if share < 1:
        return f"{round((1 - share) * 100)}% less"
    return "no less"


def _counted(misses: Sequence[tuple[str, int]], words: dict[str, str]) -> dict[str, int]:
    """Numbers by words, reasons with the same words together."""
    found: dict[str, int] = {}
    for reason, number in misses:
        if reason in words and number:
            found[words[reason]] = found.get(words[reason], 0) + number
    return found
