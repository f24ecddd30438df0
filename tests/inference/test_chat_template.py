import re
import time

import pytest

from inference.errors import ChatTemplateError
from inference.request import ChatMessage
from inference.text.chat_template import ChatTemplate
from inference.text.message_shape import MessageShape
from inference.text.template_bounds import Budget, TemplateBoundsError
from tests.inference import family_templates as families


def make(source: str, **bounds: float) -> ChatTemplate:
    return ChatTemplate(source, "<bos>", "</s>", **bounds)


def chat(*turns: str) -> list[ChatMessage]:
    roles = {"s": "system", "u": "user", "a": "assistant"}
    return [ChatMessage(roles[turn[0]], turn[2:]) for turn in turns]  # type: ignore[arg-type]


def test_render_chatml() -> None:
    assert make(families.CHATML).render(chat("s:Be.", "u:Hi")) == (
        "<|im_start|>system\nBe.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_render_without_generation_prompt_ends_with_the_last_message() -> None:
    text = make(families.CHATML).render(chat("u:Hi"), add_generation_prompt=False)
    assert text == "<|im_start|>user\nHi<|im_end|>\n"


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("CHATML", MessageShape()),
        ("LLAMA3", MessageShape()),
        ("QWEN3", MessageShape()),
        ("MISTRAL", MessageShape.strictest(as_parts=False)),
        ("GEMMA", MessageShape.strictest(as_parts=False)),
        ("PHI3", MessageShape(takes_system=False, takes_late_system=False)),
        ("PARTS", MessageShape(as_parts=True)),
    ],
)
def test_shape_of_each_family_is_found(name: str, shape: MessageShape) -> None:
    assert make(getattr(families, name)).shape == shape


def test_refused_system_message_is_merged_into_the_first_user_message() -> None:
    text = make(families.GEMMA).render(chat("s:Be brief.", "u:Hi"))
    assert text == (
        "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\n"
    )


def test_silently_dropped_system_message_is_noticed_and_merged() -> None:
    text = make(families.PHI3).render(chat("s:Be brief.", "u:Hi"))
    assert text == "<|user|>\nBe brief.\n\nHi<|end|>\n<|assistant|>\n"


def test_refused_second_turn_of_one_role_is_merged() -> None:
    text = make(families.MISTRAL).render(chat("u:A", "u:B", "a:C", "a:D", "u:E"))
    assert text == "<bos>[INST] A\n\nB [/INST] C\n\nD</s>[INST] E [/INST]"


def test_conversation_that_the_assistant_begins_still_renders() -> None:
    text = make(families.MISTRAL).render(chat("a:Welcome!", "u:Hi"))
    assert text == "<bos>[INST]  [/INST] Welcome!</s>[INST] Hi [/INST]"


def test_contents_as_parts_where_the_template_needs_them() -> None:
    text = make(families.PARTS).render(chat("u:Hi"))
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_template_that_fails_only_in_the_real_conversation_gets_merged_messages() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' and messages | length > 2 and "
        "messages[2].role == 'assistant' %}{{ raise_exception('no') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    template = make(source)
    assert template.shape.takes_system
    assert template.render(chat("s:S", "u:Q", "a:A", "u:R")) == "[user]S\n\nQ[assistant]A[user]R"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for m in messages %}", "faulty: Unexpected end of template"),
        ("{{ messages | nofilter }}", "No filter named 'nofilter'"),
        ("{% unknown %}", "unknown tag 'unknown'"),
    ],
)
def test_broken_source_is_a_readable_error(source: str, reason: str) -> None:
    with pytest.raises(ChatTemplateError, match=re.escape(reason)) as raised:
        make(source)
    assert raised.value.hint


def test_too_long_source_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ChatTemplateError, match="200,001 characters"):
        make("x" * 200_001)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('No chats today') }}", "refuses this conversation: No chats today"),
        ("{{ messages[0].content.nope.nope }}", "faulty: "),
        ("{{ 1 // 0 }}", "zero"),
        ("{{ messages['x'].y }}", "faulty"),
        ("{{ messages + 3 }}", "faulty"),
        ("{{ [1][9].x }}", "faulty"),
        ("{{ 'a'.join(3) }}", "join needs a list"),
        ("{{ [1] | sum(start=[]) }}", "sum adds numbers only"),
        ("{% include 'x' %}", "no loader"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "faulty"),
        ("{{ messages.clear() }}", "unsafe"),
        ("{{ '%(x)s' % 3 }}", "faulty"),
        ("{% set x = cycler() %}", "faulty"),
        ("{{ 'x'.translate({120: 'y'}) }}", "no method 'translate'"),
        ("{{ 'x'.encode() }}", "no method 'encode'"),
        ("{{ (1).to_bytes(9, 'big') }}", "numbers have no methods"),
        ("{{ strftime_now('%99999d') }}", "format of a date"),
        ("{{ 9 ** (9 ** 9) }}", "a number that is too big"),
        ("{{ 'x'.center() }}", "faulty"),
    ],
)
def test_failure_while_rendering_is_a_readable_error(source: str, reason: str) -> None:
    template = make(source)
    with pytest.raises(ChatTemplateError, match=reason) as raised:
        template.render(chat("u:Hi"))
    assert raised.value.hint
    assert "\n" not in str(raised.value)


