"""Chooses where to compute: a device counts only if something was computed on it. Any thread."""

import logging
from collections.abc import Callable

import torch

from inference.errors import InvalidRequestError
from inference.model.library_errors import first_line

logger = logging.getLogger(__name__)


def choose_device(name: str) -> str:
    """The torch device for a wish.

    Args:
        name: "auto" takes CUDA, then MPS, then XPU, then the CPU; or one of them.

    Raises:
        InvalidRequestError: It is wished for and cannot compute.
    """
    if name == "cpu":
        return name
    if name != "auto":
        reason = why_unusable(name)
        if reason:
            raise InvalidRequestError(
                "device",
                f"cannot be {name!r} here: {reason}",
                hint="Choose the device auto or cpu, or install a driver and a torch that fit it.",
            )
        return name
    for device in _present_devices():
        reason = why_unusable(device)
        if not reason:
            return device
        logger.warning("%s is there and cannot be used: %s", device, reason)
    return "cpu"


def why_unusable(device: str) -> str:
    """Why nothing can be computed on a device; empty if it can.

    torch lists cards that it has no code for, and says so only when the first kernel is launched.
    """
    try:
        (torch.zeros(1, device=device) + 1).item()
    except (RuntimeError, AssertionError) as error:  # torch asserts that it was built for a device
        return first_line(error)
    return ""


def _present_devices() -> list[str]:
    """What torch lists, the best first."""
    is_there: dict[str, Callable[[], bool]] = {
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
        "xpu": torch.xpu.is_available,
    }
    return [device for device, is_available in is_there.items() if is_available()]
