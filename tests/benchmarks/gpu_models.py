"""A real model on a device, as `gpu_check` measures it: steps through the engine's own runner."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inference.config import EngineConfig
from inference.engine import Engine
from inference.engine_loading import EngineParts, load_parts
from inference.model.kv_quality import perplexity, sample_text
from inference.model.step import Chunk
from tests.benchmarks.chats import Chat, long_text
from tests.benchmarks.filled_blocks import fill_blocks

Result = dict[str, Any]
REPLY_TOKENS = 32  # of a reply that are compared
_KV_BYTES = {"cuda": 4 * 2**30, "cpu": 256 * 2**20}


def synchronize(device: torch.device) -> None:
    """Wait for all that was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(call: Callable[[], object], device: torch.device, *, times: int) -> float:
    """The median time of a call, with all that it launched; a few calls before it do not count."""
    found = []
    warm_ups = min(3, times)
    for count in range(warm_ups + times):
        synchronize(device)
        began = time.perf_counter()
        call()
        synchronize(device)
        if count >= warm_ups:
            found.append(time.perf_counter() - began)
    return statistics.median(found)


class OpenModel:
    """One model with one configuration."""

    def __init__(self, path: Path, device: torch.device, **config: object) -> None:
        values: Result = {
            "device": device.type,
            "context_tokens": 4096,
            "kv_cache_bytes": _KV_BYTES[device.type],
            "ram_cache_bytes": 0,
            **config,
        }
        self.parts: EngineParts = load_parts(path, EngineConfig(**values), None)
        self.device = device
        self.runner = self.parts.runner
        self.kv = self.runner.kv

    def close(self) -> None:
        """Give its memory back."""
        engine = Engine(self.parts)
        del self.parts, self.runner, self.kv
        engine.close()

    def tokens(self, count: int) -> list[int]:
        """Ids of a text."""
        text = sample_text() + long_text(8 * count)
        return self.parts.tokenizer.encode_text(text, after="start")[:count]

    def perplexity(self, num_tokens: int) -> float:
        """Of a text, every token of which is predicted."""
        return perplexity(self.runner, self.tokens(num_tokens))

    def decode(self, depth: int, num_chats: int, *, times: int) -> float:
        """Seconds of a decode step of some chats, its greedy choice included."""
        blocks = -(-(depth + 1) // self.kv.block_size)
        num_chats = min(num_chats, self.kv.num_blocks // blocks)
        tables = [range(n * blocks, (n + 1) * blocks) for n in range(num_chats)]
        chunks = [Chunk([5 + n], depth, table, True) for n, table in enumerate(tables)]
        return seconds(
            lambda: self.runner.run(chunks).argmax(-1).tolist(), self.device, times=times
        )

    def prefill(self, num_tokens: int, chunk_tokens: int, *, times: int) -> float:
        """Seconds to read a prompt in chunks."""
        tokens = self.tokens(num_tokens)
        table = range(-(-num_tokens // self.kv.block_size))

        def read() -> None:
            for low in range(0, num_tokens, chunk_tokens):
                part = tokens[low : low + chunk_tokens]
                self.runner.run([Chunk(part, low, table, needs_logits=True)])

        return seconds(read, self.device, times=times)

    def step_bytes(self, depth: int) -> int:
        """What a decode step must read: weights without the table of embeddings, and the KV."""
        table = 0
        model = getattr(self.runner, "_model", None)
        embedding = getattr(model, "_embedding", None)
        if embedding is not None and not _shares(model, embedding):
            table = embedding.nbytes
        return self.parts.info.weights_bytes - table + depth * self.kv.bytes_per_token

    def reply(self, num_tokens: int) -> Chat:
        """A chat through the whole engine, sampling and text included."""
        engine = Engine(self.parts)
        chat = Chat("check")
        chat.say(engine, "Tell me a long story about a lighthouse.", max_tokens=num_tokens)
        return chat


def _shares(model: object, embedding: Tensor) -> bool:
    """Whether the head multiplies with the embedding itself."""
    weight = getattr(getattr(model, "_head", None), "weight", None)
    return isinstance(weight, Tensor) and weight.data_ptr() == embedding.data_ptr()


def measure_variant(
    path: Path, device: torch.device, bytes_per_second: float, *, is_quick: bool, **config: object
) -> Result:
    """Correctness, speed and memory of one model with one configuration."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    opened = OpenModel(path, device, **config)
    try:
        return _measured(opened, bytes_per_second, is_quick=is_quick)
    finally:
        opened.close()


def _measured(opened: OpenModel, bytes_per_second: float, *, is_quick: bool) -> Result:
    info, times = opened.parts.info, 1 if is_quick else 20
    depths = (0, 100) if is_quick else (0, 1024, 3000)
    prompt_tokens = 64 if is_quick else 2048
    found: Result = {
        "backend": info.backend,
        "weights": info.quantization,
        "weights MB": info.weights_bytes / 2**20,
        "load s": info.load_ms / 1000,
        "perplexity": opened.perplexity(32 if is_quick else 512),
    }
    fill_blocks(opened.kv)
    for depth in depths:
        took = opened.decode(depth, 1, times=times)
        found[f"decode at {depth} tok/s"] = 1 / took
        found[f"decode at {depth} of bandwidth"] = (
            opened.step_bytes(depth) / took / bytes_per_second
        )
    for num_chats in (2,) if is_quick else (4, 8):
        found[f"{num_chats} chats tok/s"] = num_chats / opened.decode(
            depths[1], num_chats, times=times
        )
    found["step tokens"] = usual = opened.parts.scheduler.token_budget
    chunks = {"48": 48} if is_quick else {"256": 256, "2048": 2048}
    for name, chunk_tokens in {**chunks, "usual steps": usual}.items():
        took = opened.prefill(prompt_tokens, chunk_tokens, times=1 if is_quick else 5)
        found[f"prefill by {name} tok/s"] = prompt_tokens / took
    found["replays"] = opened.runner.num_replays
    chat = opened.reply(4 if is_quick else 256)
    found["reply tok/s"] = chat.metrics.decode_tps
    found["reply ids"] = list(chat.reply_ids[:REPLY_TOKENS])
    if opened.device.type == "cuda":
        found["peak MB"] = torch.cuda.max_memory_allocated(opened.device) / 2**20
        found["reserved MB"] = torch.cuda.memory_reserved(opened.device) / 2**20
    return found
