"""Where each weight of a `ModelSpec` comes from, in a folder of safetensors and in a GGUF file.

A weight is some rows of one tensor: all of them, or a run where matrices are fused, or a run of heads
whose rows must be put in another order first.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from inference.model.gguf_models import FUSED_EXPERTS, GATES_OF_EXPERTS, UPS_OF_EXPERTS, GgufPlan
from inference.model.spec import EXPERT_MATRICES, ModelSpec, Role, WeightKey
from inference.model.spec_families import FAMILIES
from inference.model.spec_family import Fused

_MODEL_NAMES: dict[Role, str] = {
    "embedding": "model.embed_tokens",
    "ple_embedding": "model.embed_tokens_per_layer",
    "ple_projection": "model.per_layer_model_projection",
    "ple_norm": "model.per_layer_projection_norm",
    "final_norm": "model.norm",
    "head": "lm_head",
}
_LAYER_NAMES: dict[Role, str] = {
    "attention_norm": "input_layernorm",
    "query": "self_attn.q_proj",
    "key": "self_attn.k_proj",
    "value": "self_attn.v_proj",
    "output": "self_attn.o_proj",
    "query_norm": "self_attn.q_norm",
    "key_norm": "self_attn.k_norm",
    "sinks": "self_attn.sinks",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
    "ple_gate": "per_layer_input_gate",
    "ple_output": "per_layer_projection",
    "post_ple_norm": "post_per_layer_input_norm",
}
_LAYER_SCALE = "layer_scalar"  # no module
_FUSED_MLP: dict[Role, tuple[str, tuple[Role, ...]]] = {
    "gate": ("mlp.gate_up_proj", ("gate", "up")),
    "up": ("mlp.gate_up_proj", ("gate", "up")),
}
_FUSED_ATTENTION: dict[Role, tuple[str, tuple[Role, ...]]] = {
    "query": ("self_attn.qkv_proj", ("query", "key", "value")),
    "key": ("self_attn.qkv_proj", ("query", "key", "value")),
    "value": ("self_attn.qkv_proj", ("query", "key", "value")),
}
_FUSED_NAMES: dict[Fused, dict[Role, tuple[str, tuple[Role, ...]]]] = {
    "nothing": {},
    "mlp": _FUSED_MLP,
    "attention_and_mlp": {**_FUSED_MLP, **_FUSED_ATTENTION},
}
_EXPERT_NAMES: dict[Role, str] = {
    "router": "ffn_gate_inp",
    "router_bias": "ffn_gate_inp",
    "gate": GATES_OF_EXPERTS,
    "up": UPS_OF_EXPERTS,
    "down": "ffn_down_exps",
    "gate_bias": GATES_OF_EXPERTS,
    "up_bias": UPS_OF_EXPERTS,
    "down_bias": "ffn_down_exps",
    "shared_router": "ffn_gate_inp_shexp",
    "shared_gate": "ffn_gate_shexp",
    "shared_up": "ffn_up_shexp",
    "shared_down": "ffn_down_shexp",
}  # in GGUF files of all families; those of a layer are one tensor (E, rows, columns)
_BESIDE_EXPERTS: dict[Role, str] = {
    "shared_gate": "ffn_gate",
    "shared_up": "ffn_up",
    "shared_down": "ffn_down",
    "post_shared_norm": "post_ffw_norm_1",
    "router_norm": "ffn_gate_inp",
    "expert_norm": "pre_ffw_norm_2",
    "expert_scale": "ffn_down_exps",
    "post_expert_norm": "post_ffw_norm_2",
}  # where an MLP is beside them
_SCALES: tuple[Role, ...] = ("router_norm", "expert_scale")  # as the file calls them


@dataclass(frozen=True, slots=True)
class WeightSource:
    """Where one weight comes from.

    Attributes:
        tensor_name: In the file or folder.
        tensor_shape: The whole tensor's.
        first_row: The weight's rows are [first_row, first_row + num_rows) of it.
        num_rows: How many.
        paired_heads: So many heads lie with their rows in pairs (2i, 2i + 1), as some models and
            llama.cpp turn them, and must be put in halves; 0: the rows are in order.
        paired_rows: So many of each such head do, its first ones; 0: all.
        lacks_one: Whether 1 must be added to each number.
        run_rows: Of each expert's rows it has so many that follow each other, from first_row on; 0: it is one run.
        is_vector: Whether it is one although the tensor has rows: biases of all experts of a layer, (E, rows).
    """

    tensor_name: str
    tensor_shape: tuple[int, ...]
    first_row: int
    num_rows: int
    paired_heads: int = 0
    paired_rows: int = 0
    lacks_one: bool = False
    run_rows: int = 0
    is_vector: bool = False

    @property
    def num_elements(self) -> int:
        """Count of the weight's numbers."""
        return self.num_rows * self.num_columns

    @property
    def num_columns(self) -> int:
        """Numbers of a row; of a vector each is one."""
        return self.tensor_shape[-1] if self.is_matrix else 1

    @property
    def is_matrix(self) -> bool:
        """Whether it is one, or those of all experts of a layer: (E, rows, columns)."""
        return len(self.tensor_shape) > 1 and not self.is_vector

    @property
    def num_stored_rows(self) -> int:
        """Rows of the whole tensor."""
        return math.prod(self.tensor_shape) // self.num_columns

    @property
    def rows(self) -> Sequence[int]:
        """Which row of the tensor each row of the weight is."""
        end = self.first_row + self.num_rows
        if self.run_rows:
            firsts = range(self.first_row, self.num_stored_rows, self.tensor_shape[-2])
            return [first + row for first in firsts for row in range(self.run_rows)]
        if not self.paired_heads:
            return range(self.first_row, end)
        head_rows = self.num_rows // self.paired_heads
        paired = self.paired_rows or head_rows
        order = [*range(0, paired, 2), *range(1, paired, 2), *range(paired, head_rows)]
        return [head + row for head in range(self.first_row, end, head_rows) for row in order]


