from inference.text.vocabulary import BYTE_ALPHABET, Vocabulary


def test_byte_alphabet_has_each_byte_once() -> None:
    assert sorted(BYTE_ALPHABET.values()) == list(range(256))


def test_bytes_of_byte_level_piece_are_its_alphabet() -> None:
    vocabulary = Vocabulary(["Ġthe", "Ã©", "Ċ"], is_byte_level=True)
    assert [vocabulary.bytes_of(n) for n in range(3)] == [b" the", "é".encode(), b"\n"]


def test_bytes_of_byte_level_piece_outside_alphabet_is_text() -> None:
    assert Vocabulary(["日本"], is_byte_level=True).bytes_of(0) == "日本".encode()


def test_bytes_of_literal_piece_is_text_as_it_stands() -> None:
    vocabulary = Vocabulary(["é", "é"], is_byte_level=True, literal_ids=[1])
    assert [vocabulary.bytes_of(n) for n in range(2)] == [b"\xe9", "é".encode()]


def test_bytes_of_sentence_piece_are_spaces_and_bytes() -> None:
    vocabulary = Vocabulary(["▁a▁", "<0x0A>", "<0xff>"], is_byte_level=False)
    assert [vocabulary.bytes_of(n) for n in range(3)] == [b" a ", b"\n", b"\xff"]


def test_bytes_of_id_outside_says_nothing() -> None:
    vocabulary = Vocabulary(["a"], is_byte_level=True)
    assert [vocabulary.bytes_of(n) for n in (-1, 1, 10**9)] == [b"", b"", b""]
    assert vocabulary.piece(-1) == ""


def test_missing_bytes_are_those_without_piece() -> None:
    pieces = [char for char, byte in BYTE_ALPHABET.items() if byte not in (4, 0xF1)]
    assert Vocabulary(pieces, is_byte_level=True).missing_bytes() == b"\x04\xf1"
    assert Vocabulary(["a"], is_byte_level=False).missing_bytes() == b""
