"""How the KV memory of a model is put together: its tiers, its name, and whether int4 suits it."""

import errno
import shutil
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inference import kv_budgets, kv_loading
from inference.attention import choice
from inference.attention.reference import ReferenceAttention
from inference.config import EngineConfig
from inference.engine import Engine
from inference.engine_loading import EngineParts, load_parts
from inference.errors import InvalidRequestError, NotEnoughMemoryError
from inference.formats import whole_digest
from inference.kv_cache.host_memory import HostArena
from inference.kv_cache.schemes import LayerGeometry, find_scheme
from inference.model.bridge import TransformersBridge
from inference.model.decoder import TorchDecoder
from inference.model.decoder_weights import read_weights
from inference.model.kv_quality import KvVerdict, sample_text, verdict_of
from inference.request import LoadProgress
from tests.inference.paged_kernels import EmulatedVarlen
from tests.inference.scripted_engine import answer, ask
from tests.inference.tiny_decoders import make_variant, weights_of
from tests.inference.tiny_engine import make_engine, make_loaded, make_parts
from tests.inference.tiny_models import make_tokens

Usage = namedtuple("Usage", "total used free")


class BrokenOffError(Exception):
    """A newer command came."""


def namespace_of(tmp_path: Path, name: str, seed: int = 0, **config: object) -> str:
    """The folder that a model's blocks are kept in."""
    folder = tmp_path / name
    make_parts(make_loaded(seed=seed), cache_dir=str(folder), **config).memory.close()
    (found,) = [path.name for path in folder.iterdir() if path.is_dir()]
    return found


def test_blocks_of_another_model_scheme_or_size_have_another_folder(tmp_path: Path) -> None:
    first = namespace_of(tmp_path, "first")
    assert namespace_of(tmp_path, "same", ram_cache_bytes=0, context_tokens=64) == first
    others = {
        namespace_of(tmp_path, "model", seed=1),
        namespace_of(tmp_path, "scheme", kv_scheme="fp32"),
        namespace_of(tmp_path, "size", block_size=16),
    }
    assert len(others | {first}) == 4


def test_blocks_that_the_same_weights_compute_otherwise_have_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The fingerprint names the files, and not the instruction set, say, or how this Quire reads a header.
    first = namespace_of(tmp_path, "first")
    monkeypatch.setattr(TransformersBridge, "config_text", "the same layers, computed otherwise")
    assert namespace_of(tmp_path, "otherwise") != first


def load_file(
    path: Path, told: list[LoadProgress] | None = None, /, **config: object
) -> EngineParts:
    """Load what has one fingerprint whatever the file holds."""
    report = None if told is None else told.append
    values: dict[str, object] = {"block_size": 8, "num_threads": 1, "device": "cpu", **config}
    loaded = make_loaded(context_tokens=300)
    return load_parts(
        path,
        EngineConfig(**values),  # type: ignore[arg-type]  # fields of this file's tests
        report,
        load=lambda path, **options: loaded,
    )


def write_weights(path: Path, *, hole: int | None = None) -> Path:
    """Bytes with samples that are the same, and perhaps a byte between them that is not."""
    data = bytearray(range(256)) * 64
    if hole is not None:
        data[hole] ^= 1
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("hole", [0, 5000, 16383])
def test_blocks_of_weights_that_differ_in_any_byte_are_not_reused(
    tmp_path: Path, hole: int
) -> None:
    path, cache = tmp_path / "model.gguf", str(tmp_path / "kv")
    reused = []
    for broken in (hole, None, hole, None):  # a broken download, a repaired one, and so on
        engine = Engine(load_file(write_weights(path, hole=broken), cache_dir=cache))
        metrics = answer(engine, ask(make_tokens(40)))[-1].metrics
        reused.append(metrics.reused_disk_tokens)
        engine.close()
    assert reused == [0, 0, 39, 39]


def test_verdict_on_int4_holds_for_all_bytes_of_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = iter([verdict_of(0.001), verdict_of(0.5)])
    monkeypatch.setattr(kv_loading, "assess_int4", lambda *args: next(found))
    path, config = tmp_path / "model.gguf", {"kv_scheme": "int4", "cache_dir": str(tmp_path / "kv")}
    load_file(write_weights(path), **config).memory.close()
    load_file(write_weights(path), **config).memory.close()
    with pytest.raises(InvalidRequestError, match="50"):
        load_file(write_weights(path, hole=9000), **config)
    assert len(verdicts(tmp_path / "kv")) == 2


