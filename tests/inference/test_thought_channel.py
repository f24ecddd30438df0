"""Replies with a channel for thoughts, as Gemma 4 writes them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.request import ChatMessage
from inference.text.chat_template import ChatTemplate
from inference.text.detokenizer import StreamDetokenizer
from inference.text.prompt import build_prompt
from inference.text.tokenizer_gguf import tokenizer_from_metadata
from tests.inference.family_templates import THOUGHT_CHANNEL
from tests.inference.prompt_chats import chat
from tests.inference.text_models import tiny_merge_metadata

TOKENIZER = tokenizer_from_metadata(tiny_merge_metadata(), "gemma4.gguf")
TEMPLATE = ChatTemplate(THOUGHT_CHANNEL, "<bos>", "<turn|>")
MARKS = ("<|channel>", "<channel|>", "<|turn>", "<turn|>")


def ids_of(markup: str) -> list[int]:
    return TOKENIZER.encode_markup(markup, after="text")


def stream(ids: list[int]) -> str:
    detokenizer = StreamDetokenizer(TOKENIZER)
    return "".join([*map(detokenizer.push, ids), detokenizer.finish()])


@pytest.mark.parametrize(
    ("written", "shown", "said"),
    [
        ("hello", "hello", "hello"),
        ("<|channel>thought\nhm\n<channel|>hello", "<think>hm\n</think>hello", "hello"),
        ("<|channel>thought\n\n hm<channel|>\nyes", "<think>hm</think>\nyes", "\nyes"),
        ("<|channel>thought\n<channel|>hello", "hello", "hello"),
        ("<|channel>thought<channel|>hello", "hello", "hello"),
        ("<|channel>thought\nhm", "<think>hm", ""),
        ("<|channel>tho", "", ""),
        ("hello<|channel>thought\nhm<channel|>yes", "hello\n\nhm\n\nyes", "helloyes"),
        ("<channel|>hello", "hello", "hello"),
        (" <|channel>thought\nhm<channel|>yes", " <think>hm</think>yes", " yes"),
        ("he<turn|>llo<|turn>", "hello", "hello"),
        ("<|channel>thought\nhm<|turn>o<channel|>yes", "<think>hmo</think>yes", "yes"),
        (
            "<|channel>thought\nhm<channel|>yes<|channel>thought\no<channel|>l",
            "<think>hm</think>yes\n\no\n\nl",
            "yesl",
        ),
        ("<|channel>thought\né👍<channel|>é", "<think>é👍</think>é", "é"),
        ("say <think> and </think>", "say <think> and </think>", "say <think> and </think>"),
    ],
)
def test_the_channel_is_told_as_thoughts(written: str, shown: str, said: str) -> None:
    ids = ids_of(written)
    assert TOKENIZER.decode(ids) == stream(ids) == shown
    assert TOKENIZER.said(ids) == said
    assert TOKENIZER.decode(ids, skip_control=False) == written


@settings(max_examples=200)
@given(st.lists(st.sampled_from([*MARKS, "thought", "\n", "é", "👍", " ", "<think>", "hello"])))
def test_any_ids_are_streamed_as_they_are_decoded(parts: list[str]) -> None:
    ids = list(itertools.chain.from_iterable(map(ids_of, parts)))
    cut = len(ids) // 2  # and half a reply in itself
    for some in (ids, ids[:cut], ids[cut:]):
        assert stream(some) == TOKENIZER.decode(some)


def test_a_reply_without_thoughts_goes_on_as_its_ids() -> None:
    ids = tuple(ids_of("he") + ids_of("llo"))  # not as text would become ids
    assert list(ids) != ids_of("hello")
    messages = [*chat("u:Hi"), ChatMessage("assistant", "hello", token_ids=ids), *chat("u:So?")]
    prompt = build_prompt(messages, template=TEMPLATE, tokenizer=TOKENIZER)
    assert list(prompt.token_ids) == [
        *ids_of("<bos><|turn>user\nHi<turn|>\n<|turn>model\n"),
        *ids,
        *ids_of("<turn|>\n<|turn>user\nSo?<turn|>\n<|turn>model\n"),
    ]
    assert prompt.changed_replies == set()


def test_of_a_reply_with_thoughts_a_prompt_has_what_was_said() -> None:
    ids = tuple(ids_of("<|channel>thought\nhm\n<channel|>hello"))
    answer = ChatMessage("assistant", TOKENIZER.decode(ids), token_ids=ids)
    messages = [*chat("u:Hi"), answer, *chat("u:<turn|>?")]
    prompt = build_prompt(messages, template=TEMPLATE, tokenizer=TOKENIZER)
    assert list(prompt.token_ids) == [
        *ids_of("<bos><|turn>user\nHi<turn|>\n<|turn>model\nhello<turn|>\n<|turn>user\n"),
        *TOKENIZER.encode_text("<turn|>?", after="text"),
        *ids_of("<turn|>\n<|turn>model\n"),
    ]
    assert prompt.changed_replies == {1}


def test_a_vocabulary_with_half_of_the_channel_has_none() -> None:
    names: list[str] = tiny_merge_metadata()["tokenizer.ggml.tokens"]  # type: ignore[assignment]
    names = ["x" if name == "<channel|>" else name for name in names]
    tokenizer = tokenizer_from_metadata(tiny_merge_metadata(tokens=names), "gemma4.gguf")
    assert tokenizer.channels is None
    added = {"<|tool_response>": 4}
    tokenizer = tokenizer_from_metadata(tiny_merge_metadata(added=added), "gemma4.gguf")
    assert tokenizer.control_tokens["<|tool_response>"] in tokenizer.eos_ids


def test_a_reply_without_ids_loses_its_thoughts() -> None:
    messages = chat("u:Hi", "a:<think>hm</think>hello", "u:So?")
    prompt = build_prompt(messages, template=TEMPLATE, tokenizer=TOKENIZER)
    text = TOKENIZER.decode(prompt.token_ids, skip_control=False)
    assert "<|turn>model\nhello<turn|>" in text
