"""Chooses how a model is computed, and makes it so: GGUF files and folders alike. Thread of the load.

fast      our kernels, on the CPU, with the file's own types of weights
torch     our own decoder, anywhere, with weights unpacked to a type of torch's
bridge    transformers' model, for what no `ModelSpec` describes
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from inference.config import BackendName, DtypeName, WeightTypeName
from inference.errors import UnsupportedModelError
from inference.kernels.library import load_kernels, why_no_kernels
from inference.model.base import LanguageModel
from inference.model.decoder import TorchDecoder
from inference.model.decoder_weights import DecoderWeights, read_weights
from inference.model.memory import choose_dtype
from inference.model.native_model import NativeModel
from inference.model.native_weights import WeightWish, load_native_weights
from inference.model.progress import LoadReporter
from inference.model.spec import ModelSpec, UnsupportedSpecError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller wants of a model.

    Attributes:
        device: A torch device.
        dtype: Type of weights and activations.
        backend: What is to compute.
        num_threads: CPU threads of a step, where our kernels compute.
        weights: How floats are to be kept, where our kernels compute; see `EngineConfig`.
        cache_dir: Where rounded weights are kept; None for nowhere.
    """

    device: str
    dtype: DtypeName
    backend: BackendName
    num_threads: int
    weights: WeightTypeName = "auto"
    cache_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One file or folder, as far as it is known before its weights are read.

    Attributes:
        path: What errors name.
        num_parameters: Count of stored weights.
        fingerprint: Names weights and configuration.
        describe: Gives its weights for our decoder. Raises `UnsupportedSpecError` for what only the
            bridge may run.
        make_module: Makes transformers' model of a type on a device, with its weights.
    """

    path: Path
    num_parameters: int
    fingerprint: bytes
    describe: Callable[[], DecoderWeights]
    make_module: Callable[[torch.dtype, LoadReporter], nn.Module]


@dataclass(frozen=True, slots=True)
class MadeModel:
    """A model with its weights.

    Attributes:
        model: See `LoadedModel`.
        spec: What it computes; None over the bridge.
        num_parameters: Weights, tied ones once.
        weights_bytes: Memory of the weights.
        arithmetic: Names what keys and values depend on beside weights and text.
        rounded_to: Type that floats were rounded to at load; empty if they were not.
    """

    model: nn.Module | LanguageModel
    spec: ModelSpec | None
    num_parameters: int
    weights_bytes: int
    arithmetic: str
    rounded_to: str = ""


def make_model(source: ModelSource, wish: Wish, reporter: LoadReporter) -> MadeModel:
    """Load the weights for the best way to compute them, or the one that is wished for.

    Raises:
        ModelFileError: The file or folder is not sound.
        NotEnoughMemoryError: The weights do not fit.
        UnsupportedModelError: The model cannot be computed in the way that is wished for.
    """
    weights = _describe(source, wish)
    if weights is not None and _is_fast(source.path, wish):
        return _make_native(weights, source.fingerprint, wish, reporter)
    if wish.weights != "auto":
        raise _cannot_round(source.path, wish)
    dtype = choose_dtype(wish.dtype, wish.device, source.num_parameters)
    if weights is None:
        return _make_module(source, dtype, reporter)
    reporter.begin("Loading weights", until=1.0)
    tensors = read_weights(weights, device=wish.device, dtype=dtype, reporter=reporter)
    num_parameters = weights.num_parameters
    return MadeModel(
        model=TorchDecoder(weights.spec, tensors),
        spec=weights.spec,
        num_parameters=num_parameters,
        weights_bytes=num_parameters * dtype.itemsize,
        arithmetic=str(dtype),
    )


def _describe(source: ModelSource, wish: Wish) -> DecoderWeights | None:
    """The weights for our decoder; None for the bridge."""
    if wish.backend == "bridge":
        return None
    try:
        return source.describe()
    except UnsupportedSpecError as error:
        if wish.backend != "auto":
            raise UnsupportedModelError(
                source.path,
                f"The backend {wish.backend!r} cannot compute it: {error}.",
                hint="Choose the backend auto or bridge.",
            ) from error
        logger.info("the bridge runs this model: our decoder does not know %s", error)
        return None


def _is_fast(path: Path, wish: Wish) -> bool:
    """Whether our kernels compute it.

    Raises:
        UnsupportedModelError: They are wished for and cannot.
    """
    reason = _why_not_fast(wish)
    if wish.backend == "fast" and reason:
        raise UnsupportedModelError(
            path,
            f"The backend 'fast' cannot compute it: {reason}.",
            hint="Choose the backend auto.",
        )
    return wish.backend in ("auto", "fast") and not reason


def _why_not_fast(wish: Wish) -> str:
    if torch.device(wish.device).type != "cpu":
        return f"the kernels are for the CPU, not for {wish.device}"
    if wish.dtype not in ("auto", "float32"):
        return f"the kernels compute in float32, not in {wish.dtype}"
    return why_no_kernels()


def _cannot_round(path: Path, wish: Wish) -> UnsupportedModelError:
    reason = _why_not_fast(wish) or "another way is needed or was chosen"
    return UnsupportedModelError(
        path,
        f"Only the backend 'fast' keeps weights as {wish.weights}, and it cannot compute here: {reason}.",
        hint="Choose auto for the weights.",
    )


def _make_native(
    weights: DecoderWeights, fingerprint: bytes, wish: Wish, reporter: LoadReporter
) -> MadeModel:
    kernels = load_kernels()
    assert kernels is not None, "it was asked for before"
    packed, rounded_to = load_native_weights(
        weights,
        fingerprint,
        kernels,
        WeightWish(wish.weights, wish.cache_dir, wish.num_threads),
        reporter,
    )
    return MadeModel(
        model=NativeModel(weights.spec, packed, kernels, num_threads=wish.num_threads),
        spec=weights.spec,
        num_parameters=weights.num_parameters,
        weights_bytes=packed.num_bytes,
        arithmetic=f"native{rounded_to}",
        rounded_to=rounded_to,
    )


def _make_module(source: ModelSource, dtype: torch.dtype, reporter: LoadReporter) -> MadeModel:
    module = source.make_module(dtype, reporter)
    parameters = list(module.parameters())  # a tied weight is listed once
    return MadeModel(
        model=module,
        spec=None,
        num_parameters=sum(parameter.numel() for parameter in parameters),
        weights_bytes=sum(parameter.nbytes for parameter in parameters),
        arithmetic=str(dtype),
    )
