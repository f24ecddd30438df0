"""The window stays alive: how long the GUI thread is busy at a stretch while a reply streams."""

import time

import pytest
from PySide6.QtCore import QTimer
from pytestqt.qtbot import QtBot

from app.conversation import MessageId
from tests.ui.beat import Beat
from tests.ui.machine_speed import slowness
from tests.ui.reply_helpers import make_list, make_message, settle
from ui.replies.message_list import MessageList
from ui.replies.warm_up import warm_up

pytestmark = pytest.mark.usefixtures("spared_collector")

TOKENS_PER_S = 200
CHARS_PER_TOKEN = 4
WORST_MS = 50.0
USUAL_MS = 10.0

PART = (
    "## Part\n\n"
    + "The **rule of 72** says that money doubles after `72 / rate` years, which is *close*. " * 5
    + "\n\n"
    + "- an item of a list with `code` and **bold** words\n" * 6
    + "\n```python\n"
    + 'def function(value: float) -> float:\n    """Say why."""\n    return value * 2  # twice\n\n'
    * 8
    + "```\n\n| a | b |\n|---|--:|\n"
    + "| some words | 12.50 |\n" * 6
    + "\n"
)


def stream(qtbot: QtBot, shown: MessageList, *, num_tokens: int, start_with: str = "") -> Beat:
    shown.begin_reply(make_message(2, content=start_with, status="streaming"))
    settle(qtbot, shown)
    text = PART * (num_tokens * CHARS_PER_TOKEN // len(PART) + 1)
    start = time.perf_counter()
    position = 0
    beat = Beat()

    def feed() -> None:
        nonlocal position
        due = min(int((time.perf_counter() - start) * TOKENS_PER_S), num_tokens)
        while position < due:
            piece = text[position * CHARS_PER_TOKEN : (position + 1) * CHARS_PER_TOKEN]
            shown.append_text(MessageId(2), piece)
            position += 1

    feeder = QTimer()
    feeder.timeout.connect(feed)
    feeder.start(5)
    qtbot.waitUntil(lambda: position == num_tokens, timeout=120_000)
    feeder.stop()
    beat.stop()
    return beat


def test_streaming_at_200_tokens_a_second_keeps_the_window_alive(qtbot):
    warm_up()
    shown = make_list(qtbot, make_message(1, "user", "question"))
    beat = stream(qtbot, shown, num_tokens=300)
    assert beat.share(1.0) < WORST_MS * slowness()
    assert beat.share(0.95) < USUAL_MS * slowness()


def test_streaming_costs_no_more_behind_a_long_reply(qtbot):
    warm_up()
    shown = make_list(qtbot, make_message(1, "user", "question"))
    before = PART * (7_000 * CHARS_PER_TOKEN // len(PART))
    beat = stream(qtbot, shown, num_tokens=300, start_with=before)
    assert beat.share(1.0) < WORST_MS * slowness()
    assert beat.share(0.95) < USUAL_MS * slowness()


@pytest.mark.slow
def test_streaming_eight_thousand_tokens_keeps_the_window_alive(qtbot):
    warm_up()
    shown = make_list(qtbot, make_message(1, "user", "question"))
    beat = stream(qtbot, shown, num_tokens=8_000)
    assert beat.share(1.0) < WORST_MS * slowness()
    assert beat.share(0.99) < USUAL_MS * slowness()


@pytest.mark.slow
def test_opening_a_long_chat_keeps_the_window_alive(qtbot):
    warm_up()
    shown = make_list(qtbot, make_message(1, "user", "question"))
    messages = [
        make_message(n, "user" if n % 2 else "assistant", "question" if n % 2 else PART)
        for n in range(10, 250)
    ]
    beat = Beat()
    shown.show_path(messages, {})
    settle(qtbot, shown)
    beat.stop()
    assert beat.share(1.0) < WORST_MS * slowness()
