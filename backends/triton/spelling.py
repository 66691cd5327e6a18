"""The spelling of sizes, numbers, dtypes, shapes and long lines in Triton."""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from functools import lru_cache

import sympy
from archc.backends.expression import number

from archc.tile.language import OF_BUFFER, Type

DTYPE = {
    "f16": "tl.float16", "bf16": "tl.bfloat16", "f32": "tl.float32", "f64": "tl.float64",
    "i32": "tl.int32", "i64": "tl.int64", "bool": "tl.int1",
}  # fmt: skip

INDENT = "    "
WIDTH = 96
LONG = 80
"""How long an address may be beside what else a line has."""


class _Itself(dict[str, str]):
    """Every symbol is written as its name."""

    def __missing__(self, name: str) -> str:
        return name


@lru_cache(maxsize=1024)
def size_text(size: sympy.Expr) -> str:
    """An expression in sizes, in brackets unless it is one word."""
    known = {each: _blocks(each) for each in size.atoms(sympy.ceiling, sympy.floor)}
    known |= {each: _root(each) for each in size.atoms(sympy.Pow) if not each.exp.is_integer}
    text = str(number(size.xreplace(known), _Itself()))
    return text if text.replace("_", "").isalnum() or size in known else f"({text})"


def _root(power: sympy.Pow) -> sympy.Symbol:
    """A root, as a symbol that is written so: Triton knows no `math.sqrt` of a constant."""
    return sympy.Symbol(f"({size_text(power.base)} ** {float(power.exp)!r})", positive=True)


def _blocks(count: sympy.ceiling | sympy.floor) -> sympy.Symbol:
    """How many blocks cover a size, or how many it has room for, as a symbol that is written so."""
    above, below = sympy.fraction(count.args[0])
    if isinstance(count, sympy.floor):
        text = f"({size_text(above)} // {size_text(below)})"
        return sympy.Symbol(text, integer=True, positive=True)
    return sympy.Symbol(
        f"tl.cdiv({size_text(above)}, {size_text(below)})", integer=True, positive=True
    )


def times_text(step: str) -> str:
    return "" if step == "1" else f" * {step}"


def number_text(value: float) -> str:
    if not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def dtype_text(dtype: str) -> str:
    if dtype.startswith(OF_BUFFER):
        return f"{dtype.removeprefix(OF_BUFFER)}_p.dtype.element_ty"
    return DTYPE.get(dtype, dtype)


def shape_text(type: Type) -> str:
    lengths = ", ".join(size_text(dim.length) for dim in type.dims)
    return f"({lengths},)" if len(type.dims) == 1 else f"({lengths})"


def filled(words: Sequence[str]) -> Iterator[str]:
    """Arguments on as few lines as there is room for."""
    if not words:
        return
    line = f"{INDENT}{words[0]},"
    for word in words[1:]:
        if len(line) + len(word) + 2 > WIDTH:
            yield line
            line = f"{INDENT}{word},"
        else:
            line += f" {word},"
    yield line


def docstring(text: str) -> list[str]:
    """The docstring of a kernel."""
    plain = text.replace("\\", "\\\\").replace('""', '\\"\\"')
    first, *rest = plain.split("\n")
    if not rest:
        return textwrap.wrap(f'"""{plain}"""', WIDTH - len(INDENT))
    lines = textwrap.wrap(f'"""{first}', WIDTH - len(INDENT))
    for line in rest:
        lines += textwrap.wrap(line, WIDTH - len(INDENT), subsequent_indent=INDENT)
    return [*lines, '"""']


def titles(base: str) -> Iterator[str]:
    """`x_at`, `x_at_2`, `x_at_3`, ..."""
    yield base
    yield from (f"{base}_{count}" for count in itertools.count(2))


def summed(title: str, terms: Sequence[str]) -> Iterator[str]:
    """Lines that make a name the sum of some terms, of which some may be long."""
    line = f"{title} = {terms[0]}"
    for term in terms[1:]:
        if len(f"{line} + {term}") <= LONG:
            line += f" + {term}"
        elif len(f"{title} += {term}") > LONG:
            yield line
            yield f"{title} += ("
            yield from textwrap.wrap(term, LONG, initial_indent=INDENT, subsequent_indent=INDENT)
            line = ")"
        else:
            yield line
            line = f"{title} += {term}"
    yield line


def assigned(indent: str, pairs: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Names that become others all at once: on one line, or a line each side and name."""
    left, right = (", ".join(side) for side in zip(*pairs, strict=True))
    line = f"{indent}{left} = {right}"
    if len(line) <= WIDTH:
        yield line
        return
    if len(f"{indent}{left} = (") <= WIDTH:
        yield f"{indent}{left} = ("
    else:
        yield f"{indent}("
        yield from (f"{indent}{INDENT}{name}," for name, _ in pairs)
        yield f"{indent}) = ("
    yield from (f"{indent}{INDENT}{name}," for _, name in pairs)
    yield f"{indent})"


def returned(indent: str, texts: Sequence[str]) -> Iterator[str]:
    """What a function gives: on one line, or a line each."""
    line = f"{indent}return {', '.join(texts)}"
    if len(line) <= WIDTH:
        yield line
        return
    yield f"{indent}return ("
    yield from (f"{indent}{INDENT}{text}," for text in texts)
    yield f"{indent})"


def wrapped(line: str) -> Iterator[str]:
    """A line, or the same on several where it is too long: what its first call is given stands on a
    line of its own, or each on one."""
    called = re.match(r"\s*([\w, ]+ = )?[\w.]+\(", line)
    open_at = called.end() - 1 if called else -1
    if len(line) <= WIDTH or open_at < 0 or line.rstrip().endswith(":"):
        yield line
        return
    indent = " " * (len(line) - len(line.lstrip()))
    inside, rest = _inside(line, open_at)
    yield line[: open_at + 1]
    together = f"{indent}{INDENT}{', '.join(inside)}"
    if len(together) <= WIDTH:
        yield together
    else:
        for part in inside:
            yield from _sums(f"{part},", indent + INDENT)
    yield f"{indent}{rest}"


def _sums(text: str, indent: str) -> Iterator[str]:
    """A part, on several lines where it is a long sum."""
    terms, line = text.split(" + "), indent
    for place, term in enumerate(terms):
        more = f" + {term}" if place else term
        if place and len(line) + len(more) > WIDTH:
            yield line
            line, more = indent + INDENT, f"+ {term}"
        line += more
    yield line


def _inside(line: str, open_at: int) -> tuple[list[str], str]:
    """The parts between the commas of a bracket, and what stands from its end on."""
    parts, depth, start = [], 0, open_at + 1
    for place in range(open_at, len(line)):
        depth += line[place] in "([{"
        depth -= line[place] in ")]}"
        if depth == 1 and line[place] == ",":
            parts.append(line[start:place].strip())
            start = place + 1
        if depth == 0:
            return [*parts, line[start:place].strip()], line[place:]
    return [line[open_at + 1 :]], ""
