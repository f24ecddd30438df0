"""What goes in and what comes out: values that are checked, frozen, and can be sent anywhere."""

import pickle
from dataclasses import FrozenInstanceError

import pytest

from inference.config import SamplingParams
from inference.errors import ComputeError, InvalidRequestError
from inference.metrics import RequestMetrics
from inference.request import (
    ChatMessage,
    GenerateRequest,
    LoadProgress,
    PromptPart,
    PromptSize,
    RequestId,
    StepOutput,
)


def test_chat_message_list_of_ids_is_kept_as_a_tuple():
    message = ChatMessage("assistant", "Hi", [1, 2])  # type: ignore[arg-type]  # meant
    assert message.token_ids == (1, 2)
    assert hash(message) == hash(ChatMessage("assistant", "Hi", (1, 2)))


@pytest.mark.parametrize("role", ["", "User", "tool", None, 3, ["user"]])
def test_chat_message_unknown_role_is_refused(role):
    with pytest.raises(InvalidRequestError) as caught:
        ChatMessage(role, "Hi")
    assert caught.value.field == "role"
    assert caught.value.reason == f"must be system, user or assistant, not {role!r}."


@pytest.mark.parametrize("content", [None, 3, b"Hi", ["Hi"]])
def test_chat_message_content_that_is_no_text_is_refused(content):
    with pytest.raises(InvalidRequestError) as caught:
        ChatMessage("user", content)
    assert str(caught.value) == f"content: must be text, not {type(content).__name__}."


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        ("12", "must be a list or tuple, not str."),
        (12, "must be a list or tuple, not int."),
        ([1, "2"], "must hold int values, not str."),
        ([1, True], "must hold int values, not bool."),
        ([1.0], "must hold int values, not float."),
    ],
)
def test_token_ids_of_another_type_are_refused(ids, reason):
    with pytest.raises(InvalidRequestError) as caught:
        ChatMessage("assistant", "Hi", ids)
    assert (caught.value.field, caught.value.reason) == ("token_ids", reason)
    with pytest.raises(InvalidRequestError) as caught:
        GenerateRequest("chat", prompt_token_ids=ids)
    assert (caught.value.field, caught.value.reason) == ("prompt_token_ids", reason)


def test_generate_request_lists_are_kept_as_tuples():
    message = ChatMessage("user", "Hi")
    request = GenerateRequest("chat", messages=[message])  # type: ignore[arg-type]  # meant
    assert request.messages == (message,)
    request = GenerateRequest("chat", prompt_token_ids=[3, 4])  # type: ignore[arg-type]  # meant
    assert request.prompt_token_ids == (3, 4)
    assert request.params == SamplingParams()


def test_generate_request_neither_or_both_is_refused():
    with pytest.raises(InvalidRequestError, match="either messages or prompt_token_ids"):
        GenerateRequest("chat")
    with pytest.raises(InvalidRequestError, match="either messages or prompt_token_ids"):
        GenerateRequest("chat", messages=(), prompt_token_ids=(1,))


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ("Hi", "must be a list or tuple, not str."),
        (ChatMessage("user", "Hi"), "must be a list or tuple, not ChatMessage."),
        (["Hi"], "must hold ChatMessage values, not str."),
        ([{"role": "user", "content": "Hi"}], "must hold ChatMessage values, not dict."),
    ],
)
def test_generate_request_messages_of_another_type_are_refused(messages, reason):
    with pytest.raises(InvalidRequestError) as caught:
        GenerateRequest("chat", messages=messages)
    assert (caught.value.field, caught.value.reason) == ("messages", reason)


def test_prompt_part_list_of_ids_is_kept_as_a_tuple():
    part = PromptPart([1, 2], b"d" * 16)  # type: ignore[arg-type]  # meant
    assert part.token_ids == (1, 2)
    assert hash(part) == hash(PromptPart((1, 2), b"d" * 16))


@pytest.mark.parametrize(
    "digest", [b"", b"d" * 15, b"d" * 17, "d" * 16, bytearray(16), None, 16], ids=repr
)
def test_prompt_part_digest_that_is_not_16_bytes_is_refused(digest):
    with pytest.raises(InvalidRequestError) as caught:
        PromptPart((1,), digest)
    assert (caught.value.field, caught.value.reason) == ("digest", "must be 16 bytes.")


@pytest.mark.parametrize("ids", ["12", [1.0], [True], None])
def test_prompt_part_ids_of_another_type_are_refused(ids):
    with pytest.raises(InvalidRequestError) as caught:
        PromptPart(ids, b"d" * 16)
    assert caught.value.field == "token_ids"


def test_request_new_may_be_kept_and_has_left_nothing_out():
    request = GenerateRequest("chat", prompt_token_ids=(1,))
    assert (request.keep_on_disk, request.has_left_out, request.plain_text) == (True, False, False)
    assert ChatMessage("user", "Hi").part is None
    assert StepOutput(RequestId(1)).prompt_parts == ()


VALUES = [
    PromptPart((1, 2), b"d" * 16),
    PromptSize(5, 512, (1, 3)),
    ChatMessage("user", "Hi", part=PromptPart((1, 2), b"d" * 16)),
    ChatMessage("assistant", "Hi", (1, 2)),
    GenerateRequest("chat", prompt_token_ids=(1,), keep_on_disk=False, has_left_out=True),
    GenerateRequest("chat", messages=(ChatMessage("user", "Hi"),), plain_text=True),
    GenerateRequest("chat", prompt_token_ids=(1, 2), params=SamplingParams(temperature=0)),
    StepOutput(RequestId(3), (5,), "Hi", "stop", 7, RequestMetrics(7), reply_token_ids=(5,)),
    LoadProgress("Reading the file", 0.25),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_value_pickled_is_equal(value):
    assert pickle.loads(pickle.dumps(value)) == value


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_value_cannot_be_changed(value):
    with pytest.raises(FrozenInstanceError):
        setattr(value, next(iter(value.__slots__)), None)


def test_step_output_with_an_error_pickled_keeps_it():
    output = StepOutput(RequestId(1), finish_reason="error", error=ComputeError("No.", hint="Go."))
    copy = pickle.loads(pickle.dumps(output))
    assert isinstance(copy.error, ComputeError)
    assert (str(copy.error), copy.error.hint) == ("No.", "Go.")


def test_step_output_new_says_nothing_yet():
    output = StepOutput(RequestId(1))
    assert (output.token_ids, output.text, output.finish_reason) == ((), "", None)
    assert output.metrics == RequestMetrics()
