"""How `speculation` measures and sums up: with tiny models, and with peers that take no time."""

import json
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pytest

from inference.engine import Engine
from inference.engine_loading import EngineParts
from inference.metrics import RequestMetrics
from inference.request import GenerateRequest, RequestId, StepOutput
from tests.benchmarks import guess_pairs, speculation
from tests.benchmarks.guess_pairs import (
    Answer,
    EndedEarlyError,
    Pair,
    measure_answers,
    measure_pairs,
    sum_up,
)
from tests.benchmarks.guess_peers import NUM_KEPT, Reply, Run, measure_peer
from tests.benchmarks.guess_switches import STRETCH_TOKENS, measure_switched
from tests.benchmarks.guess_works import WORKS, Work
from tests.benchmarks.speculation import Bench
from tests.inference.tiny_engine import make_loaded, make_parts

NUMBERS = Work("numbers", 32, lambda number: f"Say {number}.")


@pytest.fixture(scope="module")
def parts() -> Iterator[EngineParts]:
    made = make_parts(make_loaded(context_tokens=4096), ram_cache_bytes=0)
    yield made
    Engine(made).close()


def made_answer(token_ids: Sequence[int], rate: float, *, drafted: int = 0) -> Answer:
    metrics = RequestMetrics(
        completion_tokens=len(token_ids),
        decode_ms=1000.0 * (len(token_ids) - 1) / rate,
        drafted_tokens=drafted,
        accepted_tokens=drafted // 2,
        verify_steps=drafted // 4,
    )
    return Answer(tuple(token_ids), "", metrics)


def test_pairs_are_the_same_replies_with_guesses_and_without(parts: EngineParts) -> None:
    (pair,) = measure_pairs(Engine(parts), NUMBERS, rounds=1)

    assert pair.is_equal
    assert len(pair.off.token_ids) == 32
    assert pair.off.metrics.drafted_tokens == 0


def test_pairs_with_fixed_guesses_count_what_was_guessed() -> None:
    parts = make_parts(make_loaded(context_tokens=4096), ram_cache_bytes=0, draft_tokens=4)
    engine = Engine(parts)

    row = sum_up(measure_pairs(engine, NUMBERS, rounds=1, guess="ngram"))
    engine.close()

    assert row["verify_steps"] > 0
    assert row["drafted_tokens"] >= row["accepted_tokens"]
    assert row["equal_replies"] == row["replies"] == 1


def test_pairs_of_replies_that_are_too_short_give_up() -> None:
    engine = Engine(make_parts(make_loaded(eos_ids=range(260)), ram_cache_bytes=0))

    with pytest.raises(EndedEarlyError, match="numbers"):
        measure_pairs(engine, NUMBERS, rounds=1)
    engine.close()


def test_reply_that_guesses_made_another_counts_however_short_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = iter([made_answer(range(n), 10.0) for n in (40, 40, 5, 4, 5, 5, 40, 40)])
    monkeypatch.setattr(guess_pairs, "answer", lambda *args, **more: next(answers))
    engine = Engine(make_parts(make_loaded(), ram_cache_bytes=0))
    pairs = measure_pairs(engine, NUMBERS, rounds=2)
    engine.close()
    lengths = [sorted((len(pair.off.token_ids), len(pair.on.token_ids))) for pair in pairs]
    assert lengths == [[4, 5], [40, 40]]


def test_sum_up_ratio_is_the_median_of_the_pairs_ratios() -> None:
    ids = range(41)
    pairs = [
        Pair(made_answer(ids, 10.0), made_answer(ids, 20.0, drafted=8), likeness=0.5),
        Pair(made_answer(ids, 40.0), made_answer(ids, 40.0, drafted=4), likeness=0.9),
        Pair(made_answer(ids, 10.0), made_answer([*ids, 7], 30.0, drafted=4), likeness=1.0),
    ]

    row = sum_up(pairs)

    assert (row["off_tps"], row["on_tps"]) == (10.0, 30.0)
    assert (row["ratio"], row["ratio_min"], row["ratio_max"]) == pytest.approx((2.0, 1.0, 3.0))
    assert (row["drafted_tokens"], row["accepted_tokens"], row["verify_steps"]) == (16, 8, 4)
    assert (row["equal_replies"], row["replies"], row["likeness"]) == (2, 3, 0.9)


@pytest.mark.slow
def test_answers_at_once_are_those_one_after_the_other(parts: EngineParts) -> None:
    row = measure_answers(Engine(parts), NUMBERS, rounds=1)

    assert row["tokens"] == 3 * 32
    assert row["replies"] == 3
    assert len(row["ratios"]) == 1
    assert row["ratio_min"] > 0


