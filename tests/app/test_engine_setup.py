from pathlib import Path

from app.engine_setup import (
    draft_model_of,
    engine_config,
    kv_scheme_of,
    with_draft_model,
    with_kv_scheme,
)
from app.settings import Settings
from inference.config import EngineConfig

SETTINGS = Settings(
    context_tokens=512,
    num_threads=2,
    kv_cache_bytes=2**28,
    ram_cache_bytes=2**29,
    disk_cache_bytes=0,
    kv_schemes=(("/a", "int8"), ("/b", "int4")),
    guess_ahead=False,
    draft_models=(("/a", "/b"),),
)


def test_configuration_takes_over_all_settings_of_the_engine() -> None:
    assert engine_config(SETTINGS, "/a", kv_dir=Path("/cache/kv")) == EngineConfig(
        kv_scheme="int8",
        context_tokens=512,
        num_threads=2,
        kv_cache_bytes=2**28,
        ram_cache_bytes=2**29,
        disk_cache_bytes=0,
        cache_dir=str(Path("/cache/kv")),
        guess="off",
    )
    assert engine_config(Settings(), "/a", kv_dir=None) == EngineConfig()


def test_scheme_that_is_asked_for_goes_before_the_set_one() -> None:
    assert engine_config(SETTINGS, "/a", kv_dir=None, kv_scheme="fp16").kv_scheme == "fp16"
    assert engine_config(SETTINGS, "/a", kv_dir=None, kv_scheme="auto").kv_scheme == "auto"


def test_scheme_belongs_to_one_model() -> None:
    assert [kv_scheme_of(SETTINGS, path) for path in ("/a", "/b", "/c")] == ["int8", "int4", "auto"]
    assert with_kv_scheme(SETTINGS, "/a", "fp16") == (("/b", "int4"), ("/a", "fp16"))
    assert with_kv_scheme(SETTINGS, "/b", "auto") == (("/a", "int8"),)
    assert with_kv_scheme(SETTINGS, "/c", "auto") == SETTINGS.kv_schemes


def test_draft_model_belongs_to_one_model() -> None:
    assert [draft_model_of(SETTINGS, path) for path in ("/a", "/b")] == ["/b", ""]
    assert with_draft_model(SETTINGS, "/c", "/d") == (("/a", "/b"), ("/c", "/d"))
    assert with_draft_model(SETTINGS, "/a", "/d") == (("/a", "/d"),)
    assert with_draft_model(SETTINGS, "/a", "") == ()


def test_draft_model_that_is_only_set_never_keeps_a_model_from_being_opened() -> None:
    general = Settings(draft_models=(("/a", "/b"),))
    assert engine_config(general, "/a", kv_dir=None) == EngineConfig(guess="auto")


def test_guessing_that_is_asked_for_goes_before_the_set_one() -> None:
    config = engine_config(
        SETTINGS, "/a", kv_dir=None, guess="draft", draft_model="/d", draft_tokens=4
    )
    assert (config.guess, config.draft_model, config.draft_tokens) == ("draft", "/d", 4)
