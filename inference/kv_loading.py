"""Puts the KV memory of one model together: its scheme, tensors, tiers and bookkeeping.

Engine thread only. How much each tier may take is in `kv_budgets`.
"""

import hashlib
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil
import torch

from inference.attention.base import AttentionBackend
from inference.attention.paged import PagedAttention
from inference.chat_memory import ChatMemory
from inference.config import EngineConfig, KvSchemeName
from inference.errors import InvalidRequestError, NotEnoughMemoryError
from inference.formats.whole_digest import WeightFiles
from inference.kv_budgets import default_device_bytes, default_disk_bytes, default_ram_bytes
from inference.kv_cache.disk.store import DiskStore
from inference.kv_cache.disk.trail import Maker
from inference.kv_cache.host_memory import HostArena
from inference.kv_cache.manager import KvCacheManager
from inference.kv_cache.ram_tier import RamTier
from inference.kv_cache.schemes import KvScheme, bytes_per_token, find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.kv_names import identity_of, maker_of, namespace_of
from inference.metrics import KvSchemeInfo
from inference.model.base import LanguageModel
from inference.model.decoder import TorchDecoder
from inference.model.kv_quality import (
    KvVerdict,
    assess_int4,
    load_verdict,
    sample_text,
    save_verdict,
)
from inference.model.loader import LoadedModel
from inference.model.memory import (
    free_bytes,
    release_unused,
    reserve_bytes,
    telling_shortage,
)
from inference.request import TRYING_INT4
from inference.transfers import NUM_COPYING_THREADS, Transfers

logger = logging.getLogger(__name__)

StageCallback = Callable[[str, float], None]

_MIN_BLOCKS = 2  # even if the budget is smaller: it may be one for a backend with smaller blocks
_MAX_RAM_SHARE = (
    0.5  # of the machine's memory: as far as the RAM budget can be raised while it runs
)
_MAX_RAM_SLOTS = 2**15  # the bookkeeping of more would cost what it brings; 12 GB of a small model
_QUALITY_TOKENS = 1_500
_SHARE_OF_CHECKING = 0.5  # of the stretch that is reported; the rest is for trying int4
_UNBOUNDED = 2**62


@dataclass(slots=True)
class KvParts:
    """The KV memory of one model.

    Attributes:
        tensors: Where keys and values lie on the device.
        manager: The bookkeeping of the blocks.
        memory: What outlives a reply.
        transfers: Moves rows between the tiers.
        schemes: All ways to store keys and values, for people.
    """

    tensors: KvTensors
    manager: KvCacheManager
    memory: ChatMemory
    transfers: Transfers
    schemes: tuple[KvSchemeInfo, ...]


