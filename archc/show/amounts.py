"""Numbers and lists as a plan says them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

COLUMNS = 100
"""How wide a plan is."""


def in_short(number: float) -> str:
    """`1.62 G`: three digits and a prefix."""
    value, prefixes = float(number), ["", "k", "M", "G", "T", "P"]
    while value >= 999.5 and len(prefixes) > 1:
        value, prefixes = value / 1000, prefixes[1:]
    digits = 0 if prefixes[0] == "" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {prefixes[0]}"


def in_time(seconds: float) -> str:
    """A time with three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e3)):
        if seconds * factor >= 0.1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def percent(share: float) -> str:
    """`28%`."""
    return f"{share:.0%}"


def in_lines(head: str, names: Sequence[str]) -> Iterator[str]:
    """Names in lines below one another."""
    line = head
    for place, name in enumerate(names):
        word = name + ("," if place < len(names) - 1 else "")
        if len(line) + len(word) > COLUMNS:
            yield line.rstrip()
            line = " " * len(head)
        line += f"{word} "
    if names:
        yield line.rstrip()
