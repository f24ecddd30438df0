"""How much is kept of what models have read, in which form, and that it is forgotten when asked."""

import pytest

from app.conversation import ConversationId
from app.errors import SettingError
from app.messages import (
    CacheCleared,
    ClearCache,
    Failure,
    ForgetChat,
    KeepOnlyChats,
    LoadModel,
    ModelFailed,
    ModelReady,
    SetCacheBudgets,
    StopReply,
)
from app.session_changes import (
    BudgetRefused,
    CacheWasCleared,
    ModelChanged,
    ModelState,
    ReplyStarted,
    SchemeRefused,
)
from inference.config import EngineConfig
from tests.app.session_bench import FAILURE, INFO, PATH, Bench

REFUSED = Failure("request", "int4 would make this model worse.")


def config(bench: Bench, **fields: object) -> EngineConfig:
    return EngineConfig(cache_dir=str(bench.kv_dir), **fields)  # type: ignore[arg-type]


def schemes(bench: Bench) -> dict[str, str]:
    return dict(bench.settings.value.kv_schemes)


def two_chats(bench: Bench) -> tuple[ConversationId, ConversationId]:
    """Both with a turn; the second one is shown."""
    bench.turn("a", "b")
    first = bench.chat.id
    bench.session.new_chat()
    bench.turn("c", "d")
    return first, bench.chat.id


def forgotten(bench: Bench) -> list[ForgetChat]:
    return [command for command in bench.posted if isinstance(command, ForgetChat)]


# ---------------------------------------------------------------- forgetting


def test_deletion_is_forgotten_after_the_reply_was_stopped(ready: Bench) -> None:
    ready.session.send("a")
    ready.says("half")
    chat_id, reply_id = ready.chat.id, ready.generate().reply_id
    ready.session.new_chat()
    ready.session.delete_chat(chat_id)
    ready.session.forget_deleted(chat_id)
    assert ready.posted[-2:] == [StopReply(reply_id), ForgetChat(chat_id, is_deleted=True)]
    ready.session.forget_deleted(chat_id)
    assert ready.posted[-1] == ForgetChat(chat_id, is_deleted=True)
    assert ready.posted.count(ready.posted[-1]) == 1
    ready.session.undo_delete()  # that came too late
    assert ready.session.conversations() == []


@pytest.mark.parametrize("end", ["another is deleted", "closed"])
def test_deletion_that_nobody_can_undo_any_more_is_forgotten(ready: Bench, end: str) -> None:
    first, second = two_chats(ready)
    ready.session.delete_chat(first)
    assert forgotten(ready) == []
    if end == "closed":
        ready.session.close()
    else:
        ready.session.delete_chat(second)
    assert forgotten(ready) == [ForgetChat(first, is_deleted=True)]


def test_chat_that_cannot_be_deleted_leaves_the_undo_of_the_one_before(ready: Bench) -> None:
    first, second = two_chats(ready)
    ready.session.delete_chat(first)
    ready.store._connection.execute("PRAGMA query_only = ON")
    assert not ready.session.delete_chat(second)
    ready.store._connection.execute("PRAGMA query_only = OFF")
    assert forgotten(ready) == []
    ready.session.undo_delete()
    assert {chat.id for chat in ready.session.conversations()} == {first, second}


def test_deletion_that_was_not_stored_forgets_nothing(ready: Bench) -> None:
    ready.turn("a", "b")
    ready.posted.clear()
    ready.store._connection.execute("PRAGMA query_only = ON")
    assert not ready.session.delete_chat(ready.chat.id)
    assert ready.posted == []


def test_cache_of_a_chat_and_of_all_is_cleared(ready: Bench) -> None:
    ready.session.clear_chat_cache(ConversationId("c"))
    ready.session.clear_all_cache()
    assert ready.posted == [ForgetChat("c"), ClearCache()]
    ready.session.handle_event(CacheCleared("c", 10))
    ready.session.handle_event(CacheCleared(None, 20))
    assert ready.take() == [CacheWasCleared(ConversationId("c"), 10), CacheWasCleared(None, 20)]


