"""Numbers in words and figures for people, in the locale's way. Pure but for QLocale."""

from PySide6.QtCore import QLocale


def locale() -> QLocale:
    """The person's; in place of "C", which writes 8192 and not 8,192, American English."""
    chosen = QLocale()
    return QLocale("en_US") if chosen.language() == QLocale.Language.C else chosen


def count(value: int) -> str:
    """A whole number with separators: "8,192"."""
    return locale().toString(value)


def percent(fraction: float) -> str:
    """A fraction as whole percent: "42%"; kept between 0 and 100."""
    return f"{round(min(max(fraction, 0.0), 1.0) * 100)}%"


def gigabytes(value: int) -> str:
    """Bytes as GB (10^9) with one decimal, without the unit: "15.6"."""
    return locale().toString(value / 1e9, "f", 1)


def size(value: int) -> str:
    """Bytes in the unit that suits them (powers of 1,000): "412 MB", "2.0 GB", "6.5 MB", "0 MB"."""
    for unit, factor in (("TB", 10**12), ("GB", 10**9)):
        if value >= 0.9995 * factor:  # what would be written as 1,000 of the next smaller unit
            return f"{locale().toString(value / factor, 'f', 1)} {unit}"
    decimals = 1 if 0 < value < 9.95e6 else 0
    return f"{locale().toString(value / 1e6, 'f', decimals)} MB"


def rate(tokens_per_second: float) -> str:
    """Tokens per second: whole from 10 on, one decimal below."""
    decimals = 0 if tokens_per_second >= 10 else 1
    return locale().toString(tokens_per_second, "f", decimals)


def seconds(milliseconds: float) -> str:
    """A duration as seconds with two decimals below 10 s, else one: "0.21 s"."""
    value = milliseconds / 1000
    return f"{locale().toString(value, 'f', 2 if value < 10 else 1)} s"


def factor(value: float) -> str:
    """A number of times with one decimal: "1.6×"."""
    return f"{locale().toString(value, 'f', 1)}×"
