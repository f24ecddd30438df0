"""Reads the small files beside a model's weights, or says what is wrong with them. Any thread."""

import io
import json
import os
from pathlib import Path

from inference.errors import ModelFileError
from inference.regular_file import open_regular

MAX_FILE_BYTES = 256 * 2**20
_HINT = "Download the model again, with all its files."


def read_text_file(path: Path) -> str:
    """The text of a file.

    Raises:
        ModelFileError: It is missing, unreadable, too big, or no text.
    """
    try:
        with io.TextIOWrapper(open_regular(path), encoding="utf-8") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_FILE_BYTES:
                reason = f"It has {size:,} bytes, too many to be what it should be."
                raise ModelFileError(path, reason)
            return file.read()
    except FileNotFoundError as error:
        raise ModelFileError(path, "The file is missing.", hint=_HINT) from error
    except OSError as error:
        raise ModelFileError(path, f"It cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ModelFileError(path, "It is not text in UTF-8.", hint=_HINT) from error


def read_json_object(path: Path) -> dict[str, object]:
    """The JSON object in a file.

    Raises:
        ModelFileError: As `read_text_file`, or it holds no JSON object.
    """
    text = read_text_file(path)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ModelFileError(path, _why_no_json(text), hint=_HINT) from error
    except RecursionError as error:
        raise ModelFileError(path, "It is nested too deeply.", hint=_HINT) from error
    if not isinstance(value, dict):
        raise ModelFileError(path, "It holds no JSON object.", hint=_HINT)
    return value


def read_optional_json(path: Path) -> dict[str, object]:
    """The JSON object in a file that may be missing; {} if it is.

    Raises:
        ModelFileError: The file is there and broken.
    """
    return read_json_object(path) if os.path.exists(path) else {}


def _why_no_json(text: str) -> str:
    start = text[:256].lstrip("\ufeff \t\r\n").lower()
    if not start:
        return "It is empty."
    if start.startswith("<"):
        return "It is a web page, not JSON: the download got an error page instead of the file."
    if start.startswith("version https://git-lfs"):
        return "It is a pointer of Git LFS; the file itself was not downloaded."
    return "It is not valid JSON."
