"""Between the session and what a person sees of the memory of chats. GUI thread."""

from collections.abc import Iterator

from PySide6.QtCore import QObject
from PySide6.QtWidgets import QWidget
from shiboken6 import isValid

from app.chat_session import ChatSession
from app.conversation import ConversationId
from app.engine_setup import kv_scheme_of
from app.session_changes import (
    BudgetRefused,
    CacheWasCleared,
    ModelChanged,
    SchemeRefused,
    SessionChange,
    StatsChanged,
)
from app.settings import SettingsStore
from inference.metrics import EngineStats, ModelInfo
from ui.controls.toast import Toast
from ui.dialogs.memory_page import Budgets, MemoryPage, make_tiers
from ui.dialogs.memory_words import cleared_text
from ui.dialogs.tier_section import TierSection
from ui.look.theme import Theme


class MemoryController(QObject):
    """Fills the page of the settings while it is open, and clears what is cached."""

    def __init__(
        self, session: ChatSession, settings: SettingsStore, toast: Toast, parent: QObject
    ) -> None:
        super().__init__(parent)
        self._session = session
        self._settings = settings
        self._toast = toast
        self._stats: EngineStats | None = None
        self._page: MemoryPage | None = None
        self._info: ModelInfo | None = None  # of the model that is open, or is opened again
        session.subscribe(self._follow)
        self._show_model()

    def page_parts(self, theme: Theme, parent: QWidget) -> Iterator[MemoryPage | None]:
        """Make a page in slices of a few milliseconds: None after each, the page at the end."""
        tiers: list[TierSection] = []
        for tier in make_tiers(theme, parent):
            tiers.append(tier)
            yield None
        value = self._settings.value
        budgets = (value.kv_cache_bytes, value.ram_cache_bytes, value.disk_cache_bytes)
        page = MemoryPage(theme, budgets, tiers, parent)
        yield None
        self._serve(page)
        yield page

    def _serve(self, page: MemoryPage) -> None:
        """Keep the page true from now on, and do what is asked there."""
        self._page = page
        page.budgets_chosen.connect(self._set_budgets)
        page.scheme_chosen.connect(self._session.models.set_kv_scheme)
        page.clear_requested.connect(self._session.clear_all_cache)
        page.show_stats(self._stats)
        self._show_model()

    def clear_chat(self, chat_id: str) -> None:
        """Forget what models have read of this chat; its text stays."""
        self._session.clear_chat_cache(ConversationId(chat_id))

    def _follow(self, change: SessionChange) -> None:
        match change:
            case StatsChanged(sample):
                self._stats = sample.stats
                page = self._open_page()
                if page is not None:
                    page.show_stats(self._stats)
            case ModelChanged():
                self._show_model()
            case CacheWasCleared(chat_id, freed_bytes):
                self._tell_cleared(freed_bytes, is_one_chat=chat_id is not None)
            case SchemeRefused(reason):
                self._toast.show_text(reason, icon_name="circle-alert", icon_role="warn")
            case BudgetRefused(reason):
                self._tell_refused_budget(reason)
            case _:
                pass

    def _tell_cleared(self, freed_bytes: int, *, is_one_chat: bool) -> None:
        result = cleared_text(freed_bytes, is_one_chat=is_one_chat)
        self._toast.show_text(result)
        page = self._open_page()
        if page is not None and not is_one_chat:
            page.show_cleared(result)

    def _tell_refused_budget(self, reason: str) -> None:
        words = f"{reason} The size is as it was before."
        self._toast.show_text(words, icon_name="circle-alert", icon_role="warn")
        page = self._open_page()
        if page is not None:  # it may cover the toast
            page.refuse_device_budget(self._settings.value.kv_cache_bytes, words)

    def _set_budgets(self, budgets: Budgets) -> None:
        self._session.models.set_cache_budgets(*budgets)

    def _show_model(self) -> None:
        state = self._session.model
        known = self._info
        # Opened again to remember in another way: its choices stay where they are.
        is_again = state.kind == "loading" and known is not None and known.path == state.path
        if not is_again:
            self._info = state.info
        page = self._open_page()
        if page is not None:
            page.show_model(self._info, kv_scheme_of(self._settings.value, state.path))

    def _open_page(self) -> MemoryPage | None:
        if self._page is not None and not isValid(self._page):
            self._page = None  # it went with its dialog
        return self._page
