"""Icons grow and shrink with the text."""

from collections import defaultdict
from collections.abc import Callable

import pytest
from PySide6.QtCore import QPoint, QRect
from PySide6.QtGui import QPixmap

from tests.app.fake_engine import FakeScript
from tests.ui.open_window import OpenWindow
from ui.controls.buttons import IconButton
from ui.look import icons
from ui.look.painting import shadow_margins

Opener = Callable[..., OpenWindow]


@pytest.fixture
def painted(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[int]]:
    """Sizes in which icons were painted since it was emptied, by name."""
    sizes: dict[str, set[int]] = defaultdict(set)
    make = icons.pixmap

    def note(name: str, color: str, size: int, ratio: float) -> QPixmap:
        sizes[name].add(size)
        return make(name, color, size, ratio)

    monkeypatch.setattr(icons, "pixmap", note)
    return sizes


def paint_all(
    window: OpenWindow, percent: int, painted: dict[str, set[int]]
) -> dict[str, set[int]]:
    """Paint a chat with all that can stand in it, and a menu."""
    window.controller.appearance.choose_text_size(percent)
    window.wait(lambda: window.chat.messages.is_settled)
    window.chat.toast.show_text("Told.")
    window.chat.hint.show_text("A hint.")
    window.chat.notice.show_failure("Failed", "So it is.", [("Close", window.chat.notice.hide)])
    window.chat.show_notice(True)
    painted.clear()
    window.window.grab()
    menu = window.controller.models.build_menu()
    menu.grab()
    menu.deleteLater()
    return {name: set(sizes) for name, sizes in painted.items()}


def test_icons_of_a_chat_are_twice_as_large_beside_text_that_is(
    open_window: Opener, painted: dict[str, set[int]]
) -> None:
    window = open_window(FakeScript(replies=["```python\nx = 1\n```"]))
    window.start_engine()
    window.say("Show me")
    designed = paint_all(window, 100, painted)
    large = paint_all(window, 200, painted)
    expected = {
        "panel-left",
        "square-pen",
        "search",
        "settings",
        "chevron-down",
        "ellipsis",
        "copy",
    }
    expected |= {"refresh-cw", "layers", "arrow-up", "shield-check", "quire-mark", "circle-check"}
    expected |= {"info", "circle-alert", "x", "lightbulb", "folder-open", "chevron-right"}
    assert expected <= set(designed)
    assert large == {name: {2 * size for size in sizes} for name, sizes in designed.items()}


@pytest.mark.parametrize("percent", [80, 150, 200])
def test_buttons_stay_inside_what_holds_them(open_window: Opener, percent: int) -> None:
    window = open_window(FakeScript(replies=["One."]))
    window.start_engine()
    window.say("Hello")
    window.controller.appearance.choose_text_size(percent)
    window.wait(lambda: window.chat.messages.is_settled)
    composer = window.chat.composer
    surface = composer.rect().marginsRemoved(composer.margins())
    assert surface.contains(composer.button.geometry())
    assert composer.input.geometry().right() < composer.button.geometry().left()
    buttons = [it for it in window.window.findChildren(IconButton) if it.isVisible()]
    assert len(buttons) > 5
    for button in buttons:
        parent = button.parentWidget()
        assert parent is not None
        assert parent.rect().contains(button.geometry()), button.accessibleName()
    apart = sorted(
        (QRect(it.mapTo(window.window, QPoint(0, 0)), it.size()) for it in buttons),
        key=lambda place: (place.y(), place.x()),
    )
    assert not any(a.intersects(b) for a in apart for b in apart if a is not b)


def test_long_own_message_leaves_room_for_its_buttons(open_window: Opener) -> None:
    window = open_window(FakeScript(replies=["One."]))
    window.start_engine()
    window.say("A rather long message that fills its bubble to the very end. " * 3)
    first = window.view(window.messages[0].id)
    window.session.edit(window.messages[0].id, "Another long message that fills its bubble. " * 4)
    window.wait(lambda: not window.session.is_replying)
    window.controller.appearance.choose_text_size(200)
    window.wait(lambda: window.chat.messages.is_settled)
    own = window.view(window.messages[0].id)
    assert own is not first
    places = [it.geometry() for it in own.findChildren(IconButton)]
    assert min(place.left() for place in places) >= 0


def test_round_button_over_the_chat_is_as_round_as_it_is_large(open_window: Opener) -> None:
    window = open_window()
    window.controller.appearance.choose_text_size(200)
    button = window.chat.messages._to_end
    margins = shadow_margins(2)
    assert button.rect().marginsRemoved(margins).size().toTuple() == (72, 72)
