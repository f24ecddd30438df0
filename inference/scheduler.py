"""Which tokens of which sequences are computed in the next step.

Pure Python; owned by the engine, on its thread. There is no prefill state and no decode state: a
sequence has `token_ids`, of which the first `num_computed` have values in the KV memory, and the
second number chases the first. One token budget bounds each step. Decoding sequences come first,
one token each; then those in the middle of a prompt; then new ones, first come, first served.

      token_ids    p p p p p p p p s s        p = prompt, s = sampled
                   └──────┬──────┘   └ the last one sampled is still to be computed
      num_computed        9           so this one decodes: 1 token is pending

If blocks run out, the youngest running sequence gives all of its own back and waits at the head of
the queue. It keeps its tokens and is computed again, mostly from cached blocks. The oldest is never
put back, so it always goes on, and each of the others becomes the oldest one day.

Source: the scheduling of vLLM's v1 engine (Kwon et al. 2023, "PagedAttention", section 4.5, for
    preemption by recomputation). We differ: a sequence is admitted only if its whole prompt fits
    beside what the running ones still have to compute.
"""

from collections import deque
from dataclasses import dataclass, field

from inference.errors import ContextOverflowError
from inference.kv_cache.manager import ChainEnd, KvCacheManager
from inference.request import RequestId

DEFAULT_MAX_RUNNING = 16


