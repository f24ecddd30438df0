"""What `ask` keeps of what the model has read, and what it leaves out of a full chat."""

import json
from dataclasses import replace

import pytest

from app.conversation import OnFull
from app.settings import SettingsStore
from app.storage import ConversationStore
from inference.errors import ContextOverflowError, InvalidRequestError
from inference.metrics import RequestMetrics
from inference.request import PromptPart
from tests.app.asker import Asker
from tests.app.fake_engine import FakeEngine

MODEL = "/m/a.gguf"
PART = PromptPart((1, 2, 3), b"d" * 16)


def choose(asker: Asker, choice: OnFull) -> None:
    """As a person would in the window."""
    store = ConversationStore(asker.paths.database_file)
    chat = store.load(store.conversations()[0].id)
    assert chat is not None
    store.set_settings(chat.id, replace(chat.settings, on_full=choice))
    store.close()


def set_scheme(asker: Asker, name: str) -> None:
    asker.paths.prepare()
    settings = SettingsStore(asker.paths.settings_file, delay_s=1000.0)
    settings.change(kv_schemes=((MODEL, name),), ram_cache_bytes=2**30)
    settings.flush()


def contents(engine: FakeEngine) -> list[str]:
    (request,) = engine.requests
    assert request.messages is not None
    return [message.content for message in request.messages]


# ---------------------------------------------------------------- tiers


