"""The menu behind a reply's dots. GUI thread."""

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QWidget

from ui.controls.menus import Menu
from ui.look.theme import Theme
from ui.replies.answer_words import SEVERAL_AT_ONCE, alike_note
from ui.replies.reply_buttons import copy_to_clipboard
from ui.replies.reply_view import ReplyView


def reply_menu(theme: Theme, reply: ReplyView, *, alike_reason: str, parent: QWidget) -> Menu:
    """What can be done with this reply; the menu deletes itself when it is closed.

    Args:
        theme: Colours.
        reply: Asked for what is chosen.
        alike_reason: Why several answers would be the same; "" if they would differ.
        parent: Owner.
    """
    menu = Menu(theme, "Reply", parent)
    menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
    menu.add("Copy as Markdown", lambda: copy_to_clipboard(reply.text), icon_name="copy")
    menu.add("Copy as plain text", lambda: copy_to_clipboard(reply.plain_text()))
    menu.add("Reply again", reply.again_requested.emit, icon_name="refresh-cw")
    menu.add(SEVERAL_AT_ONCE, reply.several_requested.emit, icon_name="layers")
    if alike_reason:
        menu.add_heading(alike_note(alike_reason))
    return menu
