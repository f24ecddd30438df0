"""What the footer of a reply says about reuse, in words and on the screen."""

import pytest
from PySide6.QtGui import QColor
from pytestqt.qtbot import QtBot

from inference.metrics import RequestMetrics, ReuseStop
from tests.ui.reply_helpers import make_list, make_message, make_theme, reply_view, settle
from ui.replies.reply_footer import ReplyFooter, _fitting, numbers_text
from ui.replies.reuse_words import reused_text, short_stop_text, stop_text


def _metrics(
    stop: ReuseStop | None = None,
    place: int | None = None,
    *,
    reused: int = 1204,
    ram: int = 0,
    disk: int = 0,
) -> RequestMetrics:
    return RequestMetrics(
        prompt_tokens=1391,
        reused_tokens=reused,
        reused_ram_tokens=ram,
        reused_disk_tokens=disk,
        completion_tokens=85,
        ttft_ms=210.0,
        decode_ms=1000.0,
        reuse_stop=stop,
        reuse_stop_message=place,
    )


@pytest.mark.parametrize(
    ("reused", "ram", "disk", "text"),
    [
        (0, 0, 0, ""),
        (1, 0, 0, "1 token reused (memory)"),
        (1204, 0, 0, "1,204 tokens reused (memory)"),
        (1204, 1204, 0, "1,204 tokens reused (memory)"),
        (1204, 0, 1204, "1,204 tokens reused (disk)"),
        (1204, 300, 204, "1,204 tokens reused (memory 1,000, disk 204)"),
    ],
)
def test_reused_text_says_how_many_and_from_where(
    reused: int, ram: int, disk: int, text: str
) -> None:
    assert reused_text(_metrics(reused=reused, ram=ram, disk=disk)) == text


@pytest.mark.parametrize(
    ("stop", "place", "text"),
    [
        (None, None, ""),
        ("edited", 2, "Read again from message 2, because it was edited"),
        ("edited", None, "Read again, because it was edited"),
        ("system_prompt", 0, "Read again from the start, because the system prompt changed"),
        (
            "template",
            3,
            "Read again from message 3, because the chat template writes it differently now",
        ),
        ("other_model", 2, "Read again from message 2, because another model wrote it"),
        ("other_model", 0, "Read again from the start, because another model wrote the replies"),
        ("left_out", 1, "Read again from message 1, because the oldest messages were left out"),
        ("evicted", 4, "Read again from message 4, because it had given way to other chats"),
        ("damaged", 5, "Read again from message 5, because a file on disk was damaged"),
        ("other_weights", 2, "Read again from message 2, because the model's file has changed"),
        ("other_computing", 2, "Read again from message 2, because it was computed in another way"),
        (
            "other_precision",
            2,
            "Read again from message 2, because it was read with another precision of the memory",
        ),
        ("no_room", 1, "Read again from message 1, because it could not be kept on disk"),
        ("not_kept", 0, "Read again from the start, because it is not kept"),
        ("not_kept", 3, "Read again from message 3, because it is not kept"),
    ],
)
def test_stop_text_says_where_and_why(stop: ReuseStop | None, place: int | None, text: str) -> None:
    assert stop_text(_metrics(stop, place, reused=0)) == text


def test_stop_text_does_not_say_from_the_start_where_a_part_of_that_was_reused() -> None:
    metrics = _metrics("system_prompt", 0, reused=82)
    assert stop_text(metrics) == "Read again, because the system prompt changed"
    metrics = _metrics("other_model", 0, reused=544)
    assert stop_text(metrics) == "Read again, because another model wrote the replies"


def test_stop_text_counts_the_messages_that_were_left_out() -> None:
    metrics = _metrics("edited", 2)
    assert stop_text(metrics, left_out=4).startswith("Read again from message 6, ")
    assert short_stop_text(metrics, left_out=4) == "Message 6 was edited"
    start = _metrics("system_prompt", 0, reused=0)
    assert stop_text(start, left_out=4).startswith("Read again from the start, ")


def test_every_reason_has_a_short_form() -> None:
    stops: tuple[ReuseStop, ...] = ReuseStop.__args__  # type: ignore[attr-defined]  # of a Literal
    for stop in stops:
        short = short_stop_text(_metrics(stop, 2))
        assert 0 < len(short) < len(stop_text(_metrics(stop, 2)))
    assert short_stop_text(_metrics("edited")) == "An earlier message was edited"
    assert short_stop_text(_metrics()) == ""


def _footer(qtbot: QtBot, metrics: RequestMetrics) -> ReplyFooter:
    shown = make_list(qtbot, make_message(2, content="text", metrics=metrics))
    return reply_view(shown, 2).findChildren(ReplyFooter)[0]


def test_footer_tells_the_reason_to_pointer_and_screen_reader(qtbot: QtBot) -> None:
    metrics = _metrics("edited", 2)
    footer = _footer(qtbot, metrics)
    numbers, reason = numbers_text(metrics), "Read again from message 2, because it was edited"
    assert footer.text == numbers
    assert footer.reason == reason
    assert footer.toolTip() == f"{numbers}\n{reason}"
    assert footer.accessibleDescription() == f"{numbers}. {reason}"


def test_footer_has_a_line_for_the_reason_only_where_there_is_one(qtbot: QtBot) -> None:
    theme = make_theme()
    without, with_reason = _footer(qtbot, _metrics()), _footer(qtbot, _metrics("evicted", 2))
    assert without.reason == ""
    assert with_reason.height() - without.height() == theme.line_height("small")
    warn = QColor(theme.palette.warn).name()
    assert warn not in _colors(without)
    assert warn in _colors(with_reason)


def _colors(footer: ReplyFooter) -> set[str]:
    image = footer.grab().toImage()
    return {
        image.pixelColor(x, y).name() for x in range(image.width()) for y in range(image.height())
    }


def test_footer_takes_fewer_words_where_there_is_little_room(qtbot: QtBot) -> None:
    footer = _footer(qtbot, _metrics("template", 12))
    metrics = footer.fontMetrics()
    wordings = full, short = footer.reason, "Chat template changed"
    assert _fitting(wordings, metrics, metrics.horizontalAdvance(full)) == full
    assert _fitting(wordings, metrics, metrics.horizontalAdvance(full) - 1) == short
    cut = _fitting(wordings, metrics, 60)
    assert cut.endswith("…")
    assert cut[:4] == short[:4]


def test_reason_goes_when_the_reply_is_made_again(qtbot: QtBot) -> None:
    shown = make_list(qtbot, make_message(2, content="text", metrics=_metrics("evicted", 2)))
    footer = reply_view(shown, 2).findChildren(ReplyFooter)[0]
    assert footer.reason
    shown.update_message(make_message(2, content="text", metrics=_metrics()), [])
    settle(qtbot, shown)
    assert footer.reason == ""
    assert footer.height() == make_theme().px(30)
