"""Replies with guessing ahead and without, in turns, and what came of it."""

import difflib
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inference.config import GuessName, SamplingParams
from inference.engine import Engine
from inference.metrics import RequestMetrics
from inference.request import ChatMessage, GenerateRequest, RequestId
from tests.benchmarks.guess_works import Work

MAX_PROMPTS_PER_ROUND = 6
NUM_ANSWERS = 3

Row = dict[str, Any]


class EndedEarlyError(Exception):
    """Too many replies were too short."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One reply.

    Attributes:
        token_ids: Of the reply.
        text: What they say.
        metrics: Of the request.
    """

    token_ids: tuple[int, ...]
    text: str
    metrics: RequestMetrics

    @property
    def rate(self) -> float:
        """Tokens after the first per second."""
        assert self.metrics.decode_tps is not None, "the reply was looked at for its length"
        return self.metrics.decode_tps


@dataclass(frozen=True, slots=True)
class Pair:
    """The same prompt, answered without guesses and with them.

    Attributes:
        likeness: How much of the reply is what was wanted, 0 to 1; None if that cannot be known.
    """

    off: Answer
    on: Answer
    likeness: float | None = None

    @property
    def ratio(self) -> float:
        """How many times as fast with guesses."""
        return self.on.rate / self.off.rate

    @property
    def is_equal(self) -> bool:
        """Whether the replies are the same, token for token."""
        return self.off.token_ids == self.on.token_ids


def answer(engine: Engine, prompt: str, params: SamplingParams, *, chat: str) -> Answer:
    """One reply by an engine that remembers nothing.

    Raises:
        EngineError: The reply failed.
    """
    engine.clear_cache()
    shown: list[str] = []
    for output in engine.generate(
        conversation_id=chat,
        messages=(ChatMessage("user", prompt),),
        params=params,
        keep_on_disk=False,
    ):
        if output.error is not None:
            raise output.error
        if output.metrics.reused_tokens:
            raise AssertionError("the prompt was not new, so the two ways cannot be compared")
        shown.append(output.text)
        if output.finish_reason is not None:
            return Answer(output.reply_token_ids or (), "".join(shown), output.metrics)
    raise AssertionError("a reply always has a last output")


def measure_pairs(
    engine: Engine, work: Work, *, rounds: int, guess: GuessName = "auto", first: int = 0
) -> list[Pair]:
    """So many pairs; who begins changes from round to round.

    Args:
        engine: Guesses with the draft model that it has.
        work: Makes the prompts.
        rounds: Pairs wanted; one more, before them, warms up and does not count.
        guess: The way that is compared with "off".
        first: Number of the first prompt.

    Raises:
        EndedEarlyError: Too many replies are too short.
        EngineError: A reply failed.
    """
    pairs: list[Pair] = []
    for number in range(first, first + MAX_PROMPTS_PER_ROUND * (rounds + 1)):
        ways: list[GuessName] = ["off", guess]
        found = {}
        for way in ways[:: -1 if len(pairs) % 2 else 1]:
            engine.set_guess(way)
            prompt, params = work.prompt(number), work.params(number)
            found[way] = answer(engine, prompt, params, chat=f"{work.name} {number} {way}")
        pair = Pair(found["off"], found[guess], _likeness(work, number, found["off"].text))
        print(".", end="", file=sys.stderr, flush=True)
        num_tokens = min(len(pair.off.token_ids), len(pair.on.token_ids))
        if num_tokens >= work.least_tokens or (num_tokens > 1 and not pair.is_equal):
            pairs.append(pair)
        if len(pairs) == rounds + 1:
            print(file=sys.stderr)
            return pairs[1:]
    raise EndedEarlyError(f"The model ends its replies too early to measure {work.name}.")


def _likeness(work: Work, number: int, text: str) -> float | None:
    """How alike a reply and the beginning of what was wanted are, by words in their order."""
    if work.wanted is None:
        return None
    words = text.split()
    wanted = work.wanted(number).split()[: len(words)]
    return difflib.SequenceMatcher(None, words, wanted, autojunk=False).ratio()


