"""Keeps rounded weights on disk, so that a model is rounded once. Thread of the load.

    <cache_dir>/weights/<digest of all bytes of the model's weights, its fingerprint, and the type>.gguf

One GGUF file for each model and type, safe to delete at any time. It is written under another name and
renamed; its digest covers its table and all of its data and is proved before it is used. What is not
as it should be is made anew; what cannot be written is not kept; what was not used for two months goes
when another file is written.
"""

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from torch import Tensor

from inference.errors import ModelFileError
from inference.formats.gguf import GgufFile
from inference.formats.gguf_writer import header_bytes, stored_bytes, write_data
from inference.formats.weight_file import StoredTensor, WeightFile
from inference.formats.whole_digest import WeightFiles
from inference.model.progress import LoadReporter

logger = logging.getLogger(__name__)

FOLDER = "weights"
_DIGEST_KEY = "quire.digest"
_PART = ".part"
_PART_SECONDS = 3600.0  # a file that nobody finished is removed at this age
_KEPT_SECONDS = 60 * 86_400.0  # rounded weights that were not used for so long are removed
_FREE_SHARE = 0.9  # of the disk that one file may fill
_VERSION = b"2"  # 1 was named by the fingerprint alone, which looks at samples


@dataclass(frozen=True, slots=True)
class WeightCache:
    """Names the files that are kept for one model.

    Attributes:
        cache_dir: Where they are kept, and where digests are remembered.
        files: The model's weights, as they were before they were opened.
        fingerprint: Names headers and configuration: which of the bytes are which weights.
    """

    cache_dir: Path
    files: WeightFiles
    fingerprint: bytes

    def path(self, type_name: str, on_progress: Callable[[float], None]) -> Path:
        """Where the weights are kept that were rounded to a type.

        Reads all bytes of the model, once; see `WeightFiles.digest`.

        Raises:
            ModelFileError: The model's files changed meanwhile, or cannot be read.
        """
        whole = self.files.digest(self.cache_dir, on_progress)
        digest = hashlib.blake2b(whole, digest_size=16, person=b"quire-weights")
        digest.update(self.fingerprint + type_name.encode() + _VERSION)
        return self.cache_dir / FOLDER / f"{digest.hexdigest()}.gguf"


def open_cached(
    path: Path, tensors: Mapping[str, StoredTensor], *, num_threads: int
) -> GgufFile | None:
    """Open a file that is kept, if it is whole and holds these tensors; remove it if not."""
    if not os.path.isfile(path):
        return None
    try:
        file = GgufFile.read(path)
    except ModelFileError as error:
        logger.warning("kept weights cannot be used: %s", error)
        _remove(path)
        return None
    if _is_whole(file, tensors, num_threads):
        with contextlib.suppress(OSError):
            os.utime(path)
        return file
    logger.warning("kept weights are damaged and made anew")
    file.close()
    _remove(path)
    return None


def write_cached(
    path: Path, weights: WeightFile, source: WeightFiles, reporter: LoadReporter
) -> bool:
    """Write all tensors of a file; false if they cannot be kept.

    Raises:
        ModelFileError: What they were made from changed meanwhile; then nothing is kept.
    """
    tensors = weights.tensors
    size = sum(stored_bytes(tensor) for tensor in tensors.values())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_old(path.parent)
        if size > _FREE_SHARE * shutil.disk_usage(path.parent).free:
            logger.warning("weights are not kept: the disk has no room for %d bytes", size)
            return False
        handle, part = tempfile.mkstemp(suffix=_PART, dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                _write(file, weights, size, reporter)
            source.check_unchanged()
            os.replace(part, path)
        except BaseException:
            _remove(Path(part))
            raise
    except OSError as error:
        logger.warning("weights are not kept: %s", error.strerror or type(error).__name__)
        return False
    return True


def _write(file: BinaryIO, weights: WeightFile, size: int, reporter: LoadReporter) -> None:
    tensors, done, digests = weights.tensors, 0, []
    file.write(header_bytes(tensors, {_DIGEST_KEY: _digest(tensors, [])}))
    for name, tensor in tensors.items():
        reporter.begin_item(done, stored_bytes(tensor), size)
        data = weights.tensor_data(name)
        digests.append(_data_digest(data))
        write_data(file, data)
        weights.release(name)
        done += stored_bytes(tensor)
        reporter.advance(done, size)
    file.seek(0)  # the digest has the same length whatever it is
    file.write(header_bytes(tensors, {_DIGEST_KEY: _digest(tensors, digests)}))
    file.flush()
    os.fsync(file.fileno())


def _is_whole(file: GgufFile, tensors: Mapping[str, StoredTensor], num_threads: int) -> bool:
    if [_text(*item) for item in file.tensors.items()] != [
        _text(*item) for item in tensors.items()
    ]:
        return False

    def digest(name: str) -> bytes:
        value = _data_digest(file.tensor_data(name))
        file.release(name)
        return value

    with ThreadPoolExecutor(num_threads, thread_name_prefix="prove") as pool:
        digests = list(pool.map(digest, file.tensors))
    return file.metadata.get(_DIGEST_KEY) == _digest(tensors, digests)


def _data_digest(data: Tensor) -> bytes:
    return hashlib.blake2b(data.numpy().data, digest_size=32).digest()


def _digest(tensors: Mapping[str, StoredTensor], digests: Sequence[bytes]) -> str:
    """Of a whole file, from the digests of its tensors' data."""
    digest = hashlib.blake2b(digest_size=32, person=b"quire-weights")
    for name, tensor in tensors.items():
        digest.update(_text(name, tensor).encode())
    for each in digests:
        digest.update(each)
    return digest.hexdigest()


def _text(name: str, tensor: StoredTensor) -> str:
    return f"{name} {tensor.type_name} {tuple(tensor.shape)}\n"


def _remove_old(folder: Path) -> None:
    """Remove what nobody finished, and what nobody uses any more."""
    for suffix, seconds in ((_PART, _PART_SECONDS), (".gguf", _KEPT_SECONDS)):
        for path in folder.glob(f"*{suffix}"):
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime < time.time() - seconds:
                    path.unlink()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
