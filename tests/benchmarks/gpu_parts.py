"""The parts of `gpu_check` that need no model file: device, kernels, tiny models, products, copies."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from inference.attention.choice import AttentionNeeds, choose_attention
from inference.errors import InvalidRequestError
from inference.formats.codes import Codes
from inference.kv_cache.schemes import LayerGeometry, find_scheme
from inference.kv_cache.tensors import KvTensors
from inference.model.base import Runner
from inference.model.decoder import TorchDecoder
from inference.model.decoder_weights import read_weights
from inference.model.gpu_linear import PackedLinear, make_linear, pack_int4, pack_int8
from inference.model.int4_product import Int4Product, find_int4
from inference.model.step import Chunk
from tests.benchmarks.gpu_models import Result, seconds
from tests.inference.tiny_decoders import make_variant, weights_of
from tests.inference.tiny_models import eager_logits, make_tokens

FAMILIES = ("llama", "qwen3", "gemma2", "gemma3", "phi3-partial")
SHAPES = ((8, 128), (2, 64), (3, 64), (4, 256), (5, 80))  # KH, D
ROWS = (1, 4, 16, 64, 128, 256, 512, 1024, 2048)


def check_device(device: torch.device, *, is_quick: bool) -> Result:
    """The device, and how fast it copies."""
    found: Result = {"torch": torch.__version__, "device": str(device)}
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found["name"] = properties.name
        found["capability"] = f"{properties.major}.{properties.minor}"
        found["memory GB"] = properties.total_memory / 2**30
    size = (64 if is_quick else 2048) * 2**20
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    took = seconds(lambda: target.copy_(source), device, times=3 if is_quick else 10)
    found["copy GB/s"] = 2 * size / took / 1e9  # read and written
    return found


def check_kernels(device: torch.device) -> Result:
    """What attends for some shapes of heads; a kernel that is taken was tried against the reference."""
    found: Result = {}
    dtype = torch.bfloat16
    for KH, D in SHAPES:
        needs = AttentionNeeds(
            device, dtype, find_scheme("auto", dtype), (LayerGeometry(KH, D),), has_softcap=False
        )
        found[f"{KH} heads of {D}"] = choose_attention("auto", needs)[1]
        try:
            found[f"{KH} heads of {D}, flash"] = choose_attention("flash", needs)[1]
        except InvalidRequestError as error:
            found[f"{KH} heads of {D}, flash"] = error.reason
    return found


def check_families(device: torch.device, *, is_quick: bool) -> Result:
    """Logits of tiny seeded models against transformers on the CPU in float32.

    In float32 the largest error; in bfloat16 the mean error, and that of transformers in bfloat16.
    """
    tokens = make_tokens(300)
    found: Result = {}
    for family in FAMILIES[:1] if is_quick else FAMILIES:
        truth = eager_logits(make_variant(family), tokens)
        error, _ = _error_of(family, torch.float32, device, tokens, truth)
        found[f"{family} float32"] = float(error.max())
        error, backend = _error_of(family, torch.bfloat16, device, tokens, truth)
        found[f"{family} bfloat16"] = float(error.mean())
        theirs = eager_logits(make_variant(family, dtype=torch.bfloat16), tokens)
        found[f"{family} bfloat16, transformers"] = float((theirs - truth).abs().mean())
        found[f"{family} by"] = backend
    return found


def _error_of(
    family: str, dtype: torch.dtype, device: torch.device, tokens: list[int], truth: Tensor
) -> tuple[Tensor, str]:
    """Errors of all logits, the prompt read in three chunks; and what attends."""
    weights = weights_of(make_variant(family, dtype=dtype))
    tensors = read_weights(weights, dtype=dtype, device=device.type)
    runner, backend = _tiny_runner(TorchDecoder(weights.spec, tensors))
    table = range(-(-len(tokens) // runner.kv.block_size))
    logits = [
        runner.run([Chunk(tokens[low:high], low, table, needs_logits=True, needs_all_logits=True)])
        for low, high in ((0, 120), (120, 299), (299, 300))
    ]
    return (torch.cat(logits).cpu() - truth).abs(), backend


def _tiny_runner(decoder: TorchDecoder) -> tuple[Runner, str]:
    """A runner over as many blocks as the tiny texts need, and what attends."""
    scheme = find_scheme("fp32" if decoder.dtype == torch.float32 else "auto", decoder.dtype)
    needs = AttentionNeeds(
        decoder.device, decoder.dtype, scheme, decoder.geometry, decoder.has_attention_softcap
    )
    attention, reason = choose_attention("auto", needs)
    kv = KvTensors(
        decoder.geometry,
        num_blocks=-(-512 // attention.block_size),
        block_size=attention.block_size,
        scheme=scheme,
        device=decoder.device,
        has_spare=True,
    )
    return decoder.make_runner(kv, attention), reason


def check_products(device: torch.device, *, is_quick: bool) -> Result:
    """Microseconds of a product with a square matrix by rows, and what rounding makes of the result."""
    product = find_int4(device)
    if product is None:
        return {"left out": "the device has no product with packed weights"}
    size = 128 if is_quick else 4096
    all_rows = ROWS[:3] if is_quick else ROWS
    times = 1 if is_quick else 20
    rows_of = {count: _random(count, size, device) for count in all_rows}
    found: Result = {"size": size}
    for num_bits in (4, 8):
        linear, found[f"int{num_bits} error"] = _packed(num_bits, size, product, device)
        for count, x in rows_of.items():
            calls = {"": _kernel_call(linear, product, x), " unpacked": _floats_call(linear, x)}
            for word, call in calls.items():
                took = seconds(call, device, times=times)
                found[f"int{num_bits}{word}, {count} rows us"] = 1e6 * took
    matrix = _random(size, size, device)
    for count, x in rows_of.items():
        took = seconds(_plain_call(matrix, x), device, times=times)
        found[f"bfloat16, {count} rows us"] = 1e6 * took
    return found


def _random(rows: int, columns: int, device: torch.device) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randn(rows, columns, generator=generator).to(device, torch.bfloat16)


def _packed(
    num_bits: int, size: int, product: Int4Product, device: torch.device
) -> tuple[PackedLinear, float]:
    """A packed matrix of random codes, and its relative error against the product in float32."""
    count = 2**num_bits
    generator = torch.Generator().manual_seed(num_bits)
    drawn = torch.randint(0, count, (size, size), generator=generator, dtype=torch.uint8)
    scale = torch.full((size, size // 32), 2.0 / count, device=device)
    codes = Codes(drawn.to(device), scale, -scale * count / 2)
    pack = pack_int4 if num_bits == 4 else pack_int8
    linear = make_linear(pack(product, codes, torch.bfloat16), None, product, size)
    assert isinstance(linear, PackedLinear)
    x = _random(16, size, device)
    expected = x.float() @ codes.weights.t()
    return linear, float((linear(x).float() - expected).norm() / expected.norm())


def _kernel_call(linear: PackedLinear, product: Int4Product, x: Tensor) -> Callable[[], object]:
    return lambda: [product.multiply(x, part.packed, part.lines) for part in linear._parts]


def _floats_call(linear: PackedLinear, x: Tensor) -> Callable[[], object]:
    return lambda: linear.by_floats(x)


def _plain_call(matrix: Tensor, x: Tensor) -> Callable[[], object]:
    return lambda: functional.linear(x, matrix)


def check_copies(device: torch.device, *, is_quick: bool) -> Result:
    """How fast blocks go to the host and come back, one by one as the tiers move them."""
    num_blocks = 1 if is_quick else 32
    kv = KvTensors(
        [LayerGeometry(8, 128)] * 28,
        num_blocks=num_blocks,
        block_size=256,
        scheme=find_scheme("bf16", torch.bfloat16),
        device=device,
    )
    host = torch.empty(kv.block_bytes, dtype=torch.uint8)
    rows = {"payload_rows": 256, "skip": 0, "num_rows": 256}

    def out() -> None:
        for block_id in range(num_blocks):
            kv.export_rows(block_id, 0, 256, host)

    def back() -> None:
        for block_id in range(num_blocks):
            kv.import_rows(block_id, 0, host, **rows)

    size = num_blocks * kv.block_bytes / 1e9
    return {
        "to the host GB/s": size / seconds(out, device, times=3),
        "to the device GB/s": size / seconds(back, device, times=3),
    }
