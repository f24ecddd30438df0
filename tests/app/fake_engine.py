"""An engine that says what a script tells it to, for tests of the real worker and window.

Nothing here imports torch or Qt. `FakeEngineFactory` goes where EngineWorker takes its factory.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from inference.config import EngineConfig, GuessName
from inference.errors import (
    ChatTemplateError,
    ContextOverflowError,
    EngineError,
    InvalidRequestError,
)
from inference.metrics import BlockCounts, EngineStats, ModelInfo, RequestMetrics
from inference.request import (
    ChatMessage,
    FinishReason,
    GenerateRequest,
    LoadProgress,
    PromptPart,
    PromptSize,
    RequestId,
    StepOutput,
)

DEFAULT_REPLY = "A plane tree drops its bark because the bark cannot stretch as the trunk grows."


def make_model_info(**fields: object) -> ModelInfo:
    info = ModelInfo(
        name="Fake 1B",
        path="/models/fake.gguf",
        architecture="fake",
        quantization="Q4_1",
        num_parameters=1_000_000,
        weights_bytes=4_000_000,
        context_tokens=2048,
        model_context_tokens=8192,
        has_chat_template=True,
        backend="fake (no device)",
        device="cpu",
        load_ms=12.0,
        fingerprint="fa4e",
        compute_path="fast",
        kernels="avx2",
        num_threads=3,
    )
    return replace(info, **fields)  # type: ignore[arg-type]


@dataclass
class FakeScript:
    """How the fake engine behaves. May be changed while it runs.

    Attributes:
        replies: Texts, the first request gets the first; the last one is used again and again.
        tokens_per_s: Pace of decode steps by `sleep`; None does not wait.
        prefill_steps: Steps before the first token.
        prefill_tokens: Length that each prompt pretends to have.
        message_tokens: If set, each message counts so many tokens instead.
        context_tokens: The most that it can hold.
        prompt_parts: Comes with the first output of each request.
        measure_error: Raised by `measure`.
        refused_scheme: A load with this scheme is refused.
        freed_bytes: What `forget` and `clear_cache` give.
        disk_problem: What is wrong with the disk.
        tend_turns: So many times `tend` says that more is to be done.
        finish_reason: Of replies that come to their end.
        load_stages: Reported one by one while loading.
        load_error: Raised at the end of the load.
        load_errors: The same, for single models by their path.
        check_errors: What a look at the files of single models says, by their path.
        kernels: What computes.
        quantization: How weights are kept.
        converted: Which types of weights were converted at load.
        request_error: Raised by add_request.
        error_after_tokens: After so many tokens a reply ends with `reply_error`.
        crash_after_tokens: After so many tokens `step` raises RuntimeError.
        sleep: Waits so many seconds; a test may pass its own.
        before_step: Called before each step, for tests that need a step to wait.
        before_stage: Called before each stage of a load.
        drafts: Models that could guess ahead.
        draft_error: Raised by `use_draft` for any model.
        before_draft: Called before a draft model is loaded or refused.
        guessed_tokens: So many are guessed ahead for each reply, and three of four are accepted; it comes 1.6
            times as fast as without.
    """

    replies: list[str] = field(default_factory=lambda: [DEFAULT_REPLY])
    tokens_per_s: float | None = None
    prefill_steps: int = 1
    prefill_tokens: int = 32
    message_tokens: int | None = None
    context_tokens: int = 2048
    prompt_parts: tuple[tuple[int, PromptPart], ...] = ()
    measure_error: EngineError | None = None
    refused_scheme: str = ""
    freed_bytes: int = 0
    disk_problem: str = ""
    tend_turns: int = 0
    finish_reason: FinishReason = "stop"
    load_stages: tuple[str, ...] = ("Reading the file", "Loading weights")
    load_error: EngineError | None = None
    load_errors: dict[str, EngineError] = field(default_factory=dict)
    check_errors: dict[str, EngineError] = field(default_factory=dict)
    request_error: EngineError | None = None
    error_after_tokens: int | None = None
    reply_error: EngineError = field(default_factory=lambda: EngineError("The device failed."))
    crash_after_tokens: int | None = None
    has_chat_template: bool = True
    kernels: str = "avx2"
    quantization: str = "Q4_1"
    converted: str = ""
    sleep: Callable[[float], None] = time.sleep
    before_step: Callable[[], None] | None = None
    before_stage: Callable[[str], None] | None = None
    drafts: tuple[str, ...] = ()
    draft_error: EngineError | None = None
    before_draft: Callable[[], None] | None = None
    guessed_tokens: int = 0


def tokens_of(text: str) -> list[str]:
    """Pieces like a tokenizer's: a word with the space before it; line breaks alone."""
    pieces: list[str] = []
    for char in text:
        if char in " \n" or not pieces or pieces[-1] == "\n":
            pieces.append(char)
        else:
            pieces[-1] += char
    return pieces


