"""The requests that an engine answers now, from their prompt to their last output. Engine thread only.

begin    prompt ids, a sequence for the scheduler, a reply that samples
advance  one step: the scheduler chooses chunks, the runner computes them in one pass, each reply
         samples and turns ids into text
end      the last output; what was computed is handed to the chat's memory
"""

import itertools
import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from functools import partial
from itertools import islice

from torch import Tensor

from inference.engine_loading import EngineParts
from inference.errors import ComputeError, ContextOverflowError, EngineError
from inference.guess_count import PlainStep
from inference.model.step import Chunk
from inference.prompt_ids import make_prompt
from inference.reply import Reply
from inference.request import FinishReason, GenerateRequest, RequestId, StepOutput
from inference.reuse_reason import why_reuse_stopped
from inference.sampling import Sampler
from inference.sequence import ScheduledChunk, Sequence
from inference.step_failures import failure_of
from inference.surest import surest_of
from inference.text.prompt import Prompt

logger = logging.getLogger(__name__)

Clock = Callable[[], float]

LOAD_WAIT_S = 0.02
"""How long a step waits if all that there is to do is to wait for blocks: *stop* takes no longer."""


@dataclass(slots=True)
class Totals:
    """What all ended requests together have used."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    reused_tokens: int = 0
    reused_ram_tokens: int = 0
    reused_disk_tokens: int = 0


@dataclass(frozen=True, slots=True)
class _Live:
    """One request.

    Attributes:
        trail: Ids of the chat's sequence before; None if unknown.
    """

    request: GenerateRequest
    prompt: Prompt
    reply: Reply
    trail: SequenceOf[int] | None

    @property
    def sequence(self) -> Sequence:
        return self.reply.sequence


class LiveRequests:
    """All requests of one engine.

    Attributes:
        totals: Of the requests that ended; completion tokens of all.
    """

    def __init__(self, parts: EngineParts, clock: Clock) -> None:
        self.totals = Totals()
        self._parts = parts
        self._clock = clock
        self._ids = itertools.count(1)
        self._live: dict[RequestId, _Live] = {}
        self._forgotten: set[RequestId] = set()

    def __contains__(self, request_id: RequestId) -> bool:
        return request_id in self._live

    @property
    def ids(self) -> set[RequestId]:
        """All that have not ended."""
        return set(self._live)

    def begin(self, request: GenerateRequest) -> RequestId:
        """Queue a request; see `Engine.add_request` for the errors."""
        parts = self._parts
        prompt = self.prompt_of(request)
        token_ids = list(prompt.token_ids)
        context_tokens = parts.info.context_tokens
        if len(token_ids) >= context_tokens:
            raise ContextOverflowError(len(token_ids), context_tokens, _is_set(parts))
        sequence = Sequence(
            RequestId(next(self._ids)), request.conversation_id, token_ids, arrival=self._clock()
        )
        room = context_tokens - len(token_ids)
        reply = Reply(
            sequence,
            parts.tokenizer,
            Sampler(request.params, token_ids, parts.vocab_size),
            stop=request.params.stop,
            max_tokens=min(request.params.max_tokens or room, room),
            prompt_parts=prompt.new_parts,
        )
        trail = parts.memory.trail_of(request.conversation_id)
        parts.scheduler.add(sequence)
        self._live[sequence.request_id] = _Live(request, prompt, reply, trail)
        return sequence.request_id

    def prompt_of(self, request: GenerateRequest) -> Prompt:
        """The ids of a request; see `make_prompt` for the errors."""
        parts = self._parts
        return make_prompt(
            request,
            tokenizer=parts.tokenizer,
            template=parts.template,
            vocab_size=parts.vocab_size,
        )

    def advance(self) -> list[StepOutput]:
        """Compute one step; empty if nothing could be computed."""
        parts = self._parts
        parts.memory.tend()
        began = self._clock()
        if parts.pace is not None:
            parts.scheduler.token_budget = parts.pace.budget
        self._guess()
        planned = time.perf_counter()
        chunks = parts.scheduler.schedule()
        if not chunks:
            if parts.scheduler.is_only_loading:
                parts.memory.wait_for_transfer(LOAD_WAIT_S)
            return []
        parts.memory.set_computing(True)
        for chunk in chunks:
            self._note_begin(self._live[chunk.sequence.request_id], began)
        try:
            logits = parts.runner.run([_runner_chunk(chunk) for chunk in chunks])
        except (RuntimeError, MemoryError) as error:
            return self._fail(chunks, error)
        parts.scheduler.commit(chunks)
        num_rows = sum(chunk.num_rows for chunk in chunks)
        if parts.pace is not None:
            parts.pace.record(num_rows, self._clock() - began)
        took_ms = (time.perf_counter() - planned) * 1000
        plain = self._plain_step(chunks, took_ms)
        rows = iter(logits[:, : parts.vocab_size].unbind())
        outputs = [
            self._sample(chunk, list(islice(rows, 1 + len(chunk.draft))), began, plain)
            if chunk.needs_logits
            else self._live[chunk.sequence.request_id].reply.prefilled(began, self._clock())
            for chunk in chunks
        ]
        if all(chunk.num_tokens == 1 for chunk in chunks):
            parts.speculator.timed(num_rows, (time.perf_counter() - planned) * 1000)
        return outputs

    def end(
        self,
        request_id: RequestId,
        reason: FinishReason,
        *,
        error: EngineError | None = None,
        keep: bool = True,
    ) -> StepOutput:
        """End a request and give its last output.

        Args:
            request_id: One of `ids`.
            reason: Why it ends.
            error: With the reason "error".
            keep: Whether what it computed is sound.
        """
        output = self._live[request_id].reply.end(reason, self._clock(), error=error)
        self._drop(request_id, keep=keep)
        return output

    def forget(self, conversation_id: str) -> None:
        """Keep nothing of what requests of this chat that run now have computed, or will."""
        self._forgotten |= {
            request_id
            for request_id, live in self._live.items()
            if live.request.conversation_id == conversation_id
        }

    def _note_begin(self, live: _Live, began: float) -> None:
        if not live.reply.begin(began):
            return
        sequence = live.sequence
        live.reply.reuse_stop = why_reuse_stopped(
            prompt=live.prompt,
            messages=live.request.messages,
            num_reused=sequence.num_reused,
            trail=live.trail,
            chain_end=sequence.chain_end or "nothing_cached",
            was_damaged=sequence.num_lost > 0,
            has_left_out=live.request.has_left_out,
            room_tokens=self._parts.memory.room_tokens,
            other_trails=partial(self._parts.memory.trails_elsewhere, live.request.conversation_id),
        )

    def _guess(self) -> None:
        """Let those that decode have guesses for the step to come."""
        self._parts.speculator.plan(
            [
                (sequence, self._live[sequence.request_id].reply.num_left - 1)
                for sequence in self._parts.scheduler.running
                if sequence.num_pending == 1
            ]
        )

    def _plain_step(self, chunks: list[ScheduledChunk], took_ms: float) -> PlainStep:
        """What the step would have taken without guesses: prompts that are read in it are no fault of theirs."""
        guesses = self._parts.speculator
        num_sequences = sum(chunk.needs_logits for chunk in chunks)
        token_ms = guesses.plain_ms(num_sequences)
        if all(chunk.num_tokens == 1 for chunk in chunks):
            return PlainStep(token_ms)
        num_guesses = sum(len(chunk.draft) for chunk in chunks)
        step_ms = took_ms - guesses.guesses_ms(num_sequences, num_guesses)
        return PlainStep(token_ms, max(0.0, step_ms - token_ms))

    def _sample(
        self, chunk: ScheduledChunk, logits: list[Tensor], began: float, plain: PlainStep
    ) -> StepOutput:
        request_id, draft = chunk.sequence.request_id, chunk.draft
        try:
            output = self._live[request_id].reply.sample(
                logits, began, self._clock, draft=draft, plain=plain
            )
        except ComputeError as error:
            return self.end(request_id, "error", error=error, keep=False)
        except (RuntimeError, MemoryError) as error:
            # A GPU computes later than it is told to: what fails in a step shows when it is waited for.
            logger.error("a token could not be sampled", exc_info=error)
            return self.end(request_id, "error", error=failure_of(error), keep=False)
        self.totals.completion_tokens += len(output.token_ids)
        if draft:  # else all is noted already
            self._parts.scheduler.accept(chunk.sequence)
        taken = logits[: len(output.token_ids)]
        self._parts.speculator.verified(
            chunk.sequence, draft, output.token_ids, partial(_sureness, taken)
        )
        if output.finish_reason is not None:
            self._drop(request_id)
        return output

    def _fail(self, chunks: list[ScheduledChunk], error: Exception) -> list[StepOutput]:
        """End the requests of a step that went wrong; their values are not kept."""
        logger.error("a step of %d chunks failed", len(chunks), exc_info=error)
        return [
            self.end(chunk.sequence.request_id, "error", error=failure_of(error), keep=False)
            for chunk in chunks
        ]

    def _drop(self, request_id: RequestId, *, keep: bool = True) -> None:
        parts = self._parts
        live = self._live.pop(request_id)
        sequence = live.sequence
        is_forgotten = request_id in self._forgotten
        if keep and not is_forgotten and sequence in parts.scheduler.running:
            parts.memory.keep(sequence, on_disk=live.request.keep_on_disk)
        on_disk = live.request.keep_on_disk
        parts.speculator.end(sequence, keep=keep and not is_forgotten, on_disk=on_disk)
        parts.scheduler.remove(request_id, is_sound=keep)
        if is_forgotten:
            self._forgotten.remove(request_id)
            parts.memory.forget_residents(sequence.conversation_id)
        if not self._live:
            parts.memory.set_computing(False)
        totals = self.totals
        totals.prompt_tokens += sequence.num_prompt_tokens
        totals.reused_tokens += sequence.num_reused
        totals.reused_ram_tokens += sequence.num_reused_ram
        totals.reused_disk_tokens += sequence.num_reused_disk


def _is_set(parts: EngineParts) -> bool:
    """Whether the model and the memory would allow a longer context than somebody set."""
    info = parts.info
    is_shorter = info.context_tokens < info.model_context_tokens
    return is_shorter and info.context_tokens == parts.config.context_tokens


def _runner_chunk(chunk: ScheduledChunk) -> Chunk:
    sequence, end = chunk.sequence, chunk.start + chunk.num_tokens
    return Chunk(
        [*sequence.token_ids[chunk.start : end], *chunk.draft],
        chunk.start,
        sequence.block_table,
        chunk.needs_logits,
        needs_all_logits=bool(chunk.draft),
    )


def _sureness(rows: list[Tensor]) -> float:
    """The probability of the likeliest token, on average over rows of logits, (V,) each; 0 if it cannot be told.

    It only helps to choose guesses, so no reply ends for want of it: if the device is broken, its next step fails.
    """
    try:
        return sum(probability for _, probability in surest_of(rows)) / len(rows)
    except (ComputeError, RuntimeError) as error:
        logger.warning("how sure the model is cannot be told: %s", error)
        return 0.0
