"""Pictures of the window with a scripted engine: `python -m tests.ui.screenshots FOLDER [NAME ...]`.

Run by hand, to look at what was made. QT_SCALE_FACTOR=1.5 gives sharper ones. Two kinds ask the starter
model: "real", and "reopened", for the README, which asks once more after Quire was closed and opened
again: `… FOLDER reopened-light-1280x800`.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from PySide6.QtCore import QEventLoop, Qt, QTimer
from PySide6.QtWidgets import QApplication, QWidget

from app.conversation import Conversation, ConversationId
from app.paths import Paths
from app.storage import ConversationStore
from app.worker import EngineWorker
from inference.config import EngineConfig, SamplingParams
from inference.errors import ModelFileError
from inference.metrics import EngineStats, KvSchemeInfo, RequestMetrics, TierStats
from inference.request import LoadProgress
from tests.app.fake_engine import FakeEngine, FakeEngineFactory, FakeScript
from ui.dialogs.preferences import PreferencesDialog
from ui.look.theme import ThemeChoice
from ui.program import Program
from ui.start import make_application

TITLES = (
    ("Letter to the landlord", 0.2),
    ("Regex for ISO dates", 0.3),
    ("Trip to Lisbon in May", 1.1),
    ("Recette de crème brûlée", 1.2),
    ("Why dusk turns violet", 1.3),
    ("Refactor the invoice parser", 3.0),
    ("Meal plan without dairy", 4.0),
    ("A very long title of a chat that cannot fit into the sidebar at all", 12.0),
)
QUESTION = "How long until savings double at 4%? Add a small script."
REPLY = """## Doubling time

At a yearly rate, money doubles after a while. The **rule of 72** comes close:

- Divide 72 by the rate in percent; `72 / 4` gives 18 years.
- The result is within 3% for rates from 2 to 12%.

| Rate | Exact | Rule of 72 |
|---|---:|---:|
| 2% | 35.0 years | 36.0 years |
| 4% | 17.7 years | 18.0 years |

```python
from math import log

def years_to_double(rate: float) -> float:
    return log(2) / log(1 + rate)  # 0.04 gives 17.67
```
"""
REAL_QUESTION = "Write a Python function that adds two numbers, and say how it works."
REAL_QUESTION_LATER = "Now write one that multiplies them."
SECOND_QUESTION = "And if I add 200 every month?"
SECOND_REPLY = (
    "Much sooner. Starting from 10,000 at 4%, with 200 added each month, you reach 20,000 after "
    "**40 months**. Most of that comes from your own deposits, because the interest on the first "
    "years is small."
)


def wait(milliseconds: int) -> None:
    loop = QEventLoop()
    QTimer.singleShot(milliseconds, loop.quit)
    loop.exec()


def wait_until(condition: Callable[[], bool], timeout_s: float = 180.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the window did not come to the state for the picture")
        wait(10)


def fill(paths: Paths) -> None:
    """Chats of several days."""
    for title, days in sorted(TITLES, key=lambda item: -item[1]):
        at = time.time() - days * 86_400
        store = ConversationStore(paths.database_file, clock=partial(float, at))
        chat_id = ConversationId(f"chat-{days}")
        store.add_conversation(Conversation(chat_id, title, created_at=at, updated_at=at))
        store.add_message(chat_id, parent_id=None, role="user", content=title)
        store.close()


STATS = EngineStats(
    device=TierStats(412_000_000, 2_000_000_000),
    ram=TierStats(64_000_000, 1_000_000_000),
    disk=TierStats(1_312_000_000, 10_000_000_000),
    disk_written_bytes=96_000_000,
    disk_misses=(("damaged", 2), ("missing", 1)),
)

REFUSAL = "int4 would make this model's predictions 3.1% worse; the limit is 2%."


class NamedFactory(FakeEngineFactory):
    """Fake engines under the starter model's name."""

    def __call__(
        self, path: str, config: EngineConfig, on_progress: Callable[[LoadProgress], None]
    ) -> FakeEngine:
        engine = super().__call__(path, config, on_progress)
        schemes = (
            KvSchemeInfo("fp16", 23_040),
            KvSchemeInfo("int8", 11_880),
            KvSchemeInfo("int4", 9_540, False, REFUSAL),
        )
        engine.info = replace(
            engine.info, name="SmolLM2 135M", context_tokens=8192, kv_schemes=schemes
        )
        engine.stats = lambda: STATS  # type: ignore[method-assign]
        return engine


