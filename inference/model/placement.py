"""Which layers of a model lie on the device and which on the host, when not all fit. Thread of the load.

accelerate makes the map. What every token needs, embedding and head, must fit on the device; of the layers
the last ones stay on the host.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from inference.errors import NotEnoughMemoryError
from inference.model.layer_stream import NUM_BUFFERS
from inference.model.memory import (
    SHARE_FOR_BLOCKS,
    free_bytes,
    release_unused,
    reserve_bytes,
)

logger = logging.getLogger(__name__)

_SHARE_FOR_WEIGHTS = 0.9  # of what is free on a device, if all of it fits
_SHARE_WHEN_SPLIT = 0.7  # the rest is for blocks and activations
# Pinned as far as the system pins memory: see `HostLayer`.
_SHARE_OF_HOST = 0.75
# Elsewhere the memory of the device is that of the host, or copies would not overlap with computing.
_STREAMING_DEVICES = ("cuda",)


@dataclass(frozen=True, slots=True)
class Room:
    """What weights may take.

    Attributes:
        device: A torch device.
        whole_bytes: On the device, if all weights are there.
        split_bytes: On the device, if some are on the host; 0 if that is not done.
        host_bytes: On the host.
        free: What is free on the device.
    """

    device: str
    whole_bytes: int
    split_bytes: int
    host_bytes: int
    free: int

    @classmethod
    def on(cls, device: str) -> "Room":
        """What there is now."""
        release_unused(device)  # a load that failed may have left some
        free = free_bytes(device)
        can_split = torch.device(device).type in _STREAMING_DEVICES
        return cls(
            device,
            whole_bytes=min(int(_SHARE_FOR_WEIGHTS * free), free - reserve_bytes(device, free)),
            split_bytes=int(_SHARE_WHEN_SPLIT * free) if can_split else 0,
            host_bytes=int(_SHARE_OF_HOST * free_bytes("cpu")) if can_split else 0,
            free=free,
        )

    def beside(self, kv_bytes: int) -> "Room":
        """What weights may take if blocks are to get so much; all of it where blocks get a fixed share."""
        if torch.device(self.device).type not in _STREAMING_DEVICES:
            return self
        most = self.free - reserve_bytes(self.device, self.free) - int(kv_bytes / SHARE_FOR_BLOCKS)
        return replace(
            self,
            whole_bytes=min(self.whole_bytes, most),
            split_bytes=min(self.split_bytes, most),
        )

    def refusal(self, weights_bytes: int) -> NotEnoughMemoryError:
        """The error for weights that do not fit, with all that would be needed."""
        return NotEnoughMemoryError(weights_bytes + self.free - self.whole_bytes, self.free)

    @property
    def number(self) -> int:
        """The device's."""
        return torch.device(self.device).index or 0

    @property
    def max_memory(self) -> dict[int | str, int]:
        """The split, as accelerate wants it."""
        return {self.number: self.split_bytes, "cpu": self.host_bytes}


