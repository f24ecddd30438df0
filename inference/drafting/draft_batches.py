"""Computes the mirrors of a draft model side by side. Engine thread only.

    follow   those that are wanted know what the target knows; the others have nothing pending
    read     one step of the draft model's scheduler: what is pending, at most one chunk
    guess    steps of one token each; those that want fewer, or become unsure, leave the batch early

Guessed tokens are computed past the scheduler, in slots behind what is computed of the target's tokens. They
are never part of a sequence, so they are never named, kept or saved.
"""

import itertools
import time
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf
from contextlib import contextmanager

import torch

from inference.drafting.draft_mirror import Mirror
from inference.drafting.draft_pace import DraftPace
from inference.drafting.likely_ids import LikelyIds
from inference.engine_loading import EngineParts
from inference.model.base import ShortLogits
from inference.model.step import Chunk
from inference.request import RequestId
from inference.scheduler import DEFAULT_MAX_RUNNING
from inference.sequence import ScheduledChunk, Sequence
from inference.surest import surest_of

Wanted = list[tuple[Mirror, int]]
"""Mirrors, and how many tokens each is to guess, at least 1."""


Likeliest = tuple[int, float]
"""A token, and its probability as the draft model sees it."""


class DraftBatches:
    """The steps of one draft model.

    Attributes:
        parts: Of the draft model.
        mirrors: All of them, by the target's request.
        pace: How long steps take.
    """

    def __init__(self, parts: EngineParts, vocab_size: int) -> None:
        """Begin without mirrors.

        Args:
            parts: Of the draft model.
            vocab_size: No id from here on is read or guessed.
        """
        self.mirrors: dict[RequestId, Mirror] = {}
        self.pace = DraftPace()
        self.parts = parts
        self._vocab_size = vocab_size
        self._likely = _likely_ids(parts)
        self._ids = itertools.count(1)

    def run(self, wanted: Wanted, least_sure: float) -> None:
        """Bring guesses as far as they are wanted, or read one chunk on the way there.

        Args:
            wanted: Mirrors, and how many guesses.
            least_sure: With a lower probability of all guesses together none is added to them.

        Raises:
            ComputeError, RuntimeError, MemoryError: A step failed; what the mirrors hold is of no use then.
        """
        self._follow(wanted)
        if any(mirror.own is not None for mirror, _ in wanted):
            self.parts.memory.set_computing(True)
            with _same_threads():
                self._choose_ids()
                self._read()
                self._guess(wanted, least_sure)

    def is_running(self, mirror: Mirror) -> bool:
        """Whether it holds blocks that can be computed on."""
        return mirror.own in self.parts.scheduler.running

    def put_down(self, mirror: Mirror, *, is_sound: bool = True) -> None:
        """Give the blocks of a mirror back; what they hold can be found again if it is sound."""
        mirror.drop_guesses()
        if mirror.own is not None:
            self.parts.scheduler.remove(mirror.own.request_id, is_sound=is_sound)
            mirror.own = None

    def lose(self, mirror: Mirror, *, is_sound: bool = True) -> None:
        """Guess no more for a sequence."""
        self.put_down(mirror, is_sound=is_sound)
        mirror.is_lost = True

    # ------------------------------------------------------------------ follow

    def _follow(self, wanted: Wanted) -> None:
        ids = {mirror.target.request_id for mirror, _ in wanted}
        for request_id, mirror in self.mirrors.items():
            if request_id not in ids:
                self._rest(mirror)
        for mirror, _ in wanted:
            if not mirror.is_lost:
                self._follow_one(mirror)
        self._make_room({mirror.own: count for mirror, count in wanted if mirror.own is not None})

    def _rest(self, mirror: Mirror) -> None:
        """Have nothing pending; one whose blocks are on their way gets them first."""
        own = mirror.own
        if own is None or own in self.parts.scheduler.loading:
            return
        if self.is_running(mirror) and own.num_computed > 0:
            mirror.rest()
        else:
            self.put_down(mirror)

    def _follow_one(self, mirror: Mirror) -> None:
        target = mirror.target
        num_seen = 0 if mirror.own is None else len(mirror.own.token_ids)
        new = target.token_ids[num_seen:]
        if self._likely is not None:
            self._likely.note(new)
        if max(new, default=0) >= self._vocab_size:
            self.lose(mirror)  # the target chose an id that stands for nothing
        elif mirror.own is not None:
            mirror.follow()
        else:
            own_id = RequestId(next(self._ids))
            mirror.own = Sequence(own_id, target.conversation_id, target.token_ids)
            self.parts.scheduler.add(mirror.own)

    def _make_room(self, wanted: dict[Sequence, int]) -> None:
        """Put down those that rest, the oldest first, if blocks are short or too many hold some."""
        scheduler, kv = self.parts.scheduler, self.parts.kv
        missing = sum(
            max(0, kv.blocks_for(len(own.token_ids) + count) - len(own.block_table))
            for own, count in wanted.items()
        )
        num_all = len(scheduler.running + scheduler.loading + scheduler.waiting)
        for mirror in self.mirrors.values():
            if missing <= kv.num_available and num_all <= DEFAULT_MAX_RUNNING:
                return
            if self.is_running(mirror) and mirror.own not in wanted:
                self.put_down(mirror)
                num_all -= 1

    def _choose_ids(self) -> None:
        runner = self.parts.runner
        if self._likely is not None and isinstance(runner, ShortLogits):
            runner.num_logits = self._likely.num_ids

    # ------------------------------------------------------------------ read

    def _read(self) -> None:
        parts = self.parts
        if parts.pace is not None:
            parts.scheduler.token_budget = parts.pace.budget
        chunks = parts.scheduler.schedule()
        self._drop_preempted()
        if not chunks:
            return
        began = time.perf_counter()
        found = self._compute([_chunk_of(chunk) for chunk in chunks])
        seconds = time.perf_counter() - began
        num_tokens = sum(chunk.num_tokens for chunk in chunks)
        self.pace.record(len(chunks), num_tokens, seconds)
        if parts.pace is not None:
            parts.pace.record(num_tokens, seconds)
        parts.scheduler.commit(chunks)
        self._note(chunks, found)

    def _drop_preempted(self) -> None:
        """Forget guesses whose rows went with the blocks."""
        running = set(self.parts.scheduler.running)
        for mirror in self.mirrors.values():
            if mirror.own not in running:
                mirror.drop_guesses()

    def _note(self, chunks: list[ScheduledChunk], found: list[Likeliest]) -> None:
        by_sequence = {mirror.own: mirror for mirror in self.mirrors.values()}
        rows = iter(found)
        for chunk in chunks:
            mirror = by_sequence[chunk.sequence]
            mirror.num_known = chunk.sequence.num_computed
            if chunk.needs_logits:
                self._note_next(mirror, next(rows))

    # ------------------------------------------------------------------ guess

    def _guess(self, wanted: Wanted, least_sure: float) -> None:
        while True:
            batch = [
                mirror
                for mirror, count in wanted
                if mirror.sureness >= least_sure and self._can_go_on(mirror, count)
            ]
            if not batch:
                return
            began = time.perf_counter()
            found = self._compute([_guess_of(mirror) for mirror in batch])
            self.pace.record(len(batch), len(batch), time.perf_counter() - began)
            for mirror, likeliest in zip(batch, found, strict=True):
                self._note_next(mirror, likeliest)

    def _can_go_on(self, mirror: Mirror, count: int) -> bool:
        """Whether another guess is wanted and possible; the row of the last one has a slot then."""
        own, num_guesses = mirror.own, len(mirror.guesses)
        if own is None or not mirror.is_ready or mirror.is_over or not 0 < num_guesses < count:
            return False
        kv, start = self.parts.kv, own.num_computed + mirror.num_ahead
        if not kv.grow(own.block_table, own.num_computed + num_guesses):
            return False
        assert kv.is_writable(own.block_table, start, num_guesses - mirror.num_ahead), "named"
        return True

    def _note_next(self, mirror: Mirror, likeliest: Likeliest) -> None:
        token_id, probability = likeliest
        is_end = token_id in self.parts.tokenizer.eos_ids
        mirror.note_next(token_id, probability, is_end=is_end)

    def _compute(self, chunks: SequenceOf[Chunk]) -> list[Likeliest]:
        """The likeliest token after each chunk that needs logits."""
        logits = self.parts.runner.run(chunks)[:, : self._vocab_size]
        if logits.is_cuda and not len(logits):
            torch.cuda.synchronize(logits.device)  # else the target's step is timed with it
        return surest_of(logits)


def _likely_ids(parts: EngineParts) -> LikelyIds | None:
    runner = parts.runner
    if not isinstance(runner, ShortLogits):
        return None
    return LikelyIds(runner.num_logits, unit=runner.logits_unit, share=runner.logits_share)


@contextmanager
def _same_threads() -> Iterator[None]:
    """Leave torch's number of threads as the target has it: a runner may set its own."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def _chunk_of(chunk: ScheduledChunk) -> Chunk:
    own, end = chunk.sequence, chunk.start + chunk.num_tokens
    return Chunk(own.token_ids[chunk.start : end], chunk.start, own.block_table, chunk.needs_logits)


def _guess_of(mirror: Mirror) -> Chunk:
    own = mirror.own
    assert own is not None, "who guesses has a sequence"
    start = own.num_computed + mirror.num_ahead
    return Chunk(mirror.guesses[mirror.num_ahead :], start, own.block_table, needs_logits=True)
