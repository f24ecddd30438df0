"""The whole of Quire with the starter model: window, worker, real engine."""

from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from app.paths import Paths
from inference.config import SamplingParams
from ui.program import Program
from ui.start import make_application

LOAD_MS = 120_000


@pytest.mark.slow
def test_person_gets_a_reply_of_the_starter_model_in_the_window(
    qtbot: QtBot, tmp_path: Path, starter_model_path: Path
) -> None:
    paths = Paths(tmp_path)
    paths.prepare()
    program = Program(make_application(), paths)
    program.settings.change(sampling=SamplingParams(temperature=0.0, max_tokens=12))
    try:
        with qtbot.waitExposed(program.window):
            program.show()
        program.start_engine()
        session = program.session
        qtbot.waitUntil(lambda: session.model.kind in ("ready", "failed"), timeout=LOAD_MS)
        assert session.model.kind == "ready", session.model.failure
        assert session.model.path == str(starter_model_path)
        for question in ("Name the capital of France.", "And of Italy?"):
            program.window.chat.composer.set_text(question)
            program.window.chat.composer.button.click()
            qtbot.waitUntil(lambda: not session.is_replying, timeout=LOAD_MS)
        conversation = session.conversation
        assert conversation is not None
        messages = conversation.path()
        assert [message.role for message in messages] == ["user", "assistant"] * 2
        assert "Paris" in messages[1].content
        assert messages[3].metrics is not None
        assert messages[3].metrics.reused_tokens > 0, "the first turn must come from memory"
        assert program.window.status.speed.text.endswith("tok/s")
    finally:
        program.window.close()
        assert program.close()
