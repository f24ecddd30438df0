from dataclasses import replace

import pytest

from app.chat_summary import (
    NO_ROOM,
    NO_SUMMARY,
    instruction,
    prompt_with_summary,
    title_going_on,
)
from app.conversation import ChatSettings, ConversationId, MessageId
from app.failures import NO_MODEL
from app.messages import (
    ForgetChat,
    Generate,
    MeasurePrompt,
    ModelFailed,
    PromptMeasured,
    PromptRead,
    StopReply,
)
from app.session_changes import (
    ChatIsFull,
    ConversationShown,
    DraftReturned,
    MessageChanged,
    ReplyStarted,
    SessionChange,
    StorageFailed,
    SummaryEnded,
    SummaryProgress,
)
from inference.config import SamplingParams
from inference.request import ChatMessage
from tests.app.session_bench import FAILURE, FULL_METRICS, LONG, PATH, Bench


@pytest.fixture
def ready(ready: Bench) -> Bench:
    """A chat with one turn and settings of its own."""
    ready.session.set_chat_settings(ChatSettings("S", SamplingParams(top_k=3), "new_chat"))
    ready.turn("a", "b")
    ready.posted.clear()
    return ready


def begin(bench: Bench, text: str, message_id: MessageId | None = None) -> None:
    """The summary is asked for: without it, the new chat is short."""
    assert bench.session.continue_in_new_chat(text, message_id)
    bench.measured(100, fits=True)


def summed_up(bench: Bench, summary: str = "It was about bark.") -> list[SessionChange]:
    """The summary is written, and the new chat has room."""
    bench.says(summary)
    bench.ends()
    bench.measured(200, fits=True)
    return bench.take()


def test_summary_is_asked_for_and_not_stored(ready: Bench) -> None:
    assert ready.session.continue_in_new_chat("c")
    (asked,) = ready.posted
    assert isinstance(asked, MeasurePrompt)
    heading = "S\n\nSummary of the earlier chat “a”:"
    assert asked.messages == (ChatMessage("system", heading), ChatMessage("user", "c"))
    assert ready.session.is_summarising
    ready.measured(100, fits=True)
    command = ready.posted[-1]
    assert isinstance(command, Generate)
    assert command == Generate(
        command.reply_id,
        ready.chat.id,
        (
            ChatMessage("system", "S"),
            ChatMessage("user", "a"),
            ChatMessage("assistant", "b", (7, 8)),
            ChatMessage("user", instruction(400)),
        ),
        SamplingParams(temperature=0.3, max_tokens=400),
        leave_out=True,
        keep_on_disk=False,
    )
    assert "200 words" in instruction(400)
    assert ready.session.is_summarising
    ready.session.handle_event(PromptRead(command.reply_id, (), left_out=2))
    ready.says("")
    ready.says("It was ")
    ready.says("about bark.")
    assert ready.take() == [SummaryProgress(0), SummaryProgress(7), SummaryProgress(18)]
    assert ready.texts == ["a", "b"]


def test_new_chat_begins_with_the_summary_and_the_text(ready: Bench) -> None:
    old = ready.chat
    begin(ready, "c")
    ready.take()
    changes = summed_up(ready)
    assert [type(change) for change in changes] == [
        SummaryProgress,
        SummaryEnded,
        ConversationShown,
        ReplyStarted,
    ]
    assert SummaryEnded(None) in changes
    assert not ready.session.is_summarising
    assert ready.chat.id != old.id
    assert ready.chat.title == "a (continued)"
    prompt = "S\n\nSummary of the earlier chat “a”:\nIt was about bark."
    assert ready.chat.settings == ChatSettings(prompt, SamplingParams(top_k=3), "new_chat")
    assert ready.texts == ["c", ""]
    assert ready.generate().messages == (ChatMessage("system", prompt), ChatMessage("user", "c"))
    assert ready.store.load(old.id) == replace(old, updated_at=100.0)
    assert ready.store.load(ready.chat.id) == ready.chat
    assert {summary.title for summary in ready.session.conversations()} == {"a", "a (continued)"}


def test_new_chat_without_a_text_is_only_shown(ready: Bench) -> None:
    begin(ready, "  ")
    changes = summed_up(ready)
    assert [type(change) for change in changes[2:]] == [SummaryEnded, ConversationShown]
    assert ready.chat.messages == {}
    assert len(ready.posted) == 3
    assert ready.session.send("c")
    assert ready.texts == ["c", ""]


