"""Lines of Python that are too long, broken at their last bracket."""

from __future__ import annotations

from collections.abc import Iterator

OPEN, CLOSE = "([{", ")]}"


def broken(line: str, columns: int, indent: str = "    ") -> list[str]:
    """`x = f(a, b)` as `x = f(`, `a, b`, `)`; what goes on too long is one item a line. A line that
    fits, has no bracket, or is a comment stays as it is."""
    lead = line[: len(line) - len(line.lstrip())]
    if len(line) <= columns or line.lstrip().startswith(("#", '"')):
        return [line]
    left, equals, right = line.partition(" = ")
    if equals and "(" not in left and len(left) > columns - 20:
        names = [f"{lead}{indent}{name}," for name in left.strip().removesuffix(",").split(", ")]
        return [f"{lead}(", *names, *broken(f"{lead}) = {right}", columns, indent)]
    pairs = [pair for pair in brackets(line) if pair[2] == 0 and pair[1] - pair[0] > 1]
    if not pairs:
        return [line]
    start, stop, _ = pairs[-1]
    head, body, tail = line[: start + 1], line[start + 1 : stop], line[stop:]
    if len(head) > columns and equals and not left.strip().startswith(("if ", "for ")):
        return [f"{left} = (", *broken(f"{lead}{indent}{right}", columns, indent), f"{lead})"]
    inner = f"{lead}{indent}{body}"
    if len(inner) > columns:
        items = list(split(body))
        one = len(items) == 1
        inner_lines = [f"{lead}{indent}{item}{'' if one else ','}" for item in items]
        whole = [part for item in inner_lines for part in broken(item, columns, indent)]
    else:
        whole = [inner]
    return [head, *whole, f"{lead}{tail}"]


def brackets(line: str) -> list[tuple[int, int, int]]:
    """Where brackets open and close, and how deep they stand, outside strings."""
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
