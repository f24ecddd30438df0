"""Where tokens go, which logits come back, and that nobody reads a stranger's slots."""

import pytest
import torch

from inference.model.runner import ModelRunner
from inference.model.step import Chunk
from tests.inference.tiny_models import (
    VOCAB_SIZE,
    eager_logits,
    make_module,
    make_runner,
    make_tokens,
    run_chunked,
)

P = 8


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return make_runner(make_module("llama"), block_size=P)


def test_run_writes_the_slots_of_the_chunk_and_no_others() -> None:
    runner = make_runner(make_module("llama"), block_size=P, num_blocks=8)
    runner.run([Chunk(make_tokens(5), 0, [6, 1], needs_logits=False)])
    runner.run([Chunk(make_tokens(6), 5, [6, 1], needs_logits=False)])
    written = set(range(48, 56)) | set(range(8, 11))
    for layer in runner.kv.layers:
        for plane in layer.planes:
            rows = plane.isnan().all(dim=2).all(dim=0)
            assert {slot for slot in range(64) if not rows[slot]} == written


def test_run_returns_logits_only_of_chunks_that_need_them(runner: ModelRunner) -> None:
    chunks = [
        Chunk(make_tokens(4, seed=1), 0, [0], needs_logits=False),
        Chunk(make_tokens(5, seed=2), 0, [1], needs_logits=True),
        Chunk(make_tokens(6, seed=3), 0, [2], needs_logits=False),
        Chunk(make_tokens(7, seed=4), 0, [3], needs_logits=True),
    ]
    logits = runner.run(chunks)
    assert logits.shape == (2, VOCAB_SIZE)
    assert logits.dtype == torch.float32
    alone = [runner.run([chunk])[0] for chunk in chunks if chunk.needs_logits]
    torch.testing.assert_close(logits, torch.stack(alone), atol=1e-5, rtol=0)


def test_run_without_any_logits_returns_no_row(runner: ModelRunner) -> None:
    logits = runner.run([Chunk(make_tokens(4), 0, [0], needs_logits=False)])
    assert logits.shape == (0, VOCAB_SIZE)


def test_run_ignores_what_strangers_left_in_reused_blocks() -> None:
    module = make_module("gemma3")
    runner = make_runner(module, block_size=P, num_blocks=6)
    run_chunked(runner, make_tokens(44, seed=7), [0, 1, 2, 3, 4, 5], chunk_tokens=16)
    tokens = make_tokens(30, seed=8)
    logits = run_chunked(runner, tokens, [4, 2, 5, 0], chunk_tokens=11)
    torch.testing.assert_close(logits[-1], eager_logits(module, tokens)[-1], atol=1e-4, rtol=0)


def test_touched_bytes_count_each_written_block_once() -> None:
    runner = make_runner(make_module("llama"), block_size=P)
    assert runner.kv.touched_bytes == 0
    # 4 layers x (keys + values) x 2 heads x 8 wide x 4 bytes
    assert runner.kv.block_bytes == P * 4 * 2 * 2 * 8 * 4
    table = [3, 9, 4]
    runner.run([Chunk(make_tokens(P + 1), 0, table, needs_logits=False)])
    assert runner.kv.touched_bytes == 2 * runner.kv.block_bytes
    runner.run([Chunk(make_tokens(P), P + 1, table, needs_logits=False)])
    assert runner.kv.touched_bytes == 3 * runner.kv.block_bytes


def test_half_precision_blocks_take_half_the_memory() -> None:
    module = make_module("llama")
    full = make_runner(module).kv.block_bytes
    assert make_runner(module, kv_scheme="fp16").kv.block_bytes * 2 == full
