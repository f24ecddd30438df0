"""Products with packed weights, by the operators of the CPU, against the weights multiplied out."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from inference.formats.codes import FOUR_BIT_TYPES, Codes, read_codes
from inference.formats.dequantize import dequantize
from inference.formats.gguf_types import TENSOR_TYPES_BY_NAME
from inference.model import gpu_linear
from inference.model.gpu_linear import (
    Int4Weight,
    Int8Weight,
    PackedLinear,
    PlainWeight,
    make_linear,
    pack_int4,
    pack_int8,
    packed_bytes,
)
from inference.model.int4_product import (
    CpuInt4,
    CudaInt4,
    find_int4,
    is_int4_known,
    is_right,
)
from tests.inference.weight_blocks import make_blocks

TYPES = ["Q4_0", "Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q8_0"]
SCALES = {
    "ordinary": [0.0123, -0.05, 0.1],
    "zero": [0.0],
    "subnormal": [6e-8, 5e-7, -6e-8],
    "largest": [60000.0, -60000.0],
}
N, BLOCKS = 48, 2
ALL_ROWS = slice(0, N)
BF16_ERROR = 2.0**-8  # half a unit in the last place, twice: of the scale and of the weight


def stored(type_name: str, scales: list[float]) -> tuple[Tensor, Tensor]:
    """Rows as a file has them, and the weights that they stand for, (N, K)."""
    rows = torch.from_numpy(make_blocks(type_name, N * BLOCKS, scales)).view(N, -1)
    K = BLOCKS * TENSOR_TYPES_BY_NAME[type_name].block_elements
    return rows, dequantize(rows.flatten(), type_name, (N, K), torch.float32)


def packed(
    type_name: str, rows: Tensor, dtype: torch.dtype, product: Any = None
) -> Int4Weight | Int8Weight:
    pack = pack_int4 if type_name in FOUR_BIT_TYPES else pack_int8
    return pack(product or CpuInt4(), read_codes(rows, type_name), dtype)


def linear_of(
    weight: Int4Weight | Int8Weight, num_columns: int, bias: Tensor | None = None
) -> PackedLinear:
    linear = make_linear(weight, bias, CpuInt4(), num_columns)
    assert isinstance(linear, PackedLinear)
    return linear


def spread(type_name: str, rows: Tensor) -> Tensor:
    """The largest number that a group's rounding is a share of, for each weight, (N, K)."""
    read = read_codes(rows, type_name)
    middle = 8 if type_name in FOUR_BIT_TYPES else 128
    reach = 8 if type_name in FOUR_BIT_TYPES else 128 if type_name == "Q8_0" else 16
    size = read.scale.abs() * reach + (read.minimum + middle * read.scale).abs()
    return size.repeat_interleave(32, dim=1)


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES)
def test_unpacked_weights_are_those_of_the_file_within_the_rounding_of_bfloat16(
    type_name: str, scales: list[float]
) -> None:
    rows, weights = stored(type_name, scales)
    linear = linear_of(packed(type_name, rows, torch.bfloat16), weights.shape[1])
    error = (linear.unpacked(ALL_ROWS).float() - weights).abs()
    # Of 8 bits, zero, scale, both halves and their sum are rounded.
    assert (error <= 2 * BF16_ERROR * spread(type_name, rows)).all()


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("scales", SCALES.values(), ids=SCALES)
@pytest.mark.parametrize("num_rows", [1, 3, 17])
def test_product_is_that_with_the_weights_of_the_file(
    type_name: str, scales: list[float], num_rows: int
) -> None:
    rows, weights = stored(type_name, scales)
    torch.manual_seed(0)
    x = torch.randn(num_rows, weights.shape[1]).bfloat16()
    bias = torch.randn(N).bfloat16()
    linear = linear_of(packed(type_name, rows, torch.bfloat16), weights.shape[1], bias)
    out = linear(x)
    assert out.dtype == torch.bfloat16
    expected = functional.linear(x.double(), weights.double(), bias.double())
    # Each weight is off by a bit; so is each of the sums that are rounded to bfloat16.
    off = BF16_ERROR * (x.double().abs() @ spread(type_name, rows).double().t())
    rounding = BF16_ERROR * (expected.abs() + bias.abs())
    assert ((out.double() - expected).abs() <= off + 2 * rounding).all()
    relative = (out.double() - expected).norm() / expected.norm()
    assert relative < 0.01


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q5_0", "Q8_0"])
def test_product_is_exact_where_the_scale_needs_no_rounding(type_name: str) -> None:
    rows, weights = stored(type_name, [0.25, -0.5])
    x = torch.zeros(3, weights.shape[1])
    x[0, 5] = x[1, 40] = x[2, 63] = 1.0
    linear = linear_of(packed(type_name, rows, torch.float32), weights.shape[1])
    assert torch.equal(linear(x), weights[:, [5, 40, 63]].t())
    assert torch.equal(linear.unpacked(ALL_ROWS), weights)


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0"])
def test_many_rows_are_multiplied_with_unpacked_weights(
    monkeypatch: pytest.MonkeyPatch, type_name: str
) -> None:
    rows, weights = stored(type_name, [0.0123, 0.05])
    bias = torch.randn(N)
    linear = linear_of(packed(type_name, rows, torch.float32), weights.shape[1], bias)
    monkeypatch.setattr(gpu_linear, "MANY_ROWS", 4)
    monkeypatch.setattr(CpuInt4, "multiply", None)
    monkeypatch.setattr(linear, "unpacked", weights.__getitem__)
    x = torch.randn(4, weights.shape[1])
    assert torch.equal(linear(x), functional.linear(x, weights, bias))
    with pytest.raises(TypeError):
        linear(x[:3])


