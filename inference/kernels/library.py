"""The CPU kernels in C++, called through ctypes. Any thread.

Standard library only, as `run.py` loads the kernels with whichever Python it is started by.

The library is built when Quire is installed (packaging/build_kernels.py) and may be missing: then
everything works with torch alone. The environment variable QUIRE_KERNELS says otherwise:
`off` for no kernels, or the name of an instruction set (`avx512vnni`, `avxvnni`, `avx2`, `neon`,
`portable`) to use that one. QUIRE_KERNELS_LIBRARY is the path of another build, for tests with
sanitizers. ctypes lets go of the interpreter lock during each call.
"""

import ctypes
import os
import struct
import sys
import weakref
from collections.abc import Sequence
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int32, c_int64, c_uint32, c_void_p
from functools import cache
from pathlib import Path

from inference.kernels.structures import (
    ALL_STRUCTURES,
    Filters,
    Kv,
    Matrix,
    MatrixType,
    Model,
    RowFile,
    RowPlane,
    Step,
)

ENVIRONMENT_VARIABLE = "QUIRE_KERNELS"
PATH_VARIABLE = "QUIRE_KERNELS_LIBRARY"
ABI_VERSION = 11
ALIGNMENT = 64  # of packed data, in bytes
MAX_HEAD_DIM = 1024  # kMaxHeadDim of src/step.h
NOT_FINITE = -4  # what `Kernels.likeliest` and `draw` give for logits that are not numbers
CANCELLED = -3  # what `Kernels.forward` gives for a step that was told to stop

_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
_AGAIN = "start run.py, or install Quire again"
LIBRARY_PATH = Path(__file__).with_name(f"quire_kernels{_SUFFIX}")


class KernelError(RuntimeError):
    """A call was refused: a size, type or pointer that cannot be, or no memory."""


class Team:
    """Threads that share the work of the calls they are given to, one call at a time.

    Attributes:
        size: Threads, the caller's among them.
        handle: For the calls of `Kernels`.
    """

    def __init__(self, library: ctypes.CDLL, num_threads: int) -> None:
        """Start the threads; they sleep until a call.

        Raises:
            KernelError: There can be no such team.
        """
        handle = library.qk_team_new(num_threads)
        if not handle:
            raise KernelError(f"no team of {num_threads} threads could be made")
        self.handle: int = handle
        self.size = num_threads
        self._finalizer = weakref.finalize(self, library.qk_team_free, handle)

    def close(self) -> None:
        """End the threads; not while a call uses them. Also done when nobody holds the team."""
        self._finalizer()
        self.handle = 0


