"""Whether two models have one vocabulary, so that one can guess token ids for the other. Any thread.

What is compared is what each id adds to the text, and which ids end a turn. A model may have more rows
than its tokenizer has entries; some files list those rows, as "[PAD151665]" under just that id, and these
count as nothing.

Whole tokenizers are compared when a draft model is loaded. To offer models that are installed, a digest of
what their files say is enough; it is worked out once per file, in a part of a second.
"""

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from inference.errors import EngineError
from inference.formats.gguf import GgufFile
from inference.text.markup_names import end_ids
from inference.text.tokenizer import Tokenizer
from inference.text.tokenizer_folder import tokenizer_from_folder
from inference.text.tokenizer_gguf import tokenizer_from_metadata

MAX_SHARE = 0.6
"""Of the target's bytes, what a draft model may have to be offered: a larger one cannot pay."""

_MAX_REMEMBERED = 128  # files
_MAX_SHOWN_BYTES = 24
_MAX_SHOWN_IDS = 4
_KEY = "tokenizer.ggml."

_Seen = tuple[tuple[str, int, int], ...]
"""Path, size in bytes and time of change in ns of each file of a model."""


def vocabulary_difference(target: Tokenizer, draft: Tokenizer) -> str:
    """Say how a draft model's vocabulary differs from the target's.

    Returns:
        A sentence with the first difference; "" if there is none.
    """
    ours, theirs = _texts(target), _texts(draft)
    for token_id, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            return (
                f"Its vocabulary is another: token {token_id} is {_shown(their)}, "
                f"and {_shown(our)} in the model that it should guess for."
            )
    if len(ours) != len(theirs):
        return (
            f"Its vocabulary has {len(theirs):,} entries, "
            f"and {len(ours):,} in the model that it should guess for."
        )
    if target.eos_ids != draft.eos_ids:
        return (
            f"Its turns end with {_shown_ids(draft.eos_ids)}, "
            f"and with {_shown_ids(target.eos_ids)} in the model that it should guess for."
        )
    return ""


def vocabulary_digest(path: Path | str) -> bytes | None:
    """Name the vocabulary of a model by its files, without its weights; 32 bytes.

    Args:
        path: A GGUF file or a folder of safetensors.

    Returns:
        The same for models of one vocabulary; None if the files cannot be read.
    """
    return _digest_of(str(path), _files_of(Path(path)))


def is_other_vocabulary(target_path: Path | str, path: Path | str) -> bool:
    """Whether the files of two models tell that their vocabularies differ; False if they do not tell."""
    digest = vocabulary_digest(path)
    target = None if digest is None else vocabulary_digest(target_path)
    return target is not None and target != digest


def tokenizer_at(path: Path) -> Tokenizer:
    """Read the tokenizer of a model without its weights.

    Raises:
        ModelFileError: The files are not sound.
        UnsupportedModelError: They are of a kind that is not known.
    """
    if os.path.isdir(path):
        return tokenizer_from_folder(path)
    with GgufFile.read(path) as file:
        return tokenizer_from_metadata(file.metadata, path)


def model_bytes(path: Path | str) -> int:
    """Length of the weights' files; 0 if there are none."""
    return sum(size for name, size, _ in _files_of(Path(path)) if not name.endswith(".json"))


def find_drafts(target_path: Path | str, paths: Iterable[str]) -> list[str]:
    """Which models could guess for a target, as far as their files tell.

    Args:
        target_path: The target.
        paths: GGUF files and folders; what cannot be read is left out.

    Returns:
        Those of its vocabulary that are small enough, the smallest first.
    """
    limit = MAX_SHARE * model_bytes(target_path)
    sizes = {path: model_bytes(path) for path in paths}
    small = sorted((size, path) for path, size in sizes.items() if 0 < size <= limit)
    wanted = vocabulary_digest(target_path) if small else None
    return [path for _, path in small if wanted and vocabulary_digest(path) == wanted]


# ------------------------------------------------------------------ what ids stand for


