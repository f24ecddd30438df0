"""Replies that a person did not wait for: stored as if they had been stopped, with their ids."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from app.conversation import MessageId
from app.failures import BUG
from app.messages import Generate, ReplyEnded, ReplyId, ReplyProgressed, StopReply
from app.session_changes import MessageChanged
from inference.request import ChatMessage, FinishReason
from tests.app.session_bench import INFO, METRICS, Bench

KEY = INFO.fingerprint
QUESTION, REPLY = MessageId(1), MessageId(2)


def step(
    bench: Bench, text: str, *token_ids: int, is_all_shown: bool, reply_id: int | None = None
) -> None:
    number = bench.generate().reply_id if reply_id is None else ReplyId(reply_id)
    bench.session.handle_event(
        ReplyProgressed(number, text, token_ids, 4, METRICS, is_all_shown=is_all_shown)
    )


def ends_late(
    bench: Bench, reply_id: int, *token_ids: int, reason: FinishReason = "aborted"
) -> None:
    failure = BUG if reason == "error" else None
    bench.session.handle_event(ReplyEnded(ReplyId(reply_id), reason, METRICS, failure, token_ids))


def num_asked(bench: Bench) -> int:
    return sum(isinstance(command, Generate) for command in bench.posted)


def _send(bench: Bench) -> None:
    bench.session.send("Next")


def _edit(bench: Bench) -> None:
    bench.session.edit(QUESTION, "Otherwise")


def _again(bench: Bench) -> None:
    bench.session.regenerate(REPLY)


def _sum_up(bench: Bench) -> None:
    bench.session.continue_in_new_chat("Next")


def _delete(bench: Bench) -> None:
    bench.session.delete_chat(bench.chat.id)
    bench.session.undo_delete()


ABANDONING = pytest.mark.parametrize("abandon", [_send, _edit, _again, _sum_up, _delete])


@ABANDONING
def test_abandoned_reply_is_stored_with_the_ids_of_its_text(
    ready: Bench, abandon: Callable[[Bench], None]
) -> None:
    ready.session.send("Trees?")
    step(ready, "A leaf", 7, 8, is_all_shown=True)
    step(ready, "", 9, is_all_shown=False)  # the beginning of a character
    abandon(ready)
    stored = ready.stored(REPLY)
    assert (stored.content, stored.status) == ("A leaf", "stopped")
    assert (stored.token_ids, stored.model_key) == ((7, 8), KEY)


@ABANDONING
def test_abandoned_reply_of_which_something_is_held_back_gets_its_ids_from_the_engine(
    ready: Bench, abandon: Callable[[Bench], None]
) -> None:
    ready.session.send("Trees?")
    step(ready, "A ", 7, is_all_shown=True)
    step(ready, "leaf", 8, 9, is_all_shown=False)
    abandon(ready)
    assert ready.stored(REPLY).token_ids is None
    assert ready.stored(REPLY).status == "stopped"
    step(ready, " fell", 10, is_all_shown=False, reply_id=1)
    ends_late(ready, 1, 7, 8, 9, 10)
    stored = ready.stored(REPLY)
    assert (stored.content, stored.status) == ("A leaf fell", "stopped")
    assert (stored.token_ids, stored.model_key) == ((7, 8, 9, 10), KEY)


def test_next_reply_is_asked_for_when_the_ids_of_the_abandoned_one_are_known(ready: Bench) -> None:
    ready.session.send("Trees?")
    step(ready, "A leaf", 7, is_all_shown=False)
    ready.session.send("Next")
    assert ready.posted[-1] == StopReply(ReplyId(1))
    assert ready.session.is_replying
    ready.take()
    ends_late(ready, 1, 7)
    (changed,) = ready.take()
    assert changed == MessageChanged(ready.chat.messages[REPLY])
    assert ready.generate().messages == (
        ChatMessage("user", "Trees?"),
        ChatMessage("assistant", "A leaf", (7,)),
        ChatMessage("user", "Next"),
    )
    assert num_asked(ready) == 2
    ends_late(ready, 1, 7)
    assert num_asked(ready) == 2
    assert ready.take() == []


def test_next_reply_is_asked_for_at_once_when_the_ids_are_known(ready: Bench) -> None:
    ready.session.send("Trees?")
    step(ready, "A leaf", 7, 8, is_all_shown=True)
    ready.session.send("Next")
    assert ready.generate().messages[1] == ChatMessage("assistant", "A leaf", (7, 8))
    step(ready, " late", 9, is_all_shown=True, reply_id=1)
    ends_late(ready, 1, 7, 8, 9)
    assert ready.stored(REPLY).content == "A leaf"


def test_reply_of_another_chat_does_not_wait_for_an_abandoned_one(ready: Bench) -> None:
    ready.session.send("Trees?")
    step(ready, "A leaf", 7, is_all_shown=False)
    ready.session.delete_chat(ready.chat.id)
    ready.session.send("Hello")
    assert ready.asked() == ["Hello"]


def test_next_reply_that_is_stopped_while_it_waits_is_never_asked_for(ready: Bench) -> None:
    ready.session.send("Trees?")
    step(ready, "A leaf", 7, is_all_shown=False)
    ready.session.send("Next")
    ready.session.stop()
    assert (ready.last.content, ready.last.status) == ("", "stopped")
    ends_late(ready, 1, 7)
    assert num_asked(ready) == 1


@pytest.mark.parametrize("reason", ["stop", "length", "error"])
def test_abandoned_reply_stays_stopped_whatever_it_came_to(
    ready: Bench, reason: FinishReason
) -> None:
    ready.session.send("Trees?")
    step(ready, "A leaf", 7, is_all_shown=False)
    ready.session.send("Next")
    ends_late(ready, 1, 7, reason=reason)
    stored = ready.stored(REPLY)
    assert (stored.status, stored.error, stored.token_ids) == ("stopped", None, (7,))


def test_each_of_several_replies_gets_its_own_ids(ready: Bench) -> None:
    ready.session.send("Trees?")
    ready.session.stop()
    ends_late(ready, 1)
    ready.session.regenerate(REPLY, 3)
    first, second, third = (reply.reply_id for reply in ready.posted[-3:])  # type: ignore[union-attr]
    step(ready, "one", 11, is_all_shown=True, reply_id=first)
    step(ready, "two", 12, is_all_shown=False, reply_id=second)
    ready.session.edit(QUESTION, "Otherwise")
    ends_late(ready, second, 12)
    ends_late(ready, third)
    kept = [ready.stored(number) for number in (3, 4, 5)]
    assert [(it.content, it.token_ids) for it in kept] == [
        ("one", (11,)),
        ("two", (12,)),
        ("", None),
    ]


def test_close_keeps_the_ids_of_what_is_shown(ready: Bench) -> None:
    ready.session.send("Trees?")
    step(ready, "A leaf", 7, 8, is_all_shown=True)
    step(ready, "", 9, is_all_shown=False)
    ready.session.close()
    ready.start()
    stored = ready.stored(REPLY)
    assert (stored.content, stored.status, stored.token_ids) == ("A leaf", "stopped", (7, 8))


def test_text_after_which_nothing_is_held_back_has_all_ids_again(ready: Bench) -> None:
    ready.session.send("Trees?")
    step(ready, "A", 7, is_all_shown=False)
    step(ready, " leaf", 8, is_all_shown=True)
    ready.session.send("Next")
    assert replace(ready.stored(REPLY), token_ids=(7, 8)) == ready.stored(REPLY)
