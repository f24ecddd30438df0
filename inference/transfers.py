"""Carries keys and values between the tiers, on threads of its own.

    engine thread    copy_rows, spill, discard: at once, a memcpy of one block each
                     load, save, forget, clear: handed over, asked for later
    loader threads   RAM slot or file  ->  device block          for a reply that waits
    saver thread     device block      ->  file                  after a turn, first come, first served

All bookkeeping stays on the engine thread: a block that a load fills belongs to nobody else, and one
that a save reads is pinned, until the ticket says that it is done.
"""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

from inference.kv_cache.disk.store import DiskStore
from inference.kv_cache.host_memory import HostArena
from inference.kv_cache.kv_rows import KvRows
from inference.kv_cache.tensors import KvTensors
from inference.kv_cache.tiers import BlockLoad, DiskSource, HeldBlock, RamSource
from inference.transfer_tickets import Loading, Saving

logger = logging.getLogger(__name__)

SPREAD_S = 0.6
"""Over which a turn's blocks are written while tokens are computed: on disk within a second, on a busy machine
too, and never in one burst, which would take the core and the memory from the model."""

SAVER_NICENESS = 10
"""It writes in the pauses of the threads that compute, and has a tenth of a core if there are none."""

NUM_LOADERS = 2
"""One reads and verifies while the other copies; more would take cores from the model."""

NUM_COPYING_THREADS = NUM_LOADERS + 2
"""Loaders, saver and engine: each copies one block at a time."""

LAST_BLOCK_TIMEOUT_S = 1.0
"""How long closing waits for threads that were told to end: each has one block in its hands, the saver some."""

T = TypeVar("T")


