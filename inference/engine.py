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
import time
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from pathlib import Path

from inference.config import EngineConfig, GuessName, SamplingParams
from inference.drafting.draft_model import DraftModel
from inference.drafting.vocabulary_match import find_drafts
from inference.engine_loading import EngineParts, ProgressCallback, calibrate_guessing, load_parts
from inference.engine_stats import count_all
from inference.errors import EngineError
from inference.live_requests import Clock, LiveRequests
from inference.metrics import EngineStats, ModelInfo
from inference.model.loader import check_model
from inference.model.memory import release_unused
from inference.request import ChatMessage, GenerateRequest, PromptSize, RequestId, StepOutput
from inference.speculation.base import KeptMemory


class Engine:
    """Loads one model and answers requests with it."""

    def __init__(self, parts: EngineParts, *, clock: Clock = time.perf_counter) -> None:
        """Take parts that are ready; `Engine.load` makes them.

        Args:
            parts: Owned by the engine from now on.
            clock: Seconds, never falling; for the metrics.
        """
        self._loaded: EngineParts | None = parts
        self._live: LiveRequests | None = LiveRequests(parts, clock)
        self._held: list[StepOutput] = []

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
        config = config or EngineConfig()
        engine = cls(load_parts(Path(path), config, on_progress))
        if config.draft_model is not None and config.guess not in ("off", "ngram"):
            try:
                engine.use_draft(config.draft_model)
            except EngineError:
                engine.close()
                raise
        return engine

    @staticmethod
    def check(path: Path | str) -> None:
        """Look whether a model could be opened, as far as its files tell that in a fraction of a second.

        Raises:
            ModelFileError: As `load` would.
        """
        check_model(path)

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
        return self._requests.begin(request)

    def measure(self, messages: SequenceOf[ChatMessage], plain_text: bool = False) -> PromptSize:
        """Tell how long the prompt of these messages would be. Nothing is computed or kept.

        Raises:
            InvalidRequestError, ChatTemplateError: As `add_request`; a prompt that is too long is
                none here.
        """
        request = GenerateRequest("", messages=tuple(messages), plain_text=plain_text)
        prompt = self._requests.prompt_of(request)
        context_tokens = self._parts.info.context_tokens
        return PromptSize(len(prompt.token_ids), context_tokens, prompt.message_starts)

    def step(self) -> list[StepOutput]:
        """Compute one step and tell what came of it.

        Returns:
            One output for each request that the step advanced, and the last outputs of requests
            that were aborted since the step before. Empty if there is nothing to do.
        """
        outputs, self._held = self._held, []
        return outputs + self._requests.advance()

    def abort(self, request_id: RequestId) -> None:
        """End a request at once and free its blocks; what it computed stays cached.

        Its last output, with the finish reason "aborted", comes from the next `step`. A request that
        is finished or unknown is left alone.
        """
        if request_id in self._requests:
            self._held.append(self._requests.end(request_id, "aborted"))

    def generate(
        self,
        *,
        conversation_id: str,
        messages: SequenceOf[ChatMessage] | None = None,
        prompt_token_ids: SequenceOf[int] | None = None,
        params: SamplingParams | None = None,
        plain_text: bool = False,
        keep_on_disk: bool = True,
        has_left_out: bool = False,
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
            keep_on_disk=keep_on_disk,
            has_left_out=has_left_out,
        )
        request_id = self.add_request(request)
        try:
            while True:
                for output in self._outputs_of(request_id):
                    yield output
                    if output.finish_reason is not None:
                        return
        finally:
            if request_id in self._requests:
                self._requests.end(request_id, "aborted")

    def tend(self) -> bool:
        """Look after what goes on in the background; for times when there is no work.

        Returns:
            Whether something still goes on, so that it is worth calling again soon.
        """
        calibrate_guessing(self._parts)  # guessing may have been switched on during a reply
        is_draining = self._parts.scheduler.drain_loads()
        goes_on = [memory.tend() for memory in self._memories]  # each, whatever the others say
        return any(goes_on) or is_draining

    def flush(self, timeout_s: float = 60.0) -> bool:
        """Wait until what ended turns computed is on disk, or for so long; whether it is."""
        is_kept = [memory.flush(timeout_s) for memory in self._memories]  # each, in any case
        return all(is_kept)

    def forget(self, conversation_id: str) -> int:
        """Remove from all tiers what only this chat used, also what other models kept of it on disk.

        What a request of the chat that runs still needs stays until it ends; nothing of that request
        is kept then.

        Returns:
            Bytes freed.
        """
        self._requests.forget(conversation_id)
        self._break_off_saving(conversation_id)
        return sum(memory.forget(conversation_id) for memory in self._memories)

    def clear_cache(self) -> int:
        """Remove all that is cached, of all chats and on all tiers; running requests go on.

        Returns:
            Bytes freed.
        """
        self._break_off_saving(None)
        return sum(memory.clear() for memory in self._memories)

    def set_cache_budgets(self, ram_bytes: int | None, disk_bytes: int | None) -> None:
        """Change the budgets of RAM and disk, in bytes; 0 is off, None chooses."""
        for memory in self._memories:
            memory.set_budgets(ram_bytes, disk_bytes)

    def set_guess(self, guess: GuessName) -> None:
        """Say who may guess ahead from the next step on; replies do not change by it."""
        self._parts.speculator.set_guess(guess)
        calibrate_guessing(self._parts)

    def use_draft(self, path: Path | str | None) -> ModelInfo | None:
        """Take a draft model into use, in place of the one before; running replies go on.

        Args:
            path: As `load` takes it; None has none.

        Returns:
            What was loaded.

        Raises:
            InvalidRequestError: Its vocabulary is another, or it is not smaller. As with all other
                errors of `load`, the draft model before stays.
        """
        draft = None if path is None else DraftModel.load(Path(path), self._parts)
        before = self._parts.speculator.use(draft)
        if before is not None:
            before.close()
        return None if draft is None else draft.info

    def find_drafts(self, paths: SequenceOf[str]) -> list[str]:
        """Which of these models could guess for this one, as far as their files tell; smallest first."""
        return find_drafts(self._parts.info.path, paths)

    def stats(self) -> EngineStats:
        """Count everything, as it is now."""
        return count_all(self._parts, self._requests.totals)

    def check_integrity(self) -> None:
        """Prove that no block and no request is lost; for tests and for times of idleness.

        Raises:
            RuntimeError: Something is; the message says what.
        """
        scheduler, kv = self._parts.scheduler, self._parts.kv
        goes_on = self.tend()
        scheduler.check_integrity()
        everywhere = scheduler.running + scheduler.loading + scheduler.waiting
        known = {sequence.request_id for sequence in everywhere}
        if known != self._requests.ids:
            raise RuntimeError(f"Requests {self._requests.ids} and sequences {known} differ.")
        if self._parts.speculator.draft is not None:
            self._parts.speculator.draft.check_integrity()
        used = kv.counts().used
        if used > kv.num_pinned and not (scheduler.has_work or goes_on):
            raise RuntimeError(f"{used} blocks are in use and no request runs.")

    def close(self) -> None:
        """Give all memory back; what ended turns computed is on disk. Nothing may be called after.

        Requests that still run are dropped. May be called again.
        """
        device = "cpu"
        if self._loaded is not None:
            device = self._loaded.device
            for memory in self._memories:
                memory.close()
        self._loaded = self._live = None
        self._held.clear()
        gc.collect()  # a model's modules refer to each other: without this the weights would stay
        release_unused(device)

    @property
    def _parts(self) -> EngineParts:
        assert self._loaded is not None, "the engine is closed"
        return self._loaded

    def _break_off_saving(self, conversation_id: str | None) -> None:
        # Each forgets the files of all models: none may be writing any of them.
        for memory in self._memories:
            memory.break_off(conversation_id)

    @property
    def _memories(self) -> list[KeptMemory]:
        draft = self._parts.speculator.draft
        return [self._parts.memory] if draft is None else [self._parts.memory, draft]

    @property
    def _requests(self) -> LiveRequests:
        assert self._live is not None, "the engine is closed"
        return self._live

    def _outputs_of(self, request_id: RequestId) -> list[StepOutput]:
        """Compute a step if no output of this request is there; outputs of others wait."""
        if all(output.request_id != request_id for output in self._held):
            self._held += self._requests.advance()
        mine = [output for output in self._held if output.request_id == request_id]
        self._held = [output for output in self._held if output.request_id != request_id]
        return mine