def test_template_works_again_after_a_failure() -> None:
    template = make(
        "{% if 'boom' in messages[-1].content %}{{ 1 // 0 }}{% endif %}{{ messages[-1].content }}"
    )
    with pytest.raises(ChatTemplateError):
        template.render(chat("u:boom"))
    assert template.render(chat("u:Hi")) == "Hi"


ENDLESS = [
    "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
    "{% for a in range(90000) %}{% for b in range(90000) %}{% set x = a %}{% endfor %}{% endfor %}",
    "{% macro m(n) %}{% for i in range(2) %}{{ m(n + 1) }}{% endfor %}{% endmacro %}{{ m(0) }}",
    "{% macro m(n) %}{% if n < 60 %}{{ m(n + 1) }}{{ m(n + 1) }}{% endif %}{% endmacro %}{{ m(0) }}",
    "{% for a in range(90000) %}{% for b in range(90000) if b < 0 %}{% endfor %}{% endfor %}",
    "{% for a in range(90000) %}{% if 'x' in range(90000) | list %}{% endif %}{% endfor %}",
    "{% for a in range(90000) %}{{ range(90000) | map('string') | join | length }}{% endfor %}",
]


def test_time_in_which_others_had_the_machine_does_not_count() -> None:
    budget = Budget(0.05, 1000)
    time.sleep(0.1)
    budget.tick()
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        pass
    with pytest.raises(TemplateBoundsError):
        budget.tick()


@pytest.mark.parametrize("source", ENDLESS)
def test_endless_template_is_stopped_in_time(source: str) -> None:
    template = make(source, max_seconds=0.1)
    start = time.process_time()
    with pytest.raises(ChatTemplateError, match=r"took longer|without end|too much"):
        template._render(chat("u:Hi"), True, as_parts=False)
    assert time.process_time() - start < 1.0


def test_endless_template_is_tried_only_once() -> None:
    template = make(ENDLESS[0], max_seconds=0.2)
    start = time.process_time()
    with pytest.raises(ChatTemplateError, match=r"took longer than 0\.2 s"):
        template.render(chat("s:S", "u:Hi"))
    assert time.process_time() - start < 0.4


HUGE = [
    "{{ 'x' * 10000000000 }}",
    "{{ 10000000000 * 'x' }}",
    "{{ [0] * 10000000000 }}",
    "{{ 'x'.center(10000000000) }}",
    "{{ 'x' | center(10000000000) }}",
    "{{ 'x'.ljust(10000000000) }}",
    "{{ 'x'.zfill(10000000000) }}",
    "{{ 'x' | indent(10000000000, true) }}",
    "{{ '%09999999999d' % 1 }}",
    "{{ '%*d' % (9999999999, 1) }}",
    "{{ '{:09999999999d}'.format(1) }}",
    "{{ '{:{}}'.format(1, 9999999999) }}",
    "{{ '%09999999999d' | format(1) }}",
    "{{ '{0:>{1}}'.format('x', '9999999999') }}",
    "{{ range(9) | slice(9999999) | list }}",
    "{{ 1.5 | round(9999999) }}",
    "{{ ('a' * 1000000).strip('b' * 1000000) }}",
    "{{ ('a' * 1000000) | trim('b' * 1000000) }}",
    "{{ [1, 2] | tojson(separators=('x' * 9000000, ':')) }}",
    "{{ [1, 2] | tojson(indent='x' * 9000) }}",
    "{% for a in range(90000) %}" + "own text " * 1000 + "{% endfor %}",
    "{% set x %}{% for a in range(90000) %}" + "own text " * 1000 + "{% endfor %}{% endset %}",
    "{{ [1] | tojson(indent=9999999999) }}",
    "{{ ('\\t' * 9000).expandtabs(9000) }}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x.join([ns.x, ns.x]) %}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('x', 'xxxxxxxxx') %}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x | replace('x', 'xxxxxxxxx') %}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('', ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = '{0}{0}'.format(ns.x) %}{% endfor %}",
    "{% set ns = namespace(x='x\\nx') %}{% for i in range(60) %}{% set ns.x = ns.x | indent(ns.x) %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | string }}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x ~ '' }}",
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x is eq ns.y }}",
    "{% for a in range(90000) %}{{ 'some text to repeat ' * 100 }}{% endfor %}",
]


