"""Dialogs that tell, menus as they are painted, and what they lead to."""

import sqlite3
import sys
from collections.abc import Callable

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QColor, QContextMenuEvent, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QDialog, QLabel, QToolTip, QWidget

from app.conversation import Message
from app.draft_writer import DraftWriter
from app.errors import StorageError
from app.reply_desk import IN_MEMORY
from app.session_changes import StorageFailed
from app.storage import ConversationStore
from inference.errors import ComputeError
from tests.app.fake_engine import FakeScript
from tests.ui.open_window import OpenWindow
from ui.controls.labels import Label
from ui.controls.menus import Menu
from ui.controls.toast import SHADOW_LEVEL
from ui.dialogs.about import AboutDialog
from ui.dialogs.error import ErrorDialog
from ui.dialogs.unstored import UnstoredDialog
from ui.look import compositing
from ui.look.painting import shadow_margins
from ui.look.style import menu_margins
from ui.uncaught import UncaughtErrors

Opener = Callable[..., OpenWindow]


def _failed_reply(open_window: Opener) -> OpenWindow:
    window = open_window(
        FakeScript(error_after_tokens=0, reply_error=ComputeError("The device failed."))
    )
    window.start_engine()
    window.say("Question")
    return window


def test_details_of_a_failed_reply_show_where_the_log_is(open_window: Opener) -> None:
    window = _failed_reply(open_window)
    window.click("Details", window.view(window.messages[-1].id))
    dialog = window.controller.dialog
    assert isinstance(dialog, ErrorDialog)
    window.click("Details", dialog)
    assert str(window.paths.log_file) in dialog.details
    window.click("Close", dialog)
    assert window.controller.dialog is None


def test_model_without_a_template_can_go_on_as_plain_text(open_window: Opener) -> None:
    window = open_window(FakeScript(replies=["and so on"], has_chat_template=False))
    window.start_engine()
    window.say("Once upon a time")
    assert window.messages[-1].status == "error"
    window.click("Continue as plain text", window.view(window.messages[-1].id))
    window.wait(lambda: window.texts[-1] == "and so on" and not window.session.is_replying)
    assert window.engine.requests[-1].plain_text


@pytest.mark.parametrize("theme", ["dark", "contrast"])
def test_open_menu_takes_the_colours_of_another_theme(open_window: Opener, theme: str) -> None:
    window = open_window()
    window.controller.appearance.choose_theme("light")
    menu = Menu(window.program.theme, "Test", window.window)
    rows = [
        menu.add("Rename", lambda: None, icon_name="pencil"),
        menu.add("Delete", lambda: None, icon_name="trash-2", is_danger=True),
        menu.add_menu("More", icon_name="settings").menuAction(),
    ]
    window.controller.appearance.choose_theme(theme)  # type: ignore[arg-type]
    colors = window.program.theme.palette
    for row, color in zip(rows, (colors.text_2, colors.danger, colors.text_2), strict=True):
        assert darkest_or_brightest(row.icon().pixmap(32, 32).toImage()) == color.lower()


def darkest_or_brightest(image: QImage) -> str:
    """The colour of the pixel that is covered most."""
    pixels = [image.pixelColor(x, y) for x in range(image.width()) for y in range(image.height())]
    return max(pixels, key=lambda color: color.alpha()).name()


def test_failure_to_store_is_told_in_a_toast(open_window: Opener) -> None:
    window = open_window()
    window.controller._follow(StorageFailed("The disk is full.", "Make room."))
    assert window.chat.toast.isVisible()
    assert window.chat.toast.text == "The disk is full. Make room."


