"""A real model with half of its weights on the host, as `gpu_check` measures it."""

from pathlib import Path
from unittest.mock import patch

import torch

from inference.model.layer_stream import StreamedLayers
from inference.model.placement import Room
from tests.benchmarks.gpu_models import REPLY_TOKENS, OpenModel, Result

_SHARE = 0.6  # of the weights that the device may hold, the layers that come over included


def check_split(path: Path, device: torch.device, *, is_quick: bool) -> Result:
    """Whether the reply is that of the whole model, and how fast weights come over."""
    config: Result = {
        "cuda_graphs": False
    }  # a split model cannot have them, and the reply is compared
    if device.type == "cpu":
        config |= {"backend": "torch", "dtype": "float32"}
    whole = OpenModel(path, device, **config)
    num_tokens = 4 if is_quick else REPLY_TOKENS
    try:
        expected = list(whole.reply(num_tokens).reply_ids)
        size = int(_SHARE * whole.parts.info.weights_bytes)
    finally:
        whole.close()
    room = Room(device.type, whole_bytes=0, split_bytes=size, host_bytes=2**40, free=2**40)
    with patch.object(Room, "on", lambda _device: room):
        split = OpenModel(path, device, **config)
    try:
        streamed = getattr(getattr(split.runner, "_model", None), "_layers", None)
        assert isinstance(streamed, StreamedLayers), "half of the weights are on the host"
        times = 1 if is_quick else 10
        took = split.decode(0, 1, times=times)
        prompt_tokens = 64 if is_quick else 2048
        reading = split.prefill(prompt_tokens, 1024, times=1 if is_quick else 3)
        return {
            "backend": split.parts.info.backend,
            "the reply is that of the whole model": list(split.reply(num_tokens).reply_ids)
            == expected,
            "decode tok/s": 1 / took,
            "weights come over, GB/s": streamed._stream.host_bytes / took / 1e9,
            "prefill tok/s": prompt_tokens / reading,
        }
    finally:
        split.close()
