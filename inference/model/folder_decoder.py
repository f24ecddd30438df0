"""From a folder of safetensors to our own decoder. Thread of the load."""

import logging
from collections.abc import Mapping

from inference.errors import ModelFileError
from inference.formats.safetensors_weights import FolderWeights
from inference.model.decoder_weights import DecoderWeights
from inference.model.spec import UnsupportedSpecError
from inference.model.spec_configs import spec_from_folder
from inference.model.spec_weights import folder_sources, tensor_shapes

logger = logging.getLogger(__name__)

_TYPES = ("F32", "F16", "BF16")
_PREFIX = "model."
_HINT = "Download the model again, all its files from one place."


def describe_folder(config: Mapping[str, object], file: FolderWeights) -> DecoderWeights:
    """Describe the folder's model, and make sure that each weight is there, of the right shape.

    Args:
        config: The content of its config.json.
        file: Its weights.

    Raises:
        ModelFileError: A tensor is missing, or of another shape.
        UnsupportedSpecError: No `ModelSpec` describes the model, or its tensors have names or types that
            are not known here: the bridge may run it.
    """
    spec = spec_from_folder(config, file.tensors)
    sources = folder_sources(spec)
    shapes = tensor_shapes(sources)
    if not any(name.startswith(_PREFIX) for name in file.tensors):
        raise UnsupportedSpecError(f"tensors whose names do not begin with {_PREFIX!r}")
    missing = [name for name in shapes if name not in file.tensors]
    if missing:
        raise _wrong(file, f"{missing[0]!r:.60} is missing (one of {len(missing)})")
    for name, shape in shapes.items():
        found = file.tensors[name]
        if found.shape != shape:
            raise _wrong(
                file,
                f"{name!r:.60} has the shape {found.shape}, but the configuration needs {shape}",
            )
        if found.type_name not in _TYPES:
            raise UnsupportedSpecError(f"weights of the type {found.type_name}")
    num_unused = len(file.tensors) - len(shapes)
    if num_unused:
        logger.warning("%d tensors of the folder have no use", num_unused)
    return DecoderWeights(file, spec, sources)


def _wrong(file: FolderWeights, problem: str) -> ModelFileError:
    return ModelFileError(file.path, f"The tensor {problem}.", hint=_HINT)
