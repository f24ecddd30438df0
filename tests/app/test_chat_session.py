import pytest

from app.conversation import ChatSettings, Conversation, ConversationId, Message, MessageId
from app.errors import StorageError
from app.messages import (
    Command,
    Failure,
    FindDrafts,
    ForgetChat,
    Generate,
    LoadModel,
    ModelFailed,
    ModelLoading,
    ModelReady,
    ModelUnloaded,
    ReplyEnded,
    ReplyId,
    ReplyProgressed,
    StatsSampled,
    StopReply,
)
from app.reply_desk import IN_MEMORY
from app.session_changes import (
    ConversationsChanged,
    ConversationShown,
    MessageAdded,
    MessageChanged,
    ModelChanged,
    ModelState,
    RepliesChanged,
    RepliesStored,
    ReplyGrew,
    ReplyPrefilling,
    ReplyStarted,
    SessionChange,
    StatsChanged,
    StorageFailed,
)
from app.settings import SettingsStore
from app.storage import ConversationStore
from inference.config import EngineConfig, SamplingParams
from inference.metrics import EngineStats, RequestMetrics
from inference.request import ChatMessage
from tests.app.fake_engine import make_model_info
from tests.app.session_bench import FAILURE, INFO, METRICS, PATH, Bench

# ---------------------------------------------------------------- sending


def test_send_in_a_new_chat_stores_tells_and_asks(ready: Bench) -> None:
    assert ready.session.conversation is None
    assert ready.session.send("Why do plane trees drop their bark in summer?")
    question, reply = ready.chat.path()
    assert ready.chat.title == "Why do plane trees drop their bark in…"
    assert (question.role, question.parent_id, question.created_at) == ("user", None, 100.0)
    assert (reply.role, reply.parent_id, reply.status) == ("assistant", question.id, "streaming")
    shown, *others = ready.changes
    assert isinstance(shown, ConversationShown)
    assert shown.conversation is not None
    assert shown.conversation.path() == [question]
    assert others == [ConversationsChanged(), ReplyStarted(reply), RepliesChanged()]
    assert ready.posted == [
        Generate(
            ReplyId(1),
            ready.chat.id,
            (ChatMessage("user", question.content),),
            SamplingParams(),
        )
    ]
    assert ready.session.is_replying
    assert ready.session.conversations()[0].title == ready.chat.title


def test_text_is_in_the_file_before_the_engine_hears_of_it(ready: Bench) -> None:
    seen: list[list[str]] = []

    def look(command: Command) -> None:
        other = ConversationStore(ready.path)
        found = other.load(other.conversations()[0].id)
        assert found is not None
        seen.append([message.content for message in found.path()])
        other.close()

    ready.on_post = look
    ready.session.send("Precious")
    assert seen == [["Precious", ""]]


def test_send_in_an_old_chat_appends(ready: Bench) -> None:
    ready.turn("a", "b")
    ready.now = 200.0
    assert ready.session.send("c")
    added, started = ready.take()
    assert isinstance(added, MessageAdded)
    assert isinstance(started, ReplyStarted)
    assert (added.message.content, added.message.parent_id) == ("c", 2)
    assert started.message.parent_id == added.message.id
    assert ready.texts == ["a", "b", "c", ""]
    assert ready.generate().messages == (
        ChatMessage("user", "a"),
        ChatMessage("assistant", "b", (7, 8)),
        ChatMessage("user", "c"),
    )
    assert ready.session.conversations()[0].updated_at == 200.0


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_send_of_nothing_does_nothing(ready: Bench, text: str) -> None:
    assert not ready.session.send(text)
    assert ready.changes == []
    assert ready.posted == []
    assert ready.session.conversations() == []


def test_send_while_a_reply_runs_ends_it_and_keeps_its_text(ready: Bench) -> None:
    ready.session.send("a")
    ready.says("half an")
    first = ready.generate().reply_id
    ready.take()
    ready.session.send("wait")
    changed, added, started = ready.take()
    assert isinstance(changed, MessageChanged)
    assert (changed.message.content, changed.message.status) == ("half an", "stopped")
    assert isinstance(added, MessageAdded)
    assert isinstance(started, ReplyStarted)
    assert ready.posted[-2] == StopReply(first)
    assert ready.asked() == ["a", "half an", "wait"]
    ready.says("late", first)
    ready.session.handle_event(ReplyEnded(first, "aborted", METRICS))
    assert ready.take() == []
    assert ready.texts == ["a", "half an", "wait", ""]


