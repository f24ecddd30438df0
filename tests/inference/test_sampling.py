"""Sampling against a plain numpy version, by hand-computed values, and by the laws of filters."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from inference import likeliest
from inference.config import MAX_SEED, SamplingParams
from inference.errors import ComputeError, InvalidRequestError
from inference.kernels.library import KernelError, load_kernels
from inference.kernels.structures import Filters
from inference.sampling import Sampler, candidates


def make_params(**fields: Any) -> SamplingParams:
    """Sampling with everything off but what is asked for."""
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}
    return SamplingParams(**{**off, **fields})


def reference_probs(logits: list[float], params: SamplingParams) -> np.ndarray:
    """The distribution after temperature and filters, written down as it is explained."""
    scaled = np.array(logits, dtype=np.float64) / params.temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    order = np.argsort(-probs, kind="stable")
    if params.top_k > 0:
        probs[order[params.top_k :]] = 0.0
        probs /= probs.sum()
    if params.top_p < 1.0:
        before = np.cumsum(probs[order]) - probs[order]
        dropped = before >= params.top_p
        dropped[0] = False
        probs[order[dropped]] = 0.0
        probs /= probs.sum()
    probs[probs < params.min_p * probs.max()] = 0.0
    return np.asarray(probs / probs.sum())


def actual_probs(logits: list[float], params: SamplingParams) -> np.ndarray:
    token_ids, weights = candidates(np.array(logits, dtype=np.float32), params)
    probs = np.zeros(len(logits))
    probs[token_ids] = weights / weights.sum()
    assert len(set(token_ids.tolist())) == len(token_ids)
    return probs


def kept(logits: list[float], **fields: Any) -> list[int]:
    token_ids, _ = candidates(np.array(logits, dtype=np.float32), make_params(**fields))
    return [int(token_id) for token_id in token_ids]


def draw(logits: list[float], num_tokens: int, params: SamplingParams) -> list[int]:
    sampler = Sampler(params, [], len(logits))
    tensor = torch.tensor(logits, dtype=torch.float32)
    return [sampler.sample(tensor) for _ in range(num_tokens)]


# --- greedy -----------------------------------------------------------------------------------


def test_greedy_takes_the_highest_and_of_equals_the_first():
    assert draw([0.0, 3.0, 1.0, 3.0], 3, make_params(temperature=0)) == [1, 1, 1]


def test_greedy_ignores_filters_and_has_no_seed():
    sampler = Sampler(SamplingParams(temperature=0, seed=5, top_k=1), [], 3)
    assert sampler.seed is None
    assert sampler.sample(torch.tensor([1.0, 2.0, 0.0])) == 1


def test_greedy_with_penalties_applies_them():
    params = make_params(temperature=0, frequency_penalty=0.6)
    # logit of 1: 2.0, 1.4, 0.8, 0.8, 0.2;  of 0: 1.0, 1.0, 1.0, 0.4, 0.4
    assert draw([1.0, 2.0], 5, params) == [1, 1, 0, 1, 0]


# --- filters by hand --------------------------------------------------------------------------


def test_candidates_without_filters_are_all_tokens_in_order_of_ids():
    assert kept([0.0, 2.0, 1.0]) == [0, 1, 2]


@pytest.mark.parametrize(
    ("k", "expected"), [(1, [3]), (2, [3, 1]), (3, [3, 1, 2]), (4, [3, 1, 2, 0])]
)
def test_top_k_keeps_the_k_likeliest_of_equals_the_first(k, expected):
    assert kept([0.0, 2.0, 2.0, 5.0], top_k=k, top_p=0.999999) == expected


@pytest.mark.parametrize("k", [5, 6, 1000])
def test_top_k_of_the_vocabulary_or_more_keeps_all(k):
    assert kept([0.0, 4.0, 2.0, 3.0, 1.0], top_k=k) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        (0.0, [2]),
        (0.5, [2]),
        (0.51, [2, 1]),
        (0.74, [2, 1]),
        (0.76, [2, 1, 0]),
        (1.0, [0, 1, 2, 3]),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_p(p, expected):
    probs = [0.125, 0.25, 0.5, 0.125]
    assert kept([math.log(prob) for prob in probs], top_p=p) == expected


def test_top_p_of_equals_keeps_the_first():
    assert kept([1.0, 1.0, 1.0, 1.0], top_p=0.5) == [0, 1]


@pytest.mark.parametrize(
    ("min_p", "expected"), [(0.0, [0, 1, 2]), (0.2, [2, 1, 0]), (0.3, [2, 1]), (1.0, [2])]
)
def test_min_p_keeps_what_has_its_share_of_the_best(min_p, expected):
    assert kept([math.log(p) for p in (0.125, 0.25, 0.5)], min_p=min_p) == expected


def test_min_p_of_one_keeps_all_equals_of_the_best():
    assert kept([1.0, 0.0, 1.0], min_p=1.0) == [0, 2]


def test_top_p_counts_only_what_top_k_left():
    # .4 .3 .2 .1; after top-k 2 the first has 4/7 = .571
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert kept(logits, top_k=2, top_p=0.57) == [0]
    assert kept(logits, top_k=0, top_p=0.57) == [0, 1]


def test_top_p_counts_what_min_p_drops_afterwards():
    # Of .4 .3 .2 .1 top-p .75 keeps three; min-p .6 then drops .2. Had min-p come first, the two
    # left would have 4/7 and 3/7, and top-p .57 would keep one of them.
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert kept(logits, top_p=0.75, min_p=0.6) == [0, 1]
    assert kept(logits, top_p=0.57, min_p=0.6) == [0, 1]


def test_temperature_shapes_what_the_filters_see():
    logits = [math.log(p) for p in (0.6, 0.3, 0.1)]
    assert kept(logits, top_p=0.6) == [0]
    assert kept(logits, top_p=0.6, temperature=4.0) == [0, 1]


def test_top_p_over_a_large_flat_vocabulary_sorts_beyond_the_first_candidates():
    logits = np.linspace(0.0, 1.0, 5000, dtype=np.float32)
    token_ids, weights = candidates(logits, make_params(top_p=0.9))
    expected = reference_probs(logits.tolist(), make_params(top_p=0.9))
    assert token_ids.tolist() == list(range(4999, 4999 - len(token_ids), -1))
    assert len(token_ids) == int((expected > 0).sum()) > 4000
    assert float(weights[0]) == 1.0


# --- filters by law ---------------------------------------------------------------------------

# Steps of 1/4 make many equals.
LOGITS = st.lists(st.integers(-40, 40).map(lambda n: n / 4), min_size=1, max_size=300)
SHARE = st.one_of(st.just(0.0), st.just(1.0), st.floats(0.0, 1.0))


@settings(deadline=None, max_examples=300)
@given(LOGITS, st.floats(0.05, 20.0), st.integers(0, 30), SHARE, SHARE)
def test_candidates_any_filters_equal_the_reference(logits, temperature, top_k, top_p, min_p):
    params = make_params(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assume(is_clear_cut(logits, params))
    expected = reference_probs(logits, params)
    actual = actual_probs(logits, params)
    assert np.flatnonzero(expected > 1e-300).tolist() == np.flatnonzero(actual > 1e-300).tolist()
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-12)


def is_clear_cut(logits: list[float], params: SamplingParams) -> bool:
    """Whether no token lies so close to a bound that rounding decides."""
    probs = reference_probs(logits, make_params(temperature=params.temperature, top_k=params.top_k))
    sums = np.cumsum(np.sort(probs)[::-1])
    shares = probs / probs.max()
    # Beyond 1 the sums no longer move, and the bound 1 itself is no filter.
    is_clear = params.top_p == 1.0 or bool((np.abs(sums - params.top_p) > 1e-5).all())
    return is_clear and (params.min_p == 1.0 or bool((np.abs(shares - params.min_p) > 1e-9).all()))


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.floats(-(2.0**127), 2.0**127, width=32, allow_subnormal=False), min_size=1, max_size=50
    ),
    st.floats(0.0, 100.0),
    st.integers(0, 60),
    SHARE,
    SHARE,
    st.floats(0.01, 100.0),
    st.floats(-2.0, 2.0),
    st.integers(0, MAX_SEED),
)
def test_sample_any_finite_logits_and_any_params_gives_a_likely_token(
    logits, temperature, top_k, top_p, min_p, repetition, presence, seed
):
    params = SamplingParams(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed,
        repetition_penalty=repetition, presence_penalty=presence, frequency_penalty=presence,
    )  # fmt: skip
    for token_id in draw(logits, 4, params):
        assert 0 <= token_id < len(logits)


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 5e-324])
@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_sample_tiny_temperature_is_the_argmax(temperature, filters):
    params = make_params(temperature=temperature, **filters)
    assert draw([-80.0, 30.0, 90.0, 89.0], 5, params) == [2] * 5


@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_sample_token_without_probability_is_never_drawn(filters):
    tokens = draw([-1e30, 0.0, -1e30, 0.0, -1e30], 200, make_params(**filters))
    assert set(tokens) == {1, 3}


class OneNumber:
    """A generator that always gives the same number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def random(self) -> float:
        return self.number


