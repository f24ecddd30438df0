"""Files of types that nothing computes with: they open on each path, say so, and compute what they hold."""

from pathlib import Path

import numpy as np
import pytest
import torch

from inference.config import BackendName, EngineConfig
from inference.engine import Engine
from inference.formats.gguf import GgufFile
from inference.formats.gguf_types import TENSOR_TYPES_BY_NAME
from inference.model.int4_product import CpuInt4
from inference.model.loader import load_model
from inference.model.native_model import NativeModel
from inference.model.native_weights import WeightWish, load_native_weights
from inference.model.progress import LoadReporter
from inference.model.quantised_weights import QuantisedFile, QuantisedTensor
from inference.model.weight_plan import plan_weights
from inference.request import LoadProgress
from tests.inference.gguf_files import write_twin
from tests.inference.gguf_twins import remake, wide_config
from tests.inference.loaded_models import logits_of, needs_kernels
from tests.inference.packed_models import decoder_of, weights_in
from tests.inference.test_repack import LOST
from tests.inference.tiny_models import eager_logits, make_tokens
from tests.inference.weight_blocks import make_rows, oracle

TOKENS = make_tokens(24)
# Stored, what our kernels keep it as (some as in the file), what a card does, and how far logits may go: all
# inputs are rounded.
KEPT = [
    ("IQ1_S", "Q4_1", "Q4_1", 0.04),
    ("IQ1_M", "Q4_K", "Q4_K", 0.2),
    ("IQ2_XXS", "Q4_K", "Q4_K", 0.06),
    ("IQ2_XS", "Q4_K", "Q4_K", 0.2),
    ("IQ2_S", "Q4_K", "Q4_K", 0.2),
    ("IQ3_XXS", "Q4_K", "Q4_K", 0.06),
    ("IQ3_S", "Q4_K", "Q4_K", 0.04),
    ("IQ4_NL", "IQ4_NL", "Q8_0", 0.04),
    ("IQ4_XS", "IQ4_XS", "Q8_0", 0.04),
    ("TQ1_0", "Q4_0", "Q4_0", 0.04),
    ("TQ2_0", "Q4_0", "Q4_0", 0.04),
    ("MXFP4", "MXFP4", "Q5_0", 0.04),
    ("NVFP4", "Q8_0", "Q8_0", 0.04),
    ("Q3_K", "Q6_K", "Q8_0", 0.04),
    ("Q2_K", "Q8_0", "Q8_0", 0.04),
]
TYPES = [kept[0] for kept in KEPT]


def write_pair(folder: Path, type_name: str, **changes: object) -> tuple[Path, Path]:
    """A model of one type, and one that holds the same numbers as floats."""
    values = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 272, **changes}
    module = remake(wide_config(**values))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.5)
    path = write_twin(module, folder / "rare.gguf", quantization=type_name)
    numbers = {}
    with GgufFile.read(path) as file:
        for name, tensor in file.tensors.items():
            if tensor.type_name == type_name:
                kind = TENSOR_TYPES_BY_NAME[type_name]
                blocks = file.tensor_data(name).numpy().reshape(-1, kind.block_bytes)
                numbers[name] = oracle(blocks, type_name).reshape(tensor.shape)
    assert len(numbers) > 10
    return path, write_twin(module, folder / "floats.gguf", extra_tensors=numbers)


