"""`ask` with a fake engine."""

from collections.abc import Callable
from pathlib import Path

from app.asking import answer
from app.cli import parse_ask_arguments
from app.conversation import Conversation, Message
from app.paths import Paths
from app.storage import ConversationStore
from inference.config import EngineConfig
from tests.app.fake_engine import FakeEngine, FakeScript


class Asker:
    """Asks a fake engine in one profile."""

    def __init__(self, profile: Path) -> None:
        self.paths = Paths(profile)
        self.script = FakeScript(replies=["Hi you"])
        self.engines: list[FakeEngine] = []

    def open(self, path: str, config: EngineConfig) -> FakeEngine:
        engine = FakeEngine(path, config, lambda _: None, script=self.script)
        self.engines.append(engine)
        return engine

    def ask(self, *arguments: str) -> int:
        options = parse_ask_arguments([*arguments, "--model", "/m/a.gguf"])
        return answer(options, options.question, self.paths, opener=self.open)

    def chat(self, title: str) -> Conversation:
        store = ConversationStore(self.paths.database_file)
        found = store.find_by_title(title)
        assert found is not None
        chat = store.load(found)
        assert chat is not None
        store.close()
        return chat

    def replies(self, title: str) -> list[Message]:
        return [message for message in self.chat(title).path() if message.role == "assistant"]

    def during_load(self, action: Callable[[], object]) -> None:
        """Do something once, while the next model is opened."""

        def look(_stage: str) -> None:
            self.script.before_stage = None
            action()

        self.script.before_stage = look

    def before_step(self, number: int, action: Callable[[], object]) -> None:
        """Do something before the number-th step."""
        steps = iter(range(1, 10_000))

        def look() -> None:
            if next(steps) == number:
                action()

        self.script.before_step = look
