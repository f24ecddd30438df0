"""The page of the settings about the memory of chats. GUI thread."""

from collections.abc import Iterator, Sequence

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QVBoxLayout, QWidget

from inference.metrics import EngineStats, ModelInfo
from ui.controls.buttons import Button
from ui.controls.choice_row import ChoiceRow
from ui.controls.flow_row import FlowRow
from ui.controls.labels import Label
from ui.dialogs.memory_words import SchemeChoice, scheme_choices, trouble_text, written_text
from ui.dialogs.tier_section import AUTOMATIC, OFF, OWN, TierSection
from ui.look.theme import Theme

_INTRO = "Quire keeps what a model has read of your chats, so that the next reply starts at once."
_CLEAR_HINT = "No text is lost. The next reply in each chat only takes longer to start."
_SCHEME_TITLE = "Precision of the memory"
_SCHEME_HINT = "For {}. Another choice opens the model again."
_NO_MODEL = "Each model has its own. Open one to choose."

Budgets = tuple[int | None, int | None, int | None]


def make_tiers(theme: Theme, parent: QWidget) -> Iterator[TierSection]:
    """The sections of device, RAM and disk; one at a time, as each takes 2 ms."""
    yield TierSection(
        theme,
        "Memory of the model",
        "For chats that are in use. Another size opens the model again.",
        (AUTOMATIC, OWN),
        is_costly=True,
        parent=parent,
    )
    yield TierSection(
        theme,
        "Put aside in memory",
        "For chats that wait. They are back in a moment.",
        (AUTOMATIC, OFF, OWN),
        parent=parent,
    )
    yield TierSection(
        theme,
        "On disk",
        "For all chats, also after Quire was closed. Only you can read these files.",
        (AUTOMATIC, OFF, OWN),
        parent=parent,
    )


