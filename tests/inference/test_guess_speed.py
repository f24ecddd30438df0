"""What a reply says of its speed without guesses: that of its tokens after the first."""

import pytest
import torch

from inference.config import SamplingParams
from inference.guess_count import PlainStep
from inference.reply import Reply
from inference.request import RequestId
from inference.sampling import Sampler
from inference.sequence import Sequence
from tests.inference.test_guess_law import tokenizer

V = 8


def logits(*token_ids: int) -> torch.Tensor:
    """Rows after which a greedy sampler chooses these."""
    return torch.nn.functional.one_hot(torch.tensor(token_ids), V).float()


def test_the_step_that_reads_the_prompt_does_not_count() -> None:
    sampler = Sampler(SamplingParams(temperature=0.0), [1], V)
    sequence = Sequence(RequestId(1), "chat", [1], arrival=0.0)
    reply = Reply(sequence, tokenizer(), sampler, stop=(), max_tokens=99)
    reply.sample(logits(3), 0.0, lambda: 0.5, plain=PlainStep(20.0, 480.0))  # seconds, milliseconds
    assert reply.metrics(0.5).guess_speedup is None
    draft = (5, 6)
    reply.sample(logits(4, 2, 2), 0.5, lambda: 0.525, draft=draft, plain=PlainStep(20.0))
    metrics = reply.metrics(0.525)
    assert (metrics.drafted_tokens, metrics.accepted_tokens) == (2, 0)
    assert metrics.plain_token_ms == 20.0
    assert metrics.guess_speedup == pytest.approx(20 / 25)


def test_what_is_read_for_other_chats_meanwhile_counts_as_without_guesses() -> None:
    sampler = Sampler(SamplingParams(temperature=0.0), [1], V)
    reply = Reply(
        Sequence(RequestId(1), "chat", [1], arrival=0.0),
        tokenizer(),
        sampler,
        stop=(),
        max_tokens=99,
    )
    reply.sample(logits(3), 0.0, lambda: 0.1)
    reply.sample(logits(4, 2), 0.1, lambda: 0.2, draft=(4,), plain=PlainStep(20.0, 60.0))
    # Two tokens in 100 ms, of which 60 were another's; without guesses 20 + 20 + 60.
    assert reply.metrics(0.2).guess_speedup == pytest.approx(1.0)


def test_a_pause_between_steps_counts_as_without_guesses() -> None:
    """A draft model that is loaded in the middle of a reply, say."""
    sampler = Sampler(SamplingParams(temperature=0.0), [1], V)
    sequence = Sequence(RequestId(1), "chat", [1], arrival=0.0)
    reply = Reply(sequence, tokenizer(), sampler, stop=(), max_tokens=99)
    reply.sample(logits(3), 0.0, lambda: 0.1)
    reply.sample(logits(4, 2), 0.1, lambda: 0.12, draft=(4,), plain=PlainStep(20.0))
    assert reply.metrics(0.2).guess_speedup == pytest.approx(2.0)
    # The next step begins 60 ms later: 4 tokens in 100 ms, without guesses 4 * 20 + 60.
    reply.sample(logits(4, 2), 0.18, lambda: 0.2, draft=(4,), plain=PlainStep(20.0))
    assert reply.metrics(0.2).guess_speedup == pytest.approx(1.4)
