"""What each filter and text method of a chat template would make, told beforehand.

Pure Python; engine thread. A check takes the budget and the arguments, raises if the result would
be too big, and returns the arguments, with iterators turned into lists where they were walked.
"""

import operator
from collections.abc import Callable, Iterable, Mapping

from inference.text.template_bounds import Budget, too_much_text

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
        *("select", "selectattr", "sort", "unique", "abs", "int", "float"),
    }
)

# The methods of text that templates may call. Others make huge results from small ones
# (`translate`), or bytes, of which a chat has no need.
_TEXT_METHODS = frozenset(
    {
        *("capitalize", "casefold", "center", "count", "endswith", "expandtabs", "find", "format"),
        *("format_map", "index", "join", "ljust", "lower", "lstrip", "partition", "removeprefix"),
        *("removesuffix", "replace", "rfind", "rindex", "rjust", "rpartition", "rsplit", "rstrip"),
        *("split", "splitlines", "startswith", "strip", "swapcase", "title", "upper", "zfill"),
    }
)
_MAX_STRIPPED_CHARS = 1000  # stripping takes the product of both lengths


def find_check(filter_name: str) -> Check:
    """The check for a filter or comparing test; any unknown one may write all it is given."""
    if filter_name in _PASSING:
        return _pass_on
    return _CHECKS.get(filter_name, _check_values)


def check_method(budget: Budget, owner: str, name: str, args: Args) -> Args:
    """Check a method of a text."""
    if name not in _TEXT_METHODS and not name.startswith("is"):
        raise TypeError(f"text has no method {name!r} in chat templates")
    if name == "join" and args:
        args = (_listed(args[0]), *args[1:])
    for value in args:
        budget.check_width(value)
    if name in ("format", "format_map"):
        budget.check_brace_format(owner)
    if "strip" in name:
        _check_stripped(args)
    budget.spend(len(owner) + _growth(budget, owner, name, args))
    return args


def _check_stripped(args: Args) -> None:
    if args and isinstance(args[0], str) and len(args[0]) > _MAX_STRIPPED_CHARS:
        raise too_much_text()


def num_elements(value: object) -> int:
    """Length of a text or container; 1 for what has none."""
    return operator.length_hint(value, 1)


def _growth(budget: Budget, owner: str, name: str, args: Args) -> int:
    """Characters that the method can add to its owner's."""
    if name == "replace" and len(args) >= 2:
        return _num_found(owner, args[0]) * budget.size_of(args[1])
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


def _pass_on(budget: Budget, args: Args, kwargs: Mapping[str, object]) -> Args:
    budget.tick()
    return args


def _check_counts(budget: Budget, args: Args, kwargs: Mapping[str, object]) -> Args:
    for value in (*args[1:], *kwargs.values()):
        budget.check_count(value)
    return _pass_on(budget, args, kwargs)


def _check_trim(budget: Budget, args: Args, kwargs: Mapping[str, object]) -> Args:
    _check_stripped((*args[1:], *kwargs.values()))
    return _check_values(budget, args, kwargs)


def _check_values(budget: Budget, args: Args, kwargs: Mapping[str, object]) -> Args:
    for value in (*args[1:], *kwargs.values()):
        budget.check_width(value)
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
    budget.check_percent_format(str(args[0]))
    return args


def _check_sum(budget: Budget, args: Args, kwargs: Mapping[str, object]) -> Args:
    start = args[2] if len(args) > 2 else kwargs.get("start", 0)
    if not isinstance(start, (int, float)):
        raise TypeError("sum adds numbers only")
    return _pass_on(budget, args, kwargs)


_CHECKS: dict[str, Check] = {
    "join": _check_join,
    "replace": _check_replace,
    "indent": _check_indent,
    "format": _check_format,
    "sum": _check_sum,
    "trim": _check_trim,
    "batch": _check_counts,
    "slice": _check_counts,
    "round": _check_counts,
}
