"""Checks a Hugging Face folder of safetensors before anything is loaded from it. Pure Python.

    config.json  tokenizer.json  model.safetensors            one file, or
    config.json  tokenizer.json  model.safetensors.index.json model-00001-of-00002.safetensors ...

Every header is read and held against the length of its file, so that a cut download, a web page
under a model's name, or a missing part fails in milliseconds and by name.
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from inference.errors import ModelFileError, UnsupportedModelError
from inference.formats.byte_cursor import INCOMPLETE_HINT
from inference.formats.file_kind import describe_foreign_file
from inference.formats.safetensors_header import SafetensorsHeader, read_header
from inference.regular_file import NotAFileError, check_regular, open_regular

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SAMPLE_BYTES = 256
_MAX_INDEX_BYTES = 2**26
_READ_SUFFIXES = (".json", ".jinja", ".safetensors", ".model", ".txt")
"""Of the files that we read, or libraries for us."""

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A folder whose files are all there and whose headers are sound.

    Attributes:
        path: The folder.
        headers: One per safetensors file, in the order of their names.
    """

    path: Path
    headers: tuple[SafetensorsHeader, ...]

    @property
    def num_parameters(self) -> int:
        """Count of stored weights."""
        return sum(t.num_elements for header in self.headers for t in header.tensors.values())

    @property
    def weight_type(self) -> str:
        """The type that most weights have: "BF16", "F32", ..."""
        counts: dict[str, int] = {}
        for header in self.headers:
            for tensor in header.tensors.values():
                counts[tensor.type_name] = counts.get(tensor.type_name, 0) + tensor.num_elements
        return max(counts, key=lambda name: counts[name]) if counts else "mixed"

    def fingerprint(self) -> bytes:
        """Name these weights: a digest of the configuration, the headers, and samples of tensors.

        Cheap (some ms), the same in every process; 32 bytes.
        """
        digest = hashlib.blake2b(digest_size=32, person=b"quire-folder-1")
        with open_regular(self.path / "config.json") as config:
            digest.update(config.read())
        for header in self.headers:
            digest.update(header.path.name.encode() + header.size.to_bytes(8, "little"))
            with open_regular(header.path) as file:
                digest.update(file.read(header.data_start))
                for tensor in header.tensors.values():
                    for start in _sample_starts(tensor.offset, tensor.num_bytes):
                        file.seek(start)
                        digest.update(file.read(min(SAMPLE_BYTES, tensor.num_bytes)))
        return digest.digest()


def check_folder(path: Path | str) -> ModelFolder:
    """Check that a folder holds a whole model.

    Raises:
        ModelFileError: A file is missing, cut, not readable, or is not what its name says; names the file.
        UnsupportedModelError: The weights are there, but only as pickle, adapter, or GGUF.
    """
    path = Path(path)
    if not os.path.isdir(path):
        raise ModelFileError(path, "The folder does not exist.")
    _refuse_what_is_no_file(path)
    has_weights = _first(path, "*.safetensors", *_PICKLES) is not None
    if not _is_there(path / "config.json") and not has_weights:
        raise _no_model(path)
    for name in ("config.json", "tokenizer.json"):
        if not _is_there(path / name):
            raise ModelFileError(
                path / name, f"The file is missing from the folder {path.name!r}.",
                hint="Download the model again, with all its files.",
            )  # fmt: skip
    if _is_there(path / SINGLE_FILE):
        headers: tuple[SafetensorsHeader, ...] = (read_header(path / SINGLE_FILE),)
    elif _is_there(path / INDEX_FILE):
        headers = _read_parts(path)
    else:
        raise _no_weights(path)
    if not any(header.tensors for header in headers):
        raise ModelFileError(
            path, "Its safetensors files hold no tensors.",
            hint="Download the model again, with all its files.",
        )  # fmt: skip
    return ModelFolder(path, headers)


def _refuse_what_is_no_file(folder: Path) -> None:
    """A pipe under the name of a file would be waited for, in a library's code too."""
    try:
        with os.scandir(folder) as entries:
            named = [entry for entry in entries if entry.name.endswith(_READ_SUFFIXES)]
    except OSError as error:
        raise _unreadable(folder, error) from error
    for entry in named:
        try:
            check_regular(entry.stat().st_mode, entry.path)
        except NotAFileError as error:
            raise _unreadable(Path(entry.path), error) from error
        except OSError:
            continue  # a folder, or a link to nowhere: who needs it says so