def test_send_uses_the_chats_own_settings_before_the_general_ones(ready: Bench) -> None:
    own = SamplingParams(temperature=0.0)
    ready.settings.change(system_prompt="General.", sampling=SamplingParams(top_k=3))
    ready.session.send("a")
    assert ready.generate().params == SamplingParams(top_k=3)
    assert ready.generate().messages[0] == ChatMessage("system", "General.")
    ready.ends()
    ready.session.set_chat_settings(ChatSettings("Own.", own))
    ready.session.send("b")
    assert ready.generate().params == own
    assert ready.generate().messages[0] == ChatMessage("system", "Own.")
    assert ready.store.load(ready.chat.id) == ready.chat


def test_settings_of_a_new_chat_are_stored_with_its_first_message(ready: Bench) -> None:
    assert ready.session.chat_settings == ChatSettings()
    ready.session.set_chat_settings(ChatSettings("Own."))
    assert ready.session.chat_settings == ChatSettings("Own.")
    ready.session.send("a")
    assert ready.session.chat_settings == ChatSettings("Own.")
    loaded = ready.store.load(ready.chat.id)
    assert loaded is not None
    assert loaded.settings == ChatSettings("Own.")
    ready.session.new_chat()
    assert ready.session.chat_settings == ChatSettings()


# ---------------------------------------------------------------- the reply's life


def test_reply_grows_ends_and_is_stored(ready: Bench) -> None:
    ready.session.send("a")
    ready.take()
    reply_id = ready.generate().reply_id
    ready.session.handle_event(
        ReplyProgressed(reply_id, "", (), 2, RequestMetrics(prompt_tokens=4))
    )
    ready.says("Hel")
    ready.session.handle_event(ReplyProgressed(reply_id, "", (9,), 4, METRICS))
    ready.says("lo")
    assert ready.take() == [
        ReplyPrefilling(MessageId(2), 2, 4),
        ReplyGrew(MessageId(2), "Hel", METRICS),
        ReplyGrew(MessageId(2), "lo", METRICS),
    ]
    assert (ready.last.content, ready.last.status) == ("Hello", "streaming")
    ready.ends()
    assert ready.take() == [MessageChanged(ready.last)]
    assert ready.last == Message(
        MessageId(2),
        ready.chat.id,
        MessageId(1),
        "assistant",
        "Hello",
        100.0,
        status="complete",
        token_ids=(7, 8),
        model_key=INFO.fingerprint,
        metrics=METRICS,
    )
    assert ready.stored(2) == ready.last
    assert not ready.session.is_replying


@pytest.mark.parametrize(
    ("reason", "status"), [("length", "length"), ("aborted", "stopped"), ("stop", "complete")]
)
def test_reason_of_the_end_becomes_the_status(ready: Bench, reason: str, status: str) -> None:
    ready.session.send("a")
    ready.ends(finish_reason=reason, reply_token_ids=None)
    assert (ready.stored(2).status, ready.stored(2).token_ids) == (status, None)
    assert ready.stored(2).model_key is None


def test_reply_that_fails_has_the_words_for_people(ready: Bench) -> None:
    ready.session.send("a")
    ready.says("half")
    ready.take()
    ready.ends(finish_reason="error", failure=FAILURE)
    assert ready.take() == [MessageChanged(ready.last, FAILURE)]
    assert (ready.last.status, ready.last.content) == ("error", "half")
    assert ready.last.error == "It needs 6 GB. Choose a smaller model."
    assert ready.last.failure_kind == "memory"
    assert ready.stored(2) == ready.last


def test_reply_is_saved_at_once_and_then_each_second(ready: Bench) -> None:
    ready.session.send("a")
    ready.says("one ")
    assert (ready.stored(2).content, ready.stored(2).status) == ("one ", "streaming")
    ready.now = 100.5
    ready.says("two ")
    ready.now = 101.4
    ready.says("three ")
    assert ready.stored(2).content == "one "
    assert ready.texts == ["a", "one two three "]
    ready.now = 101.5
    ready.says("four ")
    assert (ready.stored(2).content, ready.stored(2).status) == ("one two three four ", "streaming")
    ready.now = 102.0
    ready.says("five ")
    ready.now = 102.9
    ready.says("six ")
    assert ready.stored(2).content == "one two three four "
    ready.now = 90.0  # somebody has set the clock back
    ready.says("seven")
    assert ready.stored(2).content == "one two three four five six seven"