def test_report_says_where_reused_tokens_were(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = RequestMetrics(
        prompt_tokens=100,
        reused_tokens=90,
        reused_ram_tokens=20,
        reused_disk_tokens=60,
        reuse_stop="template",
    )
    monkeypatch.setattr(FakeEngine, "_metrics", lambda engine, running: metrics)
    asker.ask("x", "--json")
    report = json.loads(capsys.readouterr().out)
    assert report["reused_tokens"] == 90
    assert report["reused_from"] == {"device": 10, "ram": 20, "disk": 60}
    assert report["reuse_stopped"] == "template"


def test_chat_keeps_on_disk_what_was_read(asker: Asker) -> None:
    asker.ask("x", "--conversation", "c")
    (engine,) = asker.engines
    assert engine.config.cache_dir == str(asker.paths.kv_dir)
    assert engine.requests[0].keep_on_disk
    assert engine.requests[0].conversation_id == asker.chat("c").id


def test_question_without_a_chat_keeps_nothing_but_may_read(asker: Asker) -> None:
    asker.ask("x")
    assert asker.engines[0].config.cache_dir is None
    assert not asker.paths.kv_dir.exists()
    asker.paths.kv_dir.mkdir(parents=True)
    asker.ask("x")
    assert asker.engines[1].config.cache_dir == str(asker.paths.kv_dir)
    assert [engine.requests[0].keep_on_disk for engine in asker.engines] == [False, False]


def test_file_in_place_of_the_folder_is_no_reason_to_fail(asker: Asker) -> None:
    asker.paths.prepare()
    asker.paths.cache_dir.write_text("in the way")
    assert asker.ask("x") == 0
    assert asker.ask("x", "--conversation", "c") == 0


# ---------------------------------------------------------------- schemes


def test_scheme_of_the_command_line_goes_before_the_set_one(asker: Asker) -> None:
    set_scheme(asker, "int8")
    asker.ask("x")
    asker.ask("x", "--kv", "fp16")
    asker.ask("x", "--kv", "int4")
    configs = [engine.config for engine in asker.engines]
    assert [config.kv_scheme for config in configs] == ["int8", "fp16", "int4"]
    assert [config.ram_cache_bytes for config in configs] == [2**30] * 3


def test_scheme_that_was_asked_for_and_is_refused_is_an_error(asker: Asker) -> None:
    asker.script.refused_scheme = "int4"
    with pytest.raises(InvalidRequestError, match="int4 would make this model worse"):
        asker.ask("x", "--kv", "int4", "--conversation", "c")
    store = ConversationStore(asker.paths.database_file)
    assert store.conversations() == []
    store.close()


def test_scheme_that_was_set_and_is_refused_gives_way(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    set_scheme(asker, "int4")
    asker.script.refused_scheme = "int4"
    assert asker.ask("x") == 0
    assert asker.engines[0].config.kv_scheme == "auto"
    assert capsys.readouterr() == ("Hi you\n", "quire: int4 would make this model worse.\n")


def test_model_that_is_refused_for_another_reason_is_an_error(asker: Asker) -> None:
    set_scheme(asker, "int4")
    asker.script.load_error = InvalidRequestError("context_tokens", "is too small.")
    with pytest.raises(InvalidRequestError, match="is too small"):
        asker.ask("x")
    assert asker.engines == []


# ---------------------------------------------------------------- ids of the prompt


def test_ids_of_the_prompt_are_kept_with_the_question_and_used_again(asker: Asker) -> None:
    asker.script.prompt_parts = ((0, PART),)
    asker.ask("one", "--conversation", "c")
    question = asker.chat("c").path()[0]
    assert (question.part, question.model_key) == (PART, "fa4e")
    asker.ask("two", "--conversation", "c")
    messages = asker.engines[1].requests[0].messages
    assert messages is not None
    assert [message.part for message in messages] == [PART, None, None]


def test_ids_of_a_prompt_without_a_chat_are_not_kept(asker: Asker) -> None:
    asker.script.prompt_parts = ((0, PART),)
    assert asker.ask("one") == 0
    assert not asker.paths.database_file.exists()


# ---------------------------------------------------------------- a full chat


@pytest.mark.parametrize("choice", ["ask", "stop", "new_chat"])
def test_full_chat_is_refused(asker: Asker, choice: OnFull) -> None:
    asker.ask("one", "--conversation", "c")
    choose(asker, choice)
    asker.script.message_tokens, asker.script.context_tokens = 50, 100
    with pytest.raises(ContextOverflowError, match="150 tokens"):
        asker.ask("two", "--conversation", "c")


def test_full_chat_leaves_out_its_oldest_turns_if_chosen(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    asker.ask("one", "--conversation", "c", "--system", "S")
    choose(asker, "leave_out")
    asker.ask("two", "--conversation", "c")
    capsys.readouterr()
    asker.script.message_tokens, asker.script.context_tokens = 20, 134
    asker.script.prompt_parts = ((3, PART),)
    assert asker.ask("three", "--conversation", "c") == 0
    assert contents(asker.engines[2]) == ["S", "two", "Hi you", "three"]
    assert asker.engines[2].requests[0].has_left_out
    out, err = capsys.readouterr()
    assert out == "Hi you\n"
    assert err == "quire: the chat is full; messages left out, oldest first: 2.\n"
    path = asker.chat("c").path()
    assert [message.left_out for message in path] == [0, 0, 0, 0, 0, 2]
    assert [message.part for message in path] == [None, None, None, None, PART, None]


def test_next_question_leaves_out_what_the_last_one_did(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    asker.ask("one", "--conversation", "c")
    choose(asker, "leave_out")
    asker.script.message_tokens, asker.script.context_tokens = 20, 60
    asker.ask("two", "--conversation", "c")
    assert contents(asker.engines[1]) == ["two"]
    asker.script.context_tokens = 200
    capsys.readouterr()
    asker.ask("three", "--conversation", "c")
    assert contents(asker.engines[2]) == ["two", "Hi you", "three"]
    assert "oldest first: 2." in capsys.readouterr().err
    assert asker.replies("c")[-1].left_out == 2
    asker.script.context_tokens = 1000  # as of another model
    asker.ask("four", "--conversation", "c")
    assert contents(asker.engines[3])[0] == "one"
    assert capsys.readouterr().err == ""


def test_question_that_is_too_long_alone_is_refused(asker: Asker) -> None:
    asker.ask("one", "--conversation", "c")
    choose(asker, "leave_out")
    asker.script.message_tokens, asker.script.context_tokens = 100, 100
    with pytest.raises(ContextOverflowError, match="100 tokens"):
        asker.ask("two", "--conversation", "c")
    assert [message.content for message in asker.chat("c").path()] == ["one", "Hi you"]


# ---------------------------------------------------------------- the end


def test_slow_disk_gets_its_time_and_is_told_if_that_was_not_enough(
    asker: Asker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    waits: list[float] = []

    def flush(engine: FakeEngine, timeout_s: float) -> bool:
        waits.append(timeout_s)
        return len(waits) > 1

    monkeypatch.setattr(FakeEngine, "flush", flush)
    assert asker.ask("Hi", "--conversation", "c") == 0
    assert "the disk is slow" in capsys.readouterr().err
    assert asker.ask("Hi", "--conversation", "c") == 0
    assert capsys.readouterr().err == ""
    assert waits == [60.0, 60.0]


@pytest.mark.parametrize("is_flushed", [True, False])
def test_problem_of_the_disk_is_told_once_and_logged(
    asker: Asker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_flushed: bool,
) -> None:
    monkeypatch.setattr(FakeEngine, "flush", lambda engine, timeout_s: is_flushed)
    asker.script.disk_problem = "The disk is full, so chats are not kept beyond memory."
    assert asker.ask("Hi", "--conversation", "c") == 0
    told = capsys.readouterr()
    assert told.out == "Hi you\n"
    assert told.err == "quire: The disk is full, so chats are not kept beyond memory.\n"
    (line,) = [
        line for line in asker.paths.log_file.read_text("utf-8").splitlines() if " WARNING " in line
    ]
    assert line.endswith(
        "app.asking: Blocks are not kept on disk: "
        "The disk is full, so chats are not kept beyond memory."
    )


def test_problem_of_the_disk_is_no_matter_without_a_chat(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    asker.script.disk_problem = "The disk is full, so chats are not kept beyond memory."
    assert asker.ask("Hi") == 0
    assert capsys.readouterr().err == ""
