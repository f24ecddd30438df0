"""Who guesses, when, and how much: an engine's speculator with the proposers it has."""

from collections.abc import Sequence as SequenceOf

import pytest
import torch

from inference.config import MAX_DRAFT_TOKENS, SamplingParams
from inference.engine import Engine
from inference.metrics import ModelInfo, RequestMetrics
from inference.request import GenerateRequest, RequestId
from inference.sequence import Sequence
from inference.speculation.costs import StepCosts
from inference.speculation.draft_reading import LEAST_LAG
from inference.speculation.speculator import Speculator
from tests.app.fake_engine import make_model_info
from tests.inference.tiny_engine import make_engine, run_until_idle, sampled_ids

END = 2


def costs(ms: float = 10.0) -> StepCosts:
    """Eight rows cost what one costs, which no machine of ours reaches."""
    found = StepCosts()
    found.calibrate({1: ms, 8: ms * 1.1, 16: ms * 1.3})
    return found


class FakeDraft:
    """Guesses 900, 901, ...; lacks as many tokens as it is told, and reads `chunk` of them per call."""

    def __init__(self, *, lag: int = 0, chunk: int = 50, token_ms: float = 1.0) -> None:
        self.lacks = lag
        self.chunk = chunk
        self.token_ms: float | None = token_ms
        self.read_ms_per_token: float | None = 1.0
        self.calls: list[tuple[object, ...]] = []
        self.memory_bytes = 77
        self.least_sure = -1.0

    @property
    def info(self) -> ModelInfo:
        return make_model_info(name="Small")

    def begin(self, sequence: Sequence) -> None:
        self.calls.append(("begin", sequence.request_id))

    def lag(self, sequence: Sequence) -> int:
        return self.lacks

    def propose(
        self, wanted: SequenceOf[tuple[Sequence, int]], least_sure: float
    ) -> list[tuple[int, ...]]:
        self.least_sure = least_sure
        self.calls.append(("propose", [(each.request_id, count) for each, count in wanted]))
        is_ready = self.lacks <= LEAST_LAG
        self.lacks = 0 if is_ready else max(0, self.lacks - self.chunk)
        return [tuple(range(900, 900 + count)) if is_ready else () for _, count in wanted]

    def end(self, sequence: Sequence, *, keep: bool, on_disk: bool) -> None:
        self.calls.append(("end", sequence.request_id, keep, on_disk))

    def proposed(self) -> list[object]:
        return [call[1] for call in self.calls if call[0] == "propose"]


def sequence_of(token_ids: SequenceOf[int], request_id: int = 1) -> Sequence:
    return Sequence(RequestId(request_id), "chat", list(token_ids))


def under_way(token_ids: SequenceOf[int]) -> Sequence:
    """A reply that is long enough to bear a guess that is wrong."""
    sequence = sequence_of(token_ids[:1])
    sequence.token_ids += token_ids[1:]
    return sequence


REPEATING = [*range(50, 70), *range(50, 60)]


def with_draft(draft: FakeDraft, **options: object) -> Speculator:
    speculator = Speculator(costs(), **options)  # type: ignore[arg-type]  # fields of tests
    speculator.use(draft)  # type: ignore[arg-type]  # what is beside guessing is not needed
    return speculator


def note_replies(speculator: Speculator, *lengths: int) -> None:
    for number, length in enumerate(lengths):
        sequence = sequence_of([1, 2, 3], request_id=100 + number)
        sequence.token_ids += [5] * length
        speculator.end(sequence, keep=False, on_disk=False)


def test_text_that_repeats_is_guessed_from_the_chat():
    speculator, sequence = Speculator(costs()), under_way(REPEATING)
    speculator.plan([(sequence, 100)])
    assert (
        sequence.draft
        == (60, 61, 62, 63, 64, 65, 66, 67, 68, 69, *range(50, 56))[: len(sequence.draft)]
    )
    assert len(sequence.draft) >= 8


@pytest.mark.parametrize("room", [-1, 0, 1, 5])
def test_never_more_is_guessed_than_the_reply_has_room_for(room):
    speculator, sequence = Speculator(costs(), draft_tokens=16), sequence_of(REPEATING)
    speculator.plan([(sequence, room)])
    assert len(sequence.draft) == max(room, 0)


