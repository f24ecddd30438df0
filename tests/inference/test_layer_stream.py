"""Weights that come over layer by layer: which are there when, and what a failed step leaves behind."""

from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from inference.kv_cache.side_stream import NoSideStream, beside
from inference.model import layer_stream
from inference.model.layer_stream import HostLayer, LayerStream

CPU = torch.device("cpu")


class NotedSide:
    """A side stream that notes what is asked of it; copies are done at once."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def after_compute(self) -> AbstractContextManager[object]:
        self.events.append("copy")
        return nullcontext()

    def mark(self) -> Any:
        return SimpleNamespace(number=self.events.count("copy"))

    def hold_compute(self, mark: Any) -> None:
        self.events.append(f"wait for {mark.number}")

    def keep(self, tensor: Tensor) -> None:
        self.events.append("keep")

    def synchronize(self) -> None:
        raise AssertionError("nobody waits on the host")


def tensors_of(index: int) -> list[Tensor]:
    return [
        torch.full((3, 5), float(index), dtype=torch.bfloat16),
        torch.full((2, 2, 2), index, dtype=torch.int32),
        torch.arange(index, index + 7, dtype=torch.uint8),
    ]


def stream_of(indices: list[int], side: NotedSide | None = None) -> LayerStream:
    layers = {index: HostLayer(tensors_of(index), is_pinned=False) for index in indices}
    return LayerStream(layers, CPU, side)


def assert_there(stream: LayerStream, index: int) -> None:
    for view, tensor in zip(stream.views(index), tensors_of(index), strict=True):
        assert view.dtype == tensor.dtype
        assert torch.equal(view, tensor)


@pytest.mark.parametrize("indices", [[2], [0, 1], [1, 2, 3], [0, 1, 2, 3], [1, 2, 3, 4, 5]])
def test_each_layer_finds_its_weights_in_every_step(indices: list[int]) -> None:
    stream = stream_of(indices)
    for _ in range(3):
        seen = []
        for index in stream.over(range(6)):
            seen.append(index)
            if index in indices:
                assert_there(stream, index)
        assert seen == list(range(6))


@pytest.mark.parametrize("piece_bytes", [1, 100, 256, 300, 10_000])
def test_layer_in_pieces_keeps_every_byte(
    monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    monkeypatch.setattr(layer_stream, "_PIECE_BYTES", piece_bytes)
    layer = HostLayer(tensors_of(3), is_pinned=False)
    buffer = torch.full((layer.num_bytes + 9,), 255, dtype=torch.uint8)
    layer.copy_to(buffer)
    for view, tensor in zip(layer.views(buffer), tensors_of(3), strict=True):
        assert torch.equal(view, tensor)
    assert layer.num_bytes == 3 * 256
    assert (buffer[layer.num_bytes :] == 255).all()


@pytest.mark.parametrize(("most", "num_tried"), [(0, 1), (1, 2), (9, 3)])
def test_layer_that_cannot_be_pinned_lies_in_other_memory(
    monkeypatch: pytest.MonkeyPatch, most: int, num_tried: int
) -> None:
    tried: list[int] = []

    def pinned_bytes(num_bytes: int) -> Tensor | None:
        tried.append(num_bytes)
        return torch.empty(num_bytes, dtype=torch.uint8) if len(tried) <= most else None

    monkeypatch.setattr(layer_stream, "pinned_bytes", pinned_bytes)
    monkeypatch.setattr(layer_stream, "_PIECE_BYTES", 300)
    layer = HostLayer(tensors_of(3), is_pinned=True)
    assert tried == [300, 300, 168][:num_tried]
    buffer = torch.zeros(layer.num_bytes, dtype=torch.uint8)
    layer.copy_to(buffer)
    for view, tensor in zip(layer.views(buffer), tensors_of(3), strict=True):
        assert torch.equal(view, tensor)


def test_next_layer_is_fetched_when_its_buffer_is_free_and_waited_for_when_it_computes() -> None:
    side = NotedSide()
    stream = stream_of([1, 2, 3, 4], side)
    assert side.events == ["keep", "keep"]
    side.events.clear()
    for index in stream.over(range(5)):
        side.events.append(f"compute {index}")
    assert side.events == [
        "compute 0",
        "copy", "wait for 1", "compute 1", "copy",
        "copy", "wait for 3", "compute 2", "copy",
        "wait for 2", "compute 3", "copy",
        "wait for 4", "compute 4", "copy",
    ]  # fmt: skip
    side.events.clear()
    for index in stream.over(range(5)):
        side.events.append(f"compute {index}")
    # Layers 1 and 2 were fetched at the end of the step before.
    assert side.events[:4] == ["compute 0", "wait for 5", "compute 1", "copy"]
    assert side.events.count("copy") == 4


def test_layers_that_fit_the_buffers_are_fetched_once() -> None:
    side = NotedSide()
    stream = stream_of([1, 2], side)
    for _ in range(4):
        assert list(stream.over(range(3))) == [0, 1, 2]
    assert side.events.count("copy") == 2


def test_step_after_one_that_failed_finds_its_weights() -> None:
    stream = stream_of([0, 1, 2, 3])
    for broken_at in range(4):
        for index in stream.over(range(4)):
            if index == broken_at:
                break
        for index in stream.over(range(4)):
            assert_there(stream, index)


def test_sizes_are_told() -> None:
    stream = stream_of([0, 1, 2])
    assert stream.host_bytes == 3 * 3 * 256
    assert stream.num_bytes == 2 * 3 * 256
    assert stream_of([4]).num_bytes == 3 * 256


def test_only_cuda_has_a_stream_beside_the_one_that_computes() -> None:
    for name in ("cpu", "mps", "xpu"):
        assert isinstance(beside(torch.device(name)), NoSideStream)