def _is_there(file: Path) -> bool:
    try:
        os.stat(file)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(file, error) from error
    return True


def _unreadable(path: Path, error: OSError) -> ModelFileError:
    kind = "folder" if os.path.isdir(path) else "file"
    return ModelFileError(path, f"The {kind} cannot be read: {error.strerror}.")


def _sample_starts(offset: int, num_bytes: int) -> tuple[int, int, int]:
    last = offset + max(0, num_bytes - SAMPLE_BYTES)
    return offset, (offset + last) // 2, last


def _read_parts(path: Path) -> tuple[SafetensorsHeader, ...]:
    weight_map = _read_weight_map(path / INDEX_FILE)
    names = sorted(set(weight_map.values()))
    for number, name in enumerate(names, start=1):
        if not _is_there(path / name):
            raise ModelFileError(
                path / name,
                f"This part of the model ({number} of {len(names)}) is missing.",
                hint="Download the missing file into the folder.",
            )
    headers = {name: read_header(path / name) for name in names}
    for tensor, name in weight_map.items():
        if tensor not in headers[name].tensors:
            raise ModelFileError(
                path / name,
                f"The tensor {tensor!r:.60} should be in this file and is not.",
                hint="Download the model again, all its files from one place.",
            )
    return tuple(headers[name] for name in names)


def _read_weight_map(path: Path) -> dict[str, str]:
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read() if size <= _MAX_INDEX_BYTES else b""
        foreign = describe_foreign_file(data[:512], size)
        if foreign is not None:
            raise ModelFileError(path, foreign.reason, hint=foreign.hint)
        value = json.loads(data)
    except OSError as error:
        raise ModelFileError(path, f"The file cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise ModelFileError(path, "The file is not valid JSON.", hint=INCOMPLETE_HINT) from error
    weight_map = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(path, "It lists no parts of the model ('weight_map').")
    for name in weight_map.values():
        # A name with a folder in it could lead out of the model's folder.
        if (
            not isinstance(name, str)
            or Path(name).name != name
            or not name.endswith(".safetensors")
        ):
            raise ModelFileError(path, f"It names an impossible part: {str(name)[:60]!r}.")
    return weight_map


def _first(path: Path, *patterns: str) -> str | None:
    """The name of the first file in a folder that is like one of these."""
    return next((file.name for pattern in patterns for file in sorted(path.glob(pattern))), None)


def _no_model(path: Path) -> ModelFileError:
    """A folder of something else, or one with GGUF files."""
    if name := _first(path, "*.gguf"):
        return _only_gguf(path, name)
    return ModelFileError(
        path, "The folder holds no model: there is no config.json in it, and no weights.",
        hint="Choose a file whose name ends in .gguf, or a folder with config.json and safetensors files.",
    )  # fmt: skip


def _only_gguf(path: Path, name: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        path, "The folder holds a GGUF file, not safetensors.",
        hint=f"Open the file {name} itself.",
    )  # fmt: skip


def _no_weights(path: Path) -> ModelFileError:
    if name := _first(path, "adapter_model.safetensors", "adapter_model.bin"):
        return UnsupportedModelError(
            path, f"The folder holds an adapter ({name}), not a whole model.",
            hint="Merge the adapter into its model first.",
        )  # fmt: skip
    if name := _first(path, "*.safetensors"):
        return ModelFileError(
            path / INDEX_FILE,
            f"The file is missing: there are weights such as {name!r:.60}, but neither "
            f"{SINGLE_FILE} nor the list of parts.",
            hint="Download the model again, with all its files.",
        )
    if name := _first(path, *_PICKLES):
        return UnsupportedModelError(
            path,
            f"The weights are there only as a pickle ({name}), which can run code when it is opened.",
            hint="Look for the same model as safetensors or GGUF.",
        )
    if name := _first(path, "*.gguf"):
        return _only_gguf(path, name)
    return ModelFileError(
        path / SINGLE_FILE, f"The file is missing from the folder {path.name!r}.",
        hint="Download the model again, with all its files.",
    )  # fmt: skip
