"""Writes small GGUF files: twins of transformers models, with llama.cpp's own package, and raw bytes.

Names and changes of tensors come from the `gguf` package and from the rules of llama.cpp's
converter, not from our own tables, so that a twin is an independent check of those.
"""

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from tokenizers import pre_tokenizers
from transformers import PreTrainedModel

from inference.errors import ModelFileError
from inference.formats.gguf import GgufFile
from tests.inference.weight_blocks import make_rows

CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
_ARCHITECTURES = {
    "gemma4_text": "gemma4",
    "mistral": "llama",
    "mixtral": "llama",
    "gemma3_text": "gemma3",
    "olmo3": "olmo2",
    "hunyuan_v1_dense": "hunyuan-dense",
    "cohere": "command-r",
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "gpt_oss": "gpt-oss",
    "ministral3": "mistral3",
}
_INTERLEAVED = (
    "llama",
    "granite",
    "smollm3",
    "internlm2",
    "arcee",
    "olmo",
    "granitemoe",
    "mistral3",
)
_ONE_ADDED = ("gemma", "gemma2", "gemma3", "nemotron")
_WITH_PATTERN = ("olmo3", "exaone4", "gemma4_text")  # their files name the sliding layers
_ALIASES = {"block_sparse_moe.router.": "block_sparse_moe.router.layer."}


