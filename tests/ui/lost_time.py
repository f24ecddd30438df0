"""How long this process had no processor though it wanted one: time that is no pause of ours."""

import os
import sys
from pathlib import Path

if sys.platform != "win32":
    import resource

_TASKS = Path("/proc/self/task")
_STAT = Path("/proc/stat")
_STEAL_FIELD = 8


class LostTime:
    """Adds up what the system lost us, over all threads, since it was made. Linux only; else 0.

    All threads, since the GUI thread may wait for a lock that another one holds which waits for a
    processor. And what the hypervisor gave to others ("steal"), which no thread's clock shows.
    """

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._waited_ns: dict[str, int] = {}
        self._stat = os.open(_STAT, os.O_RDONLY) if _STAT.exists() else None

    def seconds(self) -> float:
        """So many seconds so far; only differences mean something."""
        return (self._waited() + self._stolen()) if self._stat is not None else 0.0

    def close(self) -> None:
        """Give the files back."""
        for file in (*self._files.values(), *([self._stat] if self._stat is not None else [])):
            os.close(file)
        self._files, self._stat = {}, None

    def _waited(self) -> float:
        for name in os.listdir(_TASKS):
            if name not in self._files:
                try:
                    self._files[name] = os.open(_TASKS / name / "schedstat", os.O_RDONLY)
                except OSError:  # it ended meanwhile, or the system does not count
                    continue
        for name, file in self._files.items():
            try:
                self._waited_ns[name] = int(os.pread(file, 100, 0).split()[1])
            except OSError:  # it has ended: what it waited stays in the sum
                continue
        return sum(self._waited_ns.values()) / 1e9

    def _stolen(self) -> float:
        assert self._stat is not None
        fields = os.pread(self._stat, 300, 0).split(b"\n", 1)[0].split()
        ticks = int(fields[_STEAL_FIELD]) if len(fields) > _STEAL_FIELD else 0
        return ticks / float(os.sysconf("SC_CLK_TCK"))


def num_pages_read() -> int:
    """How many pages of programs and libraries this process had to wait for until the disk gave them.

    Each may stop the thread that touches it, and with it those that wait for its locks; how long,
    the system does not tell. It has nothing to do with files that we open and read.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_majflt if sys.platform != "win32" else 0


def num_turns() -> int | None:
    """How often this thread was given a processor; None where the system does not count.

    A thread that waits for a lock or a file gives its processor back and gets another turn. So if
    time passes within one turn in which it computes nothing, the whole machine stood still: a
    hypervisor gave its processors to others.
    """
    try:
        fields = Path("/proc/thread-self/schedstat").read_bytes().split()
    except OSError:
        return None
    return int(fields[2])
