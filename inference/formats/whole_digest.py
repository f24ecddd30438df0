"""Names a model's weights by all their bytes, and remembers the names. Any thread; no state.

The formats' fingerprints look at samples, and do not see a part that a broken download left empty. So
what outlives the process goes by this. Some GB take seconds to read, which only the first opening of
a file pays: then its digest stands in a small file, and holds while the file's stamp stays as it is.

    weights.json    BLAKE2b-16 of the rest, in hex | newline | list of [stamp, digest], latest first

The file may go or be damaged at any time: then the digests are worked out again. A change that leaves
the stamp as it was cannot be seen, so what was changed a moment ago is not remembered.
"""

import contextlib
import hashlib
import json
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from pathlib import Path

from inference.errors import ModelFileError
from inference.regular_file import open_regular

logger = logging.getLogger(__name__)

PIECE_BYTES = 2**23
READ_BYTES = 2**20
MAX_REMEMBERED = 64
SLOW_BYTES = 2**28
"""Reading more may take over a second on a slow disk, and is reported."""

SETTLED_NS = 2 * 10**9
"""The coarsest times of a file system: two changes may be so close and have the same time."""

_MEMORY_NAME = "weights.json"
_MAX_MEMORY_BYTES = 2**20
_CHANGED = "The file changed while it was opened."
_HINT = "Wait until it is downloaded or copied, and open it again."


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells that a file is as it was, as far as the system knows.

    Attributes:
        path: Without links.
        size: Bytes.
        mtime_ns: Last change of its bytes; some downloads set it to that of the server.
        ctime_ns: Last change of anything, or on Windows when it was made.
        inode: Its number in the file system.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """The files of a model's weights, as they were before it was loaded.

    Attributes:
        path: A file, or a folder of safetensors.
        stamps: One per file; none if there was nothing.
    """

    path: Path
    stamps: tuple[Stamp, ...]

    @classmethod
    def seen_at(cls, path: Path) -> "WeightFiles":
        """Look at a model before it is loaded; a file that cannot be looked at is left out."""
        files = sorted(path.glob("*.safetensors")) if os.path.isdir(path) else [path]
        return cls(path, tuple(stamp for stamp in map(_stamp, files) if stamp is not None))

    def digest(self, folder: Path, on_progress: Callable[[float], None] | None = None) -> bytes:
        """Name the weights by all their bytes; the same in every process, 32 bytes.

        Args:
            folder: Remembers the digest of each file.
            on_progress: Told the share that is read, on this thread, if it may take over a second;
                may raise to break it off.

        Raises:
            ModelFileError: A file cannot be read, or is not the one that was loaded.
        """
        began_ns = time.time_ns()
        self.check_unchanged()
        known = _recall(folder)
        new = [stamp for stamp in self.stamps if stamp not in known]
        found = {stamp: known[stamp] for stamp in self.stamps if stamp in known}
        num_bytes = sum(stamp.size for stamp in new)
        done = 0
        for stamp in new:
            whole = hashlib.blake2b(digest_size=32, person=b"quire-whole-1")
            with contextlib.closing(_piece_digests(stamp)) as pieces:
                for size, digest in pieces:
                    whole.update(digest)
                    done += size
                    if on_progress is not None and num_bytes >= SLOW_BYTES:
                        on_progress(done / num_bytes)
            found[stamp] = whole.digest()
        if new:
            self.check_unchanged()
            settled = {stamp: found[stamp] for stamp in new if _is_settled(stamp, began_ns)}
            _remember(folder, settled)
        return hashlib.blake2b(b"".join(found[s] for s in self.stamps), digest_size=32).digest()

    def check_unchanged(self) -> None:
        """Make sure that the files are those that were seen.

        Raises:
            ModelFileError: They are not, or one is gone.
        """
        if self.seen_at(self.path) != self:
            raise ModelFileError(self.path, _CHANGED, hint=_HINT)


def _stamp(file: Path) -> Stamp | None:
    try:
        real = os.path.realpath(file)
        status = os.stat(real)
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return Stamp(real, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


def _is_settled(stamp: Stamp, now_ns: int) -> bool:
    return now_ns - max(stamp.mtime_ns, stamp.ctime_ns) >= SETTLED_NS


def _piece_digests(stamp: Stamp) -> Generator[tuple[int, bytes]]:
    """Length and digest of each piece of a file in order; all cores work on them.

    Raises:
        ModelFileError: The file cannot be read, or is shorter than it was.
    """
    starts = range(0, stamp.size, PIECE_BYTES)
    sizes = [min(PIECE_BYTES, stamp.size - start) for start in starts]
    # hashlib lets go of the interpreter's lock.
    pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="digest")
    try:
        digests = pool.map(lambda start, size: _piece_digest(stamp, start, size), starts, sizes)
        yield from zip(sizes, digests, strict=True)
    except OSError as error:
        reason = f"The file cannot be read: {error.strerror or error}."
        raise ModelFileError(stamp.path, reason) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _piece_digest(stamp: Stamp, start: int, size: int) -> bytes:
    digest = hashlib.blake2b(digest_size=32)
    buffer = memoryview(bytearray(min(size, READ_BYTES)))
    # Not mapped: a file that is cut meanwhile would end the process.
    with open(stamp.path, "rb", buffering=0) as file:
        file.seek(start)
        while size:
            count = file.readinto(buffer[: min(size, READ_BYTES)])
            if not count:
                raise ModelFileError(stamp.path, _CHANGED, hint=_HINT)
            digest.update(buffer[:count])
            size -= count
    return digest.digest()


def _recall(folder: Path) -> dict[Stamp, bytes]:
    """Digests that were remembered, latest first; none if the file is gone or damaged."""
    try:
        with open_regular(folder / _MEMORY_NAME) as file:
            checksum, _, body = file.read(_MAX_MEMORY_BYTES).partition(b"\n")
        if checksum != _checksum(body):
            return {}
        return {Stamp(*stamp): bytes.fromhex(digest) for stamp, digest in json.loads(body)}
    except (OSError, ValueError, TypeError, RecursionError):
        return {}


def _remember(folder: Path, found: dict[Stamp, bytes]) -> None:
    """Note digests; if that fails, they are worked out again another time."""
    if not found:
        return
    paths = {stamp.path for stamp in found}
    # Read again: another process may have remembered something meanwhile.
    kept = {stamp: digest for stamp, digest in _recall(folder).items() if stamp.path not in paths}
    entries = [(astuple(stamp), digest.hex()) for stamp, digest in (found | kept).items()]
    body = json.dumps(entries[:MAX_REMEMBERED]).encode()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=folder, prefix="weights-", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_checksum(body) + b"\n" + body)
            os.replace(name, folder / _MEMORY_NAME)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        logger.warning("the digest of the weights could not be remembered: %s", error)


def _checksum(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).hexdigest().encode()