class MemoryPage(QWidget):
    """Use and budget of the three tiers, how closely a model remembers, and clearing.

    Args:
        theme: Colours and fonts.
        budgets: What is set, in bytes: device, RAM, disk; 0 is off, None automatic.
        tiers: Those of `make_tiers`.
        parent: Owner.

    Attributes:
        device, ram, disk: The tiers.
        choices: The ways to store keys and values, by key.
        clear_button: Clears everything.

    Signals:
        budgets_chosen: (device, RAM, disk) in bytes; 0 is off, None automatic.
        scheme_chosen: "auto", "int8" or "int4".
        clear_requested: The button was pressed.
        height_changed: It wants another height.
    """

    budgets_chosen = Signal(object)
    scheme_chosen = Signal(str)
    clear_requested = Signal()
    height_changed = Signal()

    def __init__(
        self, theme: Theme, budgets: Budgets, tiers: Sequence[TierSection], parent: QWidget
    ) -> None:
        super().__init__(parent)
        self._theme = theme
        self._shown: list[SchemeChoice] | None = None
        self.choices: dict[str, ChoiceRow] = {}
        self._tiers = tuple(tiers)
        self.device, self.ram, self.disk = self._tiers
        for tier, budget in zip(self._tiers, budgets, strict=True):
            tier.set_budget(budget)
        self._budgets = list(budgets)
        for number, tier in enumerate(self._tiers):
            tier.budget_chosen.connect(
                lambda budget, number=number: self._choose_budget(number, budget)
            )
            tier.height_changed.connect(self.height_changed)
        self._written = _small(theme)
        self._trouble = _small(theme, "warn")
        self.clear_button = Button(theme, "Clear cached memory", icon_name="eraser")
        self.clear_button.clicked.connect(self.clear_requested)
        self._clear_hint = _small(theme)
        self._clear_hint.setText(_CLEAR_HINT)
        self._scheme_hint = _small(theme)
        self._scheme_box = QWidget()
        self._scheme_rows = QVBoxLayout(self._scheme_box)
        self._scheme_rows.setContentsMargins(0, 0, 0, 0)
        self._scheme_rows.setSpacing(2)
        self._lay_out()
        self.show_stats(None)
        self.show_model(None, "auto")

    @property
    def written(self) -> str:
        """What is said about bytes written."""
        return self._written.text()

    @property
    def trouble(self) -> str:
        """What is said about the disk; "" if all is well."""
        return self._trouble.text()

    @property
    def scheme_words(self) -> str:
        """The sentence above the ways to store."""
        return self._scheme_hint.text()

    def show_stats(self, stats: EngineStats | None) -> None:
        """Say how full the tiers are; None is not known yet."""
        self.device.show_use(stats.device if stats is not None else None)
        self.ram.show_use(stats.ram if stats is not None else None)
        self.disk.show_use(stats.disk if stats is not None else None)
        self._written.setText(written_text(stats))
        trouble = trouble_text(stats)
        if trouble != self._trouble.text() or self._trouble.isHidden() == bool(trouble):
            self._trouble.setText(trouble)
            self._trouble.setVisible(bool(trouble))
            self.height_changed.emit()

    @property
    def clear_hint(self) -> str:
        """What is said below the button that clears."""
        return self._clear_hint.text()

    def show_cleared(self, result: str) -> None:
        """Say what clearing did."""
        self._clear_hint.setText(f"{result}. {_CLEAR_HINT}")
        self.height_changed.emit()

    def show_model(self, info: ModelInfo | None, key: str) -> None:
        """Offer the ways to store what this model has read; `key` is the one that is set."""
        offered = scheme_choices(info) if info is not None else []
        if offered != self._shown:
            self._shown = offered
            self._make_choices(offered)
            named = _SCHEME_HINT.format(info.name) if info is not None and offered else _NO_MODEL
            self._scheme_hint.setText(named)
            self.height_changed.emit()
        for known, row in self.choices.items():
            row.blockSignals(True)
            row.setChecked(known == key)
            row.blockSignals(False)

    def refuse_device_budget(self, budget_bytes: int | None, reason: str) -> None:
        """Show that another budget of the device was refused, and this is what holds."""
        self._budgets[0] = budget_bytes
        self.device.set_budget(budget_bytes)
        self.device.show_problem(reason)

    def _make_choices(self, offered: list[SchemeChoice]) -> None:
        for row in self.choices.values():
            self._scheme_rows.removeWidget(row)
            row.hide()
            row.deleteLater()
        self.choices = {}
        for choice in offered:
            row = ChoiceRow(
                self._theme,
                choice.name,
                value=choice.value,
                hint=choice.hint,
                parent=self._scheme_box,
            )
            row.setEnabled(choice.is_offered)
            row.setToolTip("" if choice.is_offered else choice.hint)
            row.toggled.connect(
                lambda is_taken, key=choice.key: self.scheme_chosen.emit(key) if is_taken else None
            )
            self.choices[choice.key] = row
            self._scheme_rows.addWidget(row)
        self._scheme_box.setVisible(bool(offered))

    def _choose_budget(self, number: int, budget_bytes: int | None) -> None:
        self._budgets[number] = budget_bytes
        self.budgets_chosen.emit(tuple(self._budgets))

    def _lay_out(self) -> None:
        intro = Label(self._theme, _INTRO, style="label", role="text_2")
        intro.setWordWrap(True)
        clear_row = FlowRow()
        clear_row.set_controls([self.clear_button])
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(intro)
        for tier in self._tiers:
            column.addSpacing(16)
            column.addWidget(tier)
        column.addSpacing(8)
        column.addWidget(self._written)
        column.addWidget(self._trouble)
        column.addSpacing(20)
        column.addWidget(Label(self._theme, _SCHEME_TITLE, style="button"))
        column.addWidget(self._scheme_hint)
        column.addSpacing(4)
        column.addWidget(self._scheme_box)
        column.addSpacing(20)
        column.addWidget(clear_row)
        column.addSpacing(4)
        column.addWidget(self._clear_hint)


def _small(theme: Theme, role: str = "text_2") -> Label:
    label = Label(theme, style="small", role=role)
    label.setWordWrap(True)
    return label
