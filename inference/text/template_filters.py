"""What each filter and text method of a chat template would make, told beforehand.

Pure Python; engine thread. A check takes the budget and the arguments, raises if the result would
be too big, and returns the arguments, with iterators turned into lists where they were walked.
"""

import operator
from collections.abc import Callable, Iterable, Mapping

from inference.text.template_bounds import Budget

Args = tuple[object, ...]
Check = Callable[[Budget, Args, Mapping[str, object]], Args]

# These only pass elements on: they write no text, so what they are given may be any size.
_PASSING = frozenset(
    {
        *(
            "attr",
            "batch",
            "count",
            "d",
            "default",
            "dictsort",
            "first",
            "groupby",
            "items",
            "last",
        ),
        *("length", "list", "map", "max", "min", "random", "reject", "rejectattr", "reverse"),
        *("select", "selectattr", "slice", "sort", "unique", "abs", "int", "float", "round"),
    }
)


def find_check(filter_name: str) -> Check:
    """The check for a filter or comparing test; any unknown one may write all it is given."""
    if filter_name in _PASSING:
        return _check_widths
    return _CHECKS.get(filter_name, _check_values)


def check_method(budget: Budget, owner: str | bytes | int, name: str, args: Args) -> Args:
    """Check a method of a text or a number."""
    if name == "join" and args:
        args = (_listed(args[0]), *args[1:])
    for value in args:
        budget.check_width(value)
    if isinstance(owner, int):
        return args
    if name in ("format", "format_map") and isinstance(owner, str):
        budget.check_format(owner)
    budget.spend(len(owner) + _growth(budget, owner, name, args))
    return args


def num_elements(value: object) -> int:
    """Length of a text or container; 1 for what has none."""
    return operator.length_hint(value, 1)


def _growth(budget: Budget, owner: str | bytes, name: str, args: Args) -> int:
    """Characters that the method can add to its owner's."""
    if name == "replace" and len(args) >= 2:
        return _num_found(str(owner), args[0]) * budget.size_of(args[1])
    if name == "expandtabs":
        width = args[0] if args and isinstance(args[0], int) else 8
        return len(owner) * abs(width)
    growth = budget.size_of(list(args))
    if name == "join" and args:
        growth += len(owner) * num_elements(args[0])
    return growth


def _num_found(text: str, old: object) -> int:
    return text.count(str(old)) if old else len(text) + 1


def _listed(value: object) -> list[object]:
    if not isinstance(value, Iterable):
        raise TypeError("join needs a list")
    return list(value)


def _check_widths(budget: Budget, args: Args, kwargs: Mapping[str, object]) -> Args:
    budget.tick()
    for value in (*args[1:], *kwargs.values()):
        budget.check_width(value)
    return args


def _check_values(budget: Budget, args: Args, kwargs: Mapping[str, object]) -> Args:
    _check_widths(budget, args, kwargs)
    for value in (*args, *kwargs.values()):
        budget.spend(budget.size_of(value))
    return args


def _check_join(budget: Budget, args: Args, kwargs: Mapping[str, object]) -> Args:
    items = _listed(args[0])
    separator = args[1] if len(args) > 1 else kwargs.get("d", "")
    budget.spend(budget.size_of(items) + len(items) * budget.size_of(separator))
    return (items, *args[1:])


def _check_replace(budget: Budget, args: Args, kwargs: Mapping[str, object]) -> Args:
    _check_values(budget, args, kwargs)
    old = args[1] if len(args) > 1 else kwargs.get("old")
    new = args[2] if len(args) > 2 else kwargs.get("new")
    budget.spend(_num_found(str(args[0]), old) * budget.size_of(new))
    return args


def _check_indent(budget: Budget, args: Args, kwargs: Mapping[str, object]) -> Args:
    _check_values(budget, args, kwargs)
    width = args[1] if len(args) > 1 else kwargs.get("width", 4)
    size = width if isinstance(width, int) else budget.size_of(width)
    budget.spend((str(args[0]).count("\n") + 1) * abs(size))
    return args


def _check_format(budget: Budget, args: Args, kwargs: Mapping[str, object]) -> Args:
    _check_values(budget, args, kwargs)
    budget.check_format(str(args[0]))
    return args


def _check_sum(budget: Budget, args: Args, kwargs: Mapping[str, object]) -> Args:
    start = args[2] if len(args) > 2 else kwargs.get("start", 0)
    if not isinstance(start, (int, float)):
        raise TypeError("sum adds numbers only")
    return _check_widths(budget, args, kwargs)


_CHECKS: dict[str, Check] = {
    "join": _check_join,
    "replace": _check_replace,
    "indent": _check_indent,
    "format": _check_format,
    "sum": _check_sum,
}
