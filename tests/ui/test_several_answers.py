"""Several answers at once, as a person sees them: rows, pager, stopping, and calm."""

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QAction
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from app.conversation import Message, MessageId
from app.session_changes import MessageChanged, ReplyGrew, ReplyPrefilling
from inference.config import SamplingParams
from tests.app.fake_engine import FakeScript
from tests.ui.open_window import OpenWindow
from tests.ui.reply_helpers import (
    button_named,
    collected,
    make_list,
    make_message,
    own_view,
    reply_view,
    settle,
)
from tests.ui.test_window_chat import Opener
from ui.controls.menus import Menu
from ui.replies.answer_rows import RunningRow, UnansweredRow
from ui.replies.message_list import MessageList
from ui.replies.reply_footer import VersionSwitch
from ui.replies.reply_view import ReplyView


def running_row(view: QWidget) -> RunningRow:
    (row,) = view.findChildren(RunningRow)
    return row


def open_more(view: ReplyView, shown: QWidget) -> dict[str, QAction]:
    """The menu behind the dots, by the words of its rows."""
    view.more_requested.emit()
    menu = shown.findChildren(Menu)[-1]
    menu.close()
    return {action.text(): action for action in menu.actions()}


def streaming_list(qtbot: QtBot) -> MessageList:
    """A question and a reply in the making, one of three versions."""
    shown = make_list(qtbot, make_message(1, "user", "q"))
    shown.begin_reply(make_message(3, status="streaming"), [MessageId(n) for n in (2, 3, 4, 5)])
    shown.set_running({MessageId(3): 3})
    settle(qtbot, shown)
    return shown


# ---------------------------------------------------------------- rows


def test_reply_in_the_making_shows_its_place_among_the_versions(qtbot: QtBot) -> None:
    shown = streaming_list(qtbot)
    row = running_row(reply_view(shown, 3))
    assert row.isVisible()
    assert row.text == "2 more answers are being written"
    (switch,) = row.findChildren(VersionSwitch)
    assert (switch.isVisible(), switch.label) == (True, "2 / 4")
    asked = collected(shown.version_requested)
    QTest.mouseClick(button_named(row, "Later version"), Qt.MouseButton.LeftButton)
    assert asked == [(4,)]


def test_reply_alone_in_the_making_shows_no_row(qtbot: QtBot) -> None:
    shown = make_list(qtbot, make_message(1, "user", "q"))
    shown.begin_reply(make_message(2, status="streaming"))
    shown.set_running({MessageId(2): 1})
    settle(qtbot, shown)
    assert running_row(reply_view(shown, 2)).isHidden()


def test_reply_made_again_shows_the_versions_and_nothing_to_stop_all(qtbot: QtBot) -> None:
    shown = make_list(qtbot, make_message(1, "user", "q"))
    shown.begin_reply(make_message(3, status="streaming"), [MessageId(2), MessageId(3)])
    shown.set_running({MessageId(3): 1})
    settle(qtbot, shown)
    row = running_row(reply_view(shown, 3))
    assert (row.isVisible(), row.text) == (True, "")


def test_reply_that_ended_first_says_that_others_are_still_written(qtbot: QtBot) -> None:
    shown = streaming_list(qtbot)
    versions = [MessageId(n) for n in (2, 3, 4, 5)]
    shown.update_message(make_message(3, content="done"), versions)
    view = reply_view(shown, 3)
    row = running_row(view)
    texts, heights = [], []
    for num_running in (2, 1, 0):
        shown.set_running({MessageId(3): num_running} if num_running else {})
        settle(qtbot, shown)
        texts.append(row.text)
        heights.append(view.height())
        visible = [switch for switch in view.findChildren(VersionSwitch) if switch.isVisible()]
        assert [switch.parent() is row for switch in visible] == [False]
    assert texts == ["2 more answers are being written", "1 more answer is being written", ""]
    assert heights == [heights[2] + row.wanted_height()] * 2 + [heights[2]]


def test_stop_all_asks_for_all_versions(qtbot: QtBot) -> None:
    shown = streaming_list(qtbot)
    asked = collected(shown.stop_all_requested)
    QTest.mouseClick(button_named(reply_view(shown, 3), "Stop all"), Qt.MouseButton.LeftButton)
    assert asked == [(3,)]


def test_row_stays_inside_a_narrow_column(qtbot: QtBot) -> None:
    shown = make_list(qtbot, make_message(1, "user", "q"), width=320)
    shown.begin_reply(make_message(3, status="streaming"), [MessageId(2), MessageId(3)])
    shown.set_running({MessageId(3): 2})
    settle(qtbot, shown)
    row = running_row(reply_view(shown, 3))
    stop: QWidget = button_named(row, "Stop all")
    assert row.rect().contains(stop.geometry())