class Scene:
    """A window with a scripted engine, or with the real one."""

    def __init__(
        self, application: QApplication, folder: Path, *, has_chats: bool, is_real: bool = False
    ) -> None:
        self.paths = Paths(folder)
        self.paths.prepare()
        if has_chats:
            fill(self.paths)
        self.script = FakeScript(replies=[REPLY, SECOND_REPLY], prefill_tokens=96)
        worker = None if is_real else EngineWorker(NamedFactory(self.script))
        self.program = Program(application, self.paths, worker)
        self.program.theme.reduce_motion = True
        self.is_real = is_real
        self.window = self.program.window

    def open(self, theme: ThemeChoice, width: int, height: int, percent: int = 100) -> None:
        self.program.theme.set_choice(theme)
        self.window.resize(width, height)
        self.program.show()
        self.program.theme.set_text_size(percent)
        self.program.start_engine(None if self.is_real else Path("/models/SmolLM2-135M.gguf"))
        wait_until(lambda: self.program.session.model.kind == "ready")

    def ask_the_real_model(self, question: str) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=160)
        self.program.settings.change(sampling=params)
        session = self.program.session
        session.send(question)
        wait_until(lambda: not session.is_replying)
        wait(500)

    def chat(self) -> None:
        session = self.program.session
        session.send(QUESTION)
        wait_until(lambda: not session.is_replying)
        self.script.tokens_per_s = 12.0
        session.send(SECOND_QUESTION)
        wait(1500)

    def close(self) -> None:
        self.window.close()
        self.program.close()


def take(widget: QWidget, path: Path) -> None:
    wait(80)
    widget.grab().save(str(path))
    sys.stdout.write(f"{path}\n")


def open_drawer(scene: Scene) -> QWidget:
    scene.window.toggle_sidebar()
    return scene.window


def open_menu(scene: Scene) -> QWidget:
    menu = scene.program.controller.build_chat_menu()
    menu.popup(scene.window.mapToGlobal(scene.window.rect().center()))
    return menu


def open_models(scene: Scene) -> QWidget:
    menu = scene.program.controller.models.build_menu()
    menu.popup(scene.window.mapToGlobal(scene.window.rect().center()))
    return menu


def open_guesses(scene: Scene) -> QWidget:
    models = scene.program.controller.models
    menu = models._guesses.add_to(models.build_menu())
    menu.popup(scene.window.mapToGlobal(scene.window.rect().center()))
    return menu


def choose_draft(scene: Scene) -> QWidget:
    session = scene.program.session
    session.stop()
    wait_until(lambda: not session.is_replying)
    scene.program.controller.models._guesses._choose("/models/SmolLM2-30M.gguf")
    wait_until(lambda: session.models.guesses.state.draft is not None)
    scene.script.guessed_tokens = 142
    scene.script.tokens_per_s = None
    session.send(SECOND_QUESTION)
    wait_until(lambda: not session.is_replying)
    wait(300)
    scene.window.chat.toast.hide()
    return scene.window


def open_chosen_draft(scene: Scene) -> QWidget:
    choose_draft(scene)
    return open_guesses(scene)


def delete_a_chat(scene: Scene) -> QWidget:
    scene.program.controller.sidebar.delete(scene.program.session.conversations()[-1].id)
    return scene.window


def open_settings(scene: Scene) -> QWidget:
    scene.program.controller.open_settings()
    return scene.program.controller.dialog or scene.window


def open_memory_settings(scene: Scene) -> QWidget:
    scene.program.controller.open_settings()
    dialog = scene.program.controller.dialog
    assert isinstance(dialog, PreferencesDialog)
    dialog.show_page("memory")
    wait(300)
    return dialog


