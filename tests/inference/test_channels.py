"""Replies that are written in channels, as gpt-oss writes them."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.request import ChatMessage
from inference.text.chat_template import ChatTemplate
from inference.text.detokenizer import StreamDetokenizer
from inference.text.markup_names import end_ids, without_thoughts
from inference.text.prompt import build_prompt
from inference.text.tokenizer import Tokenizer
from inference.text.tokenizer_gguf import tokenizer_from_metadata
from tests.inference.family_templates import CHANNELS
from tests.inference.prompt_chats import chat
from tests.inference.text_models import tiny_byte_metadata

NAMES = (
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"),
    *("<|constrain|>", "<|endoftext|>"),
)
TOKENIZER = tokenizer_from_metadata(
    tiny_byte_metadata(added=dict.fromkeys(NAMES, 3), eos_token_id=258 + NAMES.index("<|return|>")),
    "channels.gguf",
)
TEMPLATE = ChatTemplate(CHANNELS, "", "<|return|>")
THOUGHT = "<|channel|>analysis<|message|>"
SAID = "<|start|>assistant<|channel|>final<|message|>"


def ids_of(markup: str) -> list[int]:
    return TOKENIZER.encode_markup(markup, after="text")


def stream(tokenizer: Tokenizer, ids: list[int]) -> str:
    detokenizer = StreamDetokenizer(tokenizer)
    return "".join([*map(detokenizer.push, ids), detokenizer.finish()])


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (f"{THOUGHT}hm<|end|>{SAID}Yes.<|return|>", "<think>hm</think>Yes."),
        ("<|channel|>final<|message|>Yes.<|return|>", "Yes."),
        ("<|message|>Yes.", "Yes."),
        ("Yes.", "Yes."),
        (f"{THOUGHT}hm", "<think>hm"),
        (THOUGHT, "<think>"),
        ("<|channel|>anal", ""),
        (f"{THOUGHT}a<|end|><|start|>assistant{THOUGHT}b<|end|>{SAID}c", "<think>a\n\nb</think>c"),
        (
            "<|channel|>commentary to=functions.x <|constrain|>json<|message|>{}<|call|>",
            "<think>{}",
        ),
        (f"<|channel|>commentary<|message|>I look.<|end|>{SAID}c", "<think>I look.</think>c"),
        (f"{THOUGHT}a<|end|><|start|>assistant<|message|>b", "<think>a</think>b"),
        (f"{THOUGHT}a<|end|>{SAID}b<|end|>{SAID}c", "<think>a</think>b\n\nc"),
        (f"<|message|>b<|end|><|start|>assistant{THOUGHT}a", "b\n\na"),
        (f"{THOUGHT}a<|end|>{SAID}<|end|><|start|>assistant{THOUGHT}b", "<think>a</think>\n\nb"),
        (f"{THOUGHT}é👍<|end|>{SAID}é", "<think>é👍</think>é"),
        ("", ""),
    ],
)
def test_channels_are_told_as_thoughts_and_text(written: str, shown: str) -> None:
    ids = ids_of(written)
    assert TOKENIZER.decode(ids) == shown
    assert stream(TOKENIZER, ids) == shown
    assert TOKENIZER.decode(ids, skip_control=False) == written


@settings(max_examples=200)
@given(st.lists(st.sampled_from([*NAMES, "analysis", "final", "é", "👍", " ", "<think>"])))
def test_any_ids_are_streamed_as_they_are_decoded(parts: list[str]) -> None:
    ids = list(itertools.chain.from_iterable(map(ids_of, parts)))
    cut = len(ids) // 2  # and half a reply in itself
    for some in (ids, ids[:cut], ids[cut:]):
        assert stream(TOKENIZER, some) == TOKENIZER.decode(some)


def test_a_message_that_ends_does_not_end_the_reply() -> None:
    ends = {TOKENIZER.vocabulary.piece(token_id) for token_id in TOKENIZER.eos_ids}
    assert ends == {"<|return|>", "<|call|>", "<|endoftext|>"}
    # Of a vocabulary that has no other end it must be one, and Phi 3 ends turns with the same word.
    names = {"<|start|>": 1, "<|channel|>": 2, "<|message|>": 3, "<|end|>": 4}
    assert end_ids(names, [4]) == {4}
    assert end_ids({"<|user|>": 1, "<|end|>": 2, "x": 3}, [None, 4]) == {1, 2, 4}


def test_other_vocabularies_have_no_channels() -> None:
    names = {name: 3 for name in NAMES if name != "<|channel|>"}
    tokenizer = tokenizer_from_metadata(tiny_byte_metadata(added=names), "plain.gguf")
    assert tokenizer.channels is None
    ids = tokenizer.encode_markup("<|start|>analysis<|message|>x")
    assert tokenizer.decode(ids) == stream(tokenizer, ids) == "analysisx"


def test_of_earlier_replies_a_prompt_has_what_was_said() -> None:
    reply = f"{THOUGHT}hm<|end|>{SAID}Yes, <b>.<|return|>"
    answer = ChatMessage(
        "assistant", TOKENIZER.decode(ids_of(reply)), token_ids=tuple(ids_of(reply))
    )
    messages = [*chat("s:Be brief.", "u:Really?"), answer, *chat("u:<|end|>?")]
    prompt = build_prompt(messages, template=TEMPLATE, tokenizer=TOKENIZER)
    expected = [
        *ids_of("<|start|>system<|message|>Reasoning: medium<|end|>"),
        *ids_of("<|start|>system<|message|>Be brief.<|end|><|start|>user<|message|>Really?<|end|>"),
        *ids_of("<|start|>assistant<|channel|>final<|message|>Yes, <b>.<|end|>"),
        *ids_of("<|start|>user<|message|>"),
        *TOKENIZER.encode_text("<|end|>?", after="control"),
        *ids_of("<|end|><|start|>assistant"),
    ]
    assert list(prompt.token_ids) == expected
    assert prompt.changed_replies == {2}
    # The next prompt takes the ids of what was read: nothing is tokenised twice.
    parts = dict(prompt.new_parts)
    kept = [
        ChatMessage(m.role, m.content, m.token_ids, parts.get(n)) for n, m in enumerate(messages)
    ]
    longer = build_prompt(
        [*kept, *chat("a:Well.", "u:So?")], template=TEMPLATE, tokenizer=TOKENIZER
    )
    shared = list(prompt.token_ids)
    assert list(longer.token_ids[: len(shared)]) == shared


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("<think>a</think>b", "b"),
        ("\n<think>a\nb</think>\n\nc", "\n\nc"),
        ("<think>a", ""),
        ("a <think>b</think>", "a <think>b</think>"),
        ("", ""),
    ],
)
def test_text_without_thoughts(text: str, rest: str) -> None:
    assert without_thoughts(text) == rest


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("<|channel|>final<|message|><think> is a tag", "<think> is a tag"),
        (
            "<|channel|>final<|message|><think> is a tag</think> used",
            "<think> is a tag</think> used",
        ),
        (f"{THOUGHT}explain that </think> closes<|end|>{SAID}Use both.", "Use both."),
        (f"{THOUGHT}a<|end|><|start|>assistant{THOUGHT}b<|end|>{SAID}c", "c"),
        (f"{THOUGHT}a<|end|>{SAID}b<|end|>{SAID}c", "b\n\nc"),
        (f"{THOUGHT}a", ""),
    ],
)
def test_what_was_said_is_known_by_ids_whatever_the_text_speaks_of(written: str, said: str) -> None:
    ids = ids_of(written)
    answer = ChatMessage("assistant", TOKENIZER.decode(ids), token_ids=tuple(ids))
    messages = [*chat("u:Hi"), answer, *chat("u:So?")]
    prompt = build_prompt(messages, template=TEMPLATE, tokenizer=TOKENIZER)
    text = TOKENIZER.decode(prompt.token_ids, skip_control=False)
    assert f"{SAID}{said}<|end|><|start|>user<|message|>So?" in text
