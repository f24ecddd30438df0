"""Wires session, settings and window together. GUI thread.

The parts have their own controllers; here is what spans several of them: shortcuts, dialogs, the
chat menu, links, and what a failed reply offers.
"""

from functools import partial

from PySide6.QtCore import QByteArray, QObject
from PySide6.QtWidgets import QDialog

from app.chat_session import ChatSession
from app.conversation import ChatSettings, MessageId
from app.paths import Paths
from app.session_changes import ConversationShown, RepliesStored, SessionChange, StorageFailed
from app.settings import SettingsStore
from app.version import quire_version
from ui.chat.chat_controller import ChatController
from ui.chat.chat_menu import ChatMenuActions, build_chat_menu
from ui.chat.full_chat_controller import FullChatController
from ui.chat.model_controller import ModelController
from ui.controls.menus import Menu
from ui.dialogs.about import AboutDialog
from ui.dialogs.chat_settings import ChatSettingsDialog
from ui.dialogs.connections import ConnectionsDialog
from ui.dialogs.error import ErrorDialog
from ui.dialogs.link import open_link
from ui.dialogs.preferences import TEXT_SIZE_STEP, PreferencesDialog, theme_choice
from ui.dialogs.unstored import UnstoredDialog
from ui.look.appearance import Appearance
from ui.look.theme import Theme
from ui.main_window import MainWindow
from ui.memory_controller import MemoryController
from ui.sidebar.sidebar_controller import SidebarController
from ui.status_controller import StatusController


