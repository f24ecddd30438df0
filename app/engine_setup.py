"""From settings to the engine's configuration; shared by the window and `ask`. Pure Python."""

from pathlib import Path
from typing import cast

from app.settings import Settings
from inference.config import BackendName, EngineConfig, KvSchemeName, WeightTypeName


def engine_config(
    settings: Settings,
    model_path: str,
    *,
    kv_dir: Path | None,
    kv_scheme: KvSchemeName | None = None,
    num_threads: int | None = None,
    backend: BackendName = "auto",
    weights: WeightTypeName = "auto",
) -> EngineConfig:
    """How to open a model.

    Args:
        settings: The general settings.
        model_path: The model, as it is named in the settings.
        kv_dir: Where blocks are kept on disk; None keeps none.
        kv_scheme: None takes what is set for this model.
        num_threads: None takes what is set.
        backend: What is to compute the model.
        weights: How to keep its floats.
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
