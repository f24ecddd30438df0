"""What is never processed twice, and what keeping it costs: `python -m tests.benchmarks.memory`.

Everything runs with the real engine. What is compared takes turns, and a ratio is the median of the
rounds' ratios.

    restart    a long chat goes on in a new process: time to the first token of the next reply with its
               blocks on disk, against an empty disk, where everything is read again
    switch     two long chats take turns in one process: from the request to the first decode (time to
               the first token without the step that makes it), and to the first token
    edit       the last message is said differently: how many tokens are computed for it
    tiers      greedy ids of one chat's next reply: computed cold, and from device, RAM and disk
    saving     decode with and without the disk tier
    writes     many short turns: bytes written, against the bytes of the rows that the chats' ids need, each
               beginning of a text once, whatever the engine says that it computed
    schemes    bytes per token
"""

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import psutil

from app.starter_model import find_starter_model
from inference.config import EngineConfig, KvSchemeName
from inference.engine import Engine
from tests.benchmarks.chats import Chat, long_text

CHARS_PER_TOKEN = (
    3.3  # of this prose in the starter model's vocabulary; only the length hangs on it
)
CHAT_TOKENS = 4_000
SWITCH_TOKENS = 2_000
TURN_TOKENS = 300
DECODE_TOKENS = 128
NEXT_QUESTION = "And what is the most important point of it?"
SCHEMES: tuple[KvSchemeName, ...] = ("fp16", "int8", "int4")

Result = dict[str, Any]


