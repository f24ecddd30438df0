from dataclasses import replace

import pytest

from app.conversation import ChatSettings, MessageId, OnFull
from app.messages import Generate, MeasurePrompt, ModelFailed, PromptRead, StopReply
from app.session_changes import (
    ChatIsFull,
    ConversationShown,
    DraftMeasured,
    DraftReturned,
    MessageAdded,
    MessageChanged,
    ReplyStarted,
    StorageFailed,
)
from inference.config import SamplingParams
from inference.request import ChatMessage, PromptPart
from tests.app.session_bench import FAILURE, FULL_METRICS, INFO, LONG, PATH, Bench

PART = PromptPart((1, 2, 3), b"d" * 16)
FULL = ChatIsFull(2000, 2048, "ask", LONG)


@pytest.fixture
def ready(ready: Bench) -> Bench:
    """A chat with one turn."""
    ready.turn("a", "b")
    ready.posted.clear()
    return ready


def kinds(bench: Bench) -> list[type]:
    return [type(change) for change in bench.take()]


# ---------------------------------------------------------------- the draft


def test_draft_is_measured_with_the_chat_and_its_system_prompt(ready: Bench) -> None:
    ready.session.set_chat_settings(ChatSettings("S"))
    ready.session.measure_draft("c")
    (asked,) = ready.posted
    assert isinstance(asked, MeasurePrompt)
    assert asked.messages == (
        ChatMessage("system", "S"),
        ChatMessage("user", "a"),
        ChatMessage("assistant", "b", (7, 8)),
        ChatMessage("user", "c"),
    )
    assert not asked.as_plain_text
    ready.measured(77, fits=True)
    assert ready.take() == [DraftMeasured(77, 2048, fits=True)]
    assert ready.texts == ["a", "b"]


def test_empty_draft_says_how_full_the_chat_is(ready: Bench) -> None:
    ready.session.measure_draft("  ")
    assert [message.content for message in ready.measures()[0].messages] == ["a", "b"]
    ready.session.new_chat()
    ready.take()
    ready.session.measure_draft("")
    assert len(ready.measures()) == 1
    assert ready.take() == [DraftMeasured(0, 2048, fits=True)]


def test_draft_is_not_measured_without_a_model(bench: Bench) -> None:
    bench.session.measure_draft("a")
    bench.session.load_model(PATH)
    bench.take()
    bench.session.measure_draft("a")
    assert len(bench.posted) == 1
    assert bench.take() == []


def test_only_the_newest_draft_is_told(ready: Bench) -> None:
    ready.session.measure_draft("c")
    ready.session.measure_draft("cd")
    ready.measured(10, fits=True, number=0)
    assert ready.take() == []
    ready.measured(11, fits=True)
    ready.measured(11, fits=True)
    assert ready.take() == [DraftMeasured(11, 2048, fits=True)]


def test_draft_that_was_measured_last_is_not_measured_again(ready: Bench) -> None:
    ready.session.measure_draft("c")
    ready.session.measure_draft("c")
    assert len(ready.measures()) == 1
    ready.measured(10, fits=True)
    ready.take()
    ready.session.measure_draft("c")
    assert len(ready.measures()) == 1
    assert ready.take() == [DraftMeasured(10, 2048, fits=True)]


def test_draft_whose_prompt_cannot_be_made_is_not_told(ready: Bench) -> None:
    ready.session.measure_draft("c")
    ready.measured(0, fits=True)
    assert ready.take() == []


def test_answer_for_another_model_is_not_told(ready: Bench) -> None:
    ready.session.measure_draft("c")
    ready.session.load_model(PATH)
    ready.take()
    ready.measured(10, fits=True)
    assert ready.take() == []


def test_draft_of_a_chat_that_was_left_is_not_told(ready: Bench) -> None:
    ready.session.measure_draft("c")
    ready.session.new_chat()
    ready.take()
    ready.measured(10, fits=True)
    assert ready.take() == []


def test_draft_is_told_after_a_stop(ready: Bench) -> None:
    ready.session.measure_draft("c")
    ready.session.stop()
    ready.measured(10, fits=True)
    assert ready.take() == [DraftMeasured(10, 2048, fits=True)]


# ---------------------------------------------------------------- is there room?


def test_short_text_is_sent_without_a_question(ready: Bench) -> None:
    assert ready.session.send("c")
    assert [type(command) for command in ready.posted] == [Generate]


