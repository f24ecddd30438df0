"""Perplexity over blocks against the model's own forward; the verdict on int4 and its small file."""

import json
import math
from pathlib import Path

import pytest
import torch

from inference.attention.blocks import BlocksAttention
from inference.kv_cache.schemes import LayerGeometry, find_scheme
from inference.model.bridge import TransformersBridge
from inference.model.kv_quality import (
    KvVerdict,
    assess_int4,
    load_verdict,
    perplexity,
    sample_text,
    save_verdict,
    scheme_loss,
    verdict_of,
)
from inference.model.linear import use_fast_linear
from inference.model.loader import load_model
from tests.inference.tiny_models import eager_logits, make_module, make_runner, make_tokens

ROOT = Path(__file__).parents[2]
TEXT = make_tokens(150, seed=6)


def test_perplexity_is_that_of_the_models_own_forward() -> None:
    module = make_module("gemma3")
    told: list[float] = []
    found = perplexity(make_runner(module, block_size=8), TEXT, told.append)
    losses = torch.nn.functional.cross_entropy(
        eager_logits(module, TEXT)[:-1], torch.tensor(TEXT[1:])
    )
    assert found == pytest.approx(math.exp(losses), rel=1e-4)
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_perplexity_of_two_tokens_and_of_a_model_out_of_range() -> None:
    module = make_module("llama")
    runner = make_runner(module, block_size=8)
    row = eager_logits(module, TEXT[:2])[0].log_softmax(dim=0)
    assert perplexity(runner, TEXT[:2]) == pytest.approx(math.exp(-row[TEXT[1]]), rel=1e-4)
    with torch.no_grad():
        module.lm_head.weight.mul_(1e6)
    assert perplexity(runner, TEXT) == math.inf


def test_scheme_loss_is_the_growth_against_the_default() -> None:
    module = make_module("llama")
    base, coarse = (
        perplexity(make_runner(module, block_size=8, kv_scheme=name), TEXT)
        for name in ("fp16", "int4")
    )
    bridge = TransformersBridge(module, Path("tiny"))
    told: list[float] = []
    loss = scheme_loss(
        bridge, BlocksAttention(), TEXT, find_scheme("int4", bridge.dtype), 8, told.append
    )
    assert loss == pytest.approx(coarse / base - 1, abs=1e-5)
    assert loss != 0.0
    assert told == sorted(told)
    assert told[-1] == 1.0
    fine = scheme_loss(bridge, BlocksAttention(), TEXT, find_scheme("fp16", bridge.dtype), 8)
    assert fine == 0.0


@pytest.mark.slow
def test_int8_costs_the_starter_model_less_than_a_thousandth_on_four_thousand_tokens(
    starter_model_path: Path,
) -> None:
    loaded = load_model(starter_model_path, device="cpu", dtype="float32", on_progress=None)
    use_fast_linear(loaded.module)
    texts = (ROOT / name for name in ("LICENSE", "resources/licences/Inter-OFL.txt"))
    text = sample_text() + "".join(path.read_text(encoding="utf-8") for path in texts)
    token_ids = loaded.tokenizer.encode_text(text)[:4096]
    assert len(token_ids) == 4096
    bridge = TransformersBridge(loaded.module, starter_model_path)
    loss = scheme_loss(bridge, BlocksAttention(), token_ids, find_scheme("int8", bridge.dtype), 16)
    assert loss < 0.001
    assert loss != 0.0


def test_assess_int4_gives_the_verdict_on_its_loss() -> None:
    bridge = TransformersBridge(make_module("llama"), Path("tiny"))
    verdict = assess_int4(bridge, BlocksAttention(), TEXT, 8)
    loss = scheme_loss(bridge, BlocksAttention(), TEXT, find_scheme("int4", bridge.dtype), 8)
    assert verdict == verdict_of(loss)


def test_assess_int4_refuses_heads_of_an_odd_size_unmeasured() -> None:
    bridge = TransformersBridge(make_module("llama"), Path("tiny"))
    bridge.geometry = (LayerGeometry(2, 9), *bridge.geometry[1:])
    verdict = assess_int4(bridge, BlocksAttention(), TEXT, 8)
    assert not verdict.is_offered
    assert "odd size" in verdict.reason


@pytest.mark.parametrize(
    ("loss", "shown"),
    [(0.0201, "2.1%"), (0.031, "3.1%"), (0.02000001, "2.1%"), (1.0, "100.0%")],
)
def test_verdict_on_too_great_a_loss_says_both_numbers(loss: float, shown: str) -> None:
    verdict = verdict_of(loss)
    assert not verdict.is_offered
    assert verdict.reason == (
        f"int4 would make this model's predictions {shown} worse; the limit is 2%."
    )


def test_verdict_on_a_small_loss_or_gain_is_an_offer() -> None:
    assert verdict_of(0.02) == KvVerdict(0.02, True, "")
    assert verdict_of(-0.02) == KvVerdict(-0.02, True, "")


def test_verdict_on_a_great_gain_is_none_as_it_is_no_small_change() -> None:
    verdict = verdict_of(-0.0772)
    assert not verdict.is_offered
    assert verdict.reason == (
        "int4 would change this model's predictions by 7.8%; the limit is 2%."
    )


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_verdict_on_no_number_is_no_offer(loss: float) -> None:
    verdict = verdict_of(loss)
    assert not verdict.is_offered
    assert verdict.reason == "int4 would spoil this model's predictions; the limit is 2%."


@pytest.mark.parametrize("loss", [0.005, 0.05, math.inf])
def test_verdict_is_remembered_for_its_model_alone(tmp_path: Path, loss: float) -> None:
    folder = tmp_path / "new" / "cache"
    save_verdict(folder, "aa", verdict_of(0.4))
    save_verdict(folder, "aa", verdict_of(loss))
    assert load_verdict(folder, "aa") == verdict_of(loss)
    assert load_verdict(folder, "bb") is None
    assert [path.name for path in folder.iterdir()] == ["kv-quality-aa.json"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"\xff\xfe",
        b"[" * 100_000,
        json.dumps({"version": 1, "fingerprint": "aa", "loss": 0.0}).encode(),
        json.dumps({"version": 2, "fingerprint": "bb", "loss": 0.0}).encode(),
        json.dumps({"version": 2, "fingerprint": "aa", "loss": "0"}).encode(),
        json.dumps({"version": 2, "fingerprint": "aa", "loss": True}).encode(),
        json.dumps({"version": 2, "fingerprint": "aa"}).encode(),
    ],
)
def test_damaged_verdict_is_not_known(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "kv-quality-aa.json").write_bytes(content)
    assert load_verdict(tmp_path, "aa") is None


def test_verdict_that_cannot_be_remembered_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    save_verdict(tmp_path / "file", "aa", verdict_of(0.0))
    (tmp_path / "kv-quality-aa.json").mkdir()
    save_verdict(tmp_path, "aa", verdict_of(0.0))
    assert caplog.text.count("could not be remembered") == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "kv-quality-aa.json"]


def test_sample_text_is_some_pages() -> None:
    text = sample_text()
    assert 5_000 < len(text) < 10_000
    assert text.endswith("\n")
    assert text.isprintable() or set(text) - {"\n"} <= {char for char in text if char.isprintable()}