@pytest.mark.parametrize(("number", "token_id"), [(0.0, 1), (1.0 - 2.0**-53, 3)])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.7, 5.0, 20.0])
def test_sample_extreme_random_number_gives_the_outermost_token_with_probability(
    number, token_id, share
):
    sampler = Sampler(make_params(), [], 6)
    sampler._random = OneNumber(number)  # type: ignore[assignment]  # a stub of the one method used
    logits = torch.tensor([-1e30, 0.0, share, share / 2, -1e30, -1e30])
    assert sampler.sample(logits) == token_id


# --- the draw ---------------------------------------------------------------------------------


def chi_square(tokens: list[int], probs: np.ndarray) -> float:
    """Deviations from the expected counts in standard deviations of the chi-square statistic."""
    counts = Counter(tokens)
    assert all(probs[token_id] > 0 for token_id in counts)
    support = np.flatnonzero(probs)
    expected = probs[support] * len(tokens)
    assert expected.min() >= 5
    observed = np.array([counts[int(token_id)] for token_id in support])
    degrees = len(support) - 1
    statistic = float((((observed - expected) ** 2) / expected).sum())
    return (statistic - degrees) / math.sqrt(2 * degrees)


CHI_LOGITS = [((7 * i) % 20) / 6 for i in range(20)]


