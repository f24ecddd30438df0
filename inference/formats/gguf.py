"""Reads GGUF files, version 2 and 3, little endian, without copying the weights. Any thread.

    "GGUF"  version u32 | number of tensors u64 | number of metadata entries u64
    metadata: key string, type u32, value          (strings: length u64, then UTF-8)
    tensor table: name string, number of dimensions u32, sizes u64 (innermost first), type u32,
                  offset u64 from the start of the data
    padding up to the alignment, then the data of the tensors

Nothing that the file says is believed: every count, length, type and offset is checked against the
length of the file before memory is taken. Source: ggml-org/ggml, docs/gguf.md.
"""

import hashlib
import logging
import mmap
import os
import time
from pathlib import Path

from torch import Tensor

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.byte_cursor import ByteCursor
from inference.formats.file_kind import describe_foreign_file
from inference.formats.gguf_tensor_table import read_tensor_table
from inference.formats.gguf_types import GgufTensor, GgufValue
from inference.formats.gguf_values import MetadataReader
from inference.formats.weight_file import mapped_bytes, release_pages
from inference.regular_file import open_regular

logger = logging.getLogger(__name__)

MAGIC = b"GGUF"
MAX_METADATA_ENTRIES = 2**16
MAX_TENSORS = 2**17
MAX_ALIGNMENT = 2**20
SAMPLE_BYTES = 256


class GgufFile:
    """An open GGUF file: its metadata, and its tensors where they lie; a `WeightFile`.

    The file stays mapped until `close`, or until the last tensor made by `tensor_data` is gone.

    Attributes:
        path: Where the file is.
        metadata: Every entry of the file, in its order.
        tensors: By name, in the file's order.
    """

    def __init__(
        self,
        path: Path,
        mapping: mmap.mmap,
        metadata: dict[str, GgufValue],
        tensors: dict[str, GgufTensor],
        *,
        table_end: int,
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._mapping: mmap.mmap | None = mapping
        self._table_end = table_end

    @classmethod
    def read(cls, path: Path | str) -> "GgufFile":
        """Map a file and read its metadata and tensor table.

        Raises:
            ModelFileError: It is not a sound GGUF file; the reason names field and offset.
            UnsupportedModelError: It is sound, but of a version or weight type not known here.
        """
        path = Path(path)
        started = time.perf_counter()
        mapping = _map_file(path)
        try:
            cursor = ByteCursor(mapping, path)
            num_tensors, num_entries = _read_header(cursor, path)
            metadata = MetadataReader(cursor).read_all(num_entries)
            _refuse_split_file(metadata, path)
            tensors = read_tensor_table(cursor, num_tensors, _alignment(metadata, cursor), path)
        except BaseException:
            mapping.close()
            raise
        logger.info(
            "read %d metadata entries and %d tensors in %.0f ms",
            len(metadata),
            len(tensors),
            1000 * (time.perf_counter() - started),
        )
        return cls(path, mapping, metadata, tensors, table_end=cursor.position)

    def tensor_data(self, name: str) -> Tensor:
        """Give the bytes of one tensor as they lie in the file.

        Returns:
            (num_bytes,) uint8 on the CPU, sharing memory with the mapped file. NOTE: the mapping
            is read-only; writing to the tensor would end the process.
        """
        tensor = self.tensors[name]
        if self._mapping is None:
            raise ValueError("the file is closed")
        return mapped_bytes(self._mapping, tensor.offset, tensor.num_bytes)

    def release(self, name: str) -> None:
        """Let the system take back the pages of one tensor; reading it again reads the file again."""
        tensor = self.tensors[name]
        if self._mapping is not None:
            release_pages(self._mapping, tensor.offset, tensor.num_bytes)

    def fingerprint(self) -> bytes:
        """Name these weights: a digest of metadata, tensor table, size, and samples of each tensor.

        Cheap (a few ms), the same in every process; 32 bytes.
        """
        if self._mapping is None:
            raise ValueError("the file is closed")
        digest = hashlib.blake2b(digest_size=32, person=b"quire-gguf-1")
        digest.update(len(self._mapping).to_bytes(8, "little"))
        digest.update(self._mapping[: self._table_end])
        for tensor in self.tensors.values():
            for start in _sample_starts(tensor.offset, tensor.num_bytes):
                digest.update(self._mapping[start : start + SAMPLE_BYTES])
        return digest.digest()

    def close(self) -> None:
        """Drop the mapping; tensors of `tensor_data` that still exist keep it until they go."""
        mapping, self._mapping = self._mapping, None
        if mapping is not None:
            try:
                mapping.close()
            except BufferError:
                logger.debug("tensors still use the mapping of the file")

    def __enter__(self) -> "GgufFile":
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()


def _sample_starts(offset: int, num_bytes: int) -> tuple[int, int, int]:
    """Start, middle and end of a tensor's data; short tensors are read more than once."""
    last = offset + max(0, num_bytes - SAMPLE_BYTES)
    return offset, (offset + last) // 2, last


def _map_file(path: Path) -> mmap.mmap:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            foreign = describe_foreign_file(file.read(512), size, magic=MAGIC)
            if foreign is not None:
                raise ModelFileError(path, foreign.reason, hint=foreign.hint)
            # Not ACCESS_COPY: on Windows a copy-on-write mapping of a 5 GB file takes 5 GB of commit.
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(
            path,
            f"The file cannot be read: {error.strerror or error}.",
            hint="Check where it is and whether you may read it, or choose another model.",
        ) from error


def _read_header(cursor: ByteCursor, path: Path) -> tuple[int, int]:
    cursor.raw(len(MAGIC), "the magic number")
    version = cursor.u32("the version")
    if version not in (2, 3):
        if version & 0xFFFF == 0 and version:
            problem = "is written in big-endian byte order"
        else:
            problem = f"has GGUF version {version}"
        raise UnsupportedModelError(
            path,
            f"The file {problem}; Quire reads versions 2 and 3 in little-endian order.",
            hint="Look for a newer conversion of the model.",
        )
    num_tensors = cursor.u64("the number of tensors")
    num_entries = cursor.u64("the number of metadata entries")
    # A tensor takes at least 24 bytes of the table (name length, one size, type, offset).
    for count, limit, least, field in (
        (num_tensors, MAX_TENSORS, 24, "the number of tensors"),
        (num_entries, MAX_METADATA_ENTRIES, 13, "the number of metadata entries"),
    ):
        if count > limit:
            raise cursor.fail(field, f"is {count:,}; at most {limit:,} are possible")
        cursor.need(count * least, f"a table for {count:,} entries")
    return num_tensors, num_entries


def _alignment(metadata: dict[str, GgufValue], cursor: ByteCursor) -> int:
    alignment = metadata.get("general.alignment", 32)
    if (
        not isinstance(alignment, int)
        or isinstance(alignment, bool)
        or not 1 <= alignment <= MAX_ALIGNMENT
        or alignment & (alignment - 1)
    ):
        raise cursor.fail(
            "metadata 'general.alignment'",
            f"must be a power of two up to {MAX_ALIGNMENT:,}, not {str(alignment)[:40]}",
        )
    return alignment


def _refuse_split_file(metadata: dict[str, GgufValue], path: Path) -> None:
    count = metadata.get("split.count", 0)
    if isinstance(count, int) and count > 1:
        raise UnsupportedModelError(
            path,
            f"The model is split into {count} files, which Quire cannot open yet.",
            hint="Join the parts with llama-gguf-split --merge, or download one whole file.",
        )