def open_memory_settings_end(scene: Scene) -> QWidget:
    dialog = open_memory_settings(scene)
    assert isinstance(dialog, PreferencesDialog)
    dialog.memory.disk.choice.set_key("own")
    dialog.memory.disk.set_budget(20_000_000_000)
    wait(400)
    dialog.area.verticalScrollBar().setValue(10_000)
    return dialog


def fill_up(scene: Scene) -> None:
    """From here on two messages are all that fits."""
    session = scene.program.session
    session.stop()
    wait_until(lambda: not session.is_replying)
    scene.script.tokens_per_s = None
    scene.script.message_tokens = 2500


def type_into_full_chat(scene: Scene) -> QWidget:
    fill_up(scene)
    scene.window.chat.composer.set_text("What if the rate falls to 3%?")
    wait_until(lambda: scene.window.chat.full_card.isVisible())
    return scene.window


def type_too_long(scene: Scene) -> QWidget:
    fill_up(scene)
    scene.script.message_tokens = 9000
    scene.program.controller.new_chat()
    scene.window.chat.composer.set_text("A report of thirty pages. " * 400)
    wait_until(lambda: scene.window.chat.full_card.isVisible())
    return scene.window


def leave_out(scene: Scene) -> QWidget:
    fill_up(scene)
    session = scene.program.session
    session.choose_on_full("leave_out")
    session.send("What if the rate falls to 3%?")
    wait_until(lambda: session.left_out_mark() is not None)
    wait_until(lambda: not session.is_replying)
    scene.script.message_tokens = 4200  # the next message would not fit again
    scene.window.chat.composer.set_text("And at 2%?")
    wait_until(lambda: scene.window.chat.hint.isVisible())
    return scene.window


def sum_up(scene: Scene) -> QWidget:
    type_into_full_chat(scene)
    scene.script.tokens_per_s = 30.0
    scene.window.chat.full_card.buttons[1].click()
    wait(600)
    return scene.window


def show_reasons(scene: Scene) -> QWidget:
    session = scene.program.session
    session.stop()
    wait_until(lambda: not session.is_replying)
    conversation = session.conversation
    assert conversation is not None
    replies = [message for message in conversation.path() if message.role == "assistant"]
    known = RequestMetrics(
        prompt_tokens=1391,
        reused_tokens=1204,
        reused_disk_tokens=204,
        completion_tokens=85,
        ttft_ms=210.0,
        decode_ms=1000.0,
    )
    stopped = replace(known, reuse_stop="edited", reuse_stop_message=2)
    for reply, metrics in zip(replies, (known, stopped), strict=True):
        scene.window.chat.messages.update_message(
            replace(reply, metrics=metrics, status="complete"), [reply.id]
        )
    wait(300)
    return scene.window


def write_three_answers(scene: Scene) -> QWidget:
    session = scene.program.session
    session.stop()
    wait_until(lambda: not session.is_replying)
    conversation = session.conversation
    assert conversation is not None
    assert conversation.leaf_id is not None
    scene.script.tokens_per_s = 30.0
    session.regenerate(conversation.leaf_id, 3)
    wait(900)
    return scene.window


def leave_a_question(scene: Scene) -> QWidget:
    session = scene.program.session
    session.stop()
    wait_until(lambda: not session.is_replying)
    conversation = session.conversation
    assert conversation is not None
    store = ConversationStore(scene.paths.database_file)
    store.add_message(
        conversation.id, parent_id=conversation.leaf_id, role="user", content="And at 5%?"
    )
    store.close()
    session.open_chat(conversation.id)
    wait(300)
    return scene.window


def open_chat_settings(scene: Scene) -> QWidget:
    scene.program.controller.open_chat_settings()
    return scene.program.controller.dialog or scene.window


def open_about(scene: Scene) -> QWidget:
    scene.program.controller.open_about()
    return scene.program.controller.dialog or scene.window


