"""Guessed tokens change nothing but the number of steps: right ones, wrong ones, on every border."""

import random
from functools import cache

import pytest

from inference.config import KvSchemeName, SamplingParams
from inference.engine import Engine
from inference.request import GenerateRequest
from inference.sequence import Sequence
from tests.inference.planned_guesses import Guesser, PlannedSpeculator, oracle, plan_guesses, wrong
from tests.inference.tiny_engine import (
    make_engine,
    make_loaded,
    make_parts,
    run_until_idle,
    sampled_ids,
    shown_text,
)

PROMPT = tuple(range(40, 61))  # 21 tokens: two blocks of 8 and a part
REPLY_TOKENS = 26
LENGTHS = (1, 2, 4, 8, 16)


def request(chat: str = "a", prompt: tuple[int, ...] = PROMPT, **params: object) -> GenerateRequest:
    values: dict[str, object] = {"temperature": 0.0, "max_tokens": REPLY_TOKENS, **params}
    return GenerateRequest(
        chat,
        prompt_token_ids=prompt,
        params=SamplingParams(**values),  # type: ignore[arg-type]  # fields of tests
    )


def plain_ids(
    family: str = "llama", *, asked: GenerateRequest | None = None, **config: object
) -> list[int]:
    engine = Engine(make_parts(make_loaded(family), guess="off", **config))
    ids = answer(engine, asked or request())
    engine.close()
    return ids


def answer(engine: Engine, asked: GenerateRequest) -> list[int]:
    request_id = engine.add_request(asked)
    outputs = run_until_idle(engine)[request_id]
    engine.check_integrity()
    assert outputs[-1].reply_token_ids is not None
    return sampled_ids(outputs)


def guessing(family: str, guess: Guesser, **config: object) -> tuple[Engine, PlannedSpeculator]:
    return plan_guesses(make_parts(make_loaded(family), guess="off", **config), guess)


@cache
def border_replies() -> list[tuple[GenerateRequest, list[int]]]:
    """Prompts that end on every place of a block, and their replies, each of which crosses borders."""
    engine = make_engine(make_loaded(), guess="off")
    # They begin differently, so that none finds what another kept.
    asked = [request(f"chat {n}", prompt=tuple(range(40 + n, 40 + 2 * n))) for n in range(15, 24)]
    return [(each, answer(engine, each)) for each in asked]


