"""kill -9 at a hundred random moments while chats are saved: nothing is lost, no token is wrong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

KILLS = 100


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks, so that torch is loaded only once")
def test_a_hundred_kills_lose_no_message_and_give_no_wrong_token(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.app.killed_chats", str(tmp_path), "1", str(KILLS)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    num_told, num_files = map(int, done.stdout.split())
    # It did live: messages were stored and blocks were written between the kills.
    assert num_told > 20
    assert num_files > 10