def make_kv(
    model: LanguageModel,
    loaded: LoadedModel,
    attention: AttentionBackend,
    config: EngineConfig,
    device: str,
    weights: WeightFiles,
    on_progress: StageCallback | None = None,
) -> KvParts:
    """Reserve the memory and open the tiers.

    Args:
        model: The model.
        loaded: What is known of it.
        attention: The backend in use.
        config: What the caller wants.
        device: Where the model is.
        weights: Its files, as they were before it was loaded.
        on_progress: Told of what takes long, in words, and the share that is done; may raise to break
            it off.

    Raises:
        InvalidRequestError: int4 is wanted and would make this model worse.
        ModelFileError: The files changed meanwhile, or cannot be read.
        NotEnoughMemoryError: Not even a few blocks fit, or not what is asked for.
    """
    whole = _whole_digest(weights, config, on_progress)
    identity = identity_of(loaded, whole)
    verdict = _verdict_on_int4(identity, model, loaded, attention, config, on_progress)
    scheme = find_scheme(config.kv_scheme, model.dtype)
    tensors = _reserve(model, loaded, attention, scheme, config, device)
    namespace = namespace_of(identity, model, tensors)
    disk = _open_disk(config, tensors, namespace, maker_of(loaded, whole, model, tensors))
    ram_bytes = config.ram_cache_bytes
    if ram_bytes is None:
        ram_bytes = default_ram_bytes(device)
    arena = _make_arena(tensors.block_bytes, ram_bytes)
    ram = RamTier(arena.num_slots)
    ram.set_limit(ram_bytes // tensors.block_bytes)
    transfers = Transfers(tensors, arena, disk)
    manager = KvCacheManager(
        tensors.num_blocks,
        tensors.block_size,
        namespace=namespace,
        mover=transfers,
        ram=ram,
        disk=disk,
    )
    memory = ChatMemory(manager, tensors, ram, arena, transfers, device=device)
    return KvParts(tensors, manager, memory, transfers, _describe_schemes(model, verdict))


def _whole_digest(
    weights: WeightFiles, config: EngineConfig, on_progress: StageCallback | None
) -> bytes:
    """Name the weights by all their bytes; empty if nothing outlives the process.

    Raises:
        ModelFileError: The files changed meanwhile, or cannot be read.
    """
    if config.cache_dir is None:
        return b""
    report = None if on_progress is None else partial(_report_check, on_progress)
    return weights.digest(Path(config.cache_dir), report)


def _report_check(on_progress: StageCallback, share: float) -> None:
    on_progress("Checking the file", share * _SHARE_OF_CHECKING)


def _verdict_on_int4(
    identity: bytes,
    model: LanguageModel,
    loaded: LoadedModel,
    attention: AttentionBackend,
    config: EngineConfig,
    on_progress: StageCallback | None,
) -> KvVerdict | None:
    """Whether int4 suits the model; found out only when it is wanted, and then remembered.

    Raises:
        InvalidRequestError: It is wanted and does not.
        NotEnoughMemoryError: It cannot be found out.
    """
    fingerprint = hashlib.blake2b(identity, digest_size=16).hexdigest()
    folder = None if config.cache_dir is None else Path(config.cache_dir)
    verdict = None if folder is None else load_verdict(folder, fingerprint)
    if config.kv_scheme != "int4":
        return verdict
    if verdict is None:
        token_ids = loaded.tokenizer.encode_text(sample_text(), after="start")
        # Where a model is not used to it, the text after such a token is read as none that it ever meets.
        first_id = loaded.tokenizer.bos_id if loaded.tokenizer.add_bos else None
        bos = [] if first_id is None else [first_id]
        context_tokens = model.stable_context_tokens or loaded.model_context_tokens
        sample = [*bos, *token_ids][: min(_QUALITY_TOKENS, context_tokens)]
        block_size = config.block_size or attention.block_size
        report = None if on_progress is None else partial(_report_trial, on_progress)
        size = len(sample) * bytes_per_token(model.geometry, find_scheme("auto", model.dtype))
        with telling_shortage(size, free_bytes(str(model.device))):
            verdict = assess_int4(model, attention, sample, block_size, report)
        if folder is not None:
            save_verdict(folder, fingerprint, verdict)
    if not verdict.is_offered:
        raise InvalidRequestError("kv_scheme", verdict.reason, hint="Choose int8 or fp16.")
    return verdict


def _report_trial(on_progress: StageCallback, share: float) -> None:
    rest = 1.0 - _SHARE_OF_CHECKING
    on_progress(f"{TRYING_INT4}, {share:.0%} done", _SHARE_OF_CHECKING + share * rest)


def _describe_schemes(model: LanguageModel, verdict: KvVerdict | None) -> tuple[KvSchemeInfo, ...]:
    names: list[KvSchemeName] = [find_scheme("auto", model.dtype).name, "int8", "int4"]
    described = []
    for name in names:
        scheme = find_scheme(name, model.dtype)
        is_refused = name == "int4" and verdict is not None and not verdict.is_offered
        reason = verdict.reason if is_refused and verdict is not None else ""
        size = bytes_per_token(model.geometry, scheme)
        described.append(KvSchemeInfo(name, size, is_offered=not is_refused, reason=reason))
    return tuple(described)


def _reserve(
    model: LanguageModel,
    loaded: LoadedModel,
    attention: AttentionBackend,
    scheme: KvScheme,
    config: EngineConfig,
    device: str,
) -> KvTensors:
    """Reserve blocks for one whole context and more, or for what the budget allows of it.

    Raises:
        NotEnoughMemoryError: Not even a few blocks fit, or not what is asked for.
    """
    block_size = config.block_size or attention.block_size
    block_bytes = block_size * bytes_per_token(model.geometry, scheme)
    release_unused(device)  # what the load left over counts as free
    free = free_bytes(device)
    has_spare = _replays_steps(model, attention, config)
    kept_free = reserve_bytes(device, free) + (has_spare + _num_staged(device)) * block_bytes
    budget = config.kv_cache_bytes
    if budget is None:
        wanted = config.context_tokens or loaded.model_context_tokens
        if model.stable_context_tokens is not None:
            wanted = min(wanted, model.stable_context_tokens)
        budget = default_device_bytes(device, -(-wanted // block_size) * block_bytes)
        budget = min(budget, free - kept_free)
    num_blocks = max(_MIN_BLOCKS, budget // block_bytes)
    needed = num_blocks * block_bytes + kept_free
    if needed > free:
        is_set = config.kv_cache_bytes is not None
        raise NotEnoughMemoryError(max(budget, needed), free, is_for_chats=is_set)
    with telling_shortage(needed, free):
        return KvTensors(
            model.geometry,
            num_blocks=num_blocks,
            block_size=block_size,
            scheme=scheme,
            device=torch.device(device),
            has_spare=has_spare,
        )


def _replays_steps(model: LanguageModel, attention: AttentionBackend, config: EngineConfig) -> bool:
    """Whether decode steps will be replayed, which takes a spare block: see `model.graphs`."""
    is_wanted = config.cuda_graphs and isinstance(attention, PagedAttention)
    return is_wanted and isinstance(model, TorchDecoder) and not model.has_streamed_layers


def _num_staged(device: str) -> int:
    """Blocks that copies to the host and back have room for on a device: see `StagedCopies`."""
    return NUM_COPYING_THREADS if torch.device(device).type == "cuda" else 0


def _make_arena(slot_bytes: int, ram_bytes: int) -> HostArena:
    """Slots for the RAM budget, and for a larger one later where reserving costs nothing."""
    wanted = ram_bytes
    if sys.platform != "win32":
        wanted = max(wanted, int(_MAX_RAM_SHARE * psutil.virtual_memory().total))
    for size in (wanted, ram_bytes):
        try:
            return HostArena(slot_bytes, min(size // slot_bytes, _MAX_RAM_SLOTS))
        except (OSError, MemoryError) as error:
            logger.warning("no %d MB of RAM for blocks put aside: %s", size // 2**20, error)
    return HostArena(slot_bytes, 0)


def _open_disk(
    config: EngineConfig, kv: KvTensors, namespace: bytes, maker: Maker
) -> DiskStore | None:
    if config.cache_dir is None:
        return None
    root = Path(config.cache_dir)
    budget = config.disk_cache_bytes
    disk = DiskStore(
        root,
        namespace=namespace,
        block_size=kv.block_size,
        row_layout=kv.row_layout,
        budget_bytes=_UNBOUNDED if budget is None else budget,
        maker=maker,
    )
    disk.open()
    if budget is None:  # how much there may be depends on how much there is
        disk.set_budget(default_disk_bytes(root, disk.stats().used_bytes))
    return disk
