import numpy as np
import numpy.typing as npt
import pytest

from inference.formats.gguf_types import TENSOR_TYPES_BY_NAME
from inference.kernels.library import KernelError, load_kernels
from inference.kernels.structures import Matrix, MatrixType
from tests.inference.kernel_matrices import (
    FLOATS,
    ORDINARY,
    QUANTISED,
    SCALE_OFFSETS,
    Bytes,
    Doubles,
    Floats,
    aligned,
    block_columns,
    dequantised,
    multiply,
    pack,
    random_rows,
    rounded_inputs,
)

found = load_kernels()
pytestmark = pytest.mark.skipif(found is None, reason="the kernels were not built")
ISAS = [name for name in ("avx512vnni", "avxvnni", "avx2", "neon", "portable")
        if found is not None and found.set_isa(name)]  # fmt: skip
BEST = found.set_isa(ISAS[0]) if found is not None else False
NUM_X = [1, 2, 3, 4, 5, 6, 7, 8, 9, 33, 300]


@pytest.fixture
def kernels():
    assert found is not None
    yield found
    found.set_isa(ISAS[0])


@pytest.fixture(scope="module")
def teams():
    assert found is not None
    made = {size: found.new_team(size) for size in (1, 2, 3)}
    yield made
    for team in made.values():
        team.close()


def columns_of(type_name: str) -> list[int]:
    """One block, and numbers that leave a group of 256 columns short."""
    return [256, 512, 1536] if block_columns(type_name) == 256 else [32, 96, 256, 288, 576]


def expected(type_name: str, rows: Bytes, x: Floats) -> tuple[Doubles, Doubles]:
    """The products in float64, and the size of what was added up: errors are relative to that."""
    weights: Doubles = dequantised(type_name, rows).astype(np.float64)
    inputs: Doubles = x.astype(np.float64) if type_name in FLOATS else rounded_inputs(x)
    return inputs @ weights.T, np.abs(inputs) @ np.abs(weights).T


def assert_close(got: Floats, wanted: Doubles, size: Doubles, tolerance: float) -> None:
    assert np.isfinite(got).all()
    error = np.abs(got - wanted) / np.maximum(size, 1e-30)
    assert error.max() <= tolerance


@pytest.mark.parametrize("type_name", [*QUANTISED, *FLOATS])
@pytest.mark.parametrize(
    "scales",
    [ORDINARY, (0.0,), (6e-8, 5e-7, -6e-8), (65504.0, -65504.0)],
    ids=["ordinary", "zero", "subnormal", "largest"],
)
def test_unpack_row_of_any_block_equals_gguf_package(kernels, type_name, scales):
    for num_columns in columns_of(type_name):
        rows = random_rows(type_name, 21, num_columns, scales)
        packed = pack(kernels, type_name, rows, num_columns)
        out = np.empty((21, num_columns), dtype=np.float32)
        for row in range(21):
            kernels.unpack_row(packed.matrix, row, out[row].ctypes.data)
        np.testing.assert_array_equal(out, dequantised(type_name, rows))


def test_unpack_row_of_every_scale_of_mxfp4_equals_gguf_package(kernels):
    exponents = np.arange(251, dtype=np.uint8)  # beyond, twice the largest level is infinite
    rows = random_rows("MXFP4", len(exponents), 32)
    rows[:, 0] = exponents
    packed = pack(kernels, "MXFP4", rows, 32)
    out = np.empty((len(exponents), 32), dtype=np.float32)
    for row in exponents:
        kernels.unpack_row(packed.matrix, int(row), out[row].ctypes.data)
    np.testing.assert_array_equal(out, dequantised("MXFP4", rows))
    rows[0, 0] = 255
    packed = pack(kernels, "MXFP4", rows, 32)
    kernels.unpack_row(packed.matrix, 0, out[0].ctypes.data)
    assert np.isnan(out[0]).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", [*QUANTISED, *FLOATS])
