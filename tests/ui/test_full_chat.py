"""A chat that is full: said before sending, with a choice, and no text is ever lost."""

import threading
from collections.abc import Callable

import pytest
from PySide6.QtCore import Qt
from PySide6.QtTest import QTest

from app.conversation import MessageId, OnFull
from app.session_changes import DraftMeasured, SessionChange
from inference.errors import ComputeError
from tests.app.fake_engine import FakeScript
from tests.ui.open_window import OpenWindow, wait_for
from ui.chat.full_chat_words import full_words, hint_words, summary_words, too_long_words
from ui.dialogs.chat_settings import ChatSettingsDialog
from ui.replies.left_out_mark import LeftOutMark
from ui.replies.message_view import OwnMessageView

Opener = Callable[..., OpenWindow]
LONG = "More words than there is surely room for, so they are measured before they are sent. " * 30
CARD = ["Leave out the oldest", "New chat with a summary", "Not now"]


@pytest.fixture
def full(open_window: Opener) -> OpenWindow:
    """A chat of two messages with room for no third one."""
    window = open_window(FakeScript(replies=["One."], message_tokens=700, context_tokens=2048))
    window.start_engine()
    window.say("First")
    return window


def _buttons(window: OpenWindow) -> list[str]:
    return [button.text() for button in window.chat.full_card.buttons]


def _type_too_much(window: OpenWindow, text: str = "More") -> None:
    window.type(text)
    window.wait(window.chat.full_card.isVisible)


# ---------------------------------------------------------------- before sending


def test_card_says_before_sending_that_the_draft_does_not_fit(full: OpenWindow) -> None:
    assert not full.chat.full_card.isVisible()
    _type_too_much(full)
    card = full.chat.full_card
    title, text = card.text.split("\n")
    assert title == "This chat is full"
    assert text == (
        "Leave out the oldest messages, or start a new chat. It takes 2,100 tokens, and 2,048 fit."
    )
    assert card.accessibleName() == f"{title} {text}"
    assert _buttons(full) == CARD
    assert full.chat.composer.text == "More"
    assert len(full.engine.requests) == 1
    assert full.chat.messages.geometry().bottom() < card.geometry().top()
    assert card.geometry().bottom() < full.chat.composer.geometry().bottom()
    card.grab()


def test_status_bar_counts_what_the_card_counts_while_it_is_there(full: OpenWindow) -> None:
    context = full.window.status.context
    before = context.text
    assert before == "Context 33 / 2,048"  # of the last reply, as the engine said
    _type_too_much(full)
    assert context.text == "Context 2,100 / 2,048"
    assert "2,100 tokens, and 2,048 fit" in full.chat.full_card.text
    full.chat.composer.set_text("")
    full.wait(lambda: not full.chat.full_card.isVisible())
    assert context.text == before


def test_card_goes_when_the_draft_is_short_enough_again(full: OpenWindow) -> None:
    _type_too_much(full)
    full.chat.composer.set_text("")
    full.wait(lambda: not full.chat.full_card.isVisible())


def test_draft_that_fits_is_measured_and_nothing_is_said(open_window: Opener) -> None:
    window = open_window(FakeScript(message_tokens=100))
    window.start_engine()
    window.say("First")
    seen: list[SessionChange] = []
    window.session.subscribe(seen.append)
    window.type("More")
    window.wait(lambda: DraftMeasured(300, 2048, fits=True) in seen)
    assert not window.chat.full_card.isVisible()
    assert not window.chat.hint.isVisible()


def test_full_chat_says_so_when_it_is_opened_and_another_does_not(full: OpenWindow) -> None:
    full.script.message_tokens = 1000
    full.controller.new_chat()
    assert not full.chat.full_card.isVisible()
    full.click_chat("First")
    full.wait(full.chat.full_card.isVisible)
    full.controller.new_chat()
    assert not full.chat.full_card.isVisible()


def test_end_of_a_reply_that_filled_the_chat_is_measured(open_window: Opener) -> None:
    window = open_window(FakeScript(message_tokens=950))
    window.start_engine()
    window.say("First")
    window.wait(window.chat.full_card.isVisible)
    assert "It takes 1,900 of 2,048 tokens, and a reply needs room too." in (
        window.chat.full_card.text
    )


# ---------------------------------------------------------------- what is chosen


