import contextlib
import errno
import io
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app import asking
from app.asking import answer, peak_rss_bytes
from app.cli import BadInputError, parse_ask_arguments, read_question
from app.errors import ProfileError
from app.paths import Paths
from app.prompting import title_from
from app.settings import SettingsStore
from app.storage import ConversationStore
from inference.config import EngineConfig, SamplingParams
from inference.errors import (
    ChatTemplateError,
    ComputeError,
    ContextOverflowError,
    InvalidRequestError,
)
from inference.request import ChatMessage
from tests.app.asker import Asker
from tests.app.fake_engine import FakeEngine

REPORT_KEYS = [
    "text",
    "finish_reason",
    "prompt_tokens",
    "reused_tokens",
    "reused_from",
    "reuse_stopped",
    "completion_tokens",
    "ttft_ms",
    "prefill_tps",
    "decode_tps",
    "drafted_tokens",
    "accepted_tokens",
    "verify_steps",
    "guess_speedup",
    "load_ms",
    "peak_rss_bytes",
    "model",
    "backend",
    "path",
    "kernels",
    "threads",
]


def test_reply_is_streamed_and_ends_with_a_line_break(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asker.ask("Hello") == 0
    assert capsys.readouterr() == ("Hi you\n", "")
    (engine,) = asker.engines
    assert engine.requests[0].messages == (ChatMessage("user", "Hello"),)
    assert engine.requests[0].params == SamplingParams()
    assert engine.is_closed
    assert not asker.paths.database_file.exists()


def test_json_is_one_object_with_the_agreed_keys(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asker.ask("Hello", "--json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    report = json.loads(out)
    assert list(report) == REPORT_KEYS
    peak = report.pop("peak_rss_bytes")
    assert peak > 1_000_000
    assert report == {
        "text": "Hi you",
        "finish_reason": "stop",
        "prompt_tokens": 32,
        "reused_tokens": 0,
        "reused_from": {"device": 0, "ram": 0, "disk": 0},
        "reuse_stopped": None,
        "completion_tokens": 2,
        "ttft_ms": 100.0,
        "prefill_tps": 320.0,
        "decode_tps": 50.0,
        "drafted_tokens": 0,
        "accepted_tokens": 0,
        "verify_steps": 0,
        "guess_speedup": None,
        "load_ms": 12.0,
        "model": "Fake 1B",
        "backend": "fake (no device)",
        "path": "fast",
        "kernels": "avx2",
        "threads": 3,
    }


def test_json_has_null_for_what_is_unknown(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    asker.script.replies = [""]
    asker.ask("Hello", "--json")
    report = json.loads(capsys.readouterr().out)
    assert (report["ttft_ms"], report["prefill_tps"], report["decode_tps"]) == (None, None, None)


def test_engine_options_of_the_command_line_go_before_the_settings(asker: Asker) -> None:
    asker.paths.prepare()
    settings = SettingsStore(asker.paths.settings_file, delay_s=1000.0)
    settings.change(num_threads=2)
    settings.flush()
    asker.ask("Hello", "--threads", "3", "--backend", "bridge", "--weights", "Q8_0")
    asker.ask("Hello")
    first, second = asker.engines
    used = [(c.num_threads, c.backend, c.weights) for c in (first.config, second.config)]
    assert used == [(3, "bridge", "Q8_0"), (2, "auto", "auto")]


def test_more_threads_than_compute_are_told(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    for wanted in ("3", "4", "999"):  # the model of this test computes with 3
        asker.ask("Hello", "--threads", wanted)
        told = f"--threads {wanted} is more than this computer can run at a time: 3 compute"
        assert (told in capsys.readouterr().err) == (int(wanted) > 3)


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("--threads", "0", "must be a whole number from 1 to 1,024, not 0"),
        ("--threads", "2000", "must be a whole number from 1 to 1,024, not 2000"),
        ("--max-tokens", "0", "must be a whole number from 1 to"),
        ("--temperature", "-1", "must be a number from 0 to 100, not -1.0"),
        ("--seed", "-1", "must be a whole number from 0 to"),
    ],
)
def test_value_out_of_range_is_refused_with_the_name_of_its_option(
    asker: Asker, option: str, value: str, reason: str
) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        asker.ask("Hello", option, value)
    assert str(raised.value).startswith(f"{option}: {reason}")
    assert asker.engines == []


def test_kernels_that_are_missing_are_told_with_what_helps(
    asker: Asker, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.asking.why_no_kernels", lambda: "they are gone: install them")
    asker.script.kernels = "compatibility kernels"
    assert asker.ask("Hello", "--json") == 0
    told = "quire: compatibility kernels, so replies take longer: they are gone: install them\n"
    assert capsys.readouterr().err == told
    asker.ask("Hello", "--backend", "torch")  # as it was asked for
    asker.script.kernels = "avx2"
    asker.ask("Hello")
    assert capsys.readouterr().err == ""


def test_options_reach_the_engine(asker: Asker) -> None:
    SettingsStore(asker.paths.settings_file)
    asker.paths.prepare()
    settings = SettingsStore(asker.paths.settings_file, delay_s=1000.0)
    settings.change(
        sampling=SamplingParams(top_k=7), system_prompt="General.", context_tokens=99, num_threads=2
    )
    settings.flush()
    asker.ask("Hello", "--max-tokens", "1", "--temperature", "0", "--seed", "5")
    asker.ask("Hello", "--system", "Own.")
    first, second = asker.engines
    assert first.config == EngineConfig(context_tokens=99, num_threads=2)
    assert first.requests[0].params == SamplingParams(
        temperature=0.0, top_k=7, seed=5, max_tokens=1
    )
    assert first.requests[0].messages is not None
    assert first.requests[0].messages[0] == ChatMessage("system", "General.")
    assert second.requests[0].messages is not None
    assert second.requests[0].messages[0] == ChatMessage("system", "Own.")


def test_conversation_is_made_and_continued(asker: Asker) -> None:
    assert asker.ask("One", "--conversation", "Été 中", "--system", "Be brief.") == 0
    assert asker.ask("Two", "--conversation", "Été 中") == 0
    assert asker.ask("Three", "--conversation", "Été 中", "--system", "Be long.") == 0
    chat = asker.chat("Été 中")
    assert [(message.role, message.content, message.status) for message in chat.path()] == [
        ("user", "One", "complete"),
        ("assistant", "Hi you", "complete"),
        ("user", "Two", "complete"),
        ("assistant", "Hi you", "complete"),
        ("user", "Three", "complete"),
        ("assistant", "Hi you", "complete"),
    ]
    reply = chat.path()[1]
    assert reply.token_ids == (100, 101)
    assert reply.model_key == asker.engines[0].info.fingerprint
    assert reply.metrics is not None
    assert reply.metrics.completion_tokens == 2
    assert asker.engines[1].requests[0].messages == (
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "One"),
        ChatMessage("assistant", "Hi you", (100, 101)),
        ChatMessage("user", "Two"),
    )
    assert asker.engines[2].requests[0].messages is not None
    assert asker.engines[2].requests[0].messages[0] == ChatMessage("system", "Be long.")


def test_name_of_a_conversation_is_one_line_as_in_the_list(asker: Asker) -> None:
    asker.ask("One", "--conversation", " a\nb\t c\u2028d ")
    asker.ask("Two", "--conversation", "a b c d")
    assert len(asker.chat("a b c d").messages) == 4


def test_chat_of_the_window_is_found_by_its_whole_first_message(asker: Asker) -> None:
    question = "What should I think about before I take a dog into my home and my heart?"
    cut = title_from(question)
    assert cut.endswith("…")
    asker.ask("x", "--conversation", cut)
    asker.ask("x", "--conversation", question)
    assert len(asker.replies(cut)) == 2
    asker.ask("x", "--conversation", question[:-1] + " and all?")  # cut alike, so the same chat
    assert len(asker.replies(cut)) == 3


TURNED = [f"a{chr(code)}b" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))]


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("a\u200eb", "a\u200eb"),
        ("ab", "a\u200eb"),
        ("x" * 40 + "…", "\u200f" + "x" * 60),
    ],
)
def test_chat_is_found_by_a_name_with_signs_that_nobody_sees(
    asker: Asker, title: str, name: str
) -> None:
    asker.ask("One", "--conversation", "c")
    store = ConversationStore(asker.paths.database_file)
    store.rename(asker.chat("c").id, title)
    store.close()
    asker.ask("Two", "--conversation", name)
    assert len(asker.replies(title)) == 2