def test_matmul_of_any_number_of_rows_equals_float64(kernels, teams, type_name, isa):
    kernels.set_isa(isa)
    rng = np.random.default_rng(1)
    for num_columns in columns_of(type_name):
        rows = random_rows(type_name, 37, num_columns)
        packed = pack(kernels, type_name, rows, num_columns)
        for M in NUM_X:
            x = rng.standard_normal((M, num_columns)).astype(np.float32)
            got = multiply(kernels, teams[2], packed, x)
            assert_close(got, *expected(type_name, rows, x), 2e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", QUANTISED)
def test_matmul_of_float_inputs_errs_by_their_rounding_alone(kernels, teams, type_name, isa):
    kernels.set_isa(isa)
    columns = 1536
    rows = random_rows(type_name, 64, columns)
    x = np.random.default_rng(2).standard_normal((5, columns)).astype(np.float32)
    got = multiply(kernels, teams[2], pack(kernels, type_name, rows, columns), x)
    weights = dequantised(type_name, rows).astype(np.float64)
    # Half a step of each number: its block's largest / 127 / 2.
    largest = np.abs(x.reshape(5, -1, 32)).max(axis=2).repeat(32, axis=1)
    bound = (largest / 254 * 1.001) @ np.abs(weights).T
    assert (np.abs(got - x @ weights.T) <= bound).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", QUANTISED)
@pytest.mark.parametrize(
    "scales",
    [(0.0,), (6e-8, 5e-7, -6e-8), (65504.0, -65504.0)],
    ids=["zero", "subnormal", "largest"],
)
@pytest.mark.parametrize("x_size", [1e-20, 1.0, 1e20])
def test_matmul_with_extreme_scales_equals_float64(kernels, teams, type_name, isa, scales, x_size):
    kernels.set_isa(isa)
    columns = 512
    rows = random_rows(type_name, 24, columns, scales)
    x = (x_size * np.random.default_rng(3).standard_normal((3, columns))).astype(np.float32)
    got = multiply(kernels, teams[2], pack(kernels, type_name, rows, columns), x)
    assert_close(got, *expected(type_name, rows, x), 2e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", QUANTISED)
def test_matmul_of_extreme_codes_does_not_overflow(kernels, teams, type_name, isa):
    kernels.set_isa(isa)
    columns = 512
    for filling in (
        0x00,
        0x77,
        0x7F,
        0x80,
        0xFF,
    ):  # of MXFP4 7 is the largest level, 15 the lowest; of IQ4 15, 0
        rows = random_rows(type_name, 16, columns, (1.0,))
        rest = random_rows(type_name, 16, columns, (1.0,))
        rest[:] = filling
        keep = scale_mask(type_name, rows.shape[1])
        rows = np.where(keep, rows, rest)
        for x in (np.ones((2, columns)), -np.ones((2, columns))):
            inputs = np.ascontiguousarray(x, dtype=np.float32)
            got = multiply(kernels, teams[1], pack(kernels, type_name, rows, columns), inputs)
            assert_close(got, *expected(type_name, rows, inputs), 2e-6)


def scale_mask(type_name: str, row_bytes: int) -> npt.NDArray[np.bool_]:
    kind = TENSOR_TYPES_BY_NAME[type_name]
    mask = np.zeros(kind.block_bytes, dtype=bool)
    for start in SCALE_OFFSETS[type_name]:
        mask[start : start + 2] = True
    mask[0] |= type_name == "MXFP4"
    return np.tile(mask, row_bytes // kind.block_bytes)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("type_name", [*QUANTISED, *FLOATS])
def test_matmul_row_has_the_same_bits_in_any_company(kernels, teams, type_name, isa):
    kernels.set_isa(isa)
    columns = 768
    rows = random_rows(type_name, 203, columns)
    packed = pack(kernels, type_name, rows, columns)
    x = np.random.default_rng(4).standard_normal((300, columns)).astype(np.float32)
    alone = np.concatenate([multiply(kernels, teams[1], packed, x[i : i + 1]) for i in range(300)])
    for size, team in teams.items():
        for M in NUM_X:
            first = (300 - M) // 2 if size == 3 else 0
            got = multiply(kernels, team, packed, x[first : first + M])
            np.testing.assert_array_equal(got, alone[first : first + M])


@pytest.mark.parametrize("isa", ISAS)
def test_matmul_of_inputs_that_are_zero_gives_zero(kernels, teams, isa):
    kernels.set_isa(isa)
    for type_name in [*QUANTISED, *FLOATS]:
        rows = random_rows(type_name, 20, 512)
        packed = pack(kernels, type_name, rows, 512)
        x = np.zeros((3, 512), dtype=np.float32)
        x[1, 40] = 1e-38  # too small for a scale of its own
        got = multiply(kernels, teams[2], packed, x)
        assert np.abs(got).max() <= (0.0 if type_name in QUANTISED else 1e-36)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_matmul_of_inputs_that_are_no_numbers_gives_no_numbers(kernels, teams, isa, bad):
    kernels.set_isa(isa)
    for type_name in [*QUANTISED, *FLOATS]:
        packed = pack(kernels, type_name, random_rows(type_name, 20, 512), 512)
        x = np.ones((3, 512), dtype=np.float32)
        x[1, 77] = bad
        got = multiply(kernels, teams[2], packed, x)
        assert not np.isfinite(got[1]).any()
        assert np.isfinite(got[[0, 2]]).all()


@pytest.mark.parametrize("type_name", FLOATS)
@pytest.mark.parametrize("isa", ISAS)
def test_matmul_of_floats_takes_any_number_of_columns(kernels, teams, type_name, isa):
    kernels.set_isa(isa)
    rng = np.random.default_rng(5)
    for columns in (1, 7, 16, 31, 45):
        rows = random_rows(type_name, 19, columns)
        x = rng.standard_normal((5, columns)).astype(np.float32)
        got = multiply(kernels, teams[2], pack(kernels, type_name, rows, columns), x)
        assert_close(got, *expected(type_name, rows, x), 2e-6)


def test_matmul_with_strides_leaves_the_gaps_alone(kernels, teams):
    rows = random_rows("Q4_1", 40, 64)
    packed = pack(kernels, "Q4_1", rows, 64)
    wide = np.random.default_rng(6).standard_normal((9, 100)).astype(np.float32)
    y = np.full((9, 50), 7.0, dtype=np.float32)
    kernels.matmul(teams[2], packed.matrix, wide.ctypes.data, 9, 100, y.ctypes.data, 50)
    x = np.ascontiguousarray(wide[:, :64])
    np.testing.assert_array_equal(y[:, :40], multiply(kernels, teams[2], packed, x))
    assert (y[:, 40:] == 7.0).all()


def test_pack_in_parts_of_scattered_rows_equals_pack_at_once(kernels):
    for type_name in [*QUANTISED, *FLOATS]:
        rows = random_rows(type_name, 53, 256)
        order = np.random.default_rng(7).permutation(53)
        whole = pack(kernels, type_name, np.ascontiguousarray(rows[order]), 256)
        memory = aligned(len(whole.memory))
        matrix = Matrix(MatrixType[type_name], 53, 256, 0, memory.ctypes.data)
        for first in (32, 0):
            part = order[first : first + 32]
            kernels.pack(matrix, first, [rows[i].ctypes.data for i in part])
        np.testing.assert_array_equal(memory, whole.memory)


def test_packed_size_of_common_types_is_close_to_the_file(kernels):
    bits = {
        name: 8 * kernels.packed_bytes(MatrixType[name], 1024, 2048) / 2**21 for name in QUANTISED
    }
    assert bits == {
        "Q4_0": 4.5, "Q4_1": 5.0, "Q5_0": 5.5, "Q5_1": 6.0, "Q8_0": 8.5, "Q4_K": 4.625,
        "Q5_K": 5.625, "Q6_K": 6.625, "MXFP4": 4.5, "IQ4_NL": 4.5, "IQ4_XS": 4.625,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("type_name", "rows", "columns"),
    [("Q4_1", 16, 33), ("Q4_K", 16, 32), ("Q4_1", 0, 32), ("Q4_1", 16, 0), ("Q4_1", -1, 32)],
)
def test_size_that_cannot_be_is_refused(kernels, teams, type_name, rows, columns):
    kind = MatrixType[type_name]
    assert kernels.packed_bytes(kind, rows, columns) == 0
    memory = aligned(4096)
    matrix = Matrix(kind, rows, columns, 0, memory.ctypes.data)
    with pytest.raises(KernelError):
        kernels.pack(matrix, 0, [memory.ctypes.data])
    with pytest.raises(KernelError):
        kernels.matmul(teams[1], matrix, memory.ctypes.data, 1, 64, memory.ctypes.data, 64)


def test_row_that_is_nowhere_is_refused(kernels):
    rows = random_rows("Q4_1", 16, 64)
    packed = pack(kernels, "Q4_1", rows, 64)
    with pytest.raises(KernelError):
        kernels.pack(packed.matrix, 0, [rows.ctypes.data] * 15 + [0])


def test_rows_that_do_not_fill_a_panel_are_refused(kernels):
    rows = random_rows("Q4_1", 40, 64)
    packed = pack(kernels, "Q4_1", rows, 64)
    address = rows.ctypes.data
    for first, count in ((1, 16), (0, 5), (32, 9), (-16, 16), (48, 1)):
        with pytest.raises(KernelError):
            kernels.pack(packed.matrix, first, [address] * count)
    for row in (-1, 40):
        with pytest.raises(KernelError):
            kernels.unpack_row(packed.matrix, row, address)