def test_nothing_is_guessed_when_off_and_what_was_planned_goes():
    speculator, sequence = Speculator(costs(), draft_tokens=3), sequence_of(REPEATING)
    speculator.plan([(sequence, 9)])
    assert list(sequence.draft) == [60, 61, 62]
    speculator.set_guess("off")
    speculator.plan([(sequence, 9)])
    assert list(sequence.draft) == []


def test_wrong_guesses_from_the_chat_end_guessing_within_a_few_rounds():
    speculator, sequence = Speculator(costs(), guess="ngram"), sequence_of([1, 2, 3] * 4)
    lengths = []
    for number in range(30):
        speculator.plan([(sequence, 100)])
        draft = sequence.draft
        lengths.append(len(draft))
        # What comes is new; only its beginning was said before.
        emitted = [300 + number] if number % 3 else [1]
        sequence.token_ids += emitted
        speculator.verified(sequence, draft, emitted, lambda: 0.7)
    assert sum(lengths[:3]) > 0
    assert sum(length > 0 for length in lengths[15:]) <= 1


def test_draft_model_that_knows_the_chat_guesses_and_is_counted_by_position():
    draft = FakeDraft()
    speculator, sequence = with_draft(draft), under_way(range(50, 90))
    speculator.plan([(sequence, 100)])
    count = len(sequence.draft)
    assert count >= 2
    assert draft.calls == [("begin", 1), ("propose", [(1, count)])]
    speculator.verified(sequence, sequence.draft, [900, 700], lambda: 0.7)
    stats = speculator.stats()
    assert stats.by_position == ((1, 1), (1, 0))
    assert (stats.drafted_tokens, stats.accepted_tokens) == (2, 1)
    assert (stats.draft_model, stats.draft_bytes, stats.is_paying) == ("Small", 77, True)


def tokens_until_it_reads(speculator: Speculator, draft: FakeDraft, *, most: int) -> int | None:
    """How long a reply is when the draft model begins to read; None if it is still not."""
    sequence, found = sequence_of(range(50, 60)), None
    for num_tokens in range(most):
        speculator.plan([(sequence, 100)])
        if draft.proposed():
            found = num_tokens
            break
        assert list(sequence.draft) == []
        sequence.token_ids.append(1000 + num_tokens)
    speculator.end(sequence, keep=False, on_disk=False)
    return found


def test_draft_model_reads_a_long_chat_only_when_it_will_have_saved_more():
    draft = FakeDraft(lag=3000)
    speculator = with_draft(draft)
    # 3 s for reading, twice; of a step of 10 ms something is saved, for half as many tokens as came.
    num_tokens = tokens_until_it_reads(speculator, draft, most=9000)
    assert num_tokens is not None
    assert 200 < num_tokens < 4000
    # Then chunk after chunk, nothing guessed meanwhile, until it is ready.
    sequence = sequence_of(range(50, 60))
    note_replies(speculator, *[9000] * 8)
    for number in range(1400):
        speculator.plan([(sequence, 100)])
        if sequence.draft:
            break
        sequence.token_ids.append(2000 + number)
    assert sequence.draft
    assert draft.proposed()[:3] == [[(1, 1)], [(1, 1)], [(1, 1)]]


def test_draft_model_reads_a_short_chat_as_soon_as_it_may_guess_where_replies_are_long():
    draft = FakeDraft(lag=100)
    speculator = with_draft(draft)
    note_replies(speculator, 300, 400)
    # As soon as it has taken three times as long as reading takes: 99 tokens, a tenth of a step each.
    assert tokens_until_it_reads(speculator, draft, most=60) == 30
    # One that may not guess yet does not read: what it had read would lag again. A guess is a step here.
    draft = FakeDraft(lag=20, token_ms=10.0)
    speculator.draft = draft  # type: ignore[assignment]  # what is beside guessing is not needed
    seen(speculator, "draft", is_right=True)
    assert tokens_until_it_reads(speculator, draft, most=45) is None
    # One that is known to pay may guess on what comes.
    for _ in range(20):
        speculator._draft_speeds["draft"].record(4, 20.0, 10.0)
    draft = FakeDraft(lag=100)
    speculator.draft = draft  # type: ignore[assignment]  # what is beside guessing is not needed
    note_replies(speculator, *[300] * 8)
    assert tokens_until_it_reads(speculator, draft, most=60) == 30