def test_question_without_a_reply_offers_one_and_several(qtbot: QtBot) -> None:
    shown = make_list(
        qtbot,
        make_message(1, "user", "answered"),
        make_message(2, content="a"),
        make_message(3, "user", "left alone"),
    )
    qtbot.waitUntil(lambda: own_view(shown, 3).findChildren(UnansweredRow)[0].isVisible())
    settle(qtbot, shown)
    assert own_view(shown, 1).findChildren(UnansweredRow)[0].isHidden()
    one, several = collected(shown.regenerate_requested), collected(shown.several_requested)
    QTest.mouseClick(button_named(own_view(shown, 3), "Reply"), Qt.MouseButton.LeftButton)
    QTest.mouseClick(button_named(own_view(shown, 3), "3 answers"), Qt.MouseButton.LeftButton)
    assert (one, several) == ([(3,)], [(3,)])
    shown.begin_reply(make_message(4, status="streaming"))
    qtbot.waitUntil(lambda: own_view(shown, 3).findChildren(UnansweredRow)[0].isHidden())


def test_button_below_a_reply_asks_for_several_answers(qtbot: QtBot) -> None:
    shown = make_list(qtbot, make_message(1, "user", "q"), make_message(2, content="a"))
    asked = collected(shown.several_requested)
    button: QWidget = button_named(reply_view(shown, 2), "3 answers at once")
    assert button.toolTip() == "3 answers at once"
    QTest.mouseClick(button, Qt.MouseButton.LeftButton)
    assert asked == [(2,)]


def test_menu_of_a_reply_offers_several_answers(qtbot: QtBot) -> None:
    shown = make_list(qtbot, make_message(1, "user", "q"), make_message(2, content="a"))
    asked = collected(shown.several_requested)
    rows = open_more(reply_view(shown, 2), shown)
    rows["3 answers at once"].trigger()
    assert asked == [(2,)]
    assert not any(text.startswith("One only") for text in rows)


def test_menu_of_a_reply_says_when_all_answers_would_be_the_same(qtbot: QtBot) -> None:
    shown = make_list(qtbot, make_message(1, "user", "q"), make_message(2, content="a"))
    shown.alike_reason = lambda: "the temperature is 0"
    rows = open_more(reply_view(shown, 2), shown)
    assert not rows["One only, because the temperature is 0"].isEnabled()
    assert rows["3 answers at once"].isEnabled()


# ---------------------------------------------------------------- in the window


def ask_for_three(open_window: Opener, script: FakeScript) -> OpenWindow:
    """A window in which three more answers are being written; message 2 was the first one."""
    window = open_window(script)
    window.start_engine()
    script.tokens_per_s = None
    window.say("Question")
    script.tokens_per_s = 100.0
    view = window.view(window.messages[-1].id)
    assert isinstance(view, ReplyView)
    open_more(view, window.window)["3 answers at once"].trigger()
    window.wait(lambda: bool(window.texts[-1]))
    return window


def all_messages(window: OpenWindow) -> list[Message]:
    """Of all branches."""
    conversation = window.session.conversation
    assert conversation is not None
    return list(conversation.messages.values())


def long_reply(word: str) -> str:
    return f"{word} " * 3000


def long_replies() -> FakeScript:
    """A first answer, then three that are still written when the test is over."""
    return FakeScript(replies=["First.", long_reply("A"), long_reply("B"), long_reply("C")])


def wait_for_text(window: OpenWindow, view: ReplyView, num_chars: int) -> None:
    window.wait(lambda: len(view.text) > num_chars)


def switch_to(window: OpenWindow, name: str) -> None:
    shown_id = window.messages[-1].id
    view = window.view(shown_id)
    window.wait(lambda: window.button(name, view).isVisible())
    window.click(name, view)
    assert window.messages[-1].id != shown_id


def test_pager_shows_the_live_text_of_each_while_all_stream(open_window: Opener) -> None:
    window = ask_for_three(open_window, long_replies())
    assert window.messages[-1].id == 3
    seen = []
    for name in ("Later version", "Later version", "Earlier version"):
        window.wait(lambda: bool(window.texts[-1]))
        seen.append(window.texts[-1][0])
        view = window.view(window.messages[-1].id)
        assert isinstance(view, ReplyView)
        wait_for_text(window, view, len(view.text) + 20)
        assert set(view.text) == {seen[-1], " "}
        assert window.session.is_replying
        switch_to(window, name)
    assert seen == ["A", "B", "C"]
    switch_to(window, "Earlier version")
    switch_to(window, "Earlier version")
    assert (window.texts[-1], window.chat.composer.button.mode) == ("First.", "send")
    assert running_row(window.view(MessageId(2))).text == "3 more answers are being written"


def test_keyboard_goes_from_version_to_version_while_all_stream(open_window: Opener) -> None:
    window = ask_for_three(open_window, long_replies())
    arrow = window.button("Later version", window.view(MessageId(3)))
    window.wait(arrow.isVisible)
    arrow.setFocus(Qt.FocusReason.TabFocusReason)
    for message_id, name in ((4, "Later version"), (5, "Earlier version")):  # 5 is the last one
        window.press(Qt.Key.Key_Space)
        assert window.messages[-1].id == message_id
        view = window.view(MessageId(message_id))

        def has_focus(view: QWidget = view, name: str = name) -> bool:
            focused = window.window.focusWidget()
            return view.isAncestorOf(focused) and focused.accessibleName() == name

        window.wait(has_focus)
    window.session.stop_versions(MessageId(5))