def test_general_system_prompt_stays_with_the_new_chat(bench: Bench) -> None:
    bench.settings.change(system_prompt="G")
    bench.ready()
    bench.turn("a", "b")
    begin(bench, "c")
    summed_up(bench)
    assert bench.chat.settings.system_prompt.startswith("G\n\nSummary of")


def test_send_in_a_full_chat_goes_on_in_a_new_one_if_chosen(ready: Bench) -> None:
    assert ready.session.send(LONG)
    ready.too_long(2000)
    assert ready.take() == [SummaryProgress(0)]
    assert not ready.session.send("other")
    ready.measured(1400, fits=True)
    summed_up(ready)
    assert ready.texts == [LONG, ""]
    assert ready.chat.title == "a (continued)"


def test_send_that_was_measured_before_goes_on_in_a_new_chat_at_once(ready: Bench) -> None:
    ready.session.measure_draft(LONG)
    ready.too_long(2000)
    ready.take()
    assert ready.session.send(LONG)
    assert ready.take() == [SummaryProgress(0)]


@pytest.mark.parametrize(
    ("context_tokens", "prompt_tokens", "max_tokens"),
    [
        (2048, 100, 400),  # the most that a summary is ever worth
        (1600, 100, 400),
        (700, 240, 175),  # a quarter of the context
        (700, 460, 145),  # all that is left beside a reply of 87, and a seam
        (700, 573, 32),
        (64, 16, 32),  # a quarter would be worth nothing
    ],
)
def test_summary_leaves_room_for_the_text_and_a_reply(
    ready: Bench, context_tokens: int, prompt_tokens: int, max_tokens: int
) -> None:
    ready.session.continue_in_new_chat("c")
    (asked,) = ready.measures()
    ready.session.handle_event(
        PromptMeasured(asked.measure_id, prompt_tokens, context_tokens, fits=True)
    )
    assert ready.generate().params.max_tokens == max_tokens
    assert ready.asked()[-1] == instruction(max_tokens)


def test_summary_has_half_as_many_words_as_tokens() -> None:
    assert "at most 200 words" in instruction(400)
    assert "at most 72 words" in instruction(145)


def test_text_whose_length_cannot_be_known_is_sent_with_a_summary(ready: Bench) -> None:
    ready.session.continue_in_new_chat("c")
    ready.measured(0, fits=True)
    assert ready.generate().params.max_tokens == 400


@pytest.mark.parametrize("prompt_tokens", [1753, 2090])
def test_text_that_leaves_no_room_for_a_summary_comes_back_before_there_is_one(
    ready: Bench, prompt_tokens: int
) -> None:
    ready.session.send(LONG)
    ready.too_long(2100)
    ready.take()
    ready.measured(prompt_tokens, fits=prompt_tokens == 1753)
    assert ready.take() == [DraftReturned(LONG), SummaryEnded(NO_ROOM)]
    assert not any(isinstance(command, Generate) for command in ready.posted)
    assert ready.texts == ["a", "b"]
    assert len(ready.session.conversations()) == 1
    assert not ready.session.is_summarising


def test_summary_that_is_longer_than_it_should_be_leaves_no_empty_chat(ready: Bench) -> None:
    begin(ready, "c", MessageId(1))
    ready.says("It was about bark.")
    ready.ends(finish_reason="length")
    assert ready.measures()[-1].messages == (
        ChatMessage("system", "S\n\nSummary of the earlier chat “a”:\nIt was about bark."),
        ChatMessage("user", "c"),
    )
    ready.take()
    ready.measured(1900, fits=False)
    assert ready.take() == [DraftReturned("c", MessageId(1)), SummaryEnded(NO_ROOM)]
    assert ready.texts == ["a", "b"]
    assert len(ready.session.conversations()) == 1
    assert ready.session.send("d")


@pytest.mark.parametrize("is_written", [False, True])
@pytest.mark.parametrize("how", ["stop", "model"])
def test_text_comes_back_while_the_new_chat_is_measured(
    ready: Bench, is_written: bool, how: str
) -> None:
    if is_written:
        begin(ready, "c")
        ready.says("It was about bark.")
        ready.ends()
    else:
        ready.session.continue_in_new_chat("c")
    ready.take()
    if how == "stop":
        ready.session.stop()
    else:
        ready.session.load_model(PATH)
    assert ready.take()[-2:] == [DraftReturned("c"), SummaryEnded(None)]
    assert not any(isinstance(command, StopReply) for command in ready.posted)
    ready.measured(100, fits=True)
    assert not ready.session.is_summarising
    assert len(ready.session.conversations()) == 1