def test_leave_out_is_kept_and_says_so_in_a_small_line(full: OpenWindow) -> None:
    _type_too_much(full)
    full.click("Leave out the oldest", full.chat.full_card)
    assert full.session.chat_settings.on_full == "leave_out"
    assert not full.chat.full_card.isVisible()
    assert full.chat.hint.isVisible()
    assert full.chat.hint.text == "This chat is full: the oldest messages will be left out."
    assert full.chat.hint.accessibleName() == full.chat.hint.text
    assert full.window.focusWidget() is full.chat.composer.input
    assert len(full.engine.requests) == 1
    full.chat.hint.grab()


def test_left_out_messages_are_marked_when_the_reply_is_there(full: OpenWindow) -> None:
    _type_too_much(full)
    full.click("Leave out the oldest", full.chat.full_card)
    full.press(Qt.Key.Key_Return)
    full.wait(lambda: full.texts == ["First", "One.", "More", "One."])
    full.wait(lambda: not full.session.is_replying)
    assert full.prompts[-1] == ["More"]
    mark = full.chat.messages.findChildren(LeftOutMark)[0]
    full.wait(mark.isVisible)
    one, more = (full.view(message.id) for message in full.messages[1:3])
    assert one.geometry().bottom() < mark.y() < more.y()
    full.controller.new_chat()
    full.click_chat("First")
    full.wait(mark.isVisible)


def test_enter_in_a_full_chat_keeps_the_text_and_the_choice_sends_it(full: OpenWindow) -> None:
    full.chat.composer.set_text(LONG)
    full.press(Qt.Key.Key_Return)  # before it was measured
    assert full.chat.composer.text == ""
    full.wait(full.chat.full_card.isVisible)
    assert full.chat.composer.text == LONG
    assert len(full.engine.requests) == 1
    full.click("Leave out the oldest", full.chat.full_card)
    full.wait(lambda: len(full.engine.requests) == 2 and not full.session.is_replying)
    assert full.prompts[-1] == [LONG]
    assert full.chat.composer.text == ""


def test_choice_sends_a_draft_that_was_known_to_be_too_long_when_it_was_sent(
    full: OpenWindow,
) -> None:
    full.chat.composer.set_text(LONG)
    full.wait(full.chat.full_card.isVisible)
    full.press(Qt.Key.Key_Return)
    assert full.chat.composer.text == LONG
    full.click("Leave out the oldest", full.chat.full_card)
    full.wait(lambda: full.prompts[-1] == [LONG] and not full.session.is_replying)
    assert full.chat.composer.text == ""


def test_choice_does_not_send_what_is_still_being_written(full: OpenWindow) -> None:
    full.chat.composer.set_text(LONG)
    full.wait(full.chat.full_card.isVisible)
    full.press(Qt.Key.Key_Return)
    full.chat.composer.set_text(LONG + "and")
    full.click("Leave out the oldest", full.chat.full_card)
    assert full.chat.composer.text == LONG + "and"
    assert not full.session.is_replying


@pytest.fixture
def crowded(open_window: Opener) -> OpenWindow:
    """A chat of four messages in a model in which only two fit."""
    # So long that nothing about it is sure.
    window = open_window(FakeScript(replies=["One.", "Two."], prefill_tokens=1700))
    window.start_engine()
    window.say("First")
    window.say("Second")
    window.wait(lambda: window.texts == ["First", "One.", "Second", "Two."])
    window.wait(lambda: not window.session.is_replying)
    window.script.message_tokens = 700
    window.start_engine("/models/smaller.gguf")
    window.wait(window.chat.full_card.isVisible)
    return window


def test_another_reply_that_was_refused_comes_with_the_choice(crowded: OpenWindow) -> None:
    crowded.chat.composer.set_text("A draft")
    crowded.wait(lambda: "3,500 tokens" in crowded.chat.full_card.text)
    crowded.session.regenerate(crowded.messages[-1].id)
    crowded.wait(lambda: "2,100 tokens" in crowded.chat.full_card.text)
    crowded.click("Leave out the oldest", crowded.chat.full_card)
    crowded.wait(lambda: len(crowded.engine.requests) == 1 and not crowded.session.is_replying)
    assert crowded.prompts == [["Second"]]
    assert crowded.texts == ["First", "One.", "Second", "One."]
    assert crowded.chat.composer.text == "A draft"


