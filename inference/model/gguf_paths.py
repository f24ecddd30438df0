"""Chooses how a GGUF file's model is computed, and makes it so. Thread of the load.

fast      our kernels, on the CPU, with the file's own types of weights
torch     our own decoder, anywhere, with weights unpacked to a type of torch's
bridge    transformers' model, for what no `ModelSpec` describes
"""

import logging
from dataclasses import dataclass

import torch
from torch import nn

from inference.config import BackendName, DtypeName
from inference.errors import UnsupportedModelError
from inference.formats.gguf import GgufFile
from inference.kernels.library import load_kernels, why_no_kernels
from inference.model import gguf_loading
from inference.model.base import LanguageModel
from inference.model.decoder import TorchDecoder
from inference.model.gguf_decoder import GgufDecoder, describe_decoder, read_weights
from inference.model.gguf_models import GgufPlan
from inference.model.memory import choose_dtype
from inference.model.native_model import NativeModel
from inference.model.packed_weights import pack_weights
from inference.model.progress import LoadReporter
from inference.model.spec import UnsupportedSpecError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller wants of a model.

    Attributes:
        device: A torch device.
        dtype: Type of weights and activations.
        backend: What is to compute.
        num_threads: CPU threads of a step, where our kernels compute.
    """

    device: str
    dtype: DtypeName
    backend: BackendName
    num_threads: int


@dataclass(frozen=True, slots=True)
class MadeModel:
    """A model with its weights.

    Attributes:
        model: See `LoadedModel`.
        weights_bytes: Memory of the weights.
        arithmetic: Names what keys and values depend on beside weights and text.
    """

    model: nn.Module | LanguageModel
    weights_bytes: int
    arithmetic: str


def make_gguf_model(
    plan: GgufPlan, file: GgufFile, num_parameters: int, wish: Wish, reporter: LoadReporter
) -> MadeModel:
    """Load the weights of a file for the best way to compute it, or the one that is wished for.

    Raises:
        ModelFileError: The file is not sound.
        NotEnoughMemoryError: The weights do not fit.
        UnsupportedModelError: The model cannot be computed in the way that is wished for.
    """
    decoder = _describe(plan, file, wish)
    if decoder is None:
        return _make_module(plan, file, num_parameters, wish, reporter)
    if _is_fast(decoder, wish):
        return _make_native(decoder, wish, reporter)
    dtype = choose_dtype(wish.dtype, wish.device, num_parameters)
    reporter.begin("Loading weights", until=1.0)
    weights = read_weights(decoder, device=wish.device, dtype=dtype, reporter=reporter)
    model = TorchDecoder(decoder.spec, weights)
    return MadeModel(model, num_parameters * dtype.itemsize, str(dtype))


def _describe(plan: GgufPlan, file: GgufFile, wish: Wish) -> GgufDecoder | None:
    """The model for our decoder; None for the bridge."""
    if wish.backend == "bridge":
        return None
    try:
        return describe_decoder(plan, file)
    except UnsupportedSpecError as error:
        if wish.backend != "auto":
            raise UnsupportedModelError(
                file.path,
                f"The backend {wish.backend!r} cannot compute it: {error}.",
                hint="Choose the backend auto or bridge.",
            ) from error
        logger.info("the bridge runs this model: our decoder does not know %s", error)
        return None


def _is_fast(decoder: GgufDecoder, wish: Wish) -> bool:
    """Whether our kernels compute it.

    Raises:
        UnsupportedModelError: They are wished for and cannot.
    """
    reason = _why_not_fast(wish)
    if wish.backend == "fast" and reason:
        raise UnsupportedModelError(
            decoder.file.path,
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


def _make_native(decoder: GgufDecoder, wish: Wish, reporter: LoadReporter) -> MadeModel:
    kernels = load_kernels()
    assert kernels is not None, "it was asked for before"
    reporter.begin("Loading weights", until=1.0)
    weights = pack_weights(decoder, kernels, num_threads=wish.num_threads, reporter=reporter)
    model = NativeModel(decoder.spec, weights, kernels, num_threads=wish.num_threads)
    return MadeModel(model, weights.num_bytes, "native")


def _make_module(
    plan: GgufPlan, file: GgufFile, num_parameters: int, wish: Wish, reporter: LoadReporter
) -> MadeModel:
    dtype = choose_dtype(wish.dtype, wish.device, num_parameters)
    reporter.begin("Preparing the model", until=0.5)
    module = gguf_loading.build_module(plan, file, dtype)
    reporter.begin("Loading weights", until=1.0)
    gguf_loading.fill_weights(
        module, plan, file, device=wish.device, dtype=dtype, reporter=reporter
    )
    return MadeModel(module, num_parameters * dtype.itemsize, str(dtype))