class _Bytes(nn.Module):
    """Stands for weights in a skeleton: takes no memory."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        weight = torch.empty(num_bytes, dtype=torch.uint8, device="meta")
        self.weight = nn.Parameter(weight, requires_grad=False)


class _Skeleton(nn.Module):
    def __init__(self, shared_bytes: int, layer_bytes: Sequence[int]) -> None:
        super().__init__()
        self.shared = _Bytes(shared_bytes)
        self.layers = nn.ModuleList(_Bytes(size) for size in layer_bytes)


def layers_on_host(
    room: Room, shared_bytes: int, layer_bytes: Sequence[int], kv_bytes: int = 0
) -> frozenset[int]:
    """Which layers must stay on the host; none if everything fits.

    Args:
        room: What there is.
        shared_bytes: What every token needs besides the layers.
        layer_bytes: Of each layer.
        kv_bytes: What blocks should get; weights come first where that cannot be.

    Raises:
        NotEnoughMemoryError: It does not even fit on device and host together.
    """
    needed = shared_bytes + sum(layer_bytes)
    for each in (room.beside(kv_bytes), room):
        if needed <= each.whole_bytes:
            return frozenset()
        on_host = _split(each, shared_bytes, layer_bytes)
        if on_host is not None:
            logger.warning(
                "%d of %d layers do not fit on the device", len(on_host), len(layer_bytes)
            )
            return on_host
    raise room.refusal(needed)


def _split(room: Room, shared_bytes: int, layer_bytes: Sequence[int]) -> frozenset[int] | None:
    """The layers for the host; None if that does not help."""
    # accelerate itself keeps room for one layer that comes over; we have two at a time.
    buffers = (NUM_BUFFERS - 1) * max(layer_bytes, default=0)
    if room.split_bytes <= buffers:
        return None
    budget = {**room.max_memory, room.number: room.split_bytes - buffers}
    return _on_host(device_map_of(_Skeleton(shared_bytes, layer_bytes), budget), layer_bytes)


def device_map_of(
    module: nn.Module,
    max_memory: Mapping[int | str, int],
    no_split: Sequence[str] = ("_Bytes",),
) -> dict[str, int | str]:
    """The map that accelerate makes: names of modules to the number of a device, "cpu" or "disk".

    Args:
        module: May be on the meta device.
        max_memory: Bytes by device.
        no_split: Names of classes that stay in one piece.
    """
    from accelerate import infer_auto_device_map  # needed for few models only

    found: dict[str, int | str] = dict(
        infer_auto_device_map(module, dict(max_memory), no_split_module_classes=list(no_split))
    )
    return found


def split_module(module: nn.Module, max_memory: Mapping[int | str, int]) -> dict[str, int | str]:
    """Where the parts of a transformers model are to be; its weights may be on the meta device.

    Raises:
        NotEnoughMemoryError: It does not fit.
    """
    no_split = getattr(module, "_no_split_modules", None) or ()
    module.tie_weights()  # type: ignore[operator]  # transformers; on the meta device it was undone
    places = device_map_of(module, max_memory, no_split)
    if "disk" in places.values():
        needed = sum(parameter.nbytes for parameter in module.parameters())
        raise NotEnoughMemoryError(needed, sum(max_memory.values()))
    return places


def dispatched(module: nn.Module, places: Mapping[str, int | str]) -> nn.Module:
    """The model, which now brings over by itself what is on the host."""
    from accelerate import dispatch_model

    skip_keys = getattr(module, "_skip_keys_device_placement", None)  # the cache, which is ours
    model: nn.Module = dispatch_model(module, dict(places), skip_keys=skip_keys)
    return model


def describe_placement(num_on_host: int, num_layers: int, device: str) -> str:
    """Where layers are, for people; empty if all are on the device."""
    if not num_on_host:
        return ""
    kind = torch.device(device).type
    return f"{num_layers - num_on_host} of {num_layers} layers on {kind}, {num_on_host} in RAM"


def describe_module(module: nn.Module, device: str) -> str:
    """The same of a model of transformers that accelerate has placed."""
    device_map = getattr(module, "hf_device_map", {"": 0})
    num_layers = module.config.get_text_config().num_hidden_layers  # type: ignore[operator, union-attr]  # a transformers model
    names = [
        name
        for name, part in module.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) == num_layers
    ]
    places = [place_of(f"{name}.{i}", device_map) for name in names[:1] for i in range(num_layers)]
    return describe_placement(places.count("cpu"), num_layers, device)


def _on_host(
    device_map: Mapping[str, int | str], layer_bytes: Sequence[int]
) -> frozenset[int] | None:
    """The layers that a map has on the host; None if it is no use."""
    places = {index: place_of(f"layers.{index}", device_map) for index in range(len(layer_bytes))}
    if place_of("shared", device_map) in ("cpu", "disk") or "disk" in places.values():
        return None
    return frozenset(index for index, place in places.items() if place == "cpu")


def place_of(name: str, device_map: Mapping[str, int | str]) -> int | str:
    """Where a module is: a map names it, or one around it."""
    while name not in device_map:
        name = name.rpartition(".")[0]
    return device_map[name]