def test_reply_is_saved_with_the_ids_of_its_text(ready: Bench) -> None:
    ready.session.send("a")
    ready.says("one ")
    assert (ready.stored(2).token_ids, ready.stored(2).model_key) == ((7,), INFO.fingerprint)
    ready.says("two ", is_all_shown=False)
    ready.now = 101.9  # it is waited for what is held back, but not for ever
    ready.says("three ", is_all_shown=False)
    assert ready.stored(2).content == "one "
    ready.says("four ")
    assert (ready.stored(2).content, ready.stored(2).token_ids) == (
        "one two three four ",
        (7, 7, 7, 7),
    )
    ready.says("five ", is_all_shown=False)
    ready.now = 103.9
    ready.says("six", is_all_shown=False)
    reply = ready.stored(2)
    assert reply.content == "one two three four five six"
    assert (reply.token_ids, reply.model_key) == (None, None)


def test_reply_that_is_given_up_keeps_its_ids(ready: Bench) -> None:
    """Whoever writes on does not wait for the engine's last word."""
    ready.session.send("a")
    ready.says("one ")
    ready.says("two")
    ready.session.send("b")
    reply = ready.stored(2)
    assert (reply.content, reply.status) == ("one two", "stopped")
    assert (reply.token_ids, reply.model_key) == ((7, 7), INFO.fingerprint)
    assert ready.generate().messages[1].token_ids == (7, 7)


def test_program_that_died_shows_its_reply_as_stopped(ready: Bench) -> None:
    ready.session.send("a")
    ready.says("one ")
    ready.says("two")
    ready.now = 101.0
    ready.says(" three")
    ready.says(" that is not stored yet")
    chat_id = ready.chat.id
    ready.store.close()
    ready.start()
    ready.session.open_chat(chat_id)
    assert (ready.last.content, ready.last.status) == ("one two three", "stopped")
    assert (ready.last.token_ids, ready.last.model_key) == ((7, 7, 7), INFO.fingerprint)
    assert not ready.session.is_replying


def test_stop_waits_for_the_engines_last_word(ready: Bench) -> None:
    ready.session.send("a")
    ready.says("half")
    ready.session.stop()
    assert ready.posted[-1] == StopReply(ready.generate().reply_id)
    assert ready.session.is_replying
    ready.ends(finish_reason="aborted", reply_token_ids=(7,))
    assert (ready.last.status, ready.last.content) == ("stopped", "half")
    assert ready.stored(2).token_ids == (7,)


def test_stop_without_a_reply_does_nothing(ready: Bench) -> None:
    ready.session.stop()
    ready.turn("a", "b")
    ready.session.stop()
    assert [type(command) for command in ready.posted] == [Generate]


# ---------------------------------------------------------------- branches


def test_regenerate_adds_a_version(ready: Bench) -> None:
    ready.turn("a", "b")
    ready.session.regenerate(MessageId(2))
    shown, started = ready.take()
    assert isinstance(shown, ConversationShown)
    assert shown.conversation is not None
    assert [message.id for message in shown.conversation.path()] == [1]
    assert isinstance(started, ReplyStarted)
    assert (started.message.id, started.message.parent_id) == (3, 1)
    assert ready.generate().messages == (ChatMessage("user", "a"),)
    ready.says("c")
    ready.ends()
    assert ready.texts == ["a", "c"]
    assert ready.chat.versions(MessageId(3)) == [2, 3]


def test_regenerate_while_the_reply_runs_ends_it(ready: Bench) -> None:
    ready.session.send("a")
    ready.says("half")
    first = ready.generate().reply_id
    ready.session.regenerate(MessageId(2))
    assert StopReply(first) in ready.posted
    assert ready.stored(2).status == "stopped"
    assert ready.texts == ["a", ""]
    assert ready.last.id == 3


def test_regenerate_of_a_question_makes_its_reply(ready: Bench) -> None:
    ready.turn("a", "b")
    ready.session.regenerate(MessageId(1))
    assert ready.chat.versions(ready.last.id) == [2, 3]


def test_regenerate_of_an_unknown_message_does_nothing(ready: Bench) -> None:
    ready.session.regenerate(MessageId(1))
    ready.turn("a", "b")
    ready.session.regenerate(MessageId(99))
    assert ready.take() == []