@pytest.mark.parametrize("name", ["", " \n", "\u200b", "a\x01b", "\x1b[31mred", "x" * 201, *TURNED])
def test_conversation_whose_name_no_list_can_show_is_refused_and_not_kept(
    asker: Asker, name: str
) -> None:
    with pytest.raises(BadInputError, match="--conversation: the name "):
        asker.ask("One two", "--conversation", name)
    assert not asker.paths.database_file.exists()


TOO_LONG = "long " * 600  # for a moment it may not fit, so it is measured


def test_question_that_does_not_fit_is_refused_and_not_kept(asker: Asker) -> None:
    asker.script.prefill_tokens = 9000
    with pytest.raises(ContextOverflowError, match="9,000 tokens"):
        asker.ask(TOO_LONG, "--conversation", "c", "--system", "S")
    assert stored(asker) == ([], [])


def test_question_that_does_not_fit_leaves_its_chat_as_it_was(asker: Asker) -> None:
    asker.ask("One", "--conversation", "c")
    before = stored(asker)
    asker.script.prefill_tokens = 2048
    with pytest.raises(ContextOverflowError, match="2,048 tokens"):
        asker.ask(TOO_LONG, "--conversation", "c", "--system", "S")
    assert stored(asker) == before
    asker.script.prefill_tokens = 2047
    assert asker.ask(TOO_LONG, "--conversation", "c") == 0
    assert [message.content for message in asker.chat("c").path()] == [
        "One",
        "Hi you",
        TOO_LONG,
        "Hi you",
    ]


