"""Composition root: the one place that knows both the window and the engine. `python -m app`.

Imports wait until it is known what is wanted: `ask` never imports Qt, the window's way never
imports torch (the engine thread does, once the window is on the screen).
"""

import multiprocessing
import os
import sys
from collections.abc import Sequence

from app.cli import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    BadInputError,
    ask,
    complain,
    parse_profile,
    parse_window_arguments,
)
from app.errors import ProfileError
from app.paths import Paths

# Nothing that Quire uses may call out by itself; set before any library is imported.
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


def main(arguments: Sequence[str]) -> int:
    """Do what the command line asks; returns the exit code. Never raises for bad input."""
    _open_missing_streams()
    os.environ.update(_OFFLINE)
    # torch's threads sleep while they wait for each other. Spinning, they take the processor from the
    # window and from those they wait for: beside other programs a token took four times as long.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        if arguments[:1] == ["ask"]:
            return ask(arguments[1:])
        return _window_or_test(arguments)
    except BadInputError as error:
        complain(str(error))
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as error:  # the program's edge
        import logging

        if not logging.getLogger().handlers:  # else the traceback would land on the terminal
            logging.getLogger().addHandler(logging.NullHandler())
        logging.getLogger(__name__).critical("Quire ended with an error", exc_info=error)
        name, place = type(error).__name__, _log_place(arguments)
        complain(f"something went wrong inside Quire: {name}. The log says more{place}.")
        return EXIT_FAILED


def _log_place(arguments: Sequence[str]) -> str:
    log = Paths(parse_profile(arguments)).log_file
    return f": {log}" if os.path.isfile(log) else ""


def _open_missing_streams() -> None:
    """Put the null device where the caller closed a standard stream.

    Python has None there, and the system would give the free number to the next file that is
    opened: what a library prints would then land in the database.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # kept


def _window_or_test(arguments: Sequence[str]) -> int:
    options = parse_window_arguments(arguments)
    if options.version:
        from app.version import quire_version

        sys.stdout.write(f"Quire {quire_version()}\n")
        return EXIT_OK
    if options.self_test:
        from app.self_test import self_test

        return self_test(_open_and_close, model=options.model, profile=options.profile)
    paths = Paths(options.profile)
    try:
        paths.prepare()
    except ProfileError as error:
        complain(f"{error} {error.hint}")
        return EXIT_BAD_INPUT
    from app.logs import log_uncaught_exceptions, start_log

    start_log(paths.log_file)
    log_uncaught_exceptions()
    try:
        from ui.start import run
    except ImportError as error:
        complain(f"the window cannot start: {error}")
        return EXIT_FAILED
    return run(paths, model_path=options.model)


def _open_and_close(paths: Paths) -> None:
    from ui.start import open_and_close

    open_and_close(paths)


if __name__ == "__main__":
    multiprocessing.freeze_support()
    sys.exit(main(sys.argv[1:]))