def test_regenerate_of_a_reply_without_a_question_does_nothing(ready: Bench) -> None:
    chat = Conversation(ConversationId("x"), "x", 0.0, 0.0)
    ready.store.add_conversation(chat)
    ready.store.add_message(chat.id, parent_id=None, role="assistant", content="Welcome")
    ready.session.open_chat(chat.id)
    ready.take()
    ready.session.regenerate(MessageId(1))
    assert ready.take() == []


def test_edit_makes_a_branch_and_keeps_the_old_one(ready: Bench) -> None:
    ready.turn("a", "b")
    ready.turn("c", "d")
    assert ready.session.edit(MessageId(3), "c2")
    shown, started = ready.take()
    assert isinstance(shown, ConversationShown)
    assert shown.conversation is not None
    assert [message.content for message in shown.conversation.path()] == ["a", "b", "c2"]
    assert isinstance(started, ReplyStarted)
    assert ready.chat.versions(MessageId(5)) == [3, 5]
    ready.says("d2")
    ready.ends()
    ready.session.show_version(MessageId(3))
    assert ready.texts == ["a", "b", "c", "d"]


def test_edit_of_the_first_message_makes_another_first_message(ready: Bench) -> None:
    ready.turn("a", "b")
    assert ready.session.edit(MessageId(1), "a2")
    assert ready.texts == ["a2", ""]
    assert ready.generate().messages == (ChatMessage("user", "a2"),)
    assert len(ready.session.conversations()) == 1


@pytest.mark.parametrize(("message_id", "text"), [(1, " "), (2, "x"), (99, "x")])
def test_edit_that_makes_no_sense_does_nothing(ready: Bench, message_id: int, text: str) -> None:
    assert not ready.session.edit(MessageId(message_id), text)
    ready.turn("a", "b")
    assert not ready.session.edit(MessageId(message_id), text)
    assert ready.take() == []


def test_show_version_follows_to_the_newest_end_and_is_kept(ready: Bench) -> None:
    ready.turn("a", "b")
    ready.turn("c", "d")
    ready.session.regenerate(MessageId(2))
    ready.take()
    ready.session.show_version(MessageId(2))
    assert ready.take() == [ConversationShown(ready.chat)]
    assert ready.texts == ["a", "b", "c", "d"]
    loaded = ready.store.load(ready.chat.id)
    assert loaded is not None
    assert loaded.leaf_id == 4


def test_show_version_of_an_unknown_message_does_nothing(ready: Bench) -> None:
    ready.session.show_version(MessageId(1))
    ready.turn("a", "b")
    ready.session.show_version(MessageId(9))
    assert ready.take() == []


def test_reply_goes_on_while_another_version_is_shown(ready: Bench) -> None:
    ready.turn("a", "b")
    ready.session.regenerate(MessageId(2))
    ready.session.show_version(MessageId(2))
    ready.take()
    ready.says("c")
    assert ready.take() == []
    assert not ready.session.is_replying
    ready.session.show_version(MessageId(3))
    assert (ready.texts, ready.session.is_replying) == (["a", "c"], True)
    ready.take()
    ready.says("!")
    assert ready.take() == [ReplyGrew(MessageId(3), "!", METRICS)]


# ---------------------------------------------------------------- other chats


def test_reply_goes_on_in_the_background(ready: Bench) -> None:
    ready.session.send("a")
    ready.says("one ")
    first, first_chat = ready.generate().reply_id, ready.chat.id
    ready.session.new_chat()
    assert ready.take()[-1] == ConversationShown(None)
    ready.says("two", first)
    ready.session.send("other")
    ready.take()
    ready.says(" three", first)
    assert ready.take() == []
    ready.session.open_chat(first_chat)
    assert ready.texts == ["a", "one two three"]
    assert ready.session.is_replying
    ready.take()
    ready.says("!", first)
    assert ready.take() == [ReplyGrew(MessageId(2), "!", METRICS)]
    assert ready.texts == ["a", "one two three!"]


def test_reply_that_ends_in_the_background_is_stored(ready: Bench) -> None:
    ready.session.send("a")
    ready.says("done")
    first_chat = ready.chat.id
    ready.session.new_chat()
    ready.take()
    ready.ends()
    assert ready.take() == []
    ready.session.open_chat(first_chat)
    assert (ready.last.content, ready.last.status) == ("done", "complete")


def test_open_of_a_chat_that_is_gone_only_refreshes_the_list(ready: Bench) -> None:
    ready.session.open_chat(ConversationId("gone"))
    assert ready.changes == [ConversationsChanged()]


