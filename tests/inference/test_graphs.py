"""Decode steps that are replayed: with a stand-in that replays operators by address, and on a GPU."""

import logging
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from inference.attention.paged import PagedAttention
from inference.kv_cache.schemes import find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.model.cuda_capture import CudaCapture, cuda_capture
from inference.model.decoder import TorchDecoder
from inference.model.decoder_weights import read_weights
from inference.model.graphs import MAX_ROWS, Capture, GraphRunner, Replay
from inference.model.runner import ModelRunner
from inference.model.step import Chunk
from tests.inference.paged_kernels import EmulatedVarlen, Recording, varlen_on_gpu
from tests.inference.tiny_decoders import make_variant, weights_of
from tests.inference.tiny_models import VOCAB_SIZE, fill_with_garbage, make_tokens

P = 256
NUM_BLOCKS = 24
CPU = torch.device("cpu")


class Pair:
    """One model over two memories: one is computed eagerly, one with captured steps."""

    def __init__(
        self, variant: str = "qwen3", capture: Capture | None = None, device: torch.device = CPU
    ) -> None:
        weights = weights_of(make_variant(variant, dtype=torch.bfloat16))
        tensors = read_weights(weights, dtype=torch.bfloat16, device=device.type)
        self.decoder = TorchDecoder(weights.spec, tensors)
        self.eager = self._runner(has_spare=False)
        inner = self._runner(has_spare=True)
        self.graphs = GraphRunner(
            self.decoder,
            inner.kv,
            self._attention(),
            inner,
            capture or Recording(),
        )

    def _attention(self) -> PagedAttention:
        device = self.decoder.device
        kernel = EmulatedVarlen() if device.type == "cpu" else varlen_on_gpu()
        return PagedAttention(kernel, block_size=P, device=device)

    def _runner(self, *, has_spare: bool) -> ModelRunner:
        kv = KvTensors(
            self.decoder.geometry,
            num_blocks=NUM_BLOCKS,
            block_size=P,
            scheme=find_scheme("bf16", torch.bfloat16),
            device=self.decoder.device,
            has_spare=has_spare,
        )
        fill_with_garbage(kv)
        return ModelRunner(self.decoder, kv, self._attention(), device=self.decoder.device)

    def run(self, chunks: list[Chunk]) -> tuple[Tensor, Tensor]:
        """Logits of a step, computed both ways."""
        return self.eager.run(chunks), self.graphs.run(chunks)


def tables(count: int, width: int = 2) -> list[list[int]]:
    """Blocks of several sequences, scattered."""
    order = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(2)).tolist()
    return [order[n * width : (n + 1) * width] for n in range(count)]


def decode(starts: list[int], *, seed: int = 1, width: int = 2) -> list[Chunk]:
    """One token of each of some chats that have so many behind them."""
    tokens = make_tokens(len(starts), seed=seed)
    return [
        Chunk([token], start, table, needs_logits=True)
        for token, start, table in zip(tokens, starts, tables(len(starts), width), strict=True)
    ]


def prompts(lengths: list[int], width: int = 2) -> list[Chunk]:
    return [
        Chunk(make_tokens(length, seed=length), 0, table, needs_logits=False)
        for length, table in zip(lengths, tables(len(lengths), width), strict=True)
    ]


@pytest.mark.parametrize("variant", ["qwen3", "gemma3", "llama-biases", "phi3-partial", "granite"])
def test_replayed_steps_give_the_very_logits_of_eager_ones(variant: str) -> None:
    pair = Pair(variant)
    pair.run(prompts([40, 13]))
    for step in range(6):
        eager, replayed = pair.run(decode([40 + step, 13 + step], seed=step))
        assert torch.equal(eager, replayed)
    assert pair.graphs.num_replays == 6


