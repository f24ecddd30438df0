"""What a step of the kernels costs on a real model: `python -m tests.benchmarks.steps --model FILE`.

Steps take turns within each round, so that a slow moment of the machine hits all; a ratio is the median
of the rounds' ratios.

    one row at D    a decode step with D tokens before it, and its share of the least time that reading
                    weights and KV at the machine's bandwidth, measured in the same round, would take
    verify 2, 4, 8  so many rows of one chat in a step, against one
    batch 2, 4, 8   one row of each of so many chats in a step, against one chat
    busy core       decode while another process keeps one core busy, against decode without it: the share
                    of the speed that is left, and the slowest step against the medians of both
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from app.starter_model import find_starter_model
from inference.attention.blocks import BlocksAttention
from inference.config import KvSchemeName
from inference.kernels.library import load_kernels, why_no_kernels
from inference.kv_cache.schemes import find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.model.base import Runner
from inference.model.loader import LoadedModel, load_model
from inference.model.native_model import NativeModel
from inference.model.step import Chunk
from tests.benchmarks.filled_blocks import fill_blocks
from tests.benchmarks.reading import Reader

DEPTHS = (0, 1024, 3000)
COUNTS = (2, 4, 8)
BLOCK_SIZE = 16
STEPS_PER_ROUND = 8
BUSY_STEPS = 150
CHAT_TOKENS = 256  # before the rows of a batch
BUSY_CODE = "while True: pass"

Step = Callable[[], object]


class Bench:
    """A model over blocks of numbers that are there already; no prompt is computed."""

    def __init__(self, loaded: LoadedModel, model: NativeModel, scheme: KvSchemeName) -> None:
        self.loaded = loaded
        self.model = model
        self.blocks_per_chat = -(-(max(DEPTHS) + 64) // BLOCK_SIZE)
        self.kv = KvTensors(
            model.geometry,
            num_blocks=self.blocks_per_chat * max(COUNTS),
            block_size=BLOCK_SIZE,
            scheme=find_scheme(scheme, model.dtype),
            device=torch.device("cpu"),
        )
        fill_blocks(self.kv)
        self.runner: Runner = model.make_runner(self.kv, BlocksAttention())

    def chunk(self, chat: int, depth: int, num_rows: int) -> Chunk:
        first = chat * self.blocks_per_chat
        table = range(first, first + self.blocks_per_chat)
        return Chunk([1000 + n for n in range(num_rows)], depth, table, True, True)

    def rows(self, depth: int, num_rows: int) -> Step:
        chunk = self.chunk(0, depth, num_rows)
        return lambda: self.runner.run([chunk])

    def batch(self, num_chats: int) -> Step:
        chunks = [self.chunk(chat, CHAT_TOKENS, 1) for chat in range(num_chats)]
        return lambda: self.runner.run(chunks)

    def bytes_of_step(self, depth: int) -> int:
        """What a decode step has to read; of an embedding that is no head, one row."""
        spare = 0
        if self.model.structure.head.data != self.model.structure.embedding.data:
            spare = self.model.embedding_bytes
        return self.loaded.weights_bytes - spare + depth * self.kv.bytes_per_token


def seconds(step: Step) -> float:
    """The median of a few calls."""
    times = []
    for _ in range(STEPS_PER_ROUND):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def measure(bench: Bench, reader: Reader, *, rounds: int) -> dict[str, dict[str, float]]:
    """All that is measured alone on the machine."""
    steps = {f"one row at {depth}": bench.rows(depth, 1) for depth in DEPTHS}
    steps |= {f"verify {count}": bench.rows(CHAT_TOKENS, count) for count in (1, *COUNTS)}
    steps |= {f"batch {count}": bench.batch(count) for count in (1, *COUNTS)}
    times: dict[str, list[float]] = {name: [] for name in steps}
    reading: list[float] = []
    for number in range(rounds + 1):
        rate = reader.measure()
        found = {name: seconds(step) for name, step in steps.items()}
        if number:  # the first round warms up
            reading.append(rate * 1e9)
            for name, value in found.items():
                times[name].append(value)
    results: dict[str, dict[str, float]] = {}
    for depth in DEPTHS:
        name = f"one row at {depth}"
        least = [bench.bytes_of_step(depth) / rate for rate in reading]
        shares = [a / b for a, b in zip(least, times[name], strict=True)]
        results[name] = {
            "tokens/s": 1 / statistics.median(times[name]),
            "share of bandwidth": statistics.median(shares),
        }
    for kind in ("verify", "batch"):
        for count in COUNTS:
            pairs = zip(times[f"{kind} {count}"], times[f"{kind} 1"], strict=True)
            cost = statistics.median(a / b for a, b in pairs)
            results[f"{kind} {count}"] = {"time of one": cost, "tokens/s of one": count / cost}
    results["reading"] = {"GB/s": statistics.median(reading) / 1e9}
    return results


def measure_busy(bench: Bench) -> dict[str, float]:
    """Decode beside a process that wants a core for itself."""
    step = bench.rows(CHAT_TOKENS, 1)

    def times() -> list[float]:
        found = []
        for _ in range(BUSY_STEPS):
            began = time.perf_counter()
            step()
            found.append(time.perf_counter() - began)
        return found

    quiet = times()
    with subprocess.Popen([sys.executable, "-c", BUSY_CODE]) as busy:
        try:
            time.sleep(0.5)
            beside = times()
        finally:
            busy.kill()
    return {
        "share of the speed": sum(quiet) / sum(beside),
        "slowest step / median": max(beside) / statistics.median(beside),
        "slowest step / quiet median": max(beside) / statistics.median(quiet),
    }


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.steps", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", type=Path, default=find_starter_model())
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--kv", default="fp16", choices=("fp16", "int8", "int4"))
    arguments = parser.parse_args()
    if arguments.model is None:
        parser.error("the starter model is not installed; give one with --model")
    return arguments


def main() -> None:
    """Measure, print a table and one line of JSON."""
    arguments = parse_arguments()
    if load_kernels() is None:
        sys.exit(why_no_kernels())
    loaded = load_model(arguments.model, backend="fast", num_threads=arguments.threads)
    assert isinstance(loaded.model, NativeModel)
    bench = Bench(loaded, loaded.model, arguments.kv)
    results = measure(bench, Reader(arguments.threads), rounds=arguments.rounds)
    results["busy core"] = measure_busy(bench)
    print(f"{loaded.name}, {loaded.model.kernels}, {arguments.threads} threads, {arguments.kv}")
    for name, row in results.items():
        print(f"{name:<16}" + "   ".join(f"{key} {value:.2f}" for key, value in row.items()))
    facts = {
        "benchmark": "steps",
        "model": loaded.name,
        "kernels": loaded.model.kernels,
        "threads": arguments.threads,
        "kv": arguments.kv,
        "cores": os.cpu_count(),
    }
    print(json.dumps({**facts, "results": results}))


if __name__ == "__main__":
    main()
