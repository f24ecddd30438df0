"""The thread team as Python sees it; tests/inference/kernel_checks has its finer points in C++."""

import gc
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

from inference.kernels.library import KernelError, load_kernels
from tests.inference.kernel_matrices import multiply, pack, random_rows

found = load_kernels()
pytestmark = pytest.mark.skipif(found is None, reason="the kernels were not built")


@pytest.fixture
def kernels():
    assert found is not None
    return found


def thread_ids() -> set[int]:
    return {each.id for each in psutil.Process().threads()}


def have_ended(threads: set[int]) -> bool:
    """Whether none of them is left; the system lists a thread for a moment after it was joined."""
    until = time.monotonic() + 5
    while threads & thread_ids() and time.monotonic() < until:
        time.sleep(0.01)
    return not threads & thread_ids()


@pytest.fixture
def busy_cores():
    """Processes that take every core while the test runs."""
    count = psutil.cpu_count() or 1
    command = [sys.executable, "-c", "print('on', flush=True)\nwhile True: pass"]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    for other in others:
        assert other.stdout is not None
        other.stdout.readline()
    yield
    for other in others:
        other.kill()
        other.communicate()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_many_tiny_products_are_all_right_beside_busy_cores(kernels, busy_cores, size):
    rng = np.random.default_rng(0)
    packed = [
        pack(kernels, "Q4_1", random_rows("Q4_1", 16 * n, 64, seed=n), 64) for n in range(1, 9)
    ]
    x = rng.standard_normal((1, 64)).astype(np.float32)
    alone = kernels.new_team(1)
    wanted = [multiply(kernels, alone, matrix, x) for matrix in packed]
    team = kernels.new_team(size)
    for turn in range(400):
        which = turn % len(packed)
        np.testing.assert_array_equal(multiply(kernels, team, packed[which], x), wanted[which])
    team.close()
    alone.close()


def test_large_product_is_right_beside_busy_cores(kernels, busy_cores):
    rows = random_rows("Q4_K", 1000, 1536)
    packed = pack(kernels, "Q4_K", rows, 1536)
    x = np.random.default_rng(1).standard_normal((70, 1536)).astype(np.float32)
    alone, team = kernels.new_team(1), kernels.new_team(4)
    wanted = multiply(kernels, alone, packed, x)
    for _ in range(5):
        np.testing.assert_array_equal(multiply(kernels, team, packed, x), wanted)
    team.close()
    alone.close()


def test_team_that_is_closed_leaves_no_threads(kernels):
    before = thread_ids()  # by id: threads of other tests may end meanwhile
    team = kernels.new_team(4)
    of_team = thread_ids() - before
    assert len(of_team) == 3
    team.close()
    assert have_ended(of_team)
    team.close()  # once more does no harm


def test_team_that_nobody_holds_leaves_no_threads(kernels):
    before = thread_ids()
    team = kernels.new_team(3)
    of_team = thread_ids() - before
    assert len(of_team) == team.size - 1 == 2
    del team
    gc.collect()
    assert have_ended(of_team)


def test_team_that_waits_costs_no_time(kernels):
    team = kernels.new_team(4)
    packed = pack(kernels, "Q4_1", random_rows("Q4_1", 512, 512), 512)
    x = np.ones((1, 512), dtype=np.float32)
    multiply(kernels, team, packed, x)
    time.sleep(0.02)  # what helpers look for more work, and far more
    began = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - began < 0.03
    multiply(kernels, team, packed, x)
    team.close()


@pytest.mark.parametrize("size", [0, -1, 100_000])
def test_team_of_an_impossible_size_is_refused(kernels, size):
    with pytest.raises(KernelError, match="no team"):
        kernels.new_team(size)
