"""Which tokens of which sequences are computed in the next step.

Pure Python; owned by the engine, on its thread. There is no prefill state and no decode state: a
sequence has `token_ids`, of which the first `num_computed` have values in the KV memory, and the
second number chases the first. One token budget bounds each step. Decoding sequences come first,
one token each; then those in the middle of a prompt; then new ones, first come, first served.

      token_ids    p p p p p p p p s s        p = prompt, s = sampled
                   └──────┬──────┘   └ the last one sampled is still to be computed
      num_computed        9           so this one decodes: 1 token is pending

A decoding sequence may have a *draft*, guessed tokens that are computed behind its last one if budget and
blocks are left for them, by prompts too: nobody is put back or kept out for a guess. What of it becomes part of the reply is noted by
`accept`; values of the rest lie behind `num_computed`, where the next step writes over them.

If blocks run out, the youngest running sequence gives all of its own back and waits at the head of
the queue. It keeps its tokens and is attached again, mostly to cached blocks or to what was put
aside in RAM. The oldest is never put back, so it always goes on, and each of the others becomes the
oldest one day.

What a new sequence reuses may lie in RAM or on disk. Then it holds its blocks and is *loading* while
others are computed, and runs when the load has ended:

      waiting ──► loading ──► running ──► gone          removed while loading: *draining*, since the
         ▲  └─────────────────▲  │                      blocks belong to the mover until it is done
         └──── preempted ────────┘

Source: the scheduling of vLLM's v1 engine (Kwon et al. 2023, "PagedAttention", section 4.5, for
    preemption by recomputation). We differ: a sequence is admitted only if its whole prompt fits
    beside what the running ones still have to compute.
"""

import bisect
import time
from collections.abc import Callable

from inference.errors import ContextOverflowError
from inference.kv_cache.manager import KvCacheManager
from inference.kv_cache.prefix_search import OpenTail
from inference.kv_cache.tiers import BlockMover
from inference.loads import Loads
from inference.request import RequestId
from inference.sequence import ScheduledChunk, Sequence, StepPlan

DEFAULT_MAX_RUNNING = 16