def test_question_that_does_not_fit_after_what_another_process_said_is_not_kept(
    asker: Asker,
) -> None:
    asker.ask("One", "--conversation", "c")
    asker.script.message_tokens, asker.script.context_tokens = 30, 100
    seen: list[object] = []

    def go_on() -> None:
        asker.ask("Between", "--conversation", "c")
        seen.append(stored(asker))

    asker.during_load(go_on)
    with pytest.raises(ContextOverflowError, match="150 tokens"):
        asker.ask("Two", "--conversation", "c")
    assert [stored(asker)] == seen


def test_question_that_is_refused_for_another_reason_than_its_length_is_kept(asker: Asker) -> None:
    refusal = ChatTemplateError("The template is broken.")
    asker.script.measure_error = asker.script.request_error = refusal
    with pytest.raises(ChatTemplateError):
        asker.ask(TOO_LONG, "--conversation", "c")
    (reply,) = asker.replies("c")
    assert (reply.status, reply.error) == ("error", "The template is broken.")


def stored(asker: Asker) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    with contextlib.closing(sqlite3.connect(asker.paths.database_file)) as connection:
        chats, messages = (
            connection.execute(f"SELECT * FROM {table}").fetchall()
            for table in ("conversations", "messages")
        )
    return chats, messages


def test_reply_that_fails_keeps_its_text(asker: Asker) -> None:
    asker.script.error_after_tokens = 1
    asker.script.reply_error = ComputeError("Lost.")
    with pytest.raises(ComputeError):
        asker.ask("x", "--conversation", "c")
    (reply,) = asker.replies("c")
    assert (reply.content, reply.status, reply.error) == ("Hi", "error", "Lost.")


