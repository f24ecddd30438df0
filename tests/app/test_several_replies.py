"""Several replies to one question at once: branches, seeds, stopping, and what a crash leaves."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from app.conversation import ChatSettings, MessageId
from app.messages import (
    Failure,
    Generate,
    ModelReady,
    ModelUnloaded,
    PromptRead,
    ReplyEnded,
    ReplyId,
    StopReply,
)
from app.reply_desk import SAVE_SPACING_S
from app.reply_variants import variant_of, why_alike
from app.session_changes import (
    ChatIsFull,
    ConversationShown,
    MessageChanged,
    RepliesAlike,
    RepliesChanged,
    ReplyGrew,
    ReplyStarted,
    StorageFailed,
)
from inference.config import MAX_SEED, SamplingParams
from inference.request import PromptPart
from tests.app.fake_engine import make_model_info
from tests.app.session_bench import LONG, METRICS, PATH, Bench


def generates(bench: Bench) -> list[Generate]:
    """Those that were posted since the bench was cleared, in order."""
    return [command for command in bench.posted if isinstance(command, Generate)]


def ask_for(bench: Bench, num_replies: int = 3) -> list[ReplyId]:
    """A finished turn, then more replies to its question: messages 3, 4, 5 beside 2."""
    bench.turn("a", "b")
    bench.posted.clear()
    bench.now += 2 * SAVE_SPACING_S
    bench.session.regenerate(MessageId(2), num_replies)
    return [command.reply_id for command in generates(bench)]


def ends(bench: Bench, reply_id: ReplyId, reason: str = "stop") -> None:
    bench.session.handle_event(
        ReplyEnded(reply_id, reason, METRICS, None, (7, 8))  # type: ignore[arg-type]
    )


def versions(bench: Bench, *message_ids: int) -> list[tuple[str, str]]:
    """Text and status of messages as they are in the file."""
    stored = [bench.stored(message_id) for message_id in message_ids]
    return [(message.content, message.status) for message in stored]


# ---------------------------------------------------------------- asking


def test_three_replies_become_three_branches_and_the_first_is_shown(ready: Bench) -> None:
    ask_for(ready)
    shown, started = ready.take()
    assert isinstance(shown, ConversationShown)
    assert isinstance(started, ReplyStarted)
    assert (started.message.id, started.message.parent_id) == (3, 1)
    assert ready.chat.versions(MessageId(3)) == [2, 3, 4, 5]
    assert ready.last.id == 3
    assert ready.store.leaf_of(ready.chat.id) == 3
    first, second, third = generates(ready)
    assert first.messages == second.messages == third.messages
    assert first.conversation_id == second.conversation_id == third.conversation_id
    assert ready.session.running_versions() == {3: 3}
    assert ready.session.replying_chats() == {ready.chat.id}


def test_each_branch_gets_its_own_text_and_only_the_shown_one_is_told(ready: Bench) -> None:
    first, second, third = ask_for(ready)
    ready.take()
    for word in ("one ", "two"):
        for name, reply_id in (("A", first), ("B", second), ("C", third)):
            ready.says(name + word, reply_id)
    assert ready.take() == [
        ReplyGrew(MessageId(3), "Aone ", METRICS),
        ReplyGrew(MessageId(3), "Atwo", METRICS),
    ]
    texts = [ready.chat.messages[MessageId(number)].content for number in (3, 4, 5)]
    assert texts == ["Aone Atwo", "Bone Btwo", "Cone Ctwo"]
    for reply_id in (third, first, second):
        ends(ready, reply_id)
    assert versions(ready, 2, 3, 4, 5) == [
        ("b", "complete"),
        ("Aone Atwo", "complete"),
        ("Bone Btwo", "complete"),
        ("Cone Ctwo", "complete"),
    ]
    assert ready.session.replying_chats() == frozenset()


def test_switching_between_versions_shows_the_live_text_of_each(ready: Bench) -> None:
    first, second, _ = ask_for(ready)
    ready.says("half A", first)
    ready.says("half B", second)
    ready.session.show_version(MessageId(4))
    assert (ready.texts, ready.session.is_replying) == (["a", "half B"], True)
    ready.take()
    ready.says("!", second)
    ready.says("?", first)
    assert ready.take() == [ReplyGrew(MessageId(4), "!", METRICS)]
    ready.session.show_version(MessageId(3))
    assert ready.texts == ["a", "half A?"]
    ready.session.show_version(MessageId(2))
    assert (ready.session.is_replying, ready.session.running_versions()) == (False, {2: 3})


def test_hidden_version_that_ends_is_not_put_on_the_visible_path(ready: Bench) -> None:
    first, second, _ = ask_for(ready)
    ready.changes.clear()
    ready.says("B", second)
    ends(ready, second)
    assert ready.changes == [RepliesChanged()]
    assert ready.session.running_versions() == {3: 2}
    ends(ready, first)
    assert ready.changes[1:] == [MessageChanged(ready.last), RepliesChanged()]
    assert (ready.session.is_replying, ready.session.running_versions()) == (False, {3: 1})


def test_several_replies_to_a_question_that_lacks_one(ready: Bench) -> None:
    ready.turn("a", "b")
    question = ready.store.add_message(
        ready.chat.id, parent_id=MessageId(2), role="user", content="left alone"
    )
    ready.session.open_chat(ready.chat.id)
    ready.posted.clear()
    ready.session.regenerate(question.id, 3)
    assert len(generates(ready)) == 3
    assert ready.chat.versions(ready.last.id) == [4, 5, 6]
    assert ready.asked() == ["a", "b", "left alone"]


def test_replies_in_two_chats_run_at_the_same_time(ready: Bench) -> None:
    first, *_ = ask_for(ready)
    first_chat = ready.chat.id
    ready.session.new_chat()
    ready.session.send("c")
    other = ready.generate().reply_id
    ready.says("in two", other)
    ready.says("in one", first)
    assert ready.session.replying_chats() == {first_chat, ready.chat.id}
    assert ready.texts == ["c", "in two"]
    ready.session.open_chat(first_chat)
    assert ready.texts == ["a", "in one"]
    assert ready.session.running_versions() == {3: 3}


def test_replies_that_cannot_all_be_stored_are_not_asked_for(ready: Bench) -> None:
    ready.turn("a", "b")
    ready.posted.clear()
    ready.store._connection.execute(
        "CREATE TEMP TRIGGER third BEFORE INSERT ON main.messages WHEN"
        " (SELECT count(*) FROM main.messages) >= 4 BEGIN SELECT RAISE(ABORT, 'no'); END"
    )
    ready.session.regenerate(MessageId(2), 3)
    assert [type(change) for change in ready.take()] == [ConversationShown, StorageFailed]
    assert ready.posted == []
    stored = ready.store.load(ready.chat.id)
    assert stored is not None
    assert (list(stored.messages), stored.leaf_id) == ([1, 2], 2)


# ---------------------------------------------------------------- what makes them differ


@pytest.mark.parametrize(
    ("seed", "seeds"),
    [
        (None, [None, None, None]),
        (41, [41, 42, 43]),
        (MAX_SEED - 1, [MAX_SEED - 1, MAX_SEED, 0]),
    ],
)
def test_each_reply_has_a_seed_of_its_own(
    ready: Bench, seed: int | None, seeds: list[int | None]
) -> None:
    ready.settings.change(sampling=SamplingParams(seed=seed, top_k=3))
    ask_for(ready)
    assert [command.params for command in generates(ready)] == [
        SamplingParams(seed=it, top_k=3) for it in seeds
    ]


def test_none_of_several_has_the_seed_of_a_version_that_is_there(ready: Bench) -> None:
    ready.settings.change(sampling=SamplingParams(seed=6))
    ready.turn("a", "b", metrics=replace(METRICS, seed=7))
    ready.posted.clear()
    ready.session.regenerate(MessageId(2), 3)
    assert [command.params.seed for command in generates(ready)] == [6, 8, 9]
    for command, seed in zip(generates(ready), (6, 8, 9), strict=True):
        ready.session.handle_event(
            ReplyEnded(command.reply_id, "stop", replace(METRICS, seed=seed), None, (7, 8))
        )
    ready.posted.clear()
    ready.session.regenerate(MessageId(2), 2)
    assert [command.params.seed for command in generates(ready)] == [10, 11]


def test_a_reply_that_is_asked_for_alone_has_the_seed_that_was_set(ready: Bench) -> None:
    ready.settings.change(sampling=SamplingParams(seed=41))
    ask_for(ready, 1)
    assert [command.params.seed for command in generates(ready)] == [41]


def test_variant_keeps_all_but_the_seed() -> None:
    params = SamplingParams(temperature=1.5, seed=7, stop=("x",))
    assert variant_of(params, 0) is params
    assert variant_of(params, 2) == SamplingParams(temperature=1.5, seed=9, stop=("x",))


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        (SamplingParams(temperature=0.0), "the temperature is 0"),
        (SamplingParams(top_k=1), "top-k is 1"),
        (SamplingParams(top_p=0.0), "top-p is 0"),
        (SamplingParams(min_p=1.0), "min-p is 1"),
        (SamplingParams(), ""),
        (SamplingParams(temperature=0.01, top_k=0, seed=1), ""),
    ],
)
def test_replies_that_would_be_the_same_are_made_once_and_it_is_said(
    ready: Bench, params: SamplingParams, reason: str
) -> None:
    assert why_alike(params) == reason
    ready.turn("a", "b")
    ready.session.set_chat_settings(ChatSettings(sampling=params))
    assert ready.session.why_alike() == reason
    ready.posted.clear()
    ready.session.regenerate(MessageId(2), 3)
    assert len(generates(ready)) == (1 if reason else 3)
    said = [change for change in ready.take() if isinstance(change, RepliesAlike)]
    assert said == ([RepliesAlike(reason)] if reason else [])


def test_one_reply_at_temperature_0_needs_no_words(ready: Bench) -> None:
    ready.settings.change(sampling=SamplingParams(temperature=0.0))
    ask_for(ready, 1)
    assert not any(isinstance(change, RepliesAlike) for change in ready.changes)


# ---------------------------------------------------------------- stopping


def test_stop_ends_the_shown_version_only(ready: Bench) -> None:
    first, second, third = ask_for(ready)
    ready.says("A", first)
    ready.session.stop()
    assert [command for command in ready.posted if isinstance(command, StopReply)] == [
        StopReply(first)
    ]
    ends(ready, first, "aborted")
    assert ready.last.status == "stopped"
    ready.session.stop()  # the shown one has ended: nothing else is stopped
    ready.says("B", second)
    ready.says("C", third)
    assert ready.session.running_versions() == {3: 2}
    assert ready.posted[-1] == StopReply(first)


def test_stop_of_all_versions_keeps_each_text(ready: Bench) -> None:
    replies = ask_for(ready)
    for name, reply_id in zip("ABC", replies, strict=True):
        ready.says(name, reply_id)
    ready.session.stop_versions(MessageId(3))
    assert ready.posted[3:] == [StopReply(reply_id) for reply_id in replies]
    for reply_id in replies:
        ends(ready, reply_id, "aborted")
    assert versions(ready, 3, 4, 5) == [("A", "stopped"), ("B", "stopped"), ("C", "stopped")]


def test_stop_of_all_versions_leaves_other_replies_alone(ready: Bench) -> None:
    first, second, third = ask_for(ready)
    ends(ready, first)
    ready.session.send("next")
    last = ready.generate().reply_id
    ready.session.stop_versions(MessageId(3))
    ready.session.stop_versions(MessageId(99))
    stopped = [command.reply_id for command in ready.posted if isinstance(command, StopReply)]
    assert stopped == [second, third]
    ready.says("still here", last)
    assert ready.texts == ["a", "", "next", "still here"]


def test_stop_of_all_versions_that_wait_for_a_model_ends_them_at_once(bench: Bench) -> None:
    bench.session.load_model(PATH)
    bench.session.send("a")
    bench.session.stop()
    bench.session.regenerate(MessageId(2), 3)
    assert bench.session.running_versions() == {3: 3}
    bench.session.stop_versions(MessageId(3))
    assert versions(bench, 3, 4, 5) == [("", "stopped")] * 3
    assert bench.session.replying_chats() == frozenset()
    bench.session.handle_event(ModelReady(make_model_info()))
    assert generates(bench) == []


# ---------------------------------------------------------------- going on meanwhile


def test_next_message_goes_on_under_the_shown_version_while_the_others_stream(
    ready: Bench,
) -> None:
    first, second, third = ask_for(ready)
    ready.says("A", first)
    ready.says("B", second)
    ready.session.send("next")
    assert [command for command in ready.posted if isinstance(command, StopReply)] == [
        StopReply(first)
    ]
    assert ready.asked() == ["a", "A", "next"]
    ready.take()
    ready.says("2", second)
    ends(ready, second)
    ready.says("C", third)
    ends(ready, third)
    assert ready.take() == []
    assert ready.texts == ["a", "A", "next", ""]
    assert versions(ready, 4, 5) == [("B2", "complete"), ("C", "complete")]


def test_edit_of_the_question_ends_all_replies_to_it(ready: Bench) -> None:
    replies = ask_for(ready)
    ready.says("B", replies[1])
    assert ready.session.edit(MessageId(1), "other")
    stopped = [command.reply_id for command in ready.posted if isinstance(command, StopReply)]
    assert stopped == replies
    assert versions(ready, 3, 4, 5) == [("", "stopped"), ("B", "stopped"), ("", "stopped")]
    assert ready.texts == ["other", ""]
    assert ready.session.is_replying


def test_edit_of_a_later_message_leaves_replies_before_it_alone(ready: Bench) -> None:
    first, second, third = ask_for(ready)
    ends(ready, first)
    ready.session.send("next")
    last = ready.generate().reply_id
    ready.session.edit(ready.chat.path()[2].id, "next, please")
    stopped = [command.reply_id for command in ready.posted if isinstance(command, StopReply)]
    assert stopped == [last]
    assert ready.session.running_versions() == {3: 2, ready.last.id: 1}
    ends(ready, second)
    ends(ready, third)
    assert ready.session.running_versions() == {ready.last.id: 1}


def test_another_reply_beside_those_that_run(ready: Bench) -> None:
    first, *_ = ask_for(ready)
    ends(ready, first)
    ready.session.regenerate(MessageId(3))
    assert not any(isinstance(command, StopReply) for command in ready.posted)
    assert ready.chat.versions(MessageId(6)) == [2, 3, 4, 5, 6]
    assert ready.session.running_versions() == {6: 3}


def test_delete_of_the_chat_ends_all_of_its_replies(ready: Bench) -> None:
    replies = ask_for(ready)
    chat_id = ready.chat.id
    ready.says("C", replies[2])
    ready.session.delete_chat(chat_id)
    assert ready.posted[3:] == [StopReply(reply_id) for reply_id in replies]
    assert ready.session.replying_chats() == frozenset()
    ready.session.undo_delete()
    assert versions(ready, 3, 4, 5) == [("", "stopped"), ("", "stopped"), ("C", "stopped")]


def test_unload_of_the_model_ends_all_and_a_later_one_makes_nothing_again(ready: Bench) -> None:
    replies = ask_for(ready)
    for reply_id in replies:
        ends(ready, reply_id, "aborted")
    ready.session.handle_event(ModelUnloaded())
    ready.posted.clear()
    ready.ready()
    assert ready.posted == []
    assert [status for _, status in versions(ready, 3, 4, 5)] == ["stopped"] * 3


# ---------------------------------------------------------------- limits


def test_replies_without_a_model_fail_once(bench: Bench) -> None:
    bench.session.send("a")
    bench.session.regenerate(MessageId(2), 3)
    assert bench.chat.versions(MessageId(2)) == [2, 3]
    assert bench.last.failure_kind == "model_file"


def test_replies_wait_for_the_model_that_loads(bench: Bench) -> None:
    bench.session.load_model(PATH)
    bench.session.send("a")
    bench.session.regenerate(MessageId(2), 3)
    bench.session.handle_event(ModelReady(make_model_info()))
    assert [command.reply_id for command in generates(bench)] == [2, 3, 4]


def test_replies_of_a_model_without_a_template_fail_once_then_run_as_plain_text(
    bench: Bench,
) -> None:
    bench.session.load_model(PATH)
    bench.session.handle_event(ModelReady(make_model_info(has_chat_template=False)))
    bench.session.send("a")
    bench.ends(finish_reason="error", failure=Failure("template", "No template."))
    bench.session.regenerate(MessageId(2), 3)
    assert bench.chat.versions(MessageId(2)) == [2, 3]
    bench.ends(finish_reason="error", failure=Failure("template", "No template."))
    bench.session.continue_as_plain_text()
    bench.says("b")
    bench.ends()
    bench.posted.clear()
    bench.session.regenerate(MessageId(3), 3)
    assert [command.as_plain_text for command in generates(bench)] == [True] * 3


def test_room_for_several_replies_is_measured_once(ready: Bench) -> None:
    ready.session.send(LONG)
    ready.measured(100, fits=True)
    ready.ends(reply_token_ids=None)
    ready.posted.clear()
    ready.session.handle_event(ModelReady(make_model_info(path=PATH, fingerprint="another")))
    ready.session.regenerate(MessageId(2), 3)
    assert len(ready.measures()) == 1
    assert generates(ready) == []
    ready.measured(100, fits=True)
    assert len(generates(ready)) == 3
    assert len(ready.measures()) == 1


def test_chat_that_is_full_remembers_how_many_were_asked_for(ready: Bench) -> None:
    ready.session.send(LONG)
    ready.measured(100, fits=True)
    ready.ends(reply_token_ids=None)
    ready.posted.clear()
    ready.session.handle_event(ModelReady(make_model_info(path=PATH, fingerprint="another")))
    ready.session.regenerate(MessageId(2), 3)
    ready.take()
    ready.measured(5000, fits=False)
    assert ready.take() == [
        ChatIsFull(5000, 2048, "ask", "", MessageId(2), is_alone=True, num_replies=3)
    ]
    assert ready.chat.versions(MessageId(2)) == [2]


def test_parts_of_the_shared_prompt_are_stored_once(
    ready: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = ask_for(ready)
    stored: list[dict[MessageId, PromptPart]] = []
    monkeypatch.setattr(ready.store, "set_parts", lambda parts, key: stored.append(parts))
    part = PromptPart((1, 2, 3), bytes(16))
    for reply_id in replies:
        ready.session.handle_event(PromptRead(reply_id, ((0, part),)))
    assert stored == [{MessageId(1): part}]
    other = PromptPart((4,), bytes(16))
    ready.session.handle_event(PromptRead(replies[0], ((0, other),)))
    assert stored[1:] == [{MessageId(1): other}]


# ---------------------------------------------------------------- what is stored meanwhile


def test_replies_that_stream_side_by_side_are_stored_one_after_the_other(ready: Bench) -> None:
    first, second, _ = ask_for(ready)
    ready.says("A", first)
    ready.says("B", second)
    assert versions(ready, 3, 4) == [("A", "streaming"), ("", "streaming")]
    ready.now += 2 * SAVE_SPACING_S
    ready.says("b", second)
    assert versions(ready, 3, 4) == [("A", "streaming"), ("Bb", "streaming")]


ROOT = Path(__file__).resolve().parents[2]
WRITER = """
import sys
from pathlib import Path
from app.conversation import MessageId
from tests.app.session_bench import Bench
bench = Bench(Path(sys.argv[1]))
bench.ready()
bench.turn("a", "b")
bench.session.regenerate(MessageId(2), 3)
replies = [command.reply_id for command in bench.posted[-3:]]
for name, reply_id in zip("ABC", replies):
    bench.now += 1.0
    bench.says(name + " so far", reply_id)
