"""One running Quire: store, settings, engine thread, session, window. GUI thread.

Order matters: the window is painted first, then the engine thread starts and loads torch.
"""

import logging
from pathlib import Path

from PySide6.QtCore import QObject, Qt
from PySide6.QtWidgets import QApplication

from app.chat_session import ChatSession
from app.paths import Paths
from app.settings import SettingsStore
from app.settings_words import settings_problem
from app.starter_model import choose_model, find_starter_model
from app.storage import ConversationStore
from app.worker import EngineWorker
from ui.controller import Controller
from ui.event_pacer import EventPacer
from ui.look.appearance import Appearance
from ui.look.theme import Theme
from ui.main_window import MainWindow
from ui.replies.warm_up import warm_up_beside

logger = logging.getLogger(__name__)


class Program(QObject):
    """Builds everything for one profile; shows nothing yet.

    Args:
        application: The Qt application.
        paths: The profile, prepared.
        worker: The engine thread, not started; tests bring one with a fake engine.

    Attributes:
        settings, session, window, controller, theme, worker: The parts.

    Raises:
        StorageError: The chats cannot be opened.
    """

    def __init__(
        self, application: QApplication, paths: Paths, worker: EngineWorker | None = None
    ) -> None:
        super().__init__()
        self.settings = SettingsStore(paths.settings_file)
        store = ConversationStore(paths.database_file)
        value = self.settings.value
        self.theme = Theme(value.theme, value.text_size_percent)
        self._appearance = Appearance(application, self.theme, self.settings, self)
        if worker is None:
            paths.prepare_cache()
            worker = EngineWorker(kv_dir=paths.kv_dir)
        self.worker = worker
        self.session = ChatSession(store, self.settings, self.worker.post, kv_dir=paths.kv_dir)
        self._pacer = EventPacer(self.session.handle_event, self)
        self.worker.event.connect(self._pacer.push)
        self.window = MainWindow(self.theme)
        self.window.first_painted.connect(warm_up_beside)
        self.window.first_painted.connect(self._tell_settings_problem)  # its time begins then
        self.controller = Controller(
            self.session,
            self.settings,
            self.window,
            theme=self.theme,
            appearance=self._appearance,
            paths=paths,
        )

    def show(self) -> None:
        """Show the window, the caret in the composer."""
        self.window.show()
        self.controller.chat.focus_composer()

    def _tell_settings_problem(self) -> None:
        problem = settings_problem(self.settings)
        if problem:
            toast = self.window.chat.toast
            toast.show_text(problem, icon_name="circle-alert", icon_role="warn")

    def start_engine(self, model_path: Path | None = None) -> None:
        """Start the engine thread and load a model: this one, the last one, or the starter."""
        self.worker.start()
        self.session.forget_lost_chats()
        starter = find_starter_model()
        self.controller.models.set_starter(starter)
        choice = choose_model(self.settings.value, model_path, starter=starter)
        if choice.notice:
            self.window.chat.toast.show_text(choice.notice, icon_name="info", icon_role="text_2")
        if choice.path is not None:
            self.session.load_model(str(choice.path))
        else:
            self.controller.models.ask_for_model()

    def bring_forward(self) -> None:
        """Show the window above others."""
        state = self.window.windowState() & ~Qt.WindowState.WindowMinimized
        self.window.setWindowState(state)
        self.window.show()
        self.window.raise_()
        self.window.activateWindow()

    def close(self) -> bool:
        """End everything and store it.

        Returns:
            Whether the engine thread has ended; if not, it is stuck in a step.
        """
        self.window.hide()
        self._pacer.flush()
        self.controller.chat.close()
        self.session.close()
        has_ended = self.worker.shutdown() if self.worker.isRunning() else True
        if not has_ended:
            logger.warning("The engine thread did not end in time")
        return has_ended
