"""What guessing ahead brings: `python -m tests.benchmarks.speculation MODEL.gguf [--draft SMALL.gguf]`.

Each prompt is answered twice, with guessing "off" and on "auto", by an engine that remembers neither it nor
the reply; who begins changes from round to round. Rates count the tokens after the first and are medians over the rounds; a
ratio is the median of the pairs' ratios. Where our kernels compute, both replies must be the same, token
for token: if one is not, the program ends with an error after its report. A model that is too small for repeating and editing shows in
its likeness to what was wanted.

    repeat      a text word for word
    edit        code, written again with another name for a class, and a text with another name
    code        new code
    short       a question about a text, answered in a few words: nothing is to be lost on it
    chat        questions of everyday life, greedily and with seeds: on auto never slower than 0.97x; also
                with guessing switched within each reply, which a busy machine does not blur
    answers     three replies to one question at once, against one after the other, by all their time: with
                guesses in both, which help the latter more, and without
    llama       the edited code again, against the fastest setting of llama.cpp, with its guesses and without

With a draft model, code, short replies and chat are measured with it too, in rows of their own.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from app.starter_model import find_starter_model
from inference.config import EngineConfig
from inference.engine import Engine
from inference.engine_loading import EngineParts, load_parts
from tests.benchmarks.guess_pairs import (
    EndedEarlyError,
    measure_answers,
    measure_pairs,
    sum_up,
)
from tests.benchmarks.guess_peers import LlamaCpp, Peer, has_llama, measure_peer
from tests.benchmarks.guess_switches import measure_switched
from tests.benchmarks.guess_works import MIN_TOKENS, WORKS, Work, story_prompt

ALL = (*WORKS, "answers", "llama")
DRAFTED = ("code", "short", "chat")  # what is measured with a draft model too
CONTEXT_TOKENS = 4096
ANSWERS = Work("answers", 200, story_prompt, is_sampled=True)

Report = Mapping[str, Any]


def open_engine(path: Path, *, threads: int) -> tuple[Engine, EngineParts]:
    """Our engine on the CPU, with no memory beside its blocks, and what it is made of."""
    config = EngineConfig(
        device="cpu", num_threads=threads, context_tokens=CONTEXT_TOKENS, ram_cache_bytes=0
    )
    parts = load_parts(path, config, None)
    return Engine(parts), parts


class Bench:
    """All that is measured with one model."""

    def __init__(
        self, engine: Engine, parts: EngineParts, *, rounds: int, max_tokens: int | None = None
    ) -> None:
        """Nothing is measured yet; `max_tokens` makes all replies that short, for a try."""
        self.rows: dict[str, Report] = {}
        self._engine = engine
        self._parts = parts
        self._rounds = rounds
        self._max_tokens = max_tokens

    def run(
        self, wanted: Iterable[str], *, draft: Path | None, open_peer: Callable[[], Peer]
    ) -> None:
        """Measure what is wanted, first without the draft model."""
        kinds = list(wanted)
        for kind in kinds:
            if kind in WORKS:
                self._pairs(kind, "")
        if "answers" in kinds:
            work = self._short(ANSWERS)
            measure = partial(measure_answers, self._engine, work, rounds=self._rounds)
            self._add(work.name, measure)
            self._add(f"{work.name}, no guesses", partial(measure, guess="off"))
        if "llama" in kinds:
            self._against(open_peer)
        if draft is not None:
            self._engine.use_draft(draft)
            for kind in DRAFTED:
                if kind in kinds:
                    self._pairs(kind, ", draft model")

    @property
    def has_other_replies(self) -> bool:
        """Whether a reply came out differently with guesses."""
        return any(row.get("equal_replies") != row.get("replies") for row in self.rows.values())

    def _pairs(self, kind: str, suffix: str) -> None:
        for work in map(self._short, WORKS[kind]):
            self._add(work.name + suffix, partial(self._both_ways, work))
            if kind == "chat":
                measure = partial(measure_switched, self._engine, work, rounds=2 * self._rounds)
                self._add(f"{work.name}, switched{suffix}", measure)

    def _both_ways(self, work: Work) -> Report:
        return sum_up(measure_pairs(self._engine, work, rounds=self._rounds))

    def _against(self, open_peer: Callable[[], Peer]) -> None:
        peer = open_peer()
        try:
            work = self._short(WORKS["edit"][0])
            measure = partial(
                measure_peer, self._engine, self._parts, peer, work, rounds=self._rounds
            )
            self._add(f"{work.name} against llama.cpp", measure)
        finally:
            peer.close()

    def _short(self, work: Work) -> Work:
        if self._max_tokens is None:
            return work
        return replace(work, max_tokens=min(work.max_tokens, self._max_tokens))

    def _add(self, name: str, measure: Callable[[], Report]) -> None:
        try:
            row = measure()
        except EndedEarlyError as error:
            print(f"{name}: {error}")
            return
        self.rows[name] = row
        print(describe(name, row), flush=True)


def describe(name: str, row: Report) -> str:
    """One line for people."""
    rates = {
        "off_tps": "off {:.1f}",
        "in_turn_tps": "one after the other {:.1f}",
        "on_tps": "auto {:.1f}",
        "at_once_tps": "at once {:.1f}",
    }
    parts = [text.format(row[key]) for key, text in rates.items() if key in row]
    span = "{ratio_min:.2f} to {ratio_max:.2f}" if "ratio_min" in row else "+-{standard_error:.3f}"
    parts.append(f"{{ratio:.2f}}x ({span})".format_map(row))
    if "verify_steps" in row:
        parts.append(
            "{drafted_tokens} guessed and {accepted_tokens} right in {verify_steps} of the steps, "
            "{tokens} tokens".format_map(row)
        )
    if "pairs" in row:
        parts.append("{pairs} pairs of stretches".format_map(row))
    if "replies" in row:
        parts.append("{equal_replies} of {replies} replies equal".format_map(row))
    if "likeness" in row:
        parts.append("likeness to what was wanted {likeness:.2f}".format_map(row))
    if "best" in row:
        parts.append(f"best: {row['best']}, of {row['peer_tps']}")
    return f"{name:<26}" + ", ".join(parts)


def parse_arguments() -> argparse.Namespace:
    """What to measure."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.speculation",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, nargs="?", help="else the starter model")
    parser.add_argument("--draft", type=Path, help="a smaller model of the same vocabulary")
    parser.add_argument("--only", choices=ALL, nargs="+", default=ALL)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--max-tokens", type=int, help="of any reply, for a quick look")
    arguments = parser.parse_args()
    arguments.model = arguments.model or find_starter_model()
    if arguments.model is None:
        parser.error("the starter model is not installed; give one")
    if arguments.rounds < 1:
        parser.error("--rounds must be at least 1")
    if arguments.max_tokens is not None and arguments.max_tokens < MIN_TOKENS:
        parser.error(f"--max-tokens must be at least {MIN_TOKENS}")
    return arguments