@pytest.mark.parametrize(("num_unsure", "reads"), [(0, True), (200, False)])
def test_draft_model_reads_where_the_whole_reply_was_of_a_kind_that_it_makes_faster(
    num_unsure, reads
):
    draft = FakeDraft(lag=100)
    speculator = with_draft(draft)
    for _ in range(50):
        speculator._draft_speeds["draft unsure"].record(1, 10.0, 10.0)  # brings nothing
        speculator._draft_speeds["draft sure"].record(2, 10.0, 10.0)
    note_replies(speculator, 400)
    sequence = sequence_of(range(50, 60))
    sequence.token_ids += [5] * 212
    sureness = speculator._sureness_of(sequence)
    for probability in [0.3] * num_unsure + [1.0] * 12:
        sureness.note(probability, 1)
    assert sureness.source == "draft sure"  # now, in any case
    speculator.plan([(sequence, 100)])
    assert bool(draft.proposed()) is reads


def test_speed_of_guesses_is_counted_by_how_sure_the_target_was():
    speculator = with_draft(FakeDraft())
    for request_id, probability in ((1, 0.1), (2, 0.99)):
        sequence = sequence_of(range(50, 51), request_id)
        sequence.token_ids += range(60, 160)
        speculator._sureness_of(sequence).note(probability, 50)
        speculator.plan([(sequence, 100)])
        draft = sequence.draft
        assert draft
        emitted = [*draft, 7] if request_id == 2 else [7]
        speculator.verified(sequence, draft, emitted, lambda: 0.7)
        speculator.timed(1 + len(draft), 10.0)
    speeds = {source: speed.times(1.0) for source, speed in speculator._draft_speeds.items()}
    assert speeds["draft unsure"] < speeds["draft"] == 1.0 < speeds["draft sure"]


def test_what_was_ordered_to_be_guessed_is_no_debt_when_it_may_be_chosen_again():
    speculator, sequence = Speculator(costs(), guess="ngram"), under_way(REPEATING)
    before = speculator._allowances.steps(sequence)
    speculator.plan([(sequence, 100)])
    assert sequence.draft
    speculator.verified(sequence, sequence.draft, [1], lambda: 0.7)
    assert speculator._allowances.steps(sequence) == before


def test_draft_model_reads_nothing_for_a_reply_that_will_be_short():
    draft = FakeDraft(lag=385)
    speculator = with_draft(draft)
    assert tokens_until_it_reads(speculator, draft, most=8) is None  # nothing is known of it yet
    for _ in range(5):
        assert tokens_until_it_reads(speculator, draft, most=8) is None
    # Some are long: it may be one of them once it is longer than the short ones, and much longer than reading takes.
    note_replies(speculator, 2000)
    assert tokens_until_it_reads(speculator, draft, most=180) == 116


@pytest.mark.parametrize("options", [{"guess": "draft"}, {"draft_tokens": 4}])
def test_draft_model_that_was_ordered_reads_at_once(options):
    draft = FakeDraft(lag=3000)
    speculator, sequence = with_draft(draft, **options), sequence_of(range(50, 60))
    speculator.plan([(sequence, 100)])
    assert draft.proposed() == [[(1, 1)]]


def chosen(speculator: Speculator, draft: FakeDraft) -> str:
    """Who guesses next where the text repeats itself and the draft model has read it."""
    sequence = under_way(REPEATING)
    draft.calls.clear()
    speculator.plan([(sequence, 100)])
    speculator.end(sequence, keep=False, on_disk=False)
    if draft.proposed():
        return "draft model"
    return "text" if sequence.draft else "nobody"


def test_tokens_that_are_read_beside_a_guess_are_part_of_what_it_costs():
    # Of 100 steps a reply may lose two, 20 ms: one guess is 1 ms, its reading 15 ms or 75 ms.
    for read_ms, count in ((1.0, 2), (5.0, 0)):
        draft = FakeDraft(lag=LEAST_LAG)
        draft.read_ms_per_token = read_ms
        speculator, sequence = with_draft(draft), under_way(range(50, 151))
        seen(speculator, "draft", is_right=True)
        speculator.plan([(sequence, 100)])
        assert min(2, len(sequence.draft)) == count


