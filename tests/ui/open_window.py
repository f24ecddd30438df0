"""A real window on a real worker with a scripted engine, and what a person does with it."""

import threading
from collections.abc import Callable
from pathlib import Path

from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QAbstractButton, QApplication, QWidget
from pytestqt.qtbot import QtBot

from app.conversation import Message, MessageId
from app.paths import Paths
from app.worker import EngineWorker
from tests.app.fake_engine import FakeEngine, FakeEngineFactory, FakeScript
from ui.main_window import DEFAULT_SIZE
from ui.program import Program
from ui.replies.message_view import MessageView
from ui.sidebar.chat_rows import ChatRow
from ui.start import make_application

WAIT_MS = 15_000


class OpenWindow:
    """Shown, with a model ready unless the script keeps it from that."""

    def __init__(self, qtbot: QtBot, profile: Path, script: FakeScript) -> None:
        self.qtbot = qtbot
        self.script = script
        self.paths = Paths(profile)
        self.paths.prepare()
        self.factory = FakeEngineFactory(script)
        self.application: QApplication = make_application()
        self.program = Program(
            self.application, self.paths, EngineWorker(self.factory, check=self.factory.check)
        )
        self.program.theme.reduce_motion = True
        self.window = self.program.window
        self.chat = self.window.chat
        self.sidebar = self.window.sidebar
        self.session = self.program.session
        self.controller = self.program.controller
        if not self.program.settings.value.window_geometry:  # the screen of tests is a small one
            self.window.resize(*DEFAULT_SIZE)
        with qtbot.waitExposed(self.window):
            self.program.show()
        self.window.activateWindow()
        self.is_open = True

    def start_engine(self, path: str = "/models/fake.gguf") -> None:
        self.program.start_engine(Path(path))
        self.wait(lambda: self.session.model.kind in ("ready", "failed"))

    def wait(self, condition: Callable[[], bool]) -> None:
        self.qtbot.waitUntil(condition, timeout=WAIT_MS)

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.window.close()
            assert self.program.close(), "the engine thread must end"
            self.window.deleteLater()
            self.program.deleteLater()

    # ------------------------------------------------------------ what a person does

    def type(self, text: str) -> None:
        self.chat.composer.input.setFocus()
        QTest.keyClicks(self.chat.composer.input, text)

    def press(self, key: Qt.Key, modifier: Qt.KeyboardModifier | None = None) -> None:
        """Press a key where the focus is."""
        QTest.keyClick(self.window.focusWidget(), key, modifier or Qt.KeyboardModifier.NoModifier)

    def say(self, text: str) -> None:
        """Send a message and wait for the end of the reply."""
        self.type(text)
        self.press(Qt.Key.Key_Return)
        self.wait(lambda: not self.session.is_replying)

    def button(self, name: str, inside: QWidget | None = None) -> QAbstractButton:
        """The button of this accessible name that is in sight, or could be by hovering."""
        found = [
            button
            for button in (inside or self.window).findChildren(QAbstractButton)
            if button.accessibleName() == name or button.text() == name
        ]
        assert found, f"no button is called {name!r}"
        visible = [button for button in found if button.isVisible()]
        return (visible or found)[-1]

    def click(self, name: str, inside: QWidget | None = None) -> None:
        QTest.mouseClick(self.button(name, inside), Qt.MouseButton.LeftButton)

    def click_chat(self, title: str) -> None:
        chats = self.sidebar.chat_list
        index = chats.rows.index_of(self.chat_id(title))
        place = chats.visualRect(index).center() - QPoint(40, 0)
        QTest.mouseClick(chats.viewport(), Qt.MouseButton.LeftButton, pos=place)

    # ------------------------------------------------------------ what there is to see

    @property
    def engine(self) -> FakeEngine:
        return self.factory.engines[-1]

    @property
    def messages(self) -> list[Message]:
        conversation = self.session.conversation
        return conversation.path() if conversation else []

    @property
    def texts(self) -> list[str]:
        return [message.content for message in self.messages]

    @property
    def prompts(self) -> list[list[str]]:
        """What the engine was asked: the contents of each request's messages."""
        requests = self.engine.requests
        return [[message.content for message in it.messages or ()] for it in requests]

    @property
    def titles(self) -> list[str]:
        """Titles in the list, top to bottom."""
        rows = self.sidebar.chat_list.rows
        found = [rows.row(rows.index(number)) for number in range(rows.rowCount())]
        return [row.title for row in found if isinstance(row, ChatRow)]

    def chat_id(self, title: str) -> str:
        return next(chat.id for chat in self.session.conversations() if chat.title == title)

    def view(self, message_id: MessageId) -> MessageView:
        self.wait(lambda: self.chat.messages.view_of(message_id) is not None)
        view = self.chat.messages.view_of(message_id)
        assert view is not None
        return view


def wait_for(gate: threading.Event) -> None:
    """Hold the engine thread until the test opens the gate."""
    assert gate.wait(10), "the test must open the gate"
