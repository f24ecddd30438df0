"""Starting: one window per profile, nothing heavy before it, an end that leaves nothing behind."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QObject
from PySide6.QtNetwork import QLocalServer, QLocalSocket
from pytestqt.qtbot import QtBot

from app.errors import StorageError
from app.paths import Paths
from tests.ui.open_window import OpenWindow
from ui import start
from ui.dialogs.error import ErrorDialog
from ui.single_instance import SingleInstance
from ui.start import make_application, open_and_close

Opener = Callable[..., OpenWindow]
ROOT = Path(__file__).resolve().parents[2]


def _name(tmp_path: Path) -> str:
    return Paths(tmp_path).socket_name


def test_claim_lost_to_a_start_at_the_same_moment_waits_for_its_socket(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = QObject()
    first, second, third = (SingleInstance(_name(tmp_path), owner) for _ in range(3))
    assert first.claim()
    monkeypatch.setattr("ui.single_instance._WAIT_MS", 1)
    monkeypatch.setattr("ui.single_instance._ANSWER_MS", 1)  # this thread is the other one's too
    asked = iter([False, False, True])  # nobody was there a moment ago
    monkeypatch.setattr(second, "_ask_other", lambda: next(asked))
    assert not second.claim()
    with qtbot.waitSignal(first.raise_requested):
        assert not third.claim()
    first.release()


def test_second_claim_fails_and_asks_the_first_to_come_forward(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ui.single_instance._ANSWER_MS", 1)
    owner = QObject()
    first = SingleInstance(_name(tmp_path), owner)
    second = SingleInstance(_name(tmp_path), owner)
    assert first.claim()
    with qtbot.waitSignal(first.raise_requested):
        assert not second.claim()
    first.release()
    assert second.claim()
    second.release()


def test_profiles_do_not_know_each_other(qtbot: QtBot, tmp_path: Path) -> None:
    owner = QObject()
    first = SingleInstance(_name(tmp_path / "a"), owner)
    second = SingleInstance(_name(tmp_path / "b"), owner)
    assert first.claim()
    assert second.claim()
    first.release()
    second.release()


@pytest.mark.skipif(sys.platform == "win32", reason="no socket file to be left over")
def test_socket_left_over_from_a_crash_is_taken_over(qtbot: QtBot, tmp_path: Path) -> None:
    name = _name(tmp_path)
    server = QLocalServer()
    assert server.listen(name)
    place = Path(server.fullServerName())
    server.close()
    left_over = socket.socket(socket.AF_UNIX)
    left_over.bind(str(place))
    left_over.close()  # the file stays, nobody listens
    owner = QObject()
    instance = SingleInstance(name, owner)
    assert instance.claim()
    instance.release()


def test_window_comes_forward_out_of_the_task_bar(open_window: Opener) -> None:
    window = open_window()
    window.window.showMinimized()
    window.program.bring_forward()
    assert not window.window.isMinimized()
    assert window.window.isVisible()


@pytest.fixture
def first(tmp_path: Path, qtbot: QtBot) -> Iterator[SingleInstance]:
    """The claim of a first start."""
    paths = Paths(tmp_path)
    paths.prepare()
    owner = QObject()
    instance = SingleInstance(paths.socket_name, owner)
    assert instance.claim()
    yield instance
    instance.release()


def start_second(profile: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "app", "--profile", str(profile)],
        cwd=ROOT,
        env={**os.environ, "QT_QPA_PLATFORM": "offscreen"},
        stderr=subprocess.PIPE,
    )


def test_second_start_of_the_program_ends_with_0_at_once(
    qtbot: QtBot, tmp_path: Path, first: SingleInstance
) -> None:
    process = start_second(tmp_path)
    with qtbot.waitSignal(first.raise_requested, timeout=60_000):
        pass
    qtbot.waitUntil(lambda: process.poll() is not None, timeout=60_000)
    _, errors = process.communicate()
    assert process.returncode == 0
    assert errors == b"quire: Quire is open already; its window comes forward.\n"


@pytest.mark.skipif(sys.platform == "win32", reason="no socket of files")
def test_answer_that_comes_while_the_question_is_sent_counts(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class QuickSocket(QLocalSocket):
        def waitForBytesWritten(self, msecs: int = 30000) -> bool:  # noqa: N802  # Qt's name
            is_written = super().waitForBytesWritten(msecs)
            answered.acquire()
            while not self.bytesAvailable():
                super().waitForReadyRead(100)
            return is_written

    def answer() -> None:
        connection, _ = listener.accept()
        connection.recv(10)
        connection.sendall(b"here\n")
        answered.release()
        answered_all.wait(10)
        connection.close()

    monkeypatch.setattr("ui.single_instance.QLocalSocket", QuickSocket)
    monkeypatch.setattr("ui.single_instance._ANSWER_MS", 200)
    answered, answered_all = threading.Semaphore(0), threading.Event()
    place = tmp_path / "socket"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place))
    listener.listen()
    thread = threading.Thread(target=answer)
    thread.start()
    second = SingleInstance(str(place), QObject())
    assert not second.claim()
    assert second.is_answered
    answered_all.set()
    thread.join()
    listener.close()


def test_second_start_says_so_if_the_first_one_hangs(tmp_path: Path, first: SingleInstance) -> None:
    process = start_second(tmp_path)
    _, errors = process.communicate(timeout=60)  # the first one's events wait meanwhile
    assert process.returncode == 1
    assert errors.startswith(b"quire: Quire is open already, but does not answer.")


NOT_BEFORE_PAINT = (
    *("torch", "transformers", "numpy"),
    *("markdown_it", "pygments", "importlib.metadata"),
)


def test_window_imports_nothing_that_can_wait_until_it_is_painted(tmp_path: Path) -> None:
    code = f"import sys, ui.start; print([m for m in {NOT_BEFORE_PAINT!r} if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"


_COUNT_HIDDEN = """
import gc, sys
from pathlib import Path
from PySide6.QtWidgets import QApplication
from app.paths import Paths
from ui import start
from ui.program import Program
def count(program, _path):
    print(gc.get_freeze_count() > 30_000, len(gc.get_objects()) < 10_000)
    QApplication.quit()
