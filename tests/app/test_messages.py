import pickle

import pytest

from app import messages
from app.messages import (
    Failure,
    Generate,
    LoadModel,
    ModelFailed,
    ModelLoading,
    ModelReady,
    ModelUnloaded,
    ReplyEnded,
    ReplyId,
    ReplyProgressed,
    Shutdown,
    StatsSampled,
    StopReply,
    UnloadModel,
)
from inference.config import EngineConfig, SamplingParams
from inference.metrics import EngineStats, RequestMetrics
from inference.request import ChatMessage
from tests.app.fake_engine import make_model_info

REPLY = ReplyId(1)
ALL = [
    LoadModel("/m", EngineConfig()),
    UnloadModel(),
    Generate(REPLY, "c", (ChatMessage("user", "Hi", (1,)),), SamplingParams(stop=("x",)), True),
    StopReply(REPLY),
    Shutdown(),
    ModelLoading("/m", "Reading the file", 0.5),
    ModelReady(make_model_info()),
    ModelFailed("/m", Failure("memory", "Too big.", "Take a smaller one.")),
    ModelUnloaded(),
    ReplyProgressed(REPLY, "Hi", (1, 2), 3, RequestMetrics(prompt_tokens=3)),
    ReplyEnded(REPLY, "error", RequestMetrics(), Failure("bug", "b"), (1,)),
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