@pytest.mark.parametrize("source", HUGE)
def test_huge_result_is_refused_before_it_is_made(source: str) -> None:
    template = make(source)
    start = time.process_time()
    with pytest.raises(ChatTemplateError, match=r"too much|too wide|too big"):
        template._render(chat("u:Hi"), True, as_parts=False)
    assert time.process_time() - start < 1.5


@pytest.mark.parametrize("source", ["{{ 'x' * 10 ** 11 }}", "{{ 10 ** 10 ** 10 }}"])
def test_constants_are_not_folded_while_compiling(source: str) -> None:
    start = time.process_time()
    make(source)
    assert time.process_time() - start < 0.5


def test_deep_nesting_is_a_readable_error() -> None:
    with pytest.raises(ChatTemplateError):
        make("{% if a %}" * 500 + "{% endif %}" * 500).render(chat("u:Hi"))


def test_long_conversation_renders_within_the_bounds() -> None:
    messages = [
        ChatMessage("user" if n % 2 == 0 else "assistant", "word " * 500) for n in range(801)
    ]
    text = make(families.LLAMA3).render(messages)
    assert text.count("word") == 801 * 500


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ {'a': '<b>ü'} | tojson }}", '{"a": "<b>ü"}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }}", '{"a": 2, "b": 1}'),
        ("{{ '\ufdd0ü' | tojson(ensure_ascii=true) }}", '"\ufdd0\\u00fc"'),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hi"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ tools is none }} {{ documents is none }}", "True True"),
        ("{{ nothing_like_it }}x", "x"),
        ("{{ messages | selectattr('role', 'eq', 'user') | list | length }}", "1"),
        ("{{ messages | map(attribute='content') | join(', ') | upper }}", "HI"),
        ("{{ ' a ' | trim ~ 1 ~ none }}", "a1None"),
        ("{{ '%s-%02d' % ('a', 7) }} {{ '{}'.format(3) }}", "a-07 3"),
        (
            "{{ 2 ** 10 }} {{ 3 * 4 }} {{ [1] + [2] }} {{ 7 % 4 }} {{ 'ab' * 2 }}",
            "1024 12 [1, 2] 3 abab",
        ),
        ("{{ 'a.b'.split('.')[-1].replace('b', 'c') }}", "c"),
        (
            "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
            "1",
        ),
        ("  {% if true %}\n  yes\n  {% endif %}\n", "  yes\n"),
        ("{{ 'x\ny' | indent(2) }}", "x\n  y"),
        ("{{ 'abc' | indent(width='> ', first=true) }}", "> abc"),
        ("{{ [1, 2] | join('-') }} {{ [1, 2, 3] | sum }}", "1-2 6"),
        ("{{ 3 * 'x' }} {{ 2.5 * 2 }} {{ 2.0 ** 2 }}", "xxx 5.0 4.0"),
        ("{{ '%s|%s' | format(1, 'b') }} {{ 'aXbX' | replace('X', '-') }}", "1|b a-b-"),
        ("{{ 'ab'.join(['1', '2']) }} {{ 'a\\tb'.expandtabs(4) }}", "1ab2 a   b"),
        ("{{ '**{}** {{{}}}: 123456'.format(1, 2) }}", "**1** {2}: 123456"),
        ("{{ '%d%% **123456** %s' % (5, 'x') }}", "5% **123456** x"),
        (
            "{{ 'xax'.strip('x') }} {{ 'Ab'.isalpha() }} {{ nope | default(99999999) }}",
            "a True 99999999",
        ),
        ("{{ range(5) | batch(2) | list | length }} {{ 1.26 | round(1) }}", "3 1.3"),
        ("{{ 'x' if messages[0].role != 'user' else bos_token + eos_token }}", "<bos></s>"),
    ],
)
def test_what_templates_use_works(source: str, text: str) -> None:
    assert make(source)._render(chat("u:Hi"), True, as_parts=False) == text