@pytest.mark.parametrize(
    "filters",
    [
        {},
        {"top_k": 8},
        {"top_p": 0.8},
        {"min_p": 0.2},
        {"temperature": 0.6, "top_k": 15, "top_p": 0.95, "min_p": 0.03},
        {"temperature": 3.0, "top_p": 0.9},
    ],
)
def test_draw_many_tokens_follow_the_reference(filters):
    params = make_params(seed=2024, **filters)
    tokens = draw(CHI_LOGITS, 4000, params)
    assert chi_square(tokens, reference_probs(CHI_LOGITS, params)) < 4.0
    assert chi_square(tokens, reference_probs(CHI_LOGITS[::-1], make_params())) > 20.0


def test_draw_first_tokens_of_many_seeds_follow_the_reference():
    probs = reference_probs(CHI_LOGITS, make_params())
    tokens = [draw(CHI_LOGITS, 1, make_params(seed=seed))[0] for seed in range(4000)]
    assert chi_square(tokens, probs) < 4.0


def test_draw_consecutive_tokens_are_independent():
    tokens = draw([0.0, 0.0], 4000, make_params(seed=3))
    pairs = [2 * a + b for a, b in zip(tokens[::2], tokens[1::2], strict=True)]
    assert chi_square(pairs, np.full(4, 0.25)) < 4.0


# --- seeds ------------------------------------------------------------------------------------


def test_seed_fixed_repeats_and_is_recorded():
    assert draw(CHI_LOGITS, 50, make_params(seed=7)) == draw(CHI_LOGITS, 50, make_params(seed=7))
    assert Sampler(make_params(seed=7), [], 3).seed == 7