class Transfers:
    """Moves rows between device, RAM and disk; a `BlockMover`.

    Args:
        kv: The device blocks.
        ram: Memory of the RAM slots.
        disk: The disk tier, open; None if there is none.
    """

    def __init__(self, kv: KvTensors, ram: HostArena, disk: DiskStore | None) -> None:
        self.disk = disk
        self._kv = kv
        self._ram = ram
        self._loaders = ThreadPoolExecutor(NUM_LOADERS, thread_name_prefix="kv-load")
        self._saver = ThreadPoolExecutor(1, "kv-save", initializer=_give_way)
        self._loadings: list[Loading] = []  # both lists: engine thread
        self._savings: list[Saving] = []
        self._rows = KvRows(kv)  # saver thread
        self.set_computing(False)

    # ------------------------------------------------------------------ at once

    def copy_rows(self, source: int, target: int, num_rows: int) -> None:
        """See `BlockMover`."""
        self._kv.copy_rows(source, target, num_rows)

    def spill(self, block_id: int, slot: int) -> None:
        """See `BlockMover`."""
        self._kv.export_rows(block_id, 0, self._kv.block_size, out=self._ram.slot(slot))

    def discard(self, block_ids: Sequence[int]) -> None:
        """See `BlockMover`."""
        self._kv.discard(block_ids)

    # ------------------------------------------------------------------ loads

    def load(self, loads: Sequence[BlockLoad]) -> Loading:
        """See `BlockMover`."""
        loading = Loading(len(loads))
        loading.begin(
            [
                self._loaders.submit(self._load_each, loads, first, loading)
                for first in range(min(NUM_LOADERS, len(loads)))
            ]
        )
        self._loadings = [each for each in self._loadings if not each.is_done] + [loading]
        return loading

    def wait_for_any(self, timeout_s: float) -> None:
        """Wait until one of the transfers under way is done, or for so long."""
        if self._loadings:
            self._loadings[0].wait(timeout_s)
        elif self._savings:
            self._savings[0].wait(timeout_s)
        self._loadings = [each for each in self._loadings if not each.is_done]

    def _load_each(self, loads: Sequence[BlockLoad], first: int, loading: Loading) -> None:
        for index in range(first, len(loads), NUM_LOADERS):
            if loading.is_wanted():
                loading.note(index, is_good=self._is_loaded(loads[index]))

    def _is_loaded(self, load: BlockLoad) -> bool:
        try:
            return all(self._fill(load, source) for source in load.sources)
        except Exception:  # a thread's edge: the rows are computed instead
            logger.exception("a block could not be loaded")
            return False

    def _fill(self, load: BlockLoad, source: RamSource | DiskSource) -> bool:
        if isinstance(source, RamSource):
            payload, first, end = self._ram.slot(source.slot), 0, self._kv.block_size
        else:
            assert self.disk is not None, "a source on disk came from there"
            data = self.disk.read(source, load.base_key, load.token_ids)
            if data is None:
                return False
            payload = torch.frombuffer(data, dtype=torch.uint8)
            first, end = source.piece.start, source.piece.end
        self._kv.import_rows(
            load.block_id,
            source.start,
            payload,
            payload_rows=end - first,
            skip=source.start - first,
            num_rows=source.end - source.start,
        )
        return True

    # ------------------------------------------------------------------ saves

    @property
    def is_saving(self) -> bool:
        """Whether a turn is on its way to the disk."""
        return bool(self._savings)

    def save(self, conversation_id: str, blocks: Sequence[HeldBlock], trail: Sequence[int]) -> None:
        """Write what of a turn is not on disk yet, soon; the blocks must be pinned until then."""
        saving = Saving(conversation_id, blocks, trail, time.monotonic() + SPREAD_S)
        self._savings.append(saving)
        self._saver.submit(self._save, saving)

    def take_saved(self) -> list[int]:
        """Blocks that need not be pinned any more, each as often as it was handed over."""
        done = [saving for saving in self._savings if saving.is_done]
        self._savings = [saving for saving in self._savings if not saving.is_done]
        return [block.block_id for saving in done for block in saving.blocks]

    def break_off(self, conversation_id: str | None) -> None:
        """Write nothing more of this chat, or of any: of a turn under way, what was written stays.

        For those who share the disk, before one of them removes the files of all: a turn that goes on
        being written would leave some behind that nobody owns.
        """
        self._after_saves(
            lambda disk: None,
            lambda saving: conversation_id in (None, saving.conversation_id),
        )

    def forget(self, conversation_id: str) -> int:
        """Remove from the disk what only this chat used; waits for it. Bytes freed."""
        freed = self._after_saves(
            lambda disk: disk.forget(conversation_id),
            lambda saving: saving.conversation_id == conversation_id,
        )
        return freed or 0

    def clear(self) -> int:
        """Remove everything from the disk; waits for it. Bytes freed."""
        return self._after_saves(lambda disk: disk.clear(), lambda saving: True) or 0

    def set_disk_budget(self, budget_bytes: int) -> None:
        """Change the most that the disk may hold; 0 removes all that is there."""
        disk = self.disk
        if disk is not None and budget_bytes > 0:
            disk.set_budget(budget_bytes)
        elif disk is not None:
            # A save that is under way would leave a file behind.
            self._after_saves(lambda disk: disk.set_budget(0), lambda saving: True)

    def set_computing(self, is_computing: bool) -> None:
        """Say whether tokens are computed now: then saving goes on slowly."""
        self._rows.set_hurried(is_hurried=not is_computing)

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is on disk, or for so long; whether it is."""
        self.set_computing(False)
        return not wait([self._saver.submit(lambda: None)], timeout_s).not_done

    def close(self, timeout_s: float) -> None:
        """Finish saves, for so long at the most, break loads off, and end the threads.

        A thread that hangs in the system is not waited for. What it works on stays until it returns.
        """
        for loading in self._loadings:
            loading.cancel()
        if not self.flush(timeout_s):
            logger.warning("not everything could be kept on disk in %.0f s", timeout_s)
            for saving in self._savings:
                saving.cancel()
        deadline = time.monotonic() + LAST_BLOCK_TIMEOUT_S
        under_way: list[Loading | Saving] = [*self._loadings, *self._savings]
        for each in under_way:
            each.wait(max(0.0, deadline - time.monotonic()))
        is_over = all(each.is_done for each in under_way)
        self._saver.shutdown(wait=is_over)
        self._loaders.shutdown(wait=is_over)

    def _after_saves(
        self, change: Callable[[DiskStore], T], is_useless: Callable[[Saving], bool]
    ) -> T | None:
        """Let the saver thread do something, behind the saves; None without a disk."""
        disk = self.disk
        if disk is None:
            return None
        self.set_computing(False)  # the engine waits for this
        for saving in self._savings:
            if is_useless(saving):
                saving.cancel()
        # Behind the saves: what they had written by then is removed too.
        return self._saver.submit(change, disk).result()

    def _save(self, saving: Saving) -> None:
        try:
            self._write(saving)
        except Exception:  # a thread's edge: a turn that is not kept is computed again
            logger.exception("a turn could not be kept on disk")
        finally:
            saving.end()

    def _write(self, saving: Saving) -> None:
        disk = self.disk
        if disk is None or not saving.is_wanted():
            return
        # First whose they are, then what they hold: a block that nobody owns would never be removed.
        rows = [(block.base_key, block.token_ids) for block in saving.blocks]
        num_saved = disk.claim(saving.conversation_id, rows)
        new = [
            block
            for block, count in zip(saving.blocks, num_saved, strict=True)
            if count < len(block.token_ids)
        ]
        for first in range(0, len(new), self._rows.num_at_once):
            some = new[first : first + self._rows.num_at_once]
            rest_s = max(0.0, saving.due - time.monotonic())
            self._rows.spread_s = rest_s * len(some) / (len(new) - first)
            if not saving.is_wanted():
                return
            if disk.write(some, self._rows) < len(some):
                break  # without a block those after it are of no use, and would not fit either
        disk.save_trail(saving.conversation_id, saving.trail)


def _give_way() -> None:
    """Let the threads that compute go before the calling one, where the system knows threads apart."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # it only takes longer then
            os.nice(SAVER_NICENESS)
