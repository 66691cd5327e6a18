"""The likely meaning of a mistake: rows of `habits_table`, found by name and by text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from archc.source import Source, Span
from archc.syntax.habits_table import FILE, MODULES, NAMES, READ, STEP, Habit, same
from archc.syntax.habits_texts import TEXTS

DOTTED = re.compile(r"(?:\b([A-Za-z_]\w*)|(?<=[\])]))((?:\.[A-Za-z_]\w*)+)")
"""`torch.nn.functional.silu`, `x.softmax`, `self.W`, or `.view` behind a bracket."""

OF_TOKEN = re.compile(r"([A-Za-z]\w*)_(t|s|tm1|prev|last|old|new|next)")
"""Names of papers and loops that say which token a value is of: `k_t`, `S_prev`."""

UNWRITTEN = frozenset("B T N L batch batch_size bsz b seq seq_len seqlen length time".split())
"""Names of the two dims that a spec never writes."""

WHOLE = re.compile(r"(?<=\()\{x\}(?=[),])|(?<=, )\{x\}(?=\))")
"""The place of what a function is given, where it is an argument of its own."""

ATOM = re.compile(r"[\w.']+(?:\[[^\[\]]*\])?(?:\([^()]*\))?")
"""A name, a number, or a call: what needs no brackets as a part of more."""

STRINGS = re.compile(r'"""(?s:.)*?"""|"[^"\n]*"')


# fmt: off
RULES = {
    "self": Habit(
        "self", "the name alone: a value declared by `param W[d, H]` or `input x[d]`",
        "z = x * self.b", "z = x * b",
    ),
    "module": Habit("torch F nn np", "`{1}(...)`: functions belong to no module",
                    "z = torch.exp(x)", "z = exp(x)"),
    "unknown": Habit(
        "torch F nn np",
        "leave it out: functions belong to no module, and docs/language.md lists those there are",
        "z = torch.fft(x) * b", "z = x * b",
    ),
    "method": Habit("exp sigmoid tanh", "`{1}({2})`", "z = x.exp()", "z = exp(x)"),
    "attribute": Habit(
        "grad data", "leave it out: a value has no attributes or methods, but its transpose `.T`",
        "z = x.grad * b", "z = x * b",
    ),
    "at hand": Habit(
        "_t", "`{1}`, or `{1}[t]`: a value is of the token at hand",
        "S[t] = S[t-1] + k_t @ v.T", "S[t] = S[t-1] + k @ v.T", STEP,
    ),
    "before": Habit(
        "_prev _last _old _tm1", "`{1}[t-1]`: the value of the token before",
        "S[t] = S_prev + k @ v.T", "S[t] = S[t-1] + k @ v.T", STEP,
    ),
    "read": Habit(
        "_s", "`{1}[s]`: the value of the token that an `attend` reads",
        "o = softmax(q[t].T @ k_s) @ v[s]", "o = softmax(q[t].T @ k[s]) @ v[s]", READ,
    ),
    "prime": Habit("'", "`{1}.T` for the transpose", "S[t] = S[t-1] + k @ v'",
                   "S[t] = S[t-1] + k @ v.T", STEP),
    "dim": Habit(
        "B T N L batch seq_len", "leave it out: batch and time are never written",
        "layer L(d):\n    input x[B, T, d]\n    output y = x",
        "layer L(d):\n    input x[d]\n    output y = x", FILE,
    ),
}
"""By how a name is put together, or where it stands; {1} is its part that a spec has."""
# fmt: on


@dataclass(frozen=True)
class Advice:
    """Words that a spec does not write, and what it writes instead."""

    span: Span
    help: str


def said(habit: Habit, *parts: str | None, given: str = "x", dim: str = "d") -> str:
    """The advice of a row, with what was found put in; what a function is given stands in brackets
    where it is a part of more."""
    text = habit.write
    for number, part in enumerate(parts, 1):
        text = text.replace(f"{{{number}}}", "".join((part or "").split()))
    text = WHOLE.sub(lambda _: given, text).replace("{d}", dim)
    text = text.replace("{x}", given if ATOM.fullmatch(given) else f"({given})")
    return text if text.startswith("leave") else f"write {text}"


@cache
def _rows() -> Mapping[str, Habit]:
    """The rows that are found by name: as written, then in small letters without underscores."""
    named = {name: habit for habit in NAMES for name in habit.found.split()}
    return {**{_plain(name): habit for name, habit in reversed(named.items())}, **named}


def _plain(name: str) -> str:
    return name.lower().replace("_", "")


def of_name(name: str, given: str = "x", dim: str = "d") -> tuple[str, ...]:
    """A help line for a function, layer or value that is not there, or nothing; of a function with
    what it is given, and the last dim of that."""
    rows = _rows()
    habit = rows.get(name) or (rows.get(_plain(name)) if len(name) > 1 else None)
    if habit is not None:
        return (said(habit, given=given, dim=dim),)
    if name not in same() and _plain(name) in same():
        return (f"write `{_plain(name)}({given})`",)
    return ()


def of_value(name: str, known: set[str]) -> tuple[str, ...]:
    """A help line for a value that is not declared, by what is; or nothing."""
    match = OF_TOKEN.fullmatch(name)
    if match is not None and match[1] in known:
        value, suffix = match[1], match[2]
        before = suffix in ("tm1", "prev", "last", "old")
        rule = "before" if before else "read" if suffix == "s" else "at hand"
        return (said(RULES[rule], value),)
    if name.endswith("'") and name.rstrip("'") in known:
        return (said(RULES["prime"], name.rstrip("'")),)
    return of_name(name)


def of_dim(name: str) -> tuple[str, ...]:
    """A help line for a dim that is not there, if it is one that a spec never writes."""
    return (said(RULES["dim"]),) if name in UNWRITTEN else ()


def in_text(source: Source, offset: int) -> Advice | None:
    """The advice about the text around an offset, where the grammar cannot go on."""
    line = source.position(offset)[0]
    start = source.starts[line - 1]
    text = _without_comment(source.line(line))
    for match, help in _matches(text):
        if match.start() <= offset - start <= match.end():
            at = "at" if "at" in match.re.groupindex else 0
            first = match.end(at) - len(match[at].lstrip())
            last = match.start(at) + len(match[at].rstrip())
            return Advice(Span(source, start + first, start + last), help)
    return None


def _matches(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """The rows that match a line: all of it, its dotted names, any other part."""
    lines = [habit for habit in TEXTS if habit.found.startswith("^")]
    for habit in lines:
        yield from _found(habit, text)
    yield from ((match, _dotted(match)) for match in DOTTED.finditer(text))
    for habit in TEXTS:
        if habit not in lines:
            yield from _found(habit, text)


def _found(habit: Habit, text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Where a row fits; one for several names, where there are as many values."""
    for match in re.finditer(habit.found, text):
        if "values" not in match.re.groupindex:
            yield match, said(habit, *match.groups())
        elif each := _each(match["names"].split(","), _arguments(match["values"])):
            yield match, said(habit).replace("{each}", each)