def seen(speculator: Speculator, source: str, *, is_right: bool) -> None:
    for _ in range(60):
        speculator._controller.observe(source, 4, 4 if is_right else 0)


def test_text_and_draft_model_the_one_that_should_be_faster_guesses():
    draft = FakeDraft()
    speculator = with_draft(draft)
    # A long match in the text is worth more than what a draft model usually brings.
    seen(speculator, "ngram 9+", is_right=True)
    assert chosen(speculator, draft) == "text"
    # Until text like this was often wrong, too.
    seen(speculator, "ngram 9+", is_right=False)
    assert chosen(speculator, draft) == "draft model"
    # What the draft model was seen to bring counts, not what it should.
    for _ in range(60):
        speculator._draft_speeds["draft"].record(1, 20.0, 10.0)
    seen(speculator, "ngram 9+", is_right=True)
    assert chosen(speculator, draft) == "text"


def test_text_guesses_where_the_draft_model_does_not_pay():
    draft = FakeDraft()
    speculator = with_draft(draft)
    seen(speculator, "draft", is_right=False)
    assert chosen(speculator, draft) == "text"


def test_nobody_guesses_where_rows_are_dear():
    draft = FakeDraft(token_ms=9.0)
    dear = StepCosts()
    dear.calibrate({1: 10.0, 2: 18.0, 4: 36.0})
    speculator = Speculator(dear)
    speculator.use(draft)  # type: ignore[arg-type]  # what is beside guessing is not needed
    seen(speculator, "ngram 9+", is_right=False)
    assert chosen(speculator, draft) == "nobody"


def test_nothing_of_a_step_is_left_when_guessing_goes_off():
    draft = FakeDraft()
    speculator, sequence = with_draft(draft), under_way(range(50, 90))
    untouched = speculator._draft_speeds["draft"].times(1.25)
    speculator.plan([(sequence, 9)])
    assert sequence.draft
    speculator.verified(sequence, sequence.draft, [900, 7], lambda: 0.7)
    speculator.timed(3, 12.0)
    assert speculator._draft_speeds["draft"].times(1.25) != untouched
    times = speculator._draft_speeds["draft"].times(1.25)
    speculator.set_guess("off")
    for _ in range(50):
        speculator.plan([(sequence, 9)])
        speculator.verified(sequence, sequence.draft, [7], lambda: 0.7)
        speculator.timed(1, 10.0)
    assert speculator._draft_speeds["draft"].times(1.25) == times
    assert len(speculator._num_new) == 1


def test_draft_model_is_told_the_end_of_what_it_began_alone():
    draft = FakeDraft()
    speculator = with_draft(draft, guess="draft")
    one, other = sequence_of(range(50, 60)), sequence_of(range(50, 60), 2)
    speculator.plan([(one, 9)])
    speculator.end(one, keep=True, on_disk=False)
    speculator.end(other, keep=True, on_disk=True)
    assert [call for call in draft.calls if call[0] == "end"] == [("end", 1, True, False)]


def test_draft_model_is_changed_while_a_reply_runs():
    first, second = FakeDraft(), FakeDraft()
    speculator, sequence = with_draft(first, guess="draft"), sequence_of(range(50, 60))
    speculator.plan([(sequence, 9)])
    before: object = speculator.use(second)  # type: ignore[arg-type]
    assert before is first
    speculator.plan([(sequence, 9)])
    speculator.use(None)
    speculator.plan([(sequence, 9)])
    assert list(sequence.draft) == []
    assert (len(first.proposed()), len(second.proposed())) == (1, 1)
    assert second.calls[0] == ("begin", 1)


# --- in an engine -----------------------------------------------------------------------------

PROMPT = tuple([*range(40, 60)] * 3)


def reply(engine: Engine, **params: object) -> tuple[list[int], RequestMetrics]:
    values: dict[str, object] = {"temperature": 0.0, "max_tokens": 120, **params}
    request = GenerateRequest(
        "a",
        prompt_token_ids=PROMPT,
        params=SamplingParams(**values),  # type: ignore[arg-type]  # fields of tests
    )
    request_id = engine.add_request(request)
    outputs = run_until_idle(engine)[request_id]
    engine.check_integrity()
    return sampled_ids(outputs), outputs[-1].metrics


