"""How much of the memory that is taken is in use, over a day's mix of chats."""

import math
import random
from dataclasses import dataclass

import pytest

from inference.kv_cache.manager import KvCacheManager
from inference.request import RequestId
from inference.scheduler import Scheduler
from inference.sequence import Sequence
from tests.inference.memory_tiers import FakeMover

BLOCK_SIZE = 16
NUM_BLOCKS = 8192
NUM_CHATS = 50
NUM_WITH_SYSTEM_PROMPT = 20
SYSTEM_PROMPT = list(range(1, 301))


@dataclass
class Chat:
    name: str
    text: list[int]
    length: int
    first_token: int


def make_chats(random_state: random.Random) -> list[Chat]:
    """20 to 4,000 tokens each, as many short as long ones: log-uniform."""
    chats = []
    for number in range(NUM_CHATS):
        length = round(math.exp(random_state.uniform(math.log(20), math.log(4000))))
        text = list(SYSTEM_PROMPT) if number < NUM_WITH_SYSTEM_PROMPT else []
        # Each chat has its own words, so that only the system prompt is shared.
        chats.append(Chat(f"chat {number}", text, len(text) + length, 10_000 * (number + 1)))
    return chats


def take_turn(kv: KvCacheManager, scheduler: Scheduler, chat: Chat, number: int, end: int) -> int:
    """Say something and get a reply, until the chat has `end` tokens; how many were reused."""
    middle = (len(chat.text) + end + 1) // 2
    chat.text += range(chat.first_token + len(chat.text), chat.first_token + middle)
    sequence = Sequence(RequestId(number), chat.name, chat.text)
    scheduler.add(sequence)
    while len(sequence.token_ids) < end + 1:  # the last one sampled is not computed
        chunks = scheduler.schedule()
        scheduler.commit(chunks)
        if chunks[0].needs_logits:
            sequence.append(chat.first_token + len(sequence.token_ids))
    scheduler.remove(sequence.request_id)
    chat.text = sequence.token_ids[:end]
    return sequence.num_reused


class RowlessMover(FakeMover):
    """Copies nothing; here only places count."""

    def copy_rows(self, source: int, target: int, num_rows: int) -> None:
        pass


def used_share(kv: KvCacheManager) -> float:
    counts = kv.counts()
    assert counts.used == 0
    rows = sum(len(prefix.token_ids) for _, prefix in kv._pool.indexed())
    return rows / (counts.cached * BLOCK_SIZE)


@pytest.mark.slow
def test_day_of_fifty_chats_uses_98_percent_of_its_slots_and_holds_the_system_prompt_once():
    random_state = random.Random(3)
    chats = make_chats(random_state)
    kv = KvCacheManager(NUM_BLOCKS, BLOCK_SIZE, namespace=b"", mover=RowlessMover(BLOCK_SIZE))
    scheduler = Scheduler(kv, token_budget=4096)
    turns = [chat for chat in chats for _ in range(random_state.randint(2, 8))]
    random_state.shuffle(turns)
    left = {chat.name: turns.count(chat) for chat in chats}
    for number, chat in enumerate(turns):
        known = len(chat.text)
        missing = chat.length - known
        end = chat.length if left[chat.name] == 1 else known + missing // left[chat.name]
        left[chat.name] -= 1
        reused = take_turn(kv, scheduler, chat, number, max(end, known + 2))
        # All that this chat had is reused; a new one has at least the system prompt's full blocks,
        # once another brought it.
        assert reused >= known or known == len(SYSTEM_PROMPT)
    scheduler.check_integrity()
    assert kv.evictions == 0
    assert used_share(kv) >= 0.98
    system_blocks = [
        prefix for _, prefix in kv._pool.indexed() if prefix.token_ids[0] in SYSTEM_PROMPT
    ]
    full = len(SYSTEM_PROMPT) // BLOCK_SIZE
    assert sum(len(prefix.token_ids) == BLOCK_SIZE for prefix in system_blocks) >= full
    heads = [prefix for prefix in system_blocks if prefix.token_ids[-1] in SYSTEM_PROMPT]
    assert sorted(prefix.token_ids for prefix in heads) == [
        tuple(SYSTEM_PROMPT[i * BLOCK_SIZE : (i + 1) * BLOCK_SIZE]) for i in range(full)
    ]
