"""Ours and its peers side by side on one model: `python -m tests.benchmarks.compare`.

All contenders take turns in one process, with the same threads and the same prompts, each prompt
new to all of them. Rates are medians over the rounds; a ratio is the median of the rounds' ratios,
so that a slow moment of the machine, which hits all, does not count. OMP_WAIT_POLICY is best left unset: with
PASSIVE a llama.cpp that was built with OpenMP decodes at a quarter of its speed, and with ACTIVE its threads
take the cores from the others after their turn.

    llama.cpp runs with flash attention and without: neither is always the faster one.

    prefill N       N prompt tokens until the first token is chosen
    decode at D     64 tokens after the first one, with D tokens before them
    ready           from a new process to an engine that can answer, imports included
"""

import argparse
import importlib.util
import itertools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import psutil

from app.starter_model import find_starter_model
from inference.config import DtypeName
from tests.benchmarks.contenders import Contender, LlamaCpp, Quire, Transformers

PEERS = ("transformers", "llama")
PREFILL_TOKENS = (128, 512)
DECODE_DEPTHS = (0, 1024, 3000)
DECODE_TOKENS = 64
CHECKED_TOKENS = 16
CONTEXT_TOKENS = 4096
CHECK_SEED = 1_000_000  # far from those of the measurements, as no prompt may come twice
ORDINARY_IDS = (3_000, 25_000)  # words in every vocabulary of a chat model, no control tokens

READY_CODE = {
    "quire": (
        "import sys; from inference.config import EngineConfig; from inference.engine import Engine;"
        "Engine.load(sys.argv[1], EngineConfig(device='cpu', num_threads=int(sys.argv[2])))"
    ),
    "transformers": (
        "import os, sys, torch; torch.set_num_threads(int(sys.argv[2]));"
        "from transformers import AutoModelForCausalLM, AutoTokenizer;"
        "where = dict(zip(('pretrained_model_name_or_path', 'gguf_file'), os.path.split(sys.argv[1])));"
        "AutoTokenizer.from_pretrained(**where);"
        "AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)"
    ),
    "llama.cpp": (
        "import sys, llama_cpp;"
        "llama_cpp.Llama(sys.argv[1], n_threads=int(sys.argv[2]), n_ctx=2048, verbose=False)"
    ),
}


@dataclass(frozen=True, slots=True)
class Task:
    """One thing to measure.

    Attributes:
        prompt_tokens: Length of the prompt.
        num_tokens: Tokens to choose.
        is_decode: Whether the time after the first token counts, and not the time up to it.
    """

    name: str
    prompt_tokens: int
    num_tokens: int
    is_decode: bool

    def rate(self, times: list[float]) -> float:
        """Tokens per second."""
        if self.is_decode:
            return (self.num_tokens - 1) / (times[-1] - times[0])
        return self.prompt_tokens / times[0]


def make_tasks(depths: list[int]) -> list[Task]:
    prefills = [Task(f"prefill {n}", n, 1, is_decode=False) for n in PREFILL_TOKENS]
    decodes = [Task(f"decode at {d}", max(d, 1), DECODE_TOKENS + 1, is_decode=True) for d in depths]
    return prefills + decodes


def make_prompt(seed: int, num_tokens: int) -> list[int]:
    """Token ids that share no beginning worth reusing with those of another seed."""
    source = random.Random(seed)
    return [source.randrange(*ORDINARY_IDS) for _ in range(num_tokens)]