def test_interrupt_keeps_the_partial_reply(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    asker.before_step(2, interrupt)
    assert asker.ask("x", "--conversation", "c") == 130
    assert capsys.readouterr() == ("Hi", "")
    (reply,) = asker.replies("c")
    assert (reply.content, reply.status) == ("Hi", "stopped")
    asker.before_step(2, interrupt)
    assert asker.ask("x", "--json") == 130
    report = json.loads(capsys.readouterr().out)
    assert (report["text"], report["finish_reason"]) == ("Hi", "aborted")
    assert all(engine.is_closed for engine in asker.engines)


class GonePipe(io.StringIO):
    def flush(self) -> None:
        raise BrokenPipeError

    def fileno(self) -> int:
        raise ValueError("no file")


def test_reader_that_left_ends_it_quietly(asker: Asker, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.redirect_stdout(GonePipe()):
        assert asker.ask("x", "--conversation", "c") == 141
        assert asker.ask("x", "--json") == 141
    assert capsys.readouterr().err == ""
    (reply,) = asker.replies("c")
    assert (reply.content, reply.status) == ("Hi", "stopped")


def test_reader_that_leaves_after_the_last_word_has_the_whole_reply_kept(asker: Asker) -> None:
    class GoneAtTheEnd(GonePipe):
        def flush(self) -> None:
            if self.getvalue().endswith("\n"):
                raise BrokenPipeError

    with contextlib.redirect_stdout(GoneAtTheEnd()):
        assert asker.ask("x", "--conversation", "c") == 141
    (reply,) = asker.replies("c")
    assert (reply.content, reply.status) == ("Hi you", "complete")


@pytest.mark.parametrize("options", [["--conversation", "c"], ["--json"]])
def test_output_that_cannot_be_written_is_told_and_the_reply_kept(
    asker: Asker, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    class FullDisk(GonePipe):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with contextlib.redirect_stdout(FullDisk()):
        assert asker.ask("x", *options) == 1
    assert capsys.readouterr().err == (
        "quire: the reply could not be written to standard output: No space left on device. "
        "Free some space there.\n"
    )
    if "--json" not in options:
        (reply,) = asker.replies("c")
        assert (reply.content, reply.status) == ("Hi", "stopped")


def test_reply_is_saved_with_its_ids_at_once_and_then_each_second(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker.script.replies = ["one two three four"]
    times = iter([100.0, 100.5, 101.4, 101.5, 102.0])
    seen: list[tuple[str, str, tuple[int, ...] | None, str | None]] = []

    def look() -> None:
        now = next(times)
        monkeypatch.setattr("app.asked_reply.time.time", lambda: now)
        (reply,) = asker.replies("c")
        seen.append((reply.content, reply.status, reply.token_ids, reply.model_key))

    asker.script.before_step = look
    asker.ask("x", "--conversation", "c")
    assert seen == [
        ("", "streaming", None, None),
        ("one", "streaming", (100,), "fa4e"),
        ("one", "streaming", (100,), "fa4e"),
        ("one", "streaming", (100,), "fa4e"),
        ("one two three four", "streaming", (100, 101, 102, 103), "fa4e"),
    ]


def test_chat_goes_on_after_a_reply_that_was_killed(asker: Asker) -> None:
    asker.script.replies = ["one two three"]

    def be_killed() -> None:
        raise ZeroDivisionError  # ends the call without a word to the store

    asker.before_step(2, be_killed)
    with pytest.raises(ZeroDivisionError):
        asker.ask("x", "--conversation", "c")
    (reply,) = asker.replies("c")
    assert (reply.content, reply.status) == ("one", "streaming")
    asker.script.before_step = None
    asker.ask("y", "--conversation", "c")
    assert asker.engines[1].requests[0].messages == (
        ChatMessage("user", "x"),
        ChatMessage("assistant", "one", (100,)),
        ChatMessage("user", "y"),
    )
    assert [reply.status for reply in asker.replies("c")] == ["stopped", "complete"]


SIGNALS = [
    (getattr(signal, name), code)
    for name, code in (("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129))
    if hasattr(signal, name)  # Windows lacks the last one
]


@pytest.fixture
def _not_ignored() -> Iterator[None]:
    """Signals that these tests may be told to ignore: by nohup, or in the background of a script."""
    before = {number: signal.getsignal(number) for number, _ in SIGNALS}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_not_ignored")
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_signal_breaks_off_after_the_step_and_keeps_what_was_read(
    asker: Asker,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
    code: int,
) -> None:
    handlers = [signal.getsignal(each) for each, _ in SIGNALS]
    asker.script.prefill_steps = 3
    asker.before_step(2, lambda: signal.raise_signal(number))
    assert asker.ask("x", "--conversation", "c") == code
    assert capsys.readouterr() == ("", "")
    (engine,) = asker.engines
    assert engine.aborted == [1]
    assert engine.is_closed
    assert [(r.content, r.status) for r in asker.replies("c")] == [("", "stopped")]
    asker.script.prefill_steps = 1
    asker.before_step(2, lambda: signal.raise_signal(number))
    assert asker.ask("x", "--conversation", "c", "--json") == code
    report = json.loads(capsys.readouterr().out)
    assert (report["text"], report["finish_reason"]) == ("Hi you", "aborted")
    reply = asker.replies("c")[-1]
    assert (reply.content, reply.status, reply.token_ids) == ("Hi you", "stopped", (100, 101))
    assert handlers == [signal.getsignal(each) for each, _ in SIGNALS]


@pytest.mark.usefixtures("_not_ignored")
@pytest.mark.parametrize("options", [["--conversation", "c"], ["--json"]])
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="the system has no such signal")
def test_terminal_that_is_closed_takes_no_output_either_and_that_is_not_told(
    asker: Asker, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    class ClosedTerminal(GonePipe):
        def flush(self) -> None:
            raise OSError(errno.EIO, "Input/output error")

    asker.before_step(1, lambda: signal.raise_signal(signal.SIGHUP))
    with contextlib.redirect_stdout(ClosedTerminal()):
        assert asker.ask("x", *options) == 129
    if "--json" not in options:
        assert capsys.readouterr().err == ""
        (reply,) = asker.replies("c")
        assert (reply.content, reply.status) == ("Hi", "stopped")


def test_second_interrupt_waits_for_nothing(asker: Asker) -> None:
    def interrupt_twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    asker.before_step(2, interrupt_twice)
    assert asker.ask("x", "--conversation", "c") == 130
    (engine,) = asker.engines
    assert (engine.aborted, engine.is_closed) == ([], True)
    (reply,) = asker.replies("c")
    assert (reply.content, reply.status, reply.token_ids) == ("Hi", "stopped", (100,))


@pytest.mark.parametrize("number", [number for number, _ in SIGNALS])
def test_signal_that_the_program_is_to_ignore_is_ignored(
    asker: Asker, number: signal.Signals
) -> None:
    before = signal.signal(number, signal.SIG_IGN)  # as in the background of a script, or by nohup
    try:
        asker.before_step(1, lambda: signal.raise_signal(number))
        assert asker.ask("x") == 0
    finally:
        signal.signal(number, before)


def test_output_in_an_old_encoding_replaces_what_it_lacks(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    asker.script.replies = ["Héllo 中"]
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    assert asker.ask("x") == 0
    assert raw.getvalue() == b"H\xe9llo ?\n"
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="latin-1"))
    assert asker.ask("x", "--json") == 0
    assert json.loads(raw.getvalue())["text"] == "Héllo 中"


def test_model_without_a_template_continues_the_text_and_says_so(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    asker.script.has_chat_template = False
    assert asker.ask("Once upon") == 0
    assert asker.engines[0].requests[0].plain_text
    out, err = capsys.readouterr()
    assert out == "Hi you\n"
    assert err == "quire: Fake 1B has no chat template that Quire can use; it continues the text.\n"


def test_bad_sampling_is_refused_before_the_model_is_opened(asker: Asker) -> None:
    for arguments in (["--temperature", "nan"], ["--max-tokens", "0"], ["--seed", "-1"]):
        with pytest.raises(InvalidRequestError, match=arguments[0]):
            asker.ask("x", *arguments)
    assert asker.engines == []


@pytest.mark.parametrize(
    ("weights", "is_kept"), [("Q8_0", True), ("Q4_1", True), ("auto", False), ("float", False)]
)
def test_question_without_a_chat_keeps_rounded_weights_and_nothing_else(
    asker: Asker, weights: str, is_kept: bool
) -> None:
    assert asker.ask("Hello", "--weights", weights) == 0
    (engine,) = asker.engines
    assert engine.config.cache_dir == (str(asker.paths.kv_dir) if is_kept else None)
    assert asker.paths.cache_dir.is_dir() is is_kept
    assert not engine.requests[0].keep_on_disk


def make_unusable(tmp_path: Path) -> Path:
    """A profile folder that cannot be made: a file stands in its way."""
    (tmp_path / "file").write_text("", "utf-8")
    return tmp_path / "file" / "profile"


def test_profile_that_cannot_be_written_is_refused_where_it_matters(tmp_path: Path) -> None:
    asker = Asker(make_unusable(tmp_path))
    for arguments in (["--profile", "x"], ["--conversation", "c"]):
        with pytest.raises(ProfileError):
            asker.ask("x", *arguments)


def test_bare_question_needs_no_profile(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [*logging.getLogger().handlers])
    assert Asker(make_unusable(tmp_path)).ask("x") == 0
    assert capsys.readouterr().out == "Hi you\n"


def test_missing_model_of_the_settings_is_told_and_none_at_all_refused(
    asker: Asker,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    starter = tmp_path / "starter.gguf"
    starter.write_bytes(b"")
    asker.paths.prepare()
    settings = SettingsStore(asker.paths.settings_file, delay_s=1000.0)
    settings.change(model_path="/gone/big.gguf")
    settings.flush()
    options = parse_ask_arguments(["x"])
    monkeypatch.setattr("app.asking.find_starter_model", lambda: starter)
    assert answer(options, "x", asker.paths, opener=asker.open) == 0
    assert asker.engines[0].info.path == str(starter)
    err = capsys.readouterr().err
    assert err.startswith("quire: The model big.gguf is not where it was.")
    monkeypatch.setattr("app.asking.find_starter_model", lambda: None)
    with pytest.raises(BadInputError, match=r"big\.gguf is not where it was"):
        answer(options, "x", asker.paths, opener=asker.open)
    with pytest.raises(BadInputError, match="no model is installed"):
        answer(options, "x", Paths(tmp_path / "other"), opener=asker.open)


def test_question_is_answered_without_a_log(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    asker.paths.log_file.mkdir(parents=True)
    assert asker.ask("x", "--conversation", "c") == 0
    said = capsys.readouterr()
    assert said.out == "Hi you\n"
    assert said.err.startswith("quire: the log cannot be written. ")
    assert said.err.count("\n") == 1


def test_log_holds_nothing_of_what_was_said(asker: Asker) -> None:
    asker.script.replies = ["zyzzyva answer"]
    asker.ask("quixotic question", "--conversation", "jabberwocky", "--system", "flibbertigibbet")
    log = asker.paths.log_file.read_text("utf-8")
    for word in ("zyzzyva", "quixotic", "jabberwocky", "flibbertigibbet"):
        assert word not in log


def test_peak_memory_is_that_of_this_process() -> None:
    assert 5_000_000 < peak_rss_bytes() < 200_000_000_000


@pytest.mark.parametrize(
    ("data", "question"),
    [(b"Hi\nyou\n", "Hi\nyou\n"), (b"\xef\xbb\xbfHi", "Hi"), ("中".encode(), "中")],
)
def test_question_of_standard_input_is_read_as_utf8(
    monkeypatch: pytest.MonkeyPatch, data: bytes, question: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
    assert read_question("-") == question


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"", "empty"),
        (b" \n", "empty"),
        (b"\0\0\0", "empty"),
        (None, "not UTF-8"),
    ],
)
def test_question_that_is_no_text_is_refused(
    monkeypatch: pytest.MonkeyPatch, data: bytes | None, message: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data or b"")))
    with pytest.raises(BadInputError, match=message):
        read_question("\udcff" if data is None else "-")


def test_question_beyond_all_models_is_refused_before_it_is_read_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.cli.MAX_QUESTION_BYTES", 3_000_000)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a" * 3_000_000)))
    assert len(read_question("-")) == 3_000_000
    data = io.BytesIO(b"a" * 9_000_000)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(data))
    with pytest.raises(BadInputError, match="more than 3 MB"):
        read_question("-")
    assert data.tell() < 4_000_000


