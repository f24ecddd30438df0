"""Says what a file is that is not the model file it should be. Pure Python."""

from dataclasses import dataclass

from inference.formats.byte_cursor import INCOMPLETE_HINT

_WEB_PAGE_HINT = "Open the download page in a browser and download the file itself."


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """Why a file cannot be the model file that its name promises.

    Attributes:
        reason: One sentence.
        hint: What to do.
    """

    reason: str
    hint: str


def describe_foreign_file(start: bytes, size: int, *, magic: bytes = b"") -> ForeignFile | None:
    """Recognise files that are often found under a model's name.

    Args:
        start: The first bytes of the file, up to 512.
        size: Length of the whole file.
        magic: What the file should start with; b"" if its format has no such mark.

    Returns:
        What is wrong, or None if nothing speaks against the file.
    """
    if size == 0:
        return ForeignFile("The file is empty (0 bytes).", INCOMPLETE_HINT)
    if magic and start.startswith(magic):
        return None
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype html", b"<html", b"<head", b"<?xml")):
        return ForeignFile("This is a web page (HTML), not a model file.", _WEB_PAGE_HINT)
    if text.startswith(b"version https://git-lfs"):
        return ForeignFile(
            "This is a git-lfs pointer, a small text file in place of the model.",
            "Fetch the real file with 'git lfs pull', or download it in a browser.",
        )
    if start.startswith(b"PK\x03\x04"):
        return ForeignFile("This is a ZIP archive, not a model file.", "Unpack it first.")
    if not magic:
        return None
    if magic.startswith(start):
        return ForeignFile(f"The file ends after {size:,} bytes.", INCOMPLETE_HINT)
    if start[: len(magic)] == magic[::-1]:
        return ForeignFile("The file is written in big-endian byte order.", "")
    if not any(start):
        return ForeignFile("The file starts with zeros only.", INCOMPLETE_HINT)
    return ForeignFile(
        f"This is not a {magic.decode()} file: it starts with {start[:4].hex(' ')}.",
        "Choose a model in GGUF form, or a folder with safetensors files.",
    )
