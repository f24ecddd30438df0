"""Turns of a chat, made by real templates: what was lost, from where, and why."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from inference.kv_cache.disk.trail import Difference, TrailElsewhere
from inference.kv_cache.prefix_search import ChainEnd
from inference.metrics import ReuseStop
from inference.request import ChatMessage
from inference.reuse_reason import why_reuse_stopped
from inference.text.chat_template import ChatTemplate
from inference.text.prompt import Prompt, build_prompt
from inference.text.tokenizer import Tokenizer
from tests.inference.prompt_chats import FAMILIES, family_or_starter
from tests.inference.text_models import family_tokenizer

THINKING = "<think>\nhm\n</think>\n\n"


@dataclass
class Chat:
    """A model that reads all of a chat and keeps all of it."""

    template: ChatTemplate
    tokenizer: Tokenizer
    messages: list[ChatMessage]
    trail: tuple[int, ...] = ()

    def prompt(self) -> Prompt:
        return build_prompt(self.messages, template=self.template, tokenizer=self.tokenizer)

    def answer(self, text: str, *, is_known: bool = True) -> None:
        """The model replies; the message before keeps its part."""
        prompt = self.prompt()
        for index, part in prompt.new_parts:
            self.messages[index] = replace(self.messages[index], part=part)
        ids = tuple(self.tokenizer.encode_text(text, after="text"))
        self.trail = (*prompt.token_ids, *ids)
        self.messages.append(ChatMessage("assistant", text, ids if is_known else None))

    def ask(self, text: str) -> None:
        self.messages.append(ChatMessage("user", text))

    def common(self) -> int:
        pairs = zip(self.prompt().token_ids, self.trail, strict=False)
        same = [a == b for a, b in pairs]
        return same.index(False) if False in same else len(same)

    def why(
        self,
        num_reused: int | None = None,
        *,
        has_trail: bool = True,
        chain_end: ChainEnd = "different_text",
        was_damaged: bool = False,
        has_left_out: bool = False,
        room_tokens: int | None = None,
        other_trails: Sequence[TrailElsewhere] = (),
    ) -> tuple[ReuseStop | None, int | None]:
        """As if all that is the trail's was reused, if nothing else is said."""
        return why_reuse_stopped(
            prompt=self.prompt(),
            messages=self.messages,
            num_reused=self.common() if num_reused is None else num_reused,
            trail=self.trail if has_trail else None,
            chain_end=chain_end,
            was_damaged=was_damaged,
            has_left_out=has_left_out,
            room_tokens=room_tokens,
            other_trails=lambda: other_trails,
        )


def make_chat(path: Path, name: str = "CHATML", *, system: str | None = "Be brief.") -> Chat:
    """Two turns and a third question: messages 1 to 5 without the system prompt."""
    template, tokenizer = family_or_starter(path, name)
    chat = Chat(template, tokenizer, [])
    if system is not None:
        chat.messages.append(ChatMessage("system", system))
    chat.ask("What is the capital of France?")
    chat.answer("It is Paris, as far as I know.")
    chat.ask("And of Italy?")
    chat.answer("Rome is the capital of Italy.")
    chat.ask("And of Spain?")
    return chat


@pytest.mark.parametrize("name", ["STARTER", *FAMILIES])
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_next_turn_edit_and_another_reply_lose_nothing(
    starter_model_path: Path, name: str, system: str | None
) -> None:
    chat = make_chat(starter_model_path, name, system=system)
    assert chat.common() == len(chat.trail)
    assert chat.why() == (None, None)
    assert chat.why(len(chat.trail) - 1) == (None, None)  # its last token was never computed
    chat.answer("Madrid.")
    chat.messages.pop()
    assert chat.why() == (None, None)
    chat.messages[-1] = ChatMessage("user", "And, by the way, of Peru?")
    assert chat.common() < len(chat.trail)
    assert chat.why() == (None, None)


@pytest.mark.parametrize("name", ["STARTER", *FAMILIES])
def test_first_message_and_its_edit_lose_nothing(starter_model_path: Path, name: str) -> None:
    chat = make_chat(starter_model_path, name)
    del chat.messages[2:]
    assert chat.why(0, has_trail=False, chain_end="nothing_cached") == (None, None)
    chat.messages[-1] = ChatMessage("user", "Who are you?")
    assert chat.why() == (None, None)


