"""Between the session and all that concerns the model: button, menu, notice. GUI thread."""

from pathlib import Path

from PySide6.QtCore import QObject
from PySide6.QtGui import QActionGroup

from app.chat_session import ChatSession
from app.present_files import PresentFiles
from app.session_changes import (
    ConversationShown,
    GuessingChanged,
    MessageAdded,
    ModelChanged,
    ModelRefused,
    ModelState,
    ReplyStarted,
    SessionChange,
)
from app.settings import SettingsStore
from ui.chat.chat_pane import ChatPane
from ui.chat.model_guess_controller import GuessController
from ui.chat.model_words import (
    composer_hint,
    going_on_words,
    greeting,
    headline,
    model_label,
    path_name,
    short_name,
)
from ui.controls.menus import Menu
from ui.dialogs.error import failure_words
from ui.dialogs.open_model import ModelFileDialog, ModelFolderDialog, start_folder
from ui.look.theme import Theme

_SMALL_MODEL_PARAMETERS = 1_000_000_000


class ModelController(QObject):
    """Shows the model's state, and opens other models.

    Args:
        session: Loads models.
        settings: Know recent ones.
        pane: The parts that show it.
        theme: For menus.
        parent: Owner.
    """

    def __init__(
        self,
        session: ChatSession,
        settings: SettingsStore,
        pane: ChatPane,
        *,
        theme: Theme,
        parent: QObject,
    ) -> None:
        super().__init__(parent)
        self._session = session
        self._settings = settings
        self._pane = pane
        self._theme = theme
        self._starter: Path | None = None
        self._lacks_model = False
        self._refused: ModelRefused | None = None  # what a person wanted and did not get
        self._menu: Menu | None = None
        self._files = PresentFiles()
        self._guesses = GuessController(session, pane.toast, self._files, self)
        pane.header.model_button.clicked.connect(self.open_menu)
        pane.empty.open_model_requested.connect(self.ask_for_file)
        session.subscribe(self._follow)
        self._show(session.model)

    def set_starter(self, starter: Path | None) -> None:
        """Offer the starter model too, if it is there."""
        self._starter = starter
        self._session.models.guesses.starter = str(starter or "")

    def ask_for_model(self) -> None:
        """There is nothing to open at start: the empty chat offers to choose a model."""
        self._lacks_model = True
        self._show(self._session.model)

    def open_menu(self) -> None:
        """Open the menu of models under its button."""
        if self._menu is not None:
            self._menu.deleteLater()
        self._menu = self.build_menu()
        self._menu.open_below(self._pane.header.model_button, align_right=True)

    def build_menu(self) -> Menu:
        """Recent models, the open one ticked, how it guesses ahead, and ways to open others."""
        menu = Menu(self._theme, "Models", self._pane)
        group = QActionGroup(menu)
        current = self._session.model
        known = self._known()
        menu.add_heading("Recent models" if known else "No models were opened yet")
        for path in known:
            is_open = current.kind in ("ready", "loading") and current.path == path
            menu.add_choice(
                path_name(path),
                lambda path=path: self._load(path),  # type: ignore[misc]  # bound per turn
                is_chosen=is_open,
                group=group,
            )
        menu.addSeparator()
        self._guesses.add_to(menu)
        menu.addSeparator()
        menu.add("Open model file…", self.ask_for_file, icon_name="file-box", shortcut="Ctrl+O")
        menu.add(
            "Open model folder…",
            self.ask_for_folder,
            icon_name="folder-open",
            shortcut="Ctrl+Shift+O",
        )
        return menu

    def ask_for_file(self) -> None:
        """Let the person choose a model file, and load it."""
        self._load(ModelFileDialog.ask(self._pane.window(), self._folder()))

    def ask_for_folder(self) -> None:
        """Let the person choose a model folder, and load it."""
        self._load(ModelFolderDialog.ask(self._pane.window(), self._folder()))

    def _known(self) -> list[str]:
        """Recent models that are still there, then the starter model."""
        starter = [str(self._starter)] if self._starter is not None else []
        known = dict.fromkeys([*self._settings.value.recent_models, *starter])
        return self._files.of(known)

    def _folder(self) -> str:
        return start_folder(self._settings.value.model_path)

    def _load(self, path: str | None) -> None:
        if path is not None:
            self._refused = None
            self._session.load_model(path)

    def _follow(self, change: SessionChange) -> None:
        match change:
            case ModelChanged(state):
                self._show(state)
            case ModelRefused():
                self._refused = change
            case GuessingChanged():
                self._show_label()
            case MessageAdded() | ReplyStarted():
                # The person goes on without it; the first message of a new chat is not added, it is there.
                self._forget_refused()
                self._show_hint()
            case ConversationShown():
                self._show_hint()
            case _:
                pass

    def _show(self, state: ModelState) -> None:
        self._show_label()
        self._show_hint()
        lacks_model = self._lacks_model and state.kind == "none"
        self._pane.empty.ask_for_model(lacks_model)
        small = state.info is not None and state.info.num_parameters < _SMALL_MODEL_PARAMETERS
        line = f"{short_name(state.info.name)} is small and quick." if state.info and small else ""
        title = headline(state, lacks_model=lacks_model)
        self._pane.empty.show_lines(title, greeting(state), line)
        if state.kind == "failed":
            self._refused = None
            self._show_failure(state)
        elif self._refused is not None:
            self._show_refusal(self._refused, state)
        elif self._pane.notice.isVisibleTo(self._pane):
            self._pane.show_notice(False)

    def _show_label(self) -> None:
        label = model_label(self._session.model, self._session.models.guesses.state)
        self._pane.header.model_button.show_label(label)

    def _show_hint(self) -> None:
        conversation = self._session.conversation
        has_messages = conversation is not None and bool(conversation.path())
        hint = composer_hint(self._session.model, has_messages=has_messages)
        self._pane.composer.set_hint(hint)

    def _forget_refused(self) -> None:
        if self._refused is not None:
            self._refused = None
            self._pane.show_notice(False)

    def _show_refusal(self, refused: ModelRefused, state: ModelState) -> None:
        """A model could not be opened, and the one before is there, or on its way."""
        words = failure_words(refused.failure)
        actions = [
            ("Open another model…", self.ask_for_file),
            ("Try again", lambda: self._load(refused.path)),
            ("Close", self._forget_refused),
        ]
        text = f"{words.text} {going_on_words(state)}"
        self._pane.notice.show_failure(words.title, text, actions)
        self._pane.show_notice(True)

    def _show_failure(self, state: ModelState) -> None:
        if state.failure is None:
            return
        words = failure_words(state.failure)
        actions = [("Open another model…", self.ask_for_file)]
        starter = str(self._starter) if self._starter is not None else ""
        if starter and starter != state.path:
            actions.append(("Use the starter model", lambda: self._load(starter)))
        actions.append(("Try again", lambda: self._load(state.path)))
        self._pane.notice.show_failure(words.title, words.text, actions)
        self._pane.show_notice(True)