class Controller(QObject):
    """Owns the controllers of the parts.

    Attributes:
        appearance, chat, full_chat, memory, models, sidebar, status: Theme, and the controllers of the parts.
    """

    def __init__(
        self,
        session: ChatSession,
        settings: SettingsStore,
        window: MainWindow,
        *,
        theme: Theme,
        appearance: Appearance,
        paths: Paths,
    ) -> None:
        super().__init__()
        self._session = session
        self._settings = settings
        self._window = window
        self._theme = theme
        self._paths = paths
        self._menu: Menu | None = None
        self._dialog: QDialog | None = None
        self.appearance = appearance
        pane = window.chat
        self.chat = ChatController(session, pane, self)
        self.full_chat = FullChatController(session, pane, self)
        self.memory = MemoryController(session, settings, pane.toast, self)
        self.models = ModelController(session, settings, pane, theme=theme, parent=self)
        self.sidebar = SidebarController(session, window.sidebar, pane.toast, self)
        self.status = StatusController(session, window.status, self)
        self.sidebar.found.connect(lambda key, words: pane.messages.seek(MessageId(key), words))
        self.full_chat.counted.connect(self.status.take_counted)
        session.subscribe(self._follow)
        self._connect()
        self._add_shortcuts()
        self._restore_window()

    @property
    def dialog(self) -> QDialog | None:
        """The dialog that is open; for tests."""
        return self._dialog if self._dialog is not None and self._dialog.isVisible() else None

    def open_chat_menu(self) -> None:
        """Open the menu behind the header's dots."""
        button = self._window.chat.header.menu_button
        if self._menu is not None:
            self._menu.deleteLater()
        self._menu = self.build_chat_menu()
        self._menu.open_below(button, align_right=True)

    def build_chat_menu(self) -> Menu:
        """The chat's menu as it is now."""
        actions = ChatMenuActions(
            open_chat_settings=self.open_chat_settings,
            rename=self.rename,
            clear_cache=self.clear_cache,
            delete=self.delete,
            choose_theme=self.appearance.choose_theme,
            change_text_size=self.change_text_size,
            open_settings=self.open_settings,
            open_about=self.open_about,
        )
        has_chat = self._session.conversation is not None
        return build_chat_menu(self._theme, actions, has_chat=has_chat, parent=self._window)

    def open_chat_settings(self) -> None:
        """Show the system prompt and sampling of this chat."""
        general = self._settings.value
        dialog = ChatSettingsDialog(
            self._theme,
            self._session.chat_settings,
            general_sampling=general.sampling,
            general_prompt=general.system_prompt,
            parent=self._window,
        )
        dialog.saved.connect(self._save_chat_settings)
        self._open(dialog)

    def open_settings(self) -> None:
        """Show theme, text size and memory."""
        make_memory = partial(self.memory.page_parts, self._theme)
        dialog = PreferencesDialog(self._theme, self._window, make_memory=make_memory)
        look = dialog.look
        look.theme_chosen.connect(lambda key: self.appearance.choose_theme(theme_choice(key)))
        look.text_size_chosen.connect(self.appearance.choose_text_size)
        self._open(dialog)

    def open_about(self) -> None:
        """Show version, places and licences."""
        dialog = AboutDialog(
            self._theme,
            version=quire_version(),
            profile_dir=self._paths.data_dir,
            log_file=self._paths.log_file,
            parent=self._window,
        )
        self._open(dialog)

    def tell_bug(self, kind: str) -> None:
        """Say that something went wrong inside Quire, and where the log is."""
        dialog = ErrorDialog(
            self._theme,
            "Something in Quire went wrong",
            "What you wrote is kept. If it happens again, close Quire and start it anew.",
            details=kind,
            log_file=self._paths.log_file,
            parent=self._window,
        )
        self._open(dialog)

    def rename(self) -> None:
        """Rename the chosen row of the list if it has the focus, else the chat that is shown."""
        chats = self._window.sidebar.chat_list
        if chats.hasFocus() and chats.currentIndex().isValid():
            chats.edit(chats.currentIndex())
        elif self._session.conversation is not None:
            self._window.close_drawer()  # the title would lie behind it
            self._window.chat.header.edit_title()

    def clear_cache(self) -> None:
        """Forget what models have read of the chat that is shown."""
        conversation = self._session.conversation
        if conversation is not None:
            self.memory.clear_chat(conversation.id)

    def delete(self) -> None:
        """Delete the chat that is shown."""
        conversation = self._session.conversation
        if conversation is not None:
            self.sidebar.delete(conversation.id)

    def change_text_size(self, direction: int) -> None:
        """Make text larger (1), smaller (-1) or as designed (0)."""
        percent = self._theme.text_size_percent + direction * TEXT_SIZE_STEP
        self.appearance.choose_text_size(percent if direction else 100)

    def new_chat(self) -> None:
        """Show an empty chat, the caret in the composer."""
        self._session.new_chat()
        self._window.close_drawer()
        self.chat.focus_composer()

    def _connect(self) -> None:
        window = self._window
        window.sidebar.new_chat_requested.connect(self.new_chat)
        window.sidebar.settings_requested.connect(self.open_settings)
        window.sidebar.clear_requested.connect(self.memory.clear_chat)
        window.sidebar.left.connect(self.chat.focus_composer)
        window.chat.header.new_chat_button.clicked.connect(self.new_chat)
        window.chat.header.menu_button.clicked.connect(self.open_chat_menu)
        window.chat.messages.link_activated.connect(self._open_link)
        window.chat.messages.action_requested.connect(self._act_on_failure)
        window.status.private_button.clicked.connect(self._open_connections)
        window.escaped.connect(self._session.stop)
        window.may_close = self._may_close
        window.closed.connect(self._keep_geometry)
        window.fold_changed.connect(lambda is_open: self._settings.change(sidebar_visible=is_open))
        window.width_dragged.connect(lambda width: self._settings.change(sidebar_width=width))

    def _may_close(self) -> bool:
        what = ""
        if not self._session.is_all_stored():
            what = "A reply"
        elif not self._session.drafts.is_all_stored:
            what = "What you have written and not sent"
        return not what or UnstoredDialog.ask(self._theme, what, self._window)

    def _add_shortcuts(self) -> None:
        window = self._window
        for keys, run in {
            "Ctrl+N": self.new_chat,
            "Ctrl+K": self._search,
            "Ctrl+B": window.toggle_sidebar,
            "Ctrl+M": self.models.open_menu,
            "Ctrl+O": self.models.ask_for_file,
            "Ctrl+Shift+O": self.models.ask_for_folder,
            "Ctrl+,": self.open_settings,
            "Ctrl+Shift+,": self.open_chat_settings,
            "Ctrl+L": self.chat.focus_composer,
            "Ctrl++": lambda: self.change_text_size(1),
            "Ctrl+=": lambda: self.change_text_size(1),
            "Ctrl+-": lambda: self.change_text_size(-1),
            "Ctrl+0": lambda: self.change_text_size(0),
            "F2": self.rename,
            "F6": window.go_to_next_area,
            "F10": self.open_chat_menu,
        }.items():
            window.add_shortcut(keys, run)

    def _restore_window(self) -> None:
        value = self._settings.value
        geometry = QByteArray.fromBase64(value.window_geometry.encode("ascii", "ignore"))
        if not geometry.isEmpty():
            self._window.restoreGeometry(geometry)
        self._window.set_sidebar(is_open=value.sidebar_visible, width=value.sidebar_width)

    def _search(self) -> None:
        self._window.open_sidebar()
        self._window.sidebar.start_search()

    def _follow(self, change: SessionChange) -> None:
        match change:
            case ConversationShown():
                self._window.close_drawer()
            case RepliesStored():
                self._window.chat.toast.show_text("The reply is stored now.")
            case StorageFailed(message, hint):
                self._window.chat.toast.show_text(
                    f"{message} {hint}".strip(), icon_name="circle-alert", icon_role="danger"
                )
            case _:
                pass

    def _save_chat_settings(self, settings: ChatSettings) -> None:
        self._session.set_chat_settings(settings)
        self.full_chat.refresh()

    def _open_link(self, address: str) -> None:
        if not open_link(self._theme, address, self._window):
            self._window.chat.toast.show_text(
                "Only http and https links can be opened.",
                icon_name="circle-alert",
                icon_role="warn",
            )

    def _act_on_failure(self, action: str, message_id: int) -> None:
        match action:
            case "try_again":
                self._session.regenerate(MessageId(message_id))
            case "open_model":
                self.models.ask_for_file()
            case "plain_text":
                self._session.continue_as_plain_text()
            case "new_chat":
                self._ask_in_new_chat(MessageId(message_id))
            case "details":
                self._show_details(MessageId(message_id))
            case _:
                raise ValueError(f"no such action: {action}")

    def _ask_in_new_chat(self, message_id: MessageId) -> None:
        """Take the question of a failed reply along, to be sent or shortened there."""
        conversation = self._session.conversation
        path = conversation.path_to(message_id) if conversation else []
        questions = [message.content for message in path if message.role == "user"]
        self.new_chat()
        composer = self._window.chat.composer
        draft = [composer.text] if composer.text else []
        composer.set_text("\n\n".join(draft + questions[-1:]))

    def _show_details(self, message_id: MessageId) -> None:
        conversation = self._session.conversation
        message = conversation.messages.get(message_id) if conversation else None
        if message is not None:
            dialog = ErrorDialog(
                self._theme,
                "What happened",
                message.error or "The reply ended with an error.",
                log_file=self._paths.log_file,
                parent=self._window,
            )
            self._open(dialog)

    def _open_connections(self) -> None:
        self._open(ConnectionsDialog(self._theme, self._window))

    def _open(self, dialog: QDialog) -> None:
        """Open without waiting; one at a time."""
        if self._dialog is not None:
            self._dialog.close()
            self._dialog.deleteLater()
        self._dialog = dialog
        dialog.open()

    def _keep_geometry(self) -> None:
        geometry = bytes(self._window.saveGeometry().toBase64().data()).decode("ascii")
        self._settings.change(window_geometry=geometry)
