"""Builds a transformers model from a GGUF file, weight by weight. Thread of the load.

The module is made without memory for its parameters (on torch's meta device; its buffers, such as
the rotary frequencies, are real). Then each tensor is unpacked from the mapped file straight into
its place: the peak is the finished weights, one tensor, and the mapped pages.
"""

import importlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.dequantize import can_dequantize, dequantize
from inference.formats.gguf import GgufFile
from inference.model.first_import import quick_first_import
from inference.model.gguf_models import (
    ROPE_FACTORS_LONG,
    ROPE_FACTORS_SHORT,
    ROPE_FREQS,
    GgufPlan,
)
from inference.model.library_errors import LIBRARY_ERRORS, first_line
from inference.model.placement import dispatched, place_of, split_module
from inference.model.progress import LoadReporter
from inference.model.unpacking import unpacked

_DAMAGED = "Download the file again, or another one."


def check_weight_types(file: GgufFile) -> None:
    """Refuse a file with a weight type that cannot be unpacked.

    Raises:
        UnsupportedModelError: Names tensor and type.
    """
    for tensor in file.tensors.values():
        if not can_dequantize(tensor.type_name):
            raise UnsupportedModelError(
                file.path,
                f"The tensor {tensor.name!r:.60} has the weight type {tensor.type_name}, which Quire "
                "cannot unpack yet.",
                hint="Choose a file in another quantization, such as Q4_K_M or Q8_0.",
            )


def load_module(
    plan: GgufPlan,
    file: GgufFile,
    *,
    device: str,
    dtype: torch.dtype,
    reporter: LoadReporter,
    max_memory: Mapping[int | str, int] | None = None,
) -> nn.Module:
    """Make the transformers model with its weights on a device.

    Args:
        plan: What the file is.
        file: Open.
        device: A torch device.
        dtype: Type of the weights.
        reporter: Told how far it is.
        max_memory: If it does not fit: what each device and "cpu" may hold; then accelerate brings
            the weights that are on the host over when they are needed.

    Raises:
        ModelFileError: As `build_module` and `fill_weights`.
        NotEnoughMemoryError: Not even that is enough.
        UnsupportedModelError: As `fill_weights`.
    """
    reporter.begin("Preparing the model", until=0.5)
    module = build_module(plan, file, dtype)
    reporter.begin("Loading weights", until=1.0)
    if max_memory is None:
        fill_weights(module, plan, file, device=device, dtype=dtype, reporter=reporter)
        return module
    places = split_module(module, max_memory)
    fill_weights(module, plan, file, device=device, dtype=dtype, reporter=reporter, places=places)
    return dispatched(module, places)


def build_module(plan: GgufPlan, file: GgufFile, dtype: torch.dtype) -> nn.Module:
    """Make the transformers model, its parameters on the meta device.

    Raises:
        ModelFileError: The metadata describes no possible model.
    """
    with quick_first_import():
        from accelerate import init_empty_weights

        package = importlib.import_module(f"transformers.models.{plan.family.module}")
        config_class = getattr(package, plan.family.config_class)
        model_class = getattr(package, plan.family.model_class)
    values = {**plan.config, "dtype": dtype}
    _add_longrope_factors(values, file)
    try:
        config = config_class(**values)
        with init_empty_weights(include_buffers=False):
            module: nn.Module = model_class(config)
    except LIBRARY_ERRORS as error:
        raise ModelFileError(
            file.path,
            f"The metadata describes no possible {plan.architecture} model: {first_line(error)}",
            hint=_DAMAGED,
        ) from error
    _apply_rope_freqs(module, file)
    return module.eval()


def fill_weights(
    module: nn.Module,
    plan: GgufPlan,
    file: GgufFile,
    *,
    device: str,
    dtype: torch.dtype,
    reporter: LoadReporter,
    places: Mapping[str, int | str] | None = None,
) -> None:
    """Unpack every tensor into its parameter of `module` and move all to `device`.

    Args:
        module: Its parameters are on the meta device.
        plan: What the file is.
        file: Open.
        device: Where to.
        dtype: Type of the weights.
        reporter: Told how far it is.
        places: What stays on "cpu" instead, see `split_module`.

    Raises:
        ModelFileError: A tensor is missing, has another shape, or has no use.
    """
    is_tied = bool(plan.config["tie_word_embeddings"])
    names = [
        name
        for name, _ in module.named_parameters(remove_duplicate=False)
        if not (is_tied and name == "lm_head.weight")
    ]
    shapes: dict[str, tuple[int, ...]] = {}
    for name in names:
        shape = tuple(module.get_parameter(name).shape)
        shapes |= plan.source(name).tensor_shapes(_stored_shape(shape))
    check_tensors(shapes, plan, file)
    total = sum(tensor.num_bytes for tensor in file.tensors.values())
    done = 0
    for name, weight in unpacked(names, lambda name: _read_weight(name, plan, file, dtype)):
        is_on_host = places is not None and place_of(name, places) == "cpu"
        weight = weight.view(module.get_parameter(name).shape)
        _assign(module, name, weight if is_on_host else weight.to(device))
        for tensor_name in plan.source(name).tensor_names:
            file.release(tensor_name)
            done += file.tensors[tensor_name].num_bytes
        reporter.advance(done, total)
    if is_tied:
        _assign(module, "lm_head.weight", module.get_parameter("model.embed_tokens.weight"))
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            part.register_buffer(
                name, buffer.to(device), persistent=name not in part._non_persistent_buffers_set
            )