@pytest.mark.parametrize("name", ["STARTER", *FAMILIES])
def test_rows_that_are_missing_were_not_kept_or_gave_way(
    starter_model_path: Path, name: str
) -> None:
    chat = make_chat(starter_model_path, name)
    starts = chat.prompt().message_starts
    assert chat.why(0, chain_end="nothing_cached") == ("not_kept", 0)
    assert chat.why(starts[1]) == ("not_kept", 1)
    assert chat.why(starts[2], chain_end="evicted") == ("evicted", 2)
    assert chat.why(len(chat.trail) - 2) == ("not_kept", 4)
    assert chat.why(starts[3] + 2, was_damaged=True) == ("damaged", 3)
    assert chat.why(starts[3] + 2, chain_end="damaged") == ("damaged", 3)
    had = len(chat.trail)
    assert chat.why(starts[1], room_tokens=had - 1) == ("no_room", 1)
    assert chat.why(starts[1], room_tokens=had) == ("not_kept", 1)
    assert chat.why(0, has_trail=False, room_tokens=0) == ("no_room", 0)
    assert chat.why(starts[2], chain_end="evicted", room_tokens=0) == ("evicted", 2)


@pytest.mark.parametrize("difference", ["other_precision", "other_computing", "other_weights"])
def test_what_was_read_with_something_else_is_told(
    starter_model_path: Path, difference: Difference
) -> None:
    chat = make_chat(starter_model_path)
    starts = chat.prompt().message_starts
    elsewhere = [
        TrailElsewhere("other_weights", (7, 8)),
        TrailElsewhere(difference, chat.trail),
        TrailElsewhere("other_model", (*chat.trail, 7)),  # its own text, which begins the same
        TrailElsewhere("other_weights", chat.trail[:-1]),
    ]
    assert chat.why(0, has_trail=False, other_trails=elsewhere) == (difference, 0)
    # One turn with this precision, the next with another, and now this one again.
    both_turns = chat.trail
    chat.trail = both_turns[: starts[3]]
    assert chat.why(starts[3] - 1, other_trails=elsewhere) == (difference, 3)
    # Those that say no more than what was reused are no reason, and all that is known comes first.
    shorter = [TrailElsewhere(difference, both_turns[: starts[3] - 1])]
    assert chat.why(starts[3] - 1, other_trails=shorter) == ("not_kept", 3)
    assert chat.why(0, other_trails=elsewhere) == ("not_kept", 0)
    assert chat.why(0, chain_end="evicted", other_trails=elsewhere) == ("evicted", 0)


@pytest.mark.parametrize(
    ("difference", "reason"),
    [
        ("other_computing", "other_computing"),  # the same weights wrote it
        ("other_precision", "other_model"),
        ("other_weights", "other_model"),
        ("other_model", "other_model"),
    ],
)
def test_reply_of_the_same_weights_is_none_of_another_model(
    starter_model_path: Path, difference: Difference, reason: ReuseStop
) -> None:
    chat = make_chat(starter_model_path)
    chat.messages[2] = replace(chat.messages[2], token_ids=None)
    start = chat.prompt().message_starts[2]
    elsewhere = [TrailElsewhere(difference, chat.trail)]
    assert chat.why(start, has_trail=False, other_trails=elsewhere) == (reason, 2)
    begun = [TrailElsewhere(difference, chat.trail[:start])]  # it did not read on either
    assert chat.why(start, has_trail=False, other_trails=begun) == ("other_model", 2)


@pytest.mark.parametrize("name", ["STARTER", *FAMILIES])
@pytest.mark.parametrize("is_first", [True, False])
def test_message_that_was_read_without_a_reply_is_no_new_one(
    starter_model_path: Path, name: str, is_first: bool
) -> None:
    """It was broken off while the message was read, and the person went on."""
    chat = make_chat(starter_model_path, name)
    if is_first:
        del chat.messages[2:]
        chat.trail = ()
    unread = chat.prompt()
    for index, part in unread.new_parts:
        chat.messages[index] = replace(chat.messages[index], part=part)
    last = len(chat.messages) - 1
    at = unread.message_starts[last] + 2
    before = chat.common()
    chat.ask("Are you there?")
    # What closes the reply before is read again too, but that was never read before.
    place = 0 if is_first else last
    # A program was killed: of what it had read nothing is known but that it was read.
    assert chat.why(before) == ("not_kept", place)
    assert chat.why(before, was_damaged=True) == ("damaged", place)
    # It was broken off in the middle, and what was read was kept.
    chat.trail = unread.token_ids[:at]
    assert chat.why(at) == (None, None)
    assert chat.why(at - 2) == ("not_kept", last)
    # Before it was read there is no part.
    chat.messages[last] = replace(chat.messages[last], part=None)
    chat.trail = unread.token_ids[:before]
    assert chat.why(before) == (None, None)


