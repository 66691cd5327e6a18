"""What a mistake was likely meant to be: rows of `habits_table`, found by name and by text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from archc.source import Source, Span
from archc.syntax.habits_table import MODULES, NAMES, SAME, TEXTS, Habit

DOTTED = re.compile(r"(?:\b([A-Za-z_]\w*)|(?<=[\])]))((?:\.[A-Za-z_]\w*)+)")
"""`torch.nn.functional.silu`, `x.softmax`, `self.W`, or `.view` behind a bracket."""

OF_TOKEN = re.compile(r"([A-Za-z]\w*)_(t|s|tm1|prev|last|old|new|next)")
"""Names of papers and loops that say which token a value is of: `k_t`, `S_prev`."""

UNWRITTEN = frozenset("B T N L batch batch_size bsz b seq seq_len seqlen length time".split())
"""Names of the two dims that a spec never writes."""

STRINGS = re.compile(r'"""(?s:.)*?"""|"[^"\n]*"')


@dataclass(frozen=True)
class Advice:
    """What stands there that a spec does not write, and what it writes instead."""

    span: Span
    help: str


def said(habit: Habit, match: re.Match[str] | None = None) -> str:
    """The advice of a row, with what its pattern found put in."""
    text = habit.write
    if match is not None:
        text = re.sub(r"\{(\d)\}", lambda place: _part(match, int(place[1])), text)
    return text if text.startswith("leave") else f"write {text}"


def _part(match: re.Match[str], number: int) -> str:
    return "".join((match[number] or "").split())


@cache
def _rows() -> Mapping[str, Habit]:
    """The rows that are found by name: as written, then in small letters without underscores."""
    named = {name: habit for habit in NAMES for name in habit.found.split()}
    return {**{_plain(name): habit for name, habit in reversed(named.items())}, **named}


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def of_name(name: str) -> tuple[str, ...]:
    """A help line for a function, layer or value that is not there, or nothing."""
    rows = _rows()
    habit = rows.get(name) or (rows.get(_plain(name)) if len(name) > 1 else None)
    if habit is not None:
        return (said(habit),)
    if name not in SAME and _plain(name) in SAME:
        return (f"write `{_plain(name)}(x)`",)
    return ()


def of_value(name: str, known: set[str]) -> tuple[str, ...]:
    """A help line for a value that is not declared, by what is; or nothing."""
    match = OF_TOKEN.fullmatch(name)
    if match is not None and match[1] in known:
        value, suffix = match[1], match[2]
        if suffix in ("tm1", "prev", "last", "old"):
            return (f"write `{value}[t-1]`: the value of the token before",)
        if suffix == "s":
            return (f"write `{value}[s]`: the value of the token that an `attend` reads",)
        return (f"write `{value}`, or `{value}[t]`: a value is of the token at hand",)
    if name.endswith("'") and name.rstrip("'") in known:
        return (f"write `{name.rstrip(chr(39))}.T` for the transpose",)
    return of_name(name)


def of_dim(name: str) -> tuple[str, ...]:
    """A help line for a dim that is not there, if it is one that a spec never writes."""
    return ("leave it out: batch and time are never written",) if name in UNWRITTEN else ()


def in_text(source: Source, offset: int) -> Advice | None:
    """The advice about the text around an offset, where the grammar cannot go on."""
    line = source.position(offset)[0]
    start = source.starts[line - 1]
    text = _without_comment(source.line(line))
    for match, help in _matches(text):
        if match.start() <= offset - start <= match.end():
            first = match.end() - len(match[0].lstrip())
            last = match.start() + len(match[0].rstrip())
            return Advice(Span(source, start + first, start + last), help)
    return None


def _matches(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """What is known of a line: of all of it, of its dotted names, of any other part."""
    lines = [habit for habit in TEXTS if habit.found.startswith("^")]
    for habit in lines:
        yield from ((match, said(habit, match)) for match in re.finditer(habit.found, text))
    yield from ((match, _dotted(match)) for match in DOTTED.finditer(text))
    for habit in TEXTS:
        if habit not in lines:
            yield from ((match, said(habit, match)) for match in re.finditer(habit.found, text))


def _without_comment(line: str) -> str:
    """A line up to its comment, which starts at a `#` outside of quotes."""
    quoted = STRINGS.sub(lambda match: " " * len(match[0]), line)
    return line[: quoted.index("#")] if "#" in quoted else line


def _dotted(match: re.Match[str]) -> str:
    """What to write for `torch.exp`, `x.exp`, `self.W`."""
    head, last = match[1], match[2].rpartition(".")[2]
    if head == "self":
        return "write the name alone: a value declared by `param W[d, H]` or `input x[d]`"
    advice = of_name(last)
    if advice:
        return advice[0]
    if head in MODULES:
        if last in SAME:
            return f"write `{last}(...)`: functions belong to no module"
        return "leave it out: there are no modules; docs/language.md lists the functions"
    if last in SAME:
        return f"write `{last}({head or '...'})`"
    return "leave it out: a value has no attributes or methods, but its transpose `.T`"