def test_three_answers_that_were_refused_come_with_the_choice(crowded: OpenWindow) -> None:
    crowded.session.regenerate(crowded.messages[-1].id, 3)
    crowded.wait(lambda: "2,100 tokens" in crowded.chat.full_card.text)
    assert crowded.engine.requests == []
    crowded.click("Leave out the oldest", crowded.chat.full_card)
    crowded.wait(lambda: len(crowded.engine.requests) == 3 and not crowded.session.is_replying)
    assert crowded.prompts == [["Second"]] * 3


def test_draft_begun_after_a_refused_reply_is_what_the_choice_is_about(
    crowded: OpenWindow,
) -> None:
    crowded.session.regenerate(crowded.messages[-1].id)
    crowded.wait(lambda: "2,100 tokens" in crowded.chat.full_card.text)
    crowded.type("Third")
    crowded.click("Leave out the oldest", crowded.chat.full_card)
    assert not crowded.session.is_replying
    assert crowded.chat.composer.text == "Third"


def _refuse_edit(window: OpenWindow, message_id: MessageId) -> OwnMessageView:
    view = window.view(message_id)
    assert isinstance(view, OwnMessageView)
    window.chat.composer.set_text("")
    view.start_editing("Otherwise")
    window.click("Save", view)
    window.wait(lambda: "2,100 tokens" in window.chat.full_card.text)
    return view


@pytest.mark.parametrize("was_measured", [False, True])
def test_edit_that_was_refused_comes_with_the_choice(
    crowded: OpenWindow, was_measured: bool
) -> None:
    second = crowded.messages[2].id
    crowded.session.choose_on_full("new_chat")
    crowded.controller.full_chat.refresh()
    view = _refuse_edit(crowded, second)
    if was_measured:
        view = _refuse_edit(crowded, second)
    assert view.edited_text == "Otherwise"
    assert crowded.chat.composer.text == ""
    assert not crowded.chat.hint.isVisible()
    crowded.click("Leave out the oldest", crowded.chat.full_card)
    crowded.wait(lambda: len(crowded.engine.requests) == 1 and not crowded.session.is_replying)
    assert crowded.texts == ["First", "One.", "Otherwise", "One."]
    assert crowded.chat.composer.text == ""


def test_edit_comes_back_before_what_was_written_in_its_editor_since(crowded: OpenWindow) -> None:
    view = crowded.view(crowded.messages[2].id)
    assert isinstance(view, OwnMessageView)
    crowded.chat.composer.set_text("A draft")
    view.start_editing("Otherwise")
    crowded.click("Save", view)
    view.start_editing("since")
    crowded.wait(lambda: view.edited_text == "Otherwise\n\nsince")
    assert crowded.chat.composer.text == "A draft"


def test_edit_goes_back_to_its_message_when_the_summary_is_stopped(crowded: OpenWindow) -> None:
    view = _refuse_edit(crowded, crowded.messages[2].id)
    seen = [view.edited_text]
    gate = threading.Event()
    crowded.script.before_step = lambda: wait_for(gate)
    crowded.click("New chat with a summary", crowded.chat.full_card)
    seen.append(view.edited_text)
    crowded.script.before_step = None
    crowded.wait(lambda: _buttons(crowded) == ["Stop"])
    crowded.click("Stop", crowded.chat.full_card)
    gate.set()
    assert [*seen, view.edited_text] == ["Otherwise", None, "Otherwise"]
    assert crowded.chat.composer.text == ""


def test_edit_that_is_still_open_goes_into_the_new_chat(crowded: OpenWindow) -> None:
    _refuse_edit(crowded, crowded.messages[2].id)
    crowded.script.message_tokens = 100
    crowded.click("New chat with a summary", crowded.chat.full_card)
    crowded.wait(lambda: crowded.texts == ["Otherwise", "Two."])


def test_edit_that_was_refused_is_not_lost_when_another_chat_is_opened(
    crowded: OpenWindow,
) -> None:
    second = crowded.messages[2].id
    _refuse_edit(crowded, second)
    crowded.controller.new_chat()
    assert crowded.chat.composer.text == ""
    crowded.click_chat("First")
    assert crowded.chat.composer.text == "Otherwise"
    view = crowded.view(second)
    assert isinstance(view, OwnMessageView)
    view.start_editing()  # and left as it was
    crowded.controller.new_chat()
    crowded.click_chat("First")
    assert crowded.chat.composer.text == "Otherwise"