@pytest.mark.parametrize("adds_bos", [True, False])
def test_int4_is_tried_on_a_text_that_begins_as_the_model_is_used_to(
    monkeypatch: pytest.MonkeyPatch, adds_bos: bool
) -> None:
    samples: list[list[int]] = []

    def assess(model: object, attention: object, sample: list[int], *rest: object) -> KvVerdict:
        samples.append(sample)
        return verdict_of(0.0)

    monkeypatch.setattr(kv_loading, "assess_int4", assess)
    loaded = make_loaded()
    loaded.tokenizer.bos_id, loaded.tokenizer.add_bos = 1, adds_bos
    text = loaded.tokenizer.encode_text(sample_text(), after="start")
    make_parts(loaded, kv_scheme="int4").memory.close()
    assert samples[0][:9] == ([1, *text] if adds_bos else text)[:9]


def test_weights_are_read_whole_only_where_something_outlives_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_digest, "SLOW_BYTES", 1)
    path = write_weights(tmp_path / "model.gguf")
    told: list[LoadProgress] = []
    load_file(path, told).memory.close()
    assert [progress.stage for progress in told] == ["Ready"]
    told.clear()
    config = {"kv_scheme": "int4", "cache_dir": str(tmp_path / "kv")}
    load_file(path, told, **config).memory.close()
    stages = [progress.stage for progress in told]
    assert stages[0] == "Checking the file"
    assert stages[1].startswith("Trying how well int4")
    fractions = [progress.fraction for progress in told]
    assert fractions == sorted(fractions)


