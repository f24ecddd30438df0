"""A reply to which the engine does not come says so, and why."""

from dataclasses import replace

import pytest

from app.messages import ReplyEnded, ReplyId, ReplyProgressed, StatsSampled
from app.session_changes import ReplyWaits, WaitReason
from inference.metrics import BlockCounts, EngineStats, RequestMetrics
from tests.app.session_bench import Bench

READING = RequestMetrics(prompt_tokens=900)
FULL = EngineStats(
    blocks=BlockCounts(total=64, free=4, cached=4, used=56),
    block_size=16,
    num_running=1,
    num_waiting=1,
)
LONG = "word " * 200  # 1,000 bytes and so at most 1,000 tokens, and the memory has room for 128


@pytest.fixture
def waiting(ready: Bench) -> Bench:
    """Two chats; the reply of the first is being written, that of the second was asked for at 100."""
    ready.session.send("First")
    ready.says("One")
    ready.session.new_chat()
    ready.session.send(LONG)
    ready.take()
    return ready


def waits(bench: Bench, now: float, stats: EngineStats = FULL) -> list[WaitReason]:
    """What is told of the shown reply when the engine's numbers come at this time."""
    bench.now = now
    bench.take()
    bench.session.handle_event(StatsSampled(stats, 1, 2))
    told = [change for change in bench.take() if isinstance(change, ReplyWaits)]
    assert all(change.message_id == bench.last.id for change in told)
    return [change.reason for change in told]


def reads(bench: Bench, reply_id: int, now: float) -> None:
    bench.now = now
    bench.session.handle_event(ReplyProgressed(ReplyId(reply_id), "", (), 100, READING))


def test_reply_that_waits_for_memory_says_so_after_two_seconds(waiting: Bench) -> None:
    assert waits(waiting, 101.9) == []
    assert waits(waiting, 102.0) == ["memory"]
    assert waits(waiting, 180.0) == ["memory"]


def test_reply_that_the_engine_reads_or_writes_does_not_wait(waiting: Bench) -> None:
    reads(waiting, 2, 102.0)
    assert waits(waiting, 103.9) == []
    waiting.says("Two")
    assert waits(waiting, 105.8) == []


@pytest.mark.parametrize(
    "stats",
    [
        replace(FULL, num_waiting=0),
        replace(FULL, num_running=0),
        replace(FULL, num_loading=1, num_waiting=0),
    ],
)
def test_reply_of_which_the_engine_knows_better_does_not_wait(
    waiting: Bench, stats: EngineStats
) -> None:
    assert waits(waiting, 110.0, stats) == []


def test_reply_that_waits_while_another_message_is_read_says_that(ready: Bench) -> None:
    ready.session.send("First")
    ready.session.new_chat()
    ready.session.send(LONG)
    reads(ready, 1, 101.0)
    assert waits(ready, 102.0) == ["reading"]
    ready.says("One", ReplyId(1))
    assert waits(ready, 103.0) == ["memory"]


def test_reply_for_which_there_is_memory_only_waits_for_its_turn(waiting: Bench) -> None:
    room = replace(FULL, blocks=BlockCounts(total=128, free=60, cached=60, used=8))
    assert waits(waiting, 102.0, room) == ["turn"]


def test_reply_that_was_put_back_says_that_it_waits(waiting: Bench) -> None:
    waiting.says("Two")
    assert waits(waiting, 102.0) == ["memory"]


def test_reply_that_has_begun_is_not_taken_for_another_that_waits(waiting: Bench) -> None:
    waiting.says("Two")
    written = waiting.session.conversation
    assert written is not None
    waiting.session.new_chat()
    waiting.session.send("Third")
    waiting.session.open_chat(written.id)
    assert waits(waiting, 110.0) == []
    assert waits(waiting, 110.0, replace(FULL, num_waiting=2)) == ["memory"]


def test_only_the_shown_reply_is_told_about(waiting: Bench) -> None:
    waiting.session.new_chat()
    assert waits(waiting, 110.0) == []
    waiting.session.open_chat(waiting.session.conversations()[0].id)
    assert waits(waiting, 110.0) == ["memory"]


def test_reply_that_waits_for_a_model_waits_for_nothing_else(bench: Bench) -> None:
    bench.session.load_model("/m")
    bench.session.send(LONG)
    assert waits(bench, 110.0) == []


def test_reply_that_ended_waits_for_nothing(waiting: Bench) -> None:
    waiting.session.handle_event(ReplyEnded(ReplyId(2), "aborted", READING))
    assert waits(waiting, 110.0) == []
