"""What the kernels store is, bit for bit, what schemes.py defines."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from inference.config import KvSchemeName
from inference.kv_cache.layer_memory import KeyValues
from inference.kv_cache.tensors import KvTensors
from inference.model.spec import ModelSpec
from tests.inference.native_models import ISAS, SCHEMES, NativeModel, random_model, store, use_isa
from tests.inference.tiny_decoders import make_variant, spec_of

NUM_TOKENS = 24


def make_model(head_dim: int) -> NativeModel:
    spec: ModelSpec = replace(
        spec_of(make_variant("llama")), num_heads=4, num_kv_heads=2, head_dim=head_dim
    )
    return random_model(replace(spec, layers=spec.layers[:1]))


def hard_numbers(head_dim: int) -> Tensor:
    """Rows (T, 2, D): common, tiny, huge, zero, equal, halfway between codes."""
    generator = torch.Generator().manual_seed(3)
    numbers = torch.randn(NUM_TOKENS, 2, head_dim, generator=generator)
    numbers[1] *= 1e-6
    numbers[2] *= 1e-8
    numbers[3] *= 1e5
    numbers[4] *= 1e7
    numbers[5] = 0.0
    numbers[6] = 3.25
    numbers[7] = -0.0
    numbers[8] = torch.arange(head_dim) * 0.5
    numbers[9] = -numbers[8] - 7.0
    numbers[10] = torch.arange(head_dim) * 2.0**-25  # below the smallest normal number of fp16
    numbers[11, :, 0] = 1e4
    numbers[12] = 2048.0 + torch.arange(head_dim)  # halfway between numbers of fp16
    return numbers


def exact_numbers(head_dim: int) -> Tensor:
    """Rows whose Hadamard transform is exact, in whatever order it is added up."""
    generator = torch.Generator().manual_seed(4)
    whole = torch.randint(-4096, 4096, (NUM_TOKENS, 2, head_dim), generator=generator).float() / 64
    whole[3] = 0.0
    whole[4] = 5.0
    return whole


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.uint8)


def check_stored(model: NativeModel, scheme: KvSchemeName, keys: Tensor, values: Tensor) -> None:
    ours, theirs = (model.new_kv(scheme, num_blocks=8) for _ in range(2))
    slots = torch.randperm(64, generator=torch.Generator().manual_seed(1))[:NUM_TOKENS]
    new = KeyValues(keys.transpose(0, 1)[None], values.transpose(0, 1)[None])
    theirs.write(0, slots, new)
    store(model, ours, slots.tolist(), keys, values)
    for actual, expected in zip(planes(ours), planes(theirs), strict=True):
        assert torch.equal(bits(actual), bits(expected))


def planes(kv: KvTensors) -> tuple[Tensor, ...]:
    """All of them, free slots too: nothing else was written."""
    return kv.layers[0].planes


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("head_dim", [10, 8, 24, 64, 80, 96, 128])
def test_stored_bytes_are_those_of_the_scheme(
    isa: str, scheme: KvSchemeName, head_dim: int
) -> None:
    use_isa(isa)
    model = make_model(head_dim)
    check_stored(model, scheme, exact_numbers(head_dim), exact_numbers(head_dim).flip(0))
    is_turned = model.new_kv(scheme, num_blocks=8).layers[0].rotation is not None
    if not is_turned:
        check_stored(model, scheme, hard_numbers(head_dim), hard_numbers(head_dim).flip(0))


@pytest.mark.parametrize("scheme", ["int8", "int4"])
@pytest.mark.parametrize("head_dim", [8, 64, 256])
def test_turned_numbers_read_back_as_they_were(scheme: KvSchemeName, head_dim: int) -> None:
    model = make_model(head_dim)
    kv = model.new_kv(scheme, num_blocks=8)
    generator = torch.Generator().manual_seed(5)
    keys, values = torch.randn(2, NUM_TOKENS, 2, head_dim, generator=generator)
    store(model, kv, range(NUM_TOKENS), keys, values)
    read = torch.empty(4, NUM_TOKENS, head_dim)
    kv.layers[0].read_run(0, NUM_TOKENS, read)
    rotation = kv.layers[0].rotation
    assert rotation is not None
    upright = read @ rotation.to_query
    torch.testing.assert_close(upright[:2], keys.transpose(0, 1), atol=0.04, rtol=0)
    torch.testing.assert_close(upright[2:], values.transpose(0, 1), atol=0.5, rtol=0)