class Kernels:
    """The functions of one loaded library. Addresses are whole numbers (`array.ctypes.data`)."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Take a library whose version has been checked."""
        self._library = library
        self.panel_rows: int = library.qk_panel_rows()

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        name: bytes = self._library.qk_isa()
        return name.decode()

    def set_isa(self, name: str) -> bool:
        """Use another instruction set, if this processor has it. Not while a call runs."""
        return bool(self._library.qk_set_isa(name.encode()) == 0)

    def new_team(self, num_threads: int) -> Team:
        """Start a team.

        Raises:
            KernelError: There can be no such team.
        """
        return Team(self._library, num_threads)

    def packed_bytes(self, kind: MatrixType, num_rows: int, num_columns: int) -> int:
        """Bytes of a packed matrix; 0 if the type has no matrix of this size."""
        return int(self._library.qk_packed_bytes(kind, num_rows, num_columns))

    def pack(
        self,
        matrix: Matrix,
        first_row: int,
        row_addresses: "Sequence[int] | ctypes.Array[c_void_p]",
    ) -> None:
        """Pack rows from `first_row` on into the matrix's memory; threads may share a matrix.

        Args:
            matrix: Its data has `packed_bytes`, aligned to `ALIGNMENT`.
            first_row: A multiple of `panel_rows`.
            row_addresses: Where each row lies, as in the file. A multiple of `panel_rows` of them,
                unless they reach the matrix's end.

        Raises:
            KernelError: A size that cannot be.
        """
        rows = row_addresses
        if not isinstance(rows, ctypes.Array):
            rows = (c_void_p * len(rows))(*rows)
        _check(
            self._library.qk_pack(
                matrix.type,
                matrix.num_rows,
                matrix.num_columns,
                matrix.data,
                first_row,
                len(rows),
                ctypes.addressof(rows),
            )
        )

    def unpack_row(self, matrix: Matrix, row: int, out: int) -> None:
        """Write one row as float32 to the address `out`.

        Raises:
            KernelError: There is no such row.
        """
        _check(self._library.qk_unpack_row(byref(matrix), row, out))

    def matmul(
        self, team: Team, matrix: Matrix, x: int, num_x: int, x_stride: int, y: int, y_stride: int
    ) -> None:
        """Compute y = x W^T in float32; x (num_x, columns), y (num_x, rows), strides in floats.

        Raises:
            KernelError: A size that cannot be, or no memory.
        """
        _check(self._library.qk_matmul(team.handle, byref(matrix), x, num_x, x_stride, y, y_stride))

    def forward(self, team: Team, model: Model, kv: Kv, step: Step) -> bool:
        """Compute a step; false if it was told to stop.

        Raises:
            KernelError: A size that cannot be, or no memory.
        """
        status = self._library.qk_forward(team.handle, byref(model), byref(kv), byref(step))
        if status == CANCELLED:
            return False
        _check(status)
        return True

    def likeliest(self, logits: int, size: int, count: int, ids: int, capacity: int) -> int:
        """Find tokens that include the `count` highest of `size` logits and all equals of the lowest of those.

        Args:
            logits: float32.
            size: V.
            count: At least 1, below V.
            ids: int32, where the tokens go, in their order.
            capacity: How many there is room for; of others nothing is written.

        Returns:
            How many there are; `NOT_FINITE` if a logit is NaN or infinite.

        Raises:
            KernelError: A size that cannot be, or no memory.
        """
        found: int = self._library.qk_likeliest(logits, size, count, capacity, ids)
        if found < 0 and found != NOT_FINITE:
            _check(found)
        return found

    def surest(self, logits: int, size: int) -> tuple[int, float]:
        """Find the highest of `size` logits, of equals the lowest id, and its probability in their softmax.

        Args:
            logits: float32.
            size: V, at least 1.

        Returns:
            The token and its probability; `NOT_FINITE` and 0 if a logit is NaN or infinite.

        Raises:
            KernelError: A size that cannot be, or no memory.
        """
        probability = c_float(0.0)
        token_id: int = self._library.qk_surest(logits, size, byref(probability))
        if token_id < 0 and token_id != NOT_FINITE:
            _check(token_id)
        return token_id, probability.value

    def draw(self, logits: int, size: int, filters: Filters, number: float) -> int:
        """Draw a token of the likeliest; of equals the lower ids rank higher.

        Args:
            logits: float32.
            size: V.
            filters: What may be drawn; top_k is at least 1, below V.
            number: Where in the distribution of that; from 0 on, below 1.

        Returns:
            The token; `NOT_FINITE` if a logit is NaN or infinite.

        Raises:
            KernelError: Numbers that cannot be, or no memory.
        """
        token_id: int = self._library.qk_draw(logits, size, byref(filters), number)
        if token_id < 0 and token_id != NOT_FINITE:
            _check(token_id)
        return token_id

    def crc32(self, data: int, size: int) -> int:
        """The checksum of so many bytes, as zlib's."""
        return int(self._library.qk_crc32(data, size))

    def write_rows(
        self,
        planes: "ctypes.Array[RowPlane]",
        files: "ctypes.Array[RowFile]",
        buffer: int,
        size: int,
        spread_us: int,
        is_hurried: c_int32,
    ) -> None:
        """Write files with the rows of slots; each says then whether it is there.

        Args:
            planes: The memory of all slots.
            files: Their headers come before the rows, and the rows' checksum behind them.
            buffer: Where the rows of one after the other lie meanwhile.
            size: Its bytes: for the rows of any of them, and 4 more.
            spread_us: The time for all of them; each is begun in a pause of the teams if there is one
                soon enough.
            is_hurried: While it is not 0, and others may change it, nothing is waited for.

        Raises:
            KernelError: A size or pointer that cannot be.
        """
        _check(
            self._library.qk_write_rows(
                planes, len(planes), files, len(files), buffer, size, spread_us, byref(is_hurried)
            )
        )


def load_kernels() -> Kernels | None:
    """The kernels of this machine, the same each time; None if there are none (`why_no_kernels`)."""
    found = _load()
    return None if isinstance(found, str) else found


