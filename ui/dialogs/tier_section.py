"""One tier of the memory of chats: how much it holds, and how much it may hold. GUI thread."""

from collections.abc import Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QVBoxLayout, QWidget

from inference.metrics import TierStats
from ui.controls.fields import set_invalid
from ui.controls.flow_row import FlowRow
from ui.controls.labels import Label
from ui.controls.meter import Meter
from ui.controls.numbers import locale
from ui.controls.segmented import Segmented
from ui.dialogs.memory_words import usage_fraction, usage_text
from ui.look.field_look import dress_field
from ui.look.theme import Theme

LEAST_GB = 0.1
MOST_GB = 1000.0
_GB = 10**9
_FIELD_WIDTH = 84

AUTOMATIC = ("auto", "Automatic")
OFF = ("off", "Off")
OWN = ("own", "Own size")


class TierSection(QWidget):
    """Name and use, a bar, a sentence, and the budget.

    Args:
        theme: Colours and fonts.
        name: Of the tier.
        hint: One plain sentence.
        choices: Of `AUTOMATIC`, `OFF`, `OWN`.
        is_costly: Another budget takes effort, so an own size is told only when one is typed.
        parent: Owner until a layout takes it.

    Attributes:
        choice, field: The controls.

    Signals:
        budget_chosen: Bytes, 0 for off, None for automatic.
        height_changed: It may want another height.
    """

    budget_chosen = Signal(object)
    height_changed = Signal()

    def __init__(
        self,
        theme: Theme,
        name: str,
        hint: str,
        choices: Sequence[tuple[str, str]],
        *,
        is_costly: bool = False,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self._theme = theme
        self._name = name
        self._is_costly = is_costly
        self._offered = ""  # the size that was put into the field, until another one is typed
        self._budget: int | None = None
        self._known_budget = 0
        self._use = Label(theme, style="small_strong")
        self._meter = Meter(theme)
        self._problem = Label(theme, style="small", role="danger")
        self._problem.setWordWrap(True)
        self.choice = Segmented(theme, f"Budget: {name}", choices)
        self.choice.chosen.connect(self._choose)
        self.field = QLineEdit()
        dress_field(self.field, theme)
        self.field.setAccessibleName(f"Budget in GB: {name}")
        self.field.editingFinished.connect(self._take_typed)
        self._unit = Label(theme, "GB", style="label", role="text_2")
        self._controls = FlowRow()
        self._controls.set_controls([self.choice, self.field, self._unit])
        self._lay_out(hint)
        theme.changed.connect(self._apply)
        self._apply()
        self.set_budget(None)
        self.show_use(None)

    @property
    def use(self) -> str:
        """What is said about how full it is."""
        return self._use.text()

    @property
    def problem(self) -> str:
        """What is said about the number typed; "" if it is allowed."""
        return self._problem.text()

    def set_budget(self, budget_bytes: int | None) -> None:
        """Show this as what is set, without telling."""
        self._budget = budget_bytes
        is_own = bool(budget_bytes)
        self.choice.set_key("auto" if budget_bytes is None else "own" if is_own else "off")
        if budget_bytes:
            self.field.setText(_typed(budget_bytes))
        self.show_problem("")
        self._show_field(is_own)

    def show_problem(self, problem: str) -> None:
        """Say what is wrong with the size; "" if nothing is."""
        self._problem.setText(problem)
        self._problem.setVisible(bool(problem))
        self.field.setAccessibleDescription(problem)
        set_invalid(self.field, bool(problem))
        self.height_changed.emit()

    def show_use(self, tier: TierStats | None) -> None:
        """Say how full it is; None is not known yet."""
        text = usage_text(tier)
        self._known_budget = tier.budget_bytes if tier is not None else 0
        if text != self._use.text():
            self._use.setText(text)
            self._use.setAccessibleName(f"{self._name}: {text}")
        self._meter.set_fraction(usage_fraction(tier))

    def _lay_out(self, hint: str) -> None:
        head = QHBoxLayout()
        name = Label(self._theme, self._name, style="button")
        name.setWordWrap(True)  # large text may leave no room for both in one line
        head.addWidget(name, 1)
        head.addWidget(self._use)
        words = Label(self._theme, hint, style="small", role="text_2")
        words.setWordWrap(True)
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(4)
        column.addLayout(head)
        column.addWidget(self._meter)
        column.addWidget(words)
        column.addSpacing(2)
        column.addWidget(self._controls)
        column.addWidget(self._problem)

    def _choose(self, key: str) -> None:
        self.show_problem("")
        self._show_field(key == "own")
        if key == "auto":
            self._tell(None)
        elif key == "off":
            self._tell(0)
        else:
            # Begin with what is in force, so that nothing changes before a number is typed.
            now = self._budget or self._known_budget or _GB
            self.field.setText(_typed(max(now, int(LEAST_GB * _GB))))
            self._offered = self.field.text() if self._is_costly else ""
            self._take_typed()

    def _take_typed(self) -> None:
        if self.choice.key != "own":
            return
        if self._budget is None and self.field.text() == self._offered:
            self.show_problem("")
            return
        typed = _read(self.field.text())
        if typed is None:
            most = locale().toString(MOST_GB, "f", 0)
            least = locale().toString(LEAST_GB, "f", 1)
            self.show_problem(f"Must be a number from {least} to {most}.")
            return
        self.show_problem("")
        self._tell(typed)

    def _tell(self, budget_bytes: int | None) -> None:
        if budget_bytes != self._budget:
            self._budget = budget_bytes
            self.budget_chosen.emit(budget_bytes)

    def _show_field(self, is_shown: bool) -> None:
        self.field.setVisible(is_shown)
        self._unit.setVisible(is_shown)
        self._controls.refresh()
        self.height_changed.emit()

    def _apply(self) -> None:
        self.field.setFont(self._theme.font("ui"))
        self.field.setFixedWidth(self._theme.px(_FIELD_WIDTH))
        self._controls.refresh()


def _typed(budget_bytes: int) -> str:
    """Bytes as a number of GB, as a person would type it."""
    return locale().toString(budget_bytes / _GB, "f", 1)


def _read(text: str) -> int | None:
    """A number of GB as bytes; None if it is none, or not allowed.

    Both a point and a comma are understood, whatever the locale writes.
    """
    number, is_number = locale().toDouble(text.strip())
    if not is_number:
        try:
            number = float(text.strip().replace(",", "."))
        except ValueError:
            return None
    return round(number * _GB) if LEAST_GB <= number <= MOST_GB else None