Program.start_engine = count
paths = Paths(Path(sys.argv[1]))
paths.prepare()
sys.exit(start.run(paths))
"""


def test_start_hides_what_it_made_from_the_garbage_collector(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", _COUNT_HIDDEN, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "QT_QPA_PLATFORM": "offscreen"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["True", "True"]


def test_gui_thread_gets_the_lock_of_the_interpreter_soon(qtbot: QtBot) -> None:
    sys.setswitchinterval(0.005)
    make_application()
    assert sys.getswitchinterval() == pytest.approx(0.0005)


def test_open_and_close_paints_the_window_and_returns(qtbot: QtBot, tmp_path: Path) -> None:
    paths = Paths(tmp_path)
    paths.prepare()
    open_and_close(paths)
    assert paths.database_file.exists()


def test_chats_that_cannot_be_opened_are_told_and_end_with_1(
    qtbot: QtBot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = Paths(tmp_path)
    paths.prepare()
    told: list[ErrorDialog] = []
    monkeypatch.setattr(ErrorDialog, "exec", lambda self: told.append(self))

    def refuse(*_arguments: object) -> None:
        raise StorageError("The disk is full.", hint="Make room.")

    monkeypatch.setattr(start, "Program", refuse)
    monkeypatch.setattr(start, "qInstallMessageHandler", lambda _handler: None)
    assert start.run(paths) == 1
    assert len(told) == 1
    assert str(paths.log_file) in told[0].details


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals as on Unix")
def test_program_ends_cleanly_when_the_system_asks(tmp_path: Path) -> None:
    environment = {**os.environ, "QT_QPA_PLATFORM": "offscreen", "QUIRE_TRACE_STARTUP": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "app", "--profile", str(tmp_path), "--model", "/no/such.gguf"],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("window painted after")
    process.terminate()
    assert process.wait(60) == 0
    process.stderr.close()
    assert (tmp_path / "settings.json").exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only there a display can lack")
@pytest.mark.parametrize(
    ("display", "reason"), [("", "There is no display."), (":9876", "The display does not answer")]
)
def test_start_without_a_display_is_one_line_and_code_1(
    tmp_path: Path, display: str, reason: str
) -> None:
    known = {key: value for key, value in os.environ.items() if key != "WAYLAND_DISPLAY"}
    done = subprocess.run(
        [sys.executable, "-m", "app", "--profile", str(tmp_path)],
        cwd=ROOT,
        env={**known, "DISPLAY": display, "QT_QPA_PLATFORM": "xcb"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"quire: the window cannot open. {reason}")
    assert done.stderr.count("\n") == 1
    assert "Qt: " in (tmp_path / "logs" / "quire.log").read_text("utf-8")
