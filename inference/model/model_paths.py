"""Chooses how a model is computed, and makes it so: GGUF files and folders alike. Thread of the load.

fast      our kernels, on the CPU, with the file's own types of weights
torch     our own decoder, anywhere, with weights unpacked to a type of torch's
bridge    transformers' model, for what no `ModelSpec` describes
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from inference.config import BackendName, DtypeName, WeightTypeName
from inference.errors import UnsupportedModelError
from inference.formats.whole_digest import WeightFiles
from inference.kernels.library import MAX_HEAD_DIM, load_kernels, why_no_kernels
from inference.model.base import LanguageModel
from inference.model.decoder import TorchDecoder
from inference.model.decoder_weights import DecoderWeights, read_weights
from inference.model.gpu_weights import load_weights
from inference.model.int4_product import Int4Product, find_int4
from inference.model.kv_wish import KvWish
from inference.model.memory import choose_dtype, telling_shortage, weights_bytes
from inference.model.memory_ahead import give_back
from inference.model.native_model import NativeModel
from inference.model.native_weights import WeightWish, load_native_weights
from inference.model.placement import Room, describe_module, describe_placement, layers_on_host
from inference.model.progress import LoadReporter
from inference.model.spec import ModelSpec, UnsupportedSpecError
from inference.model.weight_cache import WeightCache
from inference.model.weight_plan import WeightPlan, plan_weights

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Wish:
    """What the caller wants of a model.

    Attributes:
        device: A torch device.
        dtype: Type of weights and activations.
        backend: What is to compute.
        num_threads: CPU threads of a step, where our kernels compute.
        weights: How weights are to be kept; see `EngineConfig`.
        cache_dir: Where rounded weights are kept; None for nowhere.
        kv: What is to be kept beside the weights.
    """

    device: str
    dtype: DtypeName
    backend: BackendName
    num_threads: int
    weights: WeightTypeName = "auto"
    cache_dir: Path | None = None
    kv: KvWish = field(default_factory=KvWish)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One file or folder, as far as it is known before its weights are read.

    Attributes:
        path: What errors name.
        files: Its weights, as they were before anything was read of them.
        num_parameters: Count of stored weights.
        fingerprint: Names weights and configuration.
        describe: Gives its weights for our decoder. Raises `UnsupportedSpecError` for what only the
            bridge may run.
        make_module: Makes transformers' model of a type on a device, with its weights; on device and
            host if it is given what each of them may hold, see `Room.max_memory`.
        has_bridge: Whether there is such a model.
    """

    path: Path
    files: WeightFiles
    num_parameters: int
    fingerprint: bytes
    describe: Callable[[], DecoderWeights]
    make_module: Callable[[torch.dtype, LoadReporter, Mapping[int | str, int] | None], nn.Module]
    has_bridge: bool = True


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
        placement: How weights are kept and where, for people; empty if all are as the path has them.
        converted: Which of the file's types became others because nothing computes with them, for
            people; empty if none did.
    """

    model: nn.Module | LanguageModel
    spec: ModelSpec | None
    num_parameters: int
    weights_bytes: int
    arithmetic: str
    rounded_to: str = ""
    placement: str = ""
    converted: str = ""

    @property
    def has_experts(self) -> bool:
        """Whether a token is computed by a part of the weights, as far as is known."""
        return self.spec is not None and self.spec.experts is not None


def make_model(source: ModelSource, wish: Wish, reporter: LoadReporter) -> MadeModel:
    """Load the weights for the best way to compute them, or the one that is wished for.

    Raises:
        ModelFileError: The file or folder is not sound.
        NotEnoughMemoryError: The weights do not fit.
        UnsupportedModelError: The model cannot be computed in the way that is wished for.
    """
    weights = _describe(source, wish)
    if weights is not None and _is_fast(source.path, weights.spec, wish):
        return _make_native(weights, source, wish, reporter)
    give_back()  # only packed weights lie in it
    # Elsewhere the type does not depend on the size, and what fits is found out from the plan.
    is_on_cpu = torch.device(wish.device).type == "cpu"
    dtype = choose_dtype(wish.dtype, wish.device, source.num_parameters if is_on_cpu else 0)
    must_round = wish.weights not in ("auto", "float")
    if weights is not None:
        plan = plan_weights(weights, dtype, _int4_product(wish), wish.weights)
        if not (must_round and plan.is_plain):
            return _make_decoder(plan, wish, reporter)
    if must_round:
        raise _cannot_round(source.path, None if weights is None else weights.spec, wish)
    return _make_module(source, wish.device, dtype, reporter)


def _int4_product(wish: Wish) -> Int4Product | None:
    """The product with packed weights; on the CPU that is for our kernels, and torch computes in floats."""
    device = torch.device(wish.device)
    return None if device.type == "cpu" else find_int4(device)


def _describe(source: ModelSource, wish: Wish) -> DecoderWeights | None:
    """The weights for our decoder; None for the bridge."""
    if wish.backend == "bridge":
        return None
    try:
        weights = source.describe()
        if weights.spec.experts is not None and torch.device(wish.device).type != "cpu":
            raise UnsupportedSpecError(f"a mixture of experts on {wish.device}")
        return weights
    except UnsupportedSpecError as error:
        if not source.has_bridge:
            raise UnsupportedModelError(
                source.path, f"Quire cannot compute it: {error}.", hint="Choose another model."
            ) from error
        if wish.backend != "auto":
            raise UnsupportedModelError(
                source.path,
                f"The backend {wish.backend!r} cannot compute it: {error}.",
                hint="Choose the backend auto or bridge.",
            ) from error
        logger.info("the bridge runs this model: our decoder does not know %s", error)
        return None


def _is_fast(path: Path, spec: ModelSpec, wish: Wish) -> bool:
    """Whether our kernels compute it.

    Raises:
        UnsupportedModelError: They are wished for and cannot.
    """
    reason = _why_not_fast(spec, wish)
    if wish.backend == "fast" and reason:
        raise UnsupportedModelError(
            path,
            f"The backend 'fast' cannot compute it: {reason}.",
            hint="Choose the backend auto.",
        )
    return wish.backend in ("auto", "fast") and not reason


def _why_not_fast(spec: ModelSpec | None, wish: Wish) -> str:
    if torch.device(wish.device).type != "cpu":
        return f"the kernels are for the CPU, not for {wish.device}"
    if wish.weights == "float":
        return "the kernels compute with weights as the file has them, not with floats"
    if wish.dtype not in ("auto", "float32"):
        return f"the kernels compute in float32, not in {wish.dtype}"
    if spec is not None and spec.head_dim > MAX_HEAD_DIM:
        return f"the kernels take heads of up to {MAX_HEAD_DIM:,} numbers, not {spec.head_dim:,}"
    kernels = load_kernels()
    if kernels is None:
        return why_no_kernels()
    panel = kernels.panel_rows
    if spec is not None and spec.experts and (spec.mlp_size % panel or spec.hidden_size % panel):
        return f"the kernels take experts whose sizes are multiples of {panel}"
    return ""


def _cannot_round(path: Path, spec: ModelSpec | None, wish: Wish) -> UnsupportedModelError:
    reason = _why_not_fast(spec, wish) or "the model needs another backend, or another was chosen"
    return UnsupportedModelError(
        path,
        f"Weights are kept as {wish.weights} by the backend 'fast' or by a CUDA card, in bfloat16. "
        f"Here neither computes: {reason}.",
        hint="Choose auto for the weights.",
    )


def _make_native(
    weights: DecoderWeights, source: ModelSource, wish: Wish, reporter: LoadReporter
) -> MadeModel:
    kernels = load_kernels()
    assert kernels is not None, "it was asked for before"
    cache = None
    if wish.cache_dir is not None:
        cache = WeightCache(wish.cache_dir, source.files, source.fingerprint)
    loaded = load_native_weights(
        weights, kernels, WeightWish(wish.weights, cache, wish.num_threads), reporter
    )
    return MadeModel(
        model=NativeModel(weights.spec, loaded.packed, kernels, num_threads=wish.num_threads),
        spec=weights.spec,
        num_parameters=weights.num_parameters,
        weights_bytes=loaded.packed.num_bytes,
        arithmetic=" ".join(filter(None, (f"native{loaded.rounded_to}", loaded.words))),
        rounded_to=loaded.rounded_to,
        placement=loaded.words,
        converted=loaded.words,
    )


def _make_decoder(plan: WeightPlan, wish: Wish, reporter: LoadReporter) -> MadeModel:
    """Our decoder in torch, its weights packed where that is possible and on the host where they must be.

    Raises:
        NotEnoughMemoryError: They do not fit.
    """
    layer_bytes, room = plan.layer_bytes, Room.on(wish.device)
    kv_bytes = wish.kv.least_bytes(plan.weights.spec, plan.dtype)
    on_host = layers_on_host(room, plan.shared_bytes, layer_bytes, kv_bytes)
    reporter.begin("Loading weights", until=1.0)
    num_bytes = plan.shared_bytes + sum(layer_bytes)
    with telling_shortage(num_bytes, room.free):  # others may take memory meanwhile
        model, buffer_bytes = _fill_decoder(plan, on_host, wish, reporter)
    where = describe_placement(len(on_host), len(layer_bytes), wish.device)
    return MadeModel(
        model=model,
        spec=plan.weights.spec,
        num_parameters=plan.weights.num_parameters,
        weights_bytes=num_bytes + buffer_bytes,
        arithmetic=plan.arithmetic,
        rounded_to=plan.rounded_to,
        placement=", ".join(part for part in (plan.words, where) if part),
        converted=plan.changed,
    )


def _fill_decoder(
    plan: WeightPlan, on_host: frozenset[int], wish: Wish, reporter: LoadReporter
) -> tuple[TorchDecoder, int]:
    """The decoder with its weights, and the memory of what brings them over from the host."""
    weights, spec = plan.weights, plan.weights.spec
    if plan.is_plain and not on_host:
        tensors = read_weights(weights, device=wish.device, dtype=plan.dtype, reporter=reporter)
        return TorchDecoder(spec, tensors), 0
    device = torch.device(wish.device)
    placed = load_weights(plan, device, on_host, num_threads=wish.num_threads, reporter=reporter)
    decoder = TorchDecoder(spec, placed.vectors, linears=placed.linears, stream=placed.stream)
    return decoder, placed.stream.num_bytes if placed.stream is not None else 0


def _make_module(
    source: ModelSource, device: str, dtype: torch.dtype, reporter: LoadReporter
) -> MadeModel:
    """The model of transformers, on device and host if it must.

    Raises:
        NotEnoughMemoryError: It does not fit.
    """
    room, needed = Room.on(device), weights_bytes(source.num_parameters, dtype)
    is_split = needed > room.whole_bytes
    if is_split and needed > room.split_bytes + room.host_bytes:
        raise room.refusal(needed)
    with telling_shortage(needed, room.free):
        module = source.make_module(dtype, reporter, room.max_memory if is_split else None)
    parameters = list(module.parameters())  # a tied weight is listed once
    return MadeModel(
        model=module,
        spec=None,
        num_parameters=sum(parameter.numel() for parameter in parameters),
        weights_bytes=sum(parameter.nbytes for parameter in parameters),
        arithmetic=str(dtype),
        placement=describe_module(module, device) if is_split else "",
    )
