"""What GGUF files of Gemma 4 may say, and what is refused; that the numbers are right is in the tests of twins."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma4TextConfig

from inference.config import KvSchemeName
from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.gguf import GgufFile
from inference.model.decoder import TorchDecoder
from inference.model.decoder_weights import DecoderWeights, read_weights
from inference.model.gguf_decoder import describe_gguf
from inference.model.gguf_models import plan_model
from inference.model.int4_product import CpuInt4
from inference.model.loader import load_model
from inference.model.native_model import NativeModel
from inference.model.spec import ExpertSpec, ModelSpec, UnsupportedSpecError, WeightKey
from inference.model.spec_configs import spec_from_folder, spec_from_gguf
from inference.model.spec_weights import folder_sources
from inference.model.weight_plan import plan_weights
from tests.inference.gguf_files import write_twin
from tests.inference.gguf_twins import make_twin_module
from tests.inference.loaded_models import logits_of, needs_kernels
from tests.inference.packed_models import TOKENS, decoder_of, plain_logits, weights_in
from tests.inference.tiny_decoders import (
    VARIANTS,
    TensorFile,
    decoder_from_gguf,
    make_decoder_runner,
)
from tests.inference.tiny_models import WINDOW, eager_logits, make_tokens, run_chunked

PROMPT = make_tokens(30)


def rope(
    full: dict[str, object] | None = None, sliding: dict[str, object] | None = None
) -> dict[str, object]:
    """Rotary parameters of both kinds of layers, some changed; None takes a value away."""
    values = make_twin_module("gemma4").config.to_dict()["rope_parameters"]
    changes = {"full_attention": full or {}, "sliding_attention": sliding or {}}
    return {
        kind: {key: value for key, value in {**values[kind], **some}.items() if value is not None}
        for kind, some in changes.items()
    }


def write(path: Path, **changes: object) -> Path:
    """A twin whose first two layers store keys and values, and whose last two share them."""
    return write_twin(make_twin_module("gemma4"), path, **changes)  # type: ignore[arg-type]


def describe(path: Path) -> ModelSpec:
    with GgufFile.read(path) as file:
        return describe_gguf(plan_model(file), file).spec


def test_layers_are_what_the_file_says(tmp_path: Path) -> None:
    spec = describe(write(tmp_path / "m.gguf"))
    assert [layer.window for layer in spec.layers] == [WINDOW, None] * 2
    assert [layer.kv_layer for layer in spec.layers] == [None, None, 0, 1]
    assert spec.kv_shapes == ((2, 16), (2, 32))
    assert [spec.mlp_size_of(layer) for layer in range(4)] == [96, 96, 192, 192]
    assert (spec.attention_scale, spec.logit_softcap, spec.ple_size) == (1.0, 30.0, 32)
    assert "key" not in spec.roles_of(2)
    assert "layer_scale" in spec.roles_of(2)


def test_keys_of_layers_that_share_are_passed_over(tmp_path: Path) -> None:
    unused = {
        f"blk.3.{name}.weight": np.full(shape, np.nan, np.float32)
        for name, shape in (("attn_k", (64, 64)), ("attn_v", (64, 64)), ("attn_k_norm", (32,)))
    }
    path = write(tmp_path / "m.gguf", extra_tensors=unused)
    runner = make_decoder_runner(decoder_from_gguf(path))
    logits = run_chunked(runner, PROMPT, list(range(8)), chunk_tokens=len(PROMPT))
    expected = eager_logits(make_twin_module("gemma4"), PROMPT)
    torch.testing.assert_close(logits[-1], expected[-1], atol=1e-4, rtol=0)
    with pytest.raises(UnsupportedModelError, match=r"blk\.1\.attn_k_more"):
        describe(
            write(
                tmp_path / "x.gguf",
                extra_tensors={"blk.1.attn_k_more.weight": np.ones(4, np.float32)},
            )
        )


def test_one_number_stands_for_all_layers(tmp_path: Path) -> None:
    changes = {"gemma4.attention.head_count_kv": 2}
    assert describe(write(tmp_path / "m.gguf", extra=changes)) == describe(
        write(tmp_path / "n.gguf")
    )


def test_layers_without_a_scale_have_none(tmp_path: Path) -> None:
    names = tuple(f"blk.{layer}.layer_output_scale.weight" for layer in range(4))
    spec = describe(write(tmp_path / "m.gguf", drop_tensors=names))
    assert "layer_scale" not in spec.layer_roles
    with pytest.raises(ModelFileError, match=r"blk\.2\.layer_output_scale"):
        describe(write(tmp_path / "n.gguf", drop_tensors=names[2:]))


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("attention.head_count_kv", [2, 2, 2, 1], "head_count_kv.* differs"),
        ("attention.head_count_kv", [2, 2, 2], "head_count_kv' must be 4 whole numbers"),
        ("attention.head_count_kv", [2, 2, 2, 0], "head_count_kv' must be 4 whole numbers"),
        ("attention.head_count_kv", [3, 3, 3, 3], "cannot share 3"),
        ("attention.shared_kv_layers", 4, "shared_kv_layers' must be a whole number"),
        ("feed_forward_length", [96, 96, 192], "feed_forward_length' must be 4 whole numbers"),
        ("feed_forward_length", [96, 128, 192, 192], "MLPs of other widths"),
        ("feed_forward_length", [96, 96, 96, 192], "MLPs of other widths"),
        ("attention.key_length_swa", 0, "key_length_swa' must be"),
        ("attention.value_length_swa", 8, "value_length_swa' is not the size"),
        ("rope.dimension_count_swa", 8, "dimension_count_swa' is not the size"),
        ("expert_count", 4, "expert_used_count' is missing"),
        ("embedding_length_per_layer_input", -1, "per_layer_input' must be"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, key: str, value: object, reason: str) -> None:
    if value == -1:
        value = 2**31
    path = write(tmp_path / "m.gguf", extra={f"gemma4.{key}": value})
    with pytest.raises((ModelFileError, UnsupportedModelError), match=reason):
        describe(path)


def test_three_layers_of_one_kind_share_nothing_that_is_not_there(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", extra={"gemma4.attention.shared_kv_layers": 3})
    with pytest.raises((ModelFileError, UnsupportedSpecError)):
        describe(path)


def test_a_file_without_factors_of_the_rotary_embedding_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", drop_tensors=("rope_freqs.weight",))
    with pytest.raises(ModelFileError, match=r"rope_freqs\.weight' is missing"):
        describe(path)


def test_kernels_or_our_decoder_run_it_and_no_bridge(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf")
    assert isinstance(load_model(path, backend="auto").model, NativeModel)
    assert isinstance(load_model(path, backend="torch").model, TorchDecoder)
    with pytest.raises(UnsupportedModelError, match="own decoder alone") as raised:
        load_model(path, backend="bridge")
    assert raised.value.hint == "Choose the backend auto."


def test_what_no_spec_describes_is_refused_and_not_bridged(tmp_path: Path) -> None:
    factors = {"rope_freqs.weight": np.ones(8, np.float32)}
    path = write(tmp_path / "m.gguf", extra_tensors=factors)
    with pytest.raises(UnsupportedModelError, match="rotary factors of another length"):
        load_model(path, backend="auto")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"enable_moe_block": True}, "enable_moe_block"),
        ({"num_kv_shared_layers": 4}, "4 of 4 layers without keys"),
        ({"num_kv_shared_layers": 3}, "share keys of no layer"),
        ({"vocab_size_per_layer_input": 99}, "another vocabulary"),
        ({"per_layer_config": {"full_attention": {"head_dim": 32}}}, "other names than numbers"),
        ({"per_layer_config": {"1": {"head_dim": 24}}}, "one kind with other heads"),
        ({"per_layer_config": {"1": {"head_dim": 31}, "3": {"head_dim": 31}}}, "heads of 31"),
        ({"global_head_dim": 31, "per_layer_config": None}, "heads of 31"),
        ({"per_layer_config": {"9" * 5000: {"head_dim": 32}}}, "other names than numbers"),
        ({"per_layer_config": {"4": {"head_dim": 32}}}, "layers that there are not"),
        ({"hidden_size_per_layer_input": 2**29}, "per-layer embeddings of"),
        ({"rope_parameters": rope(sliding={"partial_rotary_factor": 0.5})}, "part of each head"),
        ({"rope_parameters": rope(full={"rope_type": "default"})}, "part of each head"),
    ],
)
def test_folders_with_other_layers_are_refused(changes: dict[str, object], reason: str) -> None:
    values = make_twin_module("gemma4").config.to_dict()
    assert spec_from_folder(values).num_layers == 4
    with pytest.raises(UnsupportedSpecError, match=reason):
        spec_from_folder({**values, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_parameters": rope(full={"partial_rotary_factor": None})},
        {"rope_parameters": rope(full={"partial_rotary_factor": 0.5, "factor": 4.0})},
        {"rope_parameters": rope(full={"rope_type": "default", "partial_rotary_factor": None})},
        {"rope_parameters": rope(full={"rope_theta": 500.0}, sliding={"rope_theta": 90.0})},
        {"layer_types": ["sliding_attention", "full_attention"] * 2 + ["sliding_attention"] * 2},
        {"layer_types": None},
        {"head_dim": 40},
    ],
    ids=[
        "all is turned",
        "factor",
        "plain",
        "bases",
        "last is sliding",
        "no kinds",
        "larger sliding",
    ],
)
def test_folders_give_the_logits_of_transformers(changes: dict[str, object]) -> None:
    values = {**VARIANTS["gemma4"]().to_dict(), **changes}
    del values["per_layer_config"]
    config = Gemma4TextConfig(**{**values, "global_head_dim": 24, "num_kv_shared_layers": 0})
    torch.manual_seed(5)
    module = AutoModelForCausalLM.from_config(config).eval()
    older = {**values, "global_head_dim": 24, "num_kv_shared_layers": 0}
    spec = spec_from_folder({**older, "has_layer_scales": False})
    assert spec == spec_from_folder(json.loads(config.to_json_string()))
    weights = DecoderWeights(TensorFile(module.state_dict()), spec, folder_sources(spec))
    decoder = TorchDecoder(spec, read_weights(weights, dtype=torch.float32))
    logits = run_chunked(make_decoder_runner(decoder), PROMPT, list(range(8)), chunk_tokens=30)
    torch.testing.assert_close(logits[-1], eager_logits(module, PROMPT)[-1], atol=1e-4, rtol=0)


def test_folders_of_before_the_list_are_read_too() -> None:
    values = make_twin_module("gemma4").config.to_dict()
    older = {**values, "per_layer_config": None, "global_head_dim": 32}
    assert spec_from_folder(older) == spec_from_folder(values)


@pytest.mark.parametrize("on_host", [frozenset[int](), frozenset({1, 2, 3})])
def test_packed_weights_of_a_device_give_logits_of_the_file(
    tmp_path: Path, on_host: frozenset[int]
) -> None:
    path = write(tmp_path / "m.gguf", quantization="Q8_0")
    with GgufFile.read(path) as file:
        weights = weights_in(file)
        plan = plan_weights(weights, torch.float32, CpuInt4())
        assert {key.role for key, matrix in plan.matrices.items() if matrix.num_bits} >= {
            *("query", "key", "down", "ple_gate", "ple_output", "ple_projection")
        }
        assert plan.shared_bytes > sum(
            weights.sources[WeightKey(role)].num_elements * 4
            for role in ("embedding", "ple_embedding")
        )
        expected = plain_logits(weights, torch.float32)
        actual = logits_of(decoder_of(plan, on_host), TOKENS, chunk_tokens=7)
    torch.testing.assert_close(actual, expected, atol=5e-3, rtol=1e-4)


def split_experts(path: Path) -> Path:
    """A twin whose gates and ups are tensors of their own, as some converters write them."""
    module = make_twin_module("gemma4-experts")
    parts: dict[str, np.ndarray] = {}
    for layer in range(4):
        fused = module.get_parameter(f"model.layers.{layer}.experts.gate_up_proj").detach().numpy()
        gate, up = np.split(fused, 2, axis=1)
        parts[f"blk.{layer}.ffn_gate_exps.weight"] = np.ascontiguousarray(gate)
        parts[f"blk.{layer}.ffn_up_exps.weight"] = np.ascontiguousarray(up)
    fused_names = tuple(f"blk.{layer}.ffn_gate_up_exps.weight" for layer in range(4))
    return write_twin(module, path, extra_tensors=parts, drop_tensors=fused_names)


def test_gates_and_ups_of_experts_may_be_apart(tmp_path: Path) -> None:
    runner = make_decoder_runner(decoder_from_gguf(split_experts(tmp_path / "m.gguf")))
    logits = run_chunked(runner, PROMPT, list(range(8)), chunk_tokens=len(PROMPT))
    expected = eager_logits(make_twin_module("gemma4-experts"), PROMPT)
    torch.testing.assert_close(logits[-1], expected[-1], atol=1e-4, rtol=0)


def test_experts_are_what_the_file_says(tmp_path: Path) -> None:
    module = make_twin_module("gemma4-experts")
    spec = describe(write_twin(module, tmp_path / "m.gguf"))
    assert spec.experts == ExpertSpec(6, 2, weights_sum_to_one=True, shared_size=96)
    assert (spec.mlp_size, spec.kv_shapes) == (32, ((2, 16), (2, 16), (2, 16), (1, 32)))
    names = tuple(f"blk.{layer}.ffn_down_exps.scale" for layer in range(4))
    unscaled = describe(write_twin(module, tmp_path / "n.gguf", drop_tensors=names))
    assert set(spec.layer_roles) - set(unscaled.layer_roles) == {"expert_scale"}
    with GgufFile.read(tmp_path / "m.gguf") as file:
        config = plan_model(file).config
    with pytest.raises(UnsupportedSpecError, match="wider layers beside experts"):
        spec_from_gguf("gemma4_moe", {**config, "use_double_wide_mlp": True})


def test_a_base_of_sliding_layers_counts(tmp_path: Path) -> None:
    spec = describe(write(tmp_path / "m.gguf", extra={"gemma4.rope.freq_base_swa": 500.0}))
    full, sliding = spec.ropes
    assert sliding.inverse_frequencies[1] == pytest.approx(500.0 ** (-2 / 16))
    assert full.inverse_frequencies[1] == pytest.approx(1e6 ** (-2 / 32))
    assert [layer.rope_index for layer in spec.layers] == [1, 0, 1, 0]


def test_queries_of_layers_that_share_are_wanted(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"blk\.3\.attn_q\.weight"):
        describe(write(tmp_path / "m.gguf", drop_tensors=("blk.3.attn_q.weight",)))
    twice = {"blk.4.attn_q.weight": np.ones((4, 4), np.float32)}
    with pytest.raises(UnsupportedModelError, match=r"blk\.4\.attn_q\.weight"):
        describe(write(tmp_path / "n.gguf", extra_tensors=twice))


@needs_kernels
@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_rounded_keys_of_heads_of_two_sizes(tmp_path: Path, scheme: KvSchemeName) -> None:
    path = write(tmp_path / "m.gguf")
    exact = eager_logits(make_twin_module("gemma4"), TOKENS)
    found = [
        logits_of(load_model(path, backend=backend).model, TOKENS, chunk_tokens=7, kv_scheme=scheme)
        for backend in ("fast", "torch")
    ]
    errors = [float((logits - exact).norm() / exact.norm()) for logits in found]
    assert errors[0] < 1.5 * errors[1] < 0.3
