"""Names that blocks hand on: what a turn, or a way of a branch, ends with."""

from __future__ import annotations

import re
from collections.abc import Sequence


def in_turn(changed: Sequence[tuple[str, str]], indent: str) -> list[str]:
    """A line for each of some names that change, if none reads what one before it has changed."""
    known = [{*re.findall(r"\w+", new)} for _, new in changed]
    if any(old in words for at, (old, _) in enumerate(changed) for words in known[at + 1 :]):
        return []
    return [f"{indent}{old} = {new}" for old, new in changed]


def goes_on(lines: list[str], indent: str, old: str, new: str, yields: Sequence[str]) -> bool:
    """Whether the line of a block that makes what a turn ends with can give it the name that the
    next turn has for it, which it then does: no line after it reads what the name stood for."""
    begin, known = f"{indent}{new} = ", [{*re.findall(r"\w+", line)} for line in lines]
    places = [at for at, words in enumerate(known) if new in words]
    ends = [{*re.findall(r"\w+", each)} for each in yields]
    if len(places) != 1 or sum(new in each for each in ends) > 1 or any(old in e for e in ends):
        return False
    (at,) = places
    if not lines[at].startswith(begin) or any(old in words for words in known[at + 1 :]):
        return False
    lines[at] = f"{indent}{old} = {lines[at].removeprefix(begin)}"
    return True
