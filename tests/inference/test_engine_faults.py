"""Requests that are refused, aborted or fail, over tiny models; the engine goes on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inference.config import SamplingParams
from inference.errors import (
    ChatTemplateError,
    ComputeError,
    ContextOverflowError,
    InvalidRequestError,
)
from inference.model.step import Chunk
from inference.request import ChatMessage, GenerateRequest, RequestId
from inference.sampling import Sampler
from tests.inference.scripted_engine import GREEDY, answer, ask, greedy, id_of, scripted_engine
from tests.inference.tiny_engine import (
    EOS_ID,
    make_engine,
    make_loaded,
    run_until_idle,
    sampled_ids,
    shown_text,
)
from tests.inference.tiny_models import VOCAB_SIZE, make_tokens


def test_prompt_that_does_not_fit_is_refused_before_any_work() -> None:
    engine = make_engine(context_tokens=32)
    with pytest.raises(ContextOverflowError) as raised:
        engine.add_request(ask(make_tokens(32)))
    assert (raised.value.prompt_tokens, raised.value.context_tokens) == (32, 32)
    assert raised.value.is_set
    assert not engine.has_work
    assert engine.stats().blocks.used == 0
    assert len(sampled_ids(answer(engine, ask(make_tokens(31), greedy(None))))) == 1


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([VOCAB_SIZE], "0 to 259, not 260"),
        ([5, -1], "not -1"),
        ([2**70], "not 1180591620717411303424"),
        ([], "at least one token"),
    ],
)
def test_prompt_with_bad_ids_is_refused_and_the_engine_goes_on(
    prompt: list[int], message: str
) -> None:
    engine = make_engine()
    with pytest.raises(InvalidRequestError, match=message) as raised:
        engine.add_request(ask(prompt))
    assert raised.value.field == "prompt_token_ids"
    assert len(sampled_ids(answer(engine, ask(make_tokens(4))))) == 12


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1, "warm"])
def test_bad_sampling_values_are_refused_and_the_engine_goes_on(value: float) -> None:
    engine = make_engine()
    running = engine.add_request(ask(make_tokens(4)))
    engine.step()
    with pytest.raises(InvalidRequestError, match="temperature"):
        SamplingParams(temperature=value)
    assert run_until_idle(engine)[running][-1].finish_reason == "length"


def test_chat_without_a_template_is_refused_and_plain_text_works() -> None:
    engine = make_engine(make_loaded(template=None))
    messages = (ChatMessage("user", "Once upon"),)
    with pytest.raises(ChatTemplateError) as raised:
        engine.add_request(GenerateRequest("c", messages=messages))
    assert raised.value.hint == "Choose a model made for chats."
    assert not engine.has_work
    request = GenerateRequest("c", messages=messages, params=greedy(3), plain_text=True)
    outputs = answer(engine, request)
    assert outputs[-1].metrics.prompt_tokens == 1 + len("Once upon")
    assert not engine.info.has_chat_template


def test_typed_markup_reaches_the_model_as_characters() -> None:
    engine, runner = scripted_engine("ok")
    list(engine.generate(conversation_id="c", messages=[ChatMessage("user", "</s>")]))
    prompt = list(runner.calls[0][0].token_ids)
    typed = [id_of(byte) for byte in b"</s>"]
    assert EOS_ID not in prompt
    assert typed in [prompt[n : n + 4] for n in range(len(prompt))]


def test_ids_of_an_earlier_reply_outside_the_vocabulary_are_refused() -> None:
    reply = ChatMessage("assistant", "old", token_ids=(7, VOCAB_SIZE))
    chat = (ChatMessage("user", "a"), reply, ChatMessage("user", "b"))
    with pytest.raises(InvalidRequestError, match="not 260") as raised:
        make_engine().add_request(GenerateRequest("c", messages=chat))
    assert raised.value.field == "messages"


def test_abort_frees_blocks_at_once_and_reports_in_the_next_step() -> None:
    engine = make_engine(prefill_chunk_tokens=8)
    request_id = engine.add_request(ask(make_tokens(60)))
    engine.step()
    assert engine.stats().blocks.used > 0
    engine.abort(request_id)
    assert engine.stats().blocks.used == 0
    engine.check_integrity()
    (output,) = engine.step()
    assert (output.request_id, output.finish_reason) == (request_id, "aborted")
    assert not engine.has_work


def test_abort_lets_a_new_request_start_in_the_very_next_step() -> None:
    engine = make_engine(prefill_chunk_tokens=8)
    old = engine.add_request(ask(make_tokens(60)))
    engine.step()
    engine.abort(old)
    new = engine.add_request(ask(make_tokens(6, seed=3)))
    outputs = engine.step()
    assert [(out.request_id, out.finish_reason) for out in outputs] == [
        (old, "aborted"),
        (new, None),
    ]
    assert len(outputs[1].token_ids) == 1


def test_abort_keeps_what_was_computed_for_the_next_time() -> None:
    engine = make_engine(prefill_chunk_tokens=8)
    prompt = make_tokens(60)
    request_id = engine.add_request(ask(prompt))
    engine.step()
    engine.step()
    engine.abort(request_id)
    run_until_idle(engine)
    assert answer(engine, ask(prompt))[-1].metrics.reused_tokens == 16


def test_abort_in_the_middle_of_a_prompt_keeps_it_over_a_restart(tmp_path: Path) -> None:
    first = [ChatMessage("user", "A long message, of which only a part is read. " * 2)]
    engine = make_engine(prefill_chunk_tokens=24, cache_dir=str(tmp_path))
    request_id = engine.add_request(GenerateRequest("c", messages=tuple(first)))
    (output,) = engine.step()
    engine.step()
    engine.abort(request_id)
    engine.step()
    engine.close()
    ((index, part),) = output.prompt_parts
    assert index == 0
    messages = (replace(first[0], part=part), ChatMessage("user", "And now?"))
    engine = make_engine(cache_dir=str(tmp_path))
    metrics = answer(engine, GenerateRequest("c", messages=messages, params=GREEDY))[-1].metrics
    assert (metrics.reused_disk_tokens, metrics.reuse_stop) == (48, None)
    engine.close()


def test_prompt_that_was_read_and_is_not_kept_is_told() -> None:
    engine = make_engine(prefill_chunk_tokens=24)
    messages = [ChatMessage("user", "A long message, of which only a part is read. " * 2)]
    request_id = engine.add_request(GenerateRequest("c", messages=tuple(messages)))
    (output,) = engine.step()
    engine.abort(request_id)
    engine.step()
    engine.forget("c")
    messages = [replace(messages[0], part=output.prompt_parts[0][1]), ChatMessage("user", "Now?")]
    request = GenerateRequest("c", messages=tuple(messages), params=GREEDY)
    metrics = answer(engine, request)[-1].metrics
    assert (metrics.reused_tokens, metrics.reuse_stop) == (0, "not_kept")


def test_prompt_of_which_nothing_was_read_has_no_parts() -> None:
    engine = make_engine()
    request = GenerateRequest("c", messages=(ChatMessage("user", "Hi"),))
    engine.abort(engine.add_request(request))
    (output,) = engine.step()
    assert (output.finish_reason, output.prompt_parts) == ("aborted", ())


def test_abort_of_a_waiting_request_ends_it_too() -> None:
    engine = make_engine()
    request_id = engine.add_request(ask(make_tokens(5)))
    engine.abort(request_id)
    (output,) = engine.step()
    assert output.finish_reason == "aborted"
    assert output.metrics.completion_tokens == 0
    assert output.reply_token_ids == ()


def test_abort_of_unknown_or_finished_requests_does_nothing() -> None:
    engine = make_engine()
    outputs = answer(engine, ask(make_tokens(4)))
    engine.abort(outputs[0].request_id)
    engine.abort(RequestId(999))
    assert not engine.has_work


@pytest.mark.parametrize("error", [RuntimeError("no memory left"), MemoryError()])
def test_failing_step_ends_its_requests_and_the_engine_goes_on(error: Exception) -> None:
    engine, runner = scripted_engine("hi")
    ids = [engine.add_request(ask(make_tokens(4 + n), chat=str(n))) for n in range(2)]
    runner.error = error
    outputs = engine.step()
    assert [(out.request_id, out.finish_reason) for out in outputs] == [
        (ids[0], "error"),
        (ids[1], "error"),
    ]
    assert all(isinstance(output.error, ComputeError) for output in outputs)
    assert engine.stats().blocks.used == 0
    assert engine.stats().blocks.cached == 0  # nothing half-written can be found again
    assert shown_text(answer(engine, ask(make_tokens(4)))) == "hi"


LOST = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be"


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (
            torch.AcceleratorError(LOST),
            "The graphics card failed: CUDA error: an illegal memory access was encountered.",
            "Start Quire again.",
        ),
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
            "The model ran out of memory: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "Close other programs, or make the memory of the model smaller in the settings.",
        ),
        (MemoryError(), "The model ran out of memory: MemoryError.",
         "Close other programs, or make the memory of the model smaller in the settings."),
        (
            RuntimeError("shapes do not fit"),
            "The model could not go on: shapes do not fit.",
            "Try again, or load the model again.",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_seen_late", [False, True])
def test_failure_says_what_to_do_whether_it_shows_in_the_step_or_when_a_token_is_read(
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    message: str,
    hint: str,
    is_seen_late: bool,
) -> None:
    engine, runner = scripted_engine("hi")

    def sample(self: Sampler, logits: Tensor) -> int:
        raise error

    if is_seen_late:
        monkeypatch.setattr(Sampler, "sample", sample)
    else:
        runner.error = error
    engine.add_request(ask(make_tokens(4)))
    (output,) = engine.step()
    assert output.finish_reason == "error"
    assert isinstance(output.error, ComputeError)
    assert (str(output.error), output.error.hint) == (message, hint)
    assert output.error.__cause__ is error
    assert (engine.stats().blocks.used, engine.stats().blocks.cached) == (0, 0)
    engine.check_integrity()
    monkeypatch.undo()
    assert answer(engine, ask(make_tokens(4)))[-1].error is None


def test_logits_that_are_not_numbers_end_only_their_own_request() -> None:
    engine, runner = scripted_engine("hello")
    good_run = runner.run

    def run(chunks: Sequence[Chunk]) -> Tensor:
        logits = good_run(chunks)
        if len(chunks) == 2:
            logits[0, 7] = torch.nan
        return logits

    runner.run = run  # type: ignore[method-assign]  # the fake's own method
    first = engine.add_request(ask(make_tokens(4)))
    second = engine.add_request(ask(make_tokens(5), chat="b"))
    outputs = engine.step()
    assert outputs[0].finish_reason == "error"
    assert isinstance(outputs[0].error, ComputeError)
    assert outputs[1].finish_reason is None
    rest = run_until_idle(engine)
    assert list(rest) == [second]
    assert first not in rest
    engine.check_integrity()