def test_bug_is_written_to_the_log_of_the_profile(asker: Asker) -> None:
    def break_down(path: str, config: EngineConfig) -> FakeEngine:
        raise ZeroDivisionError

    asker.open = break_down  # type: ignore[method-assign]  # the seam
    with pytest.raises(ZeroDivisionError):
        asker.ask("x")
    log = asker.paths.log_file.read_text("utf-8")
    assert "Quire ended with an error" in log
    assert "ZeroDivisionError" in log


def test_refusal_is_no_bug_in_the_log(asker: Asker) -> None:
    with pytest.raises(InvalidRequestError):
        asker.ask("x", "--seed", "-1")
    assert "Quire ended" not in asker.paths.log_file.read_text("utf-8")


@pytest.mark.parametrize(("is_terminal", "shown"), [(True, "a\ufffd[2Jb\n\tc"), (False, None)])
def test_reply_gives_a_terminal_no_orders_and_a_pipe_every_character(
    asker: Asker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    is_terminal: bool,
    shown: str | None,
) -> None:
    asker.script.replies = ["a\x1b[2Jb\n\tc"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    assert asker.ask("x") == 0
    assert capsys.readouterr().out == (shown or "a\x1b[2Jb\n\tc") + "\n"


@pytest.mark.parametrize(
    ("weights", "quantization", "is_told"),
    [
        ("Q8_0", "Q4_1", True),
        ("Q4_1", "Q4_1", True),
        ("Q8_0", "Q8_0 of BF16", False),
        ("auto", "Q4_1", False),
        ("float", "Q4_1", False),
    ],
)
def test_weights_that_are_no_floats_are_said_to_stay_as_they_are(
    asker: Asker,
    capsys: pytest.CaptureFixture[str],
    weights: str,
    quantization: str,
    is_told: bool,
) -> None:
    asker.script.quantization = quantization
    assert asker.ask("Hello", "--weights", weights) == 0
    told = (
        f"quire: --weights {weights} changes nothing: it rounds weights that are floats, and those of"
        " Fake 1B are Q4_1 already\n"
    )
    assert capsys.readouterr().err == (told if is_told else "")


def test_weights_that_were_converted_are_told(
    asker: Asker, capsys: pytest.CaptureFixture[str]
) -> None:
    asker.script.converted = "IQ3_S weights kept as Q4_K"
    assert asker.ask("Hello") == 0
    told = "there are no kernels for all weights of Fake 1B: IQ3_S weights kept as Q4_K"
    assert capsys.readouterr().err == f"quire: {told}\n"


# `ask` where an import waits for long, and catches what is raised in it as libraries do.
WAITING_IMPORT = """
import sys, time
from app.__main__ import main

class Waiting:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            print("importing", flush=True)
            try:
                time.sleep(600)
            except BaseException:
                pass

sys.meta_path.insert(0, Waiting())
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.usefixtures("_not_ignored")
@pytest.mark.skipif(os.name != "posix", reason="Windows sends no signals to others")
@pytest.mark.parametrize(("number", "code"), SIGNALS)
def test_signal_while_the_engine_is_imported_ends_ask_at_once_and_harms_no_chat(
    asker: Asker, number: signal.Signals, code: int
) -> None:
    asker.ask("One", "--conversation", "c")
    model = asker.paths.data_dir / "a.gguf"
    model.touch()
    profile = str(asker.paths.data_dir)
    options = ["--conversation", "c", "--model", str(model), "--profile", profile]
    with subprocess.Popen(
        [sys.executable, "-c", WAITING_IMPORT, "ask", "Two", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        try:
            assert process.communicate(timeout=60) == (
                "",
                "",
            )  # ten times less than the import takes
        finally:
            process.kill()
    assert process.returncode == code
    assert [message.content for message in asker.chat("c").path()] == ["One", "Hi you"]
    asker.ask("Three", "--conversation", "c")
    assert len(asker.replies("c")) == 2


@pytest.mark.usefixtures("_not_ignored")
@pytest.mark.parametrize("number", [number for number, _ in SIGNALS])
def test_signals_are_as_before_once_the_engine_is_imported(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    during: list[object] = []

    class Loaded:
        @staticmethod
        def load(*arguments: object, **options: object) -> None:
            during.append(signal.getsignal(number))

    def imported() -> type[Loaded]:
        during.append(signal.getsignal(number))
        return Loaded

    monkeypatch.setattr(asking, "import_engine", imported)
    handler = signal.getsignal(number)
    asking.open_engine("model.gguf", EngineConfig())
    assert during[0] is not handler
    before = signal.signal(number, signal.SIG_IGN)  # as in the background of a script, or by nohup
    try:
        asking.open_engine("model.gguf", EngineConfig())
    finally:
        signal.signal(number, before)
    assert during[1:] == [handler, signal.SIG_IGN, signal.SIG_IGN]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "The file is not JSON; all settings have their defaults."),
        (b"\xff\x00", "The file is not JSON; all settings have their defaults."),
        (b"[]", "The file holds no settings; all have their defaults."),
        (
            b'{"theme": "pink"}',
            "theme: must be system, light, dark or contrast, not 'pink'. The default is used.",
        ),
        (
            b'{"num_threads": 0, "guess_ahead": 3, "x": 1}',
            "num_threads: must be a whole number from 1 to 1,024, not 0. The default is used."
            " The log names 2 more.",
        ),
        (
            b'{"' + b"x" * 300 + b'": 1}',
            "x" * 60 + ": there is no such setting; left out.",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_told_in_one_line(
    asker: Asker, capsys: pytest.CaptureFixture[str], content: bytes, words: str
) -> None:
    asker.paths.prepare()
    asker.paths.settings_file.write_bytes(content)
    assert asker.ask("x") == 0
    assert capsys.readouterr() == (
        "Hi you\n",
        f"quire: Not all settings in {asker.paths.settings_file} are used. {words}"
        " The file as it was is kept as settings.json.bak. Mend the file, or delete it.\n",
    )
    assert asker.paths.settings_file.with_name("settings.json.bak").read_bytes() == content


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("folder", "Is a directory"),
        ("pipe", "it is a named pipe, not a file"),
        ("loop", "Too many levels of symbolic links"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the system words it in another way")
def test_what_stands_in_the_place_of_the_settings_is_told(
    asker: Asker, capsys: pytest.CaptureFixture[str], kind: str, reason: str
) -> None:
    asker.paths.prepare()
    file = asker.paths.settings_file
    make: dict[str, Callable[[], object]] = {
        "folder": file.mkdir,
        "pipe": lambda: os.mkfifo(file),
        "loop": lambda: file.symlink_to(file),
    }
    make[kind]()
    assert asker.ask("x") == 0
    assert capsys.readouterr().err == (
        f"quire: Not all settings in {file} are used. The settings could not be read: {reason};"
        " all have their defaults. Mend the file, or delete it.\n"
    )