def check_tensors(shapes: Mapping[str, tuple[int, ...]], plan: GgufPlan, file: GgufFile) -> None:
    """Make sure that a file has the tensors that a model needs, and none that has no use.

    Args:
        shapes: Of the tensors that are needed, by the file's names.
        plan: Knows which others may be there.
        file: The file.

    Raises:
        ModelFileError: A tensor is missing or has another shape.
        UnsupportedModelError: One has no use.
    """
    for tensor_name, shape in shapes.items():
        tensor = file.tensors.get(tensor_name)
        if tensor is None:
            raise ModelFileError(
                file.path, f"The tensor {tensor_name!r:.60} is missing.", hint=_DAMAGED
            )
        if tensor.shape != shape:
            raise ModelFileError(
                file.path,
                f"The tensor {tensor_name!r:.60} has the shape {tensor.shape}, but the model needs "
                f"{shape}.",
                hint=_DAMAGED,
            )
    for tensor_name in file.tensors:
        if tensor_name not in shapes and not plan.is_known_tensor(tensor_name):
            raise UnsupportedModelError(
                file.path,
                f"The tensor {tensor_name!r:.60} has no place in a {plan.architecture} model as Quire "
                "knows it.",
                hint="Choose another model, or update Quire.",
            )


def _stored_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A matrix of one row is stored as a vector."""
    return shape[1:] if len(shape) == 2 and shape[0] == 1 else shape


def _read_weight(name: str, plan: GgufPlan, file: GgufFile, dtype: torch.dtype) -> Tensor:
    source = plan.source(name)
    if source.change == "joined":
        halves = [file.tensors[tensor_name] for tensor_name in source.tensor_names]
        return torch.cat(
            [
                dequantize(file.tensor_data(half.name), half.type_name, half.shape, dtype)
                for half in halves
            ],
            dim=1,
        )
    tensor = file.tensors[source.tensor_name]
    data = file.tensor_data(source.tensor_name)
    if source.change == "one_added":
        whole = dequantize(data, tensor.type_name, tensor.shape, torch.float32)
        return whole.sub_(1.0).to(dtype)
    if source.change == "interleaved_q":
        data = _rows_in_halves(data, tensor.shape[0], plan.config["num_attention_heads"])
    elif source.change == "interleaved_k":
        data = _rows_in_halves(data, tensor.shape[0], plan.config["num_key_value_heads"])
    return dequantize(data, tensor.type_name, tensor.shape, dtype)


def _rows_in_halves(data: Tensor, num_rows: int, num_heads: object) -> Tensor:
    """Put each head's rows 0, 2, 4, ... first, then 1, 3, 5, ...: as transformers rotates them.

    Rows are moved packed: blocks run along a row, so a row is one run of bytes.
    """
    if not isinstance(num_heads, int):
        raise TypeError("the number of heads is no whole number")
    rows = data.view(num_heads, num_rows // num_heads // 2, 2, -1)
    return rows.transpose(1, 2).reshape(-1)


def _assign(module: nn.Module, name: str, weight: Tensor) -> None:
    owner_name, _, leaf = name.rpartition(".")
    parameter = (
        weight if isinstance(weight, nn.Parameter) else nn.Parameter(weight, requires_grad=False)
    )
    setattr(module.get_submodule(owner_name), leaf, parameter)


def _add_longrope_factors(values: dict[str, object], file: GgufFile) -> None:
    rope = values.get("rope_parameters")
    if isinstance(rope, dict) and rope.get("rope_type") == "longrope":
        long, short = (
            rope_factors(file, name).tolist() for name in (ROPE_FACTORS_LONG, ROPE_FACTORS_SHORT)
        )
        values["rope_parameters"] = {**rope, "long_factor": long, "short_factor": short}


def _apply_rope_freqs(module: nn.Module, file: GgufFile) -> None:
    """Divide the rotary frequencies by the file's factors (how GGUF stores Llama 3's scaling)."""
    if ROPE_FREQS not in file.tensors:
        return
    factors = rope_factors(file, ROPE_FREQS)
    rotary = [part for part in module.modules() if hasattr(part, "inv_freq")]
    for part in rotary:
        for name in ("inv_freq", "original_inv_freq"):
            buffer = getattr(part, name)
            if buffer.shape != factors.shape:
                raise ModelFileError(
                    file.path,
                    f"The tensor {ROPE_FREQS!r} has {factors.numel()} factors, but the model "
                    f"needs {buffer.numel()}.",
                    hint=_DAMAGED,
                )
            buffer.div_(factors)
    if not rotary:
        raise UnsupportedModelError(
            file.path, f"The tensor {ROPE_FREQS!r} has no use in this model.", hint=""
        )


def rope_factors(file: GgufFile, name: str) -> Tensor:
    """The numbers of a tensor of factors for the rotary embedding, float32.

    Raises:
        ModelFileError: It is missing, or holds numbers that cannot be.
    """
    tensor = file.tensors.get(name)
    if tensor is None:
        raise ModelFileError(file.path, f"The tensor {name!r:.60} is missing.", hint=_DAMAGED)
    factors = dequantize(file.tensor_data(name), tensor.type_name, tensor.shape, torch.float32)
    if not bool(torch.isfinite(factors).all() and (factors > 0).all()):
        raise ModelFileError(
            file.path, f"The tensor {name!r:.60} must hold numbers above 0.", hint=_DAMAGED
        )
    return factors.flatten()


def describe_quantization(file: GgufFile) -> str:
    """Name the type that most weights have, for people."""
    sizes: dict[str, int] = {}
    for tensor in file.tensors.values():
        if len(tensor.shape) > 1:
            sizes[tensor.type_name] = sizes.get(tensor.type_name, 0) + tensor.num_elements
    return max(sizes, key=lambda name: sizes[name]) if sizes else "mixed"
