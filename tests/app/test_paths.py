import os
from pathlib import Path

import pytest

from app.errors import ProfileError
from app.paths import Paths


def test_profile_holds_everything(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "p")
    assert paths.settings_file == tmp_path / "p" / "settings.json"
    assert paths.database_file == tmp_path / "p" / "chats.db"
    assert paths.log_file == tmp_path / "p" / "logs" / "quire.log"
    assert not (tmp_path / "p").exists()


def test_no_profile_takes_the_places_of_the_system() -> None:
    paths = Paths()
    assert len({paths.settings_file, paths.database_file, paths.log_file}) == 3
    for place in (paths.settings_file, paths.database_file, paths.log_file):
        assert place.is_absolute()
        assert "quire" in str(place).lower()


def test_blocks_are_in_the_cache_folder_and_not_made_before_they_are_needed(tmp_path: Path) -> None:
    paths = Paths(tmp_path / "p")
    assert paths.kv_dir == tmp_path / "p" / "cache" / "kv"
    paths.prepare()
    assert not paths.kv_dir.exists()


def test_blocks_are_where_the_system_keeps_what_may_be_deleted() -> None:
    paths = Paths()
    assert paths.kv_dir.parent == paths.cache_dir
    assert paths.kv_dir.is_absolute()
    assert paths.kv_dir.parent not in (paths.data_dir, paths.config_dir)


def test_profile_is_absolute_whatever_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert Paths(Path("p")).database_file == Path(os.path.abspath("p/chats.db"))


@pytest.mark.parametrize("name", ["with space", "中文 配置", "Ünï é", "a'b\"c"])
def test_prepare_makes_folders_of_any_name(tmp_path: Path, name: str) -> None:
    paths = Paths(tmp_path / name / "deep")
    paths.prepare()
    paths.prepare()
    assert paths.log_dir.is_dir()
    assert list(paths.data_dir.iterdir()) == [paths.log_dir]


def test_prepare_where_a_file_stands_says_so(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("x", "utf-8")
    with pytest.raises(ProfileError) as caught:
        Paths(tmp_path / "p").prepare()
    assert str(tmp_path / "p") in str(caught.value)
    assert "--profile" in caught.value.hint


def test_prepare_with_a_name_no_system_takes_says_so(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="null"):
        Paths(tmp_path / "a\0b").prepare()


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere"
)
def test_prepare_of_a_read_only_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir(mode=0o500)
    with pytest.raises(ProfileError, match="ermission denied"):
        Paths(tmp_path / "p").prepare()


def test_socket_name_is_one_per_folder_and_short(tmp_path: Path) -> None:
    plain = Paths(tmp_path / "p").socket_name
    assert plain == Paths(tmp_path / "q" / ".." / "p").socket_name
    assert plain != Paths(tmp_path / "中").socket_name
    assert plain.isascii()
    assert len(plain) == 26


def test_prepare_needs_no_folder_for_the_log(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "logs").write_text("x", "utf-8")
    paths = Paths(tmp_path / "p")
    paths.prepare()  # who opens the log says what is wrong with it
    assert paths.log_dir.read_text("utf-8") == "x"
