"""The disk tier: what is written is found again, each row once."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from inference.kv_cache.block import ROOT_KEY, BlockHash, HashBlock, hash_block
from inference.kv_cache.disk.format import header_bytes
from inference.kv_cache.disk.store import DiskStore
from inference.kv_cache.tiers import DiskSource, Piece

NAMESPACE = b"model"
P = 32
ROW = 4  # bytes


def make_store(
    root: Path,
    *,
    namespace: bytes = NAMESPACE,
    budget: int = 10**9,
    hash_block: HashBlock = hash_block,
    clock: Callable[[], float] = time.time,
) -> DiskStore:
    store = DiskStore(
        root,
        namespace=namespace,
        block_size=P,
        bytes_per_token=ROW,
        budget_bytes=budget,
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


def save(store: DiskStore, chat: str, ids: Sequence[int], base: BlockHash = ROOT_KEY) -> None:
    store.claim(chat, [(base, tuple(ids))])
    start = store.num_saved(base, ids)
    if start < len(ids):
        assert store.write(base, ids, start, rows(ids, start))


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


def test_a_block_written_is_read_again_also_by_another_store(tmp_path):
    ids = range(100, 100 + P)
    save(make_store(tmp_path), "chat", ids)
    store = make_store(tmp_path)
    assert store.cover(ROOT_KEY, ids) == (DiskSource(Piece(key_of(ids), 0, P), 0, P),)
    assert load(store, ids) == rows(ids)
    assert store.stats().misses == {}
    assert store.stats().num_pieces == 1


def test_a_block_of_another_base_is_not_found(tmp_path):
    store = make_store(tmp_path)
    ids = range(P)
    save(store, "chat", ids)
    assert store.cover(BlockHash(b"other"), ids) == ()
    assert store.cover(ROOT_KEY, range(1, P + 1)) == ()


@pytest.mark.parametrize("reopened", [False, True])
def test_a_block_written_in_two_turns_is_two_pieces(tmp_path, reopened):
    store = make_store(tmp_path)
    ids = range(P)
    save(store, "chat", ids[:20])
    save(store, "chat", ids)
    if reopened:
        store = make_store(tmp_path)
    first, second = Piece(key_of(ids[:20]), 0, 20), Piece(key_of(ids), 20, P)
    assert store.cover(ROOT_KEY, ids) == (DiskSource(first, 0, 20), DiskSource(second, 20, P))
    assert load(store, ids) == rows(ids)
    # Fewer rows than the pieces have: as many as are wanted.
    assert store.cover(ROOT_KEY, ids[:25]) == (
        DiskSource(first, 0, 20),
        DiskSource(second, 20, 25),
    )
    assert load(store, ids[:7]) == rows(ids[:7])


@pytest.mark.parametrize("reopened", [False, True])
def test_a_text_that_parts_inside_a_piece_uses_its_first_rows(tmp_path, reopened):
    store = make_store(tmp_path)
    save(store, "chat", range(P))
    if reopened:
        store = make_store(tmp_path)
    other = [*range(12), *range(500, 510)]
    assert store.num_saved(ROOT_KEY, other) == 12
    before = store.stats().written_bytes
    save(store, "other chat", other)
    journal = 2 * 20  # the piece that is shared and the new one
    assert store.stats().written_bytes - before == journal + header_bytes(22) + 10 * ROW
    assert load(store, other) == rows(other)
    assert load(store, range(P)) == rows(range(P))
    assert [path.name.split("-")[1:3] for path in piece_files(tmp_path)].count(["12", "22"]) == 1
