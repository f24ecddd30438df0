"""No reply is made much slower by guesses, whatever they are and wherever it ends."""

import random
from collections.abc import Callable, Sequence

import pytest

from inference.request import RequestId
from inference.sequence import Sequence as TokenSequence
from inference.speculation.allowance import (
    LOSS_SHARE,
    MOST_IN_ADVANCE,
    Allowances,
    most_that_cost,
)
from inference.speculation.costs import StepCosts
from inference.speculation.speculator import Speculator
from tests.inference.test_speculator import FakeDraft, note_replies

PLAIN_MS = 10.0
SHAPE = {1: 1.0, 2: 1.1, 4: 1.3, 8: 1.8, 16: 3.4}
PROMPT = [*range(50, 80), *range(50, 60)]
LEAST_SPEED = 0.97


def reply_of(num_tokens: int, request_id: int = 1) -> TokenSequence:
    """A reply that goes on with what the prompt said before."""
    sequence = TokenSequence(RequestId(request_id), "chat", list(PROMPT))
    sequence.token_ids += [60 + place % 20 for place in range(num_tokens)]
    return sequence


def step_costs() -> StepCosts:
    found = StepCosts()
    found.calibrate({rows: PLAIN_MS * times for rows, times in SHAPE.items()})
    return found


def test_reply_may_spend_a_share_of_what_came_and_in_advance_of_what_will_surely_come():
    allowances = Allowances()
    assert allowances.steps(reply_of(40)) == pytest.approx(LOSS_SHARE * 40)
    assert allowances.steps(reply_of(40), in_advance=True) == pytest.approx(LOSS_SHARE * 60)
    for length in (30, 100):
        allowances.end(reply_of(length, request_id=length))
    assert allowances.tokens_left(reply_of(0)) == 30
    assert allowances.steps(reply_of(0)) == 0.0
    assert allowances.steps(reply_of(0), in_advance=True) == pytest.approx(LOSS_SHARE * 30)
    assert allowances.steps(reply_of(30), in_advance=True) == pytest.approx(LOSS_SHARE * 100)
    allowances.end(reply_of(900, request_id=900))
    most = LOSS_SHARE * (300 + MOST_IN_ADVANCE)
    assert allowances.steps(reply_of(300), in_advance=True) == pytest.approx(most)


def test_what_guesses_cost_and_bring_is_each_replys_own_and_goes_with_it():
    allowances, one, other = Allowances(), reply_of(50, 1), reply_of(50, 2)
    before = allowances.steps(one)
    allowances.earn(one, -3.0)
    allowances.earn(one, 2)
    assert allowances.steps(one) == pytest.approx(before - 1.0)
    assert allowances.steps(other) == pytest.approx(before)
    allowances.end(one)
    assert allowances.steps(reply_of(50, 1)) == pytest.approx(before)


@pytest.mark.parametrize(("limit", "count"), [(-1.0, 0), (0.9, 0), (1.0, 1), (2.5, 2), (99.0, 4)])
def test_so_many_guesses_as_can_be_paid(limit, count):
    assert most_that_cost(limit, 4, float) == count


class Replies:
    """Runs replies as an engine would, and adds up what that takes by the costs that it was told."""

    def __init__(self, draft: FakeDraft | None = None) -> None:
        self.speculator = Speculator(step_costs())
        self.draft = draft
        self.speculator.use(draft)  # type: ignore[arg-type]  # what is beside guessing is not needed

    def run(self, prompt: Sequence[int], reply: Sequence[int]) -> float:
        """How many times as fast as without guesses one reply of these tokens is."""
        sequence = TokenSequence(RequestId(1), "chat", list(prompt))
        took_ms, done = 0.0, 0
        while done < len(reply):
            took_ms += self._step(sequence, reply[done:])
            done = len(sequence.token_ids) - len(prompt)
        self.speculator.end(sequence, keep=False, on_disk=False)
        return len(reply) * PLAIN_MS / took_ms

    def _step(self, sequence: TokenSequence, left: Sequence[int]) -> float:
        read_before = 0 if self.draft is None else self.draft.lacks
        self.speculator.plan([(sequence, len(left) - 1)])
        draft = list(sequence.draft)
        num_right = next(
            (place for place, token in enumerate(draft) if token != left[place]), len(draft)
        )
        emitted = left[: num_right + 1]
        sequence.token_ids += emitted
        self.speculator.verified(sequence, draft, emitted, lambda: 0.9)
        took_ms = step_costs().ms(1 + len(draft))
        if self.draft is not None:
            took_ms += (read_before - self.draft.lacks) * (self.draft.read_ms_per_token or 0)
            if any(token >= 900 for token in draft):
                took_ms += len(draft) * (self.draft.token_ms or 0)
        self.speculator.timed(1 + len(draft), step_costs().ms(1 + len(draft)))
        return took_ms


def misleading(number: int, length: int) -> list[int]:
    """A reply that begins again and again as something in the prompt did, and then goes another way."""
    chance = random.Random(number)
    reply: list[int] = []
    while len(reply) < length:
        start = chance.randrange(len(PROMPT) - 4)
        reply += [*PROMPT[start : start + chance.choice([2, 3])], 200 + chance.randrange(500)]
    return reply[:length]