@pytest.mark.parametrize("choice", ["ask", "stop", "new_chat", "leave_out"])
def test_message_that_is_too_long_alone_is_told_so(open_window: Opener, choice: OnFull) -> None:
    window = open_window(FakeScript(message_tokens=3000))
    window.start_engine()
    window.session.choose_on_full(choice)
    window.chat.composer.set_text(LONG)
    window.press(Qt.Key.Key_Return)
    window.wait(window.chat.full_card.isVisible)
    title, text = window.chat.full_card.text.split("\n")
    assert (title, text) == too_long_words(3000, 2048, has_instructions=False)
    assert _buttons(window) == []
    assert not window.chat.hint.isVisible()
    assert window.chat.composer.text == LONG
    assert window.chat.composer.button.toolTip() == title
    assert window.engine.requests == []
    window.script.message_tokens = 100
    window.chat.composer.set_text("Short")
    window.wait(window.chat.composer.button.isEnabled)
    assert not window.chat.full_card.isVisible()


@pytest.mark.parametrize("choice", ["ask", "stop"])
def test_enter_right_after_a_too_long_text_became_another_sends_it(
    open_window: Opener, choice: OnFull
) -> None:
    window = open_window(FakeScript(replies=["One."], message_tokens=3000))
    window.start_engine()
    window.session.choose_on_full(choice)
    window.chat.composer.set_text(LONG)
    window.press(Qt.Key.Key_Return)
    window.wait(window.chat.full_card.isVisible)
    window.press(Qt.Key.Key_Return)  # it is what it was
    assert window.engine.requests == []
    window.script.message_tokens = 100
    window.chat.composer.set_text("Short")
    window.press(Qt.Key.Key_Return)  # before its length is known
    window.wait(lambda: len(window.engine.requests) == 1)
    assert window.chat.composer.text == ""


@pytest.mark.parametrize("choice", ["ask", "stop", "new_chat", "leave_out"])
def test_message_that_no_chat_could_take_is_told_so_in_one_with_turns(
    open_window: Opener, choice: OnFull
) -> None:
    window = open_window(FakeScript(replies=["One."], message_tokens=100))
    window.start_engine()
    window.say("First")
    window.session.choose_on_full(choice)
    window.script.message_tokens = 3000
    window.chat.composer.set_text(LONG)
    window.press(Qt.Key.Key_Return)
    window.wait(window.chat.full_card.isVisible)
    title, text = window.chat.full_card.text.split("\n")
    assert (title, text) == too_long_words(3000, 2048, has_instructions=False)
    assert _buttons(window) == []
    assert not window.chat.hint.isVisible()
    assert window.chat.composer.text == LONG
    assert not window.chat.composer.button.isEnabled()
    assert window.texts == ["First", "One."]
    assert len(window.engine.requests) == 1


def test_question_that_failed_at_once_is_marked_when_the_next_one_is_sent(
    open_window: Opener,
) -> None:
    window = open_window(FakeScript(replies=["One.", "Two."]))
    window.start_engine()
    window.say("First")
    window.script.request_error = ComputeError("The device failed.")
    window.say("Lost")
    window.script.request_error = None
    window.say("Second")
    assert window.prompts[-1] == ["First", "One.", "Second"]
    mark = window.chat.messages.findChildren(LeftOutMark)[-1]
    window.wait(mark.isVisible)
    failed, second = (window.view(message.id) for message in window.messages[3:5])
    assert failed.geometry().bottom() < mark.y() < second.y()


def test_not_now_sends_nothing_and_offers_to_choose_otherwise(full: OpenWindow) -> None:
    _type_too_much(full)
    full.click("Not now", full.chat.full_card)
    assert full.session.chat_settings.on_full == "stop"
    assert "Sending is off." in full.chat.full_card.text
    assert _buttons(full) == CARD[:2]
    button = full.chat.composer.button
    assert not button.isEnabled()
    assert button.toolTip() == "This chat is full"
    full.press(Qt.Key.Key_Return)
    assert full.chat.composer.text == "More"
    assert len(full.engine.requests) == 1
    full.click("Leave out the oldest", full.chat.full_card)
    assert button.isEnabled()
    full.press(Qt.Key.Key_Return)
    full.wait(lambda: full.prompts[-1] == ["More"])


