"""Rates that are numbers only when there is something to divide."""

import pickle
from dataclasses import FrozenInstanceError

import pytest

from inference.metrics import BlockCounts, EngineStats, ModelInfo, RequestMetrics, TierStats


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (RequestMetrics(prompt_tokens=100, prefill_ms=50.0), None),  # no first token yet
        (RequestMetrics(prompt_tokens=100, prefill_ms=0.0, ttft_ms=0.0), None),
        (RequestMetrics(prompt_tokens=100, prefill_ms=50.0, ttft_ms=60.0), 2000.0),
        (RequestMetrics(prompt_tokens=100, reused_tokens=96, prefill_ms=8.0, ttft_ms=9.0), 500.0),
    ],
)
def test_prefill_tps_counts_what_was_computed(metrics, expected):
    assert metrics.prefill_tps == expected


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (RequestMetrics(), None),
        (RequestMetrics(completion_tokens=1, decode_ms=5.0), None),
        (RequestMetrics(completion_tokens=2, decode_ms=0.0), None),
        (RequestMetrics(completion_tokens=2, decode_ms=20.0), 50.0),
        (RequestMetrics(completion_tokens=11, decode_ms=100.0), 100.0),
    ],
)
def test_decode_tps_counts_tokens_after_the_first(metrics, expected):
    assert metrics.decode_tps == expected


VALUES = [
    RequestMetrics(1, 2, 3, 4, "evicted", 5.0, 6.0, 7.0, 8.0, 9.0),
    BlockCounts(total=3, free=1, cached=1, used=1),
    ModelInfo("a", "b", "llama", "Q4_1", 1, 2, 3, 4, True, "blocks (CPU)", "cpu", 5.0, "f00d"),
    EngineStats(blocks=BlockCounts(total=1, free=1), evictions=2),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_value_pickled_is_equal(value):
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_value_cannot_be_changed(value):
    with pytest.raises(FrozenInstanceError):
        setattr(value, next(iter(value.__slots__)), None)


def test_engine_stats_new_are_all_zero():
    stats = EngineStats()
    assert (stats.blocks, stats.device, stats.ram) == (BlockCounts(), TierStats(0, 0), TierStats())
    counted = ("block_size", "kv_bytes", "prompt_tokens", "num_loading", "disk_written_bytes")
    assert [getattr(stats, name) for name in counted] == [0] * 5
    assert (stats.disk_misses, stats.disk_problem) == ((), "")
