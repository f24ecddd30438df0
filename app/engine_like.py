"""What the app needs of an engine. Pure Python."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from inference.config import EngineConfig, GuessName
from inference.metrics import EngineStats, ModelInfo
from inference.request import (
    ChatMessage,
    GenerateRequest,
    LoadProgress,
    PromptSize,
    RequestId,
    StepOutput,
)


class EngineLike(Protocol):
    """An open model, used from one thread."""

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""

    def measure(self, messages: tuple[ChatMessage, ...], *, plain_text: bool = False) -> PromptSize:
        """How long a prompt would be; refuses what `add_request` refuses, except for its length."""

    def add_request(self, request: GenerateRequest) -> RequestId:
        """Take a request, or refuse it before any work with an EngineError."""

    def step(self) -> list[StepOutput]:
        """One decode step or prefill chunk."""

    def abort(self, request_id: RequestId) -> object:
        """End a request: the next step gives its last output. Unknown ids are ignored."""

    def tend(self) -> bool:
        """Put things in order while there is nothing to do; gives whether more is to be done soon."""

    def forget(self, conversation_id: str) -> int:
        """End a chat's requests and remove what only it has cached; gives the bytes freed."""

    def clear_cache(self) -> int:
        """Remove all that is cached; gives the bytes freed."""

    def set_cache_budgets(self, ram_bytes: int | None, disk_bytes: int | None) -> None:
        """Budgets of RAM and disk from now on; None chooses."""

    def set_guess(self, guess: GuessName) -> None:
        """How tokens are guessed ahead from now on."""

    def use_draft(self, path: str | None) -> ModelInfo | None:
        """Open a draft model in place of the one there is; None uses none.

        Raises:
            EngineError: It cannot be used; nothing was changed.
        """

    def find_drafts(self, paths: Sequence[str]) -> list[str]:
        """Those of these models that `use_draft` could take."""

    def stats(self) -> EngineStats:
        """A snapshot."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until ended turns are on disk, or for so long; gives whether they are."""

    def close(self) -> None:
        """Finish writing, for a moment at most, and give all memory back."""


EngineFactory = Callable[[str, EngineConfig, Callable[[LoadProgress], None]], EngineLike]


ModelCheck = Callable[[str], None]
"""Raises an EngineError if the factory would surely refuse this model; takes a fraction of a second."""


def outputs_of(engine: EngineLike, request: GenerateRequest) -> Iterator[StepOutput]:
    """Make one reply with an engine that makes no other.

    Raises:
        EngineError: The request was refused.
    """
    request_id = engine.add_request(request)
    while engine.has_work:
        yield from (output for output in engine.step() if output.request_id == request_id)