def test_full_disk_is_spoken_of_no_more_once_the_reply_is_stored(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = open_window(FakeScript(replies=["One."]))
    window.start_engine()
    update = ConversationStore.update_message

    def refuse(store: ConversationStore, message: Message) -> None:
        raise StorageError("The disk is full.", hint="Free some space, then try again.")

    monkeypatch.setattr(ConversationStore, "update_message", refuse)
    window.say("Hello")
    toast = window.chat.toast
    assert toast.isVisible()
    assert toast.text == f"The disk is full. {IN_MEMORY}"
    shown = [label.text() for label in window.window.findChildren(Label) if label.isVisible()]
    assert not any("is kept" in text for text in shown)
    monkeypatch.setattr(ConversationStore, "update_message", update)
    window.wait(lambda: toast.text == "The reply is stored now.")


@pytest.mark.parametrize("is_wanted", [False, True])
def test_window_asks_before_it_closes_with_a_reply_in_memory_only(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch, is_wanted: bool
) -> None:
    window = open_window(FakeScript(replies=["One."]))
    window.start_engine()
    asked: list[object] = []

    def ask(cls: object, theme: object, what: str, parent: object) -> bool:
        assert what == "A reply"
        asked.append(parent)
        return is_wanted

    def refuse(store: ConversationStore, message: Message) -> None:
        raise StorageError("The disk is full.", hint="Free some space, then try again.")

    monkeypatch.setattr(UnstoredDialog, "ask", classmethod(ask))
    with monkeypatch.context() as patch:
        patch.setattr(ConversationStore, "update_message", refuse)
        window.say("Hello")
        window.window.close()
        assert asked == [window.window]
        assert window.window.isVisible() != is_wanted
    if not is_wanted:
        window.window.close()  # it could be stored
        assert len(asked) == 1
        assert not window.window.isVisible()


@pytest.mark.parametrize("is_wanted", [True, False])
def test_window_with_a_draft_that_could_not_be_stored_closes_only_if_that_is_wanted(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch, is_wanted: bool
) -> None:
    window = open_window()
    asked: list[str] = []

    def ask(cls: object, theme: object, what: str, parent: object) -> bool:
        asked.append(what)
        return is_wanted

    def refuse(writer: DraftWriter, taken: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(UnstoredDialog, "ask", classmethod(ask))
    with monkeypatch.context() as patch:
        patch.setattr(DraftWriter, "_write", refuse)
        window.type("Do not lose this")
        window.wait(lambda: not window.session.drafts.is_all_stored)
        window.window.close()
    assert asked == ["What you have written and not sent"]
    assert window.window.isVisible() != is_wanted


def test_dialog_of_an_unstored_reply_stays_unless_one_wants_to_close(
    open_window: Opener,
) -> None:
    window = open_window()
    dialog = UnstoredDialog(window.program.theme, "A reply", window.window)
    outcomes: list[int] = []
    dialog.finished.connect(outcomes.append)
    for name in ("Stay", "Close anyway"):
        dialog.show()
        window.click(name, inside=dialog)
    assert outcomes == [QDialog.DialogCode.Rejected, QDialog.DialogCode.Accepted]
    dialog.deleteLater()


def test_toast_with_a_long_text_stays_inside_and_is_all_there(open_window: Opener) -> None:
    window = open_window()
    window.window.setGeometry(0, 0, 700, 600)
    window.controller.appearance.choose_text_size(150)
    toast, pane = window.chat.toast, window.chat.rect()
    toast.show_text("Short")
    height = toast.height()
    long = "The disk is full. " * 10
    toast.show_text(long, icon_name="circle-alert", icon_role="warn")
    surface = toast.geometry().marginsRemoved(shadow_margins(SHADOW_LEVEL))
    assert pane.contains(surface)
    assert toast.height() > height
    (label,) = [one for one in toast.findChildren(QLabel) if one.text() == long]
    window.wait(lambda: label.height() >= label.heightForWidth(label.width()) > 0)
    assert toast.rect().contains(label.geometry())
    toast.show_text("Short")
    assert toast.height() == height


def test_toast_stays_while_the_pointer_is_over_it_and_closes_by_its_button(
    open_window: Opener,
) -> None:
    window = open_window()
    toast = window.chat.toast
    toast.show_text("Done", action="Undo", run=lambda: None)
    assert toast._timer.isActive()
    toast.enterEvent(None)  # type: ignore[arg-type]  # the event is not looked at
    assert not toast._timer.isActive()
    window.click("Close", toast)
    assert not toast.isVisible()


@pytest.mark.parametrize("end", ["closed", "time is over", "another comes", "used"])
def test_toast_says_when_what_it_offers_is_gone(open_window: Opener, end: str) -> None:
    window = open_window()
    toast, told = window.chat.toast, []
    toast.show_text(
        "Done", action="Undo", run=lambda: told.append("run"), gone=lambda: told.append("gone")
    )
    assert told == []
    if end == "another comes":
        toast.show_text("Other")
    elif end == "time is over":
        toast._time_over()
    else:
        window.click("Close" if end == "closed" else "Undo", toast)
    toast.hide()
    assert told == ["run" if end == "used" else "gone"]


def test_toast_is_not_gone_with_its_window_until_its_time_is_over(open_window: Opener) -> None:
    window = open_window()
    toast, told = window.chat.toast, []
    toast.show_text("Done", action="Undo", gone=lambda: told.append("gone"))
    window.window.hide()
    window.window.show()
    assert toast.isVisible()
    window.window.hide()
    assert told == []
    toast._time_over()
    assert told == ["gone"]


def test_about_shows_version_places_and_each_licence(open_window: Opener) -> None:
    window = open_window()
    window.controller.open_about()
    dialog = window.controller.dialog
    assert isinstance(dialog, AboutDialog)
    seen = [dialog.text.toPlainText()]
    for _ in range(3):
        QTest.keyClick(dialog.chooser, Qt.Key.Key_Right)
        seen.append(dialog.text.toPlainText())
    assert len(set(seen)) == 4
    assert "GNU LGPL 3.0" in seen[0]
    assert "ISC License" in seen[3]


@pytest.mark.parametrize("can_blend", [True, False])
def test_menu_panel_is_painted_inside_its_shadow(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch, can_blend: bool
) -> None:
    monkeypatch.setattr("ui.look.style.can_blend_windows", lambda: can_blend)
    window = open_window()
    window.window.setGeometry(0, 0, 700, 560)
    window.program.theme.set_choice("light")
    menu = window.controller.build_chat_menu()
    menu.open_below(window.chat.header.menu_button, align_right=True)
    margins = menu_margins()
    assert (margins.left() > 0) is can_blend
    image = menu.grab().toImage()
    inside = image.pixelColor(margins.left() + 4, image.height() // 2)
    assert inside.name() == "#ffffff"
    right = menu.mapToGlobal(QPoint(menu.width() - margins.right(), 0)).x()
    button = window.chat.header.menu_button
    assert right == button.mapToGlobal(QPoint(button.width(), 0)).x()
    menu.close()


def test_menu_row_that_deletes_is_red_and_the_hovered_one_veiled(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    window.say("Hello")
    window.program.theme.set_choice("light")
    menu = window.controller.build_chat_menu()
    menu.popup(QPoint(0, 0))
    delete = next(action for action in menu.actions() if action.text() == "Delete chat")
    rect = menu.actionGeometry(delete)
    image = menu.grab(rect).toImage()
    colors = {
        image.pixelColor(x, y).name() for x in range(image.width()) for y in range(image.height())
    }
    assert "#be3328" in colors
    before = image.pixelColor(5, image.height() // 2)
    menu.setActiveAction(delete)
    after = menu.grab(rect).toImage().pixelColor(5, image.height() // 2)
    assert after != before
    menu.close()


def test_context_menu_of_a_chat_renames_and_deletes(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    window.say("Hello")
    chats = window.sidebar.chat_list
    index = chats.rows.index_of(window.chat_id("Hello"))
    place = chats.visualRect(index).center()
    event = QContextMenuEvent(
        QContextMenuEvent.Reason.Mouse, place, chats.viewport().mapToGlobal(place)
    )
    QApplication.sendEvent(chats.viewport(), event)
    menu = chats.findChild(Menu)
    assert menu is not None
    assert [a.text().partition("\t")[0] for a in menu.actions() if a.text()] == [
        "Rename",
        "Clear cached memory of this chat",
        "Delete chat",
    ]
    menu.actions()[-1].trigger()
    menu.close()
    assert window.titles == []


@pytest.mark.parametrize("can_blend", [True, False])
def test_menu_and_tip_of_a_chat_have_their_own_background(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch, can_blend: bool
) -> None:
    monkeypatch.setattr("ui.look.style.can_blend_windows", lambda: can_blend)
    window = open_window()
    window.start_engine()
    window.say("Hello")
    window.program.theme.set_choice("light")
    chats = window.sidebar.chat_list
    place = chats.visualRect(chats.rows.index_of(window.chat_id("Hello"))).center()
    QToolTip.showText(chats.mapToGlobal(place), "Hello, a tip", chats)
    tip = next(it for it in QApplication.topLevelWidgets() if it.inherits("QTipLabel"))
    assert _color_at(tip, QPoint(4, tip.height() // 2)) == "#ff24272c"
    tip.hide()
    place = chats._painter.menu_rect(chats.visualRect(chats.currentIndex())).center()
    QTest.mouseClick(chats.viewport(), Qt.MouseButton.LeftButton, pos=place)
    menu = chats.findChild(Menu)
    assert menu is not None
    inside = QPoint(menu_margins().left() + 4, menu.height() // 2)
    assert _color_at(menu, inside) == "#ffffffff"
    menu.close()


def test_chat_list_lets_the_sidebar_through(open_window: Opener) -> None:
    window = open_window()
    for choice in ("light", "dark"):
        window.program.theme.set_choice(choice)
        chats = window.sidebar.chat_list
        place = chats.mapTo(window.sidebar, chats.rect().center())
        wanted = window.program.theme.color("sidebar").name(QColor.NameFormat.HexArgb)
        assert _color_at(window.sidebar, place) == wanted


def _color_at(widget: QWidget, place: QPoint) -> str:
    return widget.grab().toImage().pixelColor(place).name(QColor.NameFormat.HexArgb)


def test_dots_of_a_row_open_its_menu_and_not_the_chat(open_window: Opener) -> None:
    window = open_window()
    window.start_engine()
    window.say("Hello")
    window.controller.new_chat()
    chats = window.sidebar.chat_list
    rect = chats.visualRect(chats.rows.index_of(window.chat_id("Hello")))
    place = chats._painter.menu_rect(rect).center()
    QTest.mouseClick(chats.viewport(), Qt.MouseButton.LeftButton, pos=place)
    menu = chats.findChild(Menu)
    assert menu is not None
    assert menu.isVisible()
    assert window.session.conversation is None
    menu.close()


def test_windows_blend_everywhere_but_on_x11() -> None:
    compositing.can_blend_windows.cache_clear()
    assert compositing.can_blend_windows() is True


def test_settings_gear_opens_the_settings(open_window: Opener) -> None:
    window = open_window()
    window.click("Settings", window.sidebar)
    assert window.controller.dialog is not None
    assert window.controller.dialog.windowTitle() == "Settings"


def test_keys_go_to_the_window_again_when_a_dialog_is_left(open_window: Opener) -> None:
    window = open_window()
    window.chat.composer.input.setFocus()
    window.controller.open_settings()
    dialog = window.controller.dialog
    assert dialog is not None
    window.wait(lambda: QApplication.activeWindow() is dialog)
    QTest.keyClick(dialog, Qt.Key.Key_Escape)
    window.wait(lambda: QApplication.activeWindow() is window.window)
    assert QApplication.focusWidget() is window.chat.composer.input


def test_uncaught_error_is_logged_and_told_once(
    open_window: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    window = open_window()
    logged: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "excepthook", lambda kind, _error, _trace: logged.append(kind))
    told: list[str] = []

    def tell(kind: str) -> None:
        told.append(kind)
        window.controller.tell_bug(kind)

    uncaught = UncaughtErrors(tell)
    for error in (ValueError("secret text"), KeyError("more")):
        sys.excepthook(type(error), error, None)
    window.wait(lambda: bool(told))
    uncaught.close()
    assert logged == [ValueError, KeyError]
    assert told == ["ValueError"]
    dialog = window.controller.dialog
    assert isinstance(dialog, ErrorDialog)
    assert "ValueError" in dialog.details
    assert "secret" not in dialog.details
    assert str(window.paths.log_file) in dialog.details


def test_menu_opened_again_takes_the_place_of_the_one_before(open_window: Opener) -> None:
    window = open_window()
    for _ in range(3):
        window.controller.open_chat_menu()
        window.controller.models.open_menu()
    menus = window.window.findChildren

    def titles() -> list[str]:
        return sorted(menu.title() for menu in menus(Menu) if menu.title() in ("Chat", "Models"))

    window.wait(lambda: titles() == ["Chat", "Models"])