def test_rename_changes_list_and_title(ready: Bench) -> None:
    ready.turn("a", "b")
    ready.session.rename_chat(ready.chat.id, "  New\n\0\x1b na\u202e\u2066me\x9b ")
    assert ready.changes == [ConversationsChanged()]
    assert ready.chat.title == "New name"
    assert ready.session.conversations()[0].title == "New name"
    ready.session.rename_chat(ready.chat.id, " ")
    assert ready.chat.title == "New name"
    chat_id = ready.chat.id
    ready.session.new_chat()
    ready.session.rename_chat(chat_id, "x" * 500)
    assert ready.session.conversations()[0].title == "x" * 200


def test_search_finds_messages(ready: Bench) -> None:
    ready.turn("plane trees", "bark")
    assert [hit.message_id for hit in ready.session.search("bark")] == [2]


def test_delete_of_the_shown_chat_ends_its_reply_and_undo_brings_it_back(ready: Bench) -> None:
    ready.session.send("a")
    ready.says("half")
    chat_id = ready.chat.id
    ready.take()
    ready.session.delete_chat(chat_id)
    assert ready.session.conversation is None
    assert ready.take() == [ConversationShown(None)]
    assert ready.posted[-1] == StopReply(ready.generate().reply_id)
    assert ready.session.conversations() == []
    ready.session.undo_delete()
    ready.session.forget_deleted(chat_id)
    assert not any(isinstance(command, ForgetChat) for command in ready.posted)
    assert ready.chat.id == chat_id
    assert (ready.last.content, ready.last.status) == ("half", "stopped")
    ready.take()
    ready.session.undo_delete()
    assert ready.take() == []


def test_delete_of_another_chat_leaves_the_shown_one(ready: Bench) -> None:
    ready.turn("a", "b")
    first = ready.chat.id
    ready.session.new_chat()
    ready.turn("c", "d")
    ready.session.delete_chat(first)
    assert ready.take() == []
    ready.session.undo_delete()
    assert ready.take() == []
    assert ready.texts == ["c", "d"]
    assert len(ready.session.conversations()) == 2


# ---------------------------------------------------------------- the model


def test_load_tells_its_way_and_remembers_the_model(bench: Bench) -> None:
    bench.settings.change(recent_models=("/old", PATH), context_tokens=512, num_threads=2)
    bench.session.load_model(PATH)
    bench.session.handle_event(ModelLoading(PATH, "Loading weights", 0.5))
    bench.session.handle_event(ModelReady(INFO))
    assert bench.take() == [
        ModelChanged(ModelState("loading", PATH)),
        ModelChanged(ModelState("loading", PATH, "Loading weights", 0.5)),
        ModelChanged(ModelState("ready", PATH, info=INFO)),
    ]
    config = EngineConfig(context_tokens=512, num_threads=2, cache_dir=str(bench.kv_dir))
    assert bench.posted == [LoadModel(PATH, config), FindDrafts(("/old",), beside=PATH)]
    assert bench.settings.value.model_path == PATH
    assert bench.settings.value.recent_models == (PATH, "/old")


def test_load_that_fails_tells_and_is_not_remembered(bench: Bench) -> None:
    bench.session.load_model(PATH)
    bench.session.handle_event(ModelFailed(PATH, FAILURE))
    assert bench.session.model == ModelState("failed", PATH, failure=FAILURE)
    assert bench.settings.value.model_path == ""


def test_events_of_a_load_that_was_replaced_are_ignored(bench: Bench) -> None:
    bench.session.load_model("/other")
    bench.session.load_model(PATH)
    bench.take()
    bench.session.handle_event(ModelLoading("/other", "Loading weights", 0.9))
    bench.session.handle_event(ModelReady(make_model_info(path="/other")))
    bench.session.handle_event(ModelFailed("/other", FAILURE))
    bench.session.handle_event(ModelUnloaded())
    assert bench.take() == []
    assert bench.session.model == ModelState("loading", PATH)


def test_unload_leaves_no_model(ready: Bench) -> None:
    ready.session.handle_event(ModelUnloaded())
    assert ready.take() == [ModelChanged(ModelState())]