def test_steps_of_one_shape_are_captured_once() -> None:
    capture = Recording()
    pair = Pair(capture=capture)
    pair.run(prompts([20, 9]))
    assert capture.num_captures == 0  # prompts are computed eagerly
    edge = 4 * P
    for step in range(4):  # over the edge of the fourth block: then the table is twice as wide
        pair.run(decode([edge - 2 + step, 20 + step, 9 + step], seed=step, width=5))
    assert capture.num_captures == 2
    pair.run(decode([edge + 2, 24, 13], seed=9, width=5)[:2])
    pair.run(decode([edge + 2, 24, 13], seed=9, width=5)[:1])
    assert capture.num_captures == 4
    pair.run(decode([edge + 3, 25, 14], seed=9, width=5))
    assert capture.num_captures == 4


@pytest.mark.parametrize("count", [1, 2, 3, 5, 7])
def test_rows_that_fill_a_step_change_nothing(count: int) -> None:
    pair = Pair()
    lengths = [30 + 3 * n for n in range(count)]
    pair.run(prompts(lengths))
    for step in range(3):
        eager, replayed = pair.run(decode([length + step for length in lengths], seed=step))
        assert replayed.shape == (count, VOCAB_SIZE)
        torch.testing.assert_close(eager, replayed, atol=0.03, rtol=0)  # bf16 in other batches
    used = torch.cat([torch.arange(b * P, (b + 1) * P) for table in tables(count) for b in table])
    for mine, other in zip(pair.graphs.kv.layers, pair.eager.kv.layers, strict=True):
        unused = torch.ones(NUM_BLOCKS * P, dtype=torch.bool)
        unused[used] = False
        own, eager_own = (layer.planes[0][:, : NUM_BLOCKS * P] for layer in (mine, other))
        assert own[:, unused].isnan().all()  # nothing was written where nobody may
        assert torch.equal(own[:, used].isnan(), eager_own[:, used].isnan())


def test_only_rows_that_need_logits_have_them() -> None:
    pair = Pair()
    pair.run(prompts([20, 21, 22]))
    first, second, third = decode([20, 21, 22])
    silent = Chunk(second.token_ids, second.start, second.block_table, needs_logits=False)
    eager, replayed = pair.run([first, silent, third])
    assert eager.shape == replayed.shape == (2, VOCAB_SIZE)
    torch.testing.assert_close(eager, replayed, atol=0.03, rtol=0)
    eager, replayed = pair.run([silent])
    assert eager.shape == replayed.shape == (0, VOCAB_SIZE)


def test_logits_stay_when_the_next_step_is_replayed() -> None:
    pair = Pair()
    pair.run(prompts([20]))
    first = pair.graphs.run(decode([20]))
    kept = first.clone()
    pair.graphs.run(decode([21], seed=5))
    assert torch.equal(first, kept)


def test_prompts_and_large_batches_are_computed_eagerly() -> None:
    capture = Recording()
    pair = Pair(capture=capture)
    pair.run(prompts([20]))
    chunk = Chunk(make_tokens(3), 20, tables(1)[0], needs_logits=True)
    eager, others = pair.run([chunk])
    assert torch.equal(eager, others)
    many = [Chunk([5], 0, [0], needs_logits=True)] * (MAX_ROWS + 1)
    pair.graphs.run(many)
    assert (capture.num_captures, pair.graphs.num_replays) == (0, 0)


class FailingCapture:
    """Captures so many steps and no more."""

    def __init__(self, num_captures: int) -> None:
        self.left = num_captures
        self.num_tries = 0
        self._recording = Recording()

    def __call__(self, compute: Callable[[], Tensor]) -> Replay:
        self.num_tries += 1
        if self.left == 0:
            compute()
            raise RuntimeError("operation not permitted when stream is capturing")
        self.left -= 1
        return self._recording(compute)


def test_capture_that_fails_leaves_steps_eager_for_good_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    capture = FailingCapture(1)
    pair = Pair(capture=capture)
    pair.run(prompts([20, 30]))
    with caplog.at_level(logging.WARNING):
        for step in range(3):
            for count in (1, 2):
                chunks = decode([20 + step, 30 + step], seed=step)[:count]
                eager, others = pair.run(chunks)
                assert torch.equal(eager, others)
    assert capture.num_tries == 2
    assert pair.graphs.num_replays == 1
    told = [record for record in caplog.records if "without graphs" in record.message]
    assert len(told) == 1


