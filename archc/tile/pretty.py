"""A listing of a tile program that a person reads: each value with its type and its equation.

gated_rmsnorm: y = rmsnorm(x) gain silu(g), a block of rows a program.
  x [r: R, d: D] of IO
  for each block < ceiling(R/BLOCK_R)
    x: IO[r, d] = load x[r, d] where in_r, in_d
    scale: f32[r] = rsqrt(plus_2)          # 1 / sqrt(mean(x^2) + eps)

The line of the spec stands beside the first value that comes from it, and again after another's.
"""

from __future__ import annotations

from collections.abc import Iterator

from archc.functions.definitions import FUNCTIONS
from archc.tile import language as lang

SIGNS = {n: f.symbol for n, f in FUNCTIONS.items() if f.symbol and f.arity == 2 and n != "pow"}
NOTE = 44
"""The column that equations begin in, where there is room."""


def listing(program: lang.Program) -> str:
    """The whole program."""
    first, *more = program.doc.split("\n")
    lines = [f"{program.name}: {first}", *(f"  {line}" for line in more)]
    lines += [f"  {_buffer(buffer)}" for buffer in program.buffers]
    for axis, count in program.grid:
        lines.append(f"  for each {axis} < {count}")
    lines += _Lister().block(program.body, 2)
    return "\n".join(lines) + "\n"


def _buffer(buffer: lang.Buffer) -> str:
    axes = ", ".join(f"{axis}: {size}" for axis, size in buffer.axes)
    note = f"   # {buffer.doc}" if buffer.doc else ""
    return f"{buffer.name} [{axes}] of {buffer.dtype}{_kind(buffer)}{note}"


def _kind(buffer: lang.Buffer) -> str:
    apart = f", {buffer.rows} apart" if buffer.rows else ", strided" * buffer.strided
    return f"{apart}{', optional' if buffer.optional else ''}"


