import dataclasses
import errno
import io
import json
import os
import threading
import time
from pathlib import Path

import pytest

from app.errors import SettingError
from app.settings import (
    FORMAT_VERSION,
    Settings,
    SettingsStore,
    settings_from_json,
    settings_to_json,
    write_atomically,
)
from inference.config import SamplingParams


def make_store(tmp_path: Path) -> SettingsStore:
    """A store that only writes on flush."""
    return SettingsStore(tmp_path / "settings.json", delay_s=1000.0)


def test_settings_without_a_file_are_the_defaults(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    assert store.value == Settings()
    assert store.warnings == []
    assert not store.path.exists()


def test_settings_written_and_read_are_equal() -> None:
    settings = Settings(
        theme="dark",
        text_size_percent=150,
        model_path="/modèles/模型 a.gguf",
        recent_models=("/a", "/b"),
        sampling=SamplingParams(temperature=0.0, seed=7, stop=("\n", "END")),
        system_prompt="Be brief.\nÉté 中",
        context_tokens=4096,
        num_threads=3,
        kv_cache_bytes=2**28,
        ram_cache_bytes=0,
        disk_cache_bytes=2**33,
        kv_schemes=(("/a", "int8"), ("/b", "fp16")),
        guess_ahead=False,
        draft_models=(("/a", "/b"), ("/c", "/b")),
        sidebar_visible=False,
        sidebar_width=300,
        window_geometry="AdnQywADAAA=",
    )
    assert settings_from_json(settings_to_json(settings)) == (settings, [])


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("theme", "purple"),
        ("theme", None),
        ("text_size_percent", 79),
        ("text_size_percent", 201),
        ("text_size_percent", 100.0),
        ("text_size_percent", True),
        ("model_path", 3),
        ("recent_models", "abc"),
        ("recent_models", ["/a", 1]),
        ("system_prompt", None),
        ("system_prompt", "x" * 100_001),
        ("context_tokens", 1),
        ("num_threads", 0),
        ("kv_cache_bytes", 0),
        ("ram_cache_bytes", -1),
        ("disk_cache_bytes", 2**51),
        ("kv_schemes", "int8"),
        ("kv_schemes", [["/a"]]),
        ("kv_schemes", [["/a", "int3"]]),
        ("kv_schemes", [[1, "int8"]]),
        ("kv_schemes", ["ab"]),
        ("guess_ahead", "auto"),
        ("draft_models", {"/a": "/b"}),
        ("draft_models", [["/a", "/b", "/c"]]),
        ("draft_models", [["/a", None]]),
        ("draft_models", [["/a", ""]]),
        ("sidebar_visible", 1),
        ("sidebar_width", 10**9),
        ("window_geometry", []),
    ],
)
def test_field_with_bad_value_takes_its_default_and_others_stay(field: str, value: object) -> None:
    good = json.loads(settings_to_json(Settings(theme="dark", sidebar_width=333)))
    settings, warnings = settings_from_json(json.dumps(good | {field: value}))
    default = getattr(Settings(), field)
    expected = dataclasses.replace(Settings(theme="dark", sidebar_width=333), **{field: default})
    assert settings == expected
    assert len(warnings) == 1
    assert warnings[0].startswith(f"{field}: ")
    assert warnings[0].endswith("The default is used.")


def test_sampling_with_one_bad_field_keeps_the_others() -> None:
    text = '{"sampling": {"temperature": NaN, "top_k": 5, "stop": ["a"], "mirostat": 2}}'
    settings, warnings = settings_from_json(text)
    assert settings.sampling == SamplingParams(top_k=5, stop=("a",))
    assert warnings == [
        "sampling.temperature: must be a number from 0 to 100, not nan. The default is used.",
        "sampling.mirostat: there is no such setting; left out.",
    ]


def test_sampling_that_is_no_object_takes_the_default() -> None:
    settings, warnings = settings_from_json('{"sampling": 3}')
    assert settings == Settings()
    assert warnings == ["sampling: must be an object. The default is used."]


def test_unknown_field_is_left_out_with_a_warning() -> None:
    settings, warnings = settings_from_json('{"version": 1, "font": "x", "theme": "light"}')
    assert settings == Settings(theme="light")
    assert warnings == ["font: there is no such setting; left out."]


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("", "The file is not JSON; all settings have their defaults."),
        ("{", "The file is not JSON; all settings have their defaults."),
        ("[" * 100_000, "The file is not JSON; all settings have their defaults."),
        ("[1]", "The file holds no settings; all have their defaults."),
    ],
)
def test_file_that_holds_no_settings_gives_defaults(text: str, warning: str) -> None:
    assert settings_from_json(text) == (Settings(), [warning])


