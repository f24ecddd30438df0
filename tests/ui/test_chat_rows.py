"""Groups of the chat list, words of the model, numbers for people."""

from datetime import date, datetime, time, timedelta
from pathlib import Path

import pytest
from PySide6.QtCore import QLocale

from app.conversation import ConversationId, ConversationSummary, MessageId
from app.messages import Failure
from app.search import MAX_HITS, SearchHit
from app.session_changes import ModelState
from tests.app.fake_engine import make_model_info
from tests.app.stored_chats import add_chat, make_store
from ui.chat.model_words import (
    composer_hint,
    greeting,
    headline,
    model_label,
    path_name,
    short_name,
)
from ui.controls.numbers import count, gigabytes, percent, rate, seconds
from ui.dialogs.error import failure_words
from ui.sidebar.chat_rows import ChatRow, HeadingRow, Row, rows_by_day, rows_of_hits

TODAY = date(2026, 3, 2)


def _chat(name: str, days_ago: int, hour: int = 12) -> ConversationSummary:
    at = datetime.combine(TODAY - timedelta(days=days_ago), time(hour))
    return ConversationSummary(ConversationId(name), name, at.timestamp())


def test_rows_are_grouped_by_day_borders_included() -> None:
    chats = [_chat("a", 0, 0), _chat("b", 1, 23), _chat("c", 2), _chat("d", 7), _chat("e", 8)]
    expected: list[Row] = [
        HeadingRow("Today"),
        ChatRow(ConversationId("a"), "a"),
        HeadingRow("Yesterday"),
        ChatRow(ConversationId("b"), "b"),
        HeadingRow("Last 7 days"),
        ChatRow(ConversationId("c"), "c"),
        ChatRow(ConversationId("d"), "d"),
        HeadingRow("Older"),
        ChatRow(ConversationId("e"), "e"),
    ]
    assert rows_by_day(chats, TODAY) == expected


def test_chat_from_a_clock_ahead_counts_as_today() -> None:
    assert rows_by_day([_chat("a", -1)], TODAY)[0] == HeadingRow("Today")


def test_no_chats_give_no_rows() -> None:
    assert rows_by_day([], TODAY) == []


def test_hits_know_where_they_are() -> None:
    hit = SearchHit(ConversationSummary(ConversationId("a"), "a", 0.0), MessageId(7), "found")
    assert rows_of_hits([hit]) == [ChatRow(ConversationId("a"), "a", "found", MessageId(7))]


def test_hits_show_what_was_found() -> None:
    hit = SearchHit(_chat("a", 0), None, "…found here…")
    assert rows_of_hits([hit]) == [ChatRow(ConversationId("a"), "a", "…found here…")]


@pytest.mark.parametrize(("found", "listed"), [(MAX_HITS, MAX_HITS), (MAX_HITS + 1, MAX_HITS)])
def test_more_hits_than_are_shown_are_told(tmp_path: Path, found: int, listed: int) -> None:
    store = make_store(tmp_path)
    for number in range(found):
        add_chat(store, str(number), "zebra")
    *rows, last = rows_of_hits(store.search("zebra"))
    assert isinstance(last, HeadingRow) is (found > MAX_HITS)
    chats = [row for row in (*rows, last) if isinstance(row, ChatRow)]
    assert [chat.id for chat in chats] == [str(found - 1 - number) for number in range(listed)]
    store.close()


def test_model_words_for_each_state() -> None:
    info = make_model_info(name="SmolLM2-135M-Instruct")
    ready = ModelState("ready", "/m/x.gguf", info=info)
    failure = Failure("memory", "It needs 6.1 GB and 3.1 GB are free.", "Close other programs.")
    failed = ModelState("failed", "/m/x.gguf", failure=failure)
    assert model_label(ready).text == "SmolLM2 135M"
    assert model_label(ready).tip.startswith("SmolLM2-135M-Instruct is ready.")
    assert model_label(ModelState("loading", "/m/x.gguf", "Reading", 0.424)).text == "Loading 42%"
    assert model_label(failed).text == "Model not loaded"
    assert model_label(ModelState()).text == "Choose a model"
    assert composer_hint(ready, has_messages=False) == "Message SmolLM2 135M"
    assert composer_hint(failed, has_messages=False) == "Write a message"
    for state in (ready, failed):
        assert composer_hint(state, has_messages=True) == "Write the next message"
    assert greeting(ready) == "SmolLM2 135M runs on this computer. Nothing you write leaves it."
    assert headline(ready, lacks_model=False) == "Ready when you are"
    assert headline(failed, lacks_model=False) == "No model is open"
    assert headline(ModelState(), lacks_model=True) == "Open a model to begin"
    assert path_name("/a/b/Model-Q4.GGUF") == "Model-Q4"
    assert path_name("/a/b/folder") == "folder"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("SmolLM2-135M-Instruct", "SmolLM2 135M"),
        ("Qwen2.5-Coder-1.5B-Instruct", "Qwen2.5 Coder 1.5B"),
        ("gemma-3-4b-it", "gemma 3 4b"),
        ("Llama_2_7b_chat", "Llama 2 7b"),
        ("SmolLM2 135M instruct", "SmolLM2 135M"),
        ("it-runs-Chatty", "it runs Chatty"),
        ("Instruct-2", "Instruct 2"),
        ("Fake 1B", "Fake 1B"),
        ("chat", "chat"),
        ("-it", "-it"),
        ("---", "---"),
        ("", ""),
    ],
)
def test_short_name_is_what_people_say(name: str, short: str) -> None:
    assert short_name(name) == short


def test_failure_words_name_what_happened_and_what_to_do() -> None:
    words = failure_words(Failure("memory", "It needs 6.1 GB.", "Close other programs."))
    assert words.title == "Not enough memory for this model"
    assert words.text == "It needs 6.1 GB. Close other programs."


@pytest.mark.parametrize(("name", "text"), [("C", "8,192"), ("en_US", "8,192"), ("de_DE", "8.192")])
def test_count_has_separators_even_where_no_language_is_set(name: str, text: str) -> None:
    before = QLocale()
    QLocale.setDefault(QLocale(name))
    try:
        assert count(8192) == text
    finally:
        QLocale.setDefault(before)


def test_numbers_are_for_people() -> None:
    assert count(8192) in ("8,192", "8192", "8.192", "8 192")
    assert percent(0.424) == "42%"
    assert percent(1.7) == "100%"
    assert gigabytes(15_600_000_000)[-1] == "6"
    assert rate(84.4) == "84"
    assert rate(9.44)[0] == "9"
    assert rate(9.44)[-1] == "4"
    assert seconds(213.0).endswith("21 s")
