"""What a draft model keeps of a chat when a turn has ended, and what it forgets."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inference.drafting.draft_model import DraftModel
from inference.engine import Engine
from inference.request import RequestId
from inference.sequence import Sequence
from tests.inference.draft_models import (
    DraftUnderTest,
    make_sequence,
    opened_draft,
)
from tests.inference.scripted_engine import answer, ask
from tests.inference.small_memory import WAIT_S
from tests.inference.tiny_engine import make_loaded, make_parts


def end_turn(draft: DraftUnderTest, *, on_disk: bool = True, keep: bool = True) -> list[int]:
    """A turn of 20 tokens, of which the last three were guessed; all its tokens."""
    sequence = make_sequence(17)
    sequence.token_ids += [*draft.read_and_guess(sequence, 4)[:3], 9]
    draft.model.end(sequence, keep=keep, on_disk=on_disk)
    assert draft.model.flush(WAIT_S)
    draft.model.check_integrity()
    draft.runner.take()
    return sequence.token_ids


def next_turn(token_ids: list[int]) -> Sequence:
    """The same chat, asked again with all these tokens."""
    return Sequence(RequestId(2), "chat", token_ids)


def files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


# ------------------------------------------------------------------ kept


def test_end_keeps_rows_of_guesses_that_came_true() -> None:
    with opened_draft() as draft:
        token_ids = end_turn(draft)
        sequence = next_turn([*token_ids, 7, 8])

        draft.model.begin(sequence)
        assert draft.model.lag(sequence) == 3
        assert draft.guess(sequence, 1) == draft.truth(sequence, 1)
        assert draft.runner.take() == [[(20, 3)]]


def test_end_without_keep_leaves_nothing() -> None:
    with opened_draft() as draft:
        token_ids = end_turn(draft, keep=False)
        assert draft.parts.kv.counts().free == draft.parts.kv.num_blocks

        sequence = next_turn(token_ids)
        assert draft.guess(sequence, 1)
        assert draft.runner.take() == [[(0, 21)]]


def test_end_of_what_was_never_wanted_changes_nothing() -> None:
    with opened_draft() as draft:
        sequence = make_sequence(17)
        draft.model.end(sequence, keep=True, on_disk=True)
        draft.model.begin(sequence)
        draft.model.end(sequence, keep=True, on_disk=True)
        assert draft.parts.kv.counts().free == draft.parts.kv.num_blocks


def test_turn_is_read_from_disk_after_close_and_load(tmp_path: Path) -> None:
    with opened_draft(cache_dir=str(tmp_path)) as draft:
        token_ids = end_turn(draft)
    with opened_draft(cache_dir=str(tmp_path)) as draft:
        sequence = next_turn([*token_ids, 7, 8])

        assert draft.model.lag(sequence) == 23
        draft.model.begin(sequence)
        assert draft.model.lag(sequence) == 3
        assert draft.read_and_guess(sequence, 2) == draft.truth(sequence, 2)
        assert draft.runner.take() == [[(20, 3)], [(23, 1)]]


def test_turn_that_may_not_go_to_disk_is_not_there(tmp_path: Path) -> None:
    with opened_draft(cache_dir=str(tmp_path)) as draft:
        end_turn(draft, on_disk=False)
        assert not list(tmp_path.rglob("*.kv"))


def test_damaged_files_are_read_again_as_text(tmp_path: Path) -> None:
    with opened_draft(cache_dir=str(tmp_path)) as draft:
        token_ids = end_turn(draft)
    for piece in tmp_path.rglob("*.kv"):
        piece.write_bytes(piece.read_bytes()[:-1] + b"x")
    with opened_draft(cache_dir=str(tmp_path)) as draft:
        sequence = next_turn(token_ids)
        assert draft.read_and_guess(sequence, 2) == draft.truth(sequence, 2)
        assert draft.runner.take() == [[(0, 21)], [(21, 1)]]


def test_end_while_blocks_are_loaded_leaves_nothing_in_use(tmp_path: Path) -> None:
    with opened_draft(cache_dir=str(tmp_path)) as draft:
        token_ids = end_turn(draft)
    with opened_draft(cache_dir=str(tmp_path)) as draft:
        sequence = next_turn(token_ids)
        assert draft.guess(sequence, 2) == []
        assert draft.parts.scheduler.loading
        draft.model.propose([])  # one that is not wanted any more goes on loading
        assert draft.parts.scheduler.loading
        draft.model.end(sequence, keep=True, on_disk=True)
        while draft.model.tend():
            draft.parts.memory.wait_for_transfer(0.05)
        assert draft.parts.kv.counts().used == 0


# ------------------------------------------------------------------ forgotten


@pytest.mark.parametrize("is_running", [False, True])
def test_forget_leaves_nothing_of_a_chat(tmp_path: Path, is_running: bool) -> None:
    with opened_draft(cache_dir=str(tmp_path)) as draft:
        token_ids = end_turn(draft)
        sequence = next_turn(token_ids)
        if is_running:
            assert draft.guess(sequence, 2)
        assert draft.model.forget("chat") > 0
        draft.model.check_integrity()
        if is_running:
            assert draft.guess(sequence, 4) == draft.truth(sequence, 4)
            draft.model.end(sequence, keep=True, on_disk=True)
            assert draft.model.flush(WAIT_S)
        assert draft.parts.kv.counts().free == draft.parts.kv.num_blocks
        assert not list(tmp_path.rglob("*.kv"))


def test_clear_leaves_nothing_but_what_runs(tmp_path: Path) -> None:
    running = make_sequence(20, request_id=3, chat="other", seed=3)
    with opened_draft(cache_dir=str(tmp_path)) as draft:
        end_turn(draft)
        draft.guess(running, 2)
        assert draft.model.clear() > 0
        assert draft.parts.kv.counts().cached == 0
        assert not list(tmp_path.rglob("*.kv"))
        assert draft.guess(running, 4) == draft.truth(running, 4)


def test_disk_budget_of_none_removes_the_files(tmp_path: Path) -> None:
    with opened_draft(cache_dir=str(tmp_path)) as draft:
        end_turn(draft)
        assert list(tmp_path.rglob("*.kv"))
        draft.model.set_budgets(2**20, 0)
        assert not list(tmp_path.rglob("*.kv"))
        assert draft.parts.memory.tiers()[1].budget_bytes == 0


# ------------------------------------------------------------------ beside its target


@contextmanager
def both(root: Path) -> Iterator[tuple[Engine, DraftModel]]:
    """A target and a draft model that share a folder."""
    parts = make_parts(make_loaded(seed=1), cache_dir=str(root), guess="off")
    engine = Engine(parts)
    draft = DraftModel.load(
        root / "draft", parts, load=lambda path, **options: make_loaded(context_tokens=256)
    )
    try:
        yield engine, draft
    finally:
        draft.close()
        engine.close()


def test_two_models_share_a_folder_and_each_finds_its_own(tmp_path: Path) -> None:
    sequence = make_sequence(24)
    with both(tmp_path) as (engine, draft):
        first = answer(engine, ask(sequence.token_ids))[0]
        assert draft.propose([(sequence, 2)])[0]
        draft.end(sequence, keep=True, on_disk=True)
        assert engine.flush(WAIT_S)
        assert draft.flush(WAIT_S)
        num_files = len(files(tmp_path))
    with both(tmp_path) as (engine, draft):
        again = answer(engine, ask(sequence.token_ids))
        assert again[0].token_ids == first.token_ids
        assert engine.stats().reused_disk_tokens == 23
        draft.begin(sequence)
        assert draft.lag(sequence) == 1
        assert len(files(tmp_path)) >= num_files


def test_forgetting_by_both_models_leaves_no_file_of_a_chat(tmp_path: Path) -> None:
    sequence = make_sequence(24)
    with both(tmp_path) as (engine, draft):
        for _ in range(2):
            answer(engine, ask(sequence.token_ids))
            while not draft.propose([(sequence, 2)])[0]:
                pass  # files that it knew of are gone, which it finds out when it loads them
            draft.end(sequence, keep=True, on_disk=True)
            assert engine.flush(WAIT_S)
            assert draft.flush(WAIT_S)
            assert len({path.parts[-4] for path in tmp_path.rglob("*.kv")}) == 2

            assert engine.forget("chat") + draft.forget("chat") > 0
            assert not list(tmp_path.rglob("*.kv"))
            assert not list(tmp_path.rglob("*.own"))
            engine.check_integrity()
            draft.check_integrity()
