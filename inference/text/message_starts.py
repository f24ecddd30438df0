"""Which token of a stretch of a prompt is the first of each message. Pure Python; any thread.

Where contents end is known. A message begins after the token of the template that closes the turn
before it, with its own markup; where turns have no such token, right after the content before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from inference.text.prompt_marks import BREAK
from inference.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a stretch: in the text after so many markup tokens, at an offset in characters."""

    piece: int
    offset: int


class Stretch:
    """Finds the first token of each message in one stretch.

    Args:
        markup: Its markup tokens.
        texts: What stands around them: one more, "" for nothing.
        ids: All of its ids; those of `markup` are in them, in this order, and no other markup.
        tokenizer: The model's.
        is_first: Whether the prompt begins with it.
    """

    def __init__(
        self,
        markup: list[int],
        texts: list[str],
        ids: Sequence[int],
        tokenizer: Tokenizer,
        *,
        is_first: bool,
    ) -> None:
        self._markup = markup
        self._texts = texts
        self._ids = ids
        self._tokenizer = tokenizer
        self._is_first = is_first
        kinds = set(markup)
        self._borders = [n for n, token_id in enumerate(ids) if token_id in kinds]

    def starts(self, places: dict[int, Place]) -> dict[int, int]:
        """Per message, the index of its first token in the stretch."""
        starts: dict[int, int] = {}
        before = Place(0, 0)
        for index, place in places.items():
            starts[index] = (
                self._start_of_first(place)
                if self._is_first and not starts
                else self._start_after(before, place)
            )
            before = place
        return starts

    def _start_of_first(self, place: Place) -> int:
        """After what the template says by itself, if that is a turn of its own."""
        # Some models end a turn with the token that begins the next one, which is not the last here.
        ends = self._tokenizer.eos_ids
        turns = [n for n in range(place.piece - 1) if self._markup[n] in ends]
        return self._after_markup(turns[-1], place) if turns else 0

    def _start_after(self, before: Place, place: Place) -> int:
        """After the token that closes the turn before; without one, where the content before ends."""
        for n in range(before.piece, place.piece):
            if self._tokenizer.is_control(self._markup[n]):
                return self._after_markup(n, place)
        return self._token_at(before)

    def _after_markup(self, number: int, place: Place) -> int:
        """The token after markup, and after the white space that ends its line."""
        following = number + 1
        is_blank = following < place.piece and not self._texts[following].strip()
        return self._borders[following] if is_blank else self._borders[number] + 1

    def _token_at(self, place: Place) -> int:
        """The token that begins at a place or goes over it, found by the bytes before it."""
        borders = [-1, *self._borders, len(self._ids)]
        first, end = borders[place.piece] + 1, borders[place.piece + 1]
        text = self._texts[place.piece]
        sizes = [len(self._tokenizer.vocabulary.bytes_of(n)) for n in self._ids[first:end]]
        # A sentence vocabulary puts a space before the text.
        num_bytes = _num_bytes(text[: place.offset]) + max(0, sum(sizes) - _num_bytes(text))
        for n, size in enumerate(sizes):
            num_bytes -= size
            if num_bytes < 0:
                return first + n
        return end


def _num_bytes(text: str) -> int:
    return len(text.replace(BREAK, "").encode("utf-8", "surrogatepass"))
