from collections.abc import Callable
from pathlib import Path

import pytest

from app.errors import ProfileError
from app.paths import Paths
from app.self_test import self_test
from inference.config import EngineConfig
from inference.errors import ComputeError, ModelFileError
from inference.request import ChatMessage
from tests.app.fake_engine import FakeEngine, FakeScript

MODEL = Path("/m/a.gguf")


def make_opener(script: FakeScript, opened: list[FakeEngine]) -> Callable[..., FakeEngine]:
    def open_fake(path: str, config: EngineConfig) -> FakeEngine:
        engine = FakeEngine(path, config, lambda _: None, script=script)
        opened.append(engine)
        return engine

    return open_fake


def test_all_is_well_prints_versions_and_backend(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    windows: list[Paths] = []
    engines: list[FakeEngine] = []
    opener = make_opener(FakeScript(replies=["one " * 20]), engines)
    code = self_test(windows.append, model=MODEL, profile=tmp_path / "p", opener=opener)
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "Quire 0.1.0"
    assert [line.split()[0] for line in lines[1:5]] == [
        "Python",
        "torch",
        "transformers",
        "PySide6",
    ]
    assert lines[5:] == [
        "model: Fake 1B, Q4_1, loaded in 12 ms",
        "backend: fake (no device)",
        "generated 8 tokens at 50.0 tokens/s",
        "window: opened and closed",
        "self-test passed",
    ]
    assert windows == [Paths(tmp_path / "p")]
    assert engines[0].requests[0].params.max_tokens == 8
    assert engines[0].is_closed


def test_profile_that_none_named_is_empty_and_removed(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Path] = []

    def look(paths: Paths) -> None:
        assert paths.log_dir.is_dir()
        seen.append(paths.data_dir)

    assert self_test(look, model=MODEL, profile=None, opener=make_opener(FakeScript(), [])) == 0
    assert not seen[0].exists()


def test_reply_of_one_token_has_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    opener = make_opener(FakeScript(replies=["one"]), [])
    assert self_test(lambda _: None, model=MODEL, profile=None, opener=opener) == 0
    assert "generated 1 tokens\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("script", "code", "line"),
    [
        (
            FakeScript(load_error=ModelFileError(MODEL, "It is empty.", hint="Take another.")),
            2,
            "quire: self-test failed: /m/a.gguf: It is empty. Take another.\n",
        ),
        (
            FakeScript(error_after_tokens=2, reply_error=ComputeError("Lost.")),
            1,
            "quire: self-test failed: Lost.\n",
        ),
        (
            FakeScript(finish_reason="aborted", replies=["x"]),
            1,
            "quire: self-test failed: the reply ended with 'aborted'\n",
        ),
    ],
    ids=["load", "reply", "end"],
)
def test_failure_of_the_model_is_one_line(
    capsys: pytest.CaptureFixture[str], script: FakeScript, code: int, line: str
) -> None:
    engines: list[FakeEngine] = []
    opener = make_opener(script, engines)
    assert self_test(lambda _: None, model=MODEL, profile=None, opener=opener) == code
    assert capsys.readouterr().err == line
    assert all(engine.is_closed for engine in engines)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ImportError("no libEGL"), 1),
        (OSError("no display"), 1),
        (ProfileError(Path("p"), "odd"), 2),
    ],
)
def test_failure_of_the_window_is_one_line(
    capsys: pytest.CaptureFixture[str], error: Exception, code: int
) -> None:
    def fail(paths: Paths) -> None:
        raise error

    opener = make_opener(FakeScript(), [])
    assert self_test(fail, model=MODEL, profile=None, opener=opener) == code
    err = capsys.readouterr().err
    assert err.startswith("quire: self-test failed: ")
    assert err.count("\n") == 1


def test_no_model_at_all_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.self_test.find_starter_model", lambda: None)
    assert self_test(lambda _: None, model=None, profile=None) == 1
    assert capsys.readouterr().err == (
        "quire: self-test failed: the starter model is not installed, and no --model was given\n"
    )


def test_model_without_a_template_is_tested_as_plain_text() -> None:
    engines: list[FakeEngine] = []
    opener = make_opener(FakeScript(has_chat_template=False), engines)
    assert self_test(lambda _: None, model=MODEL, profile=None, opener=opener) == 0
    assert engines[0].requests[0].plain_text
    assert engines[0].requests[0].messages == (
        ChatMessage("user", "Count from one to twenty in words."),
    )
