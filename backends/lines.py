"""Lines of Python that are too long, broken inside a bracket.

A call goes on behind its bracket, one step further in where that takes fewer lines or the line
opens a block; a formula is put into brackets and broken at its signs:

    product = tl.dot(weights, (values * gates).to(DOT),
                     input_precision=PRECISION)
    d_x = (first * second + third
           + fourth)
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

OPEN, CLOSE = "([{", ")]}"
INDENT = "    "
HEADER = re.compile(r"\s*(def|if|elif|for|while|with|class|else)\b.*:$")
QUESTION = re.compile(r"(\s*(?:if|elif|while) )(.+):")
LOOP = re.compile(r"(\s*for )(.+?)( in .*)")
LEAD = re.compile(r"\s*([\w.]+(\[[^\]]*\])? [-+*/|&]= |return |yield |raise )")
ALONE, AFTER = re.compile(r"([(\[]|, | = |\w=|^\s*(if|while) )$"), ("", ",", ")", "]", ":")
"""What stands before and after brackets that nothing but they hold together."""
SIGNS = (
    (" for ",), (",",), (" if ", " else "), (" or ",), (" and ",),
    (" == ", " != ", " < ", " <= ", " > ", " >= ", " is ", " in "),
    (" | ",), (" & ",), (" + ", " - "), (" * ", " / ", " // ", " % ", " @ "),
)  # fmt: skip
"""Where a formula may be broken, first what holds it together least."""


def broken(line: str, columns: int, indent: str = INDENT) -> list[str]:
    """A statement on as many lines as it needs. One that fits, has no bracket, or is a comment or a
    string stays as it is."""
    lead = line[: len(line) - len(line.lstrip())]
    if len(line) <= columns or line.lstrip().startswith(("#", '"')):
        return [line]
    if HEADER.fullmatch(line):
        return _header(line, lead, columns, indent)
    left, right = assigned(line)
    match = LEAD.match(line)
    if not right and match is None:
        return _at_brackets(lead, line.strip(), "", lead, columns, indent)
    head = f"{left} = " if right else match[0] if match else ""
    way = _laid(head, line[len(head) :], "", lead, columns, indent)
    names = pieces(left.strip())
    if len(names) < 2 or (len(left) <= columns - 20 and _cost(way, columns)[0] == 0):
        return way
    ways = []
    for head in ("", right.partition("(")[0]):
        room = columns - len(f") = {head}(")
        *first, last = _filled(f"{lead}(", names, "", f"{lead} ", room, indent)
        ways.append([*first, *_laid(f"{last}) = ", right, "", lead, columns, indent)])
    return min(ways, key=lambda lines: _cost(lines, columns))


def _header(line: str, lead: str, columns: int, indent: str) -> list[str]:
    """The line that opens a block: its last bracket stands open, its content further in."""
    loop = LOOP.fullmatch(line)
    if loop is not None and len(loop[1] + loop[2]) > columns - 20:
        inner = _filled(lead + indent, pieces(loop[2]), "", lead + indent, columns, indent)
        return [f"{loop[1]}(", *inner, f"{lead}){loop[3]}"]
    found = [pair for pair in brackets(line) if pair[2] == 0 and pair[1] - pair[0] > 1]
    calls = [pair for pair in found if line[pair[0]] == "(" and pair[0] < columns]
    if not found:
        return [line]
    start, stop, _ = (calls or found)[-1]
    way = _further_in(line[: start + 1], line[start + 1 : stop], line[stop:], lead, columns, indent)
    question = QUESTION.fullmatch(line)
    if question is None:
        return way
    other = _further_in(f"{question[1]}(", question[2], "):", lead, columns, indent)
    return min(way, other, key=lambda lines: _cost(lines, columns))


def _laid(
    head: str, text: str, tail: str, lead: str, columns: int, indent: str, inside: bool = False
) -> list[str]:
    """An expression between what stands before and behind it on its lines; `inside`: of a bracket
    that is open, so that a formula needs none."""
    if len(head + text + tail) <= columns:
        return [head + text + tail]
    parts = pieces(text)
    if len(parts) > 1 and inside:
        deeper = lead + indent
        return _filled(head, parts, tail, deeper, columns, indent)
    if len(parts) > 1:
        return _in_bracket(f"{head}(", text, f"){tail}", lead, columns, indent)
    return _at_brackets(head, text, tail, lead, columns, indent)


def _at_brackets(
    head: str, text: str, tail: str, lead: str, columns: int, indent: str
) -> list[str]:
    """The same, broken in the one of its own brackets that takes the fewest lines."""
    found = [pair for pair in brackets(text) if pair[2] == 0 and pair[1] - pair[0] > 1]
    ways = [
        _in_bracket(
            head + text[: start + 1], text[start + 1 : stop], text[stop:] + tail, lead, columns,
            indent,
        )
        for start, stop, _ in found
    ]  # fmt: skip
    return min(ways, key=lambda lines: _cost(lines, columns), default=[head + text + tail])


def _cost(lines: Sequence[str], columns: int) -> tuple[int, int]:
    """How many lines are too long, and how many there are."""
    return sum(len(line) > columns for line in lines), len(lines)


def _in_bracket(
    before: str, body: str, after: str, lead: str, columns: int, indent: str
) -> list[str]:
    """`before(`, which ends with a bracket, what is in it, and `)after`: behind the bracket, or
    further in where that takes fewer lines."""
    parts, inner = pieces(body), lead + indent
    behind = _filled(before, parts, after, " " * len(before), columns, indent)
    deeper = [before, *_filled(inner, parts, after, inner, columns, indent)]
    return min(behind, deeper, key=lambda lines: _cost(lines, columns))


def _further_in(
    before: str, body: str, after: str, lead: str, columns: int, indent: str
) -> list[str]:
    """`before(`, what is in the bracket on lines of its own, and `)after` on another."""
    deeper = lead + indent
    inner = _filled(deeper, pieces(body), "", deeper, columns, indent)
    return [before, *inner, f"{lead}{after}"]


def _filled(
    head: str, parts: Sequence[str], tail: str, lead: str, columns: int, indent: str
) -> list[str]:
    """Parts on as few lines as there is room for, the first behind `head`, the others at `lead`."""
    lines, fresh = [head], True
    for place, part in enumerate(parts):
        end = tail if place == len(parts) - 1 else ""
        more = part if fresh else f" {part}"
        if not fresh and len(lines[-1] + more + end) > columns:
            lines, more, fresh = [*lines, lead], part, True
        if len(lines[-1] + more + end) > columns:
            comma = "," if part.endswith(",") else ""
            text, start = part[: len(part) - len(comma)], lines.pop()
            lines += _laid(start, text, comma + end, lead, columns, indent, inside=True)
        else:
            lines[-1] += more + end
        fresh = False
    return lines


def laid_out(items: Sequence[str], lead: str, columns: int) -> list[str]:
    """Items on as few lines as have room, a comma behind each if they are more than one line."""
    whole = lead + ", ".join(items)
    if len(items) == 1 or len(whole) <= columns:
        return [whole]
    return _filled(lead, [f"{item}," for item in items], "", lead, columns, INDENT)


def pieces(text: str) -> list[str]:
    """The parts of an expression that may stand on lines of their own: what stands between its
    commas, each with its own, or between its loosest signs, each behind its own."""
    places = [*top_level(text)]
    if any(text.startswith("lambda ", place) for place, _ in places):
        return _at_commas(text, places)
    for signs in SIGNS:
        if not any(sign in text for sign in signs):
            continue
        if signs == (",",) and any(char == "," for _, char in places):
            return _at_commas(text, places)
        cuts = [place for place, _ in places for sign in signs if text.startswith(sign, place)]
        if cuts and signs != (",",):
            ends = [*cuts, len(text)]
            return [text[a:b].strip() for a, b in zip([0, *cuts], ends, strict=True)]
    return [text]


def _at_commas(text: str, places: Sequence[tuple[int, str]]) -> list[str]:
    """The parts between commas, each with its own."""
    cuts = [0, *(place + 1 for place, char in places if char == ","), len(text)]
    parts = (text[a:b].strip() for a, b in itertools.pairwise(cuts))
    return [part for part in parts if part]


def assigned(line: str) -> tuple[str, str]:
    """Both sides of an assignment; two empty texts for any other line."""
    places = [place for place, char in top_level(line) if char == "=" and line[place - 1] == " "]
    if not places or line[places[0] : places[0] + 2] != "= ":
        return "", ""
    return line[: places[0] - 1], line[places[0] + 2 :]


def unbracketed(line: str) -> str:
    """A statement without the brackets around all of an argument, of a condition or of what is
    assigned: `f(x, (a + b))` is `f(x, a + b)`."""
    if line.lstrip().startswith("#"):
        return line
    left = {
        place for start, stop, _ in brackets(line)
        if line[start] == "(" and ALONE.search(line[:start]) and line[stop + 1 : stop + 2] in AFTER
        and not any(char == "," for _, char in top_level(line[start + 1 : stop]))
        and stop > start + 1
        for place in (start, stop)
    }  # fmt: skip
    return "".join(char for place, char in enumerate(line) if place not in left)


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


def top_level(text: str) -> Iterator[tuple[int, str]]:
    """The characters that stand in no bracket and no string."""
    depth = 0
    for place, char in outside_strings(text):
        depth += (char in OPEN) - (char in CLOSE)
        if depth == 0:
            yield place, char


def outside_strings(text: str) -> Iterator[tuple[int, str]]:
    """The characters of a line that stand in no string."""
    return _outside(text) if '"' in text or "'" in text else enumerate(text)


def _outside(text: str) -> Iterator[tuple[int, str]]:
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
