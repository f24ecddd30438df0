"""Where weights come from: every tensor of a folder or file has its place, in the right order."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inference.formats.gguf import GgufFile
from inference.model.decoder_weights import DecoderWeights, read_weight, read_weights
from inference.model.gguf_families import FAMILIES as GGUF_FAMILIES
from inference.model.gguf_families import GEMMA4_EXPERTS, MIXTRAL, OLMO3
from inference.model.gguf_models import plan_model
from inference.model.spec import SHARED_MATRICES, ModelSpec, Role, WeightKey
from inference.model.spec_configs import spec_from_gguf
from inference.model.spec_families import FAMILIES
from inference.model.spec_weights import WeightSource, folder_sources, gguf_sources
from tests.inference.gguf_files import write_twin
from tests.inference.gguf_twins import (
    BRIDGED_TWINS,
    load_module,
    make_twin,
    remake,
    wide_config,
)
from tests.inference.tiny_decoders import VARIANTS, TensorFile, make_variant, spec_of, weights_of

EXPERT_ROLES = ("router", "gate", "up", "down", "shared_router", *SHARED_MATRICES)

_SHARED_ROLES: dict[str, Role] = {
    "gate_proj": "shared_gate",
    "up_proj": "shared_up",
    "down_proj": "shared_down",
}


def test_every_family_of_the_decoder_can_be_read_from_gguf() -> None:
    without_a_word = [MIXTRAL, OLMO3, GEMMA4_EXPERTS]
    known = {family.spec_family for family in [*GGUF_FAMILIES.values(), *without_a_word]}
    assert known - {None} == set(FAMILIES) - {"mistral"}  # whose files say "llama"


@pytest.mark.parametrize("variant", VARIANTS)
def test_folder_sources_use_every_parameter_once(variant: str) -> None:
    module = make_variant(variant)
    sources = folder_sources(spec_of(module))
    shapes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    if module.config.tie_word_embeddings:
        del shapes["lm_head.weight"]
        assert sources.pop(WeightKey("head")) == sources[WeightKey("embedding")]
    used = {name: [0] * shape[0] for name, shape in shapes.items()}
    for source in sources.values():
        assert source.tensor_shape == shapes[source.tensor_name]
        for row in source.rows:
            used[source.tensor_name][row] += 1
    assert all(count == 1 for counts in used.values() for count in counts)


def test_fused_matrices_are_cut_where_the_parts_meet() -> None:
    sources = folder_sources(spec_of(make_variant("phi3")))
    fused: list[Role] = ["query", "key", "value", "gate", "up"]
    cuts = {role: sources[WeightKey(role, 1)] for role in fused}
    assert {role: (cut.first_row, cut.num_rows) for role, cut in cuts.items()} == {
        "query": (0, 48), "key": (48, 16), "value": (64, 16), "gate": (0, 80), "up": (80, 80),
    }  # fmt: skip
    assert {cuts[role].tensor_name for role in fused[:3]} == {
        "model.layers.1.self_attn.qkv_proj.weight"
    }
    assert {cuts[role].tensor_name for role in fused[3:]} == {
        "model.layers.1.mlp.gate_up_proj.weight"
    }


def test_rows_in_pairs_are_read_in_halves() -> None:
    source = WeightSource("t", (12, 4), 0, 12, paired_heads=2)
    assert list(source.rows) == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    tensor = torch.arange(48.0).view(12, 4)
    assert torch.equal(read(tensor, source), tensor[list(source.rows)])
    bias = WeightSource("t", (12,), 0, 12, paired_heads=2)
    assert torch.equal(read(tensor[:, 0], bias), tensor[list(source.rows), 0])


def test_part_of_a_tensor_is_read_and_its_pages_given_back() -> None:
    tensor = torch.arange(48.0).view(12, 4)
    assert torch.equal(read(tensor, WeightSource("t", (12, 4), 5, 3)), tensor[5:8])
    lacking = WeightSource("t", (12, 4), 0, 12, lacks_one=True)
    assert torch.equal(read(tensor, lacking), tensor + 1)
    assert tensor[0, 0] == 0


def read(tensor: Tensor, source: WeightSource) -> Tensor:
    key, file = WeightKey("query", 0), TensorFile({"t": tensor})
    weights = DecoderWeights(file, spec_of(make_variant("llama")), {key: source})
    weight = read_weight(weights, key, torch.float32)
    assert file.released == ["t"]
    return weight


def sources_of(
    path: Path,
) -> tuple[ModelSpec, dict[WeightKey, WeightSource], dict[str, tuple[int, ...]]]:
    with GgufFile.read(path) as file:
        plan = plan_model(file)
        shapes = {
            name: tensor.shape
            for name, tensor in file.tensors.items()
            if not plan.is_known_tensor(name)
        }
    spec = spec_from_gguf(str(plan.family.spec_family), plan.config)
    return spec, gguf_sources(spec, plan), shapes


def without_experts(spec: ModelSpec) -> ModelSpec:
    """What is left of a model without the MLP of its layers, if that is a mixture."""
    roles = tuple(role for role in spec.layer_roles if role not in EXPERT_ROLES)
    return spec if spec.experts is None else replace(spec, experts=None, layer_roles=roles)


def experts_of(state: Mapping[str, Tensor], spec: ModelSpec) -> dict[WeightKey, Tensor]:
    """The mixtures of transformers' model, as ours has them."""
    if spec.experts is None:
        return {}
    found: dict[WeightKey, Tensor] = {}
    for name, tensor in state.items():
        parts: dict[Role, Tensor] = {}
        if name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            parts = {"gate": gate.flatten(0, 1), "up": up.flatten(0, 1)}
        elif name.endswith("experts.down_proj"):
            parts = {"down": tensor.flatten(0, 1)}
        elif name.endswith(("mlp.gate.weight", "router.weight")):
            parts = {"router": tensor}
        elif name.endswith("shared_expert_gate.weight"):
            parts = {"shared_router": tensor.squeeze(0)}
        elif ".shared_expert." in name:
            role: Role = _SHARED_ROLES[name.split(".")[-2]]
            parts = {role: tensor}
        layer = int(name.split(".")[2]) if parts else None
        found |= {WeightKey(role, layer): part for role, part in parts.items()}
    return found


