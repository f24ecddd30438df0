"""Loads a draft model beside its target. Engine thread only."""

import gc
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from inference.config import DeviceName, EngineConfig
from inference.drafting.vocabulary_match import (
    is_other_vocabulary,
    tokenizer_at,
    vocabulary_difference,
)
from inference.engine_loading import EngineParts, ProgressCallback, load_parts
from inference.errors import InvalidRequestError
from inference.model.loader import LoadedModel, load_model
from inference.model.memory import release_unused
from inference.text.tokenizer import Tokenizer

MAX_KV_BYTES = 512 * 2**20
"""Keys and values of a few chats; of those that gave way, the rows are on disk or read again."""

_MIN_KV_BYTES = 2**20
_HINT = "Choose a smaller model of the same family."


def load_draft_parts(
    path: Path,
    target: EngineParts,
    on_progress: ProgressCallback | None = None,
    *,
    load: Callable[..., LoadedModel] = load_model,
) -> EngineParts:
    """Load a model that can guess for a target. If it cannot, nothing of it stays in memory.

    Args:
        path: A GGUF file or a folder of safetensors.
        target: The parts of the model to guess for.
        on_progress: Told how far it has come, on this thread.
        load: Reads the weights; tests give models of their own.

    Raises:
        InvalidRequestError: Its vocabulary is another, or it is larger than the target.
        ModelFileError: The file or folder is at fault, or of a kind that cannot be run.
        NotEnoughMemoryError: It does not fit beside the target.
    """

    def load_checked(path: Path, **options: object) -> LoadedModel:
        loaded = load(path, **options)
        _check_vocabulary(loaded.tokenizer, target)
        _check_size(loaded, target)
        return loaded

    if is_other_vocabulary(target.info.path, path):
        _check_vocabulary(tokenizer_at(path), target)  # before its weights are read

    num_threads = torch.get_num_threads()
    try:
        parts = load_parts(path, _config_beside(target), on_progress, load=load_checked)
        target.memory.share_disk(parts.memory)
        return parts
    except BaseException as error:
        _drop_locals(error)
        gc.collect()  # a model's modules refer to each other
        release_unused(target.device)
        raise
    finally:
        torch.set_num_threads(
            num_threads
        )  # as the target has it; the draft model's runner sets its own


def _drop_locals(error: BaseException) -> None:
    """Let go of what the frames of an error hold: the weights, as far as they were read."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__


def _config_beside(target: EngineParts) -> EngineConfig:
    """How to run a draft model: where the target runs, with little memory, computed as is best for it."""
    kv = target.runner.kv
    _, _, disk = target.memory.tiers()  # the budget may be another than at the start
    kv_bytes = min(kv.num_blocks * kv.block_bytes, MAX_KV_BYTES)
    return replace(
        target.config,
        device=cast(DeviceName, target.device),
        num_threads=target.info.num_threads,
        context_tokens=target.info.context_tokens,
        kv_scheme="auto",
        kv_cache_bytes=max(kv_bytes, _MIN_KV_BYTES),
        ram_cache_bytes=0,
        disk_cache_bytes=disk.budget_bytes,
        backend="auto",
        attention_backend="auto",
        guess="off",
        draft_model=None,
        draft_tokens=None,
    )


def _check_vocabulary(tokenizer: Tokenizer, target: EngineParts) -> None:
    difference = vocabulary_difference(target.tokenizer, tokenizer)
    if difference:
        raise InvalidRequestError("draft_model", difference, hint=_HINT)


def _check_size(loaded: LoadedModel, target: EngineParts) -> None:
    sizes = (
        (loaded.num_parameters, target.info.num_parameters, "weights"),
        (loaded.weights_bytes, target.info.weights_bytes, "bytes of weights"),
    )
    for its, of_target, what in sizes:
        if its > of_target:
            reason = (
                f"It has {its:,} {what}, more than the {of_target:,} of the model that it should "
                "guess for."
            )
            raise InvalidRequestError("draft_model", reason, hint=_HINT)
