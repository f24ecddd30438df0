"""What a person does in the chat, with the real worker and a scripted engine."""

import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from PySide6.QtCore import QMimeData, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QPlainTextEdit

from app.messages import ModelReady
from inference.errors import ComputeError
from inference.metrics import COMPATIBILITY_KERNELS
from tests.app.fake_engine import FakeScript, make_model_info
from tests.ui.open_window import OpenWindow, wait_for
from ui.controls.labels import Label
from ui.replies.message_view import OwnMessageView

Opener = Callable[..., OpenWindow]


def test_send_by_enter_shows_message_and_reply(open_window: Opener) -> None:
    window = open_window(FakeScript(replies=["It is blue."]))
    window.start_engine()
    window.say("Why?")
    assert [(m.role, m.content) for m in window.messages] == [
        ("user", "Why?"),
        ("assistant", "It is blue."),
    ]
    assert window.chat.composer.text == ""
    assert window.chat.messages.isVisible()
    assert not window.chat.empty.isVisible()
    assert window.chat.header.title.text == "Why?"
    assert window.titles == ["Why?"]


def test_send_by_button_sends_and_is_off_without_text(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    assert not window.chat.composer.button.isEnabled()
    window.type("Hello")
    window.click("Send")
    window.wait(lambda: len(window.messages) == 2 and not window.session.is_replying)
    assert window.prompts == [["Hello"]]


def test_send_while_loading_waits_for_the_model(open_window: Opener) -> None:
    gate = threading.Event()
    script = FakeScript(replies=["Ready."], before_stage=lambda _stage: wait_for(gate))
    window = open_window(script)
    window.program.worker.start()
    window.session.load_model("/models/fake.gguf")
    window.type("Early")
    window.press(Qt.Key.Key_Return)
    assert window.texts == ["Early", ""]
    gate.set()
    window.wait(lambda: window.texts == ["Early", "Ready."] and not window.session.is_replying)


def test_stop_by_button_keeps_the_text_so_far(open_window: Opener) -> None:
    window = open_window(FakeScript(replies=["word " * 2000], tokens_per_s=200.0))
    window.start_engine()
    window.type("Go on")
    window.press(Qt.Key.Key_Return)
    window.wait(lambda: bool(window.texts[-1]))
    window.click("Stop")
    window.wait(lambda: not window.session.is_replying)
    reply = window.messages[-1]
    assert reply.status == "stopped"
    assert reply.content.startswith("word")
    assert not window.chat.composer.button.isEnabled()


def test_stop_by_escape_in_composer_and_elsewhere_ends_the_reply(open_window: Opener) -> None:
    window = open_window(FakeScript(replies=["word " * 2000], tokens_per_s=200.0))
    window.start_engine()
    for focus in (window.chat.composer.input, window.chat.messages):
        window.type("Go on")
        window.press(Qt.Key.Key_Return)
        window.wait(lambda: bool(window.texts[-1]))
        focus.setFocus()
        window.press(Qt.Key.Key_Escape)
        window.wait(lambda: not window.session.is_replying)
        assert window.messages[-1].status == "stopped"


def test_regenerate_makes_a_second_version(open_window: Opener) -> None:
    window = open_window(FakeScript(replies=["First.", "Second."]))
    window.start_engine()
    window.say("Question")
    first = window.messages[-1]
    window.click("Reply again", window.view(first.id))
    window.wait(lambda: window.texts[-1] == "Second." and not window.session.is_replying)
    assert window.messages[-1].id != first.id
    conversation = window.session.conversation
    assert conversation is not None
    assert conversation.versions(first.id) == [first.id, window.messages[-1].id]


def test_version_switch_shows_the_other_version(open_window: Opener) -> None:
    window = open_window(FakeScript(replies=["First.", "Second."]))
    window.start_engine()
    window.say("Question")
    window.session.regenerate(window.messages[-1].id)
    window.wait(lambda: window.texts[-1] == "Second." and not window.session.is_replying)
    view = window.view(window.messages[-1].id)
    window.wait(lambda: window.button("Earlier version", view).isVisible())
    window.click("Earlier version", view)
    assert window.texts == ["Question", "First."]


def test_edit_own_message_makes_a_branch(open_window: Opener) -> None:
    window = open_window(FakeScript(replies=["One.", "Two."]))
    window.start_engine()
    window.say("Qestion")
    view = window.view(window.messages[0].id)
    window.click("Edit message", view)
    field = view.findChild(QPlainTextEdit)
    assert field is not None
    field.setPlainText("Question")
    QTest.keyClick(field, Qt.Key.Key_Return)
    window.wait(lambda: window.texts == ["Question", "Two."] and not window.session.is_replying)
    conversation = window.session.conversation
    assert conversation is not None
    assert len(conversation.versions(window.messages[0].id)) == 2


def test_edit_that_cannot_be_stored_stays_in_its_editor(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = open_window(FakeScript(replies=["One."]))
    window.start_engine()
    window.say("Qestion")
    view = window.view(window.messages[0].id)
    window.click("Edit message", view)
    field = view.findChild(QPlainTextEdit)
    assert field is not None
    field.setPlainText("Question")
    monkeypatch.setattr(window.session, "edit", lambda message_id, text: False)
    QTest.keyClick(field, Qt.Key.Key_Return)
    (again,) = [shown for shown in view.findChildren(QPlainTextEdit) if shown.isVisible()]
    assert again.toPlainText() == "Question"
    assert window.texts == ["Qestion", "One."]


def test_send_that_breaks_keeps_the_text_in_the_composer(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = open_window()
    window.start_engine()

    def broken(text: str) -> bool:
        raise RuntimeError("odd")

    monkeypatch.setattr(window.session, "send", broken)
    window.type("Question")
    with window.qtbot.capture_exceptions() as exceptions:
        window.press(Qt.Key.Key_Return)
    assert [type(error) for _, error, _ in exceptions] == [RuntimeError]
    assert window.chat.composer.text == "Question"


def test_up_in_empty_composer_edits_the_last_own_message(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    window.say("First")
    window.say("Last")
    window.chat.composer.input.setFocus()
    window.press(Qt.Key.Key_Up)
    view = window.view(window.messages[2].id)
    assert isinstance(view, OwnMessageView)
    field = view.findChild(QPlainTextEdit)
    assert field is not None
    assert field.toPlainText() == "Last"


def test_composer_hint_says_what_comes_next(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    hint = window.chat.composer.input.accessibleDescription
    assert hint() == "Message Fake 1B"
    window.say("Hello")
    assert hint() == "Write the next message"
    window.controller.new_chat()
    assert hint() == "Message Fake 1B"
    window.click_chat("Hello")
    assert hint() == "Write the next message"


def test_new_chat_by_shortcut_shows_the_greeting(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    window.say("Something")
    window.press(Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    assert window.session.conversation is None
    assert window.chat.empty.isVisible()
    assert window.chat.header.title.text == "New chat"
    assert window.window.focusWidget() is window.chat.composer.input


@pytest.mark.parametrize("lines", [1, 4, 6, 12])
def test_greeting_beside_a_long_draft_is_whole_or_not_there(
    open_window: Opener, lines: int
) -> None:
    window = open_window()
    window.start_engine()
    window.window.resize(640, 480)
    window.program.theme.set_text_size(150)
    window.chat.composer.set_text("\n" * (lines - 1))
    QApplication.processEvents()
    empty = window.chat.empty
    labels = [label for label in empty.findChildren(Label) if label.isVisible()]
    for label in labels:
        assert label.height() >= label.heightForWidth(label.width())
        assert empty.rect().contains(label.geometry())
    for above, below in pairwise(labels[:2]):
        assert above.geometry().bottom() < below.geometry().top()
    assert bool(labels) == (lines < 6)


def test_draft_is_kept_for_each_chat(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    window.say("Chat one")
    window.type("half a thou")
    window.click("New chat", window.sidebar)
    assert window.chat.composer.text == ""
    window.type("another")
    window.click_chat("Chat one")
    assert window.chat.composer.text == "half a thou"
    window.click("New chat", window.sidebar)
    assert window.chat.composer.text == "another"


def test_sent_text_does_not_come_back_as_a_draft(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    window.say("Chat one")
    window.click("New chat", window.sidebar)
    assert window.chat.composer.text == ""


def test_suggestion_fills_the_composer_without_sending(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    card = window.chat.empty.cards[2]
    QTest.mouseClick(card, Qt.MouseButton.LeftButton)
    assert window.chat.composer.text == card.suggestion.prompt
    assert window.messages == []
    assert window.window.focusWidget() is window.chat.composer.input


def test_failed_reply_offers_to_try_again(open_window: Opener) -> None:
    script = FakeScript(
        replies=["Good."], error_after_tokens=0, reply_error=ComputeError("The device failed.")
    )
    window = open_window(script)
    window.start_engine()
    window.say("Question")
    assert window.messages[-1].status == "error"
    script.error_after_tokens = None
    window.click("Try again", window.view(window.messages[-1].id))
    window.wait(lambda: window.texts == ["Question", "Good."] and not window.session.is_replying)


def test_chat_that_is_full_offers_a_new_one_with_the_question(open_window: Opener) -> None:
    script = FakeScript(replies=["Good."])
    window = open_window(script)
    window.start_engine()
    window.say("First")
    script.prefill_tokens = 9000
    window.say("Second")
    assert window.messages[-1].failure_kind == "context_full"
    window.click("Start a new chat", window.view(window.messages[-1].id))
    assert window.session.conversation is None
    assert window.chat.composer.text == "Second"
    assert window.window.focusWidget() is window.chat.composer.input
    script.prefill_tokens = 32
    window.press(Qt.Key.Key_Return)
    window.wait(lambda: window.texts == ["Second", "Good."] and not window.session.is_replying)


def test_question_of_a_full_chat_joins_what_the_new_one_has_already(open_window: Opener) -> None:
    window = open_window(FakeScript(prefill_tokens=9000))
    window.start_engine()
    window.say("Question")
    window.type("left here")
    window.click("New chat", window.sidebar)
    window.type("waiting")
    window.click_chat("Question")
    window.click("Start a new chat", window.view(window.messages[-1].id))
    assert window.chat.composer.text == "waiting\n\nQuestion"
    window.click_chat("Question")
    assert window.chat.composer.text == "left here"


def test_status_bar_tells_context_speed_and_first_word(open_window: Opener) -> None:
    window = open_window(FakeScript(replies=["a b c d"]))
    window.start_engine()
    window.say("Question")
    status = window.window.status
    assert status.model.text == "Fake 1B · Q4_1"
    assert status.context.text == "Context 36 / 2,048"
    assert status.speed.text == "50 tok/s"
    assert status.first_word.text == "First word after 0.10 s"
    assert status.private_button.isVisible()


def test_status_bar_tells_the_context_while_the_prompt_is_read(open_window: Opener) -> None:
    window = open_window(FakeScript(prefill_tokens=1_700, prefill_steps=10_000))
    window.start_engine()
    window.type("Question")
    window.press(Qt.Key.Key_Return)
    window.wait(lambda: window.window.status.context.text == "Context 1,700 / 2,048")
    assert window.window.status.speed.text == ""
    window.session.stop()
    window.wait(lambda: not window.session.is_replying)


@pytest.mark.parametrize(
    ("path", "kernels", "tip"),
    [
        ("fast", "avx2", "SmolLM2-135M-Instruct, blocks (CPU)"),
        ("torch", "torch", "SmolLM2-135M-Instruct, blocks (CPU)"),
        ("torch", COMPATIBILITY_KERNELS, "Instruct, compatibility kernels: blocks (CPU)"),
        ("bridge", "torch", "SmolLM2-135M-Instruct, transformers: blocks (CPU)"),
    ],
)
def test_status_bar_names_the_model_shortly_and_in_full_on_hover(
    open_window: Opener, path: str, kernels: str, tip: str
) -> None:
    info = make_model_info(
        name="SmolLM2-135M-Instruct", backend="blocks (CPU)", compute_path=path, kernels=kernels
    )
    window = open_window()
    window.start_engine()
    window.session.handle_event(ModelReady(replace(info, path=window.session.model.path)))
    model = window.window.status.model
    assert model.text == "SmolLM2 135M · Q4_1"
    assert tip in model.toolTip()


def test_paste_that_is_too_long_is_refused_in_words(open_window: Opener) -> None:
    window = open_window()
    data = QMimeData()
    data.setText("x" * 200_001)
    window.chat.composer.input.insertFromMimeData(data)
    assert window.chat.composer.text == ""
    assert window.chat.toast.text == (
        "This text is too long: 200,001 characters. A message takes 200,000."
    )