print("written", flush=True)
sys.stdin.read()
"""


def test_process_that_is_killed_leaves_three_readable_branches(bench: Bench) -> None:
    bench.store.close()
    command = [sys.executable, "-c", WRITER, str(bench.path.parent)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline().strip() == b"written"
        writer.kill()
    bench.start()
    bench.session.open_chat(bench.session.conversations()[0].id)
    assert bench.last.id == 3
    told = [(m.content, m.status) for m in bench.chat.messages.values()]
    assert told[2:] == [(f"{name} so far", "stopped") for name in "ABC"]


def test_program_that_died_leaves_three_readable_branches(ready: Bench) -> None:
    replies = ask_for(ready)
    for name, reply_id in zip("ABC", replies, strict=True):
        ready.now += 2 * SAVE_SPACING_S
        ready.says(f"{name} so far", reply_id)
        ready.says(" and what was not stored", reply_id)
    chat_id = ready.chat.id
    ready.store.close()
    ready.start()
    ready.session.open_chat(chat_id)
    assert ready.last.id == 3
    assert not ready.session.is_replying
    assert ready.session.running_versions() == {}
    texts = []
    for number in (2, 3, 4, 5):
        ready.session.show_version(MessageId(number))
        texts.append((ready.last.content, ready.last.status))
    assert texts == [
        ("b", "complete"),
        ("A so far", "stopped"),
        ("B so far", "stopped"),
        ("C so far", "stopped"),
    ]


def test_close_keeps_the_text_of_all(ready: Bench) -> None:
    replies = ask_for(ready)
    for name, reply_id in zip("ABC", replies, strict=True):
        ready.says(name, reply_id)
    ready.session.close()
    ready.start()
    assert versions(ready, 3, 4, 5) == [("A", "stopped"), ("B", "stopped"), ("C", "stopped")]


def test_chat_that_another_process_went_on_with_shows_what_still_runs(ready: Bench) -> None:
    first, second, _ = ask_for(ready)
    ends(ready, first)
    ready.says("B", second)
    ready.store.add_message(ready.chat.id, parent_id=MessageId(3), role="user", content="asked")
    ready.session.send("next")
    ready.says("!", second)
    assert ready.chat.messages[MessageId(4)].content == "B!"
    assert ready.chat.messages[MessageId(4)].status == "streaming"