def fail_to_load(scene: Scene) -> QWidget:
    scene.script.load_error = ModelFileError(
        "/models/other.gguf", "the file ends before its last tensor.", hint="Download it again."
    )
    scene.program.session.load_model("/models/other.gguf")
    wait_until(lambda: scene.program.session.model.kind == "failed")
    return scene.window


def search(scene: Scene) -> QWidget:
    scene.window.sidebar.search_field.setFocus(Qt.FocusReason.ShortcutFocusReason)
    scene.window.sidebar.search_field.setText("li")
    wait(250)
    return scene.window


SETUPS: dict[str, Callable[[Scene], QWidget]] = {
    "drawer": open_drawer,
    "menu": open_menu,
    "models": open_models,
    "guesses": open_guesses,
    "draft": choose_draft,
    "draftmenu": open_chosen_draft,
    "toast": delete_a_chat,
    "settings": open_settings,
    "memory": open_memory_settings,
    "memoryend": open_memory_settings_end,
    "full": type_into_full_chat,
    "toolong": type_too_long,
    "leftout": leave_out,
    "summing": sum_up,
    "reason": show_reasons,
    "answers": write_three_answers,
    "unanswered": leave_a_question,
    "chatsettings": open_chat_settings,
    "about": open_about,
    "failed": fail_to_load,
    "search": search,
}


def picture(application: QApplication, name: str, folder: Path) -> None:
    """Take the picture called `name`: KIND-THEME-WIDTHxHEIGHT[-PERCENT]."""
    kind, theme, size, *rest = name.split("-")
    width, height = (int(number) for number in size.split("x"))
    percent = int(rest[0]) if rest else 100
    with tempfile.TemporaryDirectory() as profile:
        is_real = kind in ("real", "reopened")
        scene = Scene(application, Path(profile), has_chats=kind != "empty", is_real=is_real)
        scene.open(theme, width, height, percent)  # type: ignore[arg-type]
        if is_real:
            scene.ask_the_real_model(REAL_QUESTION)
        elif kind not in ("empty", "failed", "search"):
            scene.chat()
        if kind == "reopened":
            scene.close()
            scene = Scene(application, Path(profile), has_chats=False, is_real=True)
            scene.open(theme, width, height, percent)  # type: ignore[arg-type]
            session = scene.program.session
            session.open_chat(session.conversations()[0].id)
            scene.ask_the_real_model(REAL_QUESTION_LATER)
        shown = SETUPS[kind](scene) if kind in SETUPS else scene.window
        take(shown, folder / f"{name}.png")
        scene.close()


NAMES = (
    "chat-light-1280x800",
    "chat-dark-1280x800",
    "chat-contrast-1280x800",
    "chat-light-800x600",
    "empty-light-1280x800",
    "empty-dark-800x600",
    "drawer-light-800x600",
    "menu-light-1280x800",
    "models-dark-1280x800",
    "guesses-light-1280x800",
    "draft-dark-1280x800",
    "draft-light-800x600-150",
    "draftmenu-dark-800x600-150",
    "toast-light-1280x800",
    "settings-light-1280x800",
    "memory-light-1280x800",
    "memory-dark-800x600",
    "memoryend-dark-1280x800",
    "memoryend-light-800x600-150",
    "full-light-1280x800",
    "full-dark-800x600",
    "full-dark-800x600-150",
    "toolong-dark-800x600-150",
    "leftout-light-1280x800",
    "leftout-dark-800x600-150",
    "summing-dark-1280x800",
    "reason-light-1280x800",
    "reason-dark-800x600",
    "reason-light-800x600-150",
    "answers-light-1280x800",
    "answers-dark-800x600-150",
    "unanswered-light-1280x800",
    "chatsettings-dark-1280x800",
    "about-light-1280x800",
    "failed-light-1280x800",
    "search-light-1280x800",
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.ui.screenshots", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, help="where the pictures go; made if missing")
    parser.add_argument("names", nargs="*", metavar="name", help="which to take; without any, all")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    application = make_application()
    for name in arguments.names or NAMES:
        picture(application, name, arguments.folder)


if __name__ == "__main__":
    main()