@pytest.mark.parametrize("version", ["true", "0", '"1"', "null"])
def test_version_that_is_none_is_read_as_the_newest(version: str) -> None:
    settings, warnings = settings_from_json(f'{{"version": {version}, "theme": "light"}}')
    assert settings == Settings(theme="light")
    assert len(warnings) == 1
    assert warnings[0].startswith("version: ")


def test_version_of_a_newer_quire_takes_over_what_is_known() -> None:
    text = json.dumps({"version": FORMAT_VERSION + 1, "theme": "contrast"})
    settings, warnings = settings_from_json(text)
    assert settings == Settings(theme="contrast")
    assert warnings == ["The file was written by a newer Quire; what is known was taken over."]


def test_old_version_is_migrated_step_by_step() -> None:
    def rename(raw: dict[str, object]) -> dict[str, object]:
        raw["look"] = raw.pop("colours")
        return raw

    def move(raw: dict[str, object]) -> dict[str, object]:
        raw["theme"] = raw.pop("look")
        return raw

    migrations = {1: rename, 2: move}
    first = settings_from_json('{"version": 1, "colours": "dark"}', migrations=migrations)
    second = settings_from_json('{"version": 2, "look": "dark"}', migrations=migrations)
    third = settings_from_json('{"version": 3, "theme": "dark"}', migrations=migrations)
    assert first == second == third == (Settings(theme="dark"), [])


def test_recent_models_are_kept_without_repeats_and_bounded() -> None:
    settings = Settings(recent_models=("/a", "/b", "/a", "", *(f"/{n}" for n in range(20))))
    assert settings.recent_models == ("/a", "/b", "/0", "/1", "/2", "/3", "/4", "/5")


def test_sampling_of_another_type_is_refused() -> None:
    with pytest.raises(SettingError, match="sampling: must be sampling settings, not dict"):
        Settings(sampling={})  # type: ignore[arg-type]


def test_change_holds_at_once_and_is_on_disk_after_flush(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    assert store.change(theme="dark", text_size_percent=120).theme == "dark"
    assert store.value == Settings(theme="dark", text_size_percent=120)
    assert not store.path.exists()
    store.flush()
    again = make_store(tmp_path)
    assert again.value == store.value
    assert again.warnings == []
    assert json.loads(store.path.read_text("utf-8"))["version"] == FORMAT_VERSION
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]


def test_change_is_saved_by_itself_after_the_delay(tmp_path: Path) -> None:
    store = SettingsStore(tmp_path / "settings.json", delay_s=0.0)
    for theme in ("dark", "light"):
        before = set(threading.enumerate())
        store.change(theme=theme)
        for thread in set(threading.enumerate()) - before:
            thread.join(10)
    assert json.loads(store.path.read_text("utf-8"))["theme"] == "light"