def _texts(tokenizer: Tokenizer) -> list[bytes]:
    """What each id adds to the text; ids at the end that stand for nothing are left out."""
    vocabulary = tokenizer.vocabulary
    return _without_padding(
        [
            b"" if _is_padding(vocabulary.piece(token_id), token_id) else text
            for token_id, text in enumerate(map(vocabulary.bytes_of, range(len(vocabulary))))
        ]
    )


def _without_padding(entries: list[bytes]) -> list[bytes]:
    while entries and not entries[-1]:
        entries.pop()
    return entries


def _is_padding(piece: str, token_id: int) -> bool:
    """Whether a piece only says that its row is not used, as llama.cpp's converter writes it."""
    return piece.startswith("[PAD") and piece == f"[PAD{token_id}]"


def _shown(text: bytes) -> str:
    """An entry of a vocabulary, for people."""
    if not text:
        return "nothing"
    words = repr(text[:_MAX_SHOWN_BYTES].decode("utf-8", "backslashreplace"))
    return words if len(text) <= _MAX_SHOWN_BYTES else f"{words} and more"


def _shown_ids(token_ids: Iterable[int]) -> str:
    ordered = sorted(token_ids)
    shown = ", ".join(map(str, ordered[:_MAX_SHOWN_IDS]))
    if len(ordered) < 2:
        return f"the token {shown}" if ordered else "no token"
    return f"the tokens {shown}"


# ------------------------------------------------------------------ what files say


def _files_of(path: Path) -> _Seen:
    """The files that tell a model's size and vocabulary, as they are now; without those not there."""
    files = [path]
    if os.path.isdir(path):
        files = [*sorted(path.glob("*.safetensors")), *sorted(path.glob("*.json"))]
    return tuple(_look_at(files))


def _look_at(files: Sequence[Path]) -> Iterator[tuple[str, int, int]]:
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        yield str(file), status.st_size, status.st_mtime_ns


@lru_cache(maxsize=_MAX_REMEMBERED)
def _digest_of(path: str, seen: _Seen) -> bytes | None:
    """See `vocabulary_digest`; `seen` is there so that a changed file is looked at again."""
    if not seen:
        return None
    try:
        return _folder_digest(Path(path)) if Path(path).is_dir() else _gguf_digest(Path(path))
    except (EngineError, OSError):
        return None


def _folder_digest(path: Path) -> bytes:
    tokenizer = tokenizer_from_folder(path)
    vocabulary = tokenizer.vocabulary
    pieces = [vocabulary.piece(token_id) for token_id in range(len(vocabulary))]
    return _digest(pieces, tokenizer.eos_ids, is_byte_level=vocabulary.is_byte_level)


def _gguf_digest(path: Path) -> bytes | None:
    """Read the lists of the file without making a tokenizer, which takes several times as long."""
    with GgufFile.read(path) as file:
        metadata = file.metadata
    kind, pieces = metadata.get(f"{_KEY}model"), metadata.get(f"{_KEY}tokens")
    if kind not in ("gpt2", "llama") or not isinstance(pieces, list):
        return None
    names = [piece for piece in pieces if isinstance(piece, str)]
    if len(names) < len(pieces):
        return None
    keys = ("eos_token_id", "eot_token_id", "eom_token_id")
    told = [metadata.get(_KEY + key) for key in keys]
    known = [end for end in told if isinstance(end, int) and 0 <= end < len(names)]
    ends = end_ids({piece: token_id for token_id, piece in enumerate(names)}, known)
    return _digest(names, ends, is_byte_level=kind == "gpt2")


def _digest(pieces: Sequence[str], eos_ids: Iterable[int], *, is_byte_level: bool) -> bytes:
    used = list(pieces)
    for token_id, piece in enumerate(used):
        if _is_padding(piece, token_id):
            used[token_id] = ""
    while used and not used[-1]:
        used.pop()
    digest = hashlib.blake2b(digest_size=32, person=b"quire-vocab-1")
    digest.update(bytes([is_byte_level]))
    for numbers in (sorted(eos_ids), list(map(len, used))):
        digest.update(len(numbers).to_bytes(8, "little") + array("q", numbers).tobytes())
    digest.update("".join(used).encode("utf-8", "surrogatepass"))
    return digest.digest()
