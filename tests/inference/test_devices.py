"""Where to compute: what is listed counts only if it computes."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.config import EngineConfig
from inference.engine_loading import load_parts
from inference.errors import CpuOnlyError, InvalidRequestError
from inference.model import devices
from inference.model.devices import choose_device, why_unusable
from tests.inference.tiny_engine import make_loaded

NO_CODE = "CUDA error: no kernel image is available for execution on the device"
LONG = f"{NO_CODE}\nCUDA kernel errors might be asynchronously reported at some other API call."


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is listed, and why it does not compute; empty words: it does."""
    listed: dict[str, str] = {}
    real = torch.zeros

    def zeros(*size: int, **options: Any) -> torch.Tensor:
        reason = listed.get(str(options.get("device")))
        if reason:
            raise torch.AcceleratorError(reason)
        return real(*size, **{**options, "device": "cpu"})

    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in listed)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in listed)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: "xpu" in listed)
    monkeypatch.setattr(torch, "zeros", zeros)
    return listed


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ({}, "cpu"),
        ({"cuda": "", "mps": "", "xpu": ""}, "cuda"),
        ({"mps": "", "xpu": ""}, "mps"),
        ({"xpu": ""}, "xpu"),
        ({"cuda": LONG}, "cpu"),
        ({"cuda": LONG, "xpu": ""}, "xpu"),
        ({"cuda": LONG, "mps": "broken", "xpu": "broken"}, "cpu"),
    ],
)
def test_auto_takes_the_first_device_that_computes(
    machine: dict[str, str], listed: dict[str, str], expected: str
) -> None:
    machine.update(listed)
    assert choose_device("auto") == expected


def test_device_that_is_passed_over_is_logged_with_its_reason(
    machine: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    machine["cuda"] = LONG
    with caplog.at_level(logging.WARNING):
        choose_device("auto")
    assert caplog.messages == [f"cuda is there and cannot be used: {NO_CODE}."]


def test_device_that_is_ordered_and_does_not_compute_is_refused(machine: dict[str, str]) -> None:
    machine.update({"cuda": LONG, "xpu": ""})
    assert choose_device("xpu") == "xpu"
    with pytest.raises(InvalidRequestError) as raised:
        choose_device("cuda")
    assert raised.value.field == "device"
    assert str(raised.value) == f"device: cannot be 'cuda' here: {NO_CODE}."
    assert "cpu" in raised.value.hint


def test_cpu_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "why_unusable", lambda device: "it is never asked")
    assert choose_device("cpu") == "cpu"


def test_torch_that_was_built_without_a_device_says_so() -> None:
    assert why_unusable("cpu") == ""
    if torch.version.cuda is None and torch.version.hip is None:
        assert why_unusable("cuda") == "Torch not compiled with CUDA enabled."


def test_engine_computes_on_the_cpu_if_the_card_cannot(machine: dict[str, str]) -> None:
    machine["cuda"] = LONG
    asked: list[Any] = []

    def load(path: Path, **options: Any) -> Any:
        asked.append(options["device"])
        return make_loaded()

    parts = load_parts(Path("tiny"), EngineConfig(num_threads=1), None, load=load)
    assert (parts.info.device, asked) == ("cpu", ["cpu"])
    parts.memory.close()
    with pytest.raises(InvalidRequestError, match="no kernel image"):
        load_parts(Path("tiny"), EngineConfig(device="cuda"), None, load=load)


def test_engine_computes_on_the_cpu_what_no_card_computes(machine: dict[str, str]) -> None:
    machine["cuda"] = ""
    asked: list[Any] = []

    def load(path: Path, **options: Any) -> Any:
        asked.append(options["device"])
        if options["device"] != "cpu":
            raise CpuOnlyError(path, "It is for the CPU.")
        return make_loaded()

    parts = load_parts(Path("tiny"), EngineConfig(num_threads=1), None, load=load)
    assert (parts.info.device, asked) == ("cpu", ["cuda", "cpu"])
    parts.memory.close()
    with pytest.raises(CpuOnlyError):
        load_parts(Path("tiny"), EngineConfig(device="cuda"), None, load=load)