class FakeEngine:
    """Replies with so many tokens, each of which takes 0.1 s on its clock, and half of that with guesses."""

    def __init__(self, num_tokens: int) -> None:
        self.now = 0.0
        self.has_work = False
        self.stretches: list[tuple[str, int]] = []
        self._num_tokens = num_tokens
        self._num_done = 0

    def clear_cache(self) -> None:
        pass

    def set_guess(self, guess: str) -> None:
        self.stretches.append((guess, 0))

    def add_request(self, request: GenerateRequest) -> RequestId:
        self.has_work, self._num_done = True, 0
        return RequestId(1)

    def step(self) -> list[StepOutput]:
        guess, count = self.stretches[-1]
        self.stretches[-1] = (guess, count + 1)
        self.now += 0.1 if guess == "off" else 0.05
        self._num_done += 1
        self.has_work = self._num_done < self._num_tokens
        metrics = RequestMetrics(completion_tokens=self._num_done, drafted_tokens=7)
        return [StepOutput(RequestId(1), metrics=metrics)]


def test_switched_stretches_are_held_against_their_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = FakeEngine(num_tokens=1 + 4 * STRETCH_TOKENS + 5)
    monkeypatch.setattr("tests.benchmarks.guess_switches.time.perf_counter", lambda: engine.now)
    row = measure_switched(engine, NUMBERS, rounds=3)  # type: ignore[arg-type]  # all that is needed
    assert row["ratio"] == pytest.approx(2.0)
    assert row["standard_error"] == pytest.approx(0.0, abs=1e-9)
    assert (row["pairs"], row["drafted_tokens"]) == (6, 21)  # of three replies, two each
    first, *others = engine.stretches[:6]
    assert first == ("off", 1)  # up to the first token
    assert [count for _, count in others] == [STRETCH_TOKENS] * 4 + [5]
    begins = [engine.stretches[place][0] for place in range(1, len(engine.stretches), 6)]
    assert begins == ["auto", "off", "auto", "off"]


def test_switched_replies_that_are_too_short_give_up() -> None:
    engine = FakeEngine(num_tokens=20)
    with pytest.raises(EndedEarlyError, match="numbers"):
        measure_switched(engine, NUMBERS, rounds=3)  # type: ignore[arg-type]  # all that is needed


class FakePeer:
    """Replies with zeros, so many a second as a setting's name says."""

    def __init__(self, *rates: float) -> None:
        self.calls: list[str] = []
        self.is_closed = False
        self.settings: dict[str, Run] = {str(rate): self._runs_at(rate) for rate in rates}

    def close(self) -> None:
        self.is_closed = True

    def _runs_at(self, rate: float) -> Run:
        def run(prompt_ids: Sequence[int], num_tokens: int, stop_ids: Collection[int]) -> Reply:
            self.calls.append(str(rate))
            return (0,) * num_tokens, rate

        return run


def test_peer_is_judged_by_the_fastest_of_its_settings(parts: EngineParts) -> None:
    peer = FakePeer(1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 6e-6)

    row = measure_peer(Engine(parts), parts, peer, NUMBERS, rounds=1)

    assert row["best"] == "6e-06"
    assert list(row["peer_tps"]) == ["6e-06", "5e-06", "4e-06", "3e-06"]
    assert len(peer.calls) == 6 + NUM_KEPT
    assert row["on_tps"] / row["ratio"] == pytest.approx(6e-6, rel=0.5)


@pytest.mark.slow
def test_bench_closes_the_peer_and_tells_of_other_replies(parts: EngineParts) -> None:
    bench = Bench(Engine(parts), parts, rounds=1, max_tokens=32)
    peer = FakePeer(5.0)

    bench.run(["llama"], draft=None, open_peer=lambda: peer)

    assert peer.is_closed
    assert list(bench.rows) == ["edit against llama.cpp"]
    assert not bench.has_other_replies
    bench.rows["chat"] = {"replies": 3, "equal_replies": 2}
    assert bench.has_other_replies


@pytest.mark.parametrize("works", WORKS.values(), ids=list(WORKS))
def test_prompts_of_a_work_differ_from_round_to_round(works: tuple[Work, ...]) -> None:
    prompts = [work.prompt(number) for work in works[:1] for number in range(12)]

    assert len(set(prompts)) == 12


def test_edit_wants_the_code_with_the_other_name_everywhere() -> None:
    wanted = WORKS["edit"][0].wanted
    assert wanted is not None

    assert "class Register:" in wanted(0)
    assert "Ledger" not in wanted(0)
    assert "Grid" not in wanted(1)


@pytest.mark.slow
def test_main_ends_with_one_line_of_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def open_tiny(path: Path, *, threads: int) -> tuple[Engine, EngineParts]:
        parts = make_parts(make_loaded(context_tokens=4096), ram_cache_bytes=0)
        return Engine(parts), parts

    monkeypatch.setattr(speculation, "open_engine", open_tiny)
    arguments = ["tiny.gguf", "--only", "chat", "answers", "--rounds", "1", "--max-tokens", "32"]
    monkeypatch.setattr(sys, "argv", ["speculation", *arguments])
    speculation.main()

    *lines, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    assert list(report["works"]) == [
        "chat, greedy",
        "chat, sampled",
        "answers",
        "answers, no guesses",
    ]
    assert report["are_equal"]
    assert report["works"]["chat, greedy"]["tokens"] == 32
    assert len(lines) == 5 + 2
    assert sum("too early" in line for line in lines) == 2  # 32 tokens are one pair of stretches