def test_edit_in_a_full_chat_is_only_told(ready: Bench) -> None:
    ready.session.edit(MessageId(1), LONG)
    ready.measured(2000, fits=False)
    refused = ChatIsFull(2000, 2048, "new_chat", LONG, MessageId(1), is_alone=True)
    assert ready.take() == [DraftReturned(LONG, MessageId(1)), refused]
    assert not ready.session.is_summarising


@pytest.mark.parametrize("how", ["stop", "new", "open"])
def test_summary_that_is_stopped_gives_the_text_back(ready: Bench, how: str) -> None:
    chat_id = ready.chat.id
    begin(ready, "c")
    command = ready.generate()
    ready.says("It was")
    ready.take()
    match how:
        case "stop":
            ready.session.stop()
        case "new":
            ready.session.new_chat()
        case _:
            ready.session.open_chat(chat_id)
    assert ready.take()[:2] == [DraftReturned("c"), SummaryEnded(None)]
    assert ready.posted[-1] == StopReply(command.reply_id)
    ready.ends(finish_reason="aborted")
    assert ready.take() == []
    assert len(ready.session.conversations()) == 1


def test_edit_goes_back_to_its_message_when_the_summary_is_stopped_or_fails(ready: Bench) -> None:
    begin(ready, "c", MessageId(1))
    ready.take()
    ready.session.stop()
    assert ready.take() == [DraftReturned("c", MessageId(1)), SummaryEnded(None)]
    begin(ready, "c", MessageId(1))
    ready.take()
    ready.ends(finish_reason="error", failure=FAILURE)
    assert ready.take() == [DraftReturned("c", MessageId(1)), SummaryEnded(FAILURE)]


def test_summary_without_a_text_has_none_to_give_back(ready: Bench) -> None:
    begin(ready, " ")
    ready.take()
    ready.session.stop()
    assert ready.take() == [SummaryEnded(None)]


def test_delete_of_the_chat_stops_its_summary_first(ready: Bench) -> None:
    chat_id = ready.chat.id
    begin(ready, "c")
    command = ready.generate()
    ready.take()
    ready.session.delete_chat(chat_id)
    ready.session.forget_deleted(chat_id)
    assert ready.posted[-2:] == [
        StopReply(command.reply_id),
        ForgetChat(chat_id, is_deleted=True),
    ]
    assert ready.take()[:2] == [DraftReturned("c"), SummaryEnded(None)]


def test_summary_that_the_engine_ends_gives_the_text_back(ready: Bench) -> None:
    begin(ready, "c")
    ready.take()
    ready.ends(finish_reason="error", failure=FAILURE)
    assert ready.take() == [DraftReturned("c"), SummaryEnded(FAILURE)]
    begin(ready, "c")
    ready.take()
    ready.ends(finish_reason="aborted")  # the model was closed
    assert ready.take() == [DraftReturned("c"), SummaryEnded(None)]


@pytest.mark.parametrize("said", ["", " \n", "<think>So", "<think>So</think>\n"])
def test_summary_without_a_word_is_a_failure(ready: Bench, said: str) -> None:
    begin(ready, "c")
    changes = summed_up(ready, said)
    assert changes[-2:] == [DraftReturned("c"), SummaryEnded(NO_SUMMARY)]
    assert len(ready.session.conversations()) == 1


def test_thoughts_are_no_part_of_the_summary(ready: Bench) -> None:
    begin(ready, "")
    summed_up(ready, "<think>Well\n</think>\n\nIt was <think> about bark.")
    assert ready.chat.settings.system_prompt.endswith(":\nIt was <think> about bark.")


def test_summary_ends_by_its_length_too(ready: Bench) -> None:
    begin(ready, "c")
    ready.says("It was about")
    ready.ends(finish_reason="length")
    ready.measured(200, fits=True)
    assert ready.chat.settings.system_prompt.endswith("It was about")


