"""Text that can be stored, and text that a terminal can show. Pure Python; any thread."""

import unicodedata


def storable(text: str) -> str:
    """`text` with U+FFFD for each half of a pair (a lone surrogate), which UTF-8 cannot hold.

    Such halves come with what other programs put on the clipboard, and stand in the names of files
    whose bytes are not UTF-8.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= sign <= "\udfff" else sign for sign in text)
    return text


# Control characters; zero-width spaces, joiners and marks.
_UNSEEN = ("Cc", "Cf")
_FIRST = 64  # signs, among which that of a text mostly is


def is_blank(text: str) -> bool:
    """Whether nothing can be seen of it: there is no message in it then. Quick also for long texts."""
    return all(map(_is_unseen, text[:_FIRST])) and all(map(_is_unseen, set(text)))


def _is_unseen(sign: str) -> bool:
    return sign.isspace() or unicodedata.category(sign) in _UNSEEN


def joined(text: str, written: str) -> str:
    """`text`, and after it what was written since, if anything was."""
    if is_blank(text) or is_blank(written):
        return written if is_blank(text) else text
    return f"{text}\n\n{written}"


_CONTROLS = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"}


def without_controls(text: str) -> str:
    """`text` with U+FFFD for what a terminal would obey: a model may write escape sequences."""
    return text.translate(_CONTROLS)


def as_line(text: str) -> str:
    """`text` as a line that shows as it is read, without control characters: what a title may be."""
    return " ".join(text.translate(dict.fromkeys(_CONTROLS, " ") | _TURNING).split())


# Letters that turn the direction of those after them, until they are ended; and marks that only hint at one.
_TURNING = dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)))
_DIRECTING = _TURNING | dict.fromkeys((0x200E, 0x200F, 0x061C))


def turns_direction(text: str) -> bool:
    """Whether `text` may show in another order than it is read, and what stands after it too."""
    return text.translate(_TURNING) != text


def without_directions(text: str) -> str:
    """`text` without signs that nobody sees and that choose the direction of writing."""
    return text.translate(_DIRECTING)