def test_card_is_reached_and_used_by_keys_alone(full: OpenWindow) -> None:
    _type_too_much(full)
    seen = []
    for _ in range(3):
        full.press(Qt.Key.Key_Backtab)
        seen.append(full.window.focusWidget())
    assert seen == full.chat.full_card.buttons[::-1]
    full.press(Qt.Key.Key_Space)
    assert full.session.chat_settings.on_full == "leave_out"
    assert full.window.focusWidget() is full.chat.composer.input


# ---------------------------------------------------------------- a new chat with a summary


def test_new_chat_with_a_summary_takes_the_message_along(full: OpenWindow) -> None:
    full.script.replies = ["One.", "They said one.", "Two."]
    _type_too_much(full)
    full.click("New chat with a summary", full.chat.full_card)
    full.wait(lambda: full.texts == ["More", "Two."] and not full.session.is_replying)
    assert full.titles == ["First (continued)", "First"]
    assert full.chat.messages.isVisible()
    assert not full.chat.empty.isVisible()
    assert "They said one." in full.prompts[-1][0]
    assert full.prompts[-1][1:] == ["More"]
    assert full.chat.composer.text == ""
    assert not full.chat.full_card.isVisible()
    full.click_chat("First")
    assert full.texts == ["First", "One."]
    assert full.chat.composer.text == ""


def test_first_message_of_an_empty_chat_that_is_stored_is_in_sight(full: OpenWindow) -> None:
    full.script.message_tokens = 100
    full.script.replies = ["One.", "They said one.", "Two."]
    full.session.continue_in_new_chat("")
    full.wait(lambda: full.titles == ["First (continued)", "First"])
    assert full.texts == []
    assert full.chat.empty.isVisible()
    assert not full.chat.messages.isVisible()
    full.say("More")
    full.wait(lambda: full.texts == ["More", "Two."])
    assert full.chat.messages.isVisible()
    assert not full.chat.empty.isVisible()
    assert all(full.view(message.id).isVisible() for message in full.messages)
    assert full.chat.composer.input.accessibleDescription() == "Write the next message"


def test_message_that_leaves_no_room_for_a_summary_stays_where_it_was(full: OpenWindow) -> None:
    full.script.message_tokens = 900
    _type_too_much(full)
    full.click("New chat with a summary", full.chat.full_card)
    full.wait(full.chat.toast.isVisible)
    assert full.chat.toast.text == (
        "This message and a summary do not fit together into a new chat. "
        "Shorten the message, or start a new chat without a summary."
    )
    assert full.chat.composer.text == "More"
    assert full.texts == ["First", "One."]
    assert full.titles == ["First"]
    assert len(full.engine.requests) == 1
    full.wait(lambda: _buttons(full) == CARD)


@pytest.fixture
def summing(full: OpenWindow) -> OpenWindow:
    """The summary of the chat is being made, and waits."""
    gate = threading.Event()
    full.script.before_step = lambda: wait_for(gate)
    _type_too_much(full)
    full.click("New chat with a summary", full.chat.full_card)
    full.wait(lambda: full.session.is_summarising and len(full.engine.requests) == 2)
    full.script.before_step = None
    full.wait(lambda: _buttons(full) == ["Stop"])
    full.gate = gate  # type: ignore[attr-defined]  # opened by the test
    return full


def _open_gate(window: OpenWindow) -> None:
    window.gate.set()  # type: ignore[attr-defined]  # of the fixture


def test_card_tells_that_the_chat_is_summed_up_and_nothing_can_be_sent(summing: OpenWindow) -> None:
    title, text = summing.chat.full_card.text.split("\n")
    assert title == "Summarising this chat…"
    assert text == "Your message is kept and goes into the new chat."
    assert summing.chat.composer.text == ""
    summing.type("later")
    assert not summing.chat.composer.button.isEnabled()
    summing.chat.full_card.grab()
    _open_gate(summing)


def test_stopped_summary_gives_the_text_back(summing: OpenWindow) -> None:
    summing.click("Stop", summing.chat.full_card)
    assert summing.chat.composer.text == "More"
    _open_gate(summing)
    summing.wait(lambda: _buttons(summing) == CARD)
    assert summing.texts == ["First", "One."]
    assert not summing.chat.toast.isVisible()


def test_text_that_comes_back_never_overwrites_what_was_typed_since(summing: OpenWindow) -> None:
    summing.type("later")
    summing.click("Stop", summing.chat.full_card)
    assert summing.chat.composer.text == "More\n\nlater"
    _open_gate(summing)


