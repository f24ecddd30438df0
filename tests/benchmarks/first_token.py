"""From the start of a program to its first word, and its memory: `python -m tests.benchmarks.first_token [MODEL.gguf]`.

Each round starts `python -m app ask` and, if it is installed, llama-cpp-python in a process of its own, with the
same file, question and threads, and takes the time until the first byte of the answer is read. The first round fills
the system's file cache and does not count. Beside them stands the time of a bare `import torch`, as it
is most of a small model's start and tells how fast the machine is just now. Peaks of memory are of
the whole process, with all pages of the file that it has mapped.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from app.starter_model import find_starter_model
from tests.benchmarks.guess_peers import has_llama

QUESTION = "What is a lighthouse for?"
MAX_TOKENS = 32
POLL_S = 0.005

LLAMA = """
import sys
import llama_cpp
model = llama_cpp.Llama(sys.argv[1], n_ctx=2048, n_threads=int(sys.argv[2]), verbose=False)
for part in model.create_chat_completion(
    [{"role": "user", "content": sys.argv[3]}], max_tokens=int(sys.argv[4]), stream=True
):
    sys.stdout.write(part["choices"][0]["delta"].get("content", ""))
    sys.stdout.flush()
"""


def run(command: Sequence[str], environment: dict[str, str]) -> tuple[float, int]:
    """Seconds to the first byte of output, and the peak of memory in bytes, of one process."""
    began = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None, "a pipe was asked for"
        if not process.stdout.read(1):
            raise SystemExit(f"No answer came from {' '.join(command[:4])}.")
        first_s = time.perf_counter() - began
        peak, watched = 0, psutil.Process(process.pid)
        os.set_blocking(process.stdout.fileno(), False)
        while process.poll() is None:
            process.stdout.read()
            try:
                peak = max(peak, peak_bytes(watched))
            except psutil.NoSuchProcess:
                break
            time.sleep(POLL_S)
    return first_s, peak


def peak_bytes(process: psutil.Process) -> int:
    """The most memory that a process had so far, or has now where the system does not remember."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
        return next(
            1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")
        )
    except (OSError, StopIteration):
        return int(process.memory_info().rss)


def main() -> None:
    """Measure in turns, print a line for each program and one of JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.first_token",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", type=Path, nargs="?", help="else the starter model")
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    model = arguments.model or find_starter_model()
    if model is None:
        parser.error("the starter model is not installed; give one")
    threads, most = str(arguments.threads), str(MAX_TOKENS)
    commands = {
        "import torch": [sys.executable, "-c", "import torch; print(1)"],
        "quire": [
            sys.executable, "-m", "app", "ask", QUESTION,
            "--model", str(model), "--threads", threads, "--max-tokens", most,
        ],
    }  # fmt: skip
    if has_llama():
        commands["llama.cpp"] = [sys.executable, "-c", LLAMA, str(model), threads, QUESTION, most]
    found: dict[str, list[tuple[float, int]]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as home:
        environment = os.environ | {"HOME": home, "XDG_DATA_HOME": home, "XDG_CACHE_HOME": home}
        for number in range(arguments.rounds + 1):
            for name, command in commands.items():
                result = run(command, environment)
                if number:
                    found[name].append(result)
    report: dict[str, object] = {"benchmark": "first_token", "model": model.name}
    for name, results in found.items():
        first_s = statistics.median(seconds for seconds, _ in results)
        peak = max(peak for _, peak in results)
        print(f"{name:<14}{first_s:>7.2f} s{peak / 1e6:>9.0f} MB")
        report[name] = {"first_s": first_s, "peak_bytes": peak}
    print(json.dumps({**report, "threads": arguments.threads, "rounds": arguments.rounds}))


if __name__ == "__main__":
    main()