def test_nothing_is_captured_where_there_are_no_graphs() -> None:
    assert cuda_capture(CPU) is None
    assert cuda_capture(torch.device("mps")) is None


class _BreaksOff:
    """In the place of `torch.cuda.graph`: what CUDA says at the end of a capture that failed."""

    def __init__(self, *args: object, **kwargs: object) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *args: object) -> None:
        raise RuntimeError("operation failed due to a previous error during capture")


def test_after_a_capture_that_failed_nothing_is_captured_in_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams: list[object] = []
    current = SimpleNamespace(wait_stream=lambda other: None)
    monkeypatch.setattr(CudaCapture, "has_failed", False)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: current)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current)
    monkeypatch.setattr(torch.cuda, "set_stream", streams.append)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "graph", _BreaksOff)
    capture = cuda_capture(torch.device("cuda"))
    assert capture is not None

    def out_of_memory() -> Tensor:
        raise torch.OutOfMemoryError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        capture(out_of_memory)  # in the warm-up: nothing was captured yet
    assert cuda_capture(torch.device("cuda")) is not None
    with pytest.raises(RuntimeError, match="previous error"):
        capture(lambda: torch.zeros(1))
    assert streams == [current]
    with pytest.raises(RuntimeError, match="broke off before"):
        capture(lambda: torch.zeros(1))
    assert cuda_capture(torch.device("cuda")) is None


def test_decoder_replays_only_with_a_kernel_a_spare_block_and_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair()
    attention = PagedAttention(EmulatedVarlen(), block_size=P, device=CPU)
    with_spare, without = pair.graphs.kv, pair.eager.kv
    assert isinstance(pair.decoder.make_runner(with_spare, attention), ModelRunner)
    monkeypatch.setattr("inference.model.decoder.cuda_capture", lambda device: Recording())
    assert isinstance(pair.decoder.make_runner(with_spare, attention), GraphRunner)
    assert isinstance(pair.decoder.make_runner(without, attention), ModelRunner)
    pair.decoder.has_streamed_layers = True
    assert isinstance(pair.decoder.make_runner(with_spare, attention), ModelRunner)


# --- on a GPU ---------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("variant", ["qwen3", "gemma3"])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_replayed_steps_give_the_logits_of_eager_ones_on_a_gpu(variant: str, count: int) -> None:
    device = torch.device("cuda")
    pair = Pair(variant, CudaCapture(device), device)
    lengths = [240 + 9 * n for n in range(count)]
    pair.run(prompts(lengths))
    for step in range(20):  # over the edge of a block
        chunks = decode([length + step for length in lengths], seed=step)
        eager, replayed = pair.run(chunks)
        if count & (count - 1) == 0:
            assert torch.equal(eager, replayed)
        torch.testing.assert_close(eager, replayed, atol=0.05, rtol=0)
    assert pair.graphs.num_replays == 20


@pytest.mark.gpu
def test_captured_work_reads_what_its_tensors_hold_on_a_gpu() -> None:
    device = torch.device("cuda")
    numbers = torch.ones(4, device=device)
    replay = CudaCapture(device)(lambda: numbers * 2)
    assert replay().tolist() == [2.0] * 4
    numbers.fill_(5.0)
    assert replay().tolist() == [10.0] * 4


def break_a_capture() -> None:
    """Leaves a process in which nothing is captured any more: for one of its own."""
    device = torch.device("cuda")
    before = torch.cuda.current_stream()
    numbers = torch.ones(4, device=device)

    def compute() -> Tensor:
        return numbers * float(numbers.sum())  # asks the device for a value: cannot be captured

    with pytest.raises(RuntimeError):
        CudaCapture(device)(compute)
    assert torch.cuda.current_stream() == before
    assert compute().tolist() == [4.0] * 4
    assert cuda_capture(device) is None


@pytest.mark.gpu
def test_capture_that_fails_on_a_gpu_leaves_the_stream_as_it_was() -> None:
    code = "from tests.inference.test_graphs import break_a_capture; break_a_capture()"
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", code], cwd=root, check=True)