def kinds_of(arguments: argparse.Namespace) -> list[str]:
    """What can be measured of what is wanted."""
    kinds = list(arguments.only)
    if "llama" in kinds and not has_llama():
        print("llama.cpp is left out: llama-cpp-python is not installed.")
        kinds.remove("llama")
    elif "llama" in kinds and arguments.model.suffix != ".gguf":
        print("llama.cpp is left out: it opens GGUF files only.")
        kinds.remove("llama")
    return kinds


def main() -> None:
    """Measure, print a line for each work and one of JSON."""
    arguments = parse_arguments()
    path: Path = arguments.model.resolve()
    engine, parts = open_engine(path, threads=arguments.threads)
    info = engine.info
    print(f"{info.name}, {info.quantization}, {arguments.threads} threads, {info.backend}")
    bench = Bench(engine, parts, rounds=arguments.rounds, max_tokens=arguments.max_tokens)
    bench.run(
        kinds_of(arguments),
        draft=arguments.draft,
        open_peer=lambda: LlamaCpp(path, threads=arguments.threads),
    )
    report = {
        "benchmark": "speculation",
        "model": info.name,
        "quantization": info.quantization,
        "draft_model": engine.stats().guesses.draft_model,
        "backend": info.backend,
        "threads": arguments.threads,
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "rounds": arguments.rounds,
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "must_be_equal": info.compute_path == "fast",
        "are_equal": not bench.has_other_replies,
        "works": bench.rows,
    }
    engine.close()
    print(json.dumps(report))
    if report["must_be_equal"] and not report["are_equal"]:
        sys.exit("Replies with guesses differ from those without: that must never be.")


if __name__ == "__main__":
    main()