def test_long_text_is_held_until_it_is_known_to_fit(ready: Bench) -> None:
    assert ready.session.send(LONG)
    assert ready.take() == []
    assert [type(command) for command in ready.posted] == [MeasurePrompt]
    assert ready.measures()[0].messages[-1] == ChatMessage("user", LONG)
    ready.measured(1000, fits=True)
    assert kinds(ready) == [MessageAdded, ReplyStarted]
    assert ready.texts == ["a", "b", LONG, ""]
    assert ready.generate().messages == ready.measures()[0].messages
    assert len(ready.posted) == 2


def test_text_that_does_not_fit_comes_back_and_nothing_is_stored(ready: Bench) -> None:
    assert ready.session.send(LONG)
    ready.too_long(2000)
    assert ready.take() == [DraftReturned(LONG), FULL]
    assert ready.texts == ["a", "b"]
    stored = ready.store.load(ready.chat.id)
    assert stored is not None
    assert len(stored.messages) == 2
    assert {type(command) for command in ready.posted} == {MeasurePrompt}


@pytest.mark.parametrize("choice", ["ask", "stop"])
def test_text_that_was_measured_before_is_refused_at_once(ready: Bench, choice: str) -> None:
    ready.session.choose_on_full(choice)  # type: ignore[arg-type]
    ready.session.measure_draft(LONG)
    ready.too_long(2000)
    ready.take()
    assert not ready.session.send(LONG)
    assert ready.take() == [replace(FULL, choice=choice)]  # type: ignore[arg-type]
    assert len(ready.posted) == 2
    assert ready.texts == ["a", "b"]


def test_text_that_was_measured_before_is_sent_at_once(ready: Bench) -> None:
    ready.session.measure_draft(LONG)
    ready.measured(1700, fits=True)
    assert ready.session.send(LONG)
    assert ready.texts == ["a", "b", LONG, ""]
    assert [type(command) for command in ready.posted] == [MeasurePrompt, Generate]


def test_question_that_is_on_its_way_is_not_asked_twice(ready: Bench) -> None:
    ready.session.measure_draft(LONG)
    assert ready.session.send(LONG)
    ready.session.measure_draft("")  # the composer is empty now
    assert len(ready.measures()) == 2
    ready.measured(1000, fits=True, number=0)
    assert kinds(ready) == [MessageAdded, ReplyStarted]


def test_long_reply_is_no_question_since_its_length_is_known(ready: Bench) -> None:
    ready.turn("c", LONG)
    assert ready.session.send("d")
    assert ready.measures() == []


@pytest.mark.parametrize("fields", [{"model_key": "other"}, {"left_out": 2}, {"metrics": None}])
def test_numbers_of_a_reply_that_say_nothing_here_are_not_used(
    ready: Bench, fields: dict[str, object]
) -> None:
    ready.turn("c", LONG)
    reply = replace(ready.last, **fields)  # type: ignore[arg-type]
    ready.store.update_message(reply)
    ready.session.open_chat(ready.chat.id)
    assert ready.session.send("d")
    assert len(ready.measures()) == 1


def test_second_send_stays_with_the_person_until_the_first_is_decided(ready: Bench) -> None:
    assert ready.session.send(LONG)
    assert not ready.session.send("second")
    assert not ready.session.edit(MessageId(1), "edited")
    ready.session.regenerate(MessageId(2))
    ready.session.continue_as_plain_text()
    assert not ready.session.continue_in_new_chat("third")
    assert len(ready.posted) == 1
    ready.measured(1000, fits=True)
    assert ready.texts == ["a", "b", LONG, ""]
    assert ready.session.send("second")
    ready.measured(1010, fits=True)
    assert ready.texts == ["a", "b", LONG, "", "second", ""]


def test_first_text_of_a_new_chat_may_be_held_too(ready: Bench) -> None:
    ready.session.new_chat()
    ready.take()
    assert ready.session.send(LONG)
    assert ready.take() == []
    assert len(ready.session.conversations()) == 1
    ready.measured(1000, fits=True)
    assert kinds(ready) == [ConversationShown, ReplyStarted]
    assert ready.texts == [LONG, ""]


