import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.request import ChatMessage
from inference.text import prompt as prompts
from inference.text.chat_template import ChatTemplate
from inference.text.tokenizer import After, Tokenizer
from inference.text.tokenizer_gguf import tokenizer_from_metadata
from tests.inference import family_templates as families
from tests.inference.prompt_chats import FAMILIES, chat, family_or_starter, unusual_ids
from tests.inference.text_models import family_tokenizer, tiny_sentence_metadata

# ---------------------------------------------------------------- where messages begin


def pieces_of(prompt: prompts.Prompt, tokenizer: Tokenizer) -> list[str]:
    """What stands before the first message, and what belongs to each."""
    borders = [0, *prompt.message_starts, len(prompt.token_ids)]
    assert borders == sorted(borders)
    return [
        tokenizer.decode(prompt.token_ids[start:end], skip_control=False)
        for start, end in itertools.pairwise(borders)
    ]


CHATML_PIECES = [
    "",
    "<|im_start|>system\nBe brief.<|im_end|>\n",
    "<|im_start|>user\nuser <Hi|<|im_end|>\n",
    "<|im_start|>assistant\nHello!<|im_end|>\n",
    "<|im_start|>user\n s<|im_end|>\n<|im_start|>assistant\n",
    "Yes.",
    "<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
]
# As CHATML_PIECES: nothing, system, user, another model's reply, user, a known reply, user.
PIECES = {
    "CHATML": CHATML_PIECES,
    "QWEN3": CHATML_PIECES,
    "STARTER": CHATML_PIECES,
    "LLAMA3": [
        "",
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>",
        "<|start_header_id|>user<|end_header_id|>\n\nuser <Hi|<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>",
        "<|start_header_id|>user<|end_header_id|>\n\ns<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "Yes.",
        "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ],
    "MISTRAL": [
        *("", "<s>[INST] Be brief.", "\n\nuser <Hi| [/INST]", " Hello!</s>"),
        *("[INST]  s [/INST]", "Yes.", "</s>[INST] Bye [/INST]"),
    ],
    "GEMMA": [
        "",
        "<bos><start_of_turn>user\nBe brief.",
        "\n\nuser <Hi|<end_of_turn>\n",
        "<start_of_turn>model\nHello!<end_of_turn>\n",
        "<start_of_turn>user\ns<end_of_turn>\n<start_of_turn>model\n",
        "Yes.",
        "<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
    ],
    "PHI3": [
        "",
        "<|user|>\nBe brief.",
        "\n\nuser <Hi|<|end|>\n",
        "<|assistant|>\nHello!<|end|>\n",
        "<|user|>\n s<|end|>\n<|assistant|>\n",
        "Yes.",
        "<|end|>\n<|user|>\nBye<|end|>\n<|assistant|>\n",
    ],
}


@pytest.mark.parametrize("name", PIECES)
def test_messages_begin_with_their_markup(starter_model_path: Path, name: str) -> None:
    template, tokenizer = family_or_starter(starter_model_path, name)
    messages = chat("s:Be brief.", "u:user <Hi|", "a:Hello!", "u: s", "a:Yes.", "u:Bye")
    ids = tuple(tokenizer.encode_text("Yes.", after="text"))
    messages[4] = ChatMessage("assistant", "Yes.", ids)
    prompt = prompts.build_prompt(messages, template=template, tokenizer=tokenizer)
    start = prompt.message_starts[4]
    assert prompt.token_ids[start : start + len(ids)] == ids
    pieces = pieces_of(prompt, tokenizer)
    # The token that ends a known reply is nobody's; all else is as it would be without ids.
    assert pieces[:5] == PIECES[name][:5]
    assert pieces[5] + pieces[6] == PIECES[name][5] + PIECES[name][6]


def test_first_message_begins_after_what_the_template_says_by_itself(
    starter_model_path: Path,
) -> None:
    template, tokenizer = family_or_starter(starter_model_path, "STARTER")
    prompt = prompts.build_prompt(chat("u:Hi"), template=template, tokenizer=tokenizer)
    assert pieces_of(prompt, tokenizer) == [
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    ]


def test_message_that_is_not_there_begins_where_the_next_one_does(
    starter_model_path: Path,
) -> None:
    tokenizer = family_tokenizer(starter_model_path)
    source = (
        "{% for m in messages %}{% if 'drop' not in m.content %}<|im_start|>{{ m.content }}"
        "<|im_end|>{% endif %}{% endfor %}"
    )
    messages = chat("u:a", "u:drop", "u:b", "a:drop too", "u:drop it")
    messages[3] = ChatMessage("assistant", "drop too", (5, 6))
    prompt = prompts.build_prompt(
        messages, template=ChatTemplate(source, "", ""), tokenizer=tokenizer
    )
    assert prompt.message_starts == (0, 3, 3, 6, 6)
    assert len(prompt.token_ids) == 6
    assert prompt.changed_replies == {3}


def test_messages_are_found_where_the_template_takes_no_marks(starter_model_path: Path) -> None:
    tokenizer = family_tokenizer(starter_model_path)
    one = "<|im_start|>{{ m.content.replace('/think', '').rstrip() }}<|im_end|>"
    template = ChatTemplate("{% for m in messages %}" + one + "{% endfor %}", "", "")
    messages = chat("u:zoo /think", "u:m <", "u:", "u:zoo", "u:t")
    prompt = prompts.build_prompt(messages, template=template, tokenizer=tokenizer)
    # What was cut and what is empty is not found.
    assert pieces_of(prompt, tokenizer) == [
        *("<|im_start|>zoo<|im_end|>", "", "<|im_start|>m <<|im_end|>"),
        *("", "<|im_start|><|im_end|><|im_start|>zoo<|im_end|>", "<|im_start|>t<|im_end|>"),
    ]


def test_messages_are_found_where_the_template_refuses_marks(starter_model_path: Path) -> None:
    tokenizer = family_tokenizer(starter_model_path)
    one = "{% if m.content[-1:] == '\ufdd5' %}{{ raise_exception('odd') }}{% endif %}"
    template = ChatTemplate(
        "{% for m in messages %}" + one + "<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
        "",
        "",
    )
    messages = chat("u:Go", "u:So", "u:Go")
    prompt = prompts.build_prompt(messages, template=template, tokenizer=tokenizer)
    assert pieces_of(prompt, tokenizer) == [
        *("", "<|im_start|>Go<|im_end|>", "<|im_start|>So<|im_end|>", "<|im_start|>Go<|im_end|>"),
    ]


def test_content_that_ends_in_the_middle_of_markup_is_searched(starter_model_path: Path) -> None:
    tokenizer = family_tokenizer(starter_model_path)
    template = ChatTemplate("{% for m in messages %}<{{ m.content }}>{% endfor %}", "", "")
    messages = chat("a:s", "a:b")
    prompt = prompts.build_prompt(messages, template=template, tokenizer=tokenizer)
    assert pieces_of(prompt, tokenizer) == ["", "", "<s><b>"]


def test_plain_messages_begin_with_their_blank_line(starter_model_path: Path) -> None:
    tokenizer = family_tokenizer(starter_model_path, bos="<s>", add_bos_token=True)
    ids = tuple(tokenizer.encode_text("Third.", after="text"))
    messages = [*chat("s:One é", "u:日本 Two"), ChatMessage("assistant", "Third.", ids)]
    prompt = prompts.build_plain_prompt([*messages, *chat("u:Four", "u:5")], tokenizer)
    assert pieces_of(prompt, tokenizer) == [
        *("", "<s>One é", "\n\n日本 Two\n\n", "Third.", "\n\nFour", "\n\n5"),
    ]
    prompt = prompts.build_plain_prompt(messages[2:], tokenizer)
    assert prompt.message_starts == (1,)  # the known ids alone, without the BOS


def test_sentence_vocabulary_has_a_space_that_is_not_in_the_text() -> None:
    pieces = ("▁", "a", "b", "c", "▁a", "é", "<0x0A>")
    tokenizer = tokenizer_from_metadata(tiny_sentence_metadata(pieces), "t.gguf")
    prompt = prompts.build_plain_prompt(chat("u:aé", "u:b", "u:c"), tokenizer)
    assert [tokenizer.vocabulary.piece(n) for n in prompt.token_ids] == [
        *("<s>", "▁a", "é", "<0x0A>", "<0x0A>", "b", "<0x0A>", "<0x0A>", "c"),
    ]
    assert prompt.message_starts == (0, 3, 6)


# ---------------------------------------------------------------- parts


class Spy:
    """Counts what a tokenizer is given to encode."""

    def __init__(self, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: list[str] = []
        encode = tokenizer.encode_text

        def encode_text(text: str, *, after: After = "start") -> list[int]:
            self.texts.append(text)
            return encode(text, after=after)

        monkeypatch.setattr(tokenizer, "encode_text", encode_text)

    def take(self) -> str:
        taken = "|".join(self.texts)
        self.texts.clear()
        return taken


def with_parts(messages: list[ChatMessage], prompt: prompts.Prompt) -> list[ChatMessage]:
    """The messages as they are kept after a turn."""
    kept = list(messages)
    for index, part in prompt.new_parts:
        assert kept[index].role != "assistant"
        kept[index] = replace(kept[index], part=part)
    return kept


def without_parts(messages: list[ChatMessage]) -> list[ChatMessage]:
    return [replace(message, part=None) for message in messages]


@pytest.mark.parametrize("name", ["STARTER", *FAMILIES])
def test_next_turn_tokenises_the_new_message_alone(
    starter_model_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    template, tokenizer = family_or_starter(starter_model_path, name)
    messages = chat("s:Be brief.", "u:The first <one>")
    spy = Spy(tokenizer, monkeypatch)
    for number in range(3):
        prompt = prompts.build_prompt(messages, template=template, tokenizer=tokenizer)
        asked = spy.take()
        assert ("first" in asked) == (number == 0)
        assert ("brief" in asked) == (number == 0)
        assert ("later" in asked) == (number > 0)
        assert [index for index, _ in prompt.new_parts] == [len(messages) - 1]
        cold = prompts.build_prompt(without_parts(messages), template=template, tokenizer=tokenizer)
        assert (cold.token_ids, cold.message_starts) == (prompt.token_ids, prompt.message_starts)
        messages = with_parts(messages, prompt)
        again = prompts.build_prompt(messages, template=template, tokenizer=tokenizer)
        assert again == replace(prompt, new_parts=())
        reply = unusual_ids(tokenizer, f" Reply {number}. ")
        messages += [ChatMessage("assistant", f" Reply {number}. ", reply)]
        messages += chat(f"u:A later one {number}")
        spy.take()


@pytest.mark.parametrize("name", ["STARTER", *FAMILIES])
def test_part_is_all_that_stands_before_a_reply(starter_model_path: Path, name: str) -> None:
    template, tokenizer = family_or_starter(starter_model_path, name)
    messages = [*chat("u:a"), ChatMessage("assistant", "b", (65, 66)), *chat("u:c")]
    prompt = prompts.build_prompt(messages, template=template, tokenizer=tokenizer)
    (first, before), (second, after) = prompt.new_parts
    assert (first, second) == (0, 2)
    assert prompt.token_ids == (*before.token_ids, 65, 66, *after.token_ids)


def test_another_system_prompt_tokenises_the_first_part_alone(
    starter_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    template, tokenizer = family_or_starter(starter_model_path, "CHATML")
    messages = [
        *chat("s:Be brief.", "u:One"),
        ChatMessage("assistant", "b", (65, 66)),
        *chat("u:Two"),
        ChatMessage("assistant", "d", (67, 68)),
        *chat("u:Three"),
    ]
    prompt = prompts.build_prompt(messages, template=template, tokenizer=tokenizer)
    assert [index for index, _ in prompt.new_parts] == [1, 3, 5]
    kept = with_parts(messages, prompt)
    kept[0] = ChatMessage("system", "Be funny.")
    spy = Spy(tokenizer, monkeypatch)
    changed = prompts.build_prompt(kept, template=template, tokenizer=tokenizer)
    assert [index for index, _ in changed.new_parts] == [1]
    assert "Two" not in spy.take()
    cold = prompts.build_prompt(without_parts(kept), template=template, tokenizer=tokenizer)
    assert cold.token_ids == changed.token_ids
    kept[3] = replace(kept[3], content="Four")
    changed = prompts.build_prompt(kept, template=template, tokenizer=tokenizer)
    assert [index for index, _ in changed.new_parts] == [1, 3]


def test_another_template_tokenises_all_parts(starter_model_path: Path) -> None:
    _, tokenizer = family_or_starter(starter_model_path, "CHATML")
    messages = [*chat("u:One"), ChatMessage("assistant", "b", (65, 66)), *chat("u:Two")]
    old = ChatTemplate(families.CHATML, "", "")
    new = ChatTemplate(families.CHATML.replace("<|im_end|>", "<|end|>"), "", "")
    kept = with_parts(messages, prompts.build_prompt(messages, template=old, tokenizer=tokenizer))
    prompt = prompts.build_prompt(kept, template=new, tokenizer=tokenizer)
    assert [index for index, _ in prompt.new_parts] == [0, 2]
    cold = prompts.build_prompt(messages, template=new, tokenizer=tokenizer)
    assert prompt.token_ids == cold.token_ids


def test_part_depends_on_what_stands_before_it(starter_model_path: Path) -> None:
    """A sentence vocabulary begins text after a control token with a space, but not after text."""
    pieces = ("▁", "h", "i", "▁h", "▁hi", "o", "▁o")
    tokenizer = tokenizer_from_metadata(tiny_sentence_metadata(pieces, {"[E]": 3}), "t.gguf")
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", "", "")
    ids = {tokenizer.vocabulary.piece(n): n for n in range(tokenizer.vocab_size)}
    messages = [*chat("u:o"), ChatMessage("assistant", "h", (ids["h"],)), *chat("u:hi")]
    kept = with_parts(
        messages, prompts.build_prompt(messages, template=template, tokenizer=tokenizer)
    )
    kept[1] = ChatMessage("assistant", "h", (ids["h"], ids["[E]"]))
    prompt = prompts.build_prompt(kept, template=template, tokenizer=tokenizer)
    cold = prompts.build_prompt(without_parts(kept), template=template, tokenizer=tokenizer)
    assert prompt.token_ids == cold.token_ids
    assert [index for index, _ in prompt.new_parts] == [2]


@pytest.mark.parametrize("damage", ["control", "visible", "missing", "large"])
def test_part_that_cannot_be_of_the_text_is_made_anew(
    starter_model_path: Path, damage: str
) -> None:
    template, tokenizer = family_or_starter(starter_model_path, "QWEN3")
    messages = chat("u:Hi")
    prompt = prompts.build_prompt(messages, template=template, tokenizer=tokenizer)
    ((_, part),) = prompt.new_parts
    bad = {
        "control": (*part.token_ids, tokenizer.control_tokens["<|im_end|>"]),
        "visible": (*part.token_ids, tokenizer.markup.visible["<think>"]),
        "missing": part.token_ids[1:],
        "large": (*part.token_ids, tokenizer.vocab_size),
    }[damage]
    kept = [replace(messages[0], part=replace(part, token_ids=bad))]
    again = prompts.build_prompt(kept, template=template, tokenizer=tokenizer)
    assert again == prompt


@pytest.mark.parametrize("add_bos", [True, False])
@pytest.mark.parametrize("source", ["", "{{ bos_token }}", "{{ bos_token }}{{ bos_token }}"])
def test_parts_keep_one_bos(starter_model_path: Path, source: str, add_bos: bool) -> None:
    tokenizer = family_tokenizer(starter_model_path, bos="<s>", add_bos_token=add_bos)
    template = ChatTemplate(source + families.CHATML, tokenizer.bos_token, "")
    messages = [*chat("u:a"), ChatMessage("assistant", "b", (65, 66)), *chat("u:c")]
    prompt = prompts.build_prompt(messages, template=template, tokenizer=tokenizer)
    kept = with_parts(messages, prompt)
    again = prompts.build_prompt(kept, template=template, tokenizer=tokenizer)
    assert again == replace(prompt, new_parts=())
    assert again.token_ids.count(tokenizer.control_tokens["<s>"]) == bool(source or add_bos)
    start = again.message_starts[1]
    assert again.token_ids[start : start + 2] == (65, 66)


def test_plain_parts_are_used_again_and_are_not_those_of_a_template(
    starter_model_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = family_tokenizer(starter_model_path, bos="<s>", add_bos_token=True)
    messages = [*chat("u:a"), ChatMessage("assistant", "b", (65, 66)), *chat("u:c")]
    prompt = prompts.build_plain_prompt(messages, tokenizer)
    assert [index for index, _ in prompt.new_parts] == [0, 2]
    kept = with_parts(messages, prompt)
    spy = Spy(tokenizer, monkeypatch)
    assert prompts.build_plain_prompt(kept, tokenizer) == replace(prompt, new_parts=())
    assert spy.take() == ""
    template = ChatTemplate("{{ messages[0].content }}", "", "")
    rendered = prompts.build_prompt(kept[:1], template=template, tokenizer=tokenizer)
    assert [index for index, _ in rendered.new_parts] == [0]


def test_replies_that_the_template_changes_are_named(starter_model_path: Path) -> None:
    template, tokenizer = family_or_starter(starter_model_path, "QWEN3")
    messages = [
        *chat("u:a"),
        ChatMessage("assistant", "<think>\nhm\n</think>\n\nb", (65, 66)),
        *chat("u:c", "a:another model's"),
        *chat("u:d"),
        ChatMessage("assistant", "e", (67,)),
        *chat("u:f"),
    ]
    prompt = prompts.build_prompt(messages, template=template, tokenizer=tokenizer)
    assert prompt.changed_replies == {1}


@pytest.mark.parametrize("name", ["STARTER", *FAMILIES])
def test_any_chat_with_parts_has_the_prompt_without(starter_model_path: Path, name: str) -> None:
    template, tokenizer = family_or_starter(starter_model_path, name)
    text = st.text(st.sampled_from(" \n\tabz09<|>[]/_'é日👍"), max_size=12)
    kinds = st.sampled_from(["known", "thought", "foreign"])
    turns = st.lists(st.tuples(text, kinds, text), min_size=1, max_size=4)

    @settings(max_examples=25, deadline=None)
    @given(st.none() | text, turns, st.integers(0, 3), text)
    def check(
        system: str | None, turns: list[tuple[str, str, str]], edited: int, new_text: str
    ) -> None:
        messages = [] if system is None else [ChatMessage("system", system)]
        for asked, kind, answer in turns:
            messages.append(ChatMessage("user", asked))
            prompt = prompts.build_prompt(messages, template=template, tokenizer=tokenizer)
            messages = with_parts(messages, prompt)
            said = f"<think>x</think>{answer}" if kind == "thought" else answer
            ids = None if kind == "foreign" else tuple(tokenizer.encode_text(said, after="text"))
            messages.append(ChatMessage("assistant", said, ids))
        messages.append(ChatMessage("user", "end"))
        place = edited % len(messages)
        for _ in range(2):
            prompt = prompts.build_prompt(messages, template=template, tokenizer=tokenizer)
            cold = prompts.build_prompt(
                without_parts(messages), template=template, tokenizer=tokenizer
            )
            assert prompt.token_ids == cold.token_ids
            assert prompt.message_starts == cold.message_starts
            assert list(prompt.message_starts) == sorted(prompt.message_starts)
            assert prompt.changed_replies == cold.changed_replies
            messages[place] = replace(messages[place], content=new_text, token_ids=None)

    check()
