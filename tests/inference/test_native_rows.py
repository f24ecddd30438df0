"""Files with rows of blocks, written by the kernels: byte by byte what Python writes, whole or absent."""

import errno
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from ctypes import c_int32
from pathlib import Path

import numpy as np
import pytest
import torch

from inference.config import KvSchemeName
from inference.kernels.library import KernelError, Kernels, load_kernels
from inference.kernels.structures import RowFile as FileStructure
from inference.kernels.structures import RowPlane
from inference.kv_cache.block import ROOT_KEY
from inference.kv_cache.disk import claims
from inference.kv_cache.disk.format import SUM_BYTES, pack_sum
from inference.kv_cache.disk.row_source import RowFile
from inference.kv_cache.disk.store import DiskStore
from inference.kv_cache.kv_rows import KvRows
from inference.kv_cache.schemes import LayerGeometry, find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.kv_cache.tiers import HeldBlock

resource = pytest.importorskip("resource")  # needs POSIX

pytestmark = [
    pytest.mark.skipif(load_kernels() is None, reason="needs the kernels"),
]

P = 8
GEOMETRY = [LayerGeometry(2, 32), LayerGeometry(1, 64), LayerGeometry(2, 32)]
USED = 1_700_000_000.25
HURRY = c_int32(1)


def kernels() -> Kernels:
    found = load_kernels()
    assert found is not None
    return found


def filled(scheme: KvSchemeName = "fp16") -> KvTensors:
    kv = KvTensors(
        GEOMETRY,
        num_blocks=6,
        block_size=P,
        scheme=find_scheme(scheme, torch.float32),
        device=torch.device("cpu"),
    )
    random = np.random.default_rng(0)
    for plane in kv.host_planes():
        plane.numpy()[...] = random.integers(0, 256, plane.shape, dtype=np.uint8)
    return kv


def file_of(folder: Path, *, start: int = 0, end: int = P, name: str = "ab/piece.kv") -> RowFile:
    return RowFile(3, start, end, b"header", str(folder / "1.tmp"), str(folder / name), USED)


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("size", [0, 1, 7, 8, 15, 63, 64, 65, 127, 128, 1000, 4096, 70_001])
def test_checksum_is_that_of_zlib(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + 1, dtype=np.uint8)
    for first in (0, 1):  # aligned and not
        part = data[first : first + size]
        assert kernels().crc32(part.ctypes.data, size) == zlib.crc32(part.tobytes())


@pytest.mark.parametrize("scheme", ["fp16", "int8", "int4"])
@pytest.mark.parametrize(("start", "end"), [(0, P), (0, 1), (3, 5), (P - 1, P)])
def test_file_holds_header_rows_and_sum(
    tmp_path: Path, scheme: KvSchemeName, start: int, end: int
) -> None:
    kv = filled(scheme)
    file = file_of(tmp_path, start=start, end=end)
    assert KvRows(kv).write_files([file]) == [True]
    rows = kv.export_rows(3, start, end).numpy().tobytes()
    assert Path(file.path).read_bytes() == b"header" + rows + pack_sum(rows)
    assert names_in(tmp_path) == ["ab", "ab/piece.kv"]


@pytest.fixture
def closed_umask() -> Iterator[None]:
    before = os.umask(0o277)
    yield
    os.umask(before)


