import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app import logs
from app.logs import end_log, log_uncaught_exceptions, start_log
from inference.errors import ModelFileError


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[Path]:
    file = tmp_path / "quire.log"
    handler = start_log(file)
    yield file
    end_log(handler)


def test_log_has_own_records_from_info_and_others_from_warning(log_file: Path) -> None:
    logging.getLogger("app.x").info("own %d", 1)
    logging.getLogger("app.x").debug("detail")
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("trouble")
    lines = log_file.read_text("utf-8").splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "INFO MainThread app.x: own 1",
        "WARNING MainThread library: trouble",
    ]


def test_log_names_the_home_folder_by_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "someone"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "someone"))
    file = tmp_path / "quire.log"
    handler = start_log(file)
    try:
        logging.getLogger("app.x").info("in %s", tmp_path / "someone" / "models")
    finally:
        end_log(handler)
    assert "someone" not in file.read_text("utf-8")
    assert f"in {Path('~') / 'models'}" in file.read_text("utf-8")


def test_log_rotates_and_keeps_a_few_files(log_file: Path) -> None:
    for number in range(60):
        logging.getLogger("app.x").info("%d %s", number, "x" * 100_000)
    names = sorted(path.name for path in log_file.parent.iterdir())
    assert names == ["quire.log", "quire.log.1", "quire.log.2", "quire.log.3"]
    assert all(path.stat().st_size <= 1_000_000 for path in log_file.parent.iterdir())


def end_complaint(file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Log two records to a file that cannot be written; returns what standard error says, and nothing else."""
    handler = start_log(file)
    logging.getLogger("app.x").info("one")
    logging.getLogger("app.x").warning("two")
    end_log(handler)
    assert handler not in logging.getLogger().handlers
    return capsys.readouterr().err


def test_log_that_may_not_be_written_is_told_once_and_stops_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str, _flags: int) -> int:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(logs, "private_opener", refuse)
    file = tmp_path / "quire.log"
    assert end_complaint(file, capsys) == (
        f"quire: the log cannot be written. {file}: permission denied.\n"
    )


def test_log_folder_that_is_a_file_is_told_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "logs").write_text("mine", "utf-8")
    complaint = end_complaint(tmp_path / "logs" / "quire.log", capsys)
    assert complaint.startswith(f"quire: the log cannot be written. {tmp_path / 'logs'}: ")
    assert complaint.count("\n") == 1
    assert (tmp_path / "logs").read_text("utf-8") == "mine"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_log_that_is_a_pipe_is_not_waited_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "quire.log")
    complaint = end_complaint(tmp_path / "quire.log", capsys)
    assert complaint.startswith(f"quire: the log cannot be written. {tmp_path / 'quire.log'}: ")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no full device")
def test_log_on_a_full_disk_is_told_once_without_the_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "quire.log"
    file.symlink_to("/dev/full")
    assert end_complaint(file, capsys) == (
        f"quire: the log cannot be written. {file}: no space left on device.\n"
    )


def raise_from(cause: Exception, error: Exception) -> None:
    try:
        raise cause
    except type(cause):
        raise error from cause


@pytest.mark.parametrize("error", [ValueError("my secret"), KeyError("my secret")])
def test_exception_that_may_quote_a_text_is_logged_without_its_message(
    log_file: Path, error: Exception
) -> None:
    try:
        raise_from(error, RuntimeError("the step failed"))
    except RuntimeError:
        logging.getLogger("app.x").exception("Broken")
    text = log_file.read_text("utf-8")
    assert "secret" not in text
    assert text.index(type(error).__name__) < text.index("RuntimeError: the step failed")
    assert "in raise_from" in text


def test_exception_about_a_file_is_logged_with_its_message(log_file: Path) -> None:
    try:
        raise ModelFileError("/m/a.gguf", "It is empty.") from None
    except ModelFileError:
        logging.getLogger("app.x").exception("Broken")
    assert "ModelFileError: a.gguf: It is empty." in log_file.read_text("utf-8")


def test_context_of_an_exception_is_logged_too(log_file: Path) -> None:
    def fail_twice() -> None:
        try:
            raise OSError("first")
        except OSError:
            raise TypeError("second")  # noqa: B904  # the context is what is tested

    try:
        fail_twice()
    except TypeError:
        logging.getLogger("app.x").exception("Broken")
    text = log_file.read_text("utf-8")
    assert text.index("OSError: first") < text.index("TypeError: second")


def test_uncaught_exceptions_go_to_the_log(log_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    log_uncaught_exceptions()
    error = TypeError("main broke")
    sys.excepthook(TypeError, error, None)
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)

    def fail() -> None:
        raise TypeError("thread broke")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    threading.excepthook(threading.ExceptHookArgs((SystemExit, None, None, None)))
    text = log_file.read_text("utf-8")
    assert "TypeError: main broke" in text
    assert "TypeError: thread broke" in text
    assert "KeyboardInterrupt" not in text
    assert text.count("Uncaught exception") == 2