# ---------------------------------------------------------------- budgets


def test_budgets_of_ram_and_disk_hold_at_once(ready: Bench) -> None:
    ready.session.models.set_cache_budgets(None, 2**30, 0)
    assert ready.posted == [SetCacheBudgets(2**30, 0)]
    value = ready.settings.value
    assert (value.kv_cache_bytes, value.ram_cache_bytes, value.disk_cache_bytes) == (None, 2**30, 0)
    assert ready.take() == []
    assert ready.session.model.kind == "ready"


def test_budget_of_the_device_has_the_model_opened_again(ready: Bench) -> None:
    ready.session.send("a")
    ready.posted.clear()
    ready.session.models.set_cache_budgets(2**28, None, 2**31)
    budgets = {"kv_cache_bytes": 2**28, "disk_cache_bytes": 2**31}
    assert ready.posted == [
        SetCacheBudgets(None, 2**31),
        LoadModel(PATH, config(ready, **budgets)),
    ]
    assert ready.session.model == ModelState("loading", PATH)


def test_budget_of_the_device_waits_for_a_model(bench: Bench) -> None:
    bench.session.models.set_cache_budgets(2**28, None, None)
    assert bench.posted == [SetCacheBudgets(None, None)]
    bench.session.load_model(PATH)
    assert bench.posted[-1] == LoadModel(PATH, config(bench, kv_cache_bytes=2**28))


def test_budget_that_is_not_allowed_changes_nothing(ready: Bench) -> None:
    with pytest.raises(SettingError):
        ready.session.models.set_cache_budgets(1, 2**30, None)
    assert ready.settings.value.ram_cache_bytes is None
    assert ready.posted == []


# ---------------------------------------------------------------- schemes


def test_scheme_is_set_per_model_and_opens_it_again(ready: Bench) -> None:
    ready.session.models.set_kv_scheme("int8")
    assert ready.posted == [LoadModel(PATH, config(ready, kv_scheme="int8"))]
    assert schemes(ready) == {PATH: "int8"}
    ready.session.models.set_kv_scheme("int8")
    assert len(ready.posted) == 1
    ready.session.load_model("/other")
    assert ready.posted[-1] == LoadModel("/other", config(ready))
    ready.session.models.set_kv_scheme("int4")
    assert schemes(ready) == {PATH: "int8", "/other": "int4"}
    ready.session.load_model(PATH)
    ready.session.models.set_kv_scheme("auto")
    assert ready.posted[-1] == LoadModel(PATH, config(ready))
    assert schemes(ready) == {"/other": "int4"}


def test_scheme_without_a_model_or_without_a_name_is_not_set(bench: Bench) -> None:
    bench.session.models.set_kv_scheme("int8")
    assert bench.posted == []
    assert schemes(bench) == {}
    bench.ready()
    with pytest.raises(SettingError):
        bench.session.models.set_kv_scheme("int3")
    assert bench.posted == []


def test_memory_of_the_model_that_finds_no_room_falls_back_to_what_it_was(ready: Bench) -> None:
    ready.session.models.set_cache_budgets(2**28, None, None)
    ready.session.handle_event(ModelReady(INFO))
    ready.session.models.set_cache_budgets(2**40, 2**30, None)
    ready.session.models.set_cache_budgets(2**41, 2**30, None)
    ready.posted.clear()
    ready.take()
    ready.session.handle_event(ModelFailed(PATH, FAILURE))
    assert ready.posted == [
        LoadModel(PATH, config(ready, kv_cache_bytes=2**28, ram_cache_bytes=2**30))
    ]
    assert ready.settings.value.kv_cache_bytes == 2**28
    assert ready.take() == [
        ModelChanged(ModelState("loading", PATH)),
        BudgetRefused("It needs 6 GB."),
    ]
    ready.session.handle_event(ModelFailed(PATH, FAILURE))
    assert ready.session.model.kind == "failed"


