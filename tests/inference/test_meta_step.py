"""A decode step with CUDA's own operators, on meta tensors: that they take what they get, and how many."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from inference.attention.paged import PagedAttention
from inference.attention.varlen import VarlenKernel
from inference.kv_cache.schemes import find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.model.decoder import TorchDecoder
from inference.model.decoder_weights import read_weights
from inference.model.runner import ModelRunner
from inference.model.step import Chunk
from tests.inference.tiny_decoders import make_variant, weights_of
from tests.inference.tiny_models import VOCAB_SIZE, make_tokens

META = torch.device("meta")
NUM_LAYERS = 4


class Kernels(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's
    """Counts operators that compute: on a GPU a launch each."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        output = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::")
        if name.startswith("to."):
            if output.dtype != args[0].dtype:
                self.counts["to"] += 1
        elif not func.is_view and name != "detach_":  # torch's own, at a view of a parameter
            self.counts[name] += 1
        return output


def make_runner(variant: str) -> ModelRunner:
    """A model in bfloat16 over blocks, that computes nothing."""
    weights = weights_of(make_variant(variant, dtype=torch.bfloat16))
    tensors = read_weights(weights, dtype=torch.bfloat16)
    decoder = TorchDecoder(weights.spec, {key: each.to(META) for key, each in tensors.items()})
    kv = KvTensors(
        decoder.geometry,
        num_blocks=6,
        block_size=256,
        scheme=find_scheme("bf16", torch.bfloat16),
        device=META,
    )
    attention = PagedAttention(VarlenKernel(), block_size=256, device=META)
    return ModelRunner(decoder, kv, attention, device=META)


@pytest.mark.parametrize("variant", ["llama", "qwen3", "gemma3", "olmo2", "phi3-partial"])
def test_operators_of_a_gpu_take_what_the_model_gives_them(variant: str) -> None:
    runner = make_runner(variant)
    decode = [Chunk([5], 300, [3, 1], needs_logits=True), Chunk([6], 3, [2], needs_logits=True)]
    assert runner.run(decode).shape == (2, VOCAB_SIZE)
    prompt = Chunk(make_tokens(20), 250, [3, 1], needs_logits=False)
    assert runner.run([prompt, decode[1]]).shape == (1, VOCAB_SIZE)
    assert runner.run([prompt]).shape == (0, VOCAB_SIZE)


def test_layer_of_a_decode_step_is_few_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "inference.model.decoder.norm_weight", lambda weight, dtype: weight.to(dtype)
    )
    runner = make_runner("llama")
    with Kernels() as kernels:
        runner.run([Chunk([5], 300, [3, 1], needs_logits=True)])
    layer = {
        "rms_norm": 2,
        "linear": 7,
        "cat": 3,  # query and key; partners; what is stored
        "mul.Tensor": 2,  # rotary
        "add_.Tensor": 3,  # rotary, and twice to the residual stream
        "to": 1,  # what was turned in float32
        "index_copy_": 1,
        "_flash_attention_forward": 1,
        "silu": 1,
        "mul_.Tensor": 1,
    }
    step = {
        "embedding": 1,
        "cos": 1,
        "sin": 1,
        "index.Tensor": 1,
        "to": 2,
        "rms_norm": 1,
        "linear": 1,
    }
    tables_and_scales = {"mul.Tensor": 5}
    expected = Counter({name: NUM_LAYERS * count for name, count in layer.items()})
    assert kernels.counts == expected + Counter(step) + Counter(tables_and_scales)
