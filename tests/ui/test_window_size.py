"""How large the window is at first, on screens of several sizes, each in a process with its own screen."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHOW = """
import json, sys
from pathlib import Path
from PySide6.QtCore import QPoint
from PySide6.QtWidgets import QWidget
from app.paths import Paths
from ui.program import Program
from ui.start import make_application

application = make_application()
paths = Paths(Path(sys.argv[1]))
paths.prepare()
program = Program(application, paths)
if len(sys.argv) > 2:
    other = QWidget()
    other.setGeometry(*map(int, sys.argv[2:]))
    geometry = bytes(other.saveGeometry().toBase64().data()).decode()
    program.settings.change(window_geometry=geometry)
    program.settings.flush()
    program = Program(application, paths)
program.show()
application.processEvents()
window, composer = program.window, program.window.chat.composer
place = composer.mapTo(window, QPoint(0, 0))
inside = window.geometry().adjusted(2, 2, -2, -2)  # where it was, Qt forgets the frame
print(json.dumps({
    "size": window.size().toTuple(),
    "is_on_screen": window.screen().availableGeometry().contains(inside),
    "has_composer": window.rect().contains(composer.rect().translated(place)),
}))
"""


def shown(
    tmp_path: Path, screen: tuple[int, int], scale: float, *remembered: int
) -> dict[str, object]:
    """Show the window on a screen of so many pixels; `remembered` is where it was before, if anywhere."""
    width, height = screen
    one = {"name": "one", "x": 0, "y": 0, "width": width, "height": height}
    one |= {"logicalDpi": 96, "logicalBaseDpi": 96, "dpr": 1}
    (tmp_path / "screens.json").write_text(json.dumps({"screens": [one]}), "utf-8")
    done = subprocess.run(
        [sys.executable, "-c", SHOW, str(tmp_path / "p"), *map(str, remembered)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={
            **os.environ,
            "QT_QPA_PLATFORM": f"offscreen:configfile={tmp_path / 'screens.json'}",
            "QT_SCALE_FACTOR": str(scale),
        },
        timeout=120,
        check=True,
    )
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(
    ("screen", "scale", "size"),
    [
        ((800, 600), 1, [784, 552]),
        ((1280, 800), 1.5, [837, 485]),
        ((1280, 800), 2, [624, 352]),  # smaller than the window can be made elsewhere
        ((1920, 1080), 1, [1280, 800]),
    ],
)
def test_first_window_fits_the_screen(
    tmp_path: Path, screen: tuple[int, int], scale: float, size: list[int]
) -> None:
    assert shown(tmp_path, screen, scale) == {
        "size": size,
        "is_on_screen": True,
        "has_composer": True,
    }


@pytest.mark.parametrize(
    ("screen", "scale", "remembered"),
    [
        ((800, 600), 1, (3000, 200, 1280, 800)),
        ((1280, 800), 2, (-900, -50, 1280, 800)),
        ((1920, 1080), 1, (2500, 1300, 1000, 700)),
    ],
)
def test_window_of_another_screen_comes_into_this_one(
    tmp_path: Path, screen: tuple[int, int], scale: float, remembered: tuple[int, int, int, int]
) -> None:
    found = shown(tmp_path, screen, scale, *remembered)
    assert found["is_on_screen"], found
    assert found["has_composer"], found