@pytest.mark.parametrize("name", ["STARTER", *FAMILIES])
def test_chat_of_which_nothing_is_known_was_not_kept(starter_model_path: Path, name: str) -> None:
    chat = make_chat(starter_model_path, name)
    starts = chat.prompt().message_starts
    assert chat.why(0, has_trail=False, chain_end="nothing_cached") == ("not_kept", 0)
    assert chat.why(starts[1], has_trail=False) == ("not_kept", 1)
    assert chat.why(starts[1], has_trail=False, chain_end="evicted") == ("evicted", 1)
    bare = make_chat(starter_model_path, name, system=None)
    first = 0 if name == "STARTER" else 1  # the template has a system prompt of its own
    assert bare.why(0, has_trail=False) == ("not_kept", first)


@pytest.mark.parametrize("name", ["STARTER", *FAMILIES])
@pytest.mark.parametrize(
    ("before", "after"),
    [("Be brief.", "Be funny."), ("Be brief.", None), (None, "Be brief."), ("a b c", "a b c d")],
)
def test_another_system_prompt_is_told(
    starter_model_path: Path, name: str, before: str | None, after: str | None
) -> None:
    chat = make_chat(starter_model_path, name, system=before)
    if before is not None:
        chat.messages.pop(0)
    if after is not None:
        chat.messages.insert(0, ChatMessage("system", after))
    assert chat.why() == ("system_prompt", 0)
    if after is not None:
        # Another chat has the new one.
        starts = chat.prompt().message_starts
        assert chat.why(starts[1]) == ("system_prompt", 0)
        # This one had it once, and the model knows that branch's first turn.
        assert chat.why(starts[3]) == ("system_prompt", 3)
        assert chat.why(starts[3] - 1) == (
            "system_prompt",
            3,
        )  # all of the reply but what closes it


@pytest.mark.parametrize("name", ["STARTER", "CHATML", "LLAMA3", "QWEN3"])
def test_system_prompt_that_is_gone_is_told_without_parts(
    starter_model_path: Path, name: str
) -> None:
    chat = make_chat(starter_model_path, name)
    chat.messages = [replace(message, part=None) for message in chat.messages[1:]]
    assert chat.why() == ("system_prompt", 0)


@pytest.mark.parametrize("name", ["STARTER", *FAMILIES])
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_messages_left_out_are_told(
    starter_model_path: Path, name: str, system: str | None
) -> None:
    chat = make_chat(starter_model_path, name, system=system)
    first = 0 if system is None else 1
    del chat.messages[first : first + 2]
    assert chat.why(has_left_out=True) == ("left_out", 1)
    chat.answer("Madrid.")
    chat.ask("And of Portugal?")
    assert chat.why(has_left_out=True) == (None, None)  # the same as last time


def test_thoughts_that_the_template_drops_are_told(starter_model_path: Path) -> None:
    chat = make_chat(starter_model_path, "QWEN3")
    chat.answer(THINKING + "Madrid is.")
    chat.ask("And of Portugal?")
    assert 6 in chat.prompt().changed_replies
    assert chat.why() == ("template", 6)
    # The next turn has the text without thoughts where the model read it.
    chat.answer("Lisbon.")
    chat.ask("Thanks.")
    assert chat.why() == (None, None)
    assert chat.why(0, has_trail=False) == ("not_kept", 0)


def test_thoughts_of_the_first_reply_are_told(starter_model_path: Path) -> None:
    chat = make_chat(starter_model_path, "QWEN3", system=None)
    del chat.messages[1:]
    chat.answer(THINKING + "Paris.")
    chat.ask("Thanks.")
    assert chat.why() == ("template", 2)
    prompt = chat.prompt()
    assert chat.why(prompt.message_starts[1], has_trail=False) == ("template", 2)
    assert chat.why(0, has_trail=False) == ("not_kept", 1)


def test_message_that_the_template_writes_otherwise_is_told(starter_model_path: Path) -> None:
    """As some do: the system prompt stands in the last message."""
    tokenizer = family_tokenizer(starter_model_path)
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}[INST]{% if loop.last %}"
        "{{ messages[0].content }}\n\n{% endif %}{{ m.content }}[/INST]{% elif loop.index0 %}"
        "{{ m.content }}</s>{% endif %}{% endfor %}"
    )
    chat = Chat(ChatTemplate(source, "", "</s>"), tokenizer, [ChatMessage("system", "Be brief.")])
    chat.ask("Hi")
    chat.answer("Hello!")
    chat.ask("Bye")
    assert chat.why() == ("template", 1)
    chat.answer("See you.")
    chat.ask("Wait")
    assert chat.why() == ("template", 3)