@pytest.mark.parametrize("draft_tokens", [1, 2, 4, 8, 16])
def test_reply_that_repeats_itself_takes_fewer_steps_and_is_the_same(draft_tokens):
    plain = make_engine(guess="off")
    known, before = reply(plain)
    assert (before.drafted_tokens, before.verify_steps, before.guess_speedup) == (0, 0, None)
    # Unless the model never repeats itself, in which case this test says nothing:
    assert len(set(known)) < 60
    engine = make_engine(guess="ngram", draft_tokens=draft_tokens)
    ids, metrics = reply(engine)
    assert ids == known
    assert metrics.drafted_tokens <= metrics.verify_steps * draft_tokens
    assert 0 < metrics.accepted_tokens <= metrics.drafted_tokens
    stats = engine.stats().guesses
    assert len(stats.by_position) == min(draft_tokens, MAX_DRAFT_TOKENS)
    assert stats.accepted_tokens == metrics.accepted_tokens
    assert metrics.plain_token_ms is not None
    assert metrics.guess_speedup == pytest.approx(
        metrics.plain_token_ms * (metrics.decode_tps or 0) / 1000
    )


def test_switching_guessing_while_a_reply_runs_changes_nothing_of_it():
    plain = make_engine(guess="off")
    known, _ = reply(plain)
    engine = make_engine(guess="ngram", draft_tokens=4)
    request = GenerateRequest(
        "a",
        prompt_token_ids=PROMPT,
        params=SamplingParams(temperature=0.0, max_tokens=120),
    )
    engine.add_request(request)
    ids: list[int] = []
    for number in range(1000):
        if not engine.has_work:
            break
        engine.set_guess("off" if number % 7 < 3 else "auto")
        ids += sampled_ids(engine.step())
    assert ids == known
    engine.check_integrity()


def test_steps_are_measured_when_guessing_is_first_switched_on():
    engine = make_engine(guess="off")
    before = engine._parts.speculator.is_calibrated
    engine.set_guess("auto")
    assert (before, engine._parts.speculator.is_calibrated) == (False, True)
    engine.check_integrity()
    assert (engine.stats().blocks.used, engine.stats().kv_bytes) == (0, 0)
    assert make_engine()._parts.speculator.is_calibrated


def test_reading_beside_the_first_guess_must_be_borne_and_is_paid():
    speculator = with_draft(FakeDraft(lag=4))  # three tokens of 1 ms, a tenth of a step each
    early = under_way(range(50, 66))  # 2 % of 15 steps bear a guess, but not its reading
    speculator.plan([(early, 100)])
    assert not early.draft
    sequence = under_way(range(50, 90))
    speculator.plan([(sequence, 100)])
    assert sequence.draft
    before = speculator._allowances.steps(sequence)
    speculator.verified(sequence, sequence.draft, [1], lambda: 0.7)
    row_ms = costs().ms(1 + len(sequence.draft)) - 10.0
    paid = before - speculator._allowances.steps(sequence)
    assert paid * 10.0 == pytest.approx(3.0 + len(sequence.draft) * 1.0 + row_ms)


def test_another_draft_model_has_not_proven_itself():
    speculator = with_draft(FakeDraft())
    for _ in range(20):
        speculator._draft_speeds["draft"].record(4, 20.0, 10.0)
    assert speculator._draft_speeds["draft"].is_proven
    speculator.use(FakeDraft())  # type: ignore[arg-type]  # what is beside guessing is not needed
    assert not speculator._draft_speeds["draft"].is_proven


def test_another_draft_model_does_not_pay_for_the_one_before():
    def asks(draft: FakeDraft) -> bool:
        sequence = under_way(range(50, 150))  # nothing repeats itself
        draft.calls.clear()
        speculator.plan([(sequence, 100)])
        speculator.end(sequence, keep=False, on_disk=False)
        return bool(draft.proposed())

    bad, good = FakeDraft(), FakeDraft()
    speculator = with_draft(bad)
    seen(speculator, "draft", is_right=False)
    assert not asks(bad)
    speculator.use(good)  # type: ignore[arg-type]  # what is beside guessing is not needed
    assert asks(good)


