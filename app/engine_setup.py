"""From settings to the engine's configuration; shared by the window and `ask`. Pure Python."""

from pathlib import Path
from typing import cast

from app.settings import Settings
from inference.config import BackendName, EngineConfig, GuessName, KvSchemeName, WeightTypeName


def engine_config(
    settings: Settings,
    model_path: str,
    *,
    kv_dir: Path | None,
    kv_scheme: KvSchemeName | None = None,
    num_threads: int | None = None,
    backend: BackendName = "auto",
    weights: WeightTypeName = "auto",
    guess: GuessName | None = None,
    draft_model: str | None = None,
    draft_tokens: int | None = None,
) -> EngineConfig:
    """How to open a model.

    A draft model that is only set is not among it: it is loaded when the model is open, so that a
    broken one never costs the chat.

    Args:
        settings: The general settings.
        model_path: The model, as it is named in the settings.
        kv_dir: Where blocks are kept on disk; None keeps none.
        kv_scheme: None takes what is set for this model.
        num_threads: None takes what is set.
        backend: What is to compute the model.
        weights: How to keep its floats.
        guess: How to guess ahead; None takes what is set.
        draft_model: A draft model that was asked for; without it, or if it cannot be used, the model is not
            opened.
        draft_tokens: How many tokens to guess each time; None chooses.

    Raises:
        InvalidRequestError: A value is out of range.
    """
    return EngineConfig(
        kv_scheme=kv_scheme or kv_scheme_of(settings, model_path),
        context_tokens=settings.context_tokens,
        num_threads=settings.num_threads if num_threads is None else num_threads,
        backend=backend,
        weights=weights,
        kv_cache_bytes=settings.kv_cache_bytes,
        ram_cache_bytes=settings.ram_cache_bytes,
        disk_cache_bytes=settings.disk_cache_bytes,
        cache_dir=None if kv_dir is None else str(kv_dir),
        guess=guess or ("auto" if settings.guess_ahead else "off"),
        draft_model=draft_model,
        draft_tokens=draft_tokens,
    )


def kv_scheme_of(settings: Settings, model_path: str) -> KvSchemeName:
    """How this model's keys and values are to be stored."""
    # The settings hold nothing but names of schemes.
    return cast(KvSchemeName, dict(settings.kv_schemes).get(model_path, "auto"))


def with_kv_scheme(
    settings: Settings, model_path: str, name: KvSchemeName
) -> tuple[tuple[str, str], ...]:
    """The pairs of `Settings.kv_schemes` with another scheme for one model."""
    others = tuple(pair for pair in settings.kv_schemes if pair[0] != model_path)
    return others if name == "auto" else (*others, (model_path, name))


def draft_model_of(settings: Settings, model_path: str) -> str:
    """The draft model that is set for this model; "" if there is none."""
    return dict(settings.draft_models).get(model_path, "")


def with_draft_model(
    settings: Settings, model_path: str, draft_path: str
) -> tuple[tuple[str, str], ...]:
    """The pairs of `Settings.draft_models` with another draft model for one model; "" is none."""
    others = tuple(pair for pair in settings.draft_models if pair[0] != model_path)
    return (*others, (model_path, draft_path)) if draft_path else others
