"""Tiers of a few small blocks with real tensors, files and threads, but without a model."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.chat_memory import ChatMemory
from inference.kv_cache.block import ROOT_KEY, BlockHash, hash_block
from inference.kv_cache.disk.store import DiskStore
from inference.kv_cache.host_memory import HostArena
from inference.kv_cache.manager import KvCacheManager
from inference.kv_cache.ram_tier import RamTier
from inference.kv_cache.schemes import LayerGeometry, find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.kv_cache.tiers import BlockLoad, HeldBlock
from inference.request import RequestId
from inference.sequence import Sequence as TokenSequence
from inference.transfers import Transfers

P = 8
NAMESPACE = b"small"
SMALL = (LayerGeometry(2, 16), LayerGeometry(1, 64))
WAIT_S = 30.0  # for what happens at once


class SmallMemory:
    """All tiers; `ram_slots` of RAM, and files under `root` if it is given."""

    def __init__(
        self,
        root: Path | None = None,
        *,
        num_blocks: int = 12,
        ram_slots: int = 6,
        disk_bytes: int = 2**30,
        geometry: Sequence[LayerGeometry] = SMALL,
    ) -> None:
        self.tensors = KvTensors(
            geometry,
            num_blocks=num_blocks,
            block_size=P,
            scheme=find_scheme("fp16", torch.float32),
            device=torch.device("cpu"),
        )
        self.arena = HostArena(self.tensors.block_bytes, ram_slots)
        self.ram = RamTier(ram_slots)
        self.disk = None if root is None else self._store(root, disk_bytes)
        self.transfers = Transfers(self.tensors, self.arena, self.disk)
        self.kv = KvCacheManager(
            num_blocks,
            P,
            namespace=NAMESPACE,
            mover=self.transfers,
            ram=self.ram,
            disk=self.disk,
        )
        self.memory = ChatMemory(
            self.kv, self.tensors, self.ram, self.arena, self.transfers, device="cpu"
        )

    def write(self, block_id: int, seed: int) -> bytes:
        """Fill a block with bytes of its own; gives them."""
        dice = torch.Generator().manual_seed(seed)
        size = self.tensors.block_bytes
        payload = torch.randint(0, 255, (size,), dtype=torch.uint8, generator=dice)
        self.tensors.import_rows(block_id, 0, payload, payload_rows=P, skip=0, num_rows=P)
        return payload.numpy().tobytes()

    def rows(self, block_id: int, end: int = P) -> bytes:
        """The first rows of a block, as they would be saved."""
        return self.tensors.export_rows(block_id, 0, end).numpy().tobytes()

    def held(self, token_ids: Sequence[int]) -> list[HeldBlock]:
        """Blocks 0, 1, ... as a chat with these tokens would hold them; each has bytes of its own."""
        blocks: list[HeldBlock] = []
        base = ROOT_KEY
        for index, start in enumerate(range(0, len(token_ids), P)):
            ids = tuple(token_ids[start : start + P])
            self.write(index, seed=index)
            blocks.append(HeldBlock(index, base, ids))
            base = self.key(base, ids)
        return blocks

    def from_disk(self, held: Sequence[HeldBlock], *, first_target: int) -> list[BlockLoad]:
        """Loads that bring saved blocks into other device blocks."""
        assert self.disk is not None
        return [
            BlockLoad(
                first_target + n,
                block.base_key,
                block.token_ids,
                self.disk.cover(block.base_key, block.token_ids),
            )
            for n, block in enumerate(held)
        ]

    def run(self, chat: str, token_ids: Sequence[int], *, on_disk: bool = True) -> None:
        """A whole turn that computes all its blocks anew and keeps them."""
        sequence = TokenSequence(RequestId(1), chat, list(token_ids))
        assert self.kv.grow(sequence.block_table, len(token_ids))
        for block_id in sequence.block_table:
            self.write(block_id, seed=block_id)
        sequence.num_computed = len(token_ids)
        self.memory.keep(sequence, on_disk=on_disk)
        self.kv.release(sequence.block_table)

    def close(self) -> None:
        self.memory.close()

    @staticmethod
    def key(base: BlockHash, ids: tuple[int, ...]) -> BlockHash:
        return hash_block(NAMESPACE, base, ids)

    def _store(self, root: Path, disk_bytes: int) -> DiskStore:
        store = DiskStore(
            root,
            namespace=NAMESPACE,
            block_size=P,
            row_layout=self.tensors.row_layout,
            budget_bytes=disk_bytes,
        )
        store.open()
        return store


class Gate:
    """Stands before a call on another thread until it is opened."""

    def __init__(self) -> None:
        self.calls = 0
        self._arrived = threading.Event()
        self._opened = threading.Event()

    def __call__(self) -> None:
        """Note that somebody is here, and wait."""
        self.calls += 1
        self._arrived.set()
        assert self._opened.wait(WAIT_S)

    def wait_for_somebody(self) -> None:
        assert self._arrived.wait(WAIT_S)

    def open(self) -> None:
        self._opened.set()


def gated(monkeypatch: pytest.MonkeyPatch, name: str) -> Gate:
    """Let calls of a method of the disk tier wait."""
    gate, method = Gate(), getattr(DiskStore, name)

    def wait_first(self: DiskStore, *args: Any) -> Any:
        gate()
        return method(self, *args)

    monkeypatch.setattr(DiskStore, name, wait_first)
    return gate
