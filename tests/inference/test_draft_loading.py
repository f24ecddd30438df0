"""Loading a draft model beside a target: what is refused, and that nothing of it stays then."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from inference.config import EngineConfig
from inference.drafting.draft_model import DraftModel
from inference.engine_loading import EngineParts, load_parts
from inference.errors import InvalidRequestError, ModelFileError, NotEnoughMemoryError
from inference.model.loader import LoadedModel
from inference.request import LoadProgress
from tests.inference.draft_models import make_sequence
from tests.inference.gguf_files import write_twin
from tests.inference.gguf_twins import remake, wide_config
from tests.inference.scripted_engine import eager_greedy
from tests.inference.tiny_engine import EOS_ID, make_loaded, make_parts, make_tokenizer


def load(target: EngineParts, make: Callable[[], LoadedModel], **options: object) -> DraftModel:
    return DraftModel.load(
        "draft",
        target,
        load=lambda path, **given: make(),
        **options,  # type: ignore[arg-type]  # on_progress
    )


@pytest.fixture
def target() -> EngineParts:
    """The parts of a small target without a disk tier."""
    return make_parts(make_loaded("gemma2"), guess="off", num_threads=2)


def test_load_takes_a_smaller_model_and_runs_it_like_the_target(target: EngineParts) -> None:
    draft = load(target, make_loaded)
    sequence = make_sequence(12)

    assert draft.info.architecture == "llama"
    assert (draft.info.device, draft.info.num_threads) == ("cpu", 2)
    assert draft.info.context_tokens == target.info.context_tokens == 512
    assert draft.info.weights_bytes <= draft.memory_bytes
    before = draft.memory_bytes
    expected = eager_greedy(make_loaded().module, sequence.token_ids, 3)
    assert draft.propose([(sequence, 3)]) == [tuple(expected)]
    assert draft.memory_bytes > before
    draft.close()
    draft.close()


def test_load_gives_the_draft_no_more_memory_for_keys_and_values_than_the_target_has() -> None:
    target = make_parts(make_loaded("gemma2"), guess="off", kv_cache_bytes=2**21)

    draft = load(target, make_loaded)
    device, ram, disk = draft._parts.memory.tiers()
    draft.close()

    assert 2**20 < device.budget_bytes <= 2**21
    assert (ram.budget_bytes, disk.budget_bytes) == (0, 0)


def test_load_takes_the_disk_budget_that_the_target_has_now(tmp_path: Path) -> None:
    target = make_parts(make_loaded("gemma2"), guess="off", cache_dir=str(tmp_path))
    target.memory.set_budgets(0, 12_345_678)
    draft = load(target, make_loaded)
    budget = draft._parts.memory.tiers()[2].budget_bytes
    draft.close()
    target.memory.close()

    assert budget == 12_345_678


def test_load_refuses_another_vocabulary_and_names_the_difference(target: EngineParts) -> None:
    other = replace(make_loaded(), tokenizer=make_tokenizer(eos_ids=[EOS_ID, 3]))

    with pytest.raises(InvalidRequestError) as raised:
        load(target, lambda: other)

    assert raised.value.field == "draft_model"
    assert raised.value.reason == (
        "Its turns end with the tokens 2, 3, and with no token in the model that it should guess for."
    )
    assert raised.value.hint


def test_load_refuses_a_model_with_more_weights_than_the_target() -> None:
    target = make_parts(make_loaded(), guess="off")
    large = make_loaded("gemma2")

    with pytest.raises(
        InvalidRequestError, match=r"It has [\d,]+ weights, more than the [\d,]+ of"
    ):
        load(target, lambda: large)


def test_load_refuses_a_model_whose_weights_take_more_memory_than_the_target(
    target: EngineParts,
) -> None:
    large = replace(make_loaded(), weights_bytes=target.info.weights_bytes + 1)

    with pytest.raises(InvalidRequestError, match=r"It has [\d,]+ bytes of weights, more than"):
        load(target, lambda: large)


@pytest.mark.parametrize("is_late", [False, True])
def test_nothing_of_a_model_that_is_refused_stays_in_memory(
    target: EngineParts, is_late: bool
) -> None:
    modules: list[weakref.ref[object]] = []

    def make() -> LoadedModel:
        loaded = make_loaded(eos_ids=() if is_late else (EOS_ID,))
        modules.append(weakref.ref(loaded.module))
        return loaded

    def stop(progress: LoadProgress) -> None:
        raise MemoryError(progress.stage)

    with pytest.raises(MemoryError if is_late else InvalidRequestError):
        load(target, make, on_progress=stop if is_late else None)

    assert [module() for module in modules] == [None]


def test_load_passes_on_what_is_wrong_with_the_file(target: EngineParts, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError):
        DraftModel.load(tmp_path / "not-there.gguf", target)


def test_load_passes_on_that_memory_is_short(
    target: EngineParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.kv_loading.free_bytes", lambda device: 0)

    with pytest.raises(NotEnoughMemoryError):
        load(target, make_loaded)


def test_load_reads_a_file(tmp_path: Path) -> None:
    """Through the real loader: a small file beside a larger one, and the other way round."""
    paths = [
        write_twin(remake(wide_config(num_hidden_layers=layers)), tmp_path / f"{layers}.gguf")
        for layers in (1, 2)
    ]
    config = EngineConfig(device="cpu", num_threads=1, guess="off")
    small, large = (load_parts(path, config, None) for path in paths)
    draft = DraftModel.load(paths[0], large)
    assert len(draft.propose([(make_sequence(20), 4)])[0]) == 4
    draft.close()
    with pytest.raises(InvalidRequestError, match="more than the"):
        DraftModel.load(paths[1], small)


def test_load_refuses_another_vocabulary_before_it_reads_weights(tmp_path: Path) -> None:
    target_path, path = (
        write_twin(remake(wide_config(vocab_size=rows)), tmp_path / f"{rows}.gguf")
        for rows in (280, 272)
    )
    config = EngineConfig(device="cpu", num_threads=1, guess="off")

    def fail(path: Path, **options: object) -> LoadedModel:
        raise AssertionError("weights are read")

    with pytest.raises(InvalidRequestError, match="Its vocabulary has 272 entries, and 280 in"):
        DraftModel.load(path, load_parts(target_path, config, None), load=fail)
