"""The benches that the tests of the session and of `ask` share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.asker import Asker
from tests.app.session_bench import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A session without a model."""
    bench = Bench(tmp_path)
    yield bench
    bench.store.close()


@pytest.fixture
def ready(bench: Bench) -> Bench:
    """The same with a model that is open."""
    bench.ready()
    return bench


@pytest.fixture
def asker(tmp_path: Path) -> Asker:
    return Asker(tmp_path / "profile")
