"""Lines of Python that are too long, broken at a bracket."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

OPEN, CLOSE = "([{", ")]}"
NAME = re.compile(r"\*{0,2}[\w.]+")
LOOP = re.compile(r"(\s*for )(.+?)( in .*)")


def broken(line: str, columns: int, indent: str = "    ") -> list[str]:
    """`x = f(a, b)` as `x = f(`, `a, b`, `)`. A line that fits, has no bracket, or is a comment
    stays as it is."""
    lead = line[: len(line) - len(line.lstrip())]
    if len(line) <= columns or line.lstrip().startswith(("#", '"')):
        return [line]
    left, right = assigned(line)
    loop = LOOP.fullmatch(line)
    if loop is not None and len(loop[1] + loop[2]) > columns - 20:
        return bracketed(loop[1], loop[2], loop[3], columns, indent)
    pairs = [pair for pair in brackets(line) if pair[2] == 0 and pair[1] - pair[0] > 1]
    calls = [pair for pair in pairs if line[pair[0]] == "(" and pair[0] < columns]
    if right and (not calls or chooses(right) or len(left) > columns - 20):
        if len(list(split(left))) > 1:
            return bracketed(lead, left.strip(), f" = {right}", columns, indent)
        if pairs:
            return [f"{left} = (", *broken(f"{lead}{indent}{right}", columns, indent), f"{lead})"]
    if not pairs:
        return [line]
    start, stop, _ = (calls or pairs)[-1]
    parts = line[:start], line[start + 1 : stop], line[stop + 1 :]
    return bracketed(*parts, columns, indent, line[start])


def bracketed(
    before: str, body: str, after: str, columns: int, indent: str, bracket: str = "("
) -> list[str]:
    """`before(`, the body one step further in, and `)after`."""
    lead = before[: len(before) - len(before.lstrip())]
    if not before.strip():
        lead = before
    inner = laid_out(list(split(body)), lead + indent, columns)
    whole = [part for each in inner for part in broken(each, columns, indent)]
    closing = CLOSE[OPEN.index(bracket)]
    return [before + bracket, *whole, *broken(f"{lead}{closing}{after}", columns, indent)]


def laid_out(items: Sequence[str], lead: str, columns: int) -> list[str]:
    """Items on one line if they fit; otherwise one a line, or as many as fit if all are names."""
    whole = lead + ", ".join(items)
    if len(items) == 1 or len(whole) <= columns:
        return [whole]
    if not all(NAME.fullmatch(item) for item in items):
        return [f"{lead}{item}," for item in items]
    lines = [lead]
    for item in items:
        if lines[-1] != lead and len(f"{lines[-1]} {item},") > columns:
            lines.append(lead)
        lines[-1] += f"{item}," if lines[-1] == lead else f" {item},"
    return lines


def assigned(line: str) -> tuple[str, str]:
    """Both sides of an assignment; two empty texts for any other line."""
    places = [place for place, char in top_level(line) if char == "=" and line[place - 1] == " "]
    if not places or line[places[0] : places[0] + 2] != "= ":
        return "", ""
    return line[: places[0] - 1], line[places[0] + 2 :]


def chooses(text: str) -> bool:
    """Whether an expression is `a if b else c`."""
    return any(text[place : place + 4] == " if " for place, _ in top_level(text))


def words(lines: Iterable[str]) -> set[str]:
    """The names that some lines of code use, their comments left out."""
    code = (line.split("  # ")[0] for line in lines if not line.lstrip().startswith("#"))
    return {word for line in code for word in re.findall(r"[A-Za-z_]\w*", line)}


def brackets(line: str) -> list[tuple[int, int, int]]:
    """The places where brackets open and close outside of strings, with their depths."""
    found, waiting = [], []
    for place, char in outside_strings(line):
        if char in OPEN:
            waiting.append(place)
        elif char in CLOSE and waiting:
            start = waiting.pop()
            found.append((start, place, len(waiting)))
    return found


def split(text: str) -> Iterator[str]:
    """The items between commas that stand in no bracket; a comprehension is one item."""
    if any(text[place : place + 5] == " for " for place, _ in top_level(text)):
        yield text
        return
    start = 0
    for place, char in top_level(text):
        if char == ",":
            yield text[start:place].strip()
            start = place + 1
    if text[start:].strip():
        yield text[start:].strip()


def top_level(text: str) -> Iterator[tuple[int, str]]:
    """The characters that stand in no bracket and no string."""
    depth = 0
    for place, char in outside_strings(text):
        depth += (char in OPEN) - (char in CLOSE)
        if depth == 0:
            yield place, char


def outside_strings(text: str) -> Iterator[tuple[int, str]]:
    """The characters of a line that stand in no string."""
    quote, escaped = "", False
    for place, char in enumerate(text):
        if quote:
            if char == quote and not escaped:
                quote = ""
            escaped = char == "\\" and not escaped
        elif char in "\"'":
            quote = char
        else:
            yield place, char