@pytest.mark.parametrize("num_tokens", LENGTHS)
def test_oracle_on_every_block_border_is_accepted_whole(num_tokens):
    replies = {asked.conversation_id: known for asked, known in border_replies()}
    engine, planned = guessing(
        "llama", lambda it, room: oracle(replies[it.conversation_id], num_tokens)(it, room)
    )
    for asked, known in border_replies():
        planned.seen.clear()
        assert answer(engine, asked) == known
        assert all(emitted[: len(draft)] == draft for draft, emitted in planned.seen)
        # The first token comes with the prompt; then each step brings the guesses and one more.
        assert len(planned.seen) == 1 + -(-(REPLY_TOKENS - 1) // (num_tokens + 1))


@pytest.mark.parametrize("num_tokens", LENGTHS)
def test_adversary_on_every_block_border_changes_nothing(num_tokens):
    replies = {asked.conversation_id: known for asked, known in border_replies()}
    engine, planned = guessing(
        "llama", lambda it, room: wrong(replies[it.conversation_id], num_tokens)(it, room)
    )
    for asked, known in border_replies():
        planned.seen.clear()
        assert answer(engine, asked) == known
        assert [len(emitted) for _, emitted in planned.seen] == [1] * REPLY_TOKENS
        drafted = sum(len(draft) for draft, _ in planned.seen)
        # Never more than the reply has room for, the last token's own row not counted.
        assert drafted == sum(min(num_tokens, left) for left in range(REPLY_TOKENS - 1))


@pytest.mark.parametrize("scheme", ["fp16", "int8", "int4"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_any_guesses_in_two_chats_leave_what_a_cold_run_computes(
    family: str, scheme: KvSchemeName
) -> None:
    loaded = make_loaded(family)
    known = plain_ids(family, kv_scheme=scheme)
    chance = random.Random(5)

    def guess(sequence: Sequence, room: int) -> list[int]:
        length, right = chance.randint(0, 16), chance.randint(0, 16)
        return list(wrong(known, length, first_wrong=right)(sequence, room))

    engine, planned = plan_guesses(make_parts(loaded, guess="off", kv_scheme=scheme), guess)
    first, second = engine.add_request(request("a")), engine.add_request(request("b"))
    outputs = run_until_idle(engine)
    engine.check_integrity()
    assert sampled_ids(outputs[first]) == known
    assert sampled_ids(outputs[second]) == known
    assert any(len(emitted) > 1 for _, emitted in planned.seen)
    assert any(len(draft) > len(emitted) for draft, emitted in planned.seen)

    # What is kept is what the model would have computed: the chat goes on as a cold one does.
    longer = request("a", prompt=(*PROMPT, *known, 50, 51, 52), max_tokens=12)
    cold = plain_ids(family, asked=longer, kv_scheme=scheme)
    assert answer(engine, longer) == cold
    engine.close()


@pytest.mark.parametrize("num_tokens", LENGTHS)
def test_same_seed_gives_the_same_text_with_penalties(num_tokens):
    params: dict[str, object] = {
        "temperature": 0.9, "top_k": 30, "top_p": 0.9, "min_p": 0.02, "seed": 11,
        "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.2,
    }  # fmt: skip
    asked = request("a", PROMPT, **params)
    known = plain_ids(asked=asked)
    engine, planned = guessing("llama", wrong(known, num_tokens, first_wrong=num_tokens - 1))

    assert answer(engine, asked) == known

    assert all(len(emitted) >= min(len(draft), num_tokens) for draft, emitted in planned.seen)
    engine.close()


@pytest.mark.parametrize("place", range(1, 18))
def test_end_of_turn_within_a_draft_ends_the_reply_there(place):
    known = plain_ids()
    end = known[place]
    first = known.index(end)  # a token that the reply may have said before
    parts = make_parts(make_loaded(eos_ids=[end]), guess="off")
    engine, _ = plan_guesses(parts, oracle(known, 16))

    assert answer(engine, request()) == known[: first + 1]

    # Nothing after it is kept either: all blocks together hold the prompt and what was said.
    trail = parts.memory.trail_of("a")
    assert list(trail or ()) == [*PROMPT, *known[:first]]
    engine.close()


@pytest.mark.parametrize("num_tokens", range(1, 20))
def test_cap_within_a_draft_is_kept(num_tokens):
    known = plain_ids()
    # A planner that does not care for the cap: the engine says how much there is room for.
    engine, _ = guessing("llama", oracle(known, 16))

    assert answer(engine, request(max_tokens=num_tokens)) == known[:num_tokens]
    engine.close()


def test_stop_string_over_the_border_of_a_draft_ends_the_reply_before_it():
    plain = make_engine(make_loaded(), guess="off")
    request_id = plain.add_request(request())
    outputs = run_until_idle(plain)[request_id]
    known, text = sampled_ids(outputs), shown_text(outputs)
    stop = text[7:10]
    plain.close()
    for num_tokens in range(1, 12):
        engine, _ = guessing("llama", oracle(known, num_tokens))
        request_id = engine.add_request(request(stop=(stop,)))
        outputs = run_until_idle(engine)[request_id]
        assert shown_text(outputs) == text[: text.index(stop)]
        assert outputs[-1].finish_reason == "stop"
        engine.check_integrity()
        engine.close()


def test_metrics_count_what_was_guessed():
    known = plain_ids()
    engine, _ = guessing("llama", wrong(known, 4, first_wrong=2))
    request_id = engine.add_request(request(max_tokens=13))
    metrics = run_until_idle(engine)[request_id][-1].metrics
    # One token with the prompt, then steps of 4 guesses that bring 3 tokens each.
    assert (metrics.verify_steps, metrics.drafted_tokens, metrics.accepted_tokens) == (4, 14, 8)
    assert metrics.completion_tokens == 13
    engine.close()


def test_abort_between_steps_with_guesses_and_going_on_equals_a_plain_chat():
    known = plain_ids()
    for num_steps in range(1, 5):
        engine, _ = guessing("llama", wrong(known, 6, first_wrong=3))
        request_id = engine.add_request(request())
        said: list[int] = []
        for _ in range(num_steps):
            said += sampled_ids(engine.step())
        engine.abort(request_id)
        run_until_idle(engine)
        engine.check_integrity()
        longer = request(prompt=(*PROMPT, *said), max_tokens=6)
        assert answer(engine, longer) == known[len(said) : len(said) + 6]
        engine.close()


def test_reply_that_fills_the_context_is_guessed_to_its_last_token():
    known = plain_ids()
    # A context of exactly the prompt and the reply.
    parts = make_parts(make_loaded(context_tokens=64), guess="off")
    asked = request(max_tokens=43)
    engine, _ = plan_guesses(parts, lambda sequence, room: [50] * 16)
    ids = answer(engine, asked)
    assert (ids[:REPLY_TOKENS], len(ids)) == (known, 43)
    engine.close()