def test_new_chat_that_cannot_be_stored_gives_the_text_back(ready: Bench) -> None:
    begin(ready, "c")
    ready.take()
    ready.store._connection.execute("PRAGMA query_only = ON")
    changes = summed_up(ready)
    assert [type(change) for change in changes[1:]] == [SummaryEnded, StorageFailed, DraftReturned]
    assert ready.texts == ["a", "b"]


def test_summary_without_a_model_says_so(ready: Bench) -> None:
    ready.session.load_model(PATH)
    ready.take()
    assert not ready.session.continue_in_new_chat("c")
    ready.session.handle_event(ModelFailed(PATH, FAILURE))
    assert not ready.session.continue_in_new_chat("c")
    changes = [change for change in ready.take() if isinstance(change, SummaryEnded)]
    assert changes == [SummaryEnded(NO_MODEL), SummaryEnded(FAILURE)]


def test_empty_chat_is_not_summed_up(bench: Bench) -> None:
    bench.ready()
    assert not bench.session.continue_in_new_chat("c")
    assert bench.posted == []
    assert bench.take() == []
    bench.session.send("a")
    bench.take()
    assert not bench.session.continue_in_new_chat("c")
    assert bench.session.is_replying
    assert bench.take() == []


def test_reply_in_the_making_ends_before_the_summary(ready: Bench) -> None:
    ready.session.send("c")
    ready.says("half")
    first = ready.generate()
    begin(ready, "d")
    assert ready.posted[-3] == StopReply(first.reply_id)
    assert ready.asked() == [
        "S",
        "a",
        "b",
        "c",
        "half",
        instruction(400),
    ]
    assert ready.last.status == "stopped"


def test_question_without_an_answer_is_not_summed_up(ready: Bench) -> None:
    ready.session.send("c")
    ready.ends(finish_reason="aborted", reply_token_ids=None)
    begin(ready, "d")
    assert ready.asked() == ["S", "a", "b", instruction(400)]


def test_summary_sees_no_more_than_the_last_reply_did(ready: Bench) -> None:
    ready.session.choose_on_full("leave_out")
    ready.turn("c", "d", metrics=FULL_METRICS)
    ready.cut_turn("e", "f", left_out=2)
    ready.session.choose_on_full("new_chat")
    begin(ready, "g")
    assert ready.generate().left_out == 2
    assert ready.asked() == ["S", *"cdef", instruction(400)]


@pytest.mark.parametrize(("text", "stored"), [("c", ["c", ""]), ("", [])])
def test_text_if_any_is_stored_when_the_window_closes_during_a_summary(
    ready: Bench, text: str, stored: list[str]
) -> None:
    chat_id = ready.chat.id
    begin(ready, text)
    ready.session.close()
    ready.start()
    ready.session.open_chat(chat_id)
    assert ready.texts == ["a", "b", *stored]


def test_plain_text_goes_on_in_the_new_chat(bench: Bench) -> None:
    bench.ready(has_chat_template=False)
    bench.session.send("a")
    bench.ends(finish_reason="error", failure=FAILURE, reply_token_ids=None)
    bench.session.continue_as_plain_text()
    bench.says("b")
    bench.ends()
    begin(bench, "c")
    assert bench.generate().as_plain_text
    summed_up(bench)
    assert bench.texts == ["c", ""]
    assert bench.generate().as_plain_text


def test_newer_summary_takes_the_place_of_the_older_one() -> None:
    first = prompt_with_summary("S\n", "a", "one")
    assert first == "S\n\nSummary of the earlier chat “a”:\none"
    assert prompt_with_summary(first, "b", "two") == "S\n\nSummary of the earlier chat “b”:\ntwo"
    assert prompt_with_summary("", "a", "one") == "Summary of the earlier chat “a”:\none"


def test_title_goes_on_within_its_bounds() -> None:
    assert title_going_on("a") == "a (continued)"
    assert title_going_on("a (continued)") == "a (continued)"
    assert len(title_going_on("x" * 200)) == 200


def test_ids_of_chats_differ(ready: Bench) -> None:
    first: ConversationId = ready.chat.id
    begin(ready, "")
    summed_up(ready)
    second = ready.chat.id
    ready.turn("c", "d")
    begin(ready, "")
    summed_up(ready, "More.")
    assert len({first, second, ready.chat.id}) == 3
    assert ready.chat.settings.system_prompt == (
        "S\n\nSummary of the earlier chat “a (continued)”:\nMore."
    )
    assert not any(isinstance(change, MessageChanged) for change in ready.take())
