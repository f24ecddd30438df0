"""What the footer of a reply says about guessing ahead, in words and on the screen."""

from dataclasses import replace

import pytest
from PySide6.QtGui import QColor, QFontMetrics
from pytestqt.qtbot import QtBot

from app.stored_values import metrics_from_text, metrics_to_text
from inference.metrics import RequestMetrics
from tests.ui.reply_helpers import make_list, make_message, make_theme, reply_view
from ui.replies.guess_words import guess_text, short_guess_text
from ui.replies.reply_footer import ReplyFooter, _fitting, numbers_text

PLAIN = RequestMetrics(
    prompt_tokens=1391, completion_tokens=81, ttft_ms=210.0, prefill_ms=210.0, decode_ms=1000.0
)
GUESSED = replace(
    PLAIN, drafted_tokens=142, accepted_tokens=101, verify_steps=30, plain_token_ms=20.0
)
WORDS = "Guessed ahead: 142 tokens, 71% accepted, 1.6× as fast"


@pytest.mark.parametrize(
    ("drafted", "accepted", "plain_ms", "text"),
    [
        (142, 101, 20.0, WORDS),
        (1420, 1420, 12.5, "Guessed ahead: 1,420 tokens, 100% accepted, 1.0× as fast"),
        (1, 0, 12.0, "Guessed ahead: 1 token, none accepted"),
        (4, 3, None, "Guessed ahead: 4 tokens, 3 accepted"),
        (19, 19, None, "Guessed ahead: 19 tokens, 19 accepted"),
        (20, 19, None, "Guessed ahead: 20 tokens, 95% accepted"),
        (142, 101, None, "Guessed ahead: 142 tokens, 71% accepted"),
        (0, 0, 20.0, ""),
        (0, 0, None, ""),
    ],
)
def test_guess_text_says_how_much_and_what_it_brought(
    drafted: int, accepted: int, plain_ms: float | None, text: str
) -> None:
    metrics = replace(
        PLAIN, drafted_tokens=drafted, accepted_tokens=accepted, plain_token_ms=plain_ms
    )
    assert guess_text(metrics) == text


def test_speed_up_of_a_reply_of_one_token_is_not_known() -> None:
    metrics = replace(GUESSED, completion_tokens=1, decode_ms=0.0)
    assert guess_text(metrics) == "Guessed ahead: 142 tokens, 71% accepted"


def test_short_guess_text_says_what_matters_most() -> None:
    assert short_guess_text(GUESSED) == "Guessed ahead: 71% accepted"
    assert short_guess_text(PLAIN) == ""
    few = replace(GUESSED, drafted_tokens=4, accepted_tokens=3)
    assert short_guess_text(few) == "Guessed ahead: 3 of 4 accepted"


def _footer(qtbot: QtBot, metrics: RequestMetrics) -> ReplyFooter:
    shown = make_list(qtbot, make_message(2, content="text", metrics=metrics))
    return reply_view(shown, 2).findChildren(ReplyFooter)[0]


def test_footer_tells_guesses_to_pointer_and_screen_reader(qtbot: QtBot) -> None:
    metrics = replace(GUESSED, reuse_stop="edited", reuse_stop_message=2)
    footer = _footer(qtbot, metrics)
    assert footer.guesses == WORDS
    assert footer.toolTip() == f"{numbers_text(metrics)}\n{WORDS}\n{footer.reason}"
    assert footer.accessibleDescription() == f"{numbers_text(metrics)}. {WORDS}. {footer.reason}"


def test_footer_has_one_line_for_guesses_and_another_one_for_the_reason(qtbot: QtBot) -> None:
    line = make_theme().line_height("small")
    stopped = {"reuse_stop": "edited", "reuse_stop_message": 2}
    plain, guessed = _footer(qtbot, PLAIN), _footer(qtbot, GUESSED)
    both = _footer(qtbot, replace(GUESSED, **stopped))  # type: ignore[arg-type]  # its fields
    assert plain.guesses == ""
    assert [guessed.height() - plain.height(), both.height() - plain.height()] == [line, 2 * line]


def test_guesses_are_painted_below_the_numbers_in_the_colour_of_the_numbers(qtbot: QtBot) -> None:
    theme = make_theme()
    plain, guessed = _footer(qtbot, PLAIN), _footer(qtbot, GUESSED)
    row = theme.px(30)
    below = guessed.grab().toImage().copy(0, row, guessed.width(), guessed.height() - row)
    color = QColor(theme.palette.text_3)
    found = [
        x
        for x in range(below.width())
        for y in range(below.height())
        if below.pixelColor(x, y) == color
    ]
    assert found
    assert max(found) - min(found) > 100
    assert plain.height() == row


def test_full_words_fit_into_the_narrowest_column_and_fewer_at_the_largest_text(
    qtbot: QtBot,
) -> None:
    theme = make_theme()
    footer = _footer(qtbot, GUESSED)
    narrowest = 640 - 2 * 16
    assert QFontMetrics(theme.font("small")).horizontalAdvance(WORDS) < narrowest
    theme.set_text_size(200)
    metrics = QFontMetrics(theme.font("small"))
    words = _fitting((WORDS, short_guess_text(GUESSED)), metrics, narrowest)
    assert words in (WORDS, "Guessed ahead: 71% accepted")
    assert metrics.horizontalAdvance(words) <= narrowest
    assert footer.guesses == WORDS


def test_guesses_are_there_again_when_a_chat_is_read_from_the_disk(qtbot: QtBot) -> None:
    stored = metrics_from_text(metrics_to_text(GUESSED))
    assert stored == GUESSED
    assert _footer(qtbot, stored).guesses == WORDS


def test_reply_that_was_stored_before_there_were_guesses_has_none(qtbot: QtBot) -> None:
    old = metrics_from_text('{"prompt_tokens": 9, "completion_tokens": 5, "ttft_ms": 10.0}')
    assert old is not None
    assert _footer(qtbot, old).guesses == ""