@pytest.mark.usefixtures("closed_umask")
def test_file_is_private_whatever_the_umask_and_has_its_time(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab").chmod(0o700)
    file = file_of(tmp_path)
    assert KvRows(filled()).write_files([file]) == [True]
    status = os.stat(file.path)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_mtime == pytest.approx(USED, abs=1e-5)


def test_new_folder_is_private(tmp_path: Path) -> None:
    assert KvRows(filled()).write_files([file_of(tmp_path)]) == [True]
    assert stat.S_IMODE((tmp_path / "ab").stat().st_mode) == 0o700


def test_file_takes_the_place_of_another(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab/piece.kv").write_bytes(b"before")
    assert KvRows(filled()).write_files([file_of(tmp_path)]) == [True]
    assert (tmp_path / "ab/piece.kv").read_bytes().startswith(b"header")


@pytest.mark.parametrize("fault", ["folder in its place", "no folder above", "name taken", "link"])
def test_file_that_cannot_be_written_is_absent_and_leaves_nothing(
    tmp_path: Path, fault: str
) -> None:
    name = "ab/piece.kv"
    if fault == "folder in its place":
        (tmp_path / name).mkdir(parents=True)
    elif fault == "no folder above":
        name = "ab/cd/piece.kv"
    elif fault == "name taken":
        (tmp_path / "1.tmp").write_bytes(b"mine")
    else:
        (tmp_path / "1.tmp").symlink_to(tmp_path / "elsewhere")
    before = names_in(tmp_path)
    assert KvRows(filled()).write_files([file_of(tmp_path, name=name)]) == [False]
    assert names_in(tmp_path) == before
    if fault == "name taken":
        assert (tmp_path / "1.tmp").read_bytes() == b"mine"


def test_file_that_can_be_written_in_part_only_leaves_nothing(tmp_path: Path) -> None:
    kv = filled()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (kv.block_bytes - 1, before[1]))
    try:
        assert KvRows(kv).write_files([file_of(tmp_path)]) == [False]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize(
    ("first_slot", "num_rows"), [(-1, 1), (0, 0), (0, 6 * P + 1), (6 * P, 1), (2**62, 1)]
)
def test_rows_that_there_are_not_are_refused(
    tmp_path: Path, first_slot: int, num_rows: int
) -> None:
    kv = filled()
    plane = kv.host_planes()[0]
    planes = (RowPlane * 1)(RowPlane(plane.data_ptr(), 1, 6 * P, plane.shape[-1]))
    file = FileStructure(
        temporary=os.fsencode(tmp_path / "1.tmp"),
        path=os.fsencode(tmp_path / "piece"),
        header=b"",
        first_slot=first_slot,
        num_rows=num_rows,
    )
    buffer = torch.empty(kv.block_bytes + 4, dtype=torch.uint8)
    with pytest.raises(KernelError):
        kernels().write_rows(
            planes, (FileStructure * 1)(file), buffer.data_ptr(), len(buffer), 0, HURRY
        )
    assert names_in(tmp_path) == []


def test_rows_that_the_buffer_does_not_hold_are_refused(tmp_path: Path) -> None:
    kv = filled()
    plane = kv.host_planes()[0]
    num_runs, row_bytes = plane.shape[0] * plane.shape[1], plane.shape[-1]
    planes = (RowPlane * 1)(RowPlane(plane.data_ptr(), num_runs, 6 * P, row_bytes))
    file = FileStructure(
        temporary=os.fsencode(tmp_path / "1.tmp"),
        path=os.fsencode(tmp_path / "piece"),
        header=b"",
        num_rows=P,
    )
    size = num_runs * P * row_bytes + SUM_BYTES
    buffer = torch.empty(size, dtype=torch.uint8)
    with pytest.raises(KernelError):
        kernels().write_rows(
            planes, (FileStructure * 1)(file), buffer.data_ptr(), size - 1, 0, HURRY
        )
    assert names_in(tmp_path) == []
    kernels().write_rows(planes, (FileStructure * 1)(file), buffer.data_ptr(), size, 0, HURRY)
    assert names_in(tmp_path) == ["piece"]


def claimed(folder: Path, kv: KvTensors) -> tuple[DiskStore, list[HeldBlock]]:
    """A store, and three blocks that a chat is about to keep there."""
    store = DiskStore(
        folder, namespace=b"m", block_size=P, row_layout=kv.row_layout, budget_bytes=10**9
    )
    store.open()
    blocks = [HeldBlock(number, ROOT_KEY, tuple(range(number, number + P))) for number in range(3)]
    store.claim("chat", [(block.base_key, block.token_ids) for block in blocks])
    return store, blocks


class OnlySome(KvRows):
    """Writes only some files itself."""

    def __init__(self, kv: KvTensors, wanted: Sequence[bool]) -> None:
        super().__init__(kv)
        self._wanted = list(wanted)

    def write_files(self, files: Sequence[RowFile]) -> Sequence[bool]:
        wanted = [self._wanted.pop(0) for _ in files]
        chosen = [file for file, is_wanted in zip(files, wanted, strict=True) if is_wanted]
        assert all(super().write_files(chosen)) if chosen else True
        return wanted


@pytest.mark.parametrize("wanted", [(True,) * 3, (False,) * 3, (True, False, True)])
def test_store_keeps_the_same_whoever_writes(tmp_path: Path, wanted: tuple[bool, ...]) -> None:
    kv = filled()
    store, blocks = claimed(tmp_path, kv)
    assert store.write(blocks, OnlySome(kv, wanted)) == 3
    assert store.stats().misses == {}
    for block in blocks:
        (source,) = store.cover(block.base_key, block.token_ids)
        payload = store.read(source, block.base_key, block.token_ids)
        assert payload is not None
        assert bytes(payload) == kv.export_rows(block.block_id, 0, P).numpy().tobytes()


def test_disk_that_fills_in_the_middle_is_told_and_rests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kv = filled()
    store, blocks = claimed(tmp_path, kv)

    def full(*args: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(claims, "write_file", full)
    assert store.write(blocks, OnlySome(kv, (True, False, False))) == 1
    assert "disk is full" in store.stats().problem
    assert store.stats().misses == {"no_space": 1}
    assert store.write(blocks[1:], KvRows(kv)) == 0  # for a minute nothing is tried
    assert store.stats().num_pieces == 1
