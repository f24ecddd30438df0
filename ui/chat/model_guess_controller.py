"""Between the session and what concerns guessing ahead: the part of the model menu, toasts. GUI thread."""

from PySide6.QtCore import QObject
from PySide6.QtGui import QActionGroup

from app.chat_session import ChatSession
from app.present_files import PresentFiles
from app.session_changes import DraftRefused, GuessingChanged, GuessState, SessionChange
from ui.chat.model_guess_words import (
    EXPLANATION,
    NO_MATCH,
    refused_words,
    state_word,
)
from ui.chat.model_words import draft_name, path_name
from ui.controls.menus import Menu
from ui.controls.toast import Toast


class GuessController(QObject):
    """Offers the switch and draft models, and tells what comes of a choice."""

    def __init__(
        self, session: ChatSession, toast: Toast, files: PresentFiles, parent: QObject
    ) -> None:
        super().__init__(parent)
        self._files = files
        self._session = session
        self._toast = toast
        self._awaited = ""  # path of a draft model that a person waits for
        session.subscribe(self._follow)

    def add_to(self, menu: Menu) -> Menu:
        """Add the row that says how it stands, and opens the choices; gives these."""
        state = self._session.models.guesses.state
        choices = menu.add_menu("Guess ahead", icon_name="lightbulb", state=state_word(state))
        self._add_switch(choices, state)
        choices.addSeparator()
        if self._session.model.kind == "ready":
            self._add_drafts(choices, state)
            choices.addSeparator()
        choices.add_note(EXPLANATION)
        return choices

    def _add_switch(self, menu: Menu, state: GuessState) -> None:
        group = QActionGroup(menu)
        for text, is_on in (("Automatic", True), ("Off", False)):
            menu.add_choice(
                text,
                lambda is_on=is_on: self._session.models.guesses.switch(is_on),  # type: ignore[misc]  # bound per turn
                is_chosen=state.is_on == is_on,
                group=group,
            )

    def _add_drafts(self, menu: Menu, state: GuessState) -> None:
        group = QActionGroup(menu)
        chosen = (state.draft_path,) if state.draft_path else ()
        known = list(dict.fromkeys((*state.matching, *chosen)))
        present = self._files.of(known)  # any may have been removed since they were looked for
        menu.add_heading("Guess ahead with")
        for path in ("", *(path for path in known if path in (*present, *chosen))):
            menu.add_choice(
                path_name(path) if path else "No second model",
                lambda path=path: self._choose(path),  # type: ignore[misc]  # bound per turn
                is_chosen=path == state.draft_path,
                group=group,
                state=_row_word(state, path, is_there=not path or path in present),
            )
        if not present and not chosen:
            menu.add_note(NO_MATCH)

    def _choose(self, path: str) -> None:
        guesses = self._session.models.guesses
        guesses.choose_draft(path)
        self._awaited = path if guesses.state.is_loading else ""
        if self._awaited:
            self._tell(f"Loading {path_name(path)} to guess ahead…")

    def _follow(self, change: SessionChange) -> None:
        match change:
            case DraftRefused(path, failure):
                self._awaited = ""
                words = refused_words(path, failure)
                self._toast.show_text(words, icon_name="circle-alert", icon_role="warn")
            case GuessingChanged(state) if self._awaited and not state.is_loading:
                is_done = state.draft is not None and state.draft_path == self._awaited
                self._awaited = ""
                if is_done:
                    self._toast.show_text(f"{draft_name(state)} guesses ahead from now on.")
            case _:
                pass

    def _tell(self, text: str) -> None:
        self._toast.show_text(text, icon_name="info", icon_role="text_2")


def _row_word(state: GuessState, path: str, *, is_there: bool) -> str:
    """What stands at the right of a draft model: one that is in use stays so without its file."""
    if not is_there:
        return "Missing"
    return "Loading…" if state.is_loading and path == state.draft_path else ""
