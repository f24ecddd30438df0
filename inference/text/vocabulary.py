"""The table of a tokenizer's pieces and the bytes each stands for. Pure Python; any thread.

A piece is what the model file lists for an id. Its bytes are what the id adds to the text. Two
spellings are known:

    byte level    one character per byte, in the alphabet of GPT-2: "Ġthe" is b" the"
    sentence      plain UTF-8 with U+2581 for a space, and "<0x0A>" for single bytes: "▁the"
"""

import re
from collections.abc import Iterable, Sequence

SPACE_MARK = "\u2581"
BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """Character to byte, for all 256 bytes.

    Source: Radford et al. 2019, GPT-2. Printable Latin-1 characters stand for themselves; the other
    bytes, in order, are the characters from U+0100 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    alphabet.update({chr(0x100 + n): byte for n, byte in enumerate(others)})
    return alphabet


BYTE_ALPHABET = _byte_alphabet()


class Vocabulary:
    """All pieces by id.

    Attributes:
        is_byte_level: Which of the two spellings the pieces have.
    """

    def __init__(
        self, pieces: Sequence[str], *, is_byte_level: bool, literal_ids: Iterable[int] = ()
    ) -> None:
        """Keep the pieces; bytes are worked out when first asked for.

        Args:
            pieces: By id; "" where an id stands for nothing.
            is_byte_level: Whether the pieces are in the byte alphabet.
            literal_ids: Ids whose piece is the text itself, in neither spelling: control tokens,
                and in byte-level vocabularies the added tokens.
        """
        self.is_byte_level = is_byte_level
        self._pieces = pieces
        self._literal_ids = frozenset(literal_ids)
        self._bytes: list[bytes | None] = [None] * len(pieces)

    def __len__(self) -> int:
        """The number of ids."""
        return len(self._pieces)

    def piece(self, token_id: int) -> str:
        """The piece as the model file spells it; "" for an id outside the table."""
        return self._pieces[token_id] if 0 <= token_id < len(self._pieces) else ""

    def bytes_of(self, token_id: int) -> bytes:
        """What the id adds to the text; b"" for an id outside the table.

        Models may have more rows than pieces (padding to a round number), so such an id is no
        error: it says nothing.
        """
        if not 0 <= token_id < len(self._bytes):
            return b""
        known = self._bytes[token_id]
        if known is None:
            known = self._bytes[token_id] = self._spell_out(token_id)
        return known

    def missing_bytes(self) -> bytes:
        """The bytes that no piece of a byte-level vocabulary stands for, ascending.

        Text with such a byte cannot be written in this vocabulary. Always b"" for sentence
        vocabularies, whose core tokenizer falls back to byte pieces by itself.
        """
        if not self.is_byte_level:
            return b""
        single = {piece for piece in self._pieces if len(piece) == 1}
        return bytes(sorted(byte for char, byte in BYTE_ALPHABET.items() if char not in single))

    def _spell_out(self, token_id: int) -> bytes:
        piece = self._pieces[token_id]
        if token_id in self._literal_ids:
            return piece.encode("utf-8", "replace")
        if self.is_byte_level:
            try:
                return bytes([BYTE_ALPHABET[char] for char in piece])
            except KeyError:  # not in the byte alphabet, so it is meant as it stands
                return piece.encode("utf-8", "replace")
        byte = BYTE_PIECE.fullmatch(piece)
        if byte:
            return bytes([int(byte[1], 16)])
        return piece.replace(SPACE_MARK, " ").encode("utf-8", "replace")
