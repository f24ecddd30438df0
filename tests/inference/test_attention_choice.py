"""Which attention is chosen, why, and which orders are refused."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inference.attention.base import AttentionBackend, LayerCall
from inference.attention.blocks import BlocksAttention
from inference.attention.choice import AttentionNeeds, choose_attention
from inference.attention.flash import FlashKernel
from inference.attention.paged import PagedAttention
from inference.attention.reference import ReferenceAttention
from inference.attention.varlen import VarlenKernel
from inference.config import AttentionName, KvSchemeName
from inference.errors import InvalidRequestError
from inference.kv_cache.layer_memory import KeyValues
from inference.kv_cache.schemes import LayerGeometry, find_scheme
from inference.kv_cache.tensors import KvTensors
from tests.inference.paged_kernels import (
    EmulatedVarlen,
    emulated_flash_attention_forward,
    emulated_flash_attn_varlen_func,
    span_over,
)

Kernel = Callable[..., tuple[Tensor, ...]]


class EmulatedFlash(FlashKernel):
    """`FlashKernel` without a GPU."""

    def __init__(self) -> None:
        super().__init__(emulated_flash_attn_varlen_func)

    def why_not_on(self, device: torch.device) -> str:
        return ""


def needs(
    *,
    dtype: torch.dtype = torch.bfloat16,
    kv_scheme: KvSchemeName = "auto",
    head_dim: int = 8,
    has_softcap: bool = False,
    block_size: int | None = None,
) -> AttentionNeeds:
    return AttentionNeeds(
        device=torch.device("cpu"),
        dtype=dtype,
        scheme=find_scheme(kv_scheme, dtype),
        geometry=(LayerGeometry(2, head_dim),) * 3,
        has_softcap=has_softcap,
        block_size=block_size,
    )


def refusal(wish: AttentionName, wanted: AttentionNeeds, *kernels: VarlenKernel) -> str:
    """What is said to an order that cannot be followed."""
    with pytest.raises(InvalidRequestError) as raised:
        choose_attention(wish, wanted, kernels or (EmulatedVarlen(), EmulatedFlash()))
    assert raised.value.field == "attention_backend"
    return str(raised.value)


def choose(wish: AttentionName, wanted: AttentionNeeds) -> tuple[AttentionBackend, str]:
    return choose_attention(wish, wanted, (EmulatedVarlen(), EmulatedFlash()))


def test_auto_takes_the_first_kernel_that_can() -> None:
    backend, reason = choose("auto", needs())
    assert isinstance(backend, PagedAttention)
    assert (backend.name, backend.block_size, reason) == ("varlen", 256, "varlen (CPU)")
    backend, reason = choose("auto", needs(has_softcap=True))
    assert (backend.name, reason) == ("flash", "flash (CPU)")


def test_order_is_followed_and_told() -> None:
    backend, reason = choose("flash", needs(block_size=512))
    assert (backend.name, backend.block_size) == ("flash", 512)
    assert reason == "flash (CPU, chosen in the configuration)"
    backend, reason = choose("blocks", needs())
    assert isinstance(backend, BlocksAttention)
    assert (backend.block_size, reason) == (16, "blocks (CPU, chosen in the configuration)")
    backend, _ = choose("reference", needs())
    assert isinstance(backend, ReferenceAttention)


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [
        (needs(dtype=torch.float32), "it does not compute in float32"),
        (needs(kv_scheme="int8"), "it cannot read keys and values stored as int8"),
        (needs(kv_scheme="int4"), "it cannot read keys and values stored as int4"),
        (needs(kv_scheme="fp16"), "it cannot read keys and values stored as fp16"),
        (needs(head_dim=12), "it has no form for heads of 12 numbers"),
        (needs(head_dim=264), "it has no form for heads of 264 numbers"),
        (needs(block_size=16), "it reads blocks of 256 slots, not of 16"),
        (needs(has_softcap=True), "it cannot cap scores as this model does"),
    ],
)
def test_order_that_cannot_be_followed_is_refused_with_the_reason(
    wanted: AttentionNeeds, reason: str
) -> None:
    assert f"cannot be 'varlen' here: {reason}." in refusal("varlen", wanted)
    backend, _ = choose_attention("auto", wanted, [EmulatedVarlen()])
    assert isinstance(backend, BlocksAttention)


def test_real_kernels_are_refused_on_the_cpu() -> None:
    reason = "cannot be 'varlen' here: it runs on CUDA devices only."
    assert reason in refusal("varlen", needs(), VarlenKernel())
    assert choose_attention("auto", needs())[1] == "blocks (CPU)"


def test_other_devices_are_told_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def on(kind: str) -> AttentionNeeds:
        wanted = needs()
        return AttentionNeeds(
            torch.device(kind), wanted.dtype, wanted.scheme, wanted.geometry, wanted.has_softcap
        )

    assert choose_attention("auto", on("mps"))[1] == "blocks (mps, without a kernel of its own)"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert choose_attention("auto", on("cuda"))[1] == (
        "blocks (cuda; not varlen: the device is older than Ampere"
        "; not flash: the device is older than Ampere)"
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert FlashKernel().why_not_on(torch.device("cuda")) == (
        "the package flash-attn is not installed"
    )
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert VarlenKernel().why_not_on(torch.device("cuda")) == "it was never tried on ROCm"


def test_torch_built_without_the_kernel_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    reason = "this build of torch lacks FlashAttention"
    assert VarlenKernel().why_not_on(torch.device("cuda")) == reason
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    assert VarlenKernel().why_not_on(torch.device("cuda")) == ""


@pytest.mark.parametrize(("heads", "window"), [((4, 2), None), ((2, 2), 300), ((6, 1), 20)])
@pytest.mark.parametrize("lengths", [[(700, 1), (3, 1)], [(300, 1), (8, 30)]])
def test_varlen_calls_torchs_operator_as_it_is_declared(
    lengths: list[tuple[int, int]], heads: tuple[int, int], window: int | None
) -> None:
    """On meta tensors the very operator checks its arguments' names and types, and says what it gives."""
    meta = torch.device("meta")
    kv = KvTensors(
        [LayerGeometry(heads[1], 64)],
        num_blocks=6,
        block_size=256,
        scheme=find_scheme("bf16", torch.bfloat16),
        device=meta,
    )
    spans, row = [], 0
    for start, num_rows in lengths:
        spans.append(span_over(row, num_rows, start, [5, 1, 3], 256))
        row += num_rows
    paged = PagedAttention(VarlenKernel(), block_size=256, device=meta)
    paged.begin_step(spans)
    query = torch.empty(1, heads[0], row, 64, dtype=torch.bfloat16, device=meta)
    out = paged.attend(query, KeyValues(query, query), kv.layers[0], LayerCall(0.1, window))
    assert (out.shape, out.dtype) == ((1, row, heads[0], 64), torch.bfloat16)


