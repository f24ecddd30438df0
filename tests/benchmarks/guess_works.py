"""What replies are about when guessing ahead is measured: texts to repeat, code to edit, questions to answer.

Every work makes a prompt of a number. Prompts of different numbers differ a little in what the reply must hold,
so that no reply is known before.
"""

from collections.abc import Callable
from dataclasses import dataclass

from inference.config import SamplingParams

MIN_TOKENS = 32  # a shorter reply says little about speed

NAMES = ("Aldo", "Brita", "Cyril", "Doris", "Emil", "Frieda", "Gustav", "Helma", "Igor", "Jutta")

TEXT = """\
{name} had kept the weather station on the ridge for {years} years. Every morning at six the thermometer was read
first, then the barometer, then the little cup that had caught the rain of the night, and all three numbers went into a
green book with a pencil on a string. The pencil was never sharpened by anyone but {name}, and the book was never lent.

In the second week of March the needle of the barometer fell further than the glass had marks for. {name} wrote down
what could be read, drew a small arrow below it, and called the harbour. Nobody answered. The wire had come down
somewhere between the quarry and the old mill, as it did in most winters, and so there was only one thing left to do:
the lamp on the tower had to be lit before noon, which had not happened for {years} years, and someone had to stay with
it until the boats were back.

There were eleven boats. The first came in at two, with its sail torn and all hands well; the second and the third came
together, one towing the other. By four o'clock {name} had counted eight. The wind turned to the north, the rain became
snow, and the ninth boat was seen only when it was already inside the breakwater. The tenth had put in at the island
and waited there until the morning. Of the eleventh nothing was known until the evening of the next day, when a boy came
up the path with a basket of eggs and a message: all were safe, and would {name} please put out the lamp now, as nobody
in the village could sleep.
"""

LEDGER = '''\
from dataclasses import dataclass, field
from datetime import date


@dataclass(frozen=True)
class Entry:
    """One line of the books; the amount is in cents and never zero."""

    day: date
    text: str
    amount: int

    def __post_init__(self) -> None:
        if self.amount == 0:
            raise ValueError("an entry of nothing is no entry")


@dataclass
class Ledger:
    """All entries of one year, in the order of their days."""

    year: int
    entries: list[Entry] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        if entry.day.year != self.year:
            raise ValueError(f"{entry.day} is not in {self.year}")
        index = len(self.entries)
        while index > 0 and self.entries[index - 1].day > entry.day:
            index -= 1
        self.entries.insert(index, entry)

    def balance(self, until: date | None = None) -> int:
        chosen = self.entries
        if until is not None:
            chosen = [entry for entry in self.entries if entry.day <= until]
        return sum(entry.amount for entry in chosen)

    def by_month(self) -> dict[int, int]:
        totals: dict[int, int] = {}
        for entry in self.entries:
            totals[entry.day.month] = totals.get(entry.day.month, 0) + entry.amount
        return totals


def merge(first: Ledger, second: Ledger) -> Ledger:
    """One ledger with the entries of two of the same year."""
    if first.year != second.year:
        raise ValueError("ledgers of different years cannot be merged")
    merged = Ledger(first.year)
    for entry in [*first.entries, *second.entries]:
        merged.add(entry)
    return merged
'''

GRID = '''\
import heapq

Cell = tuple[int, int]


class Grid:
    """A map of square cells, some of which are walls."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.height = height
        self.walls: set[Cell] = set()
        self.weights: dict[Cell, int] = {}

    def is_inside(self, cell: Cell) -> bool:
        x, y = cell
        return 0 <= x < self.width and 0 <= y < self.height

    def neighbours(self, cell: Cell) -> list[Cell]:
        x, y = cell
        around = [(x + 1, y), (x, y - 1), (x - 1, y), (x, y + 1)]
        return [place for place in around if self.is_inside(place) and place not in self.walls]

    def cost(self, cell: Cell) -> int:
        return self.weights.get(cell, 1)


def distance(first: Cell, second: Cell) -> int:
    return abs(first[0] - second[0]) + abs(first[1] - second[1])


def find_path(grid: Grid, start: Cell, goal: Cell) -> list[Cell]:
    """The cheapest way from start to goal; empty if there is none."""
    frontier: list[tuple[int, Cell]] = [(0, start)]
    came_from: dict[Cell, Cell | None] = {start: None}
    costs: dict[Cell, int] = {start: 0}
    while frontier:
        _, current = heapq.heappop(frontier)
        if current == goal:
            break
        for cell in grid.neighbours(current):
            cost = costs[current] + grid.cost(cell)
            if cell not in costs or cost < costs[cell]:
                costs[cell] = cost
                heapq.heappush(frontier, (cost + distance(cell, goal), cell))
                came_from[cell] = current
    if goal not in came_from:
        return []
    path: list[Cell] = []
    step: Cell | None = goal
    while step is not None:
        path.append(step)
        step = came_from[step]
    return path[::-1]
'''

CODES = (("Ledger", LEDGER), ("Grid", GRID))
NEW_NAMES = ("Register", "Table", "Chart", "Journal", "Board", "Record", "Plan", "Sheet")

