"""Counts what an engine holds and has done. Engine thread only."""

from inference.engine_loading import EngineParts
from inference.live_requests import Totals
from inference.metrics import EngineStats


def count_all(parts: EngineParts, totals: Totals) -> EngineStats:
    """A snapshot, cheap enough to take once per step.

    Args:
        parts: Of the engine.
        totals: Of its requests.
    """
    device, ram, disk = parts.memory.tiers()
    written_bytes, misses, problem = parts.memory.disk_state()
    draft = parts.speculator.draft
    return EngineStats(
        blocks=parts.kv.counts(),
        block_size=parts.kv.block_size,
        block_bytes=parts.runner.kv.block_bytes,
        weights_bytes=parts.info.weights_bytes,
        kv_bytes=parts.runner.kv.touched_bytes,
        num_running=len(parts.scheduler.running),
        num_waiting=len(parts.scheduler.waiting),
        prompt_tokens=totals.prompt_tokens,
        reused_tokens=totals.reused_tokens,
        completion_tokens=totals.completion_tokens,
        preemptions=parts.scheduler.preemptions,
        evictions=parts.kv.evictions,
        num_loading=len(parts.scheduler.loading),
        device=device,
        ram=ram,
        disk=disk,
        reused_ram_tokens=totals.reused_ram_tokens,
        reused_disk_tokens=totals.reused_disk_tokens,
        disk_written_bytes=written_bytes + (0 if draft is None else draft.disk_written_bytes),
        disk_misses=misses,
        disk_problem=problem,
        graph_replays=parts.runner.num_replays,
        guesses=parts.speculator.stats(),
    )
