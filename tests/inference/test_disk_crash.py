"""Killed while saving, and used by two processes: whole pieces or none, never a wrong row."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from inference.kv_cache.block import ROOT_KEY
from tests.inference.disk_stores import (
    P,
    all_files,
    make_store,
    num_saved,
    piece_files,
    save_chain,
    write,
)

ROOT = Path(__file__).parents[2]

WRITER = """
import sys
from pathlib import Path
from tests.inference.disk_stores import make_store, save_chain
store = make_store(Path(sys.argv[1]), budget=200_000)
print("ready", flush=True)
turn = int(sys.argv[2])
while True:
    chat = turn % 7
    save_chain(store, f"chat {chat}", range(chat * 1000, chat * 1000 + 20 + turn % 400))
    if turn % 50 == 49:
        store.forget(f"chat {chat}")
    turn += 1
"""

# Dies at a call of the system's in the middle of a save, without any clean-up.
DYING = """
import os, signal, sys
from pathlib import Path
from tests.inference.disk_stores import make_store, save_chain
root, at = Path(sys.argv[1]), int(sys.argv[2])
calls = 0
def wrap(real):
    def call(*args, **more):
        global calls
        calls += 1
        if calls == at:
            if real is write:
                real(args[0], args[1][: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*args, **more)
    return call
write = os.write
for name in ("open", "write", "replace", "close", "utime", "mkdir", "chmod"):
    setattr(os, name, wrap(getattr(os, name)))
for first in range(at, at + 120):
    pid = os.fork()
    if pid == 0:
        calls, at = 0, first
        store = make_store(root / str(first))
        save_chain(store, "chat", range(20))
        save_chain(store, "chat", range(70))
        os._exit(0)
    os.waitpid(pid, 0)
"""


def start(script: str, root: Path, number: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, str(root), str(number)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def check_all_is_whole(root: Path, num_chats: int = 7) -> None:
    """Open and read everything: nothing is damaged, and no text has other rows."""
    store = make_store(root)
    for chat in range(num_chats):
        num_saved(store, range(chat * 1000, chat * 1000 + 420))
    assert store.stats().misses == {}
    assert store.stats().used_bytes == sum(path.stat().st_size for path in all_files(root))
    assert not list(root.rglob("*.tmp"))


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="kills processes")
def test_killed_at_random_times_leaves_whole_pieces(tmp_path):
    pauses = random.Random(5)
    for number in range(6):
        process = start(WRITER, tmp_path, number * 31)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(pauses.uniform(0.01, 0.15))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        check_all_is_whole(tmp_path)
    assert piece_files(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_killed_at_each_call_of_the_system_leaves_whole_pieces(tmp_path):
    process = start(DYING, tmp_path, 1)
    process.communicate()
    assert process.returncode == 0
    found = []
    for number in range(1, 121):
        root = tmp_path / str(number)
        check_all_is_whole(root, num_chats=1)
        store = make_store(root)
        found.append(num_saved(store, range(70)))
        assert save_chain(store, "chat", range(70)) == [True] * 3
        assert num_saved(make_store(root), range(70)) == 70
    assert found == sorted(found)  # the later the end came, the more was saved
    assert set(found) == {0, 20, P, 2 * P, 70}


@pytest.mark.slow
def test_two_processes_that_write_and_evict_at_once_read_no_wrong_row(tmp_path):
    processes = [start(WRITER, tmp_path, number) for number in (0, 3)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        store = make_store(tmp_path, budget=150_000)
        for turn in range(40):
            chat = turn % 7
            save_chain(store, f"chat {chat}", range(chat * 1000, chat * 1000 + 20 + 5 * turn))
            num_saved(store, range(chat * 1000, chat * 1000 + 420))
        assert set(store.stats().misses) <= {"missing", "evicted", "over_budget"}
        assert [process.poll() for process in processes] == [None, None]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    check_all_is_whole(tmp_path)


def test_what_another_process_saved_is_found_while_open(tmp_path):
    window = make_store(tmp_path)
    save_chain(window, "chat", range(40))
    terminal = make_store(tmp_path)
    save_chain(terminal, "chat", range(3 * P))
    assert num_saved(window, range(2 * P)) == 2 * P  # the second block as two pieces
    assert num_saved(window, range(3 * P)) == 3 * P
    before = window.stats().written_bytes
    other = [*range(P), *range(500, 500 + P)]
    save_chain(terminal, "other", other)
    assert num_saved(window, other) == 2 * P
    assert window.stats().written_bytes == before
    used = window.stats().used_bytes
    assert used <= make_store(tmp_path).stats().used_bytes


def test_short_turns_that_another_process_saved_in_one_block_are_found_while_open(tmp_path):
    window, terminal = make_store(tmp_path), make_store(tmp_path)
    for end in (5, 9, 30, P + 3, P + 8):
        save_chain(terminal, "chat", range(end))
    assert num_saved(window, range(P + 20)) == P + 8  # from five pieces
    assert window.stats().written_bytes == 0
    # What follows them otherwise is found as far as it is equal.
    assert num_saved(make_store(tmp_path), [*range(P + 6), 900]) == P + 6


def test_a_piece_that_another_process_just_wrote_is_not_written_again(tmp_path):
    window, terminal = make_store(tmp_path), make_store(tmp_path)
    save_chain(terminal, "chat", range(10))
    before = window.stats().written_bytes
    base_ids = tuple(range(10))
    window.claim("chat", [(ROOT_KEY, base_ids)])
    assert write(window, ROOT_KEY, base_ids, 0, bytes(40))
    assert window.stats().written_bytes == before
    assert num_saved(window, range(10)) == 10
