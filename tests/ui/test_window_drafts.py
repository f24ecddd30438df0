"""What is written and not sent comes back: to its chat, after a restart, however that came."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from PySide6.QtCore import Qt

from app.conversation import ConversationId
from app.storage import ConversationStore
from inference.request import PromptSize
from tests.app.fake_engine import FakeEngine, FakeScript
from tests.ui.open_window import OpenWindow, wait_for

Opener = Callable[..., OpenWindow]
CTRL = Qt.KeyboardModifier.ControlModifier


def on_disk(window: OpenWindow, title: str = "") -> str:
    """What a program finds that starts after this one was killed now."""
    store = ConversationStore(window.paths.database_file)
    chat_id = ConversationId(window.chat_id(title)) if title else None
    text = store.draft_of(chat_id)
    store.close()
    return text


def test_text_in_the_composer_is_there_after_a_restart(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    window.say("Chat one")
    window.type("half a thou")
    window.press(Qt.Key.Key_N, CTRL)
    window.type("a new one")
    window.close()
    again = open_window()
    assert again.chat.composer.text == "a new one"
    again.click_chat("Chat one")
    assert again.chat.composer.text == "half a thou"
    again.press(Qt.Key.Key_N, CTRL)
    assert again.chat.composer.text == "a new one"


def test_text_is_stored_a_moment_after_the_last_key(open_window: Opener) -> None:
    window = open_window()
    window.type("not sent")
    window.wait(lambda: on_disk(window) == "not sent")
    window.chat.composer.set_text("")
    window.wait(lambda: on_disk(window) == "")


def test_text_is_stored_while_a_person_goes_on_typing(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ui.chat.draft_keeper.KEEP_DELAY_MS", 3_600_000)
    monkeypatch.setattr("ui.chat.draft_keeper.KEEP_WITHIN_MS", 20)
    window = open_window()
    window.type("a")
    window.qtbot.wait(25)
    window.type("b")
    window.wait(lambda: "a" in on_disk(window))


def test_sent_text_is_no_draft_any_more_at_once(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = open_window()
    window.start_engine()
    window.type("First")
    window.wait(lambda: on_disk(window) == "First")
    monkeypatch.setattr("ui.chat.draft_keeper.KEEP_DELAY_MS", 3_600_000)
    monkeypatch.setattr("ui.chat.draft_keeper.KEEP_WITHIN_MS", 3_600_000)
    window.say("")  # Enter
    window.wait(lambda: on_disk(window) == "")
    window.type("Second")
    window.controller.chat.drafts.keep()
    window.wait(lambda: on_disk(window, "First") == "Second")
    window.say("")
    window.wait(lambda: on_disk(window, "First") == "")
    assert window.texts[::2] == ["First", "Second"]


def test_text_that_waits_to_be_measured_is_not_lost_by_a_kill(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()
    measure = FakeEngine.measure

    def measure_late(self: FakeEngine, *args: Any, **kwargs: Any) -> PromptSize:
        wait_for(gate)
        return measure(self, *args, **kwargs)

    monkeypatch.setattr(FakeEngine, "measure", measure_late)
    window = open_window(FakeScript(message_tokens=10))
    window.start_engine()
    text = "word " * 1000  # may be too long, so the engine is asked
    window.chat.composer.set_text(text)
    window.press(Qt.Key.Key_Return)
    assert window.chat.composer.text == ""
    window.wait(lambda: on_disk(window) == text)
    gate.set()
    window.close()  # what was to be sent is stored as a message, and is no draft
    assert on_disk(window) == ""


def test_draft_comes_back_with_a_chat_whose_deletion_is_undone(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    window.say("Chat one")
    window.type("half a thou")
    window.controller.delete()
    assert window.chat.composer.text == ""
    window.chat.toast.act()
    assert window.chat.composer.text == "half a thou"


def test_edit_that_is_not_sent_stays_as_a_draft_when_the_window_is_closed(
    open_window: Opener,
) -> None:
    window = open_window()
    window.start_engine()
    window.say("Chat one")
    view = window.view(window.messages[0].id)
    view.start_editing("Chat two")  # type: ignore[attr-defined]  # an own message
    window.close()
    again = open_window()
    again.click_chat("Chat one")
    assert again.chat.composer.text == "Chat two"