class _Lister:
    """A listing of a program: the values with a line of their own, and those that are written where
    they are used."""

    def __init__(self) -> None:
        self.texts: dict[lang.Value, str] = {}
        self.line = ""

    def block(self, block: lang.Block, depth: int) -> Iterator[str]:
        """The lines of a block."""
        indent = "  " * depth
        for s in block.statements:
            if isinstance(s.op, lang.For | lang.While):
                yield from self._loop(s, depth)
                continue
            text = self.text(s)
            if (
                isinstance(s.op, lang.Scalar | lang.ProgramId | lang.Full | lang.Relabel)
                and not s.note
            ):
                self.texts[s.results[0]] = text
                continue
            left = ", ".join(f"{v.name}: {_type(v.type)}" for v in s.results)
            line = f"{indent}{left} = {text}" if left else f"{indent}{text}"
            notes = "; ".join(filter(None, (s.note, self._place(s))))
            yield f"{line:{NOTE}}  # {notes}" if notes else line
            yield from self._blocks(s, depth)

    def _place(self, s: lang.Statement) -> str:
        """The line of the spec that a statement comes from, where the last one told is another."""
        if s.span is None or s.span.where == self.line:
            return ""
        self.line = s.span.where
        return self.line

    def _blocks(self, s: lang.Statement, depth: int) -> Iterator[str]:
        """The blocks of a branch, or the join of a scan: each ends in what it yields."""
        indent = "  " * depth
        for place, inner in enumerate(s.blocks):
            if place and (inner.statements or inner.yields):
                yield f"{indent}else"
            if inner.arguments:
                yield f"{indent}  join {', '.join(value.name for value in inner.arguments)}"
            yield from self.block(inner, depth + 1)
            if inner.yields:
                yield f"{indent}  give {', '.join(map(self.name, inner.yields))}"

    def _loop(self, s: lang.Statement, depth: int) -> Iterator[str]:
        """A loop: what it carries stands at its head, what a turn hands on at its end."""
        (body,) = s.blocks
        given = [self.name(value) for value in s.operands]
        if isinstance(s.op, lang.For):
            head = f"for {body.arguments[0].name} from {given[0]} below {given[1]}"
            head += "" if s.op.together == 1 else f", {s.op.together} turns at once"
            head += "" if s.op.ahead is None else f", loads {s.op.ahead} turns ahead"
            carried, given, following = body.arguments[1:], given[2:], body.yields
        else:
            head = f"while {body.arguments[0].name}, at most {s.op.most} turns"
            carried, following = body.arguments, body.yields
        yield f"{'  ' * depth}{head}"
        for value, start in zip(carried, given, strict=True):
            yield f"{'  ' * (depth + 1)}carry {value.name} from {start}"
        yield from self.block(body, depth + 1)
        for value, after in zip(carried, following, strict=True):
            yield f"{'  ' * (depth + 1)}next {value.name} = {self.name(after)}"
        for result, value in zip(s.results, body.arguments[1:], strict=True):
            self.texts[result] = value.name

    def name(self, value: lang.Value) -> str:
        """The text of a value."""
        return self.texts.get(value, value.name)

    def text(self, s: lang.Statement) -> str:
        """The right side of a line."""
        given = [self.name(value) for value in s.operands]
        match s.op:
            case lang.Scalar(size):
                return str(size)
            case lang.ProgramId(axis):
                return axis
            case lang.Full(number):
                return f"{number:g}"
            case lang.Iota(dim, _):
                return f"0, 1, ... below {dim.length}"
            case lang.Apply(function) if function in SIGNS:
                return f" {SIGNS[function]} ".join(given)
            case lang.Apply("neg"):
                return f"-{given[0]}"
            case lang.Apply(function):
                return f"{function}({', '.join(given)})"
            case lang.Cast(dtype, bits):
                return f"{given[0]} {'read as' if bits else 'as'} {dtype}"
            case lang.Random(eight):
                return f"{'first' if eight is None else 'eight'}_random({', '.join(given)})"
            case lang.Reduce(function, dim):
                return f"{function} over {dim} of {given[0]}"
            case lang.SequenceRows(buffer, _, ahead):
                return f"{buffer.name} at {given[0]} + {given[1]}, or {ahead} before the tokens"
            case lang.Scan(function, dim, reverse):
                way = " from the end" if reverse else ""
                joined = f"running {function or 'join'} along {dim} of {', '.join(given)}"
                return f"{joined}{way}"
        return self._arranged(s, given)

    def _arranged(self, s: lang.Statement, given: list[str]) -> str:
        """A product, or what arranges elements, or control."""
        match s.op:
            case lang.Sort(_, most):
                return f"sorted {given[0]}" if most is None else f"top {most.length} of {given[0]}"
            case lang.Flip(dim):
                return f"{given[0]} from the end of {dim}"
            case lang.Dot(precision):
                added = f" + {given[2]}" if len(given) > 2 else ""
                return f"{given[0]} @ {given[1]}{added} ({precision})".removesuffix(" (ieee)")
            case lang.Pick(dim):
                return f"{given[0]} along {dim} at {given[1]}"
            case lang.Push(count):
                return f"{given[0]} moved down by one of {count}, then {given[1]}"
            case lang.Transpose() | lang.Relabel():
                return given[0]
            case lang.Broadcast():
                return f"{given[0]} everywhere"
            case lang.Given(buffer):
                return f"{buffer.name} is there"
            case lang.Chosen(constant, choice):
                return f"{constant} is {choice}"
            case lang.AtMost(size, most):
                return f"{size} is at most {most}"
            case lang.Reshape():
                return f"{given[0]} reshaped"
            case lang.If():
                return f"if {given[0]}"
            case lang.Barrier(counter):
                return "barrier" if counter else "wait for the threads of the program"
        return self._access(s, given)

    def _access(self, s: lang.Statement, given: list[str]) -> str:
        """A load or a store."""
        assert isinstance(s.op, lang.Load | lang.Store | lang.LoadBlock | lang.Atomic)
        count = len(s.op.buffer.axes)
        at = f"{s.op.buffer.name}[{', '.join(given[:count])}]"
        rest = given[count:]
        value = rest.pop(0) if isinstance(s.op, lang.Store | lang.Atomic) else ""
        where = f" where {', '.join(rest)}" if rest else ""
        match s.op:
            case lang.Store():
                return f"store {at} = {value}{where}"
            case lang.Atomic(_, function):
                return f"atomic {function} of {value} to {at}"
            case lang.LoadBlock():
                return f"load the block from {at} on"
        return f"load {at}{where}"


def _type(type: lang.Type) -> str:
    return f"{type.dtype}[{', '.join(type.names)}]" if type.dims else type.dtype
