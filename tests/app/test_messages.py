import pickle

import pytest

from app import messages
from app.messages import (
    CacheCleared,
    ClearCache,
    DraftChanged,
    DraftsFound,
    Failure,
    FindDrafts,
    ForgetChat,
    Generate,
    KeepOnlyChats,
    LoadModel,
    MeasurePrompt,
    ModelFailed,
    ModelLoading,
    ModelReady,
    ModelUnloaded,
    PromptMeasured,
    PromptRead,
    ReplyEnded,
    ReplyId,
    ReplyProgressed,
    SetCacheBudgets,
    SetGuessing,
    Shutdown,
    StatsSampled,
    StopReply,
    UnloadModel,
)
from inference.config import EngineConfig, SamplingParams
from inference.metrics import EngineStats, RequestMetrics
from inference.request import ChatMessage, PromptPart
from tests.app.fake_engine import make_model_info

REPLY = ReplyId(1)
PART = PromptPart((1, 2), bytes(16))
ALL = [
    LoadModel("/m", EngineConfig()),
    UnloadModel(),
    Generate(
        REPLY,
        "c",
        (ChatMessage("user", "Hi", (1,), PART),),
        SamplingParams(stop=("x",)),
        as_plain_text=True,
        leave_out=True,
        left_out=2,
        keep_on_disk=False,
    ),
    StopReply(REPLY),
    MeasurePrompt(3, (ChatMessage("user", "Hi"),), as_plain_text=True),
    KeepOnlyChats(("c", "d")),
    ForgetChat("c", is_deleted=True),
    ClearCache(),
    SetCacheBudgets(None, 2**30),
    SetGuessing(4, "auto", "/d", can_wait=True),
    FindDrafts(("/a", "/b"), beside="/m"),
    Shutdown(),
    ModelLoading("/m", "Reading the file", 0.5),
    ModelReady(make_model_info(), EngineConfig()),
    ModelFailed("/m", Failure("memory", "Too big.", "Take a smaller one."), True),
    ModelUnloaded(),
    DraftsFound(("/a",)),
    DraftChanged(4, "/d", make_model_info(), Failure("memory", "Too big.")),
    ReplyProgressed(REPLY, "Hi", (1, 2), 3, RequestMetrics(prompt_tokens=3)),
    ReplyEnded(REPLY, "error", RequestMetrics(), Failure("bug", "b"), (1,)),
    PromptRead(REPLY, ((0, PART),), left_out=2),
    PromptMeasured(3, 100, 2048, fits=True),
    CacheCleared(None, 4096),
    StatsSampled(EngineStats(), 1, 2),
]


@pytest.mark.parametrize("value", ALL, ids=lambda value: type(value).__name__)
def test_message_survives_pickling_and_is_frozen(value: object) -> None:
    assert pickle.loads(pickle.dumps(value)) == value
    assert not hasattr(value, "__dict__")
    assert type(value).__dataclass_params__.frozen  # type: ignore[attr-defined]


def test_every_command_and_event_is_in_the_list_above() -> None:
    kinds = {*messages.Command.__args__, *messages.Event.__args__}
    assert {type(value) for value in ALL} == kinds
