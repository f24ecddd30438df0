"""How `compare` measures and sums up, with contenders that take no time."""

import argparse
from collections.abc import Sequence

import pytest

from tests.benchmarks import compare
from tests.benchmarks.compare import Task


class FakeContender:
    """Chooses a token every `seconds_per_token`."""

    def __init__(self, name: str, seconds_per_token: float) -> None:
        self.name = name
        self.prompts: list[tuple[int, ...]] = []
        self._seconds_per_token = seconds_per_token

    def run(self, prompt_ids: Sequence[int], num_tokens: int) -> tuple[list[int], list[float]]:
        self.prompts.append(tuple(prompt_ids))
        numbers = range(1, num_tokens + 1)
        return list(numbers), [number * self._seconds_per_token for number in numbers]

    def close(self) -> None:
        pass


PREFILL = Task("prefill 8", 8, 1, is_decode=False)
DECODE = Task("decode at 4", 4, 5, is_decode=True)


def test_rate_of_prefill_is_prompt_tokens_until_the_first_token() -> None:
    assert PREFILL.rate([0.5]) == 16.0


def test_rate_of_decode_leaves_the_first_token_out() -> None:
    assert DECODE.rate([10.0, 10.5, 11.0, 11.5, 12.0]) == 2.0


def test_measure_gives_all_contenders_the_same_new_prompts() -> None:
    ours, peer = FakeContender("quire", 0.25), FakeContender("transformers", 0.5)

    rates = compare.measure([ours, peer], [PREFILL, DECODE], rounds=3)

    assert rates["decode at 4"] == {"quire": [4.0] * 3, "transformers": [2.0] * 3}
    assert ours.prompts == peer.prompts
    assert len(set(ours.prompts)) == len(ours.prompts) == 2 * 4  # the first round warms up


def test_summarise_ratio_is_the_median_of_the_rounds_ratios() -> None:
    rates = {"decode": {"quire": [10.0, 1.0, 30.0], "transformers": [5.0, 1.0, 10.0]}}

    assert compare.summarise(rates) == {
        "decode": {"quire": 10.0, "transformers": 5.0, "quire/transformers": 2.0}
    }


def test_count_equal_tokens_stops_at_the_first_difference() -> None:
    class Other(FakeContender):
        def run(self, prompt_ids: Sequence[int], num_tokens: int) -> tuple[list[int], list[float]]:
            ids, times = super().run(prompt_ids, num_tokens)
            return [*ids[:5], -1, *ids[6:]], times

    ours = FakeContender("quire", 1.0)

    assert compare.count_equal_tokens(ours, FakeContender("peer", 1.0), seed=1) == 16
    assert compare.count_equal_tokens(ours, Other("peer", 1.0), seed=2) == 5


def test_peers_are_named_or_none() -> None:
    assert compare.peer_names("transformers,llama") == ["transformers", "llama"]
    assert compare.peer_names("none") == []
    with pytest.raises(argparse.ArgumentTypeError, match=r"'llama\.cpp' is none of"):
        compare.peer_names("llama.cpp")
