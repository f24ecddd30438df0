"""The command line: arguments, and `ask`, one question without a window. No Qt.

Standard library only until a question is answered: run.py gives help before anything is installed.

    python -m app ask "question" [--model P] [--conversation NAME] [--json] ...

Exit codes: 0 done, 1 the machine or the model failed, 2 bad input, 129 the terminal was closed,
130 Ctrl+C, 141 nobody reads the output any more, 143 told to end. Each failure is one line on
stderr, never a traceback.
"""

import argparse
import contextlib
import dataclasses
import errno
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from app.complaint import complain as complain
from app.complaint import discard
from app.conversation import MAX_TITLE_CHARS
from app.errors import AppError, ProfileError
from app.failures import terminal_words
from app.texts import is_blank, turns_direction, without_controls
from inference.config import BACKENDS, GUESSES, MAX_DRAFT_TOKENS, WEIGHT_TYPES, SamplingParams
from inference.errors import (
    ComputeError,
    EngineError,
    InvalidRequestError,
    NotEnoughMemoryError,
)

PROGRAM = "python3 run.py"
"""How the program is started; there is no command of its name."""

MAX_QUESTION_BYTES = 10_000_000
"""On standard input. Models hold less, and to count the tokens of more would take very long."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


class BadInputError(Exception):
    """What was typed on the command line cannot be used; the message is one line."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing its usage over several lines."""

    def error(self, message: str) -> NoReturn:
        raise BadInputError(f"{message} ({self.prog} --help lists the options)")


class OutputFailedError(BrokenPipeError):
    """Somebody wants the output, and it could not be written."""


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=_path, metavar="PATH", help="a GGUF file or model folder")
    _add_profile(parser)


def _add_profile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--profile", type=_path, metavar="DIR", help="keep settings, chats and logs in DIR"
    )


def parse_profile(arguments: Sequence[str]) -> Path | None:
    """The profile's folder among arguments that are known to be right; None if none is named."""
    parser = _Parser(add_help=False, allow_abbrev=False)
    _add_profile(parser)
    profile: Path | None = parser.parse_known_args(arguments)[0].profile
    return profile


