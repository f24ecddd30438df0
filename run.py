#!/usr/bin/env python3
"""Start Quire from a checkout, with nothing but Python: `python3 run.py [arguments of the program]`.

The first start makes `.venv` beside this file and fills it; then the program runs in it.
`python3 run.py test [arguments of pytest]` also installs what the tests need and runs them without
a display. Standard library only; older Pythons must be able to read this file, so that they can
say which one is needed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

MINIMUM_PYTHON = (3, 11)
ROOT = os.path.dirname(os.path.abspath(__file__))
if sys.version_info[:2] >= MINIMUM_PYTHON:  # these need not be readable for older ones
    sys.path.insert(0, os.path.join(ROOT, "packaging"))
    from build_kernels import ensure_built
    from setup_environment import Environment, SetupError, has_only_cpu, read_stages, say
    from system_libraries import libraries_message

HELP = """\
usage: python3 run.py [arguments of the program]
       python3 run.py test [arguments of pytest]

The first start makes .venv beside run.py and installs into it what Quire needs; then Quire starts.
"test" also installs what the tests need, and runs them without a display.
The arguments of the program:
"""
NO_WINDOW_ARGUMENTS = frozenset({"ask", "--version", "--help", "-h"})


def platforms_to_check(arguments: list[str], variables: dict[str, str]) -> list[str]:
    """The Qt platforms of which one must work; [] if no window can open, which the program says."""
    if arguments[:1] == ["test"] or "--self-test" in arguments:
        return ["offscreen"]
    if NO_WINDOW_ARGUMENTS.intersection(arguments):
        return []
    if variables.get("QT_QPA_PLATFORM"):
        names = variables["QT_QPA_PLATFORM"].split(";")
        return [name.partition(":")[0] for name in names]
    displays = {"WAYLAND_DISPLAY": "wayland", "DISPLAY": "xcb"}
    return [platform for name, platform in displays.items() if variables.get(name)]


def program_command(python: str, arguments: list[str]) -> list[str]:
    """What runs after the set-up. -P: a folder `app` where the person stands is not ours."""
    if arguments[:1] != ["test"]:
        return [python, "-P", "-m", "app", *arguments]
    if os.environ.get("QUIRE_COVERAGE"):
        return [python, "-m", "coverage", "run", "-m", "pytest", *arguments[1:]]
    return [python, "-m", "pytest", *arguments[1:]]


def program_environment(root: str, arguments: list[str]) -> dict[str, str]:
    """The variables that make the checkout importable from any folder."""
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    if arguments[:1] == ["test"]:
        environment["QT_QPA_PLATFORM"] = "offscreen"
    return environment


def print_help(arguments: list[str]) -> None:
    """Print help if it is asked for, which takes no set-up; else do nothing.

    Raises:
        SystemExit: It was printed.
    """
    is_for_tests = arguments[:1] == ["test"]  # pytest has help of its own
    if is_for_tests or not {"--help", "-h"}.intersection(arguments):
        return
    sys.path.insert(0, ROOT)
    from app.cli import BadInputError, parse_ask_arguments, parse_window_arguments

    if arguments[:1] in (["--help"], ["-h"]):
        print(HELP, flush=True)
    with contextlib.suppress(BadInputError):  # the program tells of it
        if arguments[:1] == ["ask"]:
            parse_ask_arguments(arguments[1:])
        else:
            parse_window_arguments(arguments)


def start(arguments: list[str]) -> int:
    """Set up what is missing, then become the program; returns its exit code on Windows only."""
    print_help(arguments)
    is_test = arguments[:1] == ["test"]
    is_linux = sys.platform.startswith("linux")
    platforms = platforms_to_check(arguments, dict(os.environ)) if is_linux else []
    environment = Environment(ROOT)
    stages = read_stages(ROOT, with_tests=is_test, only_cpu=has_only_cpu())
    is_new = not environment.is_complete(stages)
    if is_new:
        environment.set_up(stages)
    ensure_built(Path(ROOT), say)
    if is_new:
        say("\nQuire is set up.\n")
    message = libraries_message(environment.folder, platforms)
    if message:
        raise SetupError(message)
    if is_test:
        os.chdir(ROOT)
    command = program_command(environment.python, arguments)
    variables = program_environment(ROOT, arguments)
    sys.stdout.flush()
    if os.name == "nt":
        import subprocess

        return subprocess.call(command, env=variables)
    return os.execve(command[0], command, variables)


def old_python_message(version: tuple[int, ...]) -> str:
    """What to do about a Python that is too old."""
    needed, found = (".".join(map(str, v[:2])) for v in (MINIMUM_PYTHON, version))
    return (
        f"Quire needs Python {needed} or later, and this is Python {found}.\n"
        f"Install a newer one and start with it, for example: python{needed} run.py"
    )


def main(arguments: list[str]) -> int:
    """The whole start, with one clear message for whatever stops it."""
    if sys.version_info[:2] < MINIMUM_PYTHON:
        sys.stderr.write(old_python_message(sys.version_info[:2]) + "\n")
        return 1
    try:
        return start(arguments)
    except SetupError as error:
        say(f"\n{error}")
        return 1
    except KeyboardInterrupt:
        say("\nStopped. Run the same command again to go on where it stopped.")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
