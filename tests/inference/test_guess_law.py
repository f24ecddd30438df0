"""Replies with guesses follow the model's own law, with all settings; and this test sees if they do not.

Many replies of three tokens are drawn from a model of eight tokens, with guesses that are likely, always the same,
unlikely or by chance. Chi-square compares their first tokens and pairs with the law that is worked out in
`guess_law`. Seeds are fixed, so a result never changes.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import cycle

import numpy as np
import pytest
import torch
from torch import Tensor

from inference.config import SamplingParams
from inference.model.base import Runner
from inference.model.step import Chunk, lay_out
from inference.reply import Reply
from inference.request import GenerateRequest, RequestId
from inference.sampling import Sampler
from inference.sequence import Sequence as TokenSequence
from inference.text.tokenizer import Tokenizer
from tests.inference import guess_law
from tests.inference.guess_law import LOGITS, NUM_COUNTED, PROMPT, V, law_after, logits_after
from tests.inference.planned_guesses import plan_guesses
from tests.inference.tiny_engine import (
    make_loaded,
    make_parts,
    make_tokenizer,
    run_until_idle,
    sampled_ids,
)
from tests.inference.wrong_verifiers import (
    AcceptsAll,
    AcceptsTopK,
    DrawsTwice,
    RemainderVerifier,
    StaleAcceptance,
    StaleBonus,
    StaleHistory,
    StaleRow,
    UnfilteredRemainder,
    Verifier,
)

ALPHA = 1e-4
NUM_DRAWS = 400
NUM_DRAWS_SLOW = 20_000
NUM_DRAWS_FAULT = 250
NUM_DRAWS_ENGINE = 240
NUM_GUESSED = 3  # at most

OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
SETTINGS = {
    "none": OFF,
    "top-k": replace(OFF, temperature=1.4, top_k=4),
    "top-p": replace(OFF, temperature=0.8, top_p=0.85),
    "min-p": replace(OFF, temperature=1.2, min_p=0.15),
    "penalties": replace(
        OFF, repetition_penalty=1.6, presence_penalty=1.2, frequency_penalty=1.5
    ),
    "all": SamplingParams(
        temperature=1.3, top_k=6, top_p=0.93, min_p=0.04,
        repetition_penalty=1.3, presence_penalty=-0.5, frequency_penalty=1.1,
    ),
}  # fmt: skip

Guess = Callable[[Sequence[int], random.Random], list[int]]
"""From all tokens so far to NUM_GUESSED more."""


def by_table(choose: Callable[[np.ndarray], np.intp]) -> Guess:
    def guess(token_ids: Sequence[int], chance: random.Random) -> list[int]:
        text = list(token_ids)
        for _ in range(NUM_GUESSED):
            text.append(int(choose(LOGITS[text[-2], text[-1]])))
        return text[-NUM_GUESSED:]

    return guess


GUESSES: dict[str, Guess] = {
    "likeliest": by_table(np.argmax),
    "always 5": lambda token_ids, chance: [5] * NUM_GUESSED,
    "unlikeliest": by_table(np.argmin),
    "random": lambda token_ids, chance: [chance.randrange(V) for _ in range(NUM_GUESSED)],
}


def by_turns() -> Iterator[Guess]:
    """All kinds of guesses, over and over."""
    return cycle(GUESSES.values())


# ------------------------------------------------------------------ replies of the program


@cache
def tokenizer() -> Tokenizer:
    return make_tokenizer(eos_ids=())


def draw(
    params: SamplingParams,
    guesses: Iterator[Guess],
    num_draws: int,
    verifier: type[Verifier] | None = None,
) -> list[tuple[int, ...]]:
    """The first tokens of many replies, each with a seed and a kind of guess of its own."""
    chance = random.Random(1)
    return [
        draw_one(replace(params, seed=seed), next(guesses), chance, verifier)
        for seed in range(1, 1 + num_draws)
    ]


def draw_one(
    params: SamplingParams,
    guess: Guess,
    chance: random.Random,
    verifier: type[Verifier] | None,
) -> tuple[int, ...]:
    sequence = TokenSequence(RequestId(1), "chat", list(PROMPT), arrival=0.0)
    sampler = Sampler(params, PROMPT, V)
    wrong = None if verifier is None else verifier(sampler, params)
    reply = Reply(
        sequence,
        tokenizer(),
        sampler if wrong is None else wrong,  # type: ignore[arg-type]  # the seam
        stop=(),
        max_tokens=99,
    )
    while len(sequence.token_ids) < len(PROMPT) + NUM_COUNTED:
        draft = guess(sequence.token_ids, chance)[: chance.randint(1, NUM_GUESSED)]
        if wrong is not None:
            wrong.begin(draft)
        before_last, last = sequence.token_ids[-2:]
        reply.sample(logits_after(before_last, [last, *draft]), 0.0, lambda: 0.0, draft=draft)
    return tuple(sequence.token_ids[len(PROMPT) :][:NUM_COUNTED])


def smallest_p(replies: list[tuple[int, ...]], params: SamplingParams) -> float:
    """The worst of what was looked at."""
    return min(guess_law.p_values(replies, params).values())


# ------------------------------------------------------------------ the program follows the law


@pytest.mark.parametrize("setting", SETTINGS)
def test_replies_follow_the_law(setting: str) -> None:
    params = SETTINGS[setting]
    assert smallest_p(draw(params, by_turns(), NUM_DRAWS), params) > ALPHA


@pytest.mark.slow
@pytest.mark.parametrize("setting", SETTINGS)
def test_many_replies_follow_the_law_whatever_is_guessed(setting: str) -> None:
    params = SETTINGS[setting]
    replies = draw(params, by_turns(), NUM_DRAWS_SLOW)
    assert smallest_p(replies, params) > ALPHA
    for turn, name in enumerate(GUESSES):
        assert smallest_p(replies[turn :: len(GUESSES)], params) > ALPHA, name


def test_law_forbids_the_unlikeliest_guess() -> None:
    guess = GUESSES["unlikeliest"](PROMPT, random.Random(1))[0]
    for name in ("top-k", "top-p", "min-p", "all"):
        assert law_after((), SETTINGS[name])[guess] == 0.0


@pytest.mark.parametrize("setting", ["none", "top-p"])
def test_right_rule_that_draws_otherwise_passes_too(setting: str) -> None:
    params = SETTINGS[setting]
    likeliest = cycle([GUESSES["likeliest"]])
    assert smallest_p(draw(params, likeliest, NUM_DRAWS, RemainderVerifier), params) > ALPHA


# ------------------------------------------------------------------ faults are seen


@pytest.mark.parametrize(
    ("verifier", "setting", "guess"),
    [
        (AcceptsAll, "none", "likeliest"),
        (AcceptsAll, "top-k", "unlikeliest"),
        (AcceptsAll, "all", "random"),
        (AcceptsTopK, "none", "likeliest"),
        (AcceptsTopK, "top-p", "always 5"),
        (DrawsTwice, "none", "likeliest"),
        (DrawsTwice, "top-k", "likeliest"),
        (UnfilteredRemainder, "top-p", "unlikeliest"),
        (StaleAcceptance, "top-p", "likeliest"),
        (StaleRow, "none", "likeliest"),
        (StaleRow, "min-p", "likeliest"),
        (StaleBonus, "top-p", "likeliest"),
        (StaleHistory, "penalties", "likeliest"),
    ],
)
def test_fault_in_verification_is_seen(verifier: type[Verifier], setting: str, guess: str) -> None:
    params = SETTINGS[setting]
    replies = draw(params, cycle([GUESSES[guess]]), NUM_DRAWS_FAULT, verifier)
    assert smallest_p(replies, params) < ALPHA


# ------------------------------------------------------------------ through a whole engine


class TableRunner:
    """Computes the tables' logits, from tokens that it keeps in the blocks as keys would be."""

    num_replays = 0

    def __init__(self, inner: Runner) -> None:
        self.kv = inner.kv
        self.device = inner.device
        self._memory = inner.kv.layers[0].planes[0][0, :, 0]  # (slots,)

    def run(self, chunks: Sequence[Chunk]) -> Tensor:
        lay_out(chunks, self.kv)  # the blocks count as touched
        return torch.cat([rows for chunk in chunks for rows in self._logits(chunk)])

    def _logits(self, chunk: Chunk) -> list[Tensor]:
        size, end = self.kv.block_size, chunk.start + len(chunk.token_ids)
        slots = [chunk.block_table[n // size] * size + n % size for n in range(end)]
        self._memory[slots[chunk.start :]] = torch.tensor(chunk.token_ids).float()
        if not chunk.needs_logits:
            return []
        text = [0, *self._memory[slots].int().tolist()]
        rows = logits_after(text[0], text[1:])
        return [rows[chunk.start if chunk.needs_all_logits else -1 :]]


class StaleTableRunner(TableRunner):
    """Gives each guess's row in the place of the next one's."""

    def _logits(self, chunk: Chunk) -> list[Tensor]:
        (rows,) = super()._logits(chunk)
        return [torch.cat([rows[:1], rows[:-1]])]


def draw_by_engine(
    params: SamplingParams, runner: type[TableRunner]
) -> tuple[list[tuple[int, ...]], int]:
    """The first tokens of replies that many chats get in the same steps; and how many guesses were right."""
    parts = make_parts(make_loaded(), guess="off", kv_scheme="fp32", ram_cache_bytes=0)
    parts.runner, parts.vocab_size = runner(parts.runner), V
    chance, guesses = random.Random(1), by_turns()
    engine, planned = plan_guesses(
        parts, lambda sequence, room: next(guesses)(sequence.token_ids, chance)
    )
    for seed in range(1, 1 + NUM_DRAWS_ENGINE):
        params = replace(params, seed=seed, max_tokens=NUM_COUNTED + 2)
        engine.add_request(GenerateRequest(f"{seed}", prompt_token_ids=PROMPT, params=params))
    replies = [tuple(sampled_ids(outputs)) for outputs in run_until_idle(engine).values()]
    engine.check_integrity()
    num_right = sum(len(emitted) - 1 for _, emitted in planned.seen)
    engine.close()
    return [reply[:NUM_COUNTED] for reply in replies], num_right


@pytest.mark.parametrize("setting", ["min-p", "all"])
def test_replies_of_a_whole_engine_follow_the_law(setting: str) -> None:
    params = SETTINGS[setting]
    replies, num_right = draw_by_engine(params, TableRunner)
    assert len(replies) == NUM_DRAWS_ENGINE
    assert num_right > NUM_DRAWS_ENGINE / 3
    assert smallest_p(replies, params) > ALPHA


def test_stale_row_of_a_runner_is_seen() -> None:
    params = SETTINGS["min-p"]
    replies, _ = draw_by_engine(params, StaleTableRunner)
    assert smallest_p(replies, params) < ALPHA
