"""Random lives of chats whose replies are guessed ahead: each reply is still what a plain cold engine says.

Guesses are of any length and right up to any place. Between two steps each row that holds nothing of worth is
filled with NaN: free blocks, and what lies behind a running sequence, rows of refused guesses above all. A
value that is read from there makes the logits no numbers, and the reply fails.
"""

import random
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from inference.config import MAX_DRAFT_TOKENS, SamplingParams
from inference.engine import Engine
from inference.engine_loading import EngineParts
from inference.request import GenerateRequest, RequestId
from inference.sequence import Sequence as TokenSequence
from tests.inference.planned_guesses import PlannedSpeculator, plan_guesses, wrong
from tests.inference.tiny_engine import make_engine, make_loaded, make_parts, run_until_idle
from tests.inference.tiny_engine import sampled_ids as ids_of
from tests.inference.tiny_models import VOCAB_SIZE

CONTEXT_TOKENS = 1024
NUM_TOKENS = 20
NUM_CROWD = 4  # chats that fill all blocks together
CHATS = [f"chat {number}" for number in range(5)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)

Prompt = tuple[int, ...]


def run_of(first: int, length: int) -> Prompt:
    """Consecutive ids, none of them a control token: a block in the wrong place changes the reply."""
    return tuple(4 + (first + n) % (VOCAB_SIZE - 4) for n in range(length))


@cache
def cold_engine(family: str) -> Engine:
    loaded = make_loaded(family, context_tokens=CONTEXT_TOKENS)
    return make_engine(loaded, kv_scheme="fp32", ram_cache_bytes=0, guess="off")


@cache
def truth(family: str, prompt: Prompt) -> list[int]:
    """What an engine without guesses says that has nothing cached."""
    engine = cold_engine(family)
    engine.clear_cache()
    outputs = engine.generate(conversation_id="truth", prompt_token_ids=prompt, params=GREEDY)
    return ids_of(list(outputs))


def poison(parts: EngineParts) -> None:
    """Fill each row that holds nothing with bits that are NaN in all types of floats."""
    kv, size = parts.kv, parts.kv.block_size
    rows = [range(block * size, (block + 1) * size) for block in kv._pool.free_blocks()]
    for sequence in parts.scheduler.running:
        table, first = sequence.block_table, sequence.num_computed // size
        for index in range(first, len(table)):
            start = sequence.num_computed - first * size if index == first else 0
            assert kv._pool.prefix_of(table[index]) is None, "others may find what is not computed"
            rows.append(range(table[index] * size + start, (table[index] + 1) * size))
    slots = [slot for run in rows for slot in run]
    for layer in parts.runner.kv.layers:
        for plane in layer.planes:
            plane[:, slots] = float("nan")


