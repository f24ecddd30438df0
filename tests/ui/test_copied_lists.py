"""What is copied of lists: their marks, as they are seen."""

import pytest
from pytestqt.qtbot import QtBot

from tests.ui.reply_helpers import make_list, make_message, settle

NESTED = "Buy:\n\n- milk\n- bread\n  1. dark\n  2. light\n- eggs\n\n  the brown ones\n\nAnd go."


@pytest.mark.parametrize(
    ("source", "copied"),
    [
        ("- milk\n- bread", "• milk\n• bread"),
        ("3. three\n4. four", "3. three\n4. four"),
        (
            NESTED,
            "Buy:\n\n• milk\n• bread\n  1. dark\n  2. light\n• eggs\n\n  the brown ones\n\nAnd go.",
        ),
        ("- one\n- ```\n  code\n  ```", "• one\n• code"),
        ("- one\n- two\n1. first\n2. second", "• one\n• two\n\n1. first\n2. second"),
        ("> said\n\n- one", "said\n\n• one"),
        ("- one\n\ntext\n\n- two", "• one\n\ntext\n\n• two"),
    ],
)
def test_all_of_a_reply_is_copied_with_its_marks(qtbot: QtBot, source: str, copied: str) -> None:
    shown = make_list(qtbot, make_message(1, content=source))
    shown._selection.select_all()
    assert shown._selection.text() == copied


def test_an_item_that_is_not_selected_from_its_beginning_has_no_mark(qtbot: QtBot) -> None:
    shown = make_list(qtbot, make_message(1, content="- milk\n- bread"))
    first, second = shown._all_leaves()
    shown._selection.select(first, 1, 3)
    assert shown._selection.text() == "il"
    shown._selection._cover((first, 2), (second, 5))
    assert shown._selection.text() == "lk\n• bread"
    shown._selection.select(second, 0, 5)
    assert shown._selection.text() == "• bread"


def test_marks_are_not_mixed_up_between_messages(qtbot: QtBot) -> None:
    """Both lists begin in line 0 of their message."""
    shown = make_list(qtbot, make_message(1, content="- milk"), make_message(2, content="- milk"))
    settle(qtbot, shown)
    shown._selection.select_all()
    assert shown._selection.text() == "• milk\n\n• milk"
