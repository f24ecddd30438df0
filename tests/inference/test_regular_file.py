"""Nothing but a regular file is opened as a model, or as a part of one."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from inference.errors import ModelFileError
from inference.formats.gguf import GgufFile
from inference.formats.safetensors_folder import INDEX_FILE, check_folder
from inference.formats.safetensors_header import read_header
from inference.formats.whole_digest import WeightFiles
from inference.model.kv_quality import load_verdict
from inference.model.loader import load_model
from inference.regular_file import NotAFileError, check_regular, open_regular
from inference.text.json_file import read_json_object, read_text_file
from tests.inference.model_folders import write_folder
from tests.inference.tiny_models import make_module

needs_pipes = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
PIPE = "it is a named pipe, not a file"
# More than any file system takes: to ask whether it is there fails, as in a folder that is closed to us.
LONG_NAME = "a" * 300


def put_pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def test_file_is_opened_and_read(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\r\n\x00")
    with open_regular(tmp_path / "f") as file:
        assert file.read() == b"a\r\n\x00"


def test_folder_and_what_is_missing_are_refused_as_by_open(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")


@needs_pipes
def test_pipe_is_refused_also_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(put_pipe(tmp_path / "pipe"))
    with pytest.raises(NotAFileError, match=PIPE):
        open_regular(tmp_path / "link")


@needs_pipes
def test_pipe_that_comes_after_the_look_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "f").write_bytes(b"a")
    plain = os.stat(tmp_path / "f")
    put_pipe(tmp_path / "f")
    monkeypatch.setattr(os, "stat", lambda _path: plain)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    with pytest.raises(NotAFileError, match=PIPE):
        open_regular(tmp_path / "f")
    after = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    assert after == before


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (stat.S_IFIFO, "a named pipe"),
        (stat.S_IFSOCK, "a socket"),
        (stat.S_IFCHR, "a device"),
        (stat.S_IFBLK, "a device"),
        (0, "of an unknown kind"),
    ],
)
def test_each_kind_is_named(kind: int, name: str) -> None:
    with pytest.raises(NotAFileError) as caught:
        check_regular(kind | 0o600, "x")
    assert caught.value.strerror == f"it is {name}, not a file"


@needs_pipes
@pytest.mark.parametrize(
    "read", [GgufFile.read, read_header, read_text_file, read_json_object, load_model]
)
def test_pipe_in_the_place_of_a_model_file_is_refused_at_once(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    pipe = put_pipe(tmp_path / "x.gguf")
    with pytest.raises(ModelFileError, match=PIPE):
        read(pipe)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="the system has no such sockets")
def test_socket_in_the_place_of_a_model_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("s.gguf")
        with pytest.raises(ModelFileError, match="it is a socket, not a file"):
            load_model("s.gguf")


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="the system has no such device")
def test_device_without_an_end_is_refused() -> None:
    with pytest.raises(ModelFileError, match="it is a device, not a file"):
        load_model("/dev/zero")


@needs_pipes
@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer.json",
        "model.safetensors",
        INDEX_FILE,
        "generation_config.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    ],
)
def test_pipe_in_a_model_folder_is_refused_by_name(tmp_path: Path, name: str) -> None:
    folder = write_folder(make_module("llama"), tmp_path / "m")
    put_pipe(folder / name)
    with pytest.raises(ModelFileError, match=PIPE) as caught:
        load_model(folder)
    assert str(caught.value).startswith(name)


@needs_pipes
def test_pipe_that_nobody_reads_does_not_matter(tmp_path: Path) -> None:
    folder = write_folder(make_module("llama"), tmp_path / "m")
    put_pipe(folder / "notes")
    (folder / "nowhere.json").symlink_to(folder / "missing")
    (folder / "more.json").mkdir()
    assert check_folder(folder).path == folder


@needs_pipes
def test_pipes_in_the_place_of_what_is_remembered_are_as_nothing(tmp_path: Path) -> None:
    put_pipe(tmp_path / "kv-quality-f.json")
    assert load_verdict(tmp_path, "f") is None
    put_pipe(tmp_path / "weights.json")
    (tmp_path / "x.gguf").write_bytes(b"weights")
    assert len(WeightFiles.seen_at(tmp_path / "x.gguf").digest(tmp_path)) == 32


@pytest.mark.parametrize("path", [LONG_NAME, f"{LONG_NAME}/x.gguf", f"{LONG_NAME}.gguf"])
def test_model_that_cannot_be_looked_at_is_refused_with_the_reason(
    tmp_path: Path, path: str
) -> None:
    with pytest.raises(ModelFileError, match="The file cannot be read: File name too long"):
        load_model(tmp_path / path)


def refusing(
    call: Callable[..., object], is_closed: Callable[[str], bool]
) -> Callable[..., object]:
    """`call`, which the system refuses for some paths."""

    def checked(path: object = ".", *arguments: object, **options: object) -> object:
        if isinstance(path, str | Path) and is_closed(str(path)):
            raise PermissionError(13, "Permission denied", str(path))
        return call(path, *arguments, **options)

    return checked


def test_closed_folder_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(make_module("llama"), tmp_path / "m")
    monkeypatch.setattr(os, "scandir", refusing(os.scandir, lambda path: path == str(folder)))
    monkeypatch.setattr(os, "stat", refusing(os.stat, lambda path: path.startswith(f"{folder}/")))
    with pytest.raises(ModelFileError, match=r"^m: The folder cannot be read: Permission denied"):
        load_model(folder)
    with pytest.raises(
        ModelFileError, match=r"^x.gguf: The file cannot be read: Permission denied"
    ):
        load_model(folder / "x.gguf")


def test_folder_that_can_be_listed_but_not_entered_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_folder(make_module("llama"), tmp_path / "m")
    monkeypatch.setattr(os, "stat", refusing(os.stat, lambda path: path.startswith(f"{folder}/")))
    with pytest.raises(ModelFileError, match=r"^config.json: The file cannot be read: Permission"):
        load_model(folder)
