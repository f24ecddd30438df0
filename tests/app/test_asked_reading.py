"""The line of `ask` that says how far a long prompt is read."""

import io
import sys

import pytest

from app.asked_reading import PATIENCE_S, ReadingLine
from inference.errors import EngineError
from tests.app.asker import Asker


class Terminal(io.StringIO):
    """Stands in for stderr."""

    def isatty(self) -> bool:
        return True


def as_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Put one in place; not in a fixture, as pytest puts its own there afterwards."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def reading_slowly(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal on which 400 tokens are read in four steps."""
    monkeypatch.setattr("app.asked_reading.PATIENCE_S", -1.0)
    monkeypatch.setenv("COLUMNS", "80")
    asker.script.prefill_steps = 4
    asker.script.prefill_tokens = 400
    return as_terminal(monkeypatch)


def shown(text: str) -> str:
    """What a terminal shows in its last line."""
    line = ""
    for part in text.split("\r"):
        line = part + line[len(part) :]
    return line.rstrip()


def test_line_is_written_anew_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    now = 0.0
    line = ReadingLine(lambda: now)
    now = PATIENCE_S
    monkeypatch.setenv("COLUMNS", "80")
    line.show(1000, 12_000)
    assert shown(terminal.getvalue()) == "quire: reading, 1,000 of 12,000 tokens"
    line.show(900, 1000)  # shorter than what stood there
    assert shown(terminal.getvalue()) == "quire: reading, 900 of 1,000 tokens"
    line.clear()
    assert shown(terminal.getvalue()) == ""
    before = terminal.getvalue()
    line.clear()
    assert terminal.getvalue() == before


def test_line_never_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, now = as_terminal(monkeypatch), 0.0
    monkeypatch.setenv("COLUMNS", "20")
    line = ReadingLine(lambda: now)
    now = PATIENCE_S
    line.show(1000, 12_000)
    line.clear()
    assert max(map(len, terminal.getvalue().split("\r"))) == 19
    assert shown(terminal.getvalue()) == ""


def test_line_waits_a_moment_and_for_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = as_terminal(monkeypatch)
    now = 0.0
    line = ReadingLine(lambda: now)
    now = PATIENCE_S - 0.1
    line.show(1, 2)
    now = PATIENCE_S
    line.show(0, 0)
    line.clear()
    assert terminal.getvalue() == ""


def test_line_is_for_terminals_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("app.asked_reading.PATIENCE_S", -1.0)
    line = ReadingLine()
    line.show(1, 2)
    line.clear()
    assert capsys.readouterr().err == ""


def test_ask_shows_the_line_while_it_reads_and_no_longer(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = reading_slowly(asker, monkeypatch)
    assert asker.ask("Hello") == 0
    for done in (100, 200, 300):
        assert f"\rquire: reading, {done} of 400 tokens" in terminal.getvalue()
    assert shown(terminal.getvalue()) == ""


def test_ask_takes_the_line_away_before_it_says_what_failed(
    asker: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = reading_slowly(asker, monkeypatch)
    asker.script.error_after_tokens = 0
    with pytest.raises(EngineError):
        asker.ask("Hello")
    assert "300 of 400" in terminal.getvalue()
    assert shown(terminal.getvalue()) == ""