@dataclass
class _Running:
    request: GenerateRequest
    pieces: list[str]
    prefill_steps_left: int
    num_sampled: int = 0
    parts: tuple[tuple[int, PromptPart], ...] = ()


class FakeEngine:
    """Says the script's replies, one token per request and step.

    Attributes:
        requests: All that were added, in order.
        is_closed: Whether `close` was called.
        calls: Names and arguments of calls that keep the cache: forget, clear_cache, set_cache_budgets.
        guess: How it guesses ahead.
        draft: Path of the draft model in use; None is none.
        looked_at: Models that `find_drafts` was asked about, in order.
        num_tends: How often `tend` was called.
    """

    def __init__(
        self,
        path: str,
        config: EngineConfig,
        on_progress: Callable[[LoadProgress], None],
        *,
        script: FakeScript,
    ) -> None:
        self.script = script
        self.config = config
        self.requests: list[GenerateRequest] = []
        self.aborted: list[RequestId] = []
        self.is_closed = False
        self.calls: list[tuple[object, ...]] = []
        self.num_tends = 0
        self.guess: GuessName = config.guess
        self.draft: str | None = config.draft_model
        self.looked_at: list[str] = []
        self._running: dict[RequestId, _Running] = {}
        self._ended: list[StepOutput] = []
        for number, stage in enumerate(script.load_stages):
            if script.before_stage is not None:
                script.before_stage(stage)
            on_progress(LoadProgress(stage, number / len(script.load_stages)))
        load_error = script.load_error or script.load_errors.get(path)
        if load_error is not None:
            raise load_error
        if config.draft_model is not None and script.draft_error is not None:
            raise script.draft_error
        if script.refused_scheme and config.kv_scheme == script.refused_scheme:
            raise InvalidRequestError(
                "kv_scheme", f"{config.kv_scheme} would make this model worse."
            )
        self.info = make_model_info(
            path=path,
            has_chat_template=script.has_chat_template,
            context_tokens=script.context_tokens,
            kernels=script.kernels,
            quantization=script.quantization,
            converted=script.converted,
        )

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._ended)

    def add_request(self, request: GenerateRequest) -> RequestId:
        if self.script.request_error is not None:
            raise self.script.request_error
        if not self.script.has_chat_template and not request.plain_text:
            raise ChatTemplateError("Fake 1B has no chat template.")
        num_tokens = self._num_tokens(request.messages or ())
        if num_tokens >= self.info.context_tokens:
            raise ContextOverflowError(num_tokens, self.info.context_tokens)
        number = len(self.requests)
        text = self.script.replies[min(number, len(self.script.replies) - 1)]
        self.requests.append(request)
        request_id = RequestId(number + 1)
        pieces = tokens_of(text)[: request.params.max_tokens]
        self._running[request_id] = _Running(
            request, pieces, self.script.prefill_steps, parts=self.script.prompt_parts
        )
        return request_id

    def measure(self, messages: tuple[ChatMessage, ...], *, plain_text: bool = False) -> PromptSize:
        if self.script.measure_error is not None:
            raise self.script.measure_error
        each = self.script.message_tokens or 1
        return PromptSize(
            self._num_tokens(messages),
            self.info.context_tokens,
            tuple(each * place for place in range(len(messages))),
        )

    def _num_tokens(self, messages: Sequence[ChatMessage]) -> int:
        each = self.script.message_tokens
        return self.script.prefill_tokens if each is None else each * len(messages)

    def tend(self) -> bool:
        self.num_tends += 1
        return self.num_tends <= self.script.tend_turns

    def forget(self, conversation_id: str) -> int:
        self.calls.append(("forget", conversation_id))
        for request_id, running in list(self._running.items()):
            if running.request.conversation_id == conversation_id:
                self.abort(request_id)
        return self.script.freed_bytes

    def clear_cache(self) -> int:
        self.calls.append(("clear_cache",))
        return self.script.freed_bytes

    def set_cache_budgets(self, ram_bytes: int | None, disk_bytes: int | None) -> None:
        self.calls.append(("set_cache_budgets", ram_bytes, disk_bytes))

    def step(self) -> list[StepOutput]:
        script = self.script
        ended, self._ended = self._ended, []
        if script.before_step is not None:
            script.before_step()
        if script.tokens_per_s is not None:
            script.sleep(1.0 / script.tokens_per_s)
        outputs = [self._step_one(request_id, it) for request_id, it in list(self._running.items())]
        return ended + outputs

    def _step_one(self, request_id: RequestId, running: _Running) -> StepOutput:
        parts, running.parts = running.parts, ()
        return replace(self._next_output(request_id, running), prompt_parts=parts)

    def _next_output(self, request_id: RequestId, running: _Running) -> StepOutput:
        script = self.script
        if running.prefill_steps_left > 1:
            running.prefill_steps_left -= 1
            done = script.prefill_steps - running.prefill_steps_left
            return StepOutput(
                request_id,
                prefilled_tokens=script.prefill_tokens * done // script.prefill_steps,
                metrics=self._metrics(running),
            )
        if running.num_sampled == script.crash_after_tokens:
            raise RuntimeError("fake crash")
        if running.num_sampled == script.error_after_tokens:
            return self._final(request_id, running, "error", error=script.reply_error)
        if running.num_sampled >= len(running.pieces):
            return self._final(request_id, running, script.finish_reason)
        token_id = 100 + running.num_sampled
        text = running.pieces[running.num_sampled]
        running.num_sampled += 1
        return StepOutput(
            request_id,
            token_ids=(token_id,),
            text=text,
            prefilled_tokens=script.prefill_tokens,
            metrics=self._metrics(running),
            is_all_shown=True,
        )

    def _final(
        self,
        request_id: RequestId,
        running: _Running,
        reason: FinishReason,
        *,
        error: EngineError | None = None,
    ) -> StepOutput:
        del self._running[request_id]
        return StepOutput(
            request_id,
            finish_reason=reason,
            prefilled_tokens=self.script.prefill_tokens,
            metrics=self._metrics(running),
            error=error,
            reply_token_ids=tuple(range(100, 100 + running.num_sampled)),
        )

    def _metrics(self, running: _Running) -> RequestMetrics:
        """As of a machine that reads 320 tokens/s and writes 50."""
        if not running.num_sampled:
            return RequestMetrics(prompt_tokens=self.script.prefill_tokens)
        decode_ms = 20.0 * (running.num_sampled - 1)
        guessed = self.script.guessed_tokens
        return RequestMetrics(
            prompt_tokens=self.script.prefill_tokens,
            completion_tokens=running.num_sampled,
            prefill_ms=100.0,
            ttft_ms=100.0,
            decode_ms=decode_ms,
            e2e_ms=100.0 + decode_ms,
            drafted_tokens=guessed,
            accepted_tokens=guessed * 3 // 4,
            verify_steps=guessed // 4,
            plain_token_ms=32.0 if guessed else None,
        )

    def abort(self, request_id: RequestId) -> None:
        self.aborted.append(request_id)
        running = self._running.get(request_id)
        if running is not None:
            self._ended.append(self._final(request_id, running, "aborted"))

    def set_guess(self, guess: GuessName) -> None:
        self.guess = guess

    def use_draft(self, path: str | None) -> ModelInfo | None:
        if path is None:
            self.draft = None
            return None
        if self.script.before_draft is not None:
            self.script.before_draft()
        if self.script.draft_error is not None:
            raise self.script.draft_error
        self.draft = path
        return make_model_info(name=f"Draft {Path(path).stem}", path=path, num_parameters=100_000)

    def find_drafts(self, paths: Sequence[str]) -> list[str]:
        self.looked_at += paths
        return [path for path in paths if path in self.script.drafts]

    def stats(self) -> EngineStats:
        used = len(self._running)
        return EngineStats(
            blocks=BlockCounts(total=64, free=64 - used, used=used),
            block_size=16,
            block_bytes=1024,
            weights_bytes=self.info.weights_bytes,
            kv_bytes=64 * 1024,
            num_running=used,
            disk_problem=self.script.disk_problem,
        )

    def flush(self, timeout_s: float) -> bool:
        return not self.is_closed

    def close(self) -> None:
        self.is_closed = True
        self._running.clear()


class FakeEngineFactory:
    """Makes fake engines for EngineWorker.

    Attributes:
        script: Shared by all engines it makes.
        engines: Those that were loaded without an error, in order.
        calls: Path and configuration of each load that was tried.
    """

    def __init__(self, script: FakeScript | None = None) -> None:
        self.script = script or FakeScript()
        self.engines: list[FakeEngine] = []
        self.calls: list[tuple[str, EngineConfig]] = []

    def __call__(
        self, path: str, config: EngineConfig, on_progress: Callable[[LoadProgress], None]
    ) -> FakeEngine:
        self.calls.append((path, config))
        engine = FakeEngine(path, config, on_progress, script=self.script)
        self.engines.append(engine)
        return engine

    def check(self, path: str) -> None:
        if path in self.script.check_errors:
            raise self.script.check_errors[path]
