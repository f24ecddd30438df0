"""The jinja2 environment in which chat templates run. Pure Python; engine thread.

It is what templates on Hugging Face are written for (block trimming, loop controls,
`raise_exception`, `strftime_now`, `tojson` without HTML escapes, the `generation` tag), inside
jinja2's immutable sandbox, with a budget on everything that can grow (see `template_bounds`).
"""

import json
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from typing import NoReturn, cast

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from inference.text.template_bounds import Budget, check_num_bits, check_power, too_much_text
from inference.text.template_filters import check_method, find_check, num_elements
from inference.text.template_instrument import instrument

# Tests that compare, and so walk through both values.
_COMPARING_TESTS = ("eq", "==", "equalto", "ne", "!=", "in", "lt", "le", "gt", "ge")
# No chat needs these, and each blows text up in its own way.
_LEFT_OUT_FILTERS = ("xmlattr", "urlize", "wordwrap", "pprint", "filesizeformat")
_LEFT_OUT_GLOBALS = ("lipsum",)
_MAX_INDENT = 16
_MAX_DATE_FORMAT_CHARS = 256


class TemplateRaisedError(jinja2.TemplateError):
    """The template itself refuses its input, by `raise_exception`."""


class _GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks replies for training; here only its body counts."""

    tags = {"generation"}  # noqa: RUF012  # the name and type that jinja2 expects

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Put the body in place of the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox with a budget.

    Attributes:
        budget: What the rendering under way may still use; a new one for each.
    """

    # Jinja2 asks call_binop for these, and leaves them alone when it folds constants.
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, budget: Budget) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[loopcontrols, _GenerationTag],
            finalize=self._finalized,
            optimized=False,
        )
        self.budget = budget
        for name in _LEFT_OUT_FILTERS:
            self.filters.pop(name, None)
        for name in _LEFT_OUT_GLOBALS:
            self.globals.pop(name, None)
        self.filters["tojson"] = self._to_json
        for name in self.filters:
            self.filters[name] = self._bounded(name, self.filters[name])
        for name in _COMPARING_TESTS:
            self.tests[name] = self._bounded(name, cast("Callable[..., object]", self.tests[name]))
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def compile_bounded(self, source: str) -> jinja2.Template:
        """Compile a template so that its loops, its `~` and its comparisons ask the budget."""
        tree = self.parse(source)
        instrument(tree, self)
        return self.from_string(tree)

    def tick(self, num_chars: int = 0) -> str:
        """Called at each turn of a loop, each call of a macro, and for the template's own text."""
        self.budget.spend(num_chars)
        return ""

    def checked(self, value: object) -> object:
        """The value, if writing it fits the budget."""
        if not isinstance(value, (int, float, Undefined)):
            self.budget.spend(self.budget.size_of(value))
        return value

    def _finalized(self, value: object) -> object:
        return self.checked(value)

    def comparable(self, value: object) -> object:
        """The value, if comparing it comes to an end."""
        self.budget.check_size(value)
        return value

    def joined(self, *parts: object) -> str:
        """What the operator `~` does."""
        return "".join(str(self.checked(part)) for part in parts)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Check an operator that can make something huge, then do it."""
        budget = self.budget
        if operator == "**":
            check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            budget.check_percent_format(left)
            budget.spend(len(left) + budget.size_of(right))
        elif operator == "*":
            self._check_product(left, right)
        elif operator == "+" and not isinstance(left, (int, float)):
            budget.spend(num_elements(left) + num_elements(right))
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: object, *args: object, **kwargs: object) -> object:
        """Check a call that can make something huge, then do it."""
        self.budget.tick()
        method = getattr(function, "__wrapped__", function)  # jinja2 wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, (int, float, bytes)):
            raise TypeError("numbers have no methods in chat templates")
        if isinstance(owner, str):
            args = check_method(self.budget, owner, getattr(method, "__name__", ""), args)
        return super().call(context, function, *args, **kwargs)

    def _check_product(self, left: object, right: object) -> None:
        if isinstance(left, int) and isinstance(right, int):
            check_num_bits(left.bit_length() + right.bit_length())
        elif isinstance(left, int):
            self.budget.spend(max(left, 0) * num_elements(right))
        elif isinstance(right, int):
            self.budget.spend(max(right, 0) * num_elements(left))

    def _bounded(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        """A filter or test that asks the budget first."""
        check = find_check(name)

        @wraps(function)
        def bounded(*args: object, **kwargs: object) -> object:
            given = _without_context(args)
            context = args[: len(args) - len(given)]
            return function(*context, *check(self.budget, given, kwargs), **kwargs)

        return bounded

    def _to_json(
        self,
        value: object,
        ensure_ascii: bool = False,
        indent: int | str | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """JSON as it is, without the escapes for HTML that jinja2's own filter writes."""
        width = indent if isinstance(indent, int) else self.budget.size_of(indent or "")
        if width > _MAX_INDENT:
            raise too_much_text()
        between = self.budget.size_of(separators or ()) + width
        self.budget.spend(self.budget.size_of(value) * (2 + between))
        text = json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )
        return _restored_marks(text) if ensure_ascii else text


def _without_context(args: tuple[object, ...]) -> tuple[object, ...]:
    """The arguments without the context, evaluation context or environment in front."""
    if args and isinstance(args[0], (Context, nodes.EvalContext, jinja2.Environment)):
        return args[1:]
    return args


def _restored_marks(text: str) -> str:
    """JSON in ASCII with the noncharacters that `prompt` puts into contents as themselves."""
    for code in range(0xFDD0, 0xFDF0):
        text = text.replace(f"\\u{code:04x}", chr(code))
    return text


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRaisedError(str(message))


def _strftime_now(pattern: str) -> str:
    """The local date and time, as models like to know it."""
    if len(pattern) > _MAX_DATE_FORMAT_CHARS or any(map(str.isdigit, pattern)):
        raise ValueError("the format of a date is too long")
    return datetime.now().strftime(pattern)
