"""What people write is for nobody else on the machine to read."""

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.logs import end_log, start_log
from app.paths import Paths
from app.private_files import keep_private, make_private_file
from app.settings import SettingsStore
from app.storage import ConversationStore
from tests.app.asker import Asker

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows has other rights")


@pytest.fixture(autouse=True)
def open_to_all() -> Iterator[None]:
    """What is made without care can be read by everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path / "p")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def use(paths: Paths) -> None:
    """Everything that keeps files beside the engine, as at a start of the program."""
    paths.prepare()
    settings = SettingsStore(paths.settings_file)
    settings.change(theme="dark")
    settings.flush()
    handler = start_log(paths.log_file)
    logging.getLogger("app").info("A line")
    handler.doRollover()  # type: ignore[attr-defined]  # it rotates
    end_log(handler)


def modes_of(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): mode(path) for path in folder.rglob("*")}


def test_new_profile_is_private_with_all_its_files(paths: Paths) -> None:
    use(paths)
    store = ConversationStore(paths.database_file)
    paths.prepare_cache()
    assert mode(paths.data_dir) == 0o700
    assert modes_of(paths.data_dir) == {
        "cache": 0o700,
        "chats.db": 0o600,
        "chats.db-shm": 0o600,
        "chats.db-wal": 0o600,
        "logs": 0o700,
        "logs/quire.log": 0o600,
        "logs/quire.log.1": 0o600,
        "settings.json": 0o600,
    }
    store.close()


def test_files_of_an_older_version_are_closed_at_the_next_start(paths: Paths) -> None:
    use(paths)
    paths.kv_dir.mkdir(parents=True)
    names = [
        "chats.db",
        "chats.db-shm",
        "chats.db-wal",
        "chats.format-1.db",
        "chats.damaged-20260101-000000.db",
        "chats.damaged-20260101-000000.db-wal",
        "settings.json.bak",
        "settings.json.bak-2",
    ]
    for name in names:
        (paths.data_dir / name).touch()
    for path in paths.data_dir.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    paths.prepare()
    found = modes_of(paths.data_dir)
    assert found.pop("logs") == found.pop("cache") == 0o700
    assert found.pop("cache/kv") == 0o755  # the engine's
    assert len(found) == len(names) + 3
    assert set(found.values()) == {0o600}


def test_folder_that_was_there_before_keeps_its_rights_and_other_files(paths: Paths) -> None:
    paths.data_dir.mkdir(mode=0o755)
    paths.log_dir.mkdir(mode=0o755)
    (paths.data_dir / "letter.txt").touch(0o644)
    (paths.log_dir / "other.log").touch(0o644)
    paths.prepare()
    assert mode(paths.data_dir) == 0o755
    assert modes_of(paths.data_dir) == {
        "letter.txt": 0o644,
        "logs": 0o755,
        "logs/other.log": 0o644,
    }
    ConversationStore(paths.database_file).close()
    assert mode(paths.database_file) == 0o600


def test_folders_of_the_system_place_are_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in ("config", "data", "log", "cache"):
        place = tmp_path / kind / "Quire"
        place.parent.mkdir(mode=0o755)
        place.mkdir(mode=0o755)
        monkeypatch.setattr(f"platformdirs.user_{kind}_path", lambda *_, place=place, **__: place)
    Paths().prepare()
    for kind in ("config", "data", "log", "cache"):
        assert mode(tmp_path / kind / "Quire") == 0o700
        assert mode(tmp_path / kind) == 0o755


def test_kept_copies_are_private_too(paths: Paths) -> None:
    paths.prepare()
    paths.settings_file.write_text("{", "utf-8")
    SettingsStore(paths.settings_file)
    assert mode(paths.settings_file.with_name("settings.json.bak")) == 0o600
    paths.settings_file.write_text("[", "utf-8")
    SettingsStore(paths.settings_file)
    assert mode(paths.settings_file.with_name("settings.json.bak-2")) == 0o600
    kept = paths.data_dir / "chats.format-1.db"
    make_private_file(kept)
    make_private_file(kept)
    assert mode(kept) == 0o600


def test_ask_makes_nothing_that_others_can_read(paths: Paths) -> None:
    asker = Asker(paths.data_dir)
    assert asker.ask("Hi", "--conversation", "c", "--profile", str(paths.data_dir)) == 0
    for path in (paths.data_dir, *paths.data_dir.rglob("*")):
        assert mode(path) & 0o077 == 0, path


def test_rights_of_the_owner_stay(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.touch(0o444)
    keep_private(file)
    keep_private(tmp_path / "missing")
    assert mode(file) == 0o400


def test_file_of_somebody_else_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "f"
    file.touch(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    keep_private(file)
    assert mode(file) == 0o644