def test_held_text_interrupts_a_reply_only_when_it_is_sent(ready: Bench) -> None:
    ready.session.send("c")
    ready.says("half")
    first = ready.generate()
    ready.take()
    ready.session.send(LONG)
    assert ready.session.is_replying
    ready.too_long(2000)
    assert ready.session.is_replying
    ready.take()
    ready.session.send(LONG)
    assert ready.take() == [FULL]
    ready.says(" and more", first.reply_id)
    ready.session.send(LONG)  # the chat is longer now
    ready.measured(1000, fits=True)
    assert ready.posted[-2] == StopReply(first.reply_id)
    assert ready.texts == ["a", "b", "c", "half and more", LONG, ""]
    assert kinds(ready)[-3:] == [MessageChanged, MessageAdded, ReplyStarted]


# ---------------------------------------------------------------- what happens meanwhile


@pytest.mark.parametrize("where", ["new", "open", "version", "delete"])
def test_held_text_comes_back_before_another_chat_is_shown(ready: Bench, where: str) -> None:
    chat_id = ready.chat.id
    ready.session.send(LONG)
    match where:
        case "new":
            ready.session.new_chat()
        case "open":
            ready.session.open_chat(chat_id)
        case "version":
            ready.session.show_version(MessageId(2))
        case _:
            ready.session.delete_chat(chat_id)
    assert kinds(ready) == [DraftReturned, ConversationShown]
    ready.measured(1000, fits=True)
    assert ready.take() == []
    ready.session.undo_delete()
    ready.session.open_chat(chat_id)
    assert ready.texts == ["a", "b"]


def test_stop_gives_a_held_text_back(ready: Bench) -> None:
    ready.session.send(LONG)
    ready.session.stop()
    assert ready.take() == [DraftReturned(LONG)]
    ready.measured(1000, fits=True)
    assert ready.texts == ["a", "b"]


def test_held_text_is_sent_when_the_model_goes(ready: Bench) -> None:
    ready.session.send(LONG)
    ready.session.load_model("/other")
    assert ready.texts == ["a", "b", LONG, ""]
    assert ready.last.status == "streaming"
    ready.session.handle_event(ModelFailed("/other", FAILURE))
    assert ready.session.model.path == PATH  # the one before is opened again
    assert ready.last.status == "streaming"
    ready.session.handle_event(ModelFailed(PATH, FAILURE))
    assert (ready.last.status, ready.last.failure_kind) == ("error", "memory")


def test_held_text_is_sent_when_the_engine_breaks(ready: Bench) -> None:
    ready.session.send(LONG)
    ready.session.handle_event(ModelFailed(PATH, FAILURE))
    assert ready.texts == ["a", "b", LONG, ""]


def test_held_text_is_stored_when_the_window_closes(ready: Bench) -> None:
    chat_id = ready.chat.id
    ready.session.send(LONG)
    ready.session.close()
    ready.start()
    ready.session.open_chat(chat_id)
    assert ready.texts == ["a", "b", LONG, ""]
    assert ready.last.status == "stopped"


def test_held_text_that_cannot_be_stored_comes_back(ready: Bench) -> None:
    ready.session.send(LONG)
    ready.store._connection.execute("PRAGMA query_only = ON")
    ready.measured(1000, fits=True)
    assert kinds(ready) == [StorageFailed, DraftReturned]


# ---------------------------------------------------------------- edit and regenerate


def test_edit_goes_through_the_same_door(ready: Bench) -> None:
    assert ready.session.edit(MessageId(1), LONG)
    assert [message.content for message in ready.measures()[0].messages] == [LONG]
    ready.measured(2000, fits=False)
    refused = replace(FULL, message_id=MessageId(1), is_alone=True)
    assert ready.take() == [DraftReturned(LONG, MessageId(1)), refused]
    assert ready.texts == ["a", "b"]
    assert not ready.session.edit(MessageId(1), LONG)
    assert ready.take() == [refused]
    ready.session.edit(MessageId(1), LONG + "x")
    ready.measured(1000, fits=True)
    assert ready.texts == [LONG + "x", ""]


def test_regenerate_goes_through_the_same_door(ready: Bench) -> None:
    ready.session.send(LONG)
    ready.measured(1000, fits=True)
    ready.ends()
    reply_id = ready.last.id
    ready.take()
    ready.session.load_model(PATH)  # nothing is known of the length any more
    ready.ready()
    ready.session.regenerate(reply_id)
    ready.too_long(2000)
    assert ready.take() == [replace(FULL, text="", message_id=reply_id)]
    assert ready.last.id == reply_id
    ready.session.load_model(PATH)
    ready.ready()
    ready.session.regenerate(reply_id)
    ready.measured(1000, fits=True)
    assert ready.last.id != reply_id
    assert ready.texts == ["a", "b", LONG, ""]


# ---------------------------------------------------------------- leaving out