def test_seed_known_gives_the_same_tokens_in_each_version():
    assert draw([0.0] * 10, 8, make_params(seed=42)) == [6, 0, 2, 2, 7, 6, 8, 0]


def test_seeds_that_differ_only_in_high_bits_differ():
    one, other = make_params(seed=5), make_params(seed=5 + 2**40)
    assert draw(CHI_LOGITS, 30, one) != draw(CHI_LOGITS, 30, other)


def test_seed_none_is_drawn_recorded_and_repeats_the_reply():
    logits = torch.tensor(CHI_LOGITS)
    samplers = [Sampler(make_params(seed=None), [], 20) for _ in range(2)]
    seeds = [sampler.seed for sampler in samplers]
    assert seeds[0] != seeds[1]
    assert all(seed is not None and 0 <= seed <= MAX_SEED for seed in seeds)
    tokens = [samplers[0].sample(logits) for _ in range(30)]
    assert draw(CHI_LOGITS, 30, make_params(seed=seeds[0])) == tokens


def test_seed_repeats_whatever_else_is_sampled_between():
    logits = torch.tensor(CHI_LOGITS)
    alone = draw(CHI_LOGITS, 30, make_params(seed=9))
    sampler, stranger = (Sampler(make_params(seed=seed), [], 20) for seed in (9, 10))
    beside = []
    for _ in range(30):
        stranger.sample(logits)
        torch.rand(3)
        beside.append(sampler.sample(logits))
    assert beside == alone


# --- penalties --------------------------------------------------------------------------------


def penalised(
    logits: list[float], prompt: list[int], reply: list[int], **fields: Any
) -> list[float]:
    """Logits as the next draw sees them; `reply` is forced by a logit that nothing outweighs."""
    sampler = Sampler(make_params(temperature=0, **fields), prompt, len(logits))
    for token_id in reply:
        forced = torch.full((len(logits),), -1e6)
        forced[token_id] = 1e6
        assert sampler.sample(forced) == token_id
    assert sampler._penalties is not None
    penalised = sampler._penalties.apply(np.array(logits, dtype=np.float32))
    return [float(logit) for logit in penalised]


def test_repetition_penalty_lowers_positive_and_negative_logits_of_prompt_and_reply():
    result = penalised([4.0, -4.0, 4.0, -4.0, 0.0, 4.0], [0, 1, 1], [2, 3, 2], repetition_penalty=2)
    assert result == [2.0, -8.0, 2.0, -8.0, 0.0, 4.0]


def test_repetition_penalty_below_one_raises():
    assert penalised([4.0, -4.0, 1.0], [0, 1], [], repetition_penalty=0.5) == [8.0, -2.0, 1.0]


def test_presence_penalty_counts_the_reply_once_and_not_the_prompt():
    assert penalised([1.0, 1.0, 1.0], [0], [2, 2], presence_penalty=0.5) == [1.0, 1.0, 0.5]


def test_frequency_penalty_counts_each_token_of_the_reply():
    result = penalised([1.0, 1.0, 1.0], [0, 0], [2, 1, 2], frequency_penalty=0.25)
    assert result == [1.0, 0.75, 0.5]


def test_penalties_together_repetition_comes_first():
    result = penalised(
        [8.0, 8.0], [1], [0, 0], repetition_penalty=2, presence_penalty=1, frequency_penalty=0.5
    )
    assert result == [8.0 / 2 - 1.0 - 2 * 0.5, 8.0 / 2]


def test_penalty_negative_favours_what_was_said():
    assert draw([1.0, 1.5], 3, make_params(temperature=0, presence_penalty=-2)) == [1, 1, 1]
    result = penalised([1.0, 1.0], [], [1], presence_penalty=-2, frequency_penalty=-1)
    assert result == [1.0, 4.0]


def test_penalty_that_would_overflow_stays_finite():
    limit = float(np.finfo(np.float32).max)
    result = penalised([3e38, -3e38, 0.0], [0, 1], [], repetition_penalty=0.01)
    assert result == pytest.approx([limit, -3e36, 0.0])


