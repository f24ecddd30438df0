"""What each way of storing keys and values costs and saves: `python -m tests.benchmarks.kv_schemes`.

    perplexity      of a fixed text, by default 4,096 tokens, and by how much it is more than fp16's. Behind
                    +- is the standard error of that difference, from the differences of single tokens:
                    our kernels round inputs to 8 bits, so what is stored differently in the last digit
                    comes out a little better or worse by chance. --backend torch computes in float32
                    throughout; there the difference is the scheme's own.
    decode at D     tokens per second with D tokens before them, and the ratio to fp32's: schemes take
                    turns, rates are medians over the rounds, ratios medians of the rounds' ratios
    per token       memory of one token over all layers

With --int4-verdict it also prints what the program would decide about int4 for the model.
"""

import argparse
import json
import math
import os
import platform
import statistics
import time
from pathlib import Path
from typing import cast

import psutil
import torch

from app.starter_model import find_starter_model
from inference.attention.blocks import BlocksAttention
from inference.config import KvSchemeName
from inference.kv_cache.schemes import find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.model.base import LanguageModel, Runner
from inference.model.kv_quality import assess_int4, sample_text, token_losses
from inference.model.loader import load_model
from inference.model.step import Chunk
from tests.benchmarks.filled_blocks import fill_blocks

SCHEMES: tuple[KvSchemeName, ...] = ("fp32", "fp16", "int8", "int4")
DEPTHS = (0, 1024, 4000)
BLOCK_SIZE = 16
DECODE_TOKENS = 16
MAX_TEXT_TOKENS = 4096
ROOT = Path(__file__).parents[2]
# Texts that stay as they are, or numbers could not be compared: what int4 is tried on, and licences.
DOCUMENTS = ("inference/model/kv_quality.txt", "LICENSE", "resources/licences/Inter-OFL.txt")


def make_runner(model: LanguageModel, scheme: KvSchemeName, num_tokens: int) -> Runner:
    """A runner with blocks of its own, which lie in one run, full of random numbers."""
    kv = KvTensors(
        model.geometry,
        num_blocks=-(-num_tokens // BLOCK_SIZE),
        block_size=BLOCK_SIZE,
        scheme=find_scheme(scheme, model.dtype),
        device=torch.device("cpu"),
    )
    fill_blocks(kv)
    return model.make_runner(kv, BlocksAttention())


def measure_losses(model: LanguageModel, token_ids: list[int]) -> dict[str, dict[str, float]]:
    """Perplexity by scheme, and how much more than fp16's it is, in percent."""
    losses = {
        name: token_losses(make_runner(model, name, len(token_ids)), token_ids) for name in SCHEMES
    }
    found: dict[str, dict[str, float]] = {}
    for name, each in losses.items():
        more = each - losses["fp16"]
        found[name] = {
            "perplexity": math.exp(each.mean()),
            "more_percent": 100 * math.expm1(more.mean()),
            "standard_error_percent": 100 * float(more.std()) / math.sqrt(len(more)),
        }
    return found


def decode_rate(runner: Runner, depth: int) -> float:
    """Tokens per second after `depth` tokens."""
    table = range(runner.kv.num_blocks)
    began = time.perf_counter()
    for number in range(DECODE_TOKENS):
        runner.run([Chunk([1000 + number], depth + number, table, needs_logits=True)])
    return DECODE_TOKENS / (time.perf_counter() - began)


def measure_decode(model: LanguageModel, *, rounds: int) -> dict[int, dict[str, dict[str, float]]]:
    """Median rates and ratios to fp32 by depth and scheme; schemes take turns."""
    runners = {name: make_runner(model, name, max(DEPTHS) + DECODE_TOKENS) for name in SCHEMES}
    found: dict[int, dict[str, dict[str, float]]] = {}
    for depth in DEPTHS:
        rates: dict[str, list[float]] = {name: [] for name in SCHEMES}
        for number in range(rounds + 1):  # the first round warms up
            turn = number % len(SCHEMES)
            for name in SCHEMES[turn:] + SCHEMES[:turn]:
                rate = decode_rate(runners[name], depth)
                if number > 0:
                    rates[name].append(rate)
        found[depth] = {
            name: {
                "tokens_per_second": round(statistics.median(values), 2),
                "to_fp32": round(
                    statistics.median(a / b for a, b in zip(values, rates["fp32"], strict=True)), 3
                ),
            }
            for name, values in rates.items()
        }
    return found


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.kv_schemes", description=__doc__
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", type=Path, default=find_starter_model())
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--backend", choices=("fast", "torch"), default="fast")
    parser.add_argument("--rounds", type=int, default=5, help="0: no decode")
    parser.add_argument("--text", type=Path, help="another text")
    parser.add_argument("--text-tokens", type=int, default=MAX_TEXT_TOKENS, help="0: no perplexity")
    parser.add_argument("--int4-verdict", action="store_true")
    arguments = parser.parse_args()
    if arguments.model is None:
        parser.error("the starter model is not installed; give one with --model")
    return arguments


def main() -> None:
    """Measure, print a table and one line of JSON."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    loaded = load_model(
        arguments.model.resolve(),
        device="cpu",
        dtype="float32",
        backend=arguments.backend,
        num_threads=arguments.threads,
    )
    model = cast("LanguageModel", loaded.model)
    paths = [arguments.text] if arguments.text else [ROOT / name for name in DOCUMENTS]
    text = "".join(path.read_text(encoding="utf-8") for path in paths)
    token_ids = loaded.tokenizer.encode_text(text)[: arguments.text_tokens]
    decode = measure_decode(model, rounds=arguments.rounds) if arguments.rounds else {}
    losses = measure_losses(model, token_ids) if len(token_ids) > 1 else {}
    per_token = {name: make_runner(model, name, BLOCK_SIZE).kv.bytes_per_token for name in SCHEMES}
    print(
        f"{loaded.name}, {model.kernels}, {arguments.threads} threads, text of {len(token_ids)} tokens"
    )
    print(
        f"{'scheme':<8}{'per token':>12}{'perplexity':>34}"
        + "".join(f"{f'decode at {depth}':>22}" for depth in decode)
    )
    for name in SCHEMES:
        line = f"{name:<8}{per_token[name]:>12,}"
        if name in losses:
            found = losses[name]
            line += f"{found['perplexity']:>14.4f} {found['more_percent']:>+7.3f} %"
            line += f" +- {found['standard_error_percent']:.3f}".ljust(11)
        else:
            line += f"{'-':>34}"
        for rows in decode.values():
            row = rows[name]
            line += f"{row['tokens_per_second']:>14.1f} {row['to_fp32']:>6.2f}x"
        print(line)
    report = {
        "benchmark": "kv_schemes",
        "model": loaded.name,
        "backend": arguments.backend,
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "bytes_per_token": per_token,
        "text_tokens": len(token_ids),
        "losses": losses,
        "decode": decode,
    }
    if arguments.int4_verdict:
        sample = loaded.tokenizer.encode_text(sample_text())
        verdict = assess_int4(model, BlocksAttention(), sample, BLOCK_SIZE)
        print(f"int4: loss {100 * verdict.loss:.2f} %. {verdict.reason or 'Offered.'}")
        report["int4_loss"] = verdict.loss
    print(json.dumps(report))


if __name__ == "__main__":
    main()