def why_no_kernels() -> str:
    """Why `load_kernels` gives None, for people; empty if it does not."""
    found = _load()
    return found if isinstance(found, str) else ""


@cache
def _load() -> Kernels | str:
    wanted = os.environ.get(ENVIRONMENT_VARIABLE, "")
    if wanted == "off":
        return f"{ENVIRONMENT_VARIABLE} is off: unset it to use the kernels"
    return open_library(Path(os.environ.get(PATH_VARIABLE, LIBRARY_PATH)), wanted)


def open_library(path: Path, isa: str = "") -> Kernels | str:
    """Load one library and check that it is of this version.

    Args:
        path: The file.
        isa: The instruction set to use; empty for the best.

    Returns:
        The kernels, or why they cannot be used.
    """
    if not path.exists():
        return f"the kernels were not built: install a C++ compiler, and then {_AGAIN}"
    if _is_cut(path):
        return f"the kernels' file is damaged: {_AGAIN}"
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return f"the kernels cannot be loaded ({error}): {_AGAIN}"
    try:
        _declare(library)
    except AttributeError as error:
        return f"the kernels are of another version ({error}): {_AGAIN}"
    sizes = tuple(library.qk_struct_bytes(index) for index in range(len(ALL_STRUCTURES)))
    if library.qk_abi_version() != ABI_VERSION or sizes != tuple(
        map(ctypes.sizeof, ALL_STRUCTURES)
    ):
        return f"the kernels are of another version: {_AGAIN}"
    kernels = Kernels(library)
    if isa and not kernels.set_isa(isa):
        return f"{ENVIRONMENT_VARIABLE} is {isa}, which this processor does not have: unset it"
    return kernels


def _is_cut(path: Path) -> bool:
    """Whether an ELF file ends too early: to load such a one would end the process."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
        size = path.stat().st_size
    except OSError:
        return False  # loading it will say what is wrong
    if not head.startswith(b"\x7fELF\x02\x01"):  # 64 bits, little endian
        return False
    if len(head) < 64:
        return True
    # The table of sections is the last thing in the file.
    (offset,) = struct.unpack_from("<Q", head, 0x28)
    entry_bytes, num_entries = struct.unpack_from("<HH", head, 0x3A)
    return size < int(offset) + int(entry_bytes) * int(num_entries)


def _declare(library: ctypes.CDLL) -> None:
    """Say what the functions take and give.

    Raises:
        AttributeError: The library lacks one.
    """
    matrix = POINTER(Matrix)
    address = c_void_p
    functions: dict[str, tuple[object, list[object]]] = {
        "qk_abi_version": (c_int32, []),
        "qk_struct_bytes": (c_int64, [c_int32]),
        "qk_isa": (c_char_p, []),
        "qk_set_isa": (c_int32, [c_char_p]),
        "qk_team_new": (c_void_p, [c_int32]),
        "qk_team_free": (None, [c_void_p]),
        "qk_team_size": (c_int32, [c_void_p]),
        "qk_packed_bytes": (c_int64, [c_int32, c_int32, c_int32]),
        "qk_panel_rows": (c_int32, []),
        "qk_pack": (c_int32, [c_int32, c_int32, c_int32, address, c_int32, c_int32, address]),
        "qk_unpack_row": (c_int32, [matrix, c_int32, address]),
        "qk_matmul": (c_int32, [address, matrix, address, c_int32, c_int64, address, c_int64]),
        "qk_likeliest": (c_int32, [address, c_int32, c_int32, c_int32, address]),
        "qk_surest": (c_int32, [address, c_int32, POINTER(c_float)]),
        "qk_draw": (c_int32, [address, c_int32, POINTER(Filters), c_double]),
        "qk_forward": (c_int32, [address, POINTER(Model), POINTER(Kv), POINTER(Step)]),
        "qk_crc32": (c_uint32, [address, c_int64]),
        "qk_write_rows": (
            c_int32,
            [
                POINTER(RowPlane),
                c_int32,
                POINTER(RowFile),
                c_int32,
                address,
                c_int64,
                c_int64,
                POINTER(c_int32),
            ],
        ),
    }
    for name, (result, arguments) in functions.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments


def _check(status: int) -> None:
    if status == -2:
        raise KernelError("no memory for the kernels' scratch space")
    if status:
        raise KernelError("the kernels refused a size, a type or a pointer")