class Bench:
    """One model and how to run it."""

    def __init__(self, path: Path, threads: int, rounds: int, folder: Path) -> None:
        self.path = path
        self.threads = threads
        self.rounds = rounds
        self.folder = folder

    def engine(self, *, cache: str | None = None, **config: object) -> Engine:
        """An engine as the program opens it; `cache` names the folder of its disk tier.

        Nothing is guessed ahead: how much that brings depends on what a reply says.
        """
        values: dict[str, object] = {
            "device": "cpu", "num_threads": self.threads, "guess": "off", **config
        }  # fmt: skip
        if cache is not None:
            values["cache_dir"] = str(self.folder / cache)
        return Engine.load(self.path, EngineConfig(**values))  # type: ignore[arg-type]

    def begun(self, engine: Engine, name: str, num_tokens: int, *, keep: bool = True) -> Chat:
        """A chat with one long message and a short reply; each name begins differently."""
        chat = Chat(name)
        text = long_text(int(num_tokens * CHARS_PER_TOKEN))
        chat.say(engine, f"{name}: read this.\n\n{text}", max_tokens=16, keep=keep)
        return chat

    def in_new_process(self, chat: Chat, cache: str) -> Result:
        """Ask `NEXT_QUESTION` in a process of its own."""
        state = self.folder / "chat.pickle"
        state.write_bytes(pickle.dumps(chat))
        command = [sys.executable, "-m", "tests.benchmarks.memory", "--child", str(state)]
        command += ["--model", str(self.path), "--threads", str(self.threads)]
        command += ["--folder", str(self.folder / cache)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found: Result = json.loads(done.stdout.splitlines()[-1])
        return found


def child(arguments: argparse.Namespace) -> None:
    """What the new process does."""
    chat: Chat = pickle.loads(arguments.child.read_bytes())
    folder: Path = arguments.folder
    bench = Bench(arguments.model, arguments.threads, 1, folder.parent)
    engine = bench.engine(cache=folder.name)
    chat.say(engine, NEXT_QUESTION, max_tokens=16, keep=False)
    metrics = chat.metrics
    print(
        json.dumps(
            {
                "ttft_ms": metrics.ttft_ms,
                "restore_ms": metrics.restore_ms,
                "prompt_tokens": metrics.prompt_tokens,
                "reused_tokens": metrics.reused_tokens,
                "disk_tokens": metrics.reused_disk_tokens,
                "ids": list(chat.reply_ids),
            }
        )
    )
    engine.close()


def restart(bench: Bench) -> Result:
    engine = bench.engine(cache="restart")
    chat = bench.begun(engine, "restart", CHAT_TOKENS)
    engine.close()
    cold: list[Result] = []
    warm: list[Result] = []
    for number in range(bench.rounds):
        for cache, results in ((f"empty-{number}", cold), ("restart", warm)):
            results.append(bench.in_new_process(chat, cache))
    ratios = [w["ttft_ms"] / c["ttft_ms"] for w, c in zip(warm, cold, strict=True)]
    return {
        "prompt_tokens": warm[0]["prompt_tokens"],
        "tokens_from_disk": warm[0]["disk_tokens"],
        "cold_ttft_ms": _median(c["ttft_ms"] for c in cold),
        "warm_ttft_ms": _median(w["ttft_ms"] for w in warm),
        "of_which_restore_ms": _median(w["restore_ms"] for w in warm),
        "warm/cold": round(statistics.median(ratios), 4),
        "times_faster": round(statistics.median(1 / ratio for ratio in ratios), 1),
        "equal_ids": all(w["ids"] == c["ids"] for w, c in zip(warm, cold, strict=True)),
    }


def switch(bench: Bench) -> Result:
    engine = bench.engine()
    chats = [bench.begun(engine, f"switch {name}", SWITCH_TOKENS) for name in "AB"]
    until_decode, again, new = [], [], []
    for number in range(2 * bench.rounds + 2):
        chat = chats[number % 2]
        chat.messages.pop()
        chat.reply(engine, max_tokens=9)  # nothing is new, so the first step is a decode already
        step_ms = chat.metrics.decode_ms / (chat.metrics.completion_tokens - 1)
        if number >= 2:
            again.append(chat.metrics.ttft_ms or 0.0)
            until_decode.append(max(0.0, again[-1] - step_ms))
    for number in range(2 * bench.rounds):
        chats[number % 2].say(engine, "Go on.", max_tokens=2)
        new.append(chats[number % 2].metrics.ttft_ms or 0.0)
    engine.close()
    return {
        "until_first_decode_ms": _median(until_decode),
        "first_token_again_ms": _median(again),
        "first_token_of_new_message_ms": _median(new),
    }


def edit(bench: Bench) -> Result:
    engine = bench.engine()
    chat = bench.begun(engine, "edit", SWITCH_TOKENS)
    before = list(chat.messages)
    known = chat.metrics.prompt_tokens + len(chat.reply_ids)
    computed, new = [], []
    for number in range(bench.rounds):
        chat.messages = list(before)
        chat.say(engine, f"Version {number}: what is it about?", max_tokens=4)
        computed.append(chat.metrics.prompt_tokens - chat.metrics.reused_tokens)
        new.append(chat.metrics.prompt_tokens - known)
    engine.close()
    return {"computed_tokens": _median(computed), "tokens_after_the_reply_before": _median(new)}


def tiers(bench: Bench) -> Result:
    """Ids of the same next reply, from each tier and cold."""
    found: Result = {}
    for scheme in SCHEMES:
        try:
            found[scheme] = _tiers(bench, scheme)
        except Exception as error:  # noqa: BLE001  # int4 may be refused for this model
            found[scheme] = str(error)
    return found


def _tiers(bench: Bench, scheme: KvSchemeName) -> Result:
    cache = f"tiers-{scheme}"
    engine = bench.engine(cache=cache, kv_scheme=scheme)
    chat = bench.begun(engine, "tiers", 1_000)
    state = pickle.dumps(chat)
    ids: dict[str, tuple[int, ...]] = {}

    def ask(engine: Engine, name: str) -> None:
        again: Chat = pickle.loads(state)
        again.say(engine, NEXT_QUESTION, max_tokens=32, keep=False)
        ids[name] = again.reply_ids
        counts = again.metrics
        tokens[name] = (
            counts.reused_device_tokens,
            counts.reused_ram_tokens,
            counts.reused_disk_tokens,
        )

    tokens: dict[str, tuple[int, int, int]] = {}
    ask(engine, "device")
    engine.close()
    engine = bench.engine(cache=cache, kv_scheme=scheme)
    ask(engine, "disk")
    engine.close()
    context = 1_600
    small = context * engine_bytes_per_token(bench, scheme)
    engine = bench.engine(
        kv_scheme=scheme, context_tokens=context, kv_cache_bytes=small, ram_cache_bytes=4 * small
    )
    again: Chat = pickle.loads(state)
    again.messages = again.messages[:-1]
    again.reply(engine, max_tokens=16)
    bench.begun(engine, "another that takes all blocks", 1_400)
    ask(engine, "ram")
    engine.close()
    engine = bench.engine(kv_scheme=scheme)
    ask(engine, "cold")
    engine.close()
    return {
        "equal": {name: ids[name] == ids["cold"] for name in ("device", "ram", "disk")},
        "reused (device, ram, disk)": tokens,
    }


def engine_bytes_per_token(bench: Bench, scheme: KvSchemeName) -> int:
    engine = bench.engine(kv_scheme=scheme, context_tokens=64)
    stats = engine.stats()
    engine.close()
    return stats.block_bytes // stats.block_size


def saving(bench: Bench) -> Result:
    """Decode right after another chat's turn, which is on its way to the disk, and not kept.

    One engine does both in turn: two would not lie in memory alike. A long turn is the worst case: all of it
    is written while some hundred tokens are decoded.
    """
    engine = bench.engine(cache="saving")
    found = {}
    for name, turn_tokens in (("usual turn", TURN_TOKENS), ("long turn", SWITCH_TOKENS)):
        rates: dict[bool, list[float]] = {True: [], False: []}
        for number in range(bench.rounds + 1):
            for is_kept in (True, False) if number % 2 else (False, True):
                label = f"{name} {number} {is_kept}"
                bench.begun(engine, f"before {label}", turn_tokens, keep=is_kept)
                chat = Chat(f"decode {label}")
                chat.say(engine, f"{number}: tell a story.", max_tokens=DECODE_TOKENS, keep=is_kept)
                if number:
                    rates[is_kept].append(chat.metrics.decode_tps or 0.0)
                engine.flush()
        ratios = [kept / not_kept for kept, not_kept in zip(rates[True], rates[False], strict=True)]
        found[name] = {
            "kept_tps": _median(rates[True]),
            "not_kept_tps": _median(rates[False]),
            "kept/not kept": round(statistics.median(ratios), 4),
            "of all rounds together": round(
                sum(1 / rate for rate in rates[False]) / sum(1 / rate for rate in rates[True]), 4
            ),
        }
    engine.close()
    return found


def writes(bench: Bench, turns: int = 200, chats: int = 20) -> Result:
    engine = bench.engine(cache="writes")
    talks = [Chat(f"writes {number}") for number in range(chats)]
    beginnings: set[int] = set()
    num_computed = 0
    for number in range(turns):
        chat = talks[number % chats]
        chat.say(engine, f"Turn {number}: name something.", max_tokens=8)
        read = chat.token_ids[:-1]  # the last one is not computed
        assert len(read) == chat.metrics.prompt_tokens + chat.metrics.completion_tokens - 1
        beginnings.update(beginnings_of(read))
        num_computed += len(read) - chat.metrics.reused_tokens
    engine.flush()
    stats = engine.stats()
    engine.close()
    # Told by the texts: what the engine computed twice, it would call new twice.
    distinct = len(beginnings) * stats.block_bytes // stats.block_size
    return {
        "turns": turns,
        "distinct_bytes": distinct,
        "written_bytes": stats.disk_written_bytes,
        "written/distinct": round(stats.disk_written_bytes / distinct, 4),
        "computed/distinct tokens": round(num_computed / len(beginnings), 4),
    }


def beginnings_of(token_ids: Iterable[int]) -> Iterator[int]:
    """A number for each beginning of a text; keys and values of a token depend on all before it."""
    beginning = 0
    for token_id in token_ids:
        beginning = hash((beginning, token_id))
        yield beginning


def schemes(bench: Bench) -> Result:
    sizes: dict[str, int] = {}
    engine = bench.engine(context_tokens=64)
    for scheme in engine.info.kv_schemes:
        sizes[scheme.name] = scheme.bytes_per_token
    engine.close()
    return {
        "bytes_per_token": sizes,
        "int8/fp16": round(sizes["int8"] / sizes["fp16"], 4),
        "int4/fp16": round(sizes["int4"] / sizes["fp16"], 4),
    }


MEASUREMENTS: dict[str, Callable[[Bench], Result]] = {
    "schemes": schemes,
    "edit": edit,
    "switch": switch,
    "tiers": tiers,
    "saving": saving,
    "writes": writes,
    "restart": restart,
}


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 1)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.memory", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--model", type=Path, default=find_starter_model())
    parser.add_argument("--threads", type=int, default=psutil.cpu_count(logical=False) or 1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=MEASUREMENTS, action="append", help="may be repeated")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.model is None:
        parser.error("the starter model is not installed; give one with --model")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the program does; for new processes
    if arguments.child is not None:
        child(arguments)
        return
    results: Result = {}
    with tempfile.TemporaryDirectory(prefix="quire-memory-") as folder:
        bench = Bench(arguments.model, arguments.threads, arguments.rounds, Path(folder))
        for name in arguments.only or MEASUREMENTS:
            began = time.perf_counter()
            results[name] = MEASUREMENTS[name](bench)
            print(f"{name} ({time.perf_counter() - began:.0f} s)")
            for key, value in results[name].items():
                print(f"    {key:<32} {value}")
    print(json.dumps(results))


if __name__ == "__main__":
    main()