def test_reply_of_another_model_is_told(starter_model_path: Path) -> None:
    chat = make_chat(starter_model_path)
    chat.messages.append(ChatMessage("assistant", "Madrid, says another model."))
    chat.ask("And of Portugal?")
    assert chat.why() == ("other_model", 6)
    assert chat.why(len(chat.trail) - 1) == ("other_model", 6)
    chat.answer("Lisbon.")
    chat.ask("Thanks.")
    assert chat.why() == (None, None)
    assert chat.why(0, has_trail=False) == ("not_kept", 0)


def test_chat_of_another_model_is_told(starter_model_path: Path) -> None:
    chat = make_chat(starter_model_path)
    chat.messages = [ChatMessage(m.role, m.content) for m in chat.messages]
    assert chat.why(0, has_trail=False, chain_end="nothing_cached") == ("other_model", 0)
    starts = chat.prompt().message_starts
    # Another chat begins the same.
    assert chat.why(starts[1], has_trail=False) == ("other_model", 0)
    assert chat.why(starts[3], has_trail=False) == ("other_model", 4)


def test_earlier_message_that_was_edited_is_told(starter_model_path: Path) -> None:
    chat = make_chat(starter_model_path)
    chat.messages[3] = ChatMessage("user", "And of Germany?")
    assert chat.why() == ("edited", 3)
    chat.messages[1] = ChatMessage("user", "Where is Paris?")
    assert chat.why() == ("edited", 1)


def test_older_branch_loses_nothing_or_gave_way(starter_model_path: Path) -> None:
    chat = make_chat(starter_model_path)
    older = list(chat.messages)
    del chat.messages[3:]
    chat.ask("Is it big?")
    chat.answer("Quite.")
    chat.messages = older
    prompt = chat.prompt()
    end = prompt.message_starts[4] + len(chat.messages[4].token_ids or ())
    assert chat.common() < end
    assert chat.why(end) == (None, None)
    assert chat.why(end - 1) == (None, None)
    assert chat.why(end - 2) == ("not_kept", 4)
    assert chat.why() == ("not_kept", 3)
    assert chat.why(chain_end="evicted") == ("evicted", 3)
    assert chat.why(was_damaged=True) == ("damaged", 3)


def judge_ids(num_reused: int, trail: Sequence[int] | None) -> tuple[ReuseStop | None, int | None]:
    return why_reuse_stopped(
        prompt=Prompt((1, 2, 3, 4, 5)),
        messages=None,
        num_reused=num_reused,
        trail=trail,
        chain_end="nothing_cached",
        was_damaged=False,
        has_left_out=False,
    )


@pytest.mark.parametrize(
    ("num_reused", "trail", "reason"),
    [
        (0, None, None),
        (0, (), None),
        (0, (9, 2), None),
        (4, (1, 2, 3, 4, 5, 6), None),
        (3, (1, 2, 3, 4, 5, 6), "not_kept"),
        (1, (1, 2, 9), None),
        (0, (1, 2, 9), "not_kept"),
    ],
)
def test_ready_ids_are_compared_with_the_trail(
    num_reused: int, trail: tuple[int, ...] | None, reason: ReuseStop | None
) -> None:
    assert judge_ids(num_reused, trail) == (reason, None)


@pytest.mark.parametrize(
    ("trail", "found"),
    [
        ((5, 3, 3, 1), ("system_prompt", 0)),  # the first message is further on
        ((5, 3, 3, 3), ("edited", 1)),
        ((5, 256, 0, 3), ("edited", 1)),  # the bytes of 1, but across two ids
    ],
)
def test_first_message_is_looked_for_in_the_trail(
    trail: tuple[int, ...], found: tuple[ReuseStop, int]
) -> None:
    messages = (
        *(ChatMessage("user", "a"), ChatMessage("assistant", "b", (7, 8, 9))),
        ChatMessage("user", "c"),
    )
    assert found == why_reuse_stopped(
        prompt=Prompt((5, 1, 7, 8, 9, 6), message_starts=(0, 2, 5)),
        messages=messages,
        num_reused=1,
        trail=trail,
        chain_end="different_text",
        was_damaged=False,
        has_left_out=False,
    )


def test_prompt_that_a_person_lets_go_on_from_a_reply_loses_nothing(
    starter_model_path: Path,
) -> None:
    chat = make_chat(starter_model_path)
    chat.messages.append(ChatMessage("assistant", "It is"))
    assert chat.why() == (None, None)
