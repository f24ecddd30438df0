"""The menu of the chat, behind the dots of the header. GUI thread."""

from collections.abc import Callable
from dataclasses import dataclass

from PySide6.QtGui import QActionGroup
from PySide6.QtWidgets import QWidget

from ui.controls.menus import Menu
from ui.dialogs.preferences import THEME_NAMES
from ui.look.theme import Theme, ThemeChoice


@dataclass(frozen=True, slots=True)
class ChatMenuActions:
    """What the rows do."""

    open_chat_settings: Callable[[], object]
    rename: Callable[[], object]
    clear_cache: Callable[[], object]
    delete: Callable[[], object]
    choose_theme: Callable[[ThemeChoice], object]
    change_text_size: Callable[[int], object]
    open_settings: Callable[[], object]
    open_about: Callable[[], object]


def build_chat_menu(
    theme: Theme, actions: ChatMenuActions, *, has_chat: bool, parent: QWidget
) -> Menu:
    """The menu as it is now; rows that need a stored chat are off without one."""
    menu = Menu(theme, "Chat", parent)
    menu.add(
        "Chat settings…",
        actions.open_chat_settings,
        icon_name="sliders-horizontal",
        shortcut="Ctrl+Shift+,",
    )
    menu.add("Rename", actions.rename, icon_name="pencil", shortcut="F2", is_enabled=has_chat)
    menu.add(
        "Clear cached memory of this chat",
        actions.clear_cache,
        icon_name="eraser",
        is_enabled=has_chat,
    )
    menu.addSeparator()
    themes = menu.add_menu("Theme", icon_name="contrast")
    group = QActionGroup(themes)
    for key, name in THEME_NAMES:
        themes.add_choice(
            name,
            lambda key=key: actions.choose_theme(key),  # type: ignore[misc]  # bound per turn
            is_chosen=key == theme.choice,
            group=group,
        )
    sizes = menu.add_menu("Text size", icon_name="a-large-small")
    sizes.add_heading(f"{theme.text_size_percent}%")
    sizes.add("Larger", lambda: actions.change_text_size(1), icon_name="plus", shortcut="Ctrl++")
    sizes.add("Smaller", lambda: actions.change_text_size(-1), icon_name="minus", shortcut="Ctrl+-")
    sizes.add("Normal", lambda: actions.change_text_size(0), shortcut="Ctrl+0")
    menu.add("Settings…", actions.open_settings, icon_name="settings", shortcut="Ctrl+,")
    menu.add("About and licences…", actions.open_about, icon_name="info")
    menu.addSeparator()
    menu.add(
        "Delete chat", actions.delete, icon_name="trash-2", is_danger=True, is_enabled=has_chat
    )
    return menu