@dataclass(slots=True, eq=False)
class Sequence:
    """The tokens of one request and where their values lie.

    Attributes:
        request_id: Whose it is.
        conversation_id: The chat that it belongs to.
        token_ids: Prompt, then what was sampled. The truth about the history.
        arrival: When it was added, in the engine's clock, seconds.
        num_prompt_tokens: How many of `token_ids` are the prompt.
        num_computed: How many of them have values in the blocks of `block_table`.
        block_table: Ids of its blocks in order.
        num_reused: Prompt tokens that were cached when it first ran.
        reuse_stop: Why not more; None until it first runs.
    """

    request_id: RequestId
    conversation_id: str
    token_ids: list[int]
    arrival: float = 0.0
    num_prompt_tokens: int = field(init=False)
    num_computed: int = field(init=False, default=0)
    block_table: list[int] = field(init=False, default_factory=list)
    num_reused: int = field(init=False, default=0)
    reuse_stop: ChainEnd | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        assert self.token_ids, "a sequence needs at least one token"
        self.token_ids = list(self.token_ids)
        self.num_prompt_tokens = len(self.token_ids)

    @property
    def num_pending(self) -> int:
        """Tokens that are known and not computed."""
        return len(self.token_ids) - self.num_computed

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
    """

    sequence: Sequence
    start: int
    num_tokens: int
    needs_logits: bool


class Scheduler:
    """Queues of sequences, and the choice of what each step computes.

    A step is `schedule()`, the computation, `commit()` with the same chunks, and `append()` of one
    token to each sequence whose chunk needed logits, or its `remove()`.

    Attributes:
        preemptions: How many times a sequence was put back because blocks ran out.
    """

    def __init__(
        self, kv: KvCacheManager, *, token_budget: int, max_running: int = DEFAULT_MAX_RUNNING
    ) -> None:
        """Start with empty queues.

        Args:
            kv: Where blocks come from; used by this scheduler alone.
            token_budget: Most tokens of one step, at least 1.
            max_running: Most sequences that hold blocks, at least 1.
        """
        if token_budget < 1 or max_running < 1:
            raise ValueError(f"must be at least 1: {token_budget=}, {max_running=}.")
        self.preemptions = 0
        self._kv = kv
        self._token_budget = token_budget
        self._max_running = max_running
        self._running: dict[RequestId, Sequence] = {}  # oldest first
        self._waiting: deque[Sequence] = deque()

    @property
    def has_work(self) -> bool:
        """Whether any sequence is here."""
        return bool(self._running or self._waiting)

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences that hold blocks, oldest first."""
        return tuple(self._running.values())

    @property
    def waiting(self) -> tuple[Sequence, ...]:
        """Sequences without blocks, next one first."""
        return tuple(self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence.

        Raises:
            ContextOverflowError: It would not fit even if it were alone.
        """
        capacity = self._kv.num_blocks * self._kv.block_size
        if len(sequence.token_ids) > capacity:
            raise ContextOverflowError(len(sequence.token_ids), capacity)
        assert not self._find(sequence.request_id), f"{sequence.request_id} is already here"
        self._waiting.append(sequence)

    def remove(self, request_id: RequestId) -> Sequence | None:
        """Take a sequence out, finished or aborted; its published blocks stay cached.

        Returns:
            It, without blocks; None if it is not here.
        """
        sequence = self._find(request_id)
        if sequence is None:
            return None
        if self._running.pop(request_id, None) is None:
            self._waiting.remove(sequence)
        self._kv.release(sequence.block_table)
        return sequence

    def schedule(self) -> list[ScheduledChunk]:
        """Choose what the next step computes; every slot that it needs is in the tables then.

        Returns:
            Chunks in the order decodes, prompts, new ones; together at most `token_budget` tokens;
            at most one of each sequence. Empty only if nothing can be computed.
        """
        step = _Step(self._token_budget)
        decoding = [s for s in self._running.values() if s.num_pending == 1]
        prefilling = [s for s in self._running.values() if s.num_pending > 1]
        for sequence in decoding + prefilling:
            if step.budget > 0 and sequence.request_id in self._running:
                self._continue(sequence, step)
        self._admit(step)
        return list(step.chunks.values())

    def commit(self, chunks: list[ScheduledChunk]) -> None:
        """Note that chunks are computed; full blocks can be found from now on.

        Chunks of sequences that were removed meanwhile are passed over.
        """
        for chunk in chunks:
            sequence = chunk.sequence
            if self._running.get(sequence.request_id) is sequence:
                sequence.num_computed = chunk.start + chunk.num_tokens
                self._kv.publish(sequence.block_table, sequence.token_ids, sequence.num_computed)

    def check_integrity(self) -> None:
        """Prove that tables, blocks and counts agree.

        Raises:
            RuntimeError: They do not; the message says where.
        """
        self._kv.check_integrity([sequence.block_table for sequence in self._running.values()])
        for sequence in self._running.values():
            if self._kv.blocks_for(sequence.num_computed) > len(sequence.block_table):
                raise RuntimeError(f"Request {sequence.request_id} has values without blocks.")
        for sequence in self._waiting:
            if sequence.block_table or sequence.num_computed:
                raise RuntimeError(f"Request {sequence.request_id} waits and holds blocks.")

    def _find(self, request_id: RequestId) -> Sequence | None:
        waiting = (sequence for sequence in self._waiting if sequence.request_id == request_id)
        return self._running.get(request_id) or next(waiting, None)

    def _continue(self, sequence: Sequence, step: "_Step") -> None:
        num_tokens = min(sequence.num_pending, step.budget)
        while not self._kv.grow(sequence.block_table, sequence.num_computed + num_tokens):
            youngest = next(reversed(self._running.values()))
            if len(self._running) == 1:
                raise RuntimeError(f"Request {sequence.request_id} is alone and does not fit.")
            self._preempt(youngest, step)
            if youngest is sequence:
                return
        step.add(sequence, num_tokens)

    def _preempt(self, sequence: Sequence, step: "_Step") -> None:
        step.drop(sequence)
        del self._running[sequence.request_id]
        self._kv.release(sequence.block_table)
        sequence.num_computed = 0
        self._waiting.appendleft(sequence)
        self.preemptions += 1

    def _admit(self, step: "_Step") -> None:
        while self._waiting and step.budget > 0 and len(self._running) < self._max_running:
            if not self._attach(self._waiting[0]):
                return
            sequence = self._waiting.popleft()
            self._running[sequence.request_id] = sequence
            num_tokens = min(sequence.num_pending, step.budget)
            has_grown = self._kv.grow(sequence.block_table, sequence.num_computed + num_tokens)
            assert has_grown, "there was room for the whole prompt"
            step.add(sequence, num_tokens)

    def _attach(self, sequence: Sequence) -> bool:
        # The whole prompt must fit, or it would soon be put back again. The running ones have all
        # that they know of by now, or there would be no budget left. And who was put back in this
        # step is not admitted in it: it gave fewer blocks than it wants, since another took some.
        # Alone, anything that add() let in does fit.
        if self._kv.num_available == 0:
            return False
        hit = self._kv.attach(sequence.token_ids)
        table = list(hit.block_ids)
        wanted = self._kv.blocks_for(len(sequence.token_ids)) - len(table)
        if wanted > self._kv.num_available:
            self._kv.release(table)
            return False
        sequence.block_table = table
        sequence.num_computed = hit.num_tokens
        if sequence.reuse_stop is None:
            sequence.num_reused = hit.num_tokens
            sequence.reuse_stop = hit.reuse_stop
        return True


class _Step:
    """Chunks chosen so far and what is left of the budget."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.chunks: dict[RequestId, ScheduledChunk] = {}

    def add(self, sequence: Sequence, num_tokens: int) -> None:
        start = sequence.num_computed
        is_last = start + num_tokens == len(sequence.token_ids)
        self.chunks[sequence.request_id] = ScheduledChunk(sequence, start, num_tokens, is_last)
        self.budget -= num_tokens

    def drop(self, sequence: Sequence) -> None:
        chunk = self.chunks.pop(sequence.request_id, None)
        if chunk is not None:
            self.budget += chunk.num_tokens