def measure(
    contenders: list[Contender], tasks: list[Task], *, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Rates by task and contender, one per round; who begins, and who follows whom, changes by rounds."""
    rates: dict[str, dict[str, list[float]]] = {
        task.name: {contender.name: [] for contender in contenders} for task in tasks
    }
    seeds = itertools.count(1)
    for number in range(rounds + 1):  # the first round warms up and does not count
        turn = number % len(contenders)
        order = (contenders[turn:] + contenders[:turn])[:: -1 if number % 2 else 1]
        for task in tasks:
            prompt = make_prompt(next(seeds), task.prompt_tokens)
            found = {c.name: task.rate(c.run(prompt, task.num_tokens)[1]) for c in order}
            if number > 0:
                for name, rate in found.items():
                    rates[task.name][name].append(rate)
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return rates


def count_equal_tokens(ours: Contender, peer: Contender, *, seed: int) -> int:
    """How many of the first greedy tokens are the same, for one prompt."""
    prompt = make_prompt(seed, 64)
    pairs = zip(
        ours.run(prompt, CHECKED_TOKENS)[0], peer.run(prompt, CHECKED_TOKENS)[0], strict=True
    )
    equal = [a == b for a, b in pairs]
    return equal.index(False) if False in equal else len(equal)


def time_to_ready(name: str, path: Path, threads: int, *, rounds: int) -> float:
    """Median seconds of a process that makes the contender ready and ends."""
    command = [sys.executable, "-c", READY_CODE[name], str(path), str(threads)]
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def summarise(rates: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Median rates, and the median of the rounds' ratios of ours to each peer."""
    summary: dict[str, dict[str, float]] = {}
    for task, by_name in rates.items():
        row = {name: round(statistics.median(values), 2) for name, values in by_name.items()}
        for name, values in by_name.items():
            if name != Quire.name:
                ratios = [a / b for a, b in zip(by_name[Quire.name], values, strict=True)]
                row[f"{Quire.name}/{name}"] = round(statistics.median(ratios), 3)
        summary[task] = row
    return summary


def print_table(rows: dict[str, dict[str, float]], unit: str) -> None:
    columns = list(next(iter(rows.values())))
    print(f"{unit:<16}" + "".join(f"{column:>20}" for column in columns))
    for name, row in rows.items():
        cells = (f"{row[c]:.2f}x" if "/" in c else f"{row[c]:,.1f}" for c in columns)
        print(f"{name:<16}" + "".join(f"{cell:>20}" for cell in cells))


def versions() -> dict[str, str]:
    names = ("torch", "transformers", "llama-cpp-python")
    found = {name: metadata.version(name) for name in names if _is_installed(name)}
    return {"python": platform.python_version(), **found}


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def peer_names(text: str) -> list[str]:
    """The peers of a list with commas; "none" for an empty one."""
    names = [] if text in ("", "none") else text.split(",")
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(PEERS)}")
    return names


def make_peers(names: list[str], path: Path, threads: int, dtype: DtypeName) -> list[Contender]:
    peers: list[Contender] = []
    if "transformers" in names:
        peers.append(Transformers(path, threads=threads, dtype=dtype))
    if "llama" in names:
        if importlib.util.find_spec("llama_cpp") is None:
            print("llama.cpp is left out: llama-cpp-python is not installed.")
        elif path.suffix != ".gguf":
            print("llama.cpp is left out: it opens GGUF files only.")
        else:
            peers += [
                LlamaCpp(path, threads=threads, context_tokens=CONTEXT_TOKENS, is_flash=is_flash)
                for is_flash in (False, True)
            ]
    return peers


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.compare", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", type=Path, default=find_starter_model())
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument(
        "--peers", type=peer_names, default="transformers,llama", help="any of these, or none"
    )
    parser.add_argument("--depths", default=",".join(map(str, DECODE_DEPTHS)), help="of decoding")
    parser.add_argument("--no-ready", action="store_true", help="leave the time to ready out")
    arguments = parser.parse_args()
    if arguments.model is None:
        parser.error("the starter model is not installed; give one with --model")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    path: Path = arguments.model.resolve()
    threads, dtype = arguments.threads, arguments.dtype
    depths = [int(depth) for depth in arguments.depths.split(",")]
    ours = Quire(path, threads=threads, dtype=dtype, context_tokens=CONTEXT_TOKENS)
    peers = make_peers(arguments.peers, path, threads, dtype)
    info = ours.info
    print(f"{info.name}, {info.quantization}, {dtype}, {threads} threads, {info.backend}")
    equal = {
        peer.name: count_equal_tokens(ours, peer, seed=CHECK_SEED + number)
        for number, peer in enumerate(peers)
    }
    for name, number in equal.items():
        print(f"first greedy tokens equal to {name}'s: {number} of {CHECKED_TOKENS}")
    rates = measure([ours, *peers], make_tasks(depths), rounds=arguments.rounds)
    for contender in [ours, *peers]:
        contender.close()
    summary = summarise(rates)
    print_table(summary, "tokens/s")
    ready = {}
    if not arguments.no_ready:
        for contender in [ours, *peers]:
            if contender.name not in READY_CODE:
                continue
            rounds = 1 if contender.name == Transformers.name else 3  # it takes most of a minute
            ready[contender.name] = round(
                time_to_ready(contender.name, path, threads, rounds=rounds), 2
            )
        print_table({"ready": ready}, "seconds")
    report = {
        "benchmark": "compare",
        "model": info.name,
        "quantization": info.quantization,
        "dtype": dtype,
        "threads": threads,
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "rounds": arguments.rounds,
        "backend": info.backend,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": versions(),
        "equal_tokens": equal,
        "tokens_per_second": summary,
        "ready_seconds": ready,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
