"""Which attention is chosen, why, and which orders are refused."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inference.attention.base import AttentionBackend
from inference.attention.blocks import BlocksAttention
from inference.attention.choice import AttentionNeeds, choose_attention
from inference.attention.flash import FlashKernel
from inference.attention.paged import PagedAttention
from inference.attention.reference import ReferenceAttention
from inference.attention.varlen import VarlenKernel
from inference.config import AttentionName, KvSchemeName
from inference.errors import InvalidRequestError
from inference.kv_cache.schemes import LayerGeometry, find_scheme
from tests.inference.paged_kernels import (
    EmulatedVarlen,
    emulated_flash_attn_varlen_func,
    emulated_varlen_attn,
)

Kernel = Callable[..., Tensor]


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


def test_varlen_calls_torchs_function_as_it_is_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.nn.attention.varlen import varlen_attn

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    kernel = VarlenKernel()
    assert kernel.why_not_on(torch.device("cuda")) == ""
    assert kernel._function is varlen_attn
    declared = inspect.signature(varlen_attn)
    calls = []

    def noting(*args: Any, **kwargs: Any) -> Tensor:
        calls.append(declared.bind(*args, **kwargs).arguments)
        return emulated_varlen_attn(*args, **kwargs)

    choose_attention("varlen", needs(), [EmulatedVarlen(noting)])  # tries it
    assert {call["window_size"] for call in calls} == {(-1, -1), (-1, 0), (306, 0)}
    assert {(call["cu_seq_q"].dtype, call["block_table"].dtype) for call in calls} == {
        (torch.int32, torch.int32)
    }


def changed(**changes: Callable[[Any], Any]) -> Kernel:
    """A kernel that gets some of its arguments wrong."""

    def kernel(*args: Any, **kwargs: Any) -> Tensor:
        for name, change in changes.items():
            kwargs[name] = change(kwargs[name])
        return emulated_varlen_attn(*args, **kwargs)

    return kernel


def narrower(size: tuple[int, int]) -> tuple[int, int]:
    return (max(size[0] - 1, 0), size[1]) if size[0] >= 0 else size


def no_table(*args: Any, **kwargs: Any) -> Tensor:
    raise RuntimeError("block_table is not supported\nin this build")


WRONG_KERNELS = {
    "zeros": lambda *args, **kwargs: torch.zeros_like(args[0]),
    "another scale": changed(scale=lambda scale: scale * 1.1),
    "a key too few": changed(seqused_k=lambda used: (used - 1).clamp(min=1)),
    "a narrower window": changed(window_size=narrower),
    "other pages": changed(block_table=lambda table: table.roll(1, dims=1)),
    "not causal": changed(window_size=lambda size: (-1, -1) if size == (-1, 0) else size),
}


@pytest.mark.parametrize("name", WRONG_KERNELS)
def test_kernel_that_computes_something_else_is_not_used(name: str) -> None:
    kernel = EmulatedVarlen(WRONG_KERNELS[name])
    reason = "the kernel computes something else on this device"
    assert reason in refusal("varlen", needs(), kernel)
    assert isinstance(choose_attention("auto", needs(), [kernel])[0], BlocksAttention)


def test_kernel_that_refuses_is_not_used() -> None:
    text = refusal("varlen", needs(), EmulatedVarlen(no_table))
    assert "the kernel refuses to run: block_table is not supported." in text


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