class Scheduler:
    """Queues of sequences, and the choice of what each step computes.

    A step is `schedule()`, the computation, `commit()` with the same chunks, and `append()` of one
    token to each sequence whose chunk needed logits, or its `remove()`. With a draft, several tokens are
    appended, and `accept()` follows.

    Attributes:
        token_budget: Most tokens of one step; may be changed between steps.
        preemptions: How many times a sequence was put back because blocks ran out.
    """

    def __init__(
        self,
        kv: KvCacheManager,
        *,
        token_budget: int,
        max_running: int = DEFAULT_MAX_RUNNING,
        mover: BlockMover | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Start with empty queues.

        Args:
            kv: Where blocks come from; used by this scheduler alone.
            token_budget: Most tokens of one step, at least 1.
            max_running: Most sequences that hold blocks, at least 1.
            mover: Loads blocks from RAM and disk; needed if the manager has such tiers.
            clock: Seconds, never falling; for how long loads take.
        """
        if token_budget < 1 or max_running < 1:
            raise ValueError(f"must be at least 1: {token_budget=}, {max_running=}.")
        self.preemptions = 0
        self._kv = kv
        self.token_budget = token_budget
        self._max_running = max_running
        self._running: dict[RequestId, Sequence] = {}  # oldest first
        self._waiting: list[Sequence] = []  # oldest first
        self._loads = Loads(kv, mover, clock)
        self._num_added = 0
        self._is_stuck = False

    @property
    def has_work(self) -> bool:
        """Whether any sequence is here."""
        return bool(self._running or self._waiting or self._loads.sequences)

    @property
    def is_only_loading(self) -> bool:
        """Whether the last `schedule` found nothing to compute, and a transfer has to end first."""
        return self.has_work and self._is_stuck and self._is_transferring

    @property
    def running(self) -> tuple[Sequence, ...]:
        """Sequences that are computed, oldest first."""
        return tuple(self._running.values())

    @property
    def loading(self) -> tuple[Sequence, ...]:
        """Sequences that hold blocks whose rows are on their way."""
        return self._loads.sequences

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
        self._num_added += 1
        sequence.place = self._num_added
        self._waiting.append(sequence)
        self._is_stuck = False

    def remove(self, request_id: RequestId, *, is_sound: bool = True) -> Sequence | None:
        """Take a sequence out, finished or aborted; what it computed stays cached.

        Blocks that are being loaded for it are released when the load has ended.

        Args:
            request_id: Whose.
            is_sound: Whether its values are right. After a step that failed nothing is found again of
                what it computed or used.

        Returns:
            It, without blocks; None if it is not here.
        """
        sequence = self._find(request_id)
        if sequence is None:
            return None
        self._is_stuck = False
        if self._running.pop(request_id, None) is not None:
            self._release(sequence, is_sound=is_sound)
        elif not self._loads.abandon(sequence):
            self._waiting.remove(sequence)
        return sequence

    def schedule(self) -> list[ScheduledChunk]:
        """Choose what the next step computes; every slot that it needs is in the tables then.

        Returns:
            Chunks in the order decodes, prompts, new ones; together at most `token_budget` tokens;
            at most one of each sequence. Empty only if nothing can be computed.
        """
        self.drain_loads()
        for sequence in self._loads.poll():
            self._run(sequence)
        step = StepPlan(self.token_budget)
        decoding = [s for s in self._running.values() if s.num_pending == 1]
        prefilling = [s for s in self._running.values() if s.num_pending > 1]
        self._continue_each(decoding, step)
        self._continue_each(prefilling, step)
        self._admit(step)
        self._add_drafts(decoding, step)
        self._is_stuck = not step.chunks
        return list(step.chunks.values())

    def commit(self, chunks: list[ScheduledChunk]) -> None:
        """Note that chunks are computed; full blocks can be found from now on.

        Chunks of sequences that were removed meanwhile are passed over. Drafts are not part of it.
        """
        for chunk in chunks:
            self._note_computed(chunk.sequence, chunk.start + chunk.num_tokens)

    def accept(self, sequence: Sequence) -> None:
        """Note that of a draft all was computed that is part of the sequence now, but its last token.

        Blocks that were only for the rest of it are free again.
        """
        self._note_computed(sequence, len(sequence.token_ids) - 1)
        if self._running.get(sequence.request_id) is sequence:
            self._kv.shrink(sequence.block_table, len(sequence.token_ids))

    def drain_loads(self) -> bool:
        """Release blocks of removed sequences whose loads have ended; whether others have not."""
        return self._loads.drain()

    def check_integrity(self) -> None:
        """Prove that tables, blocks and counts agree.

        Raises:
            RuntimeError: They do not; the message says where.
        """
        tables = [sequence.block_table for sequence in self._running.values()]
        self._kv.check_integrity(tables + self._loads.tables)
        for sequence in self._running.values():
            if self._kv.blocks_for(sequence.num_computed) > len(sequence.block_table):
                raise RuntimeError(f"Request {sequence.request_id} has values without blocks.")
        for sequence in self._waiting:
            if sequence.block_table or sequence.num_computed:
                raise RuntimeError(f"Request {sequence.request_id} waits and holds blocks.")

    @property
    def _is_transferring(self) -> bool:
        # Blocks come back by themselves: of loads, and those that are kept while they are saved.
        return self._loads.is_under_way or self._kv.num_pinned > 0

    def _find(self, request_id: RequestId) -> Sequence | None:
        others = [*self._waiting, *self._loads.sequences]
        found = (sequence for sequence in others if sequence.request_id == request_id)
        return self._running.get(request_id) or next(found, None)

    def _run(self, sequence: Sequence) -> None:
        # Loads end in any order, and who came first stays first.
        self._running[sequence.request_id] = sequence
        self._running = dict(sorted(self._running.items(), key=lambda item: item[1].place))

    def _release(self, sequence: Sequence, *, is_sound: bool = True) -> None:
        table, num_computed = sequence.block_table, sequence.num_computed
        if is_sound:
            self._kv.seal(table, sequence.token_ids, num_computed, sequence.conversation_id)
        else:
            self._kv.distrust(table)
        self._kv.release(table)

    def _note_computed(self, sequence: Sequence, num_computed: int) -> None:
        if self._running.get(sequence.request_id) is sequence:
            sequence.num_computed = num_computed
            self._kv.publish(
                sequence.block_table, sequence.token_ids, num_computed, sequence.conversation_id
            )

    def _continue_each(self, sequences: list[Sequence], step: StepPlan) -> None:
        for sequence in sequences:
            if step.budget > 0 and sequence.request_id in self._running:
                self._continue(sequence, step)

    def _add_drafts(self, decoding: list[Sequence], step: StepPlan) -> None:
        for sequence in decoding:
            draft, sequence.draft = sequence.draft[: step.budget], ()
            if not draft or sequence.request_id not in step.chunks:
                continue
            if self._kv.grow(sequence.block_table, len(sequence.token_ids) + len(draft)):
                step.add_draft(sequence, draft)

    def _continue(self, sequence: Sequence, step: StepPlan) -> None:
        num_tokens = min(sequence.num_pending, step.budget)
        while not self._kv.grow(sequence.block_table, sequence.num_computed + num_tokens):
            if len(self._running) == 1:
                if not self._is_transferring:
                    raise RuntimeError(f"Request {sequence.request_id} is alone and does not fit.")
                step.is_starved = True
                return
            youngest = next(reversed(self._running.values()))
            self._preempt(youngest, step)
            if youngest is sequence:
                return
        step.add(sequence, num_tokens)

    def _preempt(self, sequence: Sequence, step: StepPlan) -> None:
        step.drop(sequence)
        del self._running[sequence.request_id]
        self._release(sequence)
        sequence.num_computed = 0
        bisect.insort(self._waiting, sequence, key=lambda waiting: waiting.place)
        self.preemptions += 1

    def _admit(self, step: StepPlan) -> None:
        # Nobody is let in before one that runs and waits for blocks.
        while self._waiting and step.budget > 0 and not step.is_starved:
            num_holding = len(self._running) + len(self._loads.sequences)
            if num_holding >= self._max_running or not self._attach(self._waiting[0], step):
                return

    def _attach(self, sequence: Sequence, step: StepPlan) -> bool:
        # The whole prompt must fit, or it would soon be put back again. The running ones have all
        # that they know of by now, or there would be no budget left. And who was put back in this
        # step is not admitted in it: it gave fewer blocks than it wants, since another took some.
        # Alone, anything that add() let in does fit.
        if self._kv.num_available == 0 or self._is_being_computed(sequence):
            return False
        hit = self._kv.attach(sequence.token_ids, sequence.conversation_id, self._open_tails())
        if hit is None:
            return False
        self._waiting.remove(sequence)
        is_first_time = sequence.chain_end is None
        if is_first_time:
            sequence.chain_end = hit.end
        sequence.block_table = list(hit.block_ids)
        if hit.loads:
            # All blocks of the prompt now, or another would be let in that leaves none.
            self._grow_for_prompt(sequence, len(sequence.token_ids))
            self._loads.begin(sequence, hit, is_first_time=is_first_time)
            return True
        sequence.num_computed = hit.num_tokens
        if is_first_time:
            sequence.num_reused = hit.num_tokens
        self._run(sequence)
        num_tokens = min(sequence.num_pending, step.budget)
        self._grow_for_prompt(sequence, sequence.num_computed + num_tokens)
        step.add(sequence, num_tokens)
        return True

    def _open_tails(self) -> list[OpenTail]:
        tails = (
            self._kv.open_tail(other.block_table, other.token_ids, other.num_computed)
            for other in self._running.values()
        )
        return [tail for tail in tails if tail is not None]

    def _is_being_computed(self, sequence: Sequence) -> bool:
        # Of several replies to one question the first computes the prompt, and the others share its blocks.
        running, size = self._running.values(), self._kv.block_size
        return any(other.will_compute_for(sequence, size) for other in running)

    def _grow_for_prompt(self, sequence: Sequence, num_tokens: int) -> None:
        has_grown = self._kv.grow(sequence.block_table, num_tokens)
        assert has_grown, "there was room for the whole prompt"
