"""The spelling of sizes, numbers, dtypes, shapes and long lines in Triton."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

import sympy
from archc.backends.expression import number
from archc.backends.lines import brackets, pieces
from archc.backends.writer import wrapped

from archc.tile.language import OF_BUFFER, Type

TRITON, GLUON = "tl", "gl"
"""The modules that kernels have functions and dtypes from, as they are called in files."""

DTYPE = {
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
    "i32": "int32", "i64": "int64", "bool": "int1",
}  # fmt: skip

INDENT = "    "
WIDTH = 100
LONG = 80
"""How long an address may be beside what else a line has."""


class _Itself(dict[str, str]):
    """Every symbol is written as its name."""

    def __missing__(self, name: str) -> str:
        return name


@lru_cache(maxsize=1024)
def size_text(size: sympy.Expr, of: str = TRITON) -> str:
    """An expression in sizes, in brackets unless it is one word."""
    known = {each: _blocks(each, of) for each in size.atoms(sympy.ceiling, sympy.floor)}
    known |= {each: _root(each, of) for each in size.atoms(sympy.Pow) if not each.exp.is_integer}
    text = str(number(size.xreplace(known), _Itself()))
    return text if text.replace("_", "").isalnum() or size in known else f"({text})"


def _root(power: sympy.Pow, of: str) -> sympy.Symbol:
    """A root, as a symbol that is written so: Triton knows no `math.sqrt` of a constant."""
    return sympy.Symbol(f"({size_text(power.base, of)} ** {float(power.exp)!r})", positive=True)


def _blocks(count: sympy.ceiling | sympy.floor, of: str) -> sympy.Symbol:
    """How many blocks cover a size, or how many it has room for, as a symbol that is written so."""
    above, below = (size_text(each, of) for each in sympy.fraction(count.args[0]))
    down = isinstance(count, sympy.floor)
    text = f"({above} // {below})" if down else f"{of}.cdiv({above}, {below})"
    return sympy.Symbol(text, integer=True, positive=True)


def gluon_size(size: sympy.Expr) -> str:
    """The same in Gluon."""
    return size_text(size, GLUON)


def times_text(step: str) -> str:
    return "" if step == "1" else f" * {step}"


def number_text(value: float) -> str:
    if not math.isfinite(value):
        return f'float("{value}")'
    return "minus_zero()" if value == 0 and math.copysign(1, value) < 0 else repr(value)


def dtype_text(dtype: str, of: str = TRITON) -> str:
    if dtype.startswith(OF_BUFFER):
        return f"{dtype.removeprefix(OF_BUFFER)}_p.dtype.element_ty"
    return f"{of}.{DTYPE[dtype]}" if dtype in DTYPE else dtype


def shape_text(type: Type, of: str = TRITON) -> str:
    lengths = ", ".join(size_text(dim.length, of) for dim in type.dims)
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
    room = WIDTH - len(INDENT)
    if not rest and len(plain) + 6 <= room:
        return [f'"""{plain}"""']
    head, *more = wrapped(first, room, 3)
    lines = (part for line in rest for part in wrapped(line, room, 0, INDENT))
    return [f'"""{head}', *more, *lines, '"""']


CALL = re.compile(r"\s*([\w, ]+ = )?[\w.]+\(")


def wants_name(line: str) -> bool:
    """Whether a statement needs several lines and is no call, or is one with a part that is too
    long for a line: then a value in it is easier to read with a name."""
    called = CALL.match(line)
    if len(line) <= WIDTH:
        return False
    if called is None:
        return True
    room = WIDTH - (len(line) - len(line.lstrip())) - len(INDENT)
    start = called.end() - 1
    stop = next(end for begin, end, _ in brackets(line) if begin == start)
    return any(len(part) > room for part in pieces(line[start + 1 : stop]))
