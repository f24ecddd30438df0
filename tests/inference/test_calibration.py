"""What steps of few rows take is measured at load, or once nothing runs."""

from collections.abc import Sequence

import pytest
from torch import Tensor

from inference.config import SamplingParams
from inference.model.step import Chunk
from inference.request import GenerateRequest
from inference.speculation import calibration
from inference.speculation.calibration import BUDGET_MS, measure_steps
from tests.inference.tiny_engine import make_engine, make_parts, run_until_idle


@pytest.mark.parametrize(
    ("step_s", "rows"), [(0.0, {1, 2, 3, 4, 6, 8, 9, 12, 16}), (1.0, {1, 4}), (0.06, {1, 4})]
)
def test_what_a_further_row_costs_is_measured_however_slow_a_model_is(
    monkeypatch: pytest.MonkeyPatch, step_s: float, rows: set[int]
) -> None:
    parts, now = make_parts(), 0.0

    def run(*_: object) -> int:
        nonlocal now
        now += step_s
        return 260

    monkeypatch.setattr(calibration, "_run", run)
    found = measure_steps(parts.runner, parts.kv, clock=lambda: now, budget_ms=BUDGET_MS)
    assert found.keys() == rows


@pytest.mark.parametrize(("dearest", "most"), [(0.5, 2.5), (1.0, 4.0)])
def test_what_others_took_of_a_step_is_no_cost_of_its_rows(
    monkeypatch: pytest.MonkeyPatch, dearest: float, most: float
) -> None:
    parts, now = make_parts(), 0.0

    def run(_runner: object, _table: object, ids: list[int]) -> int:
        nonlocal now
        now += 0.001 if len(ids) == 1 else 1.0
        return 260

    monkeypatch.setattr(calibration, "_run", run)
    found = measure_steps(
        parts.runner, parts.kv, clock=lambda: now, budget_ms=10.0, dearest=dearest
    )
    assert found[4] == pytest.approx(most * found[1])


def test_rows_are_measured_with_tokens_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = make_parts()
    seen: list[list[int]] = []
    run = parts.runner.run

    def note(chunks: Sequence[Chunk]) -> Tensor:
        seen.append(list(chunks[0].token_ids))
        return run(chunks)

    monkeypatch.setattr(parts.runner, "run", note)
    measure_steps(parts.runner, parts.kv)
    assert {len(ids) for ids in seen} >= {1, 4}
    assert all(len(set(ids)) == len(ids) for ids in seen)


def test_guessing_that_is_switched_on_in_a_reply_is_calibrated_once_nothing_runs() -> None:
    engine = make_engine(guess="off")
    assert not engine._parts.speculator.is_calibrated
    engine.add_request(
        GenerateRequest("a", prompt_token_ids=(5, 6, 7), params=SamplingParams(max_tokens=3))
    )
    engine.step()
    engine.set_guess("auto")
    engine.tend()
    assert not engine._parts.speculator.is_calibrated
    run_until_idle(engine)
    engine.tend()
    assert engine._parts.speculator.is_calibrated