def test_penalties_unknown_prompt_token_is_refused():
    for token_id in (-1, 5):
        with pytest.raises(InvalidRequestError, match=r"prompt_token_ids: .*from 0 to 4"):
            Sampler(make_params(repetition_penalty=1.1), [0, token_id], 5)


def test_sample_does_not_change_the_logits():
    logits = torch.tensor([1.0, 2.0, 3.0])
    sampler = Sampler(make_params(repetition_penalty=2, top_k=2), [0, 1, 2], 3)
    for _ in range(3):
        sampler.sample(logits)
    assert logits.tolist() == [1.0, 2.0, 3.0]


# --- failures ---------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize(
    "fields", [{"temperature": 0}, {}, {"top_k": 1}, {"top_k": 2}, {"presence_penalty": 1}]
)
def test_sample_logits_that_are_no_numbers_are_an_error_and_not_counted(bad, place, fields):
    logits = torch.tensor([1.0, 2.0, 3.0])
    damaged = logits.clone()
    damaged[place] = bad
    sampler = Sampler(make_params(**fields), [], 3)
    with pytest.raises(ComputeError, match="not numbers") as raised:
        sampler.sample(damaged)
    assert raised.value.hint.startswith("Its file may be damaged: download it again")
    untouched = Sampler(make_params(**fields), [], 3)
    assert [sampler.sample(logits) for _ in range(5)] == [
        untouched.sample(logits) for _ in range(5)
    ]


# --- by the kernels ---------------------------------------------------------------------------


FILTERS = [
    {"top_k": 1},
    {"top_k": 40, "top_p": 0.95, "min_p": 0.05},
    {"top_k": 40, "top_p": 0.0},
    {"top_k": 999, "top_p": 0.5},
    {"top_k": 7, "min_p": 1.0},
    {"top_k": 300, "temperature": 100.0},
    {"top_k": 300, "temperature": 1e-9},
    {"temperature": 0},
]


@pytest.mark.parametrize("fields", FILTERS)
@pytest.mark.parametrize("kind", ["usual", "few values", "equal", "huge"])
def test_kernels_draw_what_numpy_draws(fields, kind, monkeypatch):
    if load_kernels() is None:
        pytest.skip("no kernels")
    dice = torch.Generator().manual_seed(1)
    rows = torch.randn(60, 1000, generator=dice) * 3
    if kind == "few values":
        rows = rows.round()
    elif kind == "equal":
        rows[:] = rows[:, :1]
    elif kind == "huge":
        rows *= 1e37
    sampler = Sampler(make_params(seed=3, **fields), [], 1000)
    drawn = [sampler.sample(row) for row in rows]
    monkeypatch.setattr(likeliest, "load_kernels", lambda: None)
    sampler = Sampler(make_params(seed=3, **fields), [], 1000)
    assert drawn == [sampler.sample(row) for row in rows]


@pytest.mark.parametrize(
    ("size", "filters", "number"),
    [
        (0, Filters(1.0, 1.0, 0.0, 1), 0.0),
        (100, Filters(1.0, 1.0, 0.0, 100), 0.0),
        (100, Filters(1.0, 1.0, 0.0, 0), 0.0),
        (100, Filters(0.0, 1.0, 0.0, 5), 0.0),
        (100, Filters(math.nan, 1.0, 0.0, 5), 0.0),
        (100, Filters(1.0, 1.0, 1.5, 5), 0.0),
        (100, Filters(1.0, 1.0, 0.0, 5), 1.0),
        (100, Filters(1.0, 1.0, 0.0, 5), -0.1),
        (100, Filters(1.0, 1.0, 0.0, 5), math.nan),
    ],
)
def test_kernels_refuse_to_draw_with_what_cannot_be(size, filters, number):
    kernels = load_kernels()
    if kernels is None:
        pytest.skip("no kernels")
    logits = torch.zeros(100)
    with pytest.raises(KernelError):
        kernels.draw(logits.data_ptr(), size, filters, number)


def test_sample_logits_of_another_size_are_a_bug_of_ours():
    with pytest.raises(AssertionError, match="logits"):
        Sampler(make_params(), [], 3).sample(torch.zeros(4))
