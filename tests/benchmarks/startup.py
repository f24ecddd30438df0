"""How soon the window is there: `python -m tests.benchmarks.startup`.

Starts `python -m app` on one profile again and again and takes the time from the start of the
process to the first paint, which the program tells when asked. The first start fills the profile and
the system's file cache, and does not count.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PAINTED = re.compile(r"window painted after (\d+) ms")
TIMEOUT_S = 60


def start_once(profile: Path) -> int:
    """Milliseconds until the window of one start was painted; the process is ended then."""
    environment = {**os.environ, "QUIRE_TRACE_STARTUP": "1"}
    if sys.platform.startswith("linux") and not os.environ.get("DISPLAY"):
        environment.setdefault("QT_QPA_PLATFORM", "offscreen")
    command = [sys.executable, "-m", "app", "--profile", str(profile)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None, "a pipe was asked for"
        try:
            for line in process.stderr:
                found = PAINTED.search(line)
                if found:
                    return int(found[1])
        finally:
            process.terminate()
            try:
                process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
    raise SystemExit("The program ended without a window.")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.startup", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        first_ms, *times_ms = [start_once(Path(folder)) for _ in range(rounds + 1)]
    median_ms = statistics.median(times_ms)
    print(f"{'first start':<16}{first_ms:>8} ms")
    print(f"{'median':<16}{median_ms:>8.0f} ms")
    print(f"{'worst':<16}{max(times_ms):>8} ms")
    report = {"benchmark": "startup", "first_ms": first_ms, "median_ms": median_ms}
    print(json.dumps({**report, "times_ms": times_ms, "cores": os.cpu_count()}))


if __name__ == "__main__":
    main()
