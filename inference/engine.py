"""The engine: one model, many chats, one step at a time. All calls on one thread.

    engine = Engine.load(path, EngineConfig())
    request_id = engine.add_request(GenerateRequest("chat 1", messages=(ChatMessage("user", "Hi"),)))
    while engine.has_work:
        for output in engine.step():
            ...
    engine.close()

One step is: the scheduler chooses chunks of tokens, the runner computes them in one pass, each reply
samples and turns ids into text. Between two steps anything may be added or aborted.
"""

import gc
import itertools
import logging
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf
from pathlib import Path

from torch import Tensor

from inference.config import EngineConfig, SamplingParams
from inference.engine_loading import EngineParts, ProgressCallback, load_parts
from inference.errors import ComputeError, ContextOverflowError, EngineError
from inference.metrics import EngineStats, ModelInfo
from inference.model.runner import Chunk
from inference.prompt_ids import make_prompt
from inference.reply import Reply
from inference.request import ChatMessage, FinishReason, GenerateRequest, RequestId, StepOutput
from inference.sampling import Sampler
from inference.scheduler import ScheduledChunk, Sequence

logger = logging.getLogger(__name__)

Clock = Callable[[], float]


class Engine:
    """Loads one model and answers requests with it."""

    def __init__(self, parts: EngineParts, *, clock: Clock = time.perf_counter) -> None:
        """Take parts that are ready; `Engine.load` makes them.

        Args:
            parts: Owned by the engine from now on.
            clock: Seconds, never falling; for the metrics.
        """
        self._loaded: EngineParts | None = parts
        self._clock = clock
        self._ids = itertools.count(1)
        self._replies: dict[RequestId, Reply] = {}
        self._held: list[StepOutput] = []
        self._prompt_tokens = self._reused_tokens = self._completion_tokens = 0

    @classmethod
    def load(
        cls,
        path: Path | str,
        config: EngineConfig | None = None,
        *,
        on_progress: ProgressCallback | None = None,
    ) -> "Engine":
        """Load a model from a GGUF file or a folder of safetensors.

        Args:
            path: The file or folder.
            config: How to run it; None takes the defaults.
            on_progress: Called on this thread with growing fractions; the last one is 1.

        Raises:
            ModelFileError: The file or folder cannot be used.
            NotEnoughMemoryError: It does not fit.
        """
        return cls(load_parts(Path(path), config or EngineConfig(), on_progress))

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""
        return self._parts.info

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do or to tell."""
        return bool(self._held) or self._parts.scheduler.has_work

    def add_request(self, request: GenerateRequest) -> RequestId:
        """Queue a reply. Nothing is computed yet.

        Args:
            request: What to answer, and how.

        Returns:
            The name under which its outputs come.

        Raises:
            InvalidRequestError: A token is not in the vocabulary, or there is none.
            ContextOverflowError: The prompt leaves no room for a reply.
            ChatTemplateError: The model has no template, or it cannot take these messages.
        """
        parts = self._parts
        prompt = make_prompt(
            request,
            tokenizer=parts.tokenizer,
            template=parts.template,
            vocab_size=parts.vocab_size,
        )
        token_ids = list(prompt.token_ids)
        context_tokens = parts.info.context_tokens
        if len(token_ids) >= context_tokens:
            raise ContextOverflowError(len(token_ids), context_tokens)
        sequence = Sequence(
            RequestId(next(self._ids)), request.conversation_id, token_ids, arrival=self._clock()
        )
        room = context_tokens - len(token_ids)
        reply = Reply(
            sequence,
            parts.tokenizer,
            Sampler(request.params, token_ids, parts.vocab_size, parts.device),
            stop=request.params.stop,
            max_tokens=min(request.params.max_tokens or room, room),
        )
        parts.scheduler.add(sequence)
        self._replies[sequence.request_id] = reply
        return sequence.request_id

    def step(self) -> list[StepOutput]:
        """Compute one step and tell what came of it.

        Returns:
            One output for each request that the step advanced, and the last outputs of requests
            that were aborted since the step before. Empty if there is nothing to do.
        """
        outputs, self._held = self._held, []
        return outputs + self._advance()

    def abort(self, request_id: RequestId) -> None:
        """End a request at once and free its blocks; what it computed stays cached.

        Its last output, with the finish reason "aborted", comes from the next `step`. A request that
        is finished or unknown is left alone.
        """
        if request_id in self._replies:
            self._held.append(self._finish(request_id, "aborted"))

    def generate(
        self,
        *,
        conversation_id: str,
        messages: SequenceOf[ChatMessage] | None = None,
        prompt_token_ids: SequenceOf[int] | None = None,
        params: SamplingParams | None = None,
        plain_text: bool = False,
    ) -> Iterator[StepOutput]:
        """Answer one request and yield its outputs; the last one has a finish reason.

        Other requests go on meanwhile; their outputs are kept for `step`. Closing the iterator early
        aborts the request. The arguments are those of `GenerateRequest`, and the errors are those of
        `add_request`; all of it begins with the first output that is asked for.
        """
        request = GenerateRequest(
            conversation_id,
            messages=None if messages is None else tuple(messages),
            prompt_token_ids=None if prompt_token_ids is None else tuple(prompt_token_ids),
            params=params or SamplingParams(),
            plain_text=plain_text,
        )
        request_id = self.add_request(request)
        try:
            while True:
                for output in self._outputs_of(request_id):
                    yield output
                    if output.finish_reason is not None:
                        return
        finally:
            if request_id in self._replies:
                self._finish(request_id, "aborted")

    def stats(self) -> EngineStats:
        """Count everything, as it is now."""
        parts = self._parts
        return EngineStats(
            blocks=parts.kv.counts(),
            block_size=parts.kv.block_size,
            block_bytes=parts.runner.kv.block_bytes,
            weights_bytes=parts.info.weights_bytes,
            kv_bytes=parts.runner.kv.touched_bytes,
            num_running=len(parts.scheduler.running),
            num_waiting=len(parts.scheduler.waiting),
            prompt_tokens=self._prompt_tokens,
            reused_tokens=self._reused_tokens,
            completion_tokens=self._completion_tokens,
            preemptions=parts.scheduler.preemptions,
            evictions=parts.kv.evictions,
        )

    def check_integrity(self) -> None:
        """Prove that no block and no request is lost; for tests and for times of idleness.

        Raises:
            RuntimeError: Something is; the message says what.
        """
        scheduler = self._parts.scheduler
        scheduler.check_integrity()
        known = {sequence.request_id for sequence in scheduler.running + scheduler.waiting}
        if known != set(self._replies):
            raise RuntimeError(f"Replies {set(self._replies)} and sequences {known} differ.")
        used = self._parts.kv.counts().used
        if not scheduler.has_work and used:
            raise RuntimeError(f"{used} blocks are in use and no request runs.")

    def close(self) -> None:
        """Drop the requests and give all memory back. May be called again; nothing else may."""
        self._loaded = None
        self._replies.clear()
        self._held.clear()
        gc.collect()  # a model's modules refer to each other: without this the weights would stay

    @property
    def _parts(self) -> EngineParts:
        assert self._loaded is not None, "the engine is closed"
        return self._loaded

    def _advance(self) -> list[StepOutput]:
        parts = self._parts
        began = self._clock()
        chunks = parts.scheduler.schedule()
        if not chunks:
            return []
        for chunk in chunks:
            self._replies[chunk.sequence.request_id].begin(began)
        try:
            logits = parts.runner.run([_runner_chunk(chunk) for chunk in chunks])
        except (RuntimeError, MemoryError) as error:
            return self._fail(chunks, error)
        parts.scheduler.commit(chunks)
        rows = iter(logits[:, : parts.vocab_size])
        return [
            self._sample(chunk, next(rows), began)
            if chunk.needs_logits
            else self._prefilled(chunk, began)
            for chunk in chunks
        ]

    def _prefilled(self, chunk: ScheduledChunk, began: float) -> StepOutput:
        return self._replies[chunk.sequence.request_id].prefilled(began, self._clock())

    def _sample(self, chunk: ScheduledChunk, logits: Tensor, began: float) -> StepOutput:
        request_id = chunk.sequence.request_id
        reply = self._replies[request_id]
        try:
            output = reply.sample(logits, began, self._clock)
        except ComputeError as error:
            return self._finish(request_id, "error", error=error)
        self._completion_tokens += 1
        if output.finish_reason is not None:
            self._forget(request_id)
        return output

    def _fail(self, chunks: list[ScheduledChunk], error: Exception) -> list[StepOutput]:
        """End the requests of a step that went wrong; their values are not published."""
        logger.error("a step of %d chunks failed", len(chunks), exc_info=error)
        outputs = []
        for chunk in chunks:
            failure = ComputeError(
                f"The model could not go on: {str(error) or type(error).__name__}.",
                hint="Try again, or load the model again.",
            )
            failure.__cause__ = error
            outputs.append(self._finish(chunk.sequence.request_id, "error", error=failure))
        return outputs

    def _finish(
        self, request_id: RequestId, reason: FinishReason, *, error: EngineError | None = None
    ) -> StepOutput:
        output = self._replies[request_id].end(reason, self._clock(), error=error)
        self._forget(request_id)
        return output

    def _forget(self, request_id: RequestId) -> None:
        sequence = self._replies.pop(request_id).sequence
        self._parts.scheduler.remove(request_id)
        self._prompt_tokens += sequence.num_prompt_tokens
        self._reused_tokens += sequence.num_reused

    def _outputs_of(self, request_id: RequestId) -> list[StepOutput]:
        """Compute a step if no output of this request is there; outputs of others wait."""
        if all(output.request_id != request_id for output in self._held):
            self._held += self._advance()
        mine = [output for output in self._held if output.request_id == request_id]
        self._held = [output for output in self._held if output.request_id != request_id]
        return mine


def _runner_chunk(chunk: ScheduledChunk) -> Chunk:
    sequence, end = chunk.sequence, chunk.start + chunk.num_tokens
    token_ids = sequence.token_ids[chunk.start : end]
    return Chunk(token_ids, chunk.start, sequence.block_table, chunk.needs_logits)