def _each(names: list[str], values: list[str]) -> str:
    """A statement for each name, or nothing where values are more or fewer."""
    if len(values) == 1 and values[0].startswith("("):
        values = _arguments(values[0][1:])
    pairs = zip(names, values, strict=False)
    together = "; ".join(f"{name.strip()} = {value}" for name, value in pairs)
    return together if len(names) == len(values) else ""


def _arguments(text: str) -> list[str]:
    """What commas part, up to a bracket that closes what was open before."""
    parts, depth = [""], 0
    for char in text:
        depth += (char in "([") - (char in ")]")
        if depth < 0:
            break
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def _without_comment(line: str) -> str:
    """A line up to its comment, which starts at a `#` outside of quotes."""
    quoted = STRINGS.sub(lambda match: " " * len(match[0]), line)
    return line[: quoted.index("#")] if "#" in quoted else line


def _dotted(match: re.Match[str]) -> str:
    """The advice for `torch.exp`, `x.exp`, `self.W`."""
    head, last = match[1], match[2].rpartition(".")[2]
    if head == "self":
        return said(RULES["self"])
    behind = match.string[match.end() :]
    called = head in MODULES and last.islower() and behind.startswith("(")
    given = (_arguments(behind[1:])[0] if called else None) or head or "x"
    advice = of_name(last, "x" if given in MODULES else given)
    if advice:
        return advice[0]
    if head in MODULES:
        return said(RULES["module" if last in same() else "unknown"], last)
    return said(RULES["method" if last in same() else "attribute"], last, head or "...")