def test_text_comes_back_to_its_own_chat_when_another_is_opened(summing: OpenWindow) -> None:
    summing.controller.new_chat()
    assert summing.chat.composer.text == ""
    assert not summing.chat.full_card.isVisible()
    _open_gate(summing)
    summing.click_chat("First")
    assert summing.chat.composer.text == "More"


def test_failed_summary_is_told_and_gives_the_text_back(summing: OpenWindow) -> None:
    summing.script.error_after_tokens = 0
    summing.script.reply_error = ComputeError("The device failed.")
    _open_gate(summing)
    summing.wait(summing.chat.toast.isVisible)
    assert "The device failed." in summing.chat.toast.text
    assert summing.chat.composer.text == "More"
    summing.wait(lambda: _buttons(summing) == CARD)


# ---------------------------------------------------------------- in the chat's settings


def _settings(window: OpenWindow) -> ChatSettingsDialog:
    window.controller.open_chat_settings()
    dialog = window.controller.dialog
    assert isinstance(dialog, ChatSettingsDialog)
    return dialog


def test_choice_can_be_changed_in_the_settings_of_the_chat(full: OpenWindow) -> None:
    full.chat.composer.set_text(LONG)
    full.wait(full.chat.full_card.isVisible)
    dialog = _settings(full)
    assert dialog.on_full["ask"].isChecked()
    dialog.on_full["ask"].setFocus()
    QTest.keyClick(dialog.on_full["ask"], Qt.Key.Key_Right)
    QTest.keyClick(dialog.on_full["stop"], Qt.Key.Key_Right)
    assert dialog.on_full["new_chat"].isChecked()
    QTest.mouseClick(dialog.save_button, Qt.MouseButton.LeftButton)
    assert full.session.chat_settings.on_full == "new_chat"
    assert not full.chat.full_card.isVisible()
    assert full.chat.hint.text == hint_words("new_chat")
    full.script.replies = ["One.", "Sum.", "Two."]
    full.chat.composer.input.setFocus()
    full.press(Qt.Key.Key_Return)
    full.wait(lambda: full.texts == [LONG, "Two."])


def test_other_settings_are_saved_without_losing_the_choice(full: OpenWindow) -> None:
    full.session.choose_on_full("leave_out")
    dialog = _settings(full)
    assert dialog.on_full["leave_out"].isChecked()
    dialog.prompt_field.input.setPlainText("Be brief.")
    QTest.mouseClick(dialog.save_button, Qt.MouseButton.LeftButton)
    assert full.session.chat_settings.system_prompt == "Be brief."
    assert full.session.chat_settings.on_full == "leave_out"
    dialog = _settings(full)
    QTest.mouseClick(dialog.reset_button, Qt.MouseButton.LeftButton)
    assert dialog.on_full["ask"].isChecked()


# ---------------------------------------------------------------- words and room


def test_words_name_the_two_numbers_that_matter() -> None:
    assert full_words(900, 1000, is_off=False)[1].endswith(
        "It takes 900 of 1,000 tokens, and a reply needs room too."
    )
    assert full_words(1001, 1000, is_off=True)[1] == (
        "Sending is off. It takes 1,001 tokens, and 1,000 fit."
    )
    assert too_long_words(1001, 1000, has_instructions=False) == (
        "This message is too long",
        "It takes 1,001 tokens, and 1,000 fit. Make it shorter.",
    )
    assert too_long_words(900, 1000, has_instructions=True)[1] == (
        "With the instructions of this chat it takes 900 of 1,000 tokens, and a reply needs room"
        " too. Make one of them shorter."
    )
    assert summary_words(1234, has_message=False)[1] == "1,234 characters so far."
    assert summary_words(0, has_message=False)[1] == "A new chat opens when it is done."
    assert hint_words("ask") == hint_words("stop") == ""


@pytest.mark.parametrize("percent", [100, 150, 200])
def test_every_button_of_the_card_is_in_sight_in_the_smallest_window(
    full: OpenWindow, percent: int
) -> None:
    full.window.resize(640, 480)
    full.program.theme.set_text_size(percent)
    _type_too_much(full)
    card = full.chat.full_card
    for button in card.buttons:
        assert button.visibleRegion().boundingRect().size() == button.size()
        assert button.width() == button.sizeHint().width()
    assert card.geometry().top() >= full.chat.header.geometry().bottom()