def test_choice_is_kept_with_the_chat(ready: Bench) -> None:
    ready.session.set_chat_settings(ChatSettings("S", SamplingParams(top_k=3)))
    ready.session.choose_on_full("leave_out")
    assert ready.session.chat_settings == ChatSettings("S", SamplingParams(top_k=3), "leave_out")
    stored = ready.store.load(ready.chat.id)
    assert stored is not None
    assert stored.settings.on_full == "leave_out"
    ready.session.new_chat()
    ready.session.choose_on_full("stop")
    ready.session.send("x")
    assert ready.chat.settings.on_full == "stop"


def test_chat_that_leaves_out_asks_for_the_room_of_the_last_message_only(ready: Bench) -> None:
    ready.session.set_chat_settings(ChatSettings("S", on_full="leave_out"))
    assert ready.session.send(LONG)
    (asked,) = ready.measures()
    assert asked.messages == (ChatMessage("system", "S"), ChatMessage("user", LONG))
    ready.measured(1300, fits=True)
    command = ready.generate()
    assert (command.leave_out, command.left_out, command.keep_on_disk) == (True, 0, True)
    assert [message.content for message in command.messages] == ["S", "a", "b", LONG]


def test_chat_that_leaves_out_sends_a_short_text_without_a_question(ready: Bench) -> None:
    ready.session.choose_on_full("leave_out")
    ready.turn("c", "d", metrics=FULL_METRICS)
    ready.posted.clear()
    assert ready.session.send("e")
    assert [type(command) for command in ready.posted] == [Generate]


def test_message_that_does_not_fit_alone_is_refused_whatever_was_chosen(bench: Bench) -> None:
    bench.ready()
    bench.session.choose_on_full("leave_out")
    assert bench.session.send(LONG)
    bench.measured(2100, fits=False)
    assert bench.take() == [
        DraftReturned(LONG),
        ChatIsFull(2100, 2048, "leave_out", LONG, is_alone=True),
    ]
    bench.session.measure_draft(LONG)
    assert bench.take() == [DraftMeasured(2100, 2048, fits=False, is_alone=True)]
    assert bench.session.conversation is None


@pytest.mark.parametrize("choice", ["ask", "stop", "new_chat", "leave_out"])
def test_message_that_no_chat_could_take_is_refused_in_one_with_turns_before_it(
    ready: Bench, choice: OnFull
) -> None:
    ready.session.set_chat_settings(ChatSettings("S", on_full=choice))
    ready.session.measure_draft(LONG)
    ready.measured(2107, fits=False)
    assert ready.take() == []
    assert ready.measures()[1].messages == (ChatMessage("system", "S"), ChatMessage("user", LONG))
    ready.measured(2100, fits=False)
    assert ready.take() == [DraftMeasured(2100, 2048, fits=False, is_alone=True)]
    if ready.session.send(LONG):  # where it is another question than that of the draft
        ready.measured(2100, fits=False)
        assert ready.take()[0] == DraftReturned(LONG)
    assert not any(isinstance(command, Generate) for command in ready.posted)
    assert not ready.session.is_summarising
    assert ready.texts == ["a", "b"]


def test_message_that_no_chat_could_take_is_told_as_such(ready: Bench) -> None:
    ready.session.send(LONG)
    ready.measured(2107, fits=False)
    ready.measured(2100, fits=False)
    assert ready.take() == [
        DraftReturned(LONG),
        ChatIsFull(2100, 2048, "ask", LONG, is_alone=True),
    ]


def test_draft_of_a_full_chat_is_no_message_that_is_too_long(ready: Bench) -> None:
    ready.session.measure_draft("")  # the reply before it may be long, and can be left out
    ready.measured(2000, fits=False)
    assert ready.take() == [DraftMeasured(2000, 2048, fits=False)]
    ready.session.measure_draft(LONG)
    ready.too_long(2000)
    assert ready.take() == [DraftMeasured(2000, 2048, fits=False)]


def test_what_was_left_out_is_kept_and_marked(ready: Bench) -> None:
    ready.session.choose_on_full("leave_out")
    ready.turn("c", "d")
    ready.session.send("e")
    assert ready.session.left_out_mark() is None
    reply_id = ready.generate().reply_id
    ready.session.handle_event(PromptRead(reply_id, (), left_out=2))
    third = ready.chat.path()[2].id
    assert ready.session.left_out_mark() == third
    ready.says("f")
    ready.take()
    ready.ends()
    (changed,) = ready.take()
    assert isinstance(changed, MessageChanged)
    assert changed.left_out_mark == third
    assert ready.last.left_out == 2
    assert ready.stored(ready.last.id).left_out == 2


