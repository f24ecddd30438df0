"""A draft model in an engine: replies stay what they are, whatever happens to it meanwhile."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from inference import live_requests
from inference.config import SamplingParams
from inference.engine import Engine
from inference.errors import ComputeError, ModelFileError
from inference.metrics import RequestMetrics
from inference.request import GenerateRequest
from tests.inference.draft_models import draft_for
from tests.inference.small_memory import WAIT_S
from tests.inference.tiny_engine import (
    make_engine,
    make_parts,
    run_until_idle,
    sampled_ids,
)

PROMPT = tuple(range(40, 63))


def request(chat: str = "a", prompt: tuple[int, ...] = PROMPT, **params: object) -> GenerateRequest:
    values: dict[str, object] = {"temperature": 0.0, "max_tokens": 40, **params}
    return GenerateRequest(
        chat,
        prompt_token_ids=prompt,
        params=SamplingParams(**values),  # type: ignore[arg-type]  # fields of tests
    )


def with_draft(*, seed: int = 0, **config: object) -> Engine:
    """A tiny model, and one of the same shape that guesses: the very same with the same seed."""
    values: dict[str, object] = {"guess": "auto", "draft_tokens": 4, **config}
    parts = make_parts(**values)  # type: ignore[arg-type]  # fields of tests
    engine = Engine(parts)
    parts.speculator.use(draft_for(parts, seed=seed))
    parts.speculator.set_guess("draft")
    return engine


def answer(engine: Engine, asked: GenerateRequest) -> tuple[list[int], RequestMetrics]:
    request_id = engine.add_request(asked)
    outputs = run_until_idle(engine)[request_id]
    engine.check_integrity()
    return sampled_ids(outputs), outputs[-1].metrics


@cache
def plain(asked: GenerateRequest) -> list[int]:
    """What an engine without guesses says."""
    engine = make_engine(guess="off")
    ids, _ = answer(engine, asked)
    engine.close()
    return ids


def test_draft_model_that_is_the_model_itself_is_always_right():
    engine = with_draft()
    ids, metrics = answer(engine, request())
    assert ids == plain(request())
    # It reads the prompt beside one guess; then come seven steps of 4 guesses and one more; then 2 are left.
    assert (metrics.drafted_tokens, metrics.accepted_tokens, metrics.verify_steps) == (30, 30, 9)
    stats = engine.stats().guesses
    assert (stats.draft_model, stats.accepted_tokens) == ("Tiny", 30)
    assert stats.draft_bytes > 4 * 1000
    engine.close()


@pytest.mark.parametrize("params", [{}, {"temperature": 0.9, "seed": 3, "presence_penalty": 0.5}])
def test_draft_model_that_is_often_wrong_changes_nothing(params):
    asked = request(**params)
    engine = with_draft(seed=1)
    ids, metrics = answer(engine, asked)
    assert ids == plain(asked)
    assert metrics.drafted_tokens > metrics.accepted_tokens
    engine.close()


@pytest.mark.parametrize("error", [RuntimeError("the device is lost"), ComputeError("no number")])
def test_no_reply_ends_because_it_cannot_be_told_how_sure_the_model_is(
    error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(rows: object) -> list[tuple[int, float]]:
        raise error

    monkeypatch.setattr(live_requests, "surest_of", fail)
    engine = with_draft()
    speculator, told = engine._parts.speculator, []
    verified = speculator.verified

    def note(sequence: Any, draft: Any, emitted: Any, sureness: Callable[[], float]) -> None:
        told.append(sureness())
        verified(sequence, draft, emitted, sureness)

    monkeypatch.setattr(speculator, "verified", note)
    ids, _ = answer(engine, request())
    assert ids == plain(request())
    assert set(told) == {0.0}  # not sure, so nobody guesses for it unless told to
    assert str(error) in caplog.text
    engine.close()


@pytest.mark.parametrize("after", [1, 2, 5])
def test_draft_model_taken_away_or_exchanged_while_replies_run_changes_none(after):
    for seed in (None, 0, 1):
        engine = with_draft()
        first, second = engine.add_request(request("a")), engine.add_request(request("b"))
        said: dict[int, list[int]] = {first: [], second: []}
        for number in range(100):
            if number == after:
                before = engine._parts.speculator.use(
                    None if seed is None else draft_for(engine._parts, seed=seed)
                )
                assert before is not None
                before.close()
            for output in engine.step():
                said[output.request_id] += output.token_ids
        assert said == {first: plain(request()), second: plain(request())}
        engine.check_integrity()
        engine.close()


def test_abort_in_mid_reply_leaves_nothing_and_the_chat_goes_on():
    engine = with_draft()
    request_id = engine.add_request(request())
    said: list[int] = []
    for _ in range(3):
        said += sampled_ids(engine.step())
    engine.abort(request_id)
    run_until_idle(engine)
    engine.check_integrity()
    longer = request(prompt=(*PROMPT, *said, 50), max_tokens=9)
    ids, _ = answer(engine, longer)
    assert ids == plain(longer)
    engine.close()


def test_what_the_draft_model_read_is_there_after_a_restart(tmp_path):
    engine = with_draft(cache_dir=str(tmp_path))
    ids, _ = answer(engine, request())
    assert engine.flush(WAIT_S)
    written = engine.stats().disk_written_bytes
    engine.close()
    engine = with_draft(cache_dir=str(tmp_path))
    draft = engine._parts.speculator.draft
    assert draft is not None
    longer = request(prompt=(*PROMPT, *ids, 50, 51), max_tokens=60)
    request_id = engine.add_request(longer)
    scheduler = draft._batches.parts.scheduler  # type: ignore[attr-defined]
    while not scheduler.running and engine.has_work:
        engine.step()
    # All but what was never read is there: no more than a few tokens were computed.
    assert scheduler.running[0].num_reused >= len(PROMPT) + len(ids) - 8
    assert written > 0
    engine.abort(request_id)
    run_until_idle(engine)
    assert engine.forget("a") > 0
    assert engine.flush(WAIT_S)
    engine.check_integrity()
    assert list(tmp_path.rglob("*.kv")) == []
    engine.close()


def test_both_models_keep_one_account_of_the_disk(tmp_path):
    engine = with_draft(cache_dir=str(tmp_path))
    answer(engine, request())
    assert engine.flush(WAIT_S)
    draft = engine._parts.speculator.draft
    assert draft is not None
    memories = (engine._parts.memory, draft._batches.parts.memory)  # type: ignore[attr-defined]
    used = {memory.tiers()[2].used_bytes for memory in memories}
    pieces = sum(path.stat().st_size for path in tmp_path.rglob("*.kv"))
    assert len(used) == 1
    assert used.pop() > pieces > 0
    assert draft.disk_written_bytes > 0
    engine.close()


def test_draft_model_that_cannot_be_opened_leaves_the_one_before(tmp_path):
    engine = with_draft()
    draft = engine._parts.speculator.draft
    with pytest.raises(ModelFileError):
        engine.use_draft(tmp_path / "missing.gguf")
    assert engine._parts.speculator.draft is draft
    assert engine.use_draft(None) is None
    assert engine.stats().guesses.draft_model == ""
    ids, _ = answer(engine, request())
    assert ids == plain(request())
    engine.close()