def test_disk_that_became_full_does_not_empty_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(cache_dir=str(tmp_path))
    answer(engine, ask(make_tokens(40)))
    engine.close()
    usage = Usage(10**12, 10**12, 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    engine = make_engine(cache_dir=str(tmp_path))
    disk = engine.stats().disk
    assert 0 < disk.used_bytes <= disk.budget_bytes
    assert answer(engine, ask(make_tokens(40)))[-1].metrics.reused_disk_tokens > 0
    engine.close()


def test_folder_that_is_a_file_is_said_and_replies_go_on(tmp_path: Path) -> None:
    (tmp_path / "kv").write_text("in the way")
    engine = make_engine(cache_dir=str(tmp_path / "kv"))
    for _ in range(2):
        assert answer(engine, ask(make_tokens(40)))[-1].finish_reason == "length"
    assert engine.flush()
    stats = engine.stats()
    assert "cannot be written" in stats.disk_problem
    assert (stats.disk.used_bytes, stats.disk_written_bytes) == (0, 0)
    engine.check_integrity()
    engine.close()
    assert (tmp_path / "kv").read_text() == "in the way"


def test_machine_that_gives_no_ram_works_without_the_tier(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[int] = []

    def refusing(slot_bytes: int, num_slots: int) -> HostArena:
        asked.append(num_slots)
        if num_slots:
            raise OSError("Cannot allocate memory")
        return HostArena(slot_bytes, num_slots)

    monkeypatch.setattr(kv_loading, "HostArena", refusing)
    engine = make_engine(ram_cache_bytes=2**20)
    assert len(asked) == 3
    assert asked[-1] == 0
    assert "blocks put aside" in caplog.text
    assert engine.stats().ram.budget_bytes == 0
    engine.set_cache_budgets(2**20, 0)
    assert engine.stats().ram.budget_bytes == 0
    engine.close()


def test_memory_that_does_not_hold_two_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_loading, "free_bytes", lambda device: 2**20 - 1)
    with pytest.raises(NotEnoughMemoryError) as caught:
        make_engine(kv_cache_bytes=2**20)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (2**20, 2**20 - 1)
    assert str(caught.value).startswith(
        "The memory of the model that is set for chats needs 0.0 GB"
    )
    monkeypatch.setattr(kv_loading, "free_bytes", lambda device: 10)
    with pytest.raises(NotEnoughMemoryError, match="The model needs"):
        make_engine()


def test_budget_under_a_few_blocks_gives_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    config: dict[str, Any] = {"kv_cache_bytes": 2**20, "block_size": 4096, "kv_scheme": "fp32"}
    engine = make_engine(**config)
    stats = engine.stats()
    assert stats.block_bytes == 2**21
    assert stats.blocks.total == 2
    engine.close()
    monkeypatch.setattr(kv_loading, "free_bytes", lambda device: 2 * stats.block_bytes - 1)
    with pytest.raises(NotEnoughMemoryError) as caught:
        make_engine(**config)
    assert caught.value.needed_bytes == 2 * stats.block_bytes


def test_blocks_are_reserved_after_unused_memory_was_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = {"cpu": 10}
    monkeypatch.setattr(kv_loading, "free_bytes", free.__getitem__)
    with pytest.raises(NotEnoughMemoryError):
        make_engine(kv_cache_bytes=2**20)
    monkeypatch.setattr(kv_loading, "release_unused", lambda device: free.update({device: 2**30}))
    engine = make_engine(kv_cache_bytes=2**20)
    assert engine.stats().blocks.total > 0
    engine.close()


def reserved(monkeypatch: pytest.MonkeyPatch, free: int, tokens: int, **config: Any) -> int:
    """Blocks of 32 MiB that are reserved on a CUDA card, as nobody else would see without one."""
    made: list[dict[str, Any]] = []
    monkeypatch.setattr(kv_loading, "KvTensors", lambda geometry, **sizes: made.append(sizes))
    for module in (kv_loading, kv_budgets):
        monkeypatch.setattr(module, "free_bytes", lambda device: free)
    model: Any = SimpleNamespace(
        geometry=[LayerGeometry(8, 128)] * 32, stable_context_tokens=None, dtype=torch.bfloat16
    )
    loaded: Any = SimpleNamespace(model_context_tokens=tokens)
    kv_loading._reserve(
        model,
        loaded,
        ReferenceAttention(),
        find_scheme("auto", torch.bfloat16),
        EngineConfig(block_size=256, **config),
        "cuda",
    )
    (sizes,) = made
    assert sizes["device"] == torch.device("cuda")
    assert not sizes["has_spare"]
    return int(sizes["num_blocks"])


MIB, GIB = 2**20, 2**30


@pytest.mark.parametrize(
    ("free", "tokens", "expected"),
    [
        (8 * GIB, 8192, 32),
        (8 * GIB, 131_072, 185),  # four fifths of all but 768 MiB
        (16 * GIB, 8192, 64),  # for two chats
        (500 * MIB, 8192, 8),  # 500 less 100 for steps and 128 for four threads that copy
        (240 * MIB, 8192, 2),
    ],
)
def test_blocks_on_cuda_leave_what_steps_and_copies_need(
    monkeypatch: pytest.MonkeyPatch, free: int, tokens: int, expected: int
) -> None:
    assert reserved(monkeypatch, free, tokens) == expected


def test_budget_on_cuda_that_leaves_too_little_for_steps_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    most = 8 * GIB - 768 * MIB - 128 * MIB
    assert reserved(monkeypatch, 8 * GIB, 8192, kv_cache_bytes=most) == most // (32 * MIB)
    with pytest.raises(NotEnoughMemoryError) as caught:
        reserved(monkeypatch, 8 * GIB, 8192, kv_cache_bytes=most + 32 * MIB)
    assert (caught.value.needed_bytes, caught.value.free_bytes) == (8 * GIB + 32 * MIB, 8 * GIB)
    with pytest.raises(NotEnoughMemoryError):
        reserved(monkeypatch, 239 * MIB, 8192)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), OSError(errno.ENOMEM, "no memory")]
)
def test_memory_that_is_gone_when_it_is_reserved_is_told(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def gone(*args: object, **sizes: object) -> None:
        raise error

    monkeypatch.setattr(kv_loading, "KvTensors", gone)
    with pytest.raises(NotEnoughMemoryError) as caught:
        make_engine(kv_cache_bytes=2**20)
    assert 2**19 < caught.value.needed_bytes <= 2**20
    assert caught.value.__cause__ is error


def test_memory_that_is_gone_while_int4_is_tried_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gone(*args: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(kv_loading, "assess_int4", gone)
    with pytest.raises(NotEnoughMemoryError):
        load_int4(None, [])


@pytest.mark.parametrize(
    ("kind", "has_spare"), [("decoder", True), ("streamed decoder", False), ("bridge", False)]
)
def test_spare_block_is_there_only_for_models_whose_steps_are_replayed(
    monkeypatch: pytest.MonkeyPatch, kind: str, has_spare: bool
) -> None:
    monkeypatch.setattr(choice, "VarlenKernel", EmulatedVarlen)
    module = make_variant("llama", dtype=torch.bfloat16)
    weights = weights_of(module)
    decoder = TorchDecoder(weights.spec, read_weights(weights, dtype=torch.bfloat16))
    decoder.has_streamed_layers = kind == "streamed decoder"
    model = module if kind == "bridge" else decoder
    parts = make_parts(replace(make_loaded(), model=model), block_size=None)
    assert parts.info.backend.startswith("varlen")
    assert (parts.runner.kv.spare_slot is not None) is has_spare
    parts.memory.close()


def test_tiers_say_what_they_hold_and_may_hold() -> None:
    engine = make_engine(kv_cache_bytes=2**20, ram_cache_bytes=2**20 + 5)
    stats = engine.stats()
    size = stats.block_bytes
    assert stats.device.budget_bytes == 2**20 // size * size
    assert stats.ram.budget_bytes == 2**20 // size * size
    assert (stats.disk.budget_bytes, stats.device.used_bytes) == (0, 0)
    engine.add_request(ask(make_tokens(17)))
    engine.step()
    blocks = engine.stats().blocks
    assert engine.stats().device.used_bytes == (blocks.used + blocks.cached) * size == 3 * size
    engine.close()


# --- int4 -------------------------------------------------------------------------------------


def load_int4(root: Path | None, told: list[LoadProgress], *, stop_after: int = -1) -> EngineParts:
    def report(progress: LoadProgress) -> None:
        told.append(progress)
        if len(told) == stop_after:
            raise BrokenOffError

    loaded = make_loaded(context_tokens=300)
    config = EngineConfig(
        device="cpu",
        num_threads=1,
        block_size=8,
        kv_scheme="int4",
        cache_dir=None if root is None else str(root),
    )
    return load_parts(Path("tiny"), config, report, load=lambda path, **options: loaded)


def verdicts(folder: Path) -> list[Path]:
    """What is remembered of models."""
    return list(folder.glob("kv-quality-*"))


def test_trying_int4_tells_how_far_it_is_once(tmp_path: Path) -> None:
    told: list[LoadProgress] = []
    load_int4(tmp_path, told).memory.close()
    fractions = [progress.fraction for progress in told]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    trials = [progress.stage for progress in told if "int4" in progress.stage]
    assert len(trials) == 10  # of 299 tokens, 64 at a time, twice
    assert trials[0] == "Trying how well int4 suits this model, 11% done"
    assert trials[-1] == "Trying how well int4 suits this model, 100% done"
    again: list[LoadProgress] = []
    load_int4(tmp_path, again).memory.close()
    assert [progress.stage for progress in again] == ["Ready"]


def test_trying_int4_can_be_broken_off_and_nothing_is_remembered(tmp_path: Path) -> None:
    told: list[LoadProgress] = []
    with pytest.raises(BrokenOffError):
        load_int4(tmp_path, told, stop_after=3)
    assert len(told) == 3
    assert verdicts(tmp_path) == []
    load_int4(tmp_path, []).memory.close()
    assert len(verdicts(tmp_path)) == 1


def test_int4_that_makes_a_model_worse_is_refused_and_then_shown_as_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = verdict_of(0.5)
    assessed: list[KvVerdict] = []

    def assess(*args: object) -> KvVerdict:
        assessed.append(verdict)
        return verdict

    monkeypatch.setattr(kv_loading, "assess_int4", assess)
    for _ in range(2):
        with pytest.raises(InvalidRequestError, match=r"50.0% worse") as caught:
            load_int4(tmp_path, [])
        assert caught.value.field == "kv_scheme"
        assert "int8" in caught.value.hint
    assert len(assessed) == 1
    engine = Engine(make_parts(make_loaded(context_tokens=300), cache_dir=str(tmp_path)))
    schemes = {scheme.name: scheme for scheme in engine.info.kv_schemes}
    assert [name for name, scheme in schemes.items() if scheme.is_offered] == ["fp16", "int8"]
    assert schemes["int4"].reason == verdict.reason
    assert schemes["int4"].bytes_per_token < schemes["int8"].bytes_per_token
    engine.close()
