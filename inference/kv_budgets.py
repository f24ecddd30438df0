"""How much memory the tiers of the KV memory may take when nobody says. Any thread.

On a machine without a graphics card the device is RAM too; so there the two share what they may take.
"""

import shutil
from pathlib import Path

import torch

from inference.model.memory import SHARE_FOR_BLOCKS, free_bytes, reserve_bytes

_DEVICE_SHARE = (
    0.25  # of what is free once the weights are loaded: the most, where others need it too
)
_COMFORT_SHARE = 0.125  # of it, for several chats, even if one context needs less
_COMFORT_CONTEXTS = 8
_RAM_SHARE_BESIDE_CPU = 0.125
_RAM_SHARE_BESIDE_GPU = 0.25
_DISK_SHARE = 0.05  # of the whole disk
_FREE_DISK_SHARE = 0.5  # of what is free there
_GIB = 2**30
_MAX_COMFORT = 2 * _GIB
_MAX_RAM_BESIDE_CPU = 2 * _GIB
_MAX_RAM_BESIDE_GPU = 8 * _GIB
_MAX_DISK = 10 * _GIB


def default_device_bytes(device: str, context_bytes: int) -> int:
    """Room for one whole context and for several chats, but only a part of what is free.

    Args:
        device: Where the blocks lie.
        context_bytes: What one context of the full length takes.
    """
    free = free_bytes(device)
    comfort = min(_COMFORT_SHARE * free, _COMFORT_CONTEXTS * context_bytes, _MAX_COMFORT)
    wanted = max(context_bytes, int(comfort))
    if torch.device(device).type == "cuda":
        return min(wanted, int(SHARE_FOR_BLOCKS * (free - reserve_bytes(device, free))))
    return min(wanted, int(_DEVICE_SHARE * free))


def default_ram_bytes(device: str, held_bytes: int = 0) -> int:
    """For blocks put aside, beside blocks on `device`.

    Args:
        device: Where the model is.
        held_bytes: What such blocks take now.
    """
    free = free_bytes("cpu") + held_bytes
    if device == "cpu":
        return int(min(_RAM_SHARE_BESIDE_CPU * free, _MAX_RAM_BESIDE_CPU))
    return int(min(_RAM_SHARE_BESIDE_GPU * free, _MAX_RAM_BESIDE_GPU))


def default_disk_bytes(folder: Path, held_bytes: int) -> int:
    """For blocks on the disk that holds `folder`; 0 if it cannot be told how large that is.

    Args:
        folder: Need not exist.
        held_bytes: What blocks there take now; counts as free, so that what is kept does not lower the
            budget, and a disk that others have filled does not end it.
    """
    for place in (folder, *folder.parents):
        try:
            disk = shutil.disk_usage(place)
        except OSError:
            continue  # not made yet: ask the folder that will hold it
        free = disk.free + held_bytes
        # On a full disk not 0: that is off, and the person is to be told that nothing is kept.
        return max(1, int(min(_DISK_SHARE * disk.total, _FREE_DISK_SHARE * free, _MAX_DISK)))
    return 0
