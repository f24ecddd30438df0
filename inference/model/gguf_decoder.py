"""From a GGUF file to our own decoder: its `ModelSpec`, and its weights as torch wants them.

Thread of the load. What the kernels want is in `packed_weights`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.errors import UnsupportedModelError
from inference.formats.dequantize import dequantize
from inference.formats.gguf import GgufFile
from inference.model.gguf_loading import check_tensors, rope_factors, unpacked
from inference.model.gguf_models import ROPE_FACTORS_SHORT, ROPE_FREQS, GgufPlan
from inference.model.progress import LoadReporter
from inference.model.spec import ModelSpec, WeightKey
from inference.model.spec_configs import spec_from_gguf
from inference.model.spec_weights import WeightSource, gguf_sources


@dataclass(frozen=True, slots=True)
class GgufDecoder:
    """What is to be read from one file.

    Attributes:
        file: Open.
        spec: What the model computes.
        sources: Where each weight is.
    """

    file: GgufFile
    spec: ModelSpec
    sources: Mapping[WeightKey, WeightSource]


def describe_decoder(plan: GgufPlan, file: GgufFile) -> GgufDecoder:
    """Describe the file's model, and make sure that each weight is there, of the right shape.

    Raises:
        ModelFileError: A tensor is missing, or of another shape.
        UnsupportedModelError: A tensor has no use.
        UnsupportedSpecError: No `ModelSpec` describes the model: the bridge may run it.
    """
    names = [name for name in (ROPE_FREQS, ROPE_FACTORS_SHORT) if name in file.tensors]
    factors = {name: rope_factors(file, name).tolist() for name in names}
    spec = spec_from_gguf(plan.architecture, plan.config, factors)
    sources = gguf_sources(spec, plan)
    check_tensors(
        {source.tensor_name: source.tensor_shape for source in sources.values()}, plan, file
    )
    return GgufDecoder(file, spec, sources)


def read_weights(
    decoder: GgufDecoder, *, device: str, dtype: torch.dtype, reporter: LoadReporter
) -> dict[WeightKey, Tensor]:
    """Unpack every weight onto a device: norms in float32, all else in `dtype`; a tied head once."""
    weights: dict[WeightKey, Tensor] = {}
    total = len(decoder.sources)
    tied = {}
    if decoder.spec.is_head_tied:
        tied = {WeightKey("head"): WeightKey("embedding")}
    wanted = [key for key in decoder.sources if key not in tied]
    for key, weight in unpacked(wanted, lambda key: _read_weight(decoder, key, dtype)):
        weights[key] = weight.to(device)
        reporter.advance(len(weights), total)
    for key, same in tied.items():
        weights[key] = weights[same]
    return weights


def read_vector(decoder: GgufDecoder, key: WeightKey) -> Tensor:
    """A norm's weight or a bias in float32, (length,)."""
    return _read_weight(decoder, key, torch.float32)


def _read_weight(decoder: GgufDecoder, key: WeightKey, dtype: torch.dtype) -> Tensor:
    source = decoder.sources[key]
    tensor = decoder.file.tensors[source.tensor_name]
    rows = decoder.file.tensor_data(source.tensor_name).view(source.tensor_shape[0], -1)
    if source.rows != range(source.tensor_shape[0]):
        rows = rows[torch.tensor(source.rows)]
    shape = (source.num_rows, *source.tensor_shape[1:])
    is_norm = key.role.endswith("norm")
    weight = dequantize(
        rows.reshape(-1), tensor.type_name, shape, torch.float32 if is_norm else dtype
    )
    return weight.add_(1.0) if source.lacks_one else weight


def refuse(decoder: GgufDecoder, reason: str) -> UnsupportedModelError:
    """An error about the file."""
    return UnsupportedModelError(decoder.file.path, reason)


def matrix_keys(keys: Iterable[WeightKey], decoder: GgufDecoder) -> list[WeightKey]:
    """Those of the keys that name matrices."""
    return [key for key in keys if len(decoder.sources[key].tensor_shape) == 2]
