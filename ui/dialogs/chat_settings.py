"""System prompt, sampling, and what to do when full, of one chat. GUI thread."""

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QGridLayout, QVBoxLayout, QWidget

from app.conversation import ChatSettings, OnFull
from inference.config import SamplingParams
from ui.controls.choice_row import ChoiceRow
from ui.controls.fields import AreaField, Field
from ui.controls.flow_row import FlowRow
from ui.controls.labels import Label
from ui.dialogs.base import Dialog
from ui.dialogs.on_full_choices import ON_FULL_CHOICES
from ui.dialogs.sampling_form import FORM_FIELDS, read_form, texts_of
from ui.look.theme import Theme

_WIDTH = 520


class ChatSettingsDialog(Dialog):
    """Shows what holds for the chat; saves only what is allowed.

    Args:
        theme: Colours and fonts.
        settings: Of the chat.
        general_sampling: What holds where the chat has none of its own.
        general_prompt: The same for the system prompt; shown as a hint.
        parent: The window.

    Signals:
        saved: The new ChatSettings.
    """

    saved = Signal(object)

    def __init__(
        self,
        theme: Theme,
        settings: ChatSettings,
        *,
        general_sampling: SamplingParams,
        general_prompt: str,
        parent: QWidget | None,
    ) -> None:
        super().__init__(theme, "Chat settings", parent, width=_WIDTH)
        self._general_sampling = general_sampling
        self.prompt_field = AreaField(
            theme,
            "Instructions for the model",
            hint=general_prompt or "For example: answer briefly",
        )
        self.content.addWidget(self.prompt_field)
        grid = QGridLayout()
        grid.setHorizontalSpacing(12)
        grid.setVerticalSpacing(12)
        self.fields: dict[str, Field] = {}
        for number, form_field in enumerate(FORM_FIELDS):
            field = Field(theme, form_field.label, hint=form_field.hint, tip=form_field.tip)
            field.edited.connect(self._check)
            self.fields[form_field.name] = field
            grid.addWidget(field, number // 2, number % 2, Qt.AlignmentFlag.AlignTop)
        self.content.addLayout(grid)
        self.on_full: dict[OnFull, ChoiceRow] = {}
        self._add_on_full()
        self.reset_button = self.add_left_button("Reset to defaults")
        self.reset_button.clicked.connect(self._reset)
        self.add_button("Cancel").clicked.connect(self.reject)
        self.save_button = self.add_button("Save", "primary")
        self.save_button.clicked.connect(self._save)
        self._show(settings)

    def _add_on_full(self) -> None:
        row = FlowRow(gap=12, row_gap=0)
        for key, name, hint in ON_FULL_CHOICES:
            choice = ChoiceRow(self.theme, name, parent=row)
            choice.setToolTip(hint)
            choice.setAccessibleDescription(hint)
            self.on_full[key] = choice
        row.set_controls(list(self.on_full.values()))
        column = QVBoxLayout()
        column.setSpacing(0)
        column.addWidget(Label(self.theme, "When the chat is full", style="label"))
        column.addWidget(row)
        self.content.addLayout(column)

    def _show(self, settings: ChatSettings) -> None:
        self.on_full[settings.on_full].setChecked(True)
        self.prompt_field.set_text(settings.system_prompt)
        for name, text in texts_of(settings.sampling or self._general_sampling).items():
            self.fields[name].set_text(text)
        self._check()

    def _reset(self) -> None:
        self._show(ChatSettings())

    def _check(self) -> bool:
        _, problems = read_form({name: field.text for name, field in self.fields.items()})
        for name, field in self.fields.items():
            field.show_problem(problems.get(name, ""))
        self.save_button.setEnabled(not problems)
        self.save_button.setToolTip("A value is not allowed" if problems else "")
        self.area.fit()
        return not problems

    def _save(self) -> None:
        if not self._check():
            return
        params, _ = read_form({name: field.text for name, field in self.fields.items()})
        sampling = None if params == self._general_sampling else params
        on_full = next(key for key, row in self.on_full.items() if row.isChecked())
        self.saved.emit(ChatSettings(self.prompt_field.text, sampling, on_full))
        self.accept()