def test_stop_by_button_ends_the_shown_answer_and_stop_all_the_others(open_window: Opener) -> None:
    window = ask_for_three(open_window, long_replies())
    window.click("Stop")
    window.wait(lambda: not window.session.is_replying)
    assert window.messages[-1].status == "stopped"
    assert window.session.running_versions() == {3: 2}
    row = running_row(window.view(MessageId(3)))
    window.wait(row.isVisible)
    assert row.text == "2 more answers are being written"
    window.click("Stop all", row)
    window.wait(lambda: not window.session.replying_chats())
    assert [message.status for message in all_messages(window)[2:]] == ["stopped"] * 3
    assert len(window.messages) == 2
    window.wait(row.isHidden)


def test_answers_that_end_unseen_do_not_join_the_chat(open_window: Opener) -> None:
    replies = ["First.", long_reply("A"), "B ends.", "C ends."]
    window = ask_for_three(open_window, FakeScript(replies=replies))
    window.wait(lambda: window.session.running_versions() == {3: 1})
    assert [message.id for message in window.messages] == [1, 3]
    assert window.chat.messages.view_of(MessageId(4)) is None
    switch_to(window, "Later version")
    assert window.texts[-1] == "B ends."
    assert window.chat.composer.button.mode == "send"
    row = running_row(window.view(MessageId(4)))
    window.wait(row.isVisible)
    assert row.text == "1 more answer is being written"
    window.session.stop_versions(MessageId(3))


def test_next_message_goes_on_while_other_answers_are_written(open_window: Opener) -> None:
    replies = ["First.", long_reply("A"), long_reply("B"), long_reply("C"), "And on."]
    window = ask_for_three(open_window, FakeScript(replies=replies))
    window.say("Next")
    assert window.texts[2:] == ["Next", "And on."]
    assert window.session.running_versions() == {3: 2}
    assert running_row(window.view(MessageId(3))).text == "2 more answers are being written"
    window.session.stop_versions(MessageId(3))
    window.wait(lambda: not window.session.replying_chats())


def test_sidebar_marks_every_chat_in_which_an_answer_is_written(open_window: Opener) -> None:
    window = ask_for_three(open_window, long_replies())
    first = window.chat_id("Question")
    window.click("New chat", window.sidebar)
    window.type("Other")
    window.press(Qt.Key.Key_Return)
    chats = window.sidebar.chat_list
    second = window.chat_id("Other")

    def marked() -> list[str]:
        return [
            chat_id
            for chat_id in (first, second)
            if "replying" in chats.row_state(chats.rows.index_of(chat_id))
        ]

    window.wait(lambda: marked() == [first, second])
    window.session.stop()
    window.wait(lambda: marked() == [first])
    window.click_chat("Question")
    assert window.session.is_replying
    window.session.stop_versions(MessageId(3))
    window.wait(lambda: marked() == [])


def test_three_answers_at_temperature_0_are_one_and_it_is_said(open_window: Opener) -> None:
    window = open_window(FakeScript(replies=["First.", "Again."]))
    window.start_engine()
    window.say("Question")
    window.program.settings.change(sampling=SamplingParams(temperature=0.0))
    view = window.view(MessageId(2))
    assert isinstance(view, ReplyView)
    open_more(view, window.window)["3 answers at once"].trigger()
    window.wait(lambda: window.texts[-1] == "Again." and not window.session.is_replying)
    assert len(window.engine.requests) == 2
    assert window.chat.toast.text == (
        "All answers would be the same, because the temperature is 0. So one is made."
    )


def test_window_that_is_closed_while_three_stream_shows_them_again(open_window: Opener) -> None:
    window = ask_for_three(open_window, long_replies())
    window.wait(lambda: all(message.content for message in all_messages(window)))
    window.close()
    again = open_window()
    again.session.open_chat(again.session.conversations()[0].id)
    statuses = [(message.content[:1], message.status) for message in all_messages(again)[2:]]
    assert statuses == [("A", "stopped"), ("B", "stopped"), ("C", "stopped")]
    assert again.messages[-1].id == 3


def test_hidden_answers_repaint_nothing(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = ["First.", "A ends.", long_reply("B"), long_reply("C")]
    window = ask_for_three(open_window, FakeScript(replies=replies))
    window.wait(lambda: not window.session.is_replying)
    window.wait(lambda: window.chat.messages.is_settled)
    length = len(all_messages(window)[3].content)
    window.wait(
        lambda: len(all_messages(window)[3].content) > length + 20
    )  # the last frame is over
    told: list[object] = []
    window.session.subscribe(told.append)
    placed: list[object] = []
    monkeypatch.setattr(window.chat.messages, "_place", placed.append)
    length = len(all_messages(window)[3].content)
    window.wait(lambda: len(all_messages(window)[3].content) > length + 60)
    growth = (ReplyGrew, ReplyPrefilling, MessageChanged)
    assert not any(isinstance(change, growth) for change in told)
    assert placed == []
    window.session.stop_versions(MessageId(3))