class GuessedChats(RuleBasedStateMachine):
    """Says, forks, answers twice, crowds, cancels, deletes and restarts.

    Attributes:
        totals: Right guesses, wrong ones and preemptions of all lives, so that none is missing.
    """

    family = "llama"
    totals: list[int]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="quire-guesses-")
        self.chats: dict[str, Prompt] = {}
        self.dice = random.Random(0)
        self.open()

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.dice.seed(seed)

    def open(self) -> None:
        self.parts = make_parts(
            make_loaded(self.family, context_tokens=CONTEXT_TOKENS),
            kv_scheme="fp32",
            kv_cache_bytes=2**20,
            ram_cache_bytes=2**19,
            cache_dir=self.folder,
            guess="off",
        )
        self.engine, self.planned = plan_guesses(self.parts, self.guess)

    def close(self) -> None:
        count(self.totals, self.planned, self.engine)
        self.engine.close()

    def guess(self, sequence: TokenSequence, room: int) -> Sequence[int]:
        prompt = tuple(sequence.token_ids[: sequence.num_prompt_tokens])
        length, first_wrong = self.dice.randint(0, MAX_DRAFT_TOKENS), self.dice.randint(0, 10)
        return wrong(truth(self.family, prompt), length, first_wrong=first_wrong)(sequence, room)

    def prompt_of(self, chat: str, length: int) -> Prompt:
        """What was said, and more; a chat that is too long begins anew."""
        prompt = self.chats.get(chat, ()) + run_of(self.dice.randint(0, 5), length)
        return prompt if len(prompt) < 400 else prompt[-length:]

    def ask(
        self,
        prompts: dict[str, Prompt],
        *,
        stopped: Sequence[str] = (),
        deleted: Sequence[str] = (),
    ) -> None:
        """Let chats reply together; some are stopped and some deleted after any number of steps."""
        for prompt in prompts.values():
            truth(self.family, prompt)
        names: dict[RequestId, str] = {}
        for chat, prompt in prompts.items():
            asked = GenerateRequest(chat, prompt_token_ids=prompt, params=GREEDY)
            names[self.engine.add_request(asked)] = chat
        said: dict[str, list[int]] = {chat: [] for chat in prompts}
        left = {request_id: self.dice.randint(1, 9) for request_id in names}
        while self.engine.has_work:
            poison(self.parts)
            for output in self.engine.step():
                said[names[output.request_id]] += output.token_ids
            for request_id, chat in names.items():
                left[request_id] -= 1
                if left[request_id] == 0 and chat in stopped:
                    self.engine.abort(request_id)
                if left[request_id] == 0 and chat in deleted:
                    self.engine.forget(chat)
        for chat, prompt in prompts.items():
            known = truth(self.family, prompt)
            assert said[chat] == (known[: len(said[chat])] if chat in stopped else known), chat
            self.chats[chat] = () if chat in deleted else prompt + tuple(said[chat])

    @rule(
        chats=st.lists(st.sampled_from(CHATS), min_size=1, max_size=3, unique=True),
        length=st.integers(1, 120),
    )
    def say(self, chats: Sequence[str], length: int) -> None:
        self.ask({chat: self.prompt_of(chat, length) for chat in chats})

    @rule(
        chats=st.lists(st.sampled_from(CHATS), min_size=2, max_size=3, unique=True),
        length=st.integers(1, 120),
    )
    def stop_and_delete(self, chats: Sequence[str], length: int) -> None:
        prompts = {chat: self.prompt_of(chat, length) for chat in chats}
        self.ask(prompts, stopped=chats[:1], deleted=chats[1:2])

    @rule(
        chats=st.lists(st.sampled_from(CHATS), min_size=2, max_size=3, unique=True),
        length=st.integers(1, 120),
    )
    def answer_several_times(self, chats: Sequence[str], length: int) -> None:
        """One question, several replies at once; one of them is stopped."""
        prompt = self.prompt_of(chats[0], length)
        self.ask(dict.fromkeys(chats, prompt), stopped=chats[1:2])

    @rule(source=st.sampled_from(CHATS), heir=st.sampled_from(CHATS), share=st.floats(0, 1))
    def fork(self, source: str, heir: str, share: float) -> None:
        known = self.chats.get(source, ())
        self.ask({heir: known[: int(share * len(known))] + run_of(9, 20)})

    @rule(spare=st.integers(0, 18))
    def crowd(self, spare: int) -> None:
        """Prompts that fill all blocks but a few rows: then blocks run out, before or while all reply."""
        size = self.parts.kv.block_size
        length = self.parts.kv.num_blocks // NUM_CROWD * size - spare
        chats = self.dice.sample(CHATS, NUM_CROWD)
        self.ask({chat: run_of(17 * place, length) for place, chat in enumerate(chats)})

    @rule()
    def restart(self) -> None:
        self.close()
        self.open()

    @invariant()
    def books_are_sound(self) -> None:
        assert not self.engine.has_work
        self.engine.check_integrity()

    def teardown(self) -> None:
        for chat in CHATS:
            self.engine.forget(chat)
        assert self.engine.flush()
        self.engine.check_integrity()
        stats = self.engine.stats()
        assert (stats.blocks.used, stats.blocks.cached, stats.disk.used_bytes) == (0, 0, 0)
        self.close()
        shutil.rmtree(self.folder)


def count(totals: list[int], planned: PlannedSpeculator, engine: Engine) -> None:
    for draft, emitted in planned.seen:
        totals[0] += len(emitted) - 1
        totals[1] += len(draft) - (len(emitted) - 1)
    totals[2] += engine.stats().preemptions


def test_one_life_with_guesses_replies_as_plain_cold_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(GuessedChats, "totals", [0, 0, 0], raising=False)
    life = GuessedChats()
    life.say(CHATS[:3], 40)
    life.stop_and_delete(CHATS[:3], 60)
    life.answer_several_times(CHATS[1:4], 30)
    life.crowd(14)
    life.restart()
    life.fork(CHATS[0], CHATS[4], 0.7)
    life.books_are_sound()
    life.teardown()
    num_right, num_wrong, num_preempted = life.totals
    assert num_right > 50
    assert num_wrong > 50
    assert num_preempted > 0


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_random_lives_with_guesses_reply_as_plain_cold_engines(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    totals = [0, 0, 0]
    monkeypatch.setattr(GuessedChats, "family", family)
    monkeypatch.setattr(GuessedChats, "totals", totals, raising=False)
    run_state_machine_as_test(
        GuessedChats,
        settings=settings(
            max_examples=3,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )
    num_right, num_wrong, num_preempted = totals
    assert num_right > 300
    assert num_wrong > 300
    assert num_preempted > 0


def test_rows_that_are_poisoned_would_be_seen() -> None:
    prompt = run_of(0, 30)
    parts = make_parts(make_loaded(context_tokens=CONTEXT_TOKENS), kv_scheme="fp32", guess="off")
    engine, _ = plan_guesses(parts, lambda sequence, room: ())
    request_id = engine.add_request(GenerateRequest("chat", prompt_token_ids=prompt, params=GREEDY))
    engine.step()
    (sequence,) = parts.scheduler.running
    sequence.num_computed -= 1  # a row that is of worth
    poison(parts)
    sequence.num_computed += 1
    assert run_until_idle(engine)[request_id][-1].finish_reason == "error"
    engine.close()