def test_varlen_says_which_keys_a_row_sees() -> None:
    calls = []

    def noting(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        calls.append((kwargs["window_size_left"], kwargs["window_size_right"], args[8]))
        return emulated_flash_attention_forward(*args, **kwargs)

    choose_attention("varlen", needs(), [EmulatedVarlen(noting)])  # tries it
    assert set(calls) == {(-1, -1, False), (-1, 0, True), (306, 0, False)}


def changed(**changes: Callable[[Any], Any]) -> Kernel:
    """A kernel that gets some of its arguments wrong."""

    def kernel(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        for name, change in changes.items():
            kwargs[name] = change(kwargs[name])
        return emulated_flash_attention_forward(*args, **kwargs)

    return kernel


def not_causal(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    if args[8]:
        args = (*args[:8], False, *args[9:])
        kwargs["window_size_right"] = -1
    return emulated_flash_attention_forward(*args, **kwargs)


def no_table(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    raise RuntimeError("block_table is not supported\nin this build")


def no_compiler(*args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    raise KeyError("CUDA_HOME")


WRONG_KERNELS = {
    "zeros": lambda *args, **kwargs: (torch.zeros_like(args[0]),),
    "another scale": changed(scale=lambda scale: scale * 1.1),
    "a key too few": changed(seqused_k=lambda used: (used - 1).clamp(min=1)),
    "a narrower window": changed(
        window_size_left=lambda left: max(left - 1, 0) if left >= 0 else left
    ),
    "other pages": changed(block_table=lambda table: table.roll(1, dims=1)),
    "not causal": not_causal,
}


@pytest.mark.parametrize("name", WRONG_KERNELS)
def test_kernel_that_computes_something_else_is_not_used(name: str) -> None:
    kernel = EmulatedVarlen(WRONG_KERNELS[name])
    reason = "the kernel computes something else on this device"
    assert reason in refusal("varlen", needs(), kernel)
    assert isinstance(choose_attention("auto", needs(), [kernel])[0], BlocksAttention)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [(no_table, "block_table is not supported."), (no_compiler, "'CUDA_HOME'.")],
    ids=["operator", "package"],
)
def test_kernel_that_refuses_is_not_used(kernel: Kernel, words: str) -> None:
    text = refusal("varlen", needs(), EmulatedVarlen(kernel))
    assert f"the kernel refuses to run: {words}" in text


def test_package_that_cannot_be_imported_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "flash_attn.py").write_text("raise AttributeError('no such symbol')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "flash_attn", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    reason = "the package flash-attn does not fit this torch"
    assert FlashKernel().why_not_on(torch.device("cuda")) == reason


def test_engine_loads_without_torchs_compiler_and_kernels_of_other_devices() -> None:
    code = (
        "import sys, torch\n"
        "import inference.engine, inference.model.decoder\n"
        "from inference.attention.varlen import VarlenKernel\n"
        "VarlenKernel().why_not_on(torch.device('cpu'))\n"
        "print([name for name in ('torch._dynamo', 'torch.nn.attention.varlen', 'flash_attn')"
        " if name in sys.modules])\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