def news(number: int, length: int) -> list[int]:
    """A reply whose words were never said, while the draft model always guesses something else."""
    return [300 + (number * 97 + place * 31) % 599 for place in range(length)]


def same_length(_: int) -> int:
    return 9


def any_length(number: int) -> int:
    return random.Random(number).choice([1, 2, 5, 9, 30, 200])


@pytest.mark.parametrize("make", [misleading, news])
@pytest.mark.parametrize("with_draft", [False, True])
@pytest.mark.parametrize("length_of", [same_length, any_length])
def test_no_reply_is_much_slower_though_all_guesses_are_wrong(
    make: Callable[[int, int], list[int]], with_draft: bool, length_of: Callable[[int], int]
) -> None:
    replies = Replies(FakeDraft() if with_draft else None)
    for number in range(40):
        length = length_of(number)
        speed = replies.run(PROMPT, make(number, length))
        assert speed >= LEAST_SPEED, (number, length)


class RightDraft(FakeDraft):
    """Guesses a reply that it is told, and with `is_right` off something else."""

    is_right = True
    reply: Sequence[int] = ()

    def propose(
        self, wanted: Sequence[tuple[TokenSequence, int]], least_sure: float
    ) -> list[tuple[int, ...]]:
        if not self.is_right:
            return super().propose(wanted, least_sure)
        return [
            tuple(self.reply[each.num_replied : each.num_replied + count]) for each, count in wanted
        ]


def test_draft_model_that_paid_before_guesses_at_once_and_one_that_does_not_any_more_stops():
    draft = RightDraft(token_ms=3.0)
    replies = Replies(draft)
    speeds = []
    for number in range(6):
        draft.reply = news(number, 60)
        speeds.append(replies.run(PROMPT[:30], draft.reply))
    assert speeds[0] < min(speeds[2:])  # first it must be tried
    assert min(speeds[2:]) > 1.5
    draft.is_right = False
    speeds = [replies.run(PROMPT[:30], news(number, 60)) for number in range(20)]
    assert min(speeds) > 0.9  # it was known to pay, and does not
    assert min(speeds[5:]) >= LEAST_SPEED


def test_copy_of_the_prompt_is_guessed_from_its_first_words_on():
    text = list(range(50, 350))
    assert Replies().run(text, text) > 3.0  # the very first reply, of which nothing is known
    short = Replies()
    assert short.run(text, text[:30]) > 1.5


def test_three_replies_of_one_step_guess_as_if_each_wrong_guess_cost_them_all():
    alone, together = Speculator(step_costs()), Speculator(step_costs())
    one = reply_of(15, 1)
    alone.plan([(one, 99)])
    three = [reply_of(15, number) for number in (1, 2, 3)]
    together.plan([(sequence, 99) for sequence in three])
    assert len(one.draft) > 0
    assert all(len(sequence.draft) < len(one.draft) for sequence in three)
    # If all are wrong, each pays what all of them cost it.
    for sequence in three:
        together.verified(sequence, sequence.draft, [999], lambda: 0.7)
    lost = [LOSS_SHARE * 15 - together._allowances.steps(sequence) for sequence in three]
    num_guesses = sum(len(sequence.draft) for sequence in three)
    expected = step_costs().ms(3 + num_guesses) / step_costs().ms(3) - 1
    assert lost == pytest.approx([expected] * 3)
    assert 0 < expected <= LOSS_SHARE * 15


def test_reply_that_does_not_guess_pays_nothing_for_one_that_does():
    speculator = Speculator(step_costs())
    copying, other = reply_of(30, 1), TokenSequence(RequestId(2), "other", [1])
    other.token_ids += range(300, 400)  # nothing of it was said before
    speculator.plan([(copying, 99), (other, 99)])
    assert copying.draft
    assert not other.draft
    speculator.verified(copying, copying.draft, [999], lambda: 0.7)
    speculator.verified(other, other.draft, [999], lambda: 0.7)
    assert speculator._allowances.steps(other) == pytest.approx(LOSS_SHARE * 100)
    extra = step_costs().ms(2 + len(copying.draft)) / step_costs().ms(2) - 1
    assert speculator._allowances.steps(copying) == pytest.approx(LOSS_SHARE * 30 - 2 * extra)


def test_guess_that_was_not_computed_costs_nothing():
    speculator, one = Speculator(step_costs()), reply_of(30, 1)
    speculator.plan([(one, 99)])
    assert one.draft
    speculator.verified(one, (), [999], lambda: 0.7)  # prompts took the step's budget
    assert speculator._allowances.steps(one) == pytest.approx(LOSS_SHARE * 30)


def test_text_is_not_guessed_in_advance_because_a_draft_model_pays():
    draft = FakeDraft(lag=3000)
    speculator = Speculator(step_costs())
    speculator.use(draft)  # type: ignore[arg-type]  # what is beside guessing is not needed
    for _ in range(20):
        speculator._draft_speeds["draft"].record(4, 20.0, PLAIN_MS)
    note_replies(speculator, *[40] * 8)
    sequence = TokenSequence(RequestId(1), "chat", list(PROMPT))
    speculator.plan([(sequence, 99)])
    assert list(sequence.draft) == []
