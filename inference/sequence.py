"""One request's tokens, and runs of them to compute in a step. Pure Python; owned by the scheduler."""

from dataclasses import dataclass, field, replace

from inference.kv_cache.prefix_search import ChainEnd
from inference.request import RequestId


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens of one request and where their values lie.

    What is said of reuse is said once: of when it first ran, and not of a return after preemption.

    Attributes:
        request_id: Whose it is.
        conversation_id: The chat that it belongs to, and the owner of its blocks.
        token_ids: Prompt, then what was sampled. The truth about the history.
        arrival: When it was added, in the engine's clock, seconds.
        num_prompt_tokens: How many of `token_ids` are the prompt.
        num_computed: How many of them have values in the blocks of `block_table`.
        block_table: Ids of its blocks in order.
        draft: Guessed tokens that may follow `token_ids`, to be verified in the next step; no part of the
            history.
        num_reused: Prompt tokens that need not be computed.
        num_reused_ram, num_reused_disk: Of these, brought back from there.
        num_lost: Prompt tokens that were to be reused, and whose load failed.
        chain_end: Why not more were found; None until it was admitted.
        restore_s: Time from the beginning of the load until it was seen to be done, seconds.
        place: Its place in the order of arrival, given by the scheduler.
    """

    request_id: RequestId
    conversation_id: str
    token_ids: list[int]
    arrival: float = 0.0
    num_prompt_tokens: int = field(init=False)
    num_computed: int = field(init=False, default=0)
    block_table: list[int] = field(init=False, default_factory=list)
    draft: tuple[int, ...] = field(init=False, default=())
    num_reused: int = field(init=False, default=0)
    num_reused_ram: int = field(init=False, default=0)
    num_reused_disk: int = field(init=False, default=0)
    num_lost: int = field(init=False, default=0)
    chain_end: ChainEnd | None = field(init=False, default=None)
    restore_s: float = field(init=False, default=0.0)
    place: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        assert self.token_ids, "a sequence needs at least one token"
        self.token_ids = list(self.token_ids)
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def num_pending(self) -> int:
        """Tokens that are known and not computed."""
        return len(self.token_ids) - self.num_computed

    @property
    def num_replied(self) -> int:
        """Tokens that were sampled."""
        return len(self.token_ids) - self.num_prompt_tokens

    def will_compute_for(self, other: "Sequence", block_size: int) -> bool:
        """Whether the next block that this one computes of its prompt is one that another begins with."""
        end = (self.num_computed // block_size + 1) * block_size
        if self.num_pending == 1 or end >= min(len(self.token_ids), len(other.token_ids)):
            return False  # at least one token is left to compute in any case
        return self.token_ids[:end] == other.token_ids[:end]

    def append(self, token_id: int) -> None:
        """Add a sampled token, to be computed in the next step."""
        self.token_ids.append(token_id)


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """A run of one sequence's tokens to compute in this step; their slots are in its table.

    Attributes:
        sequence: Whose.
        start: Index of the first token; everything before it is computed.
        num_tokens: At least 1.
        needs_logits: Whether these are the last tokens known, so that the next one is sampled.
        draft: Guessed tokens after them, computed too: the logits after each of all these are needed then.
    """

    sequence: Sequence
    start: int
    num_tokens: int
    needs_logits: bool
    draft: tuple[int, ...] = ()

    @property
    def num_rows(self) -> int:
        """Tokens to compute, guessed ones included."""
        return self.num_tokens + len(self.draft)


class StepPlan:
    """What the next step computes, as it is chosen.

    Attributes:
        budget: Tokens that may still be added.
        chunks: What was chosen, by request, in order.
        is_starved: Whether one that runs waits for blocks that come back by themselves.
    """

    def __init__(self, budget: int) -> None:
        """Start with nothing chosen."""
        self.budget = budget
        self.chunks: dict[RequestId, ScheduledChunk] = {}
        self.is_starved = False

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        """Choose the next tokens of a sequence."""
        start = sequence.num_computed
        is_last = start + num_tokens == len(sequence.token_ids)
        self.chunks[sequence.request_id] = ScheduledChunk(sequence, start, num_tokens, is_last)
        self.budget -= num_tokens

    def add_draft(self, sequence: Sequence, draft: tuple[int, ...]) -> None:
        """Choose guessed tokens as well, of a sequence whose last token was chosen."""
        chunk = self.chunks[sequence.request_id]
        self.chunks[sequence.request_id] = replace(chunk, draft=draft)
        self.budget -= len(draft)

    def drop(self, sequence: Sequence) -> None:
        """Take back what was chosen of a sequence."""
        chunk = self.chunks.pop(sequence.request_id, None)
        if chunk is not None:
            self.budget += chunk.num_tokens + len(chunk.draft)