def test_reply_waits_for_the_model_that_loads(bench: Bench) -> None:
    bench.session.load_model(PATH)
    bench.session.send("a")
    assert [type(command) for command in bench.posted] == [LoadModel]
    assert bench.session.is_replying
    assert bench.stored(1).content == "a"
    bench.session.handle_event(ModelReady(INFO))
    assert bench.generate().messages == (ChatMessage("user", "a"),)
    bench.says("b")
    bench.ends()
    assert bench.stored(2).model_key == INFO.fingerprint


def test_reply_that_waits_for_a_load_that_fails_gets_its_error(bench: Bench) -> None:
    bench.session.load_model(PATH)
    bench.session.send("a")
    bench.take()
    bench.session.handle_event(ModelFailed(PATH, FAILURE))
    assert bench.take() == [
        ModelChanged(ModelState("failed", PATH, failure=FAILURE)),
        MessageChanged(bench.last, FAILURE),
    ]
    assert bench.last.status == "error"
    bench.session.send("b")
    assert bench.last.error == "It needs 6 GB. Choose a smaller model."


def test_reply_without_any_model_gets_an_error_with_the_next_step(bench: Bench) -> None:
    bench.session.send("a")
    assert bench.posted == []
    assert bench.last.error == ("No model is open. Choose a model, then make the reply again.")
    assert bench.last.failure_kind == "model_file"
    assert bench.texts == ["a", ""]


def test_stop_of_a_reply_that_waits_ends_it_at_once(bench: Bench) -> None:
    bench.session.load_model(PATH)
    bench.session.send("a")
    bench.session.stop()
    assert bench.last.status == "stopped"
    bench.session.handle_event(ModelReady(INFO))
    assert [type(command) for command in bench.posted] == [LoadModel, FindDrafts]


def test_send_while_a_reply_waits_ends_it_at_once(bench: Bench) -> None:
    bench.session.load_model(PATH)
    bench.session.send("a")
    bench.session.send("b")
    bench.session.handle_event(ModelReady(INFO))
    assert [type(command) for command in bench.posted] == [LoadModel, Generate, FindDrafts]
    assert bench.asked() == ["a", "b"]


def test_switch_of_the_model_ends_the_reply_as_stopped(ready: Bench) -> None:
    ready.session.send("a")
    ready.says("half")
    ready.session.load_model("/other")
    ready.ends(finish_reason="aborted")
    other = make_model_info(path="/other", fingerprint="other")
    ready.session.handle_event(ModelReady(other))
    assert (ready.last.status, ready.last.content) == ("stopped", "half")
    ready.session.send("b")
    assert [message.token_ids for message in ready.generate().messages] == [None, None, None]


def test_stats_are_passed_on(ready: Bench) -> None:
    sample = StatsSampled(EngineStats(), 1, 2)
    ready.session.handle_event(sample)
    assert ready.take() == [StatsChanged(sample)]


# ---------------------------------------------------------------- no chat template


def without_template(bench: Bench) -> None:
    bench.session.load_model(PATH)
    bench.session.handle_event(ModelReady(make_model_info(has_chat_template=False)))


def test_failure_for_lack_of_a_template_can_be_retried_as_plain_text(bench: Bench) -> None:
    without_template(bench)
    bench.session.send("a")
    assert not bench.generate().as_plain_text
    failure = Failure("template", "No template.")
    bench.ends(finish_reason="error", failure=failure, reply_token_ids=None)
    failed = bench.last
    assert failed.failure_kind == "template"
    assert bench.take()[-1] == MessageChanged(failed, failure)
    bench.session.continue_as_plain_text()
    assert bench.generate().as_plain_text
    assert bench.generate().messages == (ChatMessage("user", "a"),)
    assert bench.take() == [ReplyStarted(bench.last)]
    assert (bench.last.id, bench.last.status) == (2, "streaming")
    assert (bench.last.error, bench.last.failure_kind) == (None, None)
    bench.says("b")
    bench.ends()
    bench.session.send("c")
    assert bench.generate().as_plain_text


def test_plain_text_is_not_used_with_a_model_that_has_a_template(bench: Bench) -> None:
    without_template(bench)
    bench.session.send("a")
    bench.ends(finish_reason="error", failure=FAILURE)
    bench.session.continue_as_plain_text()
    bench.ends()
    bench.ready()
    bench.session.send("b")
    assert not bench.generate().as_plain_text


def test_continue_as_plain_text_without_a_failed_reply_does_nothing(ready: Bench) -> None:
    ready.session.continue_as_plain_text()
    ready.session.send("a")
    ready.session.continue_as_plain_text()
    ready.ends()
    ready.session.continue_as_plain_text()
    assert len(ready.posted) == 1


