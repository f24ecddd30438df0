"""Puts an engine's parts together: weights, model, KV memory, scheduler. Engine thread only.

How long a context may be is decided here, from three limits: what the model was made for, what the
caller asked for, and what the KV budget holds.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil
import torch
from torch import nn

from inference.attention.base import AttentionBackend
from inference.attention.choice import AttentionNeeds, choose_attention
from inference.attention.paged import PagedAttention
from inference.chat_memory import ChatMemory
from inference.config import EngineConfig
from inference.errors import CpuOnlyError
from inference.formats.whole_digest import WeightFiles
from inference.kv_cache.manager import KvCacheManager
from inference.kv_cache.schemes import find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.kv_loading import StageCallback, make_kv
from inference.metrics import ModelInfo
from inference.model.base import LanguageModel, Runner
from inference.model.devices import choose_device
from inference.model.graphs import GraphRunner
from inference.model.kv_wish import KvWish
from inference.model.loader import LoadedModel, load_model
from inference.request import LoadProgress
from inference.scheduler import Scheduler
from inference.speculation.calibration import USUAL_DEAREST, measure_steps
from inference.speculation.costs import StepCosts
from inference.speculation.speculator import Speculator
from inference.step_pace import StepPace, usual_step_tokens
from inference.text.chat_template import ChatTemplate
from inference.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

ProgressCallback = Callable[[LoadProgress], None]

_SHARE_OF_LOADING = 0.95


@dataclass(slots=True)
class EngineParts:
    """What an engine is made of.

    Attributes:
        runner: The model and its KV memory.
        kv: The bookkeeping of the blocks.
        memory: What outlives a reply.
        scheduler: Who is computed next.
        pace: How much that may be; None leaves it as configured.
        tokenizer: The model's.
        template: The model's; None if it is not made for chats.
        speculator: Guesses ahead.
        vocab_size: Ids that may be given and sampled.
        config: What the caller wanted.
        device: Where the logits are.
        info: For people.
        has_experts: Whether a token is computed by a part of the weights.
    """

    runner: Runner
    kv: KvCacheManager
    memory: ChatMemory
    scheduler: Scheduler
    pace: StepPace | None
    tokenizer: Tokenizer
    template: ChatTemplate | None
    speculator: Speculator
    vocab_size: int
    config: EngineConfig
    device: str
    info: ModelInfo
    has_experts: bool = False


def load_parts(
    path: Path,
    config: EngineConfig,
    on_progress: ProgressCallback | None,
    *,
    load: Callable[..., LoadedModel] = load_model,
) -> EngineParts:
    """Load a model and everything around it.

    Args:
        path: A GGUF file or a folder of safetensors.
        config: What the caller wants.
        on_progress: Told how far it has come, on this thread.
        load: Reads the weights; tests give models of their own.

    Raises:
        InvalidRequestError: int4 keys and values are wanted and would make this model worse, or a
            device or an attention is wanted that cannot be.
        ModelFileError: The file or folder is at fault, or of a kind that cannot be run.
        NotEnoughMemoryError: Weights or the smallest KV memory do not fit.
    """
    began = time.perf_counter()
    num_threads = _useful_threads(config.num_threads or _default_threads())
    torch.set_num_threads(num_threads)
    weights = WeightFiles.seen_at(path)
    loaded, device = _load_weights(
        partial(
            load,
            path,
            dtype=config.dtype,
            backend=config.backend,
            num_threads=num_threads,
            weights=config.weights,
            cache_dir=None if config.cache_dir is None else Path(config.cache_dir),
            kv=KvWish(config.kv_scheme, config.context_tokens, config.kv_cache_bytes),
            on_progress=_scaled(on_progress),
        ),
        config.device,
    )
    model = _make_model(loaded, path)
    if model.path_name == "fast":
        # All that is left for torch is sampling. After an operator its threads spin for a while, on the
        # cores that the kernels' own threads need: decode takes twice as long.
        torch.set_num_threads(1)
    attention, reason = _choose_attention(model, config)
    kv = make_kv(model, loaded, attention, config, device, weights, _last_stretch(on_progress))
    runner = model.make_runner(kv.tensors, attention)
    _verify(loaded, model, runner, attention, path)
    has_paged_kernel = isinstance(attention, PagedAttention)
    most = config.prefill_chunk_tokens or usual_step_tokens(
        model.device.type, has_paged_kernel=has_paged_kernel
    )
    scheduler = Scheduler(kv.manager, token_budget=most, mover=kv.transfers)
    context_tokens = _context_tokens(loaded, model, config, kv.tensors)
    info = replace(
        _describe(loaded, path, context_tokens=context_tokens),
        backend=_describe_backend(model, runner, reason, loaded.placement),
        compute_path=model.path_name,
        kernels=_describe_kernels(model),
        num_threads=num_threads,
        device=device,
        kv_scheme=kv.tensors.scheme.name,
        kv_schemes=kv.schemes,
    )
    vocab_size = min(model.vocab_size, loaded.tokenizer.vocab_size)
    parts = EngineParts(
        runner=runner,
        kv=kv.manager,
        memory=kv.memory,
        scheduler=scheduler,
        pace=StepPace(most) if model.has_independent_rows else None,
        tokenizer=loaded.tokenizer,
        template=loaded.chat_template,
        speculator=Speculator(
            StepCosts(),
            guess=config.guess,
            draft_tokens=config.draft_tokens,
            stop_ids=loaded.tokenizer.eos_ids,
        ),
        vocab_size=vocab_size,
        config=config,
        device=device,
        info=info,
        has_experts=loaded.has_experts,
    )
    calibrate_guessing(parts)
    load_ms = (time.perf_counter() - began) * 1000
    parts.info = replace(info, load_ms=load_ms)
    logger.info("model ready after %.0f ms: %s, %s", load_ms, info.architecture, reason)
    if on_progress is not None:
        on_progress(LoadProgress("Ready", 1.0))
    return parts


def _load_weights(load: Callable[..., LoadedModel], wish: str) -> tuple[LoadedModel, str]:
    """The model and its device, which is the CPU for what no other computes, unless one is ordered."""
    device = choose_device(wish)
    try:
        return load(device=device), device
    except CpuOnlyError:
        if device == "cpu" or wish != "auto":
            raise
        logger.info("the model is computed on the CPU, not on %s", device)
        return load(device="cpu"), "cpu"


def calibrate_guessing(parts: EngineParts) -> None:
    """Measure what steps take, once, if that is of use and nothing runs."""
    guesses = parts.speculator
    if guesses.is_on and not guesses.is_calibrated and not parts.scheduler.has_work:
        num_threads = torch.get_num_threads()
        dearest = 1.0 if parts.has_experts else USUAL_DEAREST
        guesses.calibrate(measure_steps(parts.runner, parts.kv, dearest=dearest))
        torch.set_num_threads(num_threads)  # a runner sets its own for each step


def _make_model(loaded: LoadedModel, path: Path) -> LanguageModel:
    if not isinstance(loaded.model, nn.Module):
        return loaded.model
    from inference.model.bridge import TransformersBridge  # transformers: seconds
    from inference.model.linear import use_fast_linear

    layers = use_fast_linear(loaded.model)
    return TransformersBridge(loaded.model, path, has_fast_rows=bool(layers))


def _describe_backend(model: LanguageModel, runner: Runner, attention: str, placement: str) -> str:
    """What computes the model, and how and where its weights are, for people."""
    if model.path_name == "fast":
        attention = f"Quire's kernels ({model.kernels})"
    graphs = "CUDA graphs" if isinstance(runner, GraphRunner) else ""
    return ", ".join(part for part in (attention, graphs, placement) if part)


def _describe_kernels(model: LanguageModel) -> str:
    """What computes, in a word or two."""
    if model.path_name == "torch" and model.device.type == "cpu":
        return "compatibility kernels"
    return model.kernels


def _verify(
    loaded: LoadedModel,
    model: LanguageModel,
    runner: Runner,
    attention: AttentionBackend,
    path: Path,
) -> None:
    if model.path_name == "bridge":
        from inference.model.bridge import TransformersBridge
        from inference.model.verification import TESTED_ARCHITECTURES, VERIFIED_TOKENS, verify

        assert isinstance(model, TransformersBridge)
        if loaded.architecture in TESTED_ARCHITECTURES:
            return
        if model.device.type == "cpu":
            # Over blocks that round nothing: else a mixture may choose other experts, and seem to differ.
            tensors = KvTensors(
                model.geometry,
                num_blocks=-(-VERIFIED_TOKENS // attention.block_size),
                block_size=attention.block_size,
                scheme=find_scheme("fp32", torch.float32),
                device=model.device,
            )
            runner = model.make_runner(tensors, attention)
        verify(loaded.architecture, model, runner, path)


def _describe(loaded: LoadedModel, path: Path, *, context_tokens: int) -> ModelInfo:
    """What is known of a model before it is clear how it runs."""
    return ModelInfo(
        name=loaded.name,
        path=str(path),
        architecture=loaded.architecture,
        quantization=loaded.quantization,
        num_parameters=loaded.num_parameters,
        weights_bytes=loaded.weights_bytes,
        context_tokens=context_tokens,
        model_context_tokens=loaded.model_context_tokens,
        has_chat_template=loaded.chat_template is not None,
        backend="",
        device="",
        load_ms=0.0,
        fingerprint=hashlib.blake2b(loaded.fingerprint, digest_size=16).hexdigest(),
        converted=loaded.converted,
    )


def _default_threads() -> int:
    """How many threads compute without a wish: OMP_NUM_THREADS, or the physical cores."""
    wish = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if wish.isdecimal() and int(wish) > 0:
        return int(wish)
    return psutil.cpu_count(logical=False) or 1


def _useful_threads(wanted: int) -> int:
    """Never more than the computer runs at a time: with many more, a token takes seconds."""
    return min(wanted, os.cpu_count() or wanted)


def _choose_attention(model: LanguageModel, config: EngineConfig) -> tuple[AttentionBackend, str]:
    """The backend, and its name with the reason, for people."""
    needs = AttentionNeeds(
        device=model.device,
        dtype=model.dtype,
        scheme=find_scheme(config.kv_scheme, model.dtype),
        geometry=model.geometry,
        has_softcap=model.has_attention_softcap,
        block_size=config.block_size,
    )
    return choose_attention(config.attention_backend, needs)


def _context_tokens(
    loaded: LoadedModel, model: LanguageModel, config: EngineConfig, kv: KvTensors
) -> int:
    limits = (
        loaded.model_context_tokens,
        config.context_tokens,
        model.stable_context_tokens,
        kv.num_blocks * kv.block_size,
    )
    context_tokens = min(limit for limit in limits if limit is not None)
    wanted = config.context_tokens or loaded.model_context_tokens
    if context_tokens < wanted:
        logger.warning("context cut from %d to %d tokens", wanted, context_tokens)
    return context_tokens


def _scaled(on_progress: ProgressCallback | None) -> ProgressCallback | None:
    """Loading weights is not all: leave a last stretch for what comes after."""
    if on_progress is None:
        return None

    def report(progress: LoadProgress) -> None:
        stage = "Preparing memory" if progress.fraction >= 1.0 else progress.stage
        on_progress(LoadProgress(stage, progress.fraction * _SHARE_OF_LOADING))

    return report


def _last_stretch(on_progress: ProgressCallback | None) -> StageCallback | None:
    """What comes after loading, on the stretch that is left."""
    if on_progress is None:
        return None
    left = 1.0 - _SHARE_OF_LOADING
    return lambda stage, share: on_progress(
        LoadProgress(stage, _SHARE_OF_LOADING + share * left * _SHARE_OF_LOADING)
    )
