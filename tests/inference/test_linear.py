import pytest
import torch
from torch import Tensor, nn

from inference.model import linear
from inference.model.linear import FastLinear, use_fast_linear


@pytest.fixture(autouse=True)
def _same_threads_after():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make_linear(rows: int, columns: int, *, bias: bool = False) -> nn.Linear:
    torch.manual_seed(rows * 31 + columns)
    return nn.Linear(columns, rows, bias=bias).requires_grad_(False)


def expected(layer: nn.Linear, rows: Tensor) -> Tensor:
    wide = rows.double() @ layer.weight.double().T
    bias: Tensor | None = layer.bias
    return wide if bias is None else wide + bias.double()


class Child(nn.Linear):
    """A layer that may compute something else."""


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 3, 8, 16, 130])
@pytest.mark.parametrize(("rows", "columns"), [(64, 48), (576, 192), (97, 33), (30, 1)])
def test_fast_linear_any_rows_equals_the_product(rows, columns, num_rows, bias):
    layer = make_linear(rows, columns, bias=bias)
    given = torch.randn(1, num_rows, columns)
    with torch.inference_mode():
        got = FastLinear(layer)(given)
    assert got.shape == (1, num_rows, rows)
    assert torch.allclose(got.double(), expected(layer, given), atol=1e-5, rtol=1e-5)


def test_fast_linear_row_of_a_wider_tensor_equals_the_product():
    layer = make_linear(64, 48)
    given = torch.randn(5, 48)[3]  # a view, and without a batch
    with torch.inference_mode():
        got = FastLinear(layer)(given)
    assert got.shape == (64,)
    assert torch.allclose(got.double(), expected(layer, given), atol=1e-5)


def test_fast_linear_one_row_gives_the_same_bits_on_any_number_of_threads():
    layer = FastLinear(make_linear(768, 640))
    given = torch.randn(1, 640)
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        with torch.inference_mode():
            results.append(layer(given))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize(
    ("rows", "parts"), [(49152, 64), (576, 36), (192, 12), (97, 0), (30, 0), (32, 2), (151936, 64)]
)
def test_parts_divide_the_rows(rows, parts):
    assert linear._parts(rows) == parts


def test_use_fast_linear_exchanges_plain_float32_layers_only(monkeypatch):
    monkeypatch.setattr(linear, "_is_faster_here", lambda: True)
    plain, child, half = make_linear(32, 8), Child(8, 32), make_linear(32, 8).bfloat16()
    model = nn.ModuleDict(
        {"plain": plain, "inner": nn.Sequential(child, half), "norm": nn.LayerNorm(8)}
    )
    exchanged = use_fast_linear(model)
    assert [type(module) for module in model.modules() if isinstance(module, nn.Linear)] == [
        Child,
        nn.Linear,
    ]
    assert exchanged == [model["plain"]]
    assert exchanged[0].weight is plain.weight


def test_use_fast_linear_keeps_a_tied_head_tied(monkeypatch):
    monkeypatch.setattr(linear, "_is_faster_here", lambda: True)
    embedding = nn.Embedding(32, 8)
    model = nn.ModuleDict({"embed": embedding, "head": nn.Linear(8, 32, bias=False)})
    model["head"].weight = embedding.weight
    use_fast_linear(model)
    assert model["head"].weight is model["embed"].weight


def test_use_fast_linear_on_other_processors_changes_nothing(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    model = nn.Sequential(make_linear(32, 8))
    assert use_fast_linear(model) == []
    assert type(model[0]) is nn.Linear