def test_changes_in_a_row_are_one_save(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    before = set(threading.enumerate())
    for width in range(200, 300):
        store.change(sidebar_width=width)
    assert len(set(threading.enumerate()) - before) == 1
    store.flush()
    assert json.loads(store.path.read_text("utf-8"))["sidebar_width"] == 299


@pytest.mark.parametrize(
    "fields", [{"theme": "pink"}, {"nothing": 1}, {"sidebar_width": 300, "text_size_percent": 0}]
)
def test_change_with_bad_value_is_refused_whole(tmp_path: Path, fields: dict[str, object]) -> None:
    store = make_store(tmp_path)
    with pytest.raises(SettingError) as caught:
        store.change(**fields)
    assert caught.value.field == list(fields)[-1]
    assert store.value == Settings()
    store.flush()
    # The defaults are what is flushed.
    assert make_store(tmp_path).value == Settings()


def test_change_to_the_same_values_starts_no_save(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    before = set(threading.enumerate())
    store.change(theme="system")
    assert not set(threading.enumerate()) - before


def test_flush_without_a_change_leaves_the_file_alone(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.change(theme="dark")
    store.flush()
    store.path.unlink()
    store.flush()
    assert not store.path.exists()


@pytest.mark.parametrize("content", [b'{"theme": "pink"}', b"\xff\xfe", b""])
def test_bad_file_is_kept_beside_the_new_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(content)
    store = make_store(tmp_path)
    assert store.value == Settings()
    assert len(store.warnings) == 1
    store.change(theme="dark")
    store.flush()
    assert (tmp_path / "settings.json.bak").read_bytes() == content
    assert make_store(tmp_path).value.theme == "dark"


def test_each_bad_file_is_kept_once_and_no_copy_overwritten(tmp_path: Path) -> None:
    contents = [b"{", b"[", b"{", b"\xff", b"["]
    names = ["bak", "bak-2", "bak", "bak-3", "bak-2"]
    for content, name in zip(contents, names, strict=True):
        (tmp_path / "settings.json").write_bytes(content)
        assert make_store(tmp_path).kept_as == tmp_path / f"settings.json.{name}"
    found = {path.name: path.read_bytes() for path in tmp_path.glob("*.bak*")}
    assert found == {
        "settings.json.bak": b"{",
        "settings.json.bak-2": b"[",
        "settings.json.bak-3": b"\xff",
    }


def test_what_stands_in_the_place_of_the_copy_stays(tmp_path: Path) -> None:
    (tmp_path / "settings.json").write_text('{"theme": "pink"}', "utf-8")
    (tmp_path / "settings.json.bak").mkdir()
    assert make_store(tmp_path).kept_as == tmp_path / "settings.json.bak-2"


@pytest.mark.parametrize("is_begun", [True, False])
def test_bad_file_whose_copy_cannot_be_kept_is_still_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_begun: bool,
) -> None:
    class Full(io.BytesIO):
        def write(self, content: object) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    def refuse(copy: Path, *arguments: object, **options: object) -> Full:
        if not is_begun:
            raise PermissionError("no")
        copy.touch()
        return Full()

    (tmp_path / "settings.json").write_text('{"theme": "pink"}', "utf-8")
    monkeypatch.setattr("app.kept_copies.open", refuse, raising=False)
    store = make_store(tmp_path)
    assert (store.value, store.kept_as) == (Settings(), None)
    assert "The old settings could not be kept" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]


def test_file_that_cannot_be_read_gives_defaults_and_a_warning(tmp_path: Path) -> None:
    (tmp_path / "settings.json").mkdir()
    store = make_store(tmp_path)
    assert store.value == Settings()
    assert len(store.warnings) == 1
    assert store.warnings[0].startswith("The settings could not be read: ")


def test_save_that_fails_is_logged_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "settings.json"
    store = SettingsStore(path, delay_s=1000.0)
    path.mkdir()
    store.change(theme="dark")
    store.flush()
    assert "Settings could not be saved" in caplog.text
    assert str(store.problem).startswith(f"The settings could not be saved in {path}: ")
    path.rmdir()
    store.flush()
    assert store.problem is None
    assert make_store(tmp_path).value.theme == "dark"


def test_path_that_is_not_text_is_written_and_read_again(tmp_path: Path) -> None:
    store = make_store(tmp_path)
    store.change(model_path="/models/caf\udce9.gguf", recent_models=("/models/caf\udce9.gguf",))
    store.flush()
    again = make_store(tmp_path)
    assert again.value == store.value
    assert again.warnings == []


def test_write_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "a.json"
    write_atomically(path, "old")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert path.read_text("utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_pipes_in_the_place_of_file_and_copy_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "settings.json")
    store = make_store(tmp_path)
    assert store.value == Settings()
    assert store.warnings == [
        "The settings could not be read: it is a named pipe, not a file; all have their defaults."
    ]
    (tmp_path / "settings.json").unlink()
    (tmp_path / "settings.json").write_text("{", "utf-8")
    os.mkfifo(tmp_path / "settings.json.bak")
    store = make_store(tmp_path)
    assert store.value == Settings()
    assert store.kept_as == tmp_path / "settings.json.bak-2"


def test_save_that_failed_is_tried_again_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "settings.json"
    store = SettingsStore(path, delay_s=0.0)
    path.mkdir()
    store.change(theme="dark")
    store.flush()
    path.rmdir()
    store.save_again()
    deadline = time.monotonic() + 10
    while store.problem and time.monotonic() < deadline:
        time.sleep(0.01)
    assert make_store(tmp_path).value.theme == "dark"