def test_speed_of_guesses_is_that_of_all_replies_of_the_step():
    speculator = with_draft(FakeDraft())
    three = [under_way(range(1000 * n, 1000 * n + 600)) for n in range(1, 4)]
    for number, sequence in enumerate(three):
        sequence.request_id = RequestId(number + 1)
    speculator.plan([(sequence, 100) for sequence in three])
    assert any(sequence.draft for sequence in three)
    guessed = next(sequence for sequence in three if sequence.draft)
    for sequence in three:
        emitted = [sequence.draft[0], 7] if sequence is guessed else [7]
        speculator.verified(sequence, sequence.draft, emitted, lambda: 0.7)
    speculator._asked_ms = 0.0
    took_ms = 2 * speculator.plain_ms(3)
    speculator.timed(4, took_ms)
    seen_times = 4 / 3 * speculator.plain_ms(3) / took_ms  # four tokens for three replies
    assert speculator._draft_speeds["draft"].times(1.0) == pytest.approx(8 / 9 + seen_times / 9)


@pytest.mark.parametrize("probability", [0.75, 0.95])
def test_draft_model_that_ends_the_turn_at_each_token_is_soon_asked_no_more(probability):
    class Ending(FakeDraft):
        def propose(self, wanted, least_sure):
            super().propose(wanted, least_sure)
            return [(END,) for _ in wanted]

    draft = Ending(token_ms=3.5)
    speculator = with_draft(draft)
    for number in range(5):
        sequence = sequence_of([1, 2, 3], request_id=number)
        for token_id in range(1000 * number + 10, 1000 * number + 310):  # nothing repeats itself
            speculator.plan([(sequence, 99)])
            guessed = sequence.draft
            sequence.token_ids.append(token_id)
            speculator.verified(sequence, guessed, [token_id], lambda: probability)
            speculator.timed(1 + len(guessed), 10.0 + len(guessed))
        speculator.end(sequence, keep=False, on_disk=False)
    assert 0 < len(draft.proposed()) < 50  # of 1,500 steps


def test_time_of_making_guesses_is_part_of_how_fast_they_are(monkeypatch):
    now = 0.0

    class SlowDraft(FakeDraft):
        def propose(self, wanted, least_sure):
            nonlocal now
            now += 0.5
            return super().propose(wanted, least_sure)

    monkeypatch.setattr("inference.speculation.speculator.time.perf_counter", lambda: now)
    speculator, sequence = with_draft(SlowDraft()), under_way(range(50, 90))
    speculator.plan([(sequence, 100)])
    assert sequence.draft
    speculator.verified(sequence, sequence.draft, [*sequence.draft, 1], lambda: 0.7)
    before = speculator._draft_speeds["draft"].times(1.25)
    speculator.timed(1 + len(sequence.draft), 10.0)
    assert speculator._draft_speeds["draft"].times(1.25) < before  # 510 ms for a few tokens


def test_nothing_is_kept_of_a_reply_that_has_ended():
    speculator, sequence = with_draft(FakeDraft()), under_way(range(50, 90))
    speculator.plan([(sequence, 100)])
    speculator.verified(sequence, sequence.draft, [900, 1], lambda: 0.7)
    speculator.end(sequence, keep=False, on_disk=False)
    assert not speculator._sureness
    assert not speculator._histories
    assert not speculator._allowances._gained


def test_engine_tells_how_sure_the_model_was_of_each_token(monkeypatch):
    engine = make_engine(guess="auto")
    rows: list[torch.Tensor] = []
    told: list[float] = []
    run, verified = engine._parts.runner.run, engine._parts.speculator.verified

    def noting_run(chunks):
        rows[:] = run(chunks).clone()
        return torch.stack(rows)

    def noting_verified(sequence, draft, emitted, sureness):
        wanted = torch.stack(rows)[: len(emitted), : engine._parts.vocab_size].softmax(-1).amax(-1)
        told.append(sureness())
        assert told[-1] == pytest.approx(float(wanted.mean()), rel=1e-4)
        verified(sequence, draft, emitted, sureness)

    monkeypatch.setattr(engine._parts.runner, "run", noting_run)
    monkeypatch.setattr(engine._parts.speculator, "verified", noting_verified)
    _, metrics = reply(engine)
    assert metrics.accepted_tokens > 0  # several rows of one step, too
    assert len(set(told)) > 5