def _path(text: str) -> Path:
    """A path that is not empty: "" would mean the folder where the person happens to stand."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from error


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error


def parse_window_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Arguments of the window and of `--self-test`: model, profile, self_test, version.

    Raises:
        BadInputError: An option is not known or lacks its value.
    """
    parser = _Parser(
        prog=PROGRAM,
        description="A private desktop chat that runs language models inside its own process.",
        epilog=f'`{PROGRAM} ask "question"` answers on the terminal; `{PROGRAM} ask --help` says how.',
        allow_abbrev=False,
    )
    _add_common(parser)
    parser.add_argument(
        "--self-test", action="store_true", help="load the model, open the window, report"
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    return parser.parse_args(arguments)


def parse_ask_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Arguments of `ask`: question, model, conversation, profile, system, sampling, computing, json.

    Raises:
        BadInputError: An option is not known or its value is of the wrong kind.
    """
    parser = _Parser(
        prog=f"{PROGRAM} ask",
        description="Ask one question; the reply is streamed to standard output.",
        allow_abbrev=False,
    )
    parser.add_argument("question", help="what to ask; - reads it from standard input")
    _add_common(parser)
    parser.add_argument(
        "--conversation", metavar="NAME", help="go on with the stored chat of this title"
    )
    parser.add_argument("--system", metavar="TEXT", help="the system prompt")
    parser.add_argument(
        "--max-tokens", type=_whole_number, metavar="N", help="most tokens of the reply"
    )
    parser.add_argument(
        "--temperature", type=_number, metavar="T", help="0 takes the likeliest token"
    )
    parser.add_argument("--seed", type=_whole_number, metavar="N", help="repeat the same choices")
    parser.add_argument(
        "--kv",
        choices=("fp16", "int8", "int4"),
        help="how to store what the model has read: int8 and int4 take less memory",
    )
    parser.add_argument(
        "--threads", type=_whole_number, metavar="N", help="CPU threads that compute"
    )
    parser.add_argument(
        "--backend",
        choices=BACKENDS,
        default="auto",
        metavar="NAME",
        help=f"what computes the model: {', '.join(BACKENDS)}",
    )
    parser.add_argument(
        "--weights",
        choices=WEIGHT_TYPES,
        default="auto",
        metavar="NAME",
        help=f"how to keep weights that the file holds as floats: {', '.join(WEIGHT_TYPES)}",
    )
    _add_guessing(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    options = parser.parse_args(arguments)
    for name in ("conversation", "system"):
        _check_text(f"--{name}", getattr(options, name) or "")
    if options.conversation is not None:
        options.conversation = _chat_name(options.conversation)
    return options


def _chat_name(text: str) -> str:
    """The name as the list of chats has names: one line that can be seen.

    Raises:
        BadInputError: It has nothing to see, is too long, or holds what no line shows.
    """
    name = " ".join(text.split())
    problem = ""
    if is_blank(name):
        problem = "the name is empty"
    elif without_controls(name) != name:
        problem = "the name holds control characters"
    elif turns_direction(name):
        problem = "the name holds characters that turn the direction of writing"
    elif len(name) > MAX_TITLE_CHARS:
        problem = f"the name has {len(name):,} characters, at most {MAX_TITLE_CHARS} are possible"
    if problem:
        raise BadInputError(
            f"argument --conversation: {problem}. Give the title of a chat, or a new one, in one line."
        )
    return name


def _add_guessing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--guess",
        choices=GUESSES,
        metavar="HOW",
        help="guess tokens ahead and check them together, which changes no reply: "
        + ", ".join(GUESSES),
    )
    parser.add_argument(
        "--draft-model",
        type=_path,
        metavar="PATH",
        help="a smaller model of the same vocabulary that guesses",
    )
    parser.add_argument(
        "--draft-tokens",
        type=_whole_number,
        metavar="N",
        help=f"guess so many tokens each time, 1 to {MAX_DRAFT_TOKENS}, whether it pays or not",
    )


def _check_text(what: str, text: str) -> None:
    """Bytes of the command line that are not text become surrogates; nothing can store those."""
    try:
        text.encode("utf-8")
    except UnicodeError as error:
        raise BadInputError(
            f"{what} is not UTF-8 text. Set the terminal to UTF-8 and type it again."
        ) from error


# What the engine calls the values of options.
_FIELDS = {
    "draft_model": "--draft-model",
    "draft_tokens": "--draft-tokens",
    "max_tokens": "--max-tokens",
    "num_threads": "--threads",
    "seed": "--seed",
    "temperature": "--temperature",
}


@contextlib.contextmanager
def errors_name_options() -> Iterator[None]:
    """Errors about values of options name these as they were typed.

    Raises:
        InvalidRequestError: As it was raised inside, of an option if it was of one's value.
    """
    try:
        yield
    except InvalidRequestError as error:
        option = _FIELDS.get(error.field)
        if option is None:
            raise
        raise InvalidRequestError(option, error.reason, hint=error.hint) from error


def sampling_from(options: argparse.Namespace, base: SamplingParams) -> SamplingParams:
    """The general sampling with what the command line sets.

    Raises:
        InvalidRequestError: A value is out of range; names the option.
    """
    given = {
        name: value
        for name in ("max_tokens", "temperature", "seed")
        if (value := getattr(options, name)) is not None
    }
    with errors_name_options():
        return dataclasses.replace(base, **given)


def _read_input() -> bytes:
    data = sys.stdin.buffer.read(MAX_QUESTION_BYTES + 1)
    if len(data) > MAX_QUESTION_BYTES:
        raise BadInputError(
            f"the question on standard input has more than {MAX_QUESTION_BYTES // 10**6} MB, which no"
            " model can read at once. Ask about a part of it."
        )
    return data


def read_question(question: str) -> str:
    """The question, from standard input for "-".

    Raises:
        BadInputError: It is empty, too long or not text.
    """
    try:
        if question == "-":
            question = _read_input().decode("utf-8-sig")
    except UnicodeError as error:
        raise BadInputError(
            "the question on standard input is not UTF-8 text. Save it as UTF-8 and ask again."
        ) from error
    _check_text("the question", question)
    if is_blank(question):
        raise BadInputError(
            "the question is empty. Write it in quotes after `ask`, or write - there and give it on"
            " standard input."
        )
    return question


def write_out(text: str) -> None:
    """To standard output, at once.

    Raises:
        BrokenPipeError: Nobody reads it; from then on output goes nowhere.
        OutputFailedError: The same, where it could not be kept: the disk is full, say.
    """
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper) and out.errors == "strict":
        out.reconfigure(errors="replace")  # an old terminal's encoding lacks most characters
    try:
        out.write(without_controls(text) if out.isatty() else text)
        out.flush()
    except OSError as error:
        discard(out)
        # Windows says EINVAL of a pipe that nobody reads.
        if isinstance(error, BrokenPipeError) or error.errno == errno.EINVAL:
            raise BrokenPipeError from error
        raise OutputFailedError(error.strerror or str(error)) from error


def output_exit_code(error: BrokenPipeError) -> int:
    """What to end with when output went nowhere; says so where that is not what the reader wanted."""
    if not isinstance(error, OutputFailedError):
        return EXIT_BROKEN_PIPE
    complain(f"the reply could not be written to standard output: {error}. Free some space there.")
    return EXIT_FAILED


def exit_code_of(error: Exception) -> int:
    """Whose fault it is: 2 the input's, 1 the machine's."""
    if isinstance(error, BadInputError | ProfileError):
        return EXIT_BAD_INPUT
    if isinstance(error, EngineError) and not isinstance(
        error, ComputeError | NotEnoughMemoryError
    ):
        return EXIT_BAD_INPUT
    return EXIT_FAILED


def ask(arguments: Sequence[str]) -> int:
    """Answer one question; returns the exit code."""
    try:
        options = parse_ask_arguments(arguments)
        question = read_question(options.question)
        from app.asking import answer  # light; the engine itself is imported inside
        from app.paths import Paths

        return answer(options, question, Paths(options.profile))
    except EngineError as error:
        complain(terminal_words(error))
        return exit_code_of(error)
    except (BadInputError, AppError) as error:
        complain(f"{error} {getattr(error, 'hint', '')}".strip())
        return exit_code_of(error)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
