"""What memory there is, what of it weights and blocks may take, and telling when it is not enough. Any thread."""

import errno
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from inference.config import DtypeName
from inference.errors import NotEnoughMemoryError
from inference.model.memory_ahead import held_bytes

logger = logging.getLogger(__name__)

# Shares of the free memory that weights may take; the rest is for KV blocks, activations, others.
_SHARE_FOR_FLOAT32 = 0.75
_SHARE_FOR_WEIGHTS = 0.9
SHARE_FOR_BLOCKS = 0.8  # on CUDA, of what weights and reserve leave: nothing else needs that memory
# On CUDA, for activations, matrices that are unpacked for long prompts, CUDA graphs, workspaces.
_RESERVE_BYTES = 3 * 2**28
_RESERVE_SHARE = 0.2  # of what is free: the most, on small cards
_WINDOWS_COMMIT_LIMIT = 1455
# What torch says, as the kinds of its errors differ: CUDA and XPU, MPS and pinned memory; the CPU's.
_SHORTAGE_WORDS = ("out of memory", "can't allocate memory", "not enough memory")
# Scratch of one load: the largest tensor once more, unpacked. Small beside the shares above.
_NAMES: dict[DtypeName, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def free_bytes(device: str) -> int:
    """Tell how much memory is free for tensors on a device, in bytes."""
    kind = torch.device(device).type
    if kind == "cuda":
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    if kind == "xpu":
        return int(torch.xpu.mem_get_info(torch.device(device))[0])
    return int(psutil.virtual_memory().available) + held_bytes()


def release_unused(device: str) -> None:
    """Give memory that torch keeps for the next tensors back to a device, so that it counts as free."""
    kind = torch.device(device).type
    try:
        if kind == "cuda":
            torch.cuda.empty_cache()
        elif kind == "xpu":
            torch.xpu.empty_cache()
        elif kind == "mps":
            torch.mps.empty_cache()
    except (
        RuntimeError
    ) as error:  # after a failure the device may refuse all, and must still be left
        logger.warning("memory of %s could not be given back: %s", device, error)


def reserve_bytes(device: str, free: int) -> int:
    """What steps need on a device besides weights and blocks; elsewhere than on CUDA it is in the shares.

    Args:
        device: A torch device.
        free: What is free there.
    """
    if torch.device(device).type != "cuda":
        return 0
    return min(_RESERVE_BYTES, int(_RESERVE_SHARE * free))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error of torch or of the system says that memory ran out, on a device or on the host."""
    if isinstance(error, OSError):
        winerror = getattr(error, "winerror", None)
        return error.errno == errno.ENOMEM or winerror == _WINDOWS_COMMIT_LIMIT
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error).lower() for words in _SHORTAGE_WORDS
    )


@contextmanager
def telling_shortage(needed: int, free: int) -> Iterator[None]:
    """Have `NotEnoughMemoryError` raised for whatever says that memory ran out.

    Args:
        needed: Bytes that are about to be taken.
        free: Bytes that there were before.
    """
    try:
        yield
    except (RuntimeError, MemoryError, OSError) as error:
        if is_out_of_memory(error):
            raise NotEnoughMemoryError(needed, free) from error
        raise


def weights_bytes(num_parameters: int, dtype: torch.dtype) -> int:
    """Tell the memory of `num_parameters` weights of `dtype`."""
    return num_parameters * dtype.itemsize


def choose_dtype(
    dtype_name: DtypeName, device: str, num_parameters: int, *, free: int | None = None
) -> torch.dtype:
    """Choose the type of weights and activations, and make sure that the weights fit.

    Args:
        dtype_name: "auto" takes float32 on the CPU as long as it leaves a quarter of the free
            memory (it is the fastest there), else bfloat16; on other devices bfloat16, or float16
            where the device has no bfloat16.
        device: "cpu", "cuda", "cuda:1", "mps", "xpu".
        num_parameters: Weights of the model, tied ones once.
        free: Free bytes; None asks the device.

    Raises:
        NotEnoughMemoryError: The weights do not fit in the chosen type.
    """
    if free is None:
        free = free_bytes(device)
    dtype = _NAMES.get(dtype_name)
    if dtype is None:
        dtype = _automatic_dtype(device, num_parameters, free)
    needed = weights_bytes(num_parameters, dtype)
    if needed > _SHARE_FOR_WEIGHTS * free:
        raise NotEnoughMemoryError(needed, free)
    return dtype


def _automatic_dtype(device: str, num_parameters: int, free: int) -> torch.dtype:
    kind = torch.device(device).type
    if kind == "cpu":
        if weights_bytes(num_parameters, torch.float32) <= _SHARE_FOR_FLOAT32 * free:
            return torch.float32
        logger.warning("float32 would leave too little memory: using bfloat16")
        return torch.bfloat16
    if kind == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        return torch.float16
    return torch.bfloat16
