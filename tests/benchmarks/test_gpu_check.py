"""That `gpu_check` gets through all of its parts: with a tiny model, and without a GPU."""

import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from inference.drafting.draft_model import DraftModel
from inference.engine_loading import ProgressCallback, load_parts
from inference.errors import NotEnoughMemoryError
from inference.formats.whole_digest import WeightFiles
from inference.model.loader import LoadedModel
from inference.model.model_paths import ModelSource, Wish, make_model
from inference.model.progress import LoadReporter
from tests.benchmarks import gpu_check, gpu_models, gpu_split
from tests.benchmarks.gpu_check import VARIANTS, Check
from tests.inference.tiny_decoders import make_variant, weights_of
from tests.inference.tiny_engine import make_loaded

REFUSED = {"flash": "it runs on CUDA devices only", "Q8_0 weights": "Weights are kept as Q8_0"}


def load_tiny(
    path: Path, *, on_progress: ProgressCallback | None = None, **options: Any
) -> LoadedModel:
    """A tiny model, on the way that a file would go."""
    weights = weights_of(make_variant("llama"))
    source = ModelSource(
        path=path,
        files=WeightFiles.seen_at(path),
        num_parameters=weights.num_parameters,
        fingerprint=b"tiny",
        describe=lambda: weights,
        make_module=lambda *_: pytest.fail("our decoder knows it"),
    )
    made = make_model(source, Wish(**options), LoadReporter(on_progress))
    return replace(
        make_loaded(),
        model=made.model,
        weights_bytes=made.weights_bytes,
        placement=made.placement,
    )


@pytest.mark.slow
def test_all_parts_run_and_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_models, "load_parts", partial(load_parts, load=load_tiny))
    monkeypatch.setattr(gpu_split, "_SHARE", 0.9)  # of four layers, two must fit the buffers
    monkeypatch.setattr(DraftModel, "load", partial(DraftModel.load, load=load_tiny))
    out = tmp_path / "numbers.json"
    arguments = ["tiny.gguf", "--draft", "small.gguf", "--device", "cpu", "--quick"]
    monkeypatch.setattr(sys, "argv", ["gpu_check", *arguments, "--out", str(out)])
    gpu_check.main()
    results = json.loads(out.read_text(encoding="utf-8"))["results"]
    own = ["device", "kernels", "families", "products", "copies", "tiny, CPU float32"]
    assert list(results) == [
        *own,
        *(f"tiny, {name}" for name in VARIANTS),
        "tiny, half on the host",
        "tiny, speculation",
    ]
    assert [name for name, found in results.items() if "failed" in found] == []
    assert results["families"]["llama float32"] < 1e-4
    assert results["products"]["int4 error"] < 0.01
    assert results["products"]["int8 error"] < 0.01
    for name in VARIANTS:
        found = results[f"tiny, {name}"]
        if name in REFUSED:
            assert REFUSED[name] in found["not possible"]
            continue
        assert abs(found["perplexity against float32"]) < 0.01
        assert found["reply like float32, tokens"] == 4
        assert found["decode at 100 tok/s"] > 0
        assert found["decode at 100 of bandwidth"] > 0
        assert found["step tokens"] == 256
        assert found["prefill by usual steps tok/s"] > 0
    assert results["tiny, half on the host"]["the reply is that of the whole model"]
    guesses = results["tiny, speculation"]
    assert guesses["edit, ngram, share of replies alike"] == 1.0
    assert guesses["edit, ngram, plain tok/s"] > 0
    assert guesses["code, draft, share of replies alike"] == 1.0
    # The same model guesses: it is right, however often it is asked; that depends on the machine's pace.
    assert guesses["code, draft, drafted tokens"] > 0
    assert guesses["code, draft, accepted tokens"] == guesses["code, draft, drafted tokens"]
    assert guesses["verify 1 against one"] == 1.0
    assert guesses["verify 16 ms"] > 0
    text = capsys.readouterr().out
    assert "the reply with graphs is that without: True" in text


def test_part_that_fails_is_told_and_the_rest_goes_on() -> None:
    check = Check(minutes=1)
    assert check.part("sum", lambda: {"value": 1 / 0})["failed"].startswith("ZeroDivisionError")

    def too_large() -> dict[str, object]:
        raise NotEnoughMemoryError(2**40, 2**30)

    assert "not possible" in check.part("large", too_large)
    assert check.part("next", lambda: {"value": 3.0})["value"] == 3.0
    assert list(check.results) == ["sum", "large", "next"]


def test_part_that_would_not_end_in_time_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("tests.benchmarks.gpu_check.time.monotonic", lambda: now)

    def slow() -> dict[str, object]:
        nonlocal now
        now += 25.0
        return {"value": 3.0}

    check = Check(minutes=1)
    assert check.part("first", slow)["took s"] == 25.0
    assert check.part("second", slow)["value"] == 3.0
    assert check.part("third", slow)["left out"] == "no time is left"
    assert now == 50.0


def test_parts_are_left_out_when_the_time_is_up() -> None:
    check = Check(minutes=0)
    assert check.part("late", lambda: {"value": 3.0})["left out"] == "no time is left"
