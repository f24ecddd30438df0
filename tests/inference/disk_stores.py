"""Stores of the disk tier for tests: blocks of 32 rows of 4 bytes that tell the text before them."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from inference.kv_cache.block import ROOT_KEY, BlockHash, HashBlock, hash_block
from inference.kv_cache.disk.format import SUM_BYTES, header_bytes
from inference.kv_cache.disk.row_source import RowFile
from inference.kv_cache.disk.store import DiskStore
from inference.kv_cache.disk.trail import Maker
from inference.kv_cache.tiers import HeldBlock

NAMESPACE = b"model"
P = 32
ROW = 4  # bytes
LAYOUT = ((1, ROW),)


def make_store(
    root: Path,
    *,
    namespace: bytes = NAMESPACE,
    budget: int = 10**9,
    maker: Maker | None = None,
    hash_block: HashBlock = hash_block,
    clock: Callable[[], float] = time.time,
) -> DiskStore:
    store = DiskStore(
        root,
        namespace=namespace,
        block_size=P,
        row_layout=LAYOUT,
        budget_bytes=budget,
        maker=maker,
        hash_block=hash_block,
        clock=clock,
    )
    store.open()
    return store


def rows(ids: Sequence[int], start: int = 0) -> bytes:
    """Rows that tell all the text before them, as keys and values do."""
    return b"".join(
        hash_block(b"", ROOT_KEY, ids[: row + 1])[:ROW] for row in range(start, len(ids))
    )


def frame_bytes(end: int) -> int:
    """What a piece whose last row is end - 1 has beside its rows."""
    return header_bytes(end, len(NAMESPACE), LAYOUT) + SUM_BYTES


class GivenRows:
    """The rows of one block from `start` on, as a `RowSource` that leaves the writing to the store."""

    def __init__(self, payload: bytes, start: int = 0) -> None:
        self._payload = payload
        self._start = start

    def copy_out(self, block_id: int, start: int, end: int) -> bytes:
        assert start == self._start, f"rows from {start} on"
        return self._payload

    def write_files(self, files: Sequence[RowFile]) -> list[bool]:
        return [False] * len(files)


def write(
    store: DiskStore, base: BlockHash, ids: Sequence[int], start: int, payload: bytes
) -> bool:
    """Write the rows of one block, of which those before `start` are on disk already."""
    return store.write([HeldBlock(0, base, tuple(ids))], GivenRows(payload, start)) == 1


def save(store: DiskStore, chat: str, ids: Sequence[int], base: BlockHash = ROOT_KEY) -> None:
    (start,) = store.claim(chat, [(base, tuple(ids))])
    if start < len(ids):
        assert write(store, base, ids, start, rows(ids, start))


def load(store: DiskStore, ids: Sequence[int], base: BlockHash = ROOT_KEY) -> bytes:
    """The rows that can be had, put together as a loader does."""
    found = b""
    for source in store.cover(base, ids):
        payload = store.read(source, base, ids)
        if payload is None:
            break
        first = source.piece.start
        found += bytes(payload[(source.start - first) * ROW : (source.end - first) * ROW])
    return found


def key_of(ids: Sequence[int], base: BlockHash = ROOT_KEY) -> BlockHash:
    return hash_block(NAMESPACE, base, ids)


def piece_files(root: Path) -> list[Path]:
    return sorted(root.rglob("*.kv"))


def all_files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def save_chain(store: DiskStore, chat: str, ids: Sequence[int]) -> list[bool]:
    """Save a whole chat as at the end of its turn; per block whether it is saved."""
    blocks: list[tuple[BlockHash, tuple[int, ...]]] = []
    base = ROOT_KEY
    for at in range(0, len(ids), P):
        block = tuple(ids[at : at + P])
        blocks.append((base, block))
        base = key_of(block, base)
    saved = []
    for (base, block), start in zip(blocks, store.claim(chat, blocks), strict=True):
        if start:  # as it may have gone meanwhile
            start = store.num_saved(base, block)
        payload = rows(block, start)
        saved.append(start == len(block) or write(store, base, block, start, payload))
    store.save_trail(chat, ids)
    return saved


def num_saved(store: DiskStore, ids: Sequence[int]) -> int:
    """How many first tokens of a chat can be read again."""
    base, found = ROOT_KEY, 0
    for at in range(0, len(ids), P):
        block = tuple(ids[at : at + P])
        got = load(store, block, base)
        assert got == rows(block)[: len(got)]
        found += len(got) // ROW
        if len(got) < len(block) * ROW:
            break
        base = key_of(block, base)
    return found


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
