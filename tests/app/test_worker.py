import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from PySide6.QtCore import QCoreApplication, QObject, QThread, Signal
from pytestqt.qtbot import QtBot

from app.chat_session import ChatSession
from app.conversation import ChatSettings
from app.messages import (
    Generate,
    LoadModel,
    ModelReady,
    ReplyEnded,
    ReplyId,
    ReplyProgressed,
    StopReply,
)
from app.settings import SettingsStore
from app.storage import ConversationStore
from app.worker import EngineWorker
from inference.config import EngineConfig, SamplingParams
from inference.request import ChatMessage
from tests.app.fake_engine import DEFAULT_REPLY, FakeEngineFactory, FakeScript

LOAD = LoadModel("/m/a.gguf", EngineConfig())


def make_generate(reply_id: int = 1) -> Generate:
    return Generate(ReplyId(reply_id), "c", (ChatMessage("user", "Hi"),), SamplingParams())


def close(session: ChatSession) -> None:
    """Take the last events while the session is there: Qt's bindings crash if it went before them."""
    QCoreApplication.sendPostedEvents()
    session.close()


def test_signal_emitted_often_keeps_the_references_of_true(qapp: QCoreApplication) -> None:
    """A release of Qt's bindings dropped one per emit, until the interpreter aborted."""

    class Source(QObject):
        happened = Signal(object)

    source = Source()
    heard: list[object] = []
    source.happened.connect(heard.append)
    before = sys.getrefcount(True)
    for _ in range(200):
        source.happened.emit(1)
    assert len(heard) == 200
    assert sys.getrefcount(True) >= before


def test_events_arrive_on_the_gui_thread(qtbot: QtBot) -> None:
    factory = FakeEngineFactory()
    worker = EngineWorker(factory)
    threads: list[object] = []

    class Receiver(QObject):
        def take(self, event: object) -> None:
            threads.append(QThread.currentThread())

    receiver = Receiver()
    worker.event.connect(receiver.take)
    worker.start()
    worker.post(LOAD)
    qtbot.waitUntil(lambda: len(threads) >= 3)
    assert set(map(id, threads)) == {id(QThread.currentThread())}
    assert worker.shutdown()
    assert factory.engines[0].is_closed


def test_session_and_worker_make_a_whole_reply(qtbot: QtBot, tmp_path: Path) -> None:
    worker = EngineWorker(FakeEngineFactory())
    session = ChatSession(
        ConversationStore(tmp_path / "c.db"), SettingsStore(tmp_path / "s.json"), worker.post
    )
    worker.event.connect(session.handle_event)
    worker.start()
    session.load_model("/m/a.gguf")
    session.send("Why?")
    qtbot.waitUntil(lambda: not session.is_replying)
    assert session.conversation is not None
    reply = session.conversation.path()[-1]
    assert (reply.content, reply.status) == (DEFAULT_REPLY, "complete")
    assert worker.shutdown()
    close(session)


def test_engine_thread_has_its_name_in_the_log(qtbot: QtBot) -> None:
    names: list[str] = []
    script = FakeScript(before_stage=lambda _: names.append(threading.current_thread().name))
    worker = EngineWorker(FakeEngineFactory(script))
    worker.start()
    worker.post(LOAD)
    qtbot.waitUntil(lambda: bool(names))
    assert worker.shutdown()
    assert set(names) == {"engine"}


def busy_worker(before_step: Callable[[], None]) -> tuple[EngineWorker, list[object]]:
    """A worker that opens a model and replies, and its events."""
    worker = EngineWorker(FakeEngineFactory(FakeScript(before_step=before_step)))
    events: list[object] = []
    worker.event.connect(events.append)
    worker.start()
    worker.post(LOAD)
    worker.post(make_generate())
    return worker, events


def test_stop_ends_a_reply_while_the_engine_works(qtbot: QtBot) -> None:
    step_may_go_on = threading.Semaphore(3)

    def wait() -> None:
        step_may_go_on.acquire()

    worker, events = busy_worker(wait)
    qtbot.waitUntil(lambda: sum(isinstance(e, ReplyProgressed) for e in events) == 3)
    worker.post(StopReply(ReplyId(1)))
    step_may_go_on.release(2)  # the one that waits, and the one that brings the last word
    qtbot.waitUntil(lambda: any(isinstance(e, ReplyEnded) for e in events))
    texts = [e.text for e in events if isinstance(e, ReplyProgressed)]
    assert texts == ["A", " plane", " tree", " drops"]
    assert worker.shutdown()


def test_shutdown_of_a_stuck_engine_gives_up_after_its_time(qtbot: QtBot) -> None:
    go_on = threading.Event()

    def wait() -> None:
        go_on.wait(30)

    worker, events = busy_worker(wait)
    qtbot.waitUntil(lambda: any(isinstance(e, ModelReady) for e in events))
    assert not worker.shutdown(timeout_s=0.02)
    go_on.set()
    assert worker.shutdown()


def test_worker_of_the_real_engine_imports_no_torch_before_a_load() -> None:
    code = (
        "import sys, app.worker; print('torch' in sys.modules, 'inference.engine' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    assert result.stdout.split() == ["False", "False"]


@pytest.mark.slow
def test_real_engine_replies_through_session_and_worker(
    qtbot: QtBot, tmp_path: Path, starter_model_path: Path
) -> None:
    worker = EngineWorker()
    session = ChatSession(
        ConversationStore(tmp_path / "c.db"), SettingsStore(tmp_path / "s.json"), worker.post
    )
    worker.event.connect(session.handle_event)
    worker.start()
    session.load_model(str(starter_model_path))
    session.set_chat_settings(ChatSettings("", SamplingParams(temperature=0.0, max_tokens=12)))
    session.send("Name the capital of France.")
    qtbot.waitUntil(lambda: not session.is_replying, timeout=120_000)
    assert session.conversation is not None
    reply = session.conversation.path()[-1]
    assert (reply.content, reply.status) == ("The capital of France is Paris.", "complete")
    session.send("And of Italy?")
    qtbot.waitUntil(lambda: not session.is_replying, timeout=120_000)
    last = session.conversation.path()[-1]
    assert last.metrics is not None
    assert last.metrics.prompt_tokens > 50
    assert "Rome" in last.content
    assert worker.shutdown(timeout_s=60)
    close(session)
