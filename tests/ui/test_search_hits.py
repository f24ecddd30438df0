"""A chat that was found is shown where the words are."""

from collections.abc import Callable

import pytest
from PySide6.QtCore import QPoint, Qt

from app.conversation import MessageId
from tests.app.fake_engine import FakeScript
from tests.ui.open_window import OpenWindow
from ui.replies.reply_leaf import Leaf

Opener = Callable[..., OpenWindow]

_PARTS = [
    f"Paragraph {number} speaks of nothing.\n\n{'Some more words. ' * 12}" for number in range(14)
]
_WORD = [*_PARTS[:7], "Here the 🦓 Zebra lives.\n\n", *_PARTS[7:]]
_CODE = [*_PARTS[:7], "```python\n# one\nzebra = 1\n```", *_PARTS[7:]]
_TABLE = [*_PARTS[:7], "| a | b |\n|---|---|\n| x | zebra |", *_PARTS[7:]]


def make_chats(open_window: Opener, parts: list[str]) -> OpenWindow:
    """A chat of three long replies, the word in the middle of the first, and an empty one on top."""
    long = "\n\n".join(_PARTS)
    window = open_window(FakeScript(replies=["\n\n".join(parts), long, long, "Other.", "Yes."]))
    window.start_engine()
    for text in ("Animals", "More", "And more"):
        window.say(text)
    assert len(window.texts) == 6
    window.press(Qt.Key.Key_N, Qt.KeyboardModifier.ControlModifier)
    window.say("Money")
    return window


def open_hit(window: OpenWindow, words: str, title: str = "Animals") -> None:
    window.sidebar.search_field.setText(words)
    window.wait(lambda: not window.controller.sidebar._search.isActive())
    assert window.titles == [title]
    window.click_chat(title)
    window.wait(lambda: window.chat.messages.is_settled)


def is_in_sight(window: OpenWindow, leaf: Leaf) -> bool:
    """Whether a block is where words that were sought are shown."""
    wanted = window.chat.messages.viewport().height() // 4
    return abs(top_on_screen(window, leaf) - wanted) <= 1


def leaf_with(window: OpenWindow, text: str) -> Leaf:
    leaves = [leaf for leaf in window.chat.messages._all_leaves() if text in leaf.plain_text()]
    assert len(leaves) == 1
    return leaves[0]


def top_on_screen(window: OpenWindow, leaf: Leaf) -> int:
    viewport = window.chat.messages.viewport()
    return viewport.mapFromGlobal(leaf.mapToGlobal(QPoint(0, 0))).y()


@pytest.mark.parametrize(
    ("parts", "text", "selected"),
    [(_WORD, "Zebra", "Zebra"), (_CODE, "zebra", "zebra"), (_TABLE, "zebra", "")],
    ids=["text", "code", "table"],
)
def test_a_hit_opens_its_chat_where_the_word_is(
    open_window: Opener, parts: list[str], text: str, selected: str
) -> None:
    window = make_chats(open_window, parts)
    open_hit(window, "zebra")
    leaf = leaf_with(window, text)
    assert is_in_sight(window, leaf)
    assert window.chat.messages._selection.text() == selected
    assert not window.chat.messages.follows_end


def test_a_hit_in_the_open_chat_is_gone_to(open_window: Opener) -> None:
    window = make_chats(open_window, _WORD)
    window.click_chat("Animals")
    window.wait(lambda: window.chat.messages.is_settled)
    assert window.chat.messages.follows_end
    open_hit(window, "zeb")
    assert is_in_sight(window, leaf_with(window, "Zebra"))
    assert window.chat.messages._selection.text() == "Zeb"


def test_a_hit_in_the_title_alone_opens_the_end(open_window: Opener) -> None:
    window = make_chats(open_window, _WORD)
    window.session.rename_chat(window.session.conversations()[1].id, "Giraffes")
    open_hit(window, "giraffes", "Giraffes")
    assert window.chat.messages.follows_end


def test_a_hit_in_another_branch_shows_that_branch(open_window: Opener) -> None:
    window = open_window(FakeScript(replies=["About a zebra.", "About taxes."]))
    window.start_engine()
    window.say("Tell me")
    window.session.regenerate(window.messages[-1].id)
    window.wait(lambda: not window.session.is_replying)
    assert window.texts == ["Tell me", "About taxes."]
    open_hit(window, "zebra", "Tell me")
    assert window.texts == ["Tell me", "About a zebra."]
    stored = window.program.session._chats._store.leaf_of(window.session.conversations()[0].id)
    assert stored == window.messages[-1].id  # also after a restart
    assert window.chat.messages._selection.text() == "zebra"


def test_who_scrolls_meanwhile_stays_where_they_are(open_window: Opener) -> None:
    window = make_chats(open_window, _WORD)
    window.click_chat("Animals")
    window.wait(lambda: window.chat.messages.is_settled)
    messages = window.chat.messages
    found = window.messages[1].id
    messages._busy.add(found)  # something is still to be laid out
    messages.seek(found, ["zebra"])
    messages.verticalScrollBar().setValue(10)
    window.wait(lambda: messages.is_settled)
    assert messages.verticalScrollBar().value() == 10


def test_a_sought_message_that_is_gone_is_sought_no_more(open_window: Opener) -> None:
    window = make_chats(open_window, _WORD)
    window.click_chat("Animals")
    window.wait(lambda: window.chat.messages.is_settled)
    messages, path = window.chat.messages, window.messages
    messages._busy.add(path[1].id)
    messages.seek(path[1].id, ["zebra"])
    messages.show_path(path[:1], {})
    window.wait(lambda: messages.is_settled)
    assert messages._selection.is_empty
    assert messages._sought is None


def test_the_end_is_followed_again_after_a_new_question(open_window: Opener) -> None:
    window = make_chats(open_window, _WORD)
    open_hit(window, "zebra")
    window.say("And now?")
    assert window.texts[-1] == "Yes."
    window.wait(lambda: window.chat.messages.is_settled)
    assert window.chat.messages.follows_end


def test_an_unknown_message_is_no_place(open_window: Opener) -> None:
    window = make_chats(open_window, _WORD)
    before = window.texts
    window.session.open_chat(window.session.conversations()[0].id, MessageId(9999))
    assert window.texts == before