CODE_TASKS = (
    "a binary search tree class in Python with insert, delete and find, and tests for it",
    "a Python class that reads a CSV file with quoted fields without the csv module, and tests for it",
    "a least-recently-used cache in Python with get, put and a capacity, and tests for it",
    "a small tokenizer and parser for arithmetic expressions in Python, and tests for it",
    "a priority queue as a binary heap in Python with push, pop and peek, and tests for it",
    "a Python program that counts the words of all text files in a folder, with arguments and tests",
)

CHAT_QUESTIONS = (
    "What should I think about before I take a dog into my home?",
    "Explain to me why the sky is blue and the evening sky is red.",
    "Tell me a short story about a lighthouse keeper who cannot swim.",
    "How did people keep food fresh before there were refrigerators?",
    "I have three days in a city by the sea. How should I spend them?",
    "What are the good and the bad sides of working at night?",
    "Describe how bread is made, from the field to the table.",
    "Why do some people learn languages faster than others?",
)


@dataclass(frozen=True, slots=True)
class Work:
    """One kind of reply.

    Attributes:
        name: As it is printed.
        max_tokens: Of a reply.
        prompt: The text to send, by the number of the round.
        is_sampled: Whether tokens are drawn, with the round's number as seed; if not, greedily chosen.
        wanted: What a model that does as it is told replies; None if nobody can know.
        least_tokens: A shorter reply is not counted, unless guesses made it another.
    """

    name: str
    max_tokens: int
    prompt: Callable[[int], str]
    is_sampled: bool = False
    wanted: Callable[[int], str] | None = None
    least_tokens: int = MIN_TOKENS

    def params(self, number: int) -> SamplingParams:
        """How the tokens of a round are chosen."""
        if self.is_sampled:
            return SamplingParams(seed=number, max_tokens=self.max_tokens)
        return SamplingParams(temperature=0.0, max_tokens=self.max_tokens)


def _turn(choices: tuple[str, ...], number: int) -> str:
    return choices[number % len(choices)]


def text_of(number: int) -> str:
    """A text with names and numbers of its own."""
    return TEXT.format(name=_turn(NAMES, number), years=11 + number)


def repeat_prompt(number: int) -> str:
    """A text, to be said again word for word."""
    return f"Repeat the following text word for word. Write nothing else.\n\n{text_of(number)}"


def _edit(number: int) -> tuple[str, str, str]:
    """A name, the name in its place, and code with the first of them."""
    old, code = CODES[number % len(CODES)]
    return old, _turn(NEW_NAMES, number // len(CODES)), code


def edit_prompt(number: int) -> str:
    """Code, to be written again with another name for one class."""
    old, new, code = _edit(number)
    return (
        f"Rename the class {old} to {new} in the following Python code and change nothing else. "
        f"Write the whole code.\n\n```python\n{code}```"
    )


def edited_code(number: int) -> str:
    """What that should give."""
    old, new, code = _edit(number)
    return f"```python\n{code.replace(old, new)}```"


def _renamed(number: int) -> tuple[str, str]:
    """The name in a text, and the one in its place."""
    return _turn(NAMES, number), _turn(NAMES, number + 3)


def edit_text_prompt(number: int) -> str:
    """A text, to be written again with another name: for models that are too small for code."""
    old, new = _renamed(number)
    return (
        f"Repeat the following text word for word, but write {new} instead of {old}. "
        f"Write nothing else.\n\n{text_of(number)}"
    )


def edited_text(number: int) -> str:
    """What that should give."""
    old, new = _renamed(number)
    return text_of(number).replace(old, new)


def code_prompt(number: int) -> str:
    """New code."""
    author = _turn(NAMES, number)
    return (
        f"Write {_turn(CODE_TASKS, number)}. Put the name of the author, {author}, into a comment."
    )


def chat_prompt(number: int) -> str:
    """A question of everyday life."""
    return f"My name is {_turn(NAMES, number)}. {_turn(CHAT_QUESTIONS, number)}"


def short_prompt(number: int) -> str:
    """A text and a question that is answered in a few words: guesses have to pay at once, or not be made."""
    return f"{text_of(number)}\n\nWere all boats safe? Answer in one short sentence."


def story_prompt(number: int) -> str:
    """Something that takes many words, so that no answer ends long before the others."""
    return f"Write a long story, of ten pages, about {_turn(NAMES, number)} and the sea."


WORKS = {
    "repeat": (Work("repeat", 400, repeat_prompt, wanted=text_of),),
    "edit": (
        Work("edit", 400, edit_prompt, wanted=edited_code),
        Work("edit text", 400, edit_text_prompt, wanted=edited_text),
    ),
    "code": (Work("code", 400, code_prompt),),
    "short": (Work("short replies", 30, short_prompt, least_tokens=4),),
    "chat": (
        Work("chat, greedy", 200, chat_prompt),
        Work("chat, sampled", 200, chat_prompt, is_sampled=True),
    ),
}
