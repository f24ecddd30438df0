"""Random lives of many chats over all tiers; every reply must be the one that a cold engine gives.

Prompts are runs of consecutive numbers, so that a block in the wrong place changes the reply at once.
"""

import random
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from inference.config import SamplingParams
from inference.engine import Engine
from inference.request import GenerateRequest, RequestId
from tests.inference.tiny_engine import make_engine, make_loaded, run_until_idle, sampled_ids
from tests.inference.tiny_models import VOCAB_SIZE

CONTEXT_TOKENS = 1024
NUM_TOKENS = 3
CHATS = [f"chat {number}" for number in range(6)]
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
KV_BYTES = 2**20  # 2,048 tokens of the tiny model in fp32: two long chats and a half
RAM_BYTES = 2**20


def run_of(first: int, length: int) -> list[int]:
    """Consecutive ids, none of them a control token."""
    return [4 + (first + n) % (VOCAB_SIZE - 4) for n in range(length)]


def new_engine(folder: str | None) -> Engine:
    return make_engine(
        make_loaded(context_tokens=CONTEXT_TOKENS),
        kv_scheme="fp32",
        kv_cache_bytes=KV_BYTES,
        ram_cache_bytes=RAM_BYTES,
        disk_cache_bytes=None if folder else 0,
        cache_dir=folder,
    )


@cache
def cold_engine() -> Engine:
    return make_engine(
        make_loaded(context_tokens=CONTEXT_TOKENS), kv_scheme="fp32", ram_cache_bytes=0
    )


@cache
def truth(prompt: tuple[int, ...]) -> tuple[int, ...]:
    """What an engine without anything cached says."""
    engine = cold_engine()
    engine.clear_cache()
    request = GenerateRequest("truth", prompt_token_ids=prompt, params=GREEDY)
    request_id = engine.add_request(request)
    return tuple(sampled_ids(run_until_idle(engine)[request_id]))


class ChatsOverTiers(RuleBasedStateMachine):
    """Says, forks, edits, cancels, preempts, forgets and restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="quire-stress-")
        self.engine = new_engine(self.folder)
        self.chats: dict[str, list[int]] = {}

    @initialize(seed=st.integers(0, 2**16))
    def begin(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def prompt_of(self, chat: str, first: int, length: int) -> list[int]:
        known = self.chats.get(chat, [])
        prompt = known + run_of(first, length)
        return prompt if len(prompt) < CONTEXT_TOKENS - NUM_TOKENS else run_of(first, length)

    def ask(self, prompts: dict[str, list[int]]) -> None:
        asked: dict[RequestId, str] = {}
        for chat, prompt in prompts.items():
            request = GenerateRequest(chat, prompt_token_ids=tuple(prompt), params=GREEDY)
            asked[self.engine.add_request(request)] = chat
        for request_id, outputs in run_until_idle(self.engine).items():
            prompt = prompts[asked[request_id]]
            found = tuple(sampled_ids(outputs))
            assert found == truth(tuple(prompt)), f"{asked[request_id]}: {outputs[-1].metrics}"
            assert outputs[-1].metrics.reused_tokens < len(prompt)
            self.chats[asked[request_id]] = prompt + list(found)

    @rule(chat=st.sampled_from(CHATS), first=st.integers(0, 5), length=st.integers(1, 700))
    def say(self, chat: str, first: int, length: int) -> None:
        self.ask({chat: self.prompt_of(chat, first, length)})

    @rule(
        chats=st.lists(st.sampled_from(CHATS), min_size=2, max_size=4, unique=True),
        first=st.integers(0, 5),
        length=st.integers(1, 600),
    )
    def say_together(self, chats: Sequence[str], first: int, length: int) -> None:
        self.ask({chat: self.prompt_of(chat, first, length) for chat in chats})

    @rule(source=st.sampled_from(CHATS), heir=st.sampled_from(CHATS), share=st.floats(0, 1))
    def fork(self, source: str, heir: str, share: float) -> None:
        """Another chat goes on from somewhere within this one: an edit, if they are the same."""
        known = self.chats.get(source, [])
        prompt = known[: int(share * len(known))] + run_of(9, 20)
        self.ask({heir: prompt})

    @rule(chat=st.sampled_from(CHATS), length=st.integers(1, 700), steps=st.integers(0, 4))
    def cancel(self, chat: str, length: int, steps: int) -> None:
        prompt = self.prompt_of(chat, 3, length)
        request = GenerateRequest(chat, prompt_token_ids=tuple(prompt), params=GREEDY)
        request_id = self.engine.add_request(request)
        for _ in range(steps):
            self.engine.step()
        self.engine.abort(request_id)
        run_until_idle(self.engine)

    @rule(chat=st.sampled_from(CHATS))
    def forget(self, chat: str) -> None:
        self.engine.forget(chat)
        self.chats.pop(chat, None)

    @rule()
    def restart(self) -> None:
        self.engine.close()
        self.engine = new_engine(self.folder)

    @rule(source=st.sampled_from(CHATS), heir=st.sampled_from(CHATS), share=st.floats(0, 1))
    def outlive(self, source: str, heir: str, share: float) -> None:
        """A chat goes on from what another began, of which the rest goes: seen from the disk alone."""
        if source == heir:
            return
        self.say(source, 2, 50)
        self.fork(source, heir, share)
        assert self.engine.flush()
        self.forget(source)
        self.restart()
        self.say(heir, 7, 30)

    @rule(is_off=st.booleans())
    def change_budgets(self, is_off: bool) -> None:
        self.engine.set_cache_budgets(0 if is_off else RAM_BYTES, None)

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
        assert (stats.blocks.used, stats.blocks.cached, stats.ram.used_bytes) == (0, 0, 0)
        assert stats.disk.used_bytes == 0
        self.engine.close()
        shutil.rmtree(self.folder)


@pytest.mark.slow
def test_random_lives_of_chats_over_all_tiers() -> None:
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        ChatsOverTiers,
        settings=settings(
            max_examples=6,
            stateful_step_count=20,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
        ),
    )
