"""How replies end over tiny models, and what is shown and kept of them."""

from inference.engine import Engine
from tests.inference.scripted_engine import (
    answer,
    ask,
    eager_greedy,
    greedy,
    id_of,
    scripted_engine,
)
from tests.inference.tiny_engine import make_engine, make_loaded, sampled_ids, shown_text
from tests.inference.tiny_models import make_tokens


def eos_engine(position: int) -> tuple[Engine, list[int], list[int]]:
    """An engine that ends a reply with the token that greedy decoding gives at a position."""
    loaded = make_loaded()
    prompt = make_tokens(9)
    reply = eager_greedy(loaded.module, prompt, position + 1)
    assert reply[position] not in reply[:position]
    return make_engine(make_loaded(eos_ids=[reply[position]])), prompt, reply


def test_end_of_turn_token_stops_and_is_not_in_text_or_kept_ids() -> None:
    engine, prompt, reply = eos_engine(3)
    outputs = answer(engine, ask(prompt))
    assert outputs[-1].finish_reason == "stop"
    assert sampled_ids(outputs) == reply
    assert outputs[-1].reply_token_ids == tuple(reply[:3])
    assert outputs[-1].metrics.completion_tokens == 4


def test_joined_text_is_what_the_kept_ids_decode_to() -> None:
    loaded = make_loaded()
    outputs = answer(make_engine(loaded), ask(make_tokens(9), greedy(40)))
    kept = outputs[-1].reply_token_ids
    assert kept is not None
    sampled = tuple(sampled_ids(outputs))
    assert kept == sampled[: len(kept)]
    assert len(sampled) - len(kept) == 2  # these end inside a character
    assert shown_text(outputs) == loaded.tokenizer.decode(kept)
    assert all(output.reply_token_ids is None for output in outputs[:-1])


def test_text_comes_in_whole_characters() -> None:
    engine, _ = scripted_engine("a€👩‍👩‍👧é")
    outputs = answer(engine, ask([5], greedy(None)))
    assert shown_text(outputs) == "a€👩‍👩‍👧é"
    assert not any("\ufffd" in output.text for output in outputs)
    assert outputs[-1].finish_reason == "stop"


def test_output_tells_when_the_ids_so_far_say_the_text_so_far() -> None:
    engine, _ = scripted_engine("aé👩 ENdb")
    tokenizer = make_loaded().tokenizer
    outputs = answer(engine, ask([5], greedy(None, stop=["END"])))
    told = []
    for end in range(1, len(outputs)):  # the last one brings the end-of-turn token alone
        is_said = tokenizer.decode(sampled_ids(outputs[:end])) == shown_text(outputs[:end])
        assert outputs[end - 1].is_all_shown == is_said
        told.append(is_said)
    # Half of é, the emoji until the space, and what may become the stop string are held back.
    assert told == [True, False, True, *[False] * 4, True, False, False, True, True]


def test_stop_string_over_many_tokens_is_never_shown() -> None:
    engine, runner = scripted_engine("Rome is old. END and more")
    outputs = answer(engine, ask([5], greedy(None, stop=["END"])))
    assert shown_text(outputs) == "Rome is old. "
    assert outputs[-1].finish_reason == "stop"
    assert len(runner.calls) == len("Rome is old. END")
    kept = outputs[-1].reply_token_ids
    assert kept == tuple(id_of(byte) for byte in b"Rome is old. ")


def test_beginning_of_a_stop_string_is_shown_when_it_goes_on_differently() -> None:
    engine, _ = scripted_engine("abcENd")
    outputs = answer(engine, ask([5], greedy(None, stop=["END"])))
    assert [output.text for output in outputs] == ["a", "b", "c", "", "", "ENd", ""]


def test_text_held_back_is_shown_when_the_reply_ends_by_length() -> None:
    engine, _ = scripted_engine("abEN")
    outputs = answer(engine, ask([5], greedy(4, stop=["END"])))
    assert shown_text(outputs) == "abEN"
    assert outputs[-1].finish_reason == "length"


def test_half_a_character_at_the_length_limit_is_not_shown_and_not_kept() -> None:
    engine, _ = scripted_engine("ab€")
    outputs = answer(engine, ask([5], greedy(4)))  # of the euro sign two bytes of three
    assert shown_text(outputs) == "ab"
    assert outputs[-1].finish_reason == "length"
    assert outputs[-1].metrics.completion_tokens == 4
    assert outputs[-1].reply_token_ids == tuple(id_of(byte) for byte in b"ab")


def test_half_a_character_at_the_end_is_not_in_the_kept_ids_of_an_abort() -> None:
    engine, _ = scripted_engine("ab€")
    request_id = engine.add_request(ask([5], greedy(None)))
    shown = [output.text for _ in range(4) for output in engine.step()]
    engine.abort(request_id)
    (last,) = engine.step()
    assert "".join(shown) + last.text == "ab"
    assert last.reply_token_ids == (id_of(ord("a")), id_of(ord("b")))


def test_max_tokens_is_cut_to_the_room_in_the_context() -> None:
    engine = make_engine(context_tokens=32)
    outputs = answer(engine, ask(make_tokens(27), greedy(None)))
    assert len(sampled_ids(outputs)) == 5
    assert outputs[-1].finish_reason == "length"


def test_emoji_of_several_code_points_comes_at_once() -> None:
    engine, _ = scripted_engine("a👩‍👩‍👧b")
    outputs = answer(engine, ask([5], greedy(None)))
    assert [output.text for output in outputs if output.text] == ["a", "👩‍👩‍👧b"]


def test_emoji_that_is_held_back_is_shown_when_the_reply_is_cut() -> None:
    engine, _ = scripted_engine("a👩‍👩‍👧b")
    outputs = answer(engine, ask([5], greedy(1 + 4 + 3)))  # a, the first emoji, its joiner
    assert shown_text(outputs) == "a👩‍"
    assert outputs[-1].finish_reason == "length"
