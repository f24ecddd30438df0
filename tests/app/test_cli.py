import errno
import io
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.__main__ import main
from app.cli import ask, complain, exit_code_of, parse_window_arguments
from app.errors import ProfileError, StorageError
from app.logs import end_log
from app.paths import Paths
from inference.errors import (
    ChatTemplateError,
    ComputeError,
    ContextOverflowError,
    ModelFileError,
    NotEnoughMemoryError,
)

ROOT = Path(__file__).parents[2]


def quire(*arguments: str, stdin: bytes = b"", **variables: str) -> tuple[int, str, str]:
    """Run `python -m app` in its own process."""
    done = subprocess.run(
        [sys.executable, "-m", "app", *arguments],
        capture_output=True,
        input=stdin,
        cwd=ROOT,
        env={**os.environ, **variables},
        timeout=300,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["ask"], "question"),
        (["ask", ""], "the question is empty. Write it in quotes after `ask`, or write - there"),
        (["ask", "  "], "the question is empty"),
        (["ask", "\u200b\u2060"], "the question is empty"),
        (["ask", "-"], "the question is empty"),
        (
            ["ask", "x", "--bogus"],
            "unrecognized arguments: --bogus (python3 run.py ask --help lists the options)",
        ),
        (["ask", "x", "y"], "y"),
        (["ask", "x", "--temp", "1"], "--temp"),
        (["ask", "x", "--profile", ""], "argument --profile: the path is empty"),
        (["--profile", " "], "argument --profile: the path is empty"),
        (["--model", ""], "argument --model: the path is empty"),
        (
            ["ask", "x", "--conversation", ""],
            "argument --conversation: the name is empty. Give the title",
        ),
        (["ask", "x", "--conversation", "  "], "argument --conversation: the name is empty"),
        (["ask", "x", "--conversation", "\u200b \u200b"], "the name is empty"),
        (["ask", "x", "--conversation", "a\x01"], "the name holds control characters"),
        (["ask", "x", "--conversation", "x" * 201], "the name has 201 characters, at most 200"),
        (["ask", "x", "--temperature", "nan"], "temperature: must be a number from 0 to 100"),
        (["ask", "x", "--temperature", "-1"], "temperature"),
        (["ask", "x", "--temperature", "hot"], "argument --temperature: 'hot' is not a number"),
        (["ask", "x", "--max-tokens", "0"], "quire: --max-tokens: must be a whole number"),
        (["ask", "x", "--seed", "-1"], "seed"),
        (["ask", "x", "--seed", "1.5"], "argument --seed: '1.5' is not a whole number"),
        (["ask", "x", "--backend", "gpu"], "argument --backend: invalid choice: 'gpu'"),
        (["ask", "x", "--max-tokens", "1e3"], "argument --max-tokens: '1e3' is not a whole number"),
        (["ask", "x", "--threads", "two"], "argument --threads: 'two' is not a whole number"),
        (["ask", "x", "--kv", "int2"], "argument --kv: invalid choice: 'int2'"),
        (["ask", "x", "--weights", "Q2"], "argument --weights: invalid choice: 'Q2'"),
        (["ask", "x", "--guess", "always"], "argument --guess: invalid choice: 'always'"),
        (["ask", "x", "--draft-model", ""], "argument --draft-model: the path is empty"),
        (
            ["ask", "x", "--draft-tokens", "few"],
            "argument --draft-tokens: 'few' is not a whole number",
        ),
        (["ask", "x", "--model"], "--model"),
        (["--bogus"], "--bogus (python3 run.py --help lists the options)"),
        (["--profile"], "--profile"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: list[str], word: str, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if arguments == ["ask", "-"]:
        code, out, err = quire(*arguments)
    else:
        code = main(arguments)
        out, err = capfd.readouterr()
    assert code == 2
    assert out == ""
    assert word in err
    assert err.startswith("quire: ")
    assert err.count("\n") == 1


def test_profile_where_a_file_stands_is_one_line_and_code_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p").write_text("", "utf-8")
    assert main(["--profile", str(tmp_path / "p")]) == 2
    assert main(["ask", "x", "--profile", str(tmp_path / "p")]) == 2
    err = capfd.readouterr().err
    assert err.count("\n") == 2
    assert err.count("cannot be used") == 2


@pytest.mark.parametrize("content", [None, b"", b"<html>", b"GGUF"])
def test_bad_model_is_one_line_and_code_2(
    tmp_path: Path, content: bytes | None, capfd: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "bad model.gguf"
    if content is not None:
        model.write_bytes(content)
    assert main(["ask", "x", "--model", str(model)]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith(f"quire: {model}: ")
    assert err.count("\n") == 1


def test_model_that_cannot_be_looked_at_is_one_line_and_code_2(
    capfd: pytest.CaptureFixture[str],
) -> None:
    hint = "Check where it is and whether you may read it, or choose another model."
    for model in ("a" * 300, "~no such person/m.gguf"):
        assert main(["ask", "x", "--model", model]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    here = os.getcwd()
    assert err == (
        f"quire: {here}/{'a' * 300}: The file cannot be read: File name too long. {hint}\n"
        f"quire: {here}/~no such person/m.gguf: The file cannot be read: No such file or directory."
        f" {hint}\n"
    )


def test_damaged_chats_are_one_line_and_code_1(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "chats.db").write_bytes(b"noise " * 1000)
    arguments = ["x", "--profile", str(tmp_path), "--conversation", "c", "--model", "/m/a"]
    assert ask(arguments) == 1
    err = capfd.readouterr().err
    assert "the file is damaged. It is kept as " in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ModelFileError("a", "b"), 2),
        (ContextOverflowError(2, 1), 2),
        (ChatTemplateError("x"), 2),
        (ProfileError(Path("p"), "x"), 2),
        (StorageError("x"), 1),
        (ComputeError("x"), 1),
        (NotEnoughMemoryError(2, 1), 1),
    ],
)
def test_exit_code_says_whose_fault_it_is(error: Exception, code: int) -> None:
    assert exit_code_of(error) == code


def test_complaint_is_one_line_whatever_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    complain("a\nb  c")
    assert capsys.readouterr().err == "quire: a b c\n"


def test_complaint_gives_the_terminal_no_orders(capsys: pytest.CaptureFixture[str]) -> None:
    complain("the file a\x1b[2J\x9bm.gguf")
    assert capsys.readouterr().err == "quire: the file a\ufffd[2J\ufffdm.gguf\n"


def test_complaint_that_nobody_can_read_any_more_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class ClosedTerminal(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(sys, "stderr", ClosedTerminal())
    complain("a")


def test_window_arguments_are_read() -> None:
    options = parse_window_arguments(["--model", "m", "--profile", "p q"])
    assert (options.model, options.profile) == (Path("m"), Path("p q"))
    assert not options.self_test
    assert not options.version


def test_version_and_help_are_printed_without_qt_and_torch() -> None:
    code = (
        "import sys; from app.__main__ import main; main(['--version']);"
        "print(sorted({'PySide6', 'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout == "Quire 0.1.0\n[]\n"
    assert main(["--version"]) == 0
    for arguments in (["--help"], ["ask", "--help"]):
        code_, out, err = quire(*arguments)
        assert (code_, err) == (0, "")
        assert "--profile DIR" in out
        assert out.startswith(f"usage: {' '.join(['python3 run.py', *arguments[:-1]])} [-h]")


@pytest.fixture
def _own_hooks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what the program sets for its whole life."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    before = [*logging.getLogger().handlers]
    yield
    for handler in set(logging.getLogger().handlers) - set(before):
        end_log(handler)


@pytest.mark.usefixtures("_own_hooks")
def test_window_gets_the_prepared_profile_and_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[object] = []

    def run(paths: Paths, *, model_path: Path | None) -> int:
        seen.extend((paths, model_path, paths.log_file.exists(), os.environ["HF_HUB_OFFLINE"]))
        return 7

    monkeypatch.setattr("ui.start.run", run)
    assert main(["--profile", str(tmp_path / "p"), "--model", "m.gguf"]) == 7
    assert seen == [Paths(tmp_path / "p"), Path("m.gguf"), True, "1"]


@pytest.mark.usefixtures("_own_hooks")
def test_window_opens_without_a_log_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs" / "quire.log").mkdir(parents=True)
    monkeypatch.setattr("ui.start.run", lambda _paths, model_path: 7)
    assert main(["--profile", str(tmp_path)]) == 7
    log = tmp_path / "logs" / "quire.log"
    assert capsys.readouterr().err == f"quire: the log cannot be written. {log}: is a directory.\n"


@pytest.mark.usefixtures("_own_hooks")
def test_interrupt_of_the_window_is_code_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(paths: Paths, *, model_path: Path | None) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("ui.start.run", interrupt)
    assert main(["--profile", str(tmp_path)]) == 130


@pytest.mark.usefixtures("_own_hooks")
def test_window_that_cannot_be_imported_is_one_line_and_code_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ui.start", None)
    assert main(["--profile", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("quire: the window cannot start: ")
    assert err.count("\n") == 1


def test_self_test_gets_the_window_and_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Paths] = []

    def run_test(window: Callable[[Paths], None], *, model: Path, profile: Path) -> int:
        window(Paths(profile))
        return 5 if model == Path("m") else 6

    monkeypatch.setattr("app.self_test.self_test", run_test)
    monkeypatch.setattr("ui.start.open_and_close", opened.append)
    assert main(["--self-test", "--model", "m", "--profile", "p"]) == 5
    assert opened == [Paths(Path("p"))]


def test_interrupt_while_reading_the_question_is_code_130(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(question: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("app.cli.read_question", interrupt)
    assert main(["ask", "x"]) == 130


def test_bug_is_one_line_with_the_place_of_the_log_and_code_1(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    def break_down(question: str) -> str:
        raise ZeroDivisionError

    monkeypatch.setattr("app.cli.read_question", break_down)
    profile = ["--profile", str(tmp_path)]
    assert main(["ask", "x", *profile]) == 1
    said = "quire: something went wrong inside Quire: ZeroDivisionError. The log says more"
    assert capsys.readouterr().err == f"{said}.\n"
    assert "Quire ended with an error" in caplog.text
    log = Paths(tmp_path).log_file
    log.parent.mkdir()
    log.touch()
    assert main(["ask", "x", *profile]) == 1
    assert capsys.readouterr().err == f"{said}: {log}.\n"


@pytest.mark.parametrize("option", ["--conversation", "--system"])
def test_option_that_is_not_text_is_refused_before_anything_is_opened(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile = ["--profile", str(tmp_path / "profile")]
    assert main(["ask", "x", option, "ab\udcff", *profile]) == 2
    assert capsys.readouterr().err == (
        f"quire: {option} is not UTF-8 text. Set the terminal to UTF-8 and type it again.\n"
    )
    assert not (tmp_path / "profile").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell closes the streams")
@pytest.mark.parametrize(
    ("arguments", "closing", "code"),
    [
        (["ask", "-"], "<&-", 2),
        (["--version"], ">&-", 0),
        (["ask", "x", "--seed", "-1"], "2>&-", 2),
        (["ask", "x", "--bogus"], "<&- >&- 2>&-", 2),
    ],
)
def test_closed_standard_stream_changes_nothing_but_the_output(
    arguments: list[str], closing: str, code: int
) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" -m app "$@" {closing}', sys.executable, *arguments],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == code
    assert b"Traceback" not in done.stderr
    assert (done.stderr.count(b"\n") == 1) == (closing == "<&-")


@pytest.mark.slow
def test_ask_with_the_real_model_keeps_the_chat_and_no_text_in_the_log(
    tmp_path: Path, starter_model_path: Path
) -> None:
    profile = tmp_path / "perfil ñ 中"
    options = ["--profile", str(profile), "--conversation", "capitals", "--json"]
    options += ["--temperature", "0", "--max-tokens", "12"]
    code, out, err = quire("ask", "Name the capital of France.", *options)
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["text"] == "The capital of France is Paris."
    assert report["finish_reason"] == "stop"
    assert report["load_ms"] > 0
    code, out, err = quire("ask", "-", *options, stdin=b"And of Italy?", PYTHONIOENCODING="ascii")
    assert (code, err) == (0, "")
    second = json.loads(out)
    assert second["prompt_tokens"] > report["prompt_tokens"]
    assert "Rome" in second["text"]
    log = (profile / "logs" / "quire.log").read_text("utf-8")
    assert "model ready" in log
    for word in ("capital", "France", "Paris", "Italy", "Rome"):
        assert word not in log


@pytest.mark.slow
def test_ask_never_imports_qt(tmp_path: Path, starter_model_path: Path) -> None:
    code = (
        "import sys; from app.__main__ import main;"
        "code = main(['ask', 'Hi', '--max-tokens', '1', '--temperature', '0']);"
        "print(code, sorted(name for name in sys.modules if name.startswith('PySide6')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "0 []"
    assert done.stderr == ""


def test_prompt_that_does_not_fit_is_said_without_the_fields_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> int:
        raise ContextOverflowError(9000, 8192)

    monkeypatch.setattr("app.asking.answer", refuse)
    assert ask(["x"]) == 2
    assert capsys.readouterr().err == (
        "quire: The prompt has 9,000 tokens and the context holds 8,192, one of them for the reply."
        " Shorten the message, or start a new chat.\n"
    )


def test_question_that_is_not_text_says_what_to_do() -> None:
    code, out, err = quire("ask", "-", stdin=b"caf\xe9")
    assert (code, out) == (2, "")
    assert err == (
        "quire: the question on standard input is not UTF-8 text. Save it as UTF-8 and ask again.\n"
    )