def write_twin(
    module: PreTrainedModel,
    path: Path,
    *,
    architecture: str | None = None,
    quantization: str = "F32",
    extra: Mapping[str, object] | None = None,
    extra_tensors: Mapping[str, npt.NDArray[np.float32]] | None = None,
    drop_tensors: tuple[str, ...] = (),
    drop_keys: tuple[str, ...] = (),
) -> Path:
    """Write a model as a GGUF file.

    Args:
        module: A tiny transformers model.
        path: Where to write.
        architecture: Its word, where it is not what the model's kind has.
        quantization: Type of the matrices whose rows are whole blocks; all else is F32. For types that the
            package cannot make, they become other weights, of the same size.
        extra: More metadata; numbers, text or lists.
        extra_tensors: More tensors, or replacements, by GGUF name.
        drop_tensors: GGUF names to leave out.
        drop_keys: Metadata keys to leave out.
    """
    config = module.config
    if config.model_type == "gemma4_text":  # whose numbers for all layers are refused else
        config.allow_global_per_layer_attribute_access = True
    architecture = architecture or _ARCHITECTURES.get(config.model_type, config.model_type)
    writer = GGUFWriter(path, architecture)
    values = {**_config_metadata(config, architecture), **_vocabulary(config), **(extra or {})}
    for key, value in values.items():
        if key not in drop_keys:
            _add_value(writer, key, value)
    tensors = {**_twin_tensors(module, architecture), **(extra_tensors or {})}
    for name, array in tensors.items():
        if name not in drop_tensors:
            _add_tensor(writer, name, array, quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _config_metadata(config: object, architecture: str) -> dict[str, object]:
    names = {
        "max_position_embeddings": "context_length",
        "hidden_size": "embedding_length",
        "num_hidden_layers": "block_count",
        "intermediate_size": "feed_forward_length",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "rms_norm_eps": "attention.layer_norm_rms_epsilon",
        "layer_norm_eps": "attention.layer_norm_epsilon",
        "norm_epsilon": "attention.layer_norm_epsilon",
        "norm_eps": "attention.layer_norm_epsilon",
        "clip_qkv": "attention.clamp_kqv",
        "logit_scale": "logit_scale",
        "num_experts": "expert_count",
        "num_local_experts": "expert_count",
        "num_experts_per_tok": "expert_used_count",
        "top_k_experts": "expert_used_count",
        "moe_intermediate_size": "expert_feed_forward_length",
        "shared_expert_intermediate_size": "expert_shared_feed_forward_length",
        "use_parallel_residual": "use_parallel_residual",
        "attn_logit_softcapping": "attn_logit_softcapping",
        "final_logit_softcapping": "final_logit_softcapping",
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "attention_multiplier": "attention.scale",
        "logits_scaling": "logit_scale",
    }
    values: dict[str, object] = {"general.name": "Twin"}
    for ours, theirs in names.items():
        if getattr(config, ours, None) is not None:
            values[f"{architecture}.{theirs}"] = getattr(config, ours)
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads  # type: ignore[attr-defined]  # any transformers config
    values[f"{architecture}.attention.key_length"] = head_dim
    values[f"{architecture}.attention.value_length"] = head_dim
    rope = config.rope_parameters  # type: ignore[attr-defined]  # any transformers config
    whole = rope.get("full_attention", rope)
    turned = int(head_dim * (whole.get("partial_rotary_factor") or 1.0))
    values[f"{architecture}.rope.dimension_count"] = turned
    if architecture == "olmo":  # has it built in
        values["olmo.attention.layer_norm_epsilon"] = 1e-5
    if config.model_type in _WITH_PATTERN and config.sliding_window:  # type: ignore[attr-defined]  # any transformers config
        windowed = [kind == "sliding_attention" for kind in config.layer_types]  # type: ignore[attr-defined]  # these have it
        values[f"{architecture}.attention.sliding_window_pattern"] = windowed
    values[f"{architecture}.rope.freq_base"] = float(whole["rope_theta"])
    if getattr(config, "sliding_window", None) and architecture != "llama":
        values[f"{architecture}.attention.sliding_window"] = config.sliding_window  # type: ignore[attr-defined]  # Gemma has it
    if architecture == "gemma4":
        values |= _gemma4_metadata(config)
    return values


def _gemma4_metadata(config: Any) -> dict[str, object]:
    """What differs from layer to layer, as llama.cpp's converter writes it."""
    layers = [config.per_layer_config[index] for index in range(config.num_hidden_layers)]
    full_dim = layers[-1].head_dim
    num_own = config.num_hidden_layers - config.num_kv_shared_layers
    widths = [
        config.intermediate_size * (1 + (config.use_double_wide_mlp and index >= num_own))
        for index in range(config.num_hidden_layers)
    ]
    values = {
        "attention.key_length": full_dim,
        "attention.value_length": full_dim,
        "attention.key_length_swa": config.head_dim,
        "attention.value_length_swa": config.head_dim,
        "attention.head_count_kv": [layer.num_key_value_heads for layer in layers],
        "attention.shared_kv_layers": config.num_kv_shared_layers,
        "embedding_length_per_layer_input": config.hidden_size_per_layer_input,
        "feed_forward_length": widths,
        "rope.dimension_count": full_dim,
        "rope.dimension_count_swa": config.head_dim,
        "rope.freq_base_swa": config.rope_parameters["sliding_attention"]["rope_theta"],
    }
    return {f"gemma4.{key}": value for key, value in values.items()}


def _vocabulary(config: object) -> dict[str, object]:
    """Three control tokens, the 256 bytes, one merged piece, then fillers."""
    size: int = config.vocab_size  # type: ignore[attr-defined]  # any transformers config
    if size < 260:
        raise ValueError("the vocabulary is too small for every byte")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<pad>", "<s>", "</s>", *letters, "ab", *(f"filler{i}" for i in range(size - 260))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.token_type": [3, 3, 3, *([1] * (size - 3))],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _add_value(writer: GGUFWriter, key: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, list):
        writer.add_array(key, value)
    else:
        raise TypeError(f"{key}: {type(value)}")


def _twin_tensors(module: PreTrainedModel, architecture: str) -> dict[str, npt.NDArray[np.float32]]:
    config = module.config
    arch_id = next(i for i, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    name_map = gguf.get_tensor_name_map(arch_id, config.num_hidden_layers)
    tensors = {}
    scales = [part for part in module.named_buffers() if part[0].endswith("layer_scalar")]
    for name, parameter in [*module.named_parameters(), *scales]:
        array = parameter.detach().float().numpy().copy()
        if architecture in _INTERLEAVED and ".q_proj." in name:
            array = _interleave(array, config.num_attention_heads)
        if architecture in _INTERLEAVED and ".k_proj." in name:
            array = _interleave(array, config.num_key_value_heads)
        if architecture in _ONE_ADDED and name.endswith("norm.weight"):
            array += 1
        for part_name, part in _as_published(name, array, architecture).items():
            found = name_map.get_name(part_name, try_suffixes=(".weight", ".bias"))
            tensors[part_name if part_name.startswith("blk.") else found] = np.ascontiguousarray(
                part
            )
    if architecture == "gemma4":
        num_pairs = config.per_layer_config[config.num_hidden_layers - 1].head_dim // 2
        is_turned = np.arange(num_pairs) < num_pairs // 4
        tensors["rope_freqs.weight"] = np.where(is_turned, 1, 1e30).astype(np.float32)
    return tensors


def _as_published(
    name: str, array: npt.NDArray[np.float32], architecture: str
) -> dict[str, npt.NDArray[np.float32]]:
    """A parameter as the converter finds it: releases of transformers call and join some otherwise."""
    for ours, theirs in _ALIASES.items():
        name = name.replace(ours, theirs)
    layer, _, expert = name.partition(".experts.")
    if expert in ("gate_up_proj_bias", "down_proj_bias"):  # gpt-oss alone has biases, ...
        if expert == "down_proj_bias":
            return {f"{layer}.experts.down_proj.bias": array}
        halves = {"gate": array[:, ::2], "up": array[:, 1::2]}
        return {f"{layer}.experts.{half}_proj.bias": part for half, part in halves.items()}
    if (
        architecture == "gpt-oss" and expert
    ):  # ... and columns for rows, those of gate and up in turn
        rows = array.swapaxes(1, 2)
        array = np.concatenate([rows[:, ::2], rows[:, 1::2]], 1) if "gate" in expert else rows
    if architecture == "gemma4" and expert:  # gate and up stay one
        return {f"{name}.weight": array}
    if expert == "gate_up_proj":
        gate, up = np.split(array, 2, axis=1)
        prefix = f"{layer.replace('block_sparse_moe', 'mlp')}.experts."
        return {f"{prefix}gate_proj.weight": gate, f"{prefix}up_proj.weight": up}
    if expert == "down_proj":
        return {f"{layer.replace('block_sparse_moe', 'mlp')}.experts.down_proj.weight": array}
    if name.endswith(("router.scale", "per_expert_scale")):  # of Gemma 4, and no modules
        part = "ffn_gate_inp" if name.endswith("router.scale") else "ffn_down_exps"
        return {f"blk.{name.split('.')[2]}.{part}.scale": array}
    if name.endswith((".sinks", ".layer_scalar")):
        return {f"{name}.weight": array}
    return {name: array.squeeze(0) if "shared_expert_gate" in name else array}


def _interleave(array: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """What llama.cpp's converter does to q and k of models that it rotates in pairs."""
    halves = array.reshape(num_heads, 2, array.shape[0] // num_heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def _add_tensor(
    writer: GGUFWriter, name: str, array: npt.NDArray[np.float32], quantization: str
) -> None:
    kind = GGMLQuantizationType[quantization]
    block_elements, _ = gguf.GGML_QUANT_SIZES[kind]
    if kind == GGMLQuantizationType.F32 or array.ndim < 2 or array.shape[-1] % block_elements:
        writer.add_tensor(name, array)
        return
    try:
        rows = gguf.quants.quantize(array, kind)
    except NotImplementedError:
        *outer, num_columns = array.shape
        rows = make_rows(quantization, math.prod(outer), num_columns, spread=float(array.std()))
        rows = rows.reshape(*outer, -1)
    writer.add_tensor(name, rows, raw_dtype=kind)


# Raw bytes, for files that no writer would make.


def raw_string(text: str | bytes, *, length: int | None = None) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data) if length is None else length) + data


def raw_entry(key: str, type_id: int, value: bytes) -> bytes:
    return raw_string(key) + struct.pack("<I", type_id) + value


def raw_array(type_id: int, count: int, items: bytes) -> bytes:
    return struct.pack("<IQ", type_id, count) + items


def raw_tensor(
    name: str, sizes: tuple[int, ...], *, type_id: int = 0, offset: int = 0, dims: int | None = None
) -> bytes:
    dims = len(sizes) if dims is None else dims
    head = raw_string(name) + struct.pack("<I", dims)
    return head + struct.pack(f"<{len(sizes)}Q", *sizes) + struct.pack("<IQ", type_id, offset)


def raw_gguf(
    entries: list[bytes],
    tensors: list[bytes],
    data: bytes = b"",
    *,
    version: int = 3,
    num_entries: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    """Join the parts; the counts may lie."""
    head = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if num_tensors is None else num_tensors,
        len(entries) if num_entries is None else num_entries,
    )
    table = head + b"".join(entries) + b"".join(tensors)
    return table + bytes(-len(table) % 32) + data


def read_raw(folder: Path, data: bytes) -> GgufFile:
    """Write the bytes as "model.gguf" and read them; the file is closed again."""
    path = folder / "model.gguf"
    path.write_bytes(data)
    with GgufFile.read(path) as file:
        return file


def raw_failure(folder: Path, data: bytes, kind: type[ModelFileError] = ModelFileError) -> str:
    """The reason for which reading the bytes fails."""
    with pytest.raises(kind) as caught:
        read_raw(folder, data)
    assert caught.value.path.name == "model.gguf"
    return caught.value.reason
