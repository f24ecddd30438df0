"""A second, smaller model that guesses what a target will say. Engine thread only.

    begin     a sequence of the target may be guessed for; nothing is computed
    propose   all that are wanted, in batches: one pass reads what they lack, each further one guesses a token
    end       what was computed of the target's tokens is kept, like a turn of the target's

It is a whole model of its own, with blocks, scheduler and disk tier. Each sequence of the target has a *mirror*
here (see `draft_mirror`). Nothing that goes wrong here reaches a reply: then there are no guesses.
"""

import gc
import logging
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from pathlib import Path

from inference.drafting.draft_batches import DraftBatches
from inference.drafting.draft_loading import load_draft_parts
from inference.drafting.draft_mirror import Mirror
from inference.engine_loading import EngineParts, ProgressCallback
from inference.errors import ComputeError
from inference.metrics import ModelInfo
from inference.model.loader import LoadedModel, load_model
from inference.model.memory import release_unused
from inference.request import RequestId
from inference.sequence import Sequence

logger = logging.getLogger(__name__)


class DraftModel:
    """Guesses by argmax, for all sequences of one target."""

    def __init__(self, parts: EngineParts, *, vocab_size: int) -> None:
        """Take parts that are ready; `DraftModel.load` makes them.

        Args:
            parts: Owned by the draft model from now on; of the target's vocabulary.
            vocab_size: Ids that the target may be given; no other is guessed.
        """
        self._loaded: DraftBatches | None = DraftBatches(parts, min(vocab_size, parts.vocab_size))

    @classmethod
    def load(
        cls,
        path: Path | str,
        target: EngineParts,
        on_progress: ProgressCallback | None = None,
        *,
        load: Callable[..., LoadedModel] = load_model,
    ) -> "DraftModel":
        """Load a draft model; see `load_draft_parts` for arguments and errors."""
        parts = load_draft_parts(Path(path), target, on_progress, load=load)
        return cls(parts, vocab_size=target.vocab_size)

    @property
    def info(self) -> ModelInfo:
        """What was loaded."""
        return self._parts.info

    @property
    def memory_bytes(self) -> int:
        """Of weights, and of keys and values that were written."""
        return self._parts.info.weights_bytes + self._parts.runner.kv.touched_bytes

    @property
    def disk_written_bytes(self) -> int:
        """Written to the disk tier since it was loaded."""
        return self._parts.memory.disk_state()[0]

    @property
    def token_ms(self) -> float | None:
        """What a guessed token takes; None until known."""
        return self._batches.pace.token_ms

    @property
    def read_ms_per_token(self) -> float | None:
        """What each token takes that it has to read; None until known."""
        return self._batches.pace.read_ms_per_token

    # ------------------------------------------------------------------ sequences

    def begin(self, sequence: Sequence) -> None:
        """Be ready to guess for a sequence of the target's."""
        self._mirror_of(sequence)

    def lag(self, sequence: Sequence) -> int:
        """Tokens that it would have to read before it can guess; those on a tier count as read."""
        mirror = self._mirrors.get(sequence.request_id)
        return len(sequence.token_ids) if mirror is None or mirror.is_lost else mirror.lag

    def propose(
        self, wanted: SequenceOf[tuple[Sequence, int]], least_sure: float = 0.0
    ) -> list[tuple[int, ...]]:
        """Guess what comes next.

        At most one chunk of what is lacking is read. What was guessed before and is still right is given
        again without being computed.

        Args:
            wanted: Sequences of the target, each once, and the most tokens to guess for each.
            least_sure: With a lower probability of all its guesses together, as this model sees it, a
                sequence gets no further one.

        Returns:
            For each the likeliest tokens after its `token_ids`, the end of a turn the last of them; none while
            it is being read, or if it cannot be followed.
        """
        self._parts.memory.tend()
        mirrors = [self._mirror_of(sequence) for sequence, _ in wanted]
        counts = [min(count, self._room(sequence)) for sequence, count in wanted]
        pairs = list(zip(mirrors, counts, strict=True))
        self._run([(mirror, count) for mirror, count in pairs if count > 0], least_sure)
        return [tuple(mirror.guesses[: max(0, count)]) for mirror, count in pairs]

    def end(self, sequence: Sequence, *, keep: bool, on_disk: bool) -> None:
        """A sequence of the target's has ended.

        Args:
            sequence: Its tokens are those of the reply.
            keep: Whether what was computed of it may be used again.
            on_disk: Whether it may be written to the disk too.
        """
        mirror = self._mirrors.pop(sequence.request_id, None)
        if mirror is None:
            return
        keep = keep and not mirror.is_forgotten
        if mirror.own is not None:
            mirror.follow()
            if keep and self._batches.is_running(mirror):
                self._parts.memory.keep(mirror.own, on_disk=on_disk)
            self._batches.put_down(mirror, is_sound=keep)
        if mirror.is_forgotten:
            self._parts.memory.forget_residents(sequence.conversation_id)
        if not self._mirrors:
            self._parts.memory.set_computing(False)

    # ------------------------------------------------------------------ what outlives them

    def tend(self) -> bool:
        """Look after transfers; whether some go on."""
        is_draining = self._parts.scheduler.drain_loads()
        return self._parts.memory.tend() or is_draining

    def flush(self, timeout_s: float) -> bool:
        """Wait until what ended is on disk, or for so long; whether it is."""
        return self._parts.memory.flush(timeout_s)

    def break_off(self, conversation_id: str | None) -> None:
        """Write nothing more to the disk of this chat's turns that ended, or of any chat's."""
        self._parts.memory.break_off(conversation_id)

    def forget(self, conversation_id: str) -> int:
        """Remove what only this chat used; of what runs nothing is kept. Bytes freed."""
        for mirror in self._mirrors.values():
            if mirror.target.conversation_id == conversation_id:
                mirror.is_forgotten = True
        return self._parts.memory.forget(conversation_id)

    def clear(self) -> int:
        """Remove all that is cached; what runs goes on. Bytes freed."""
        return self._parts.memory.clear()

    def set_budgets(self, ram_bytes: int | None, disk_bytes: int | None) -> None:
        """Change the budget of the disk; None chooses. In RAM nothing is put aside: that is the target's."""
        del ram_bytes
        self._parts.memory.set_budgets(0, disk_bytes)

    def close(self) -> None:
        """Finish saving, in bounded time, and give all memory back. May be called again."""
        if self._loaded is None:
            return
        device = self._parts.device
        self._parts.memory.close()
        self._loaded = None
        gc.collect()  # a model's modules refer to each other
        release_unused(device)

    def check_integrity(self) -> None:
        """Prove that no block and no mirror is lost; for tests and for times of idleness.

        Raises:
            RuntimeError: One is; the message says where.
        """
        goes_on = self.tend()
        scheduler, kv = self._parts.scheduler, self._parts.kv
        scheduler.check_integrity()
        known = {*scheduler.running, *scheduler.loading, *scheduler.waiting}
        mirrors = [mirror for mirror in self._mirrors.values() if mirror.own is not None]
        if known != {mirror.own for mirror in mirrors}:
            raise RuntimeError("The mirrors of a draft model are not what its scheduler has.")
        for mirror in mirrors:
            assert mirror.own is not None, "chosen so"
            num_rows = mirror.own.num_computed + mirror.num_ahead
            if mirror.num_ahead and not mirror.is_ready:
                raise RuntimeError("A draft model has rows of guesses after rows that lack.")
            if kv.blocks_for(num_rows) > len(mirror.own.block_table):
                raise RuntimeError("A draft model has rows of guesses without blocks.")
        used = kv.counts().used
        if used > kv.num_pinned and not (scheduler.has_work or goes_on):
            raise RuntimeError(f"{used} blocks of a draft model are in use and nothing runs.")

    # ------------------------------------------------------------------ inside

    @property
    def _batches(self) -> DraftBatches:
        assert self._loaded is not None, "the draft model is closed"
        return self._loaded

    @property
    def _parts(self) -> EngineParts:
        return self._batches.parts

    @property
    def _mirrors(self) -> dict[RequestId, Mirror]:
        return self._batches.mirrors

    def _mirror_of(self, sequence: Sequence) -> Mirror:
        mirror = self._mirrors.get(sequence.request_id)
        if mirror is None:
            trail = self._parts.memory.trail_of(sequence.conversation_id) or ()
            mirror = Mirror(sequence, num_known=_num_equal(trail, sequence.token_ids[:-1]))
            self._mirrors[sequence.request_id] = mirror
        return mirror

    def _room(self, sequence: Sequence) -> int:
        """How many tokens may be guessed before the context ends."""
        return self._parts.info.context_tokens - len(sequence.token_ids)

    def _run(self, wanted: list[tuple[Mirror, int]], least_sure: float) -> None:
        try:
            self._batches.run(wanted, least_sure)
        except (ComputeError, RuntimeError, MemoryError) as error:
            logger.error("a draft model could not guess", exc_info=error)
            for mirror, _ in wanted:
                self._batches.lose(mirror, is_sound=False)


def _num_equal(one: SequenceOf[int], other: SequenceOf[int]) -> int:
    """How many first ids are the same."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