def test_rows_do_not_depend_on_their_neighbours() -> None:
    rows, weights = stored("Q4_K", [0.0123, 0.05])
    linear = linear_of(packed("Q4_K", rows, torch.bfloat16), weights.shape[1])
    x = torch.randn(6, weights.shape[1]).bfloat16()
    assert torch.equal(linear(x)[2:3], linear(x[2:3]))


def test_memory_is_what_was_told() -> None:
    for type_name, num_bits in (("Q4_1", 4), ("Q8_0", 8)):
        rows, weights = stored(type_name, [0.5])
        weight = packed(type_name, rows, torch.bfloat16)
        K = weights.shape[1]
        told = packed_bytes(num_bits, N, K, torch.bfloat16)
        assert sum(part.nbytes for part in weight) == told
        assert told == num_bits * N * K // 8 + num_bits // 4 * N * K // 32 * 4


def test_plain_matrix_is_multiplied_as_it_is() -> None:
    matrix, x = torch.randn(5, 7), torch.randn(3, 7)
    linear = make_linear(PlainWeight(matrix), None, None, 7)
    torch.testing.assert_close(linear(x), x @ matrix.t())


# --- CUDA, as far as it can be seen without a device ------------------------------------------


def shuffled_convert(rows: Tensor, inner: int) -> Tensor:
    """Packs as the operator of CUDA does, but for the order in a tile, which is made up here."""
    num_tiles, num_outer = rows.shape[0] // 8, rows.shape[1] * 2 // (16 * inner)
    tiles = rows.view(num_tiles, 8, num_outer, -1).transpose(1, 2).reshape(num_tiles, num_outer, -1)
    codes = torch.stack((tiles >> 4, tiles & 15), dim=-1).flatten(2)
    order = torch.from_numpy(np.random.default_rng(inner).permutation(codes.shape[2]))
    mixed = codes[..., order]
    packed = mixed[..., ::2] | mixed[..., 1::2] << 4
    return packed.contiguous().view(torch.int32).view(num_tiles, num_outer, 32, inner // 2)


@pytest.mark.parametrize(
    ("num_columns", "inner"), [(32, 2), (96, 2), (64, 4), (192, 4), (128, 8), (384, 8)]
)
def test_order_of_the_codes_on_cuda_is_found_out(num_columns: int, inner: int) -> None:
    product = CudaInt4(shuffled_convert)
    codes = torch.randint(0, 16, (24, num_columns), dtype=torch.uint8)
    packed_codes = product.pack(codes)
    assert packed_codes.shape == (3, num_columns // (16 * inner), 32, inner // 2)
    assert torch.equal(product.unpack(packed_codes, num_columns), codes)


def test_weights_packed_for_cuda_are_unpacked_to_those_of_the_file() -> None:
    product = CudaInt4(shuffled_convert)
    for type_name in ("Q4_K", "Q8_0"):
        rows, weights = stored(type_name, [0.25])
        weight = packed(type_name, rows, torch.float32, product)
        linear = make_linear(weight, None, product, weights.shape[1])
        assert isinstance(linear, PackedLinear)
        torch.testing.assert_close(linear.unpacked(ALL_ROWS), weights, rtol=1e-6, atol=1e-4)


def test_each_device_says_what_it_can_take() -> None:
    cpu, cuda = CpuInt4(), CudaInt4()
    assert cpu.can_take(16, 32, torch.float32)
    assert not cpu.can_take(24, 32, torch.float32)
    assert cuda.can_take(24, 32, torch.bfloat16)
    assert not cuda.can_take(12, 32, torch.bfloat16)
    assert not cuda.can_take(24, 48, torch.bfloat16)
    assert not cuda.can_take(24, 32, torch.float16)
    assert isinstance(find_int4(torch.device("cpu")), CpuInt4)
    assert find_int4(torch.device("mps")) is None
    assert find_int4(torch.device("xpu")) is None


def test_old_cards_have_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    card = torch.device("cuda")
    for capability, is_known in (((7, 5), False), ((8, 0), True), ((12, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _d, c=capability: c)
        assert is_int4_known(card) is is_known
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert not is_int4_known(card)
    assert find_int4(card) is None


def test_product_is_tried_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert is_right(CpuInt4(), torch.device("cpu"))
    assert caplog.text == ""
    pack, multiply = CpuInt4.pack, CpuInt4.multiply
    monkeypatch.setattr(CpuInt4, "pack", lambda self, codes: pack(self, codes.flip(1)))
    assert not is_right(CpuInt4(), torch.device("cpu"))
    assert "wrong numbers" in caplog.text
    monkeypatch.setattr(CpuInt4, "pack", pack)
    monkeypatch.setattr(
        CpuInt4, "multiply", lambda self, x, *others: multiply(self, x, *others) + 1
    )
    assert not is_right(CpuInt4(), torch.device("cpu"))
    # Packing for CUDA is not there in this build of torch, and nothing computes with what is packed here.
    assert not is_right(CudaInt4(shuffled_convert), torch.device("cpu"))
    assert "cannot be computed" in caplog.text


@pytest.mark.parametrize("product", [CpuInt4(), CudaInt4(shuffled_convert)], ids=["cpu", "cuda"])
@pytest.mark.parametrize("num_bits", [4, 8])
def test_large_matrices_are_unpacked_slab_by_slab(
    monkeypatch: pytest.MonkeyPatch, num_bits: int, product: Any
) -> None:
    num_rows, num_columns = 200 - 8, 64
    codes = Codes(
        torch.randint(0, 2**num_bits, (num_rows, num_columns), dtype=torch.uint8),
        torch.rand(num_rows, 2),
        torch.randn(num_rows, 2),
    )
    weight = (pack_int4 if num_bits == 4 else pack_int8)(product, codes, torch.float32)
    bias = torch.randn(num_rows)
    linear = make_linear(weight, bias, product, num_columns)
    assert isinstance(linear, PackedLinear)
    monkeypatch.setattr(gpu_linear, "_SLAB_WEIGHTS", 70 * num_columns)  # 64 rows, 64 and 64
    sizes = []
    unpack = product.unpack

    def noting(packed: Tensor, num_columns: int) -> Tensor:
        found: Tensor = unpack(packed, num_columns)
        sizes.append(found.shape[0])
        return found

    monkeypatch.setattr(product, "unpack", noting)
    x = torch.randn(5, num_columns)
    expected = functional.linear(x.double(), codes.weights.double(), bias.double())
    torch.testing.assert_close(linear.by_floats(x).double(), expected, atol=1e-4, rtol=1e-5)
    assert sizes == [64] * 3 * (num_bits // 4)


def test_step_without_logits_has_no_rows() -> None:
    rows, weights = stored("Q8_0", [0.5])
    linear = linear_of(packed("Q8_0", rows, torch.bfloat16), weights.shape[1])
    out = linear(torch.empty(0, weights.shape[1], dtype=torch.bfloat16))
    assert (out.shape, out.dtype) == ((0, N), torch.bfloat16)


@pytest.mark.gpu
@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("num_rows", [1, 5, 33, gpu_linear.MANY_ROWS])
def test_product_on_cuda_is_that_with_the_weights_of_the_file(
    type_name: str, num_rows: int
) -> None:
    device = torch.device("cuda")
    product = find_int4(device)
    if product is None:
        pytest.skip("this card has no product with 4 bits")
    rows, weights = stored(type_name, [0.0123, -0.05, 0.1])
    weight = packed(type_name, rows.to(device), torch.bfloat16, product)
    linear = make_linear(weight, None, product, weights.shape[1])
    x = torch.randn(num_rows, weights.shape[1], dtype=torch.bfloat16, device=device)
    expected = functional.linear(x.double().cpu(), weights.double())
    error = (linear(x).double().cpu() - expected).norm() / expected.norm()
    assert error < 0.01


@pytest.mark.gpu
@pytest.mark.parametrize("num_columns", [32, 64, 96, 128, 576, 896])
def test_codes_come_back_from_the_order_of_cuda(num_columns: int) -> None:
    product = find_int4(torch.device("cuda"))
    if product is None:
        pytest.skip("this card has no product with 4 bits")
    codes = torch.randint(0, 16, (64, num_columns), dtype=torch.uint8, device="cuda")
    assert torch.equal(product.unpack(product.pack(codes), num_columns), codes)


def test_codes_keep_their_weights_through_packing() -> None:
    codes = Codes(
        torch.randint(0, 256, (N, 64), dtype=torch.uint8),
        torch.full((N, 2), 0.5),
        torch.full((N, 2), -3.0),
    )
    weight = pack_int8(CpuInt4(), codes, torch.float32)
    assert torch.equal(linear_of(weight, 64).unpacked(ALL_ROWS), codes.weights)