def tensor_shapes(sources: Mapping[WeightKey, WeightSource]) -> dict[str, tuple[int, ...]]:
    """The tensors that a model needs, by name."""
    return {source.tensor_name: source.tensor_shape for source in sources.values()}


def folder_sources(spec: ModelSpec) -> dict[WeightKey, WeightSource]:
    """Where each weight is in a folder of safetensors, by transformers' names.

    A tied head is the embedding's tensor. Models with experts have none here.
    """
    return {key: _folder_source(spec, key) for key in spec.weight_keys}


def gguf_sources(spec: ModelSpec, plan: GgufPlan) -> dict[WeightKey, WeightSource]:
    """Where each weight is in a GGUF file.

    A tied head is the embedding's tensor.

    Args:
        spec: The model.
        plan: Its file's; it knows the names and what the converter changed.
    """
    return {key: _gguf_source(spec, plan, key) for key in spec.weight_keys}


def _folder_source(spec: ModelSpec, key: WeightKey) -> WeightSource:
    family = FAMILIES[spec.family]
    role: Role = "embedding" if key.role == "head" and spec.is_head_tied else key.role
    shape = spec.shape(role, key.layer)
    if role == "layer_scale":
        name = f"model.layers.{key.layer}.{_LAYER_SCALE}"
    elif key.layer is None:
        name = f"{_MODEL_NAMES[role]}.weight"
    else:
        stem, parts = _layer_name(spec, role)
        kind = "bias" if role.endswith("_bias") else "weight"
        name = f"model.layers.{key.layer}.{stem}.{kind}"
        if parts:
            return _fused_source(spec, role, name, parts)
    paired_heads = _paired_heads(spec, role) if family.rotates_pairs else 0
    return WeightSource(
        name,
        shape,
        0,
        shape[0],
        paired_heads=paired_heads,
        paired_rows=spec.rotary_dim if paired_heads else 0,
        lacks_one=family.adds_one_to_norms and role.endswith("norm"),
    )


def _paired_heads(spec: ModelSpec, role: Role) -> int:
    """How many heads are turned that a weight belongs to."""
    heads = {"query": spec.num_heads, "key": spec.num_kv_heads}
    return heads.get(role.removesuffix("_bias"), 0)


def _layer_name(spec: ModelSpec, role: Role) -> tuple[str, tuple[Role, ...]]:
    """Give transformers' name without the kind, and what is fused under it."""
    family = FAMILIES[spec.family]
    fused = _FUSED_NAMES[family.fused]
    if role in fused:
        return fused[role]
    if role in family.norm_names:
        return family.norm_names[role], ()
    for known, name in _LAYER_NAMES.items():
        if role in (known, f"{known}_bias"):
            return name, ()
    raise KeyError(role)


def _fused_source(spec: ModelSpec, role: Role, name: str, parts: tuple[Role, ...]) -> WeightSource:
    sizes = {part: spec.shape(part)[0] for part in parts}
    before = parts[: parts.index(role)]
    shape = (sum(sizes.values()), *spec.shape(role)[1:])
    return WeightSource(name, shape, sum(sizes[part] for part in before), sizes[role])


def _gguf_source(spec: ModelSpec, plan: GgufPlan, key: WeightKey) -> WeightSource:
    if spec.experts is not None:
        source = _expert_source(spec, spec.experts.count, key, is_fused=plan.has_fused_experts)
        if source is not None:
            return source
    ours = _folder_source(spec, key)
    theirs = plan.source(ours.tensor_name)
    if theirs.change in ("interleaved_q", "interleaved_k"):
        return replace(
            ours, tensor_name=theirs.tensor_name, paired_heads=_paired_heads(spec, key.role)
        )
    lacks_one = ours.lacks_one and theirs.change != "one_added"
    return replace(ours, tensor_name=theirs.tensor_name, lacks_one=lacks_one)


def _expert_source(
    spec: ModelSpec, num_experts: int, key: WeightKey, *, is_fused: bool
) -> WeightSource | None:
    """A weight of a layer's experts, or of what is beside them; None for all other weights."""
    role, shape = key.role, spec.shape(key.role, key.layer)
    names = dict(_EXPERT_NAMES)
    if FAMILIES[spec.family].has_mlp_beside_experts:
        names |= _BESIDE_EXPERTS
    if role not in names:
        return None
    if is_fused and role in ("gate", "up"):
        size = shape[0] // num_experts
        whole = (num_experts, 2 * size, shape[1])
        name, first_row = f"blk.{key.layer}.{FUSED_EXPERTS}.weight", 0 if role == "gate" else size
        return WeightSource(name, whole, first_row, shape[0], run_rows=size)
    num_rows, is_bias = shape[0], key.role.endswith("_bias")
    if role in EXPERT_MATRICES or (is_bias and role != "router_bias"):
        shape = (num_experts, num_rows // num_experts, *shape[1:])
    kind = "bias" if is_bias else "scale" if role in _SCALES else "weight"
    name = f"blk.{key.layer}.{names[role]}.{kind}"
    return WeightSource(name, shape, 0, num_rows, is_vector=is_bias)