@pytest.mark.parametrize("path", [PATH, "/models/other.gguf"])
def test_model_without_room_that_was_opened_later_changes_no_budget(
    ready: Bench, path: str
) -> None:
    ready.session.models.set_cache_budgets(2**28, None, None)
    if path == PATH:
        ready.session.handle_event(ModelReady(INFO))
    ready.session.load_model(path)
    ready.session.handle_event(ModelFailed(path, FAILURE))
    assert ready.session.model.kind == "failed"
    assert ready.settings.value.kv_cache_bytes == 2**28


def test_scheme_that_is_refused_falls_back_and_the_model_is_opened_again(ready: Bench) -> None:
    ready.session.models.set_kv_scheme("int4")
    ready.session.send("a")
    ready.take()
    ready.posted.clear()
    ready.session.handle_event(ModelFailed(PATH, REFUSED, is_scheme_refused=True))
    assert ready.posted == [LoadModel(PATH, config(ready))]
    assert schemes(ready) == {}
    assert ready.take() == [
        ModelChanged(ModelState("loading", PATH)),
        SchemeRefused("int4 would make this model worse."),
    ]
    assert ready.session.is_replying  # it waits for the model
    ready.session.handle_event(ModelReady(INFO))
    assert ready.generate().messages[0].content == "a"


def test_refusal_that_comes_after_another_choice_changes_nothing(ready: Bench) -> None:
    ready.session.models.set_kv_scheme("int4")
    ready.session.models.set_kv_scheme("int8")
    ready.session.send("a")
    ready.take()
    posted = list(ready.posted)
    late = config(ready, kv_scheme="int4")
    ready.session.handle_event(ModelFailed(PATH, REFUSED, is_scheme_refused=True, config=late))
    ready.session.handle_event(ModelReady(INFO, late))
    assert ready.take() == []
    assert ready.posted == posted
    assert schemes(ready) == {PATH: "int8"}
    ready.session.handle_event(ModelReady(INFO, config(ready, kv_scheme="int8")))
    assert ready.session.model.kind == "ready"
    assert ready.generate().messages[0].content == "a"


def test_model_that_finds_no_room_after_another_budget_was_set_changes_nothing(
    ready: Bench,
) -> None:
    ready.session.models.set_cache_budgets(2**40, None, None)
    ready.session.models.set_cache_budgets(2**28, None, None)
    late = config(ready, kv_cache_bytes=2**40)
    ready.session.handle_event(ModelFailed(PATH, FAILURE, config=late))
    assert ready.settings.value.kv_cache_bytes == 2**28
    assert ready.session.model == ModelState("loading", PATH)
    ready.session.handle_event(
        ModelFailed(PATH, FAILURE, config=config(ready, kv_cache_bytes=2**28))
    )
    assert ready.settings.value.kv_cache_bytes is None  # what it was before both


def test_refusal_of_the_automatic_scheme_is_a_failure(ready: Bench) -> None:
    ready.session.load_model(PATH)
    ready.posted.clear()
    ready.session.handle_event(ModelFailed(PATH, REFUSED, is_scheme_refused=True))
    assert ready.posted == []
    assert ready.session.model == ModelState("failed", PATH, failure=REFUSED)


def test_other_failure_keeps_the_scheme(ready: Bench) -> None:
    ready.session.models.set_kv_scheme("int8")
    ready.session.send("a")
    ready.session.handle_event(ModelFailed(PATH, FAILURE))
    assert schemes(ready) == {PATH: "int8"}
    assert ready.last.status == "error"
    assert any(isinstance(change, ReplyStarted) for change in ready.take())


def test_chats_that_are_there_are_named_at_the_start(bench: Bench) -> None:
    for text in ("one", "two"):
        bench.session.new_chat()
        bench.session.send(text)
    one, two = (chat.id for chat in reversed(bench.session.conversations()))
    bench.session.delete_chat(two)
    bench.session.forget_lost_chats()
    assert bench.posted[-1] == KeepOnlyChats((one,))