def ratios_of(ratios: Sequence[float]) -> Row:
    """Median, least and most, and all."""
    return {
        "ratio": statistics.median(ratios),
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }


def sum_up(pairs: Sequence[Pair]) -> Row:
    """One row of the report: rates are medians, counts are those of all replies with guesses."""
    on = [pair.on.metrics for pair in pairs]
    likeness = [pair.likeness for pair in pairs if pair.likeness is not None]
    return {
        "off_tps": statistics.median(pair.off.rate for pair in pairs),
        "on_tps": statistics.median(pair.on.rate for pair in pairs),
        **ratios_of([pair.ratio for pair in pairs]),
        "tokens": sum(metrics.completion_tokens for metrics in on),
        "drafted_tokens": sum(metrics.drafted_tokens for metrics in on),
        "accepted_tokens": sum(metrics.accepted_tokens for metrics in on),
        "verify_steps": sum(metrics.verify_steps for metrics in on),
        "replies": len(pairs),
        "equal_replies": sum(pair.is_equal for pair in pairs),
        **({"likeness": statistics.median(likeness)} if likeness else {}),
    }


# ------------------------------------------------------------------ several replies to one question


@dataclass(frozen=True, slots=True)
class Answers:
    """Several replies to one question.

    Attributes:
        token_ids: Of each reply.
        seconds: For all, from the first request to the last token.
    """

    token_ids: tuple[tuple[int, ...], ...]
    seconds: float

    @property
    def rate(self) -> float:
        """Tokens of all replies per second."""
        return sum(map(len, self.token_ids)) / self.seconds


def answers_of(engine: Engine, work: Work, number: int, *, is_at_once: bool) -> Answers:
    """Several replies with seeds of their own, all at once or one after the other.

    Raises:
        EngineError: A reply failed.
    """
    engine.clear_cache()
    requests = [
        GenerateRequest(
            f"answers {number} {is_at_once}",
            messages=(ChatMessage("user", work.prompt(number)),),
            params=SamplingParams(seed=NUM_ANSWERS * number + index, max_tokens=work.max_tokens),
            keep_on_disk=False,
        )
        for index in range(NUM_ANSWERS)
    ]
    groups = [requests] if is_at_once else [[request] for request in requests]
    replies: list[tuple[int, ...]] = []
    began = time.perf_counter()
    for group in groups:
        replies += _finish(engine, [engine.add_request(request) for request in group])
    return Answers(tuple(replies), time.perf_counter() - began)


def _finish(engine: Engine, request_ids: Sequence[RequestId]) -> list[tuple[int, ...]]:
    replies: dict[RequestId, tuple[int, ...]] = {}
    while engine.has_work:
        for output in engine.step():
            if output.error is not None:
                raise output.error
            if output.finish_reason is not None:
                replies[output.request_id] = output.reply_token_ids or ()
    return [replies[request_id] for request_id in request_ids]


def measure_answers(engine: Engine, work: Work, *, rounds: int, guess: GuessName = "auto") -> Row:
    """Several replies at once against one after the other, in turns; both guess, or neither does.

    Raises:
        EngineError: A reply failed.
    """
    engine.set_guess(guess)
    found: list[dict[bool, Answers]] = []
    for number in range(rounds + 1):  # the first round warms up and does not count
        order = (True, False) if number % 2 else (False, True)
        found.append({way: answers_of(engine, work, number, is_at_once=way) for way in order})
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    counted = found[1:]
    return {
        "in_turn_tps": statistics.median(both[False].rate for both in counted),
        "at_once_tps": statistics.median(both[True].rate for both in counted),
        **ratios_of([both[True].rate / both[False].rate for both in counted]),
        "tokens": sum(len(ids) for both in counted for ids in both[True].token_ids),
        "replies": NUM_ANSWERS * len(counted),
        "equal_replies": sum(
            first == second
            for both in counted
            for first, second in zip(both[True].token_ids, both[False].token_ids, strict=True)
        ),
    }