@pytest.mark.parametrize("family", BRIDGED_TWINS)
def test_gguf_sources_are_what_the_bridge_reads(tmp_path: Path, family: str) -> None:
    path = tmp_path / "twin.gguf"
    make_twin(family, path)
    spec, sources, shapes = sources_of(path)
    for source in sources.values():
        assert source.tensor_shape == shapes[source.tensor_name]
    assert {source.tensor_name for source in sources.values()} == set(shapes)

    with GgufFile.read(path) as file:
        raw = {
            name: file.tensor_data(name).view(torch.float32).view(shape).clone()
            for name, shape in shapes.items()
        }
    state, dense = load_module(path).state_dict(), without_experts(spec)
    bridge = DecoderWeights(TensorFile(state), dense, folder_sources(dense))
    theirs = read_weights(bridge, dtype=torch.float32) | experts_of(state, spec)
    ours = read_weights(DecoderWeights(TensorFile(raw), spec, sources), dtype=torch.float32)
    assert ours.keys() == theirs.keys()
    for key, weight in ours.items():
        # The bridge takes one from norms and its code adds it again; that rounds.
        atol = 1e-6 if key.role.endswith("norm") else 0
        torch.testing.assert_close(weight, theirs[key], atol=atol, rtol=0)


def test_gguf_sources_with_biases_and_tied_head(tmp_path: Path) -> None:
    module = remake(wide_config(attention_bias=True, mlp_bias=True, tie_word_embeddings=True))
    _, sources, shapes = sources_of(write_twin(module, tmp_path / "twin.gguf"))
    assert {source.tensor_name for source in sources.values()} == set(shapes)
    assert sources[WeightKey("head")] == sources[WeightKey("embedding")]
    assert sources[WeightKey("query_bias", 1)].paired_heads == 4
    assert sources[WeightKey("key_bias", 1)].paired_heads == 2
    assert sources[WeightKey("value_bias", 1)].paired_heads == 0


def test_norms_are_read_in_float32_and_a_tied_head_once() -> None:
    weights = weights_of(make_variant("qwen2", dtype=torch.bfloat16))
    tensors = read_weights(weights, dtype=torch.float16)
    types = {key.role.endswith("norm"): set[torch.dtype]() for key in tensors}
    for key, tensor in tensors.items():
        types[key.role.endswith("norm")].add(tensor.dtype)
    assert types == {True: {torch.float32}, False: {torch.float16}}
    assert tensors[WeightKey("head")] is tensors[WeightKey("embedding")]
    module = make_variant("qwen2")
    assert weights.num_parameters == sum(tensor.numel() for tensor in module.parameters())
