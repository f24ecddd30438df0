"""llama.cpp, guessing in several ways or not, beside our engine on the same prompts, all choosing greedily."""

import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from inference.engine import Engine
from inference.engine_loading import EngineParts
from inference.prompt_ids import make_prompt
from inference.request import ChatMessage, GenerateRequest
from tests.benchmarks.guess_pairs import (
    MAX_PROMPTS_PER_ROUND,
    EndedEarlyError,
    Row,
    answer,
    ratios_of,
)
from tests.benchmarks.guess_works import Work

CONTEXT_TOKENS = 1536  # where it guesses, it keeps the logits of all positions
LOOKUP_TOKENS = (2, 4, 10)
NUM_KEPT = 4  # settings that take part after the first round

Reply = tuple[tuple[int, ...], float]
"""Token ids without the one that ends the reply, and tokens after the first per second."""

Run = Callable[[Sequence[int], int, Collection[int]], Reply]
"""A greedy reply to prompt ids, of so many tokens at the most, up to one of the ids that end it."""


class Peer(Protocol):
    """Another engine in one or several settings."""

    @property
    def settings(self) -> Mapping[str, Run]:
        """Each by its name."""

    def close(self) -> None:
        """Give the memory back."""


def has_llama() -> bool:
    """Whether llama-cpp-python is installed."""
    return importlib.util.find_spec("llama_cpp") is not None


class LlamaCpp:
    """llama.cpp through llama-cpp-python, with flash attention and without: neither is always faster.

    It guesses what followed the last two tokens where they stood before.
    """

    def __init__(self, path: Path, *, threads: int) -> None:
        import llama_cpp
        from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

        self._lookup = LlamaPromptLookupDecoding(num_pred_tokens=LOOKUP_TOKENS[0])
        self.settings: dict[str, Run] = {}
        self._opened = []
        for flash in (False, True):
            for is_guessing in (False, True):
                llama = llama_cpp.Llama(
                    str(path),
                    n_ctx=CONTEXT_TOKENS,
                    n_threads=threads,
                    n_threads_batch=threads,
                    n_gpu_layers=0,
                    flash_attn=flash,
                    logits_all=is_guessing,
                    draft_model=self._lookup if is_guessing else None,
                    verbose=False,
                )
                self._opened.append(llama)
                for count in LOOKUP_TOKENS if is_guessing else (0,):
                    name = f"lookup {count}" if count else "plain"
                    name += ", flash attention" if flash else ""
                    self.settings[name] = partial(self._run, llama, count)

    def close(self) -> None:
        """Give the memory back."""
        for llama in self._opened:
            llama.close()

    def _run(
        self,
        llama: "llama_cpp.Llama",  # type: ignore[name-defined]  # noqa: F821 - it need not be installed
        num_guessed: int,
        prompt_ids: Sequence[int],
        num_tokens: int,
        stop_ids: Collection[int],
    ) -> Reply:
        self._lookup.num_pred_tokens = num_guessed
        token_ids: list[int] = []
        times: list[float] = []
        llama.reset()
        for token_id in llama.generate(list(prompt_ids), temp=0.0):
            times.append(time.perf_counter())
            if token_id in stop_ids:
                break
            token_ids.append(token_id)
            if len(token_ids) == num_tokens:
                break
        took = times[-1] - times[0]
        return tuple(token_ids), (len(times) - 1) / took if took > 0 else 0.0


def measure_peer(engine: Engine, parts: EngineParts, peer: Peer, work: Work, *, rounds: int) -> Row:
    """Our engine with its guesses against the best setting of another, round by round.

    All settings take part in the first round, which does not count; the fastest of them go on.

    Args:
        engine: Ours.
        parts: What it is made of.
        peer: The other.
        work: Makes the prompts.
        rounds: That count.

    Raises:
        EndedEarlyError: Too many replies are too short.
        EngineError: A reply of ours failed.
    """
    engine.set_guess("auto")
    names = list(peer.settings)
    rates: list[dict[str, float]] = []
    equal: list[int] = []
    for number in range(MAX_PROMPTS_PER_ROUND * (rounds + 1)):
        found = _round(engine, parts, peer, names, work, number, is_ours_first=len(rates) % 2 == 0)
        print(".", end="", file=sys.stderr, flush=True)
        if min(len(ids) for ids, _ in found.values()) < work.least_tokens:
            continue
        rates.append({name: rate for name, (_, rate) in found.items()})
        equal.append(_num_common(found["ours"][0], found[names[0]][0]))
        if len(rates) == 1:
            names = sorted(names, key=lambda name: -rates[0][name])[:NUM_KEPT]
        if len(rates) == rounds + 1:
            print(file=sys.stderr)
            return _sum_up(rates[1:], names, equal[1:])
    raise EndedEarlyError(f"The replies end too early to measure {work.name}.")


def _round(
    engine: Engine,
    parts: EngineParts,
    peer: Peer,
    names: Sequence[str],
    work: Work,
    number: int,
    *,
    is_ours_first: bool,
) -> dict[str, Reply]:
    request = GenerateRequest("peer", messages=(ChatMessage("user", work.prompt(number)),))
    prompt_ids = make_prompt(
        request, tokenizer=parts.tokenizer, template=parts.template, vocab_size=parts.vocab_size
    ).token_ids
    found: dict[str, Reply] = {}

    def ours() -> None:
        reply = answer(
            engine, work.prompt(number), work.params(number), chat=f"{work.name} {number}"
        )
        found["ours"] = (reply.token_ids, reply.metrics.decode_tps or 0.0)

    def theirs() -> None:
        for name in names:
            run = peer.settings[name]
            found[name] = run(prompt_ids, work.max_tokens, parts.tokenizer.eos_ids)

    for run_side in (ours, theirs) if is_ours_first else (theirs, ours):
        run_side()
    return found


def _num_common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two replies begin with alike."""
    for index, (one, other) in enumerate(zip(first, second, strict=False)):
        if one != other:
            return index
    return min(len(first), len(second))


def _sum_up(
    rates: Sequence[Mapping[str, float]], names: Sequence[str], equal: Sequence[int]
) -> Row:
    medians = {name: statistics.median(row[name] for row in rates) for name in names}
    return {
        "on_tps": statistics.median(row["ours"] for row in rates),
        "peer_tps": medians,
        "best": max(medians, key=lambda name: medians[name]),
        **ratios_of([row["ours"] / max(row[name] for name in names) for row in rates]),
        "equal_tokens": list(equal),
    }