def test_next_turn_leaves_out_what_the_last_one_did(ready: Bench) -> None:
    ready.session.choose_on_full("leave_out")
    ready.turn("c", "d", metrics=FULL_METRICS)
    ready.cut_turn("e", "f", left_out=2)
    ready.session.measure_draft("g")
    assert [message.content for message in ready.measures()[-1].messages] == [*"cdefg"]
    ready.cut_turn("g", "h", left_out=4)
    assert ready.generate().left_out == 2
    assert ready.asked() == [*"cdefg"]
    assert ready.last.left_out == 4
    assert ready.session.left_out_mark() == ready.chat.path()[4].id


def test_nothing_is_left_out_of_a_chat_that_fits_again(ready: Bench) -> None:
    ready.session.choose_on_full("leave_out")
    ready.turn("c", "d", metrics=FULL_METRICS)
    ready.cut_turn("e", "f", left_out=2)
    ready.ready(context_tokens=4096)
    ready.session.send("g")
    command = ready.generate()
    assert (command.leave_out, command.left_out) == (True, 0)
    assert ready.asked() == [*"abcdefg"]
    ready.says("h")
    assert ready.session.left_out_mark() is None


def test_left_out_counts_messages_that_no_prompt_has(ready: Bench) -> None:
    """A question whose reply failed is in the path, and in no prompt."""
    ready.session.send("lost")
    ready.ends(finish_reason="error", failure=FAILURE, reply_token_ids=None)
    ready.session.choose_on_full("leave_out")
    ready.turn("c", "d")
    ready.session.send("e")
    assert ready.asked() == ["a", "b", "c", "d", "e"]
    ready.session.handle_event(PromptRead(ready.generate().reply_id, (), left_out=2))
    ready.says("f")
    ready.ends()
    assert ready.texts == ["a", "b", "lost", "", "c", "d", "e", "f"]
    assert ready.last.left_out == 4
    assert ready.session.left_out_mark() == ready.chat.path()[4].id


def test_other_choice_sends_the_whole_chat_again(ready: Bench) -> None:
    ready.session.choose_on_full("leave_out")
    ready.turn("c", "d", metrics=FULL_METRICS)
    ready.cut_turn("e", "f", left_out=2)
    ready.session.choose_on_full("ask")
    ready.session.send("g")
    ready.measured(1791, fits=True)
    command = ready.generate()
    assert (command.leave_out, command.left_out) == (False, 0)
    assert ready.asked() == [*"abcdefg"]


# ---------------------------------------------------------------- ids of the prompt


def test_parts_are_stored_with_their_messages_and_used_again(ready: Bench) -> None:
    ready.session.set_chat_settings(ChatSettings("S"))
    ready.session.send("c")
    reply_id = ready.generate().reply_id
    question = ready.chat.path()[2]
    ready.session.handle_event(PromptRead(reply_id, ((3, PART), (0, PART))))
    stored = ready.stored(question.id)
    assert (stored.part, stored.model_key) == (PART, INFO.fingerprint)
    ready.says("d")
    ready.ends()
    ready.session.send("e")
    assert ready.generate().messages[3] == ChatMessage("user", "c", part=PART)


def test_parts_of_a_chat_in_the_background_are_stored(ready: Bench) -> None:
    ready.session.send("c")
    reply_id, question = ready.generate().reply_id, ready.chat.path()[2]
    ready.session.new_chat()
    ready.session.handle_event(PromptRead(reply_id, ((2, PART),)))
    assert ready.stored(question.id).part == PART


def test_parts_that_cannot_be_stored_are_told(ready: Bench) -> None:
    ready.session.send("c")
    ready.take()
    ready.store._connection.execute("PRAGMA query_only = ON")
    ready.session.handle_event(PromptRead(ready.generate().reply_id, ((2, PART),)))
    assert kinds(ready) == [StorageFailed]


def test_prompt_that_was_read_for_an_abandoned_reply_is_ignored(ready: Bench) -> None:
    ready.session.send("c")
    reply_id = ready.generate().reply_id
    ready.session.send("d")
    ready.take()
    ready.session.handle_event(PromptRead(reply_id, ((2, PART),), left_out=2))
    assert ready.take() == []
    assert ready.texts == ["a", "b", "c", "", "d", ""]