def distance(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@needs_kernels
@pytest.mark.parametrize(("stored", "kept", "_card", "bound"), KEPT)
def test_kernels_compute_a_file_of_the_type_and_say_what_became_of_it(
    tmp_path: Path, stored: str, kept: str, _card: str, bound: float
) -> None:
    path, floats = write_pair(tmp_path, stored)
    loaded = load_model(path, backend="fast", num_threads=2)
    assert isinstance(loaded.model, NativeModel)
    assert loaded.placement == ("" if kept == stored else f"{stored} weights kept as {kept}")
    assert loaded.quantization == stored
    expected = logits_of(load_model(floats, backend="torch").model, TOKENS)
    assert distance(logits_of(loaded.model, TOKENS, chunk_tokens=7), expected) < bound


@pytest.mark.parametrize("stored", TYPES)
@pytest.mark.parametrize("backend", ["torch", "bridge"])
def test_torch_computes_exactly_what_the_file_holds(
    tmp_path: Path, stored: str, backend: BackendName
) -> None:
    path, floats = write_pair(tmp_path, stored)
    models = [load_model(each, backend=backend) for each in (path, floats)]
    if backend == "torch":
        logits = [logits_of(each.model, TOKENS) for each in models]
    else:
        logits = [eager_logits(each.module, TOKENS) for each in models]
    assert torch.equal(*logits)


@pytest.mark.parametrize(("stored", "kept", "card", "bound"), KEPT)
def test_card_packs_the_type_and_says_what_became_of_it(
    tmp_path: Path, stored: str, kept: str, card: str, bound: float
) -> None:
    path, floats = write_pair(tmp_path, stored)
    with GgufFile.read(path) as file:
        plan = plan_weights(weights_in(file), torch.float32, CpuInt4())
        bits = 4 if card in ("Q4_0", "Q4_1", "Q4_K") else 8
        assert plan.bits == [bits]
        changed = "" if kept == stored else f"{stored} weights kept as {card}"
        assert plan.words == ", ".join(filter(None, (f"weights in {bits} bits", changed)))
        assert plan.changed == changed
        expected = logits_of(load_model(floats, backend="torch").model, TOKENS)
        assert distance(logits_of(decoder_of(plan), TOKENS, chunk_tokens=7), expected) < bound


@needs_kernels
@pytest.mark.parametrize("stored", ["IQ4_NL", "MXFP4"])
def test_rows_of_small_blocks_may_be_of_any_number_of_them(tmp_path: Path, stored: str) -> None:
    path, floats = write_pair(tmp_path, stored, hidden_size=96, head_dim=32)
    loaded = load_model(path, backend="fast")
    assert loaded.placement == ""
    expected = logits_of(load_model(floats, backend="torch").model, TOKENS)
    assert distance(logits_of(loaded.model, TOKENS), expected) < 0.06


@needs_kernels
def test_engine_tells_people(tmp_path: Path) -> None:
    path, _ = write_pair(tmp_path, "IQ3_S")
    engine = Engine.load(path, EngineConfig(device="cpu"))
    info = engine.info
    engine.close()
    assert info.backend.endswith("IQ3_S weights kept as Q4_K")
    assert info.converted == "IQ3_S weights kept as Q4_K"


@needs_kernels
def test_wish_for_rounded_floats_changes_nothing_of_such_a_file(tmp_path: Path) -> None:
    path, _ = write_pair(tmp_path, "IQ3_S")
    plain = load_model(path, backend="fast")
    wished = load_model(path, backend="fast", weights="Q8_0", cache_dir=tmp_path / "cache")
    assert wished.placement == plain.placement == "IQ3_S weights kept as Q4_K"
    assert (wished.quantization, wished.fingerprint) == ("IQ3_S", plain.fingerprint)
    assert not (tmp_path / "cache").exists()


def changed_file(path: Path, reporter: LoadReporter) -> tuple[GgufFile, QuantisedFile]:
    file = GgufFile.read(path)
    name = "token_embd.weight"
    tensors = {name: QuantisedTensor(file.tensors[name].shape, "Q6_K")}
    return file, QuantisedFile(file, tensors, num_threads=2, reporter=reporter)


def test_large_tensor_tells_how_far_it_is_and_can_be_broken_off(tmp_path: Path) -> None:
    path, _ = write_pair(tmp_path, "Q3_K", vocab_size=4096)  # 32 slices
    seen: list[LoadProgress] = []
    reporter = LoadReporter(seen.append)
    reporter.begin("Loading weights", until=1.0)
    reporter.begin_item(1, 2, 4)
    file, changed = changed_file(path, reporter)
    with file, changed:
        changed.tensor_data("token_embd.weight")
    fractions = [progress.fraction for progress in seen]
    assert len(seen) > 20
    assert fractions == sorted(fractions)
    assert 0.25 < fractions[1] < 0.30
    assert fractions[-1] == 0.75

    class BrokenOffError(Exception):
        pass

    def refuse(progress: LoadProgress) -> None:
        if progress.fraction > 0.3:
            raise BrokenOffError

    reporter = LoadReporter(refuse)
    reporter.begin("Loading weights", until=1.0)
    reporter.begin_item(0, 1, 1)
    file, changed = changed_file(path, reporter)
    with file, changed, pytest.raises(BrokenOffError):
        changed.tensor_data("token_embd.weight")


@needs_kernels
def test_whole_load_reports_inside_tensors(tmp_path: Path) -> None:
    from inference.kernels.library import load_kernels

    path, _ = write_pair(tmp_path, "Q3_K", vocab_size=4096)
    kernels = load_kernels()
    assert kernels is not None
    seen: list[LoadProgress] = []
    with GgufFile.read(path) as file:
        weights = weights_in(file)
        wish = WeightWish("auto", None, 1)
        load_native_weights(weights, kernels, wish, LoadReporter(seen.append))
    assert len({progress.fraction for progress in seen}) > 40  # of 16 matrices


@pytest.mark.parametrize("type_name", LOST)
def test_damaged_blocks_become_some_numbers_without_an_error(
    tmp_path: Path, type_name: str
) -> None:
    path, _ = write_pair(tmp_path, type_name)
    data = bytearray(path.read_bytes())
    with GgufFile.read(path) as file:
        tensor = file.tensors["blk.0.ffn_up.weight"]
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, tensor.num_bytes // 2, dtype=np.uint8).tobytes()
    data[tensor.offset : tensor.offset + len(noise)] = noise
    data[tensor.offset + len(noise) : tensor.offset + tensor.num_bytes] = bytes(
        b"\xff" * (tensor.num_bytes - len(noise))
    )
    path.write_bytes(data)
    for backend in ("auto", "torch"):
        load_model(path, backend=backend)
    with GgufFile.read(path) as file:
        decoder_of(plan_weights(weights_in(file), torch.float32, CpuInt4()))


def test_rows_have_the_spread_that_was_asked_for() -> None:
    for type_name in TYPES:
        if type_name != "NVFP4":
            rows = make_rows(type_name, 32, 512, spread=0.1)
            blocks = rows.reshape(-1, TENSOR_TYPES_BY_NAME[type_name].block_bytes)
            assert 0.05 < float(oracle(blocks, type_name).std()) < 0.2, type_name