# ---------------------------------------------------------------- storage that refuses


def make_full(bench: Bench) -> None:
    """No page can be added any more."""
    pages = bench.store._connection.execute("PRAGMA page_count").fetchone()[0]
    bench.store._connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()


def test_send_that_cannot_be_stored_did_not_happen(ready: Bench) -> None:
    ready.ready(context_tokens=1_000_000)
    ready.turn("a", "b")
    make_full(ready)
    assert not ready.session.send("x" * 100_000)
    (failed,) = ready.take()
    assert isinstance(failed, StorageFailed)
    assert "The disk is full." in failed.message
    assert failed.hint == "Free some space, then try again."
    assert ready.texts == ["a", "b"]
    assert not ready.session.is_replying


def test_reply_that_cannot_be_stored_goes_on_in_the_window(ready: Bench) -> None:
    ready.session.send("a")
    make_full(ready)
    ready.take()
    ready.says("x" * 100_000)
    ready.ends()
    grew, failed, failed_again, changed = ready.take()
    assert isinstance(grew, ReplyGrew)
    assert isinstance(failed, StorageFailed)
    assert isinstance(failed_again, StorageFailed)
    assert isinstance(changed, MessageChanged)
    assert len(ready.last.content) == 100_000


def make_room(bench: Bench) -> None:
    bench.store._connection.execute("PRAGMA max_page_count = 1000000").fetchall()


@pytest.mark.parametrize("has_room_again", [False, True])
def test_reply_that_could_not_be_stored_is_there_after_another_chat_was_shown(
    ready: Bench, has_room_again: bool
) -> None:
    ready.session.send("a")
    make_full(ready)
    ready.says("x" * 100_000)
    ready.ends()
    chat = ready.chat
    if has_room_again:
        make_room(ready)
    ready.session.new_chat()
    ready.session.open_chat(chat.id)
    assert (len(ready.last.content), ready.last.status) == (100_000, "complete")


def test_reply_that_could_not_be_stored_is_stored_when_there_is_room_again(ready: Bench) -> None:
    ready.session.send("a")
    make_full(ready)
    ready.says("x" * 100_000)
    ready.ends()
    chat = ready.chat

    def stored() -> int:
        conversation = ready.store.load(chat.id)
        assert conversation is not None
        return len(conversation.messages[MessageId(2)].content)

    told = [change for change in ready.take() if isinstance(change, StorageFailed)]
    assert {change.hint for change in told} == {IN_MEMORY}
    ready.session.handle_event(StatsSampled(EngineStats(), 1, 2))
    ready.session.notice_others()
    assert stored() < 100_000
    assert not [
        change for change in ready.take() if isinstance(change, StorageFailed | RepliesStored)
    ]
    make_room(ready)
    ready.session.notice_others()  # without a word of the engine: it may be idle
    assert stored() == 100_000
    assert ready.take() == [RepliesStored()]
    ready.session.notice_others()
    assert ready.take() == []


def test_reply_that_finds_room_while_it_is_made_is_told_to_be_stored(ready: Bench) -> None:
    ready.session.send("a")
    make_full(ready)
    ready.says("x" * 100_000)
    ready.take()
    make_room(ready)
    ready.ends()  # the last text of the reply is stored
    changes = ready.take()
    assert RepliesStored() in changes
    assert not any(isinstance(change, StorageFailed) for change in changes)


