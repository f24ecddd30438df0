"""Guessing switched on and off within each reply: a slow moment of the machine hits both ways alike.

Whole replies, one after the other, differ by a tenth on a busy machine whatever is done, and what guessing costs a
chat in which it helps little is less than that. Here a stretch of some tokens with guesses and one without are
a pair. What guesses may lose is a share of the whole reply, so it may all be lost in half of it: that
makes guessing look worse, not better.
"""

import math
import statistics
import sys
import time
from collections.abc import Iterator

from inference.config import GuessName
from inference.engine import Engine
from inference.metrics import RequestMetrics
from inference.request import ChatMessage, GenerateRequest
from tests.benchmarks.guess_pairs import EndedEarlyError, Row
from tests.benchmarks.guess_works import Work

STRETCH_TOKENS = 12
"""A draft model that lags no further behind reads that beside its next guess."""

LEAST_PAIRS = 5
WAYS: tuple[GuessName, GuessName] = ("off", "auto")


def measure_switched(engine: Engine, work: Work, *, rounds: int) -> Row:
    """The tokens per second of stretches with guesses, by those of their neighbours without.

    Args:
        engine: Guesses with the draft model that it has.
        work: Makes the prompts.
        rounds: Replies, after one that warms up.

    Raises:
        EndedEarlyError: There are too few pairs.
        EngineError: A reply failed.
    """
    ratios: list[float] = []
    ended: list[RequestMetrics] = []
    for number in range(rounds + 1):
        found, metrics = _switch(engine, work, number)
        print(".", end="", file=sys.stderr, flush=True)
        if number:
            ratios += found
            ended.append(metrics)
    print(file=sys.stderr)
    if len(ratios) < LEAST_PAIRS:
        raise EndedEarlyError(f"The model ends its replies too early to measure {work.name}.")
    logarithms = [math.log(ratio) for ratio in ratios]
    return {
        "ratio": math.exp(statistics.mean(logarithms)),
        "standard_error": statistics.stdev(logarithms) / math.sqrt(len(logarithms)),
        "pairs": len(ratios),
        "tokens": sum(metrics.completion_tokens for metrics in ended),
        "drafted_tokens": sum(metrics.drafted_tokens for metrics in ended),
        "accepted_tokens": sum(metrics.accepted_tokens for metrics in ended),
        "verify_steps": sum(metrics.verify_steps for metrics in ended),
    }


def _switch(engine: Engine, work: Work, number: int) -> tuple[list[float], RequestMetrics]:
    """One reply: the ratios of its pairs, and what was counted."""
    engine.clear_cache()
    request = GenerateRequest(
        f"{work.name} {number}",
        messages=(ChatMessage("user", work.prompt(number)),),
        params=work.params(number),
        keep_on_disk=False,
    )
    engine.set_guess("off")
    engine.add_request(request)
    metrics = RequestMetrics()
    while engine.has_work and not metrics.completion_tokens:
        metrics = _step(engine, metrics)
    rates: dict[GuessName, float] = {}
    ratios: list[float] = []
    for way in _ways(number):
        engine.set_guess(way)
        first, began = metrics.completion_tokens, time.perf_counter()
        while engine.has_work and metrics.completion_tokens < first + STRETCH_TOKENS:
            metrics = _step(engine, metrics)
        if not engine.has_work:  # the last stretch is not whole
            return ratios, metrics
        rates[way] = (metrics.completion_tokens - first) / (time.perf_counter() - began)
        if len(rates) == len(WAYS):
            ratios.append(rates["auto"] / rates["off"])
            rates.clear()
    raise AssertionError("the ways never end")


def _ways(number: int) -> Iterator[GuessName]:
    """Which way begins changes from reply to reply."""
    order = WAYS if number % 2 else WAYS[::-1]
    while True:
        yield from order


def _step(engine: Engine, metrics: RequestMetrics) -> RequestMetrics:
    for output in engine.step():
        if output.error is not None:
            raise output.error
        metrics = output.metrics
    return metrics