def test_reply_whose_place_cannot_be_stored_is_not_asked_for(
    ready: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready.turn("a", "b")
    ready.store._connection.execute("PRAGMA query_only = ON")
    ready.session.regenerate(MessageId(2))
    assert [type(change) for change in ready.take()] == [ConversationShown, StorageFailed]
    assert len(ready.posted) == 1


def test_actions_on_a_store_that_refuses_change_nothing(ready: Bench) -> None:
    ready.turn("a", "b")
    chat = ready.chat
    ready.store._connection.execute("PRAGMA query_only = ON")
    ready.session.rename_chat(chat.id, "New")
    assert not ready.session.delete_chat(chat.id)
    ready.session.set_chat_settings(ChatSettings("S"))
    ready.session.show_version(MessageId(2))
    assert [type(change) for change in ready.take()] == [StorageFailed] * 4
    assert ready.chat == chat


def test_lists_of_a_store_that_refuses_are_empty(ready: Bench) -> None:
    ready.store._connection.execute("DROP TABLE title_index")
    assert ready.session.search("word") == []
    assert isinstance(ready.take()[0], StorageFailed)


# ---------------------------------------------------------------- the end


def test_close_keeps_running_replies_and_forgets_deleted_chats(ready: Bench) -> None:
    ready.turn("secret", "b")
    deleted = ready.chat.id
    ready.session.delete_chat(deleted)
    ready.session.send("a")
    ready.says("half")
    ready.settings.change(theme="dark")
    ready.session.close()
    assert ready.posted[-2:] == [
        StopReply(ready.generate().reply_id),
        ForgetChat(deleted, is_deleted=True),
    ]
    assert SettingsStore(ready.settings.path).value.theme == "dark"
    ready.ends()
    ready.start()
    (summary,) = ready.session.conversations()
    ready.session.open_chat(summary.id)
    assert (ready.last.content, ready.last.status) == ("half", "stopped")
    assert b"secret" not in ready.path.read_bytes()


def test_listener_that_left_hears_nothing(ready: Bench) -> None:
    heard: list[SessionChange] = []
    leave = ready.session.subscribe(heard.append)
    ready.session.new_chat()
    leave()
    ready.session.new_chat()
    assert heard == [ConversationShown(None)]


def test_text_with_half_a_pair_is_stored_as_it_can_be(bench: Bench) -> None:
    bench.ready()
    assert bench.session.send("half \ud83d of \U0001f600")
    assert bench.texts[0] == "half \ufffd of \U0001f600"
    assert bench.stored(bench.chat.path()[0].id).content == bench.texts[0]
    assert bench.generate().messages[-1].content == bench.texts[0]
    bench.session.rename_chat(bench.chat.id, "\udc00 title")
    assert bench.chat.title == "\ufffd title"
    bench.session.set_chat_settings(ChatSettings(system_prompt="\ud800"))
    assert bench.session.chat_settings.system_prompt == "\ufffd"
    assert [hit.conversation.title for hit in bench.session.search("\udc00 title")] == [
        "\ufffd title"
    ]


def test_send_goes_on_where_another_process_ended_the_chat(ready: Bench) -> None:
    ready.session.send("one")
    ready.session.stop()
    chat = ready.chat
    other = ConversationStore(ready.path, clock=lambda: 200.0)
    asked = other.add_message(chat.id, parent_id=chat.leaf_id, role="user", content="two")
    answered = other.add_message(chat.id, parent_id=asked.id, role="assistant", content="2")
    other.close()
    ready.session.send("three")
    contents = [message.content for message in ready.chat.path()]
    assert contents == ["one", "", "two", "2", "three", ""]
    assert ready.chat.path()[4].parent_id == answered.id


def test_send_in_a_chat_that_nobody_else_touched_reads_it_only_once(ready: Bench) -> None:
    ready.session.send("one")
    before = ready.chat
    ready.changes.clear()
    ready.session.send("two")
    assert not any(isinstance(change, ConversationShown) for change in ready.changes)
    assert ready.chat.path()[0] == before.path()[0]


def test_chat_of_another_process_is_told_once(ready: Bench) -> None:
    other = ConversationStore(ready.path)
    other.add_conversation(Conversation(ConversationId("x"), "Asked", 1.0, 1.0))
    ready.session.notice_others()
    ready.session.notice_others()
    assert ready.changes == [ConversationsChanged()]
    assert [chat.title for chat in ready.session.conversations()] == ["Asked"]
    other.close()


def test_store_that_cannot_be_asked_is_not_complained_of_each_second(
    ready: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> bool:
        raise StorageError("The disk reported an error.", hint="")

    monkeypatch.setattr(ready.store, "was_changed_elsewhere", refuse)
    ready.session.notice_others()
    ready.session.close()
    ready.session.notice_others()
    assert ready.changes == []
    ready.start()


def test_settings_that_cannot_be_saved_are_told_once(
    ready: Bench,
) -> None:
    settings = ready.settings
    settings.path.unlink(missing_ok=True)
    settings.path.mkdir()
    settings.change(theme="dark")
    settings.flush()
    ready.take()
    for _ in range(3):
        ready.session.notice_others()
    told = [change for change in ready.take() if isinstance(change, StorageFailed)]
    assert len(told) == 1
    assert "could not be saved" in told[0].message
    settings.path.rmdir()
    settings.flush()
    ready.session.notice_others()
    assert ready.take() == []
    assert "dark" in settings.path.read_text()
