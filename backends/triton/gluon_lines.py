"""How values, their layouts and addresses are written in the functions of a kernel by warps.

A tile along what is owned and what is walked lies as products of matrices give it; so does a vector
along one of both, and a tile along what is owned and a dim of vectors, of which each such dim has a
layout. Half of the rows that a program owns are of each group of warps, whose number is `W`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from archc.backends.triton.arguments import arguments, pointer
from archc.backends.triton.elementwise import GLUON_TEXT
from archc.backends.triton.gluon_roles import Roles, Unknown
from archc.backends.triton.printer import WHOLE
from archc.backends.triton.spelling import (
    GLUON,
    INDENT,
    dtype_text,
    gluon_size,
    number_text,
    times_text,
)

from archc.ir.free_names import numbered
from archc.tile import language as lang
from archc.tile.language import Statement, Value

CALLS = re.compile(r"(?<![.\w])(?!float)[a-z_]\w*\(")
"""Functions of the runtime, which are Triton's."""

OWN = """
    W gl tma mbarrier warpgroup_mma warpgroup_mma_wait fence_async_shared ring_stage ring_phase
    no_scores row rest beside stage STAGES REGISTERS TOGETHER late_going late_factor
    late_sum late_next late_stage late_phase late_turn
    turn half weights_held weights_ready weights_free handed handed_ready factors_ready own_ready
""".split()
"""Words of the text besides the names of values."""


class Shared:
    """What the functions of one kernel share: the names of values whose own ones are taken, and
    those of layouts, by the dim beside the one that is owned."""

    def __init__(self, program: lang.Program, found: Roles):
        self.program, self.roles = program, found
        self.arguments = arguments(program, GLUON)
        self.names = self._renamed()
        wide = [n for v in found.dims for n in found.dims[v] if n not in (found.own, found.walk)]
        self.layouts = {found.walk: "of_pairs"} | {n: f"of_{n}" for n in dict.fromkeys(wide)}

    def _renamed(self) -> dict[Value, str]:
        """Another name for the values whose own one is taken."""
        taken = self.arguments.taken | {*OWN}
        used = {*taken, *(value.name for value in self.roles.dims)}
        found: dict[Value, str] = {}
        for value in self.roles.dims:
            if value.name in taken:
                found[value] = numbered(value.name, used)
                used.add(found[value])
        return found


class Lines:
    """Lines of one function, and how values are written in it. `halved`: the dim of which a group
    of warps has one half."""

    def __init__(self, shared: Shared):
        self.shared, self.roles = shared, shared.roles
        self.halved = self.roles.own
        self.lines: list[str] = []
        self.depth = 1

    def line(self, text: str) -> None:
        self.lines.append(INDENT * self.depth + text)

    # --- values ---

    def name(self, value: Value) -> str:
        """How a value is written, by which it is there."""
        made = self.roles.made.get(value)
        if made is None or value.type.dims:
            return self.shared.names.get(value, value.name)
        if isinstance(made.op, lang.Scalar):
            return gluon_size(made.op.size)
        if isinstance(made.op, lang.Full):
            return number_text(made.op.number)
        if isinstance(made.op, lang.ProgramId):
            return self.shared.arguments.places[made.op.axis]
        return self.shared.names.get(value, value.name)

    def seen(self, value: Value, dims: tuple[str, ...]) -> str:
        """A value among these dims."""
        own, name = self.roles.dims[value], self.name(value)
        if not own or own == dims:
            return name
        if len(own) != 1 or len(dims) != 2:
            raise Unknown(f"{value.name} along {dims}")
        if own[0] != dims[0]:
            return f"{name}[None, :]"
        if dims[1] != self.roles.walk:
            name = f"gl.convert_layout({name}, {self.layout(dims, 1)})"
        return f"{name}[:, None]"

    def layout(self, dims: tuple[str, ...], without: int | None = None) -> str:
        """How a tile lies in registers, or one that is the same along a dim of it."""
        if without is None and len(dims) == 1:
            if dims[0] in (self.roles.own, self.roles.walk):
                pair = (self.roles.own, self.roles.walk)
                return self.layout(pair, 1 - pair.index(dims[0]))
            return self.layout((self.roles.own, dims[0]), 0)
        if dims[0] != self.roles.own:
            raise Unknown(f"a tile along {dims}")
        whole = self.shared.layouts[dims[1]]
        return whole if without is None else f"gl.SliceLayout({without}, {whole})"

    def length(self, name: str) -> str:
        """How long a tile is along a dim."""
        text = gluon_size(self.roles.lengths[name])
        return f"{text} // 2" if name == self.halved else text

    def shape(self, dims: Sequence[str]) -> str:
        return f"[{', '.join(map(self.length, dims))}]"

    # --- statements ---

    def let(self, statement: Statement) -> None:
        """The line that makes a value, unless it is written where it is read."""
        (result,) = statement.results
        op, dims = statement.op, self.roles.dims[result]
        if not dims and isinstance(op, lang.Scalar | lang.Full | lang.ProgramId):
            return
        text = self._text(statement, dims)
        self.line(f"{self.shared.names.get(result, result.name)} = {text}")

    def _text(self, s: Statement, dims: tuple[str, ...]) -> str:
        op = s.op
        if isinstance(op, lang.Apply):
            return self._apply(s, dims)
        if isinstance(op, lang.Cast):
            if op.bits:
                raise Unknown("bits of a number")
            return f"gl.cast({self.seen(s.operands[0], dims)}, {dtype_text(op.dtype, GLUON)})"
        if isinstance(op, lang.Full):
            given = [self.shape(dims), number_text(op.number), dtype_text(op.type.dtype, GLUON)]
            return f"gl.full({', '.join([*given, self.layout(dims)])})"
        if isinstance(op, lang.Iota) and not op.most:
            text = f"gl.arange(0, {self.length(dims[0])}, {self.layout(dims)})"
            half = dims[0] == self.halved
            return f"{text} + W * ({self.length(dims[0])})" if half else text
        if isinstance(op, lang.Reduce):
            return self._reduce(s, dims)
        if isinstance(op, lang.Load):
            return self._load(s, dims)
        raise Unknown(type(op).__name__)

    def _apply(self, s: Statement, dims: tuple[str, ...]) -> str:
        function = s.op.function
        given = [self.seen(value, dims) for value in s.operands]
        if function in WHOLE and lang.kind(s.results[0].type.dtype) == "int":
            return f" {WHOLE[function]} ".join(given)
        if function == "sigmoid":
            return f"1.0 / (1.0 + gl.exp2({given[0]} * -1.4426950408889634))"
        text = GLUON_TEXT[function](*given)
        if CALLS.search(text):
            raise Unknown(f"the function {function}")
        return text

    def _reduce(self, s: Statement, dims: tuple[str, ...]) -> str:
        (value,) = s.operands
        given = self.roles.dims[value]
        if s.op.function not in ("sum", "max", "min") or s.op.dim not in given:
            raise Unknown(f"{s.op.function} over {s.op.dim}")
        if s.op.dim == self.roles.own or len(given) != 2:
            raise Unknown("a sum over what two groups of warps own")
        text = f"gl.{s.op.function}({self.seen(value, given)}, {given.index(s.op.dim)})"
        if s.op.dim == self.roles.walk:
            return text
        return f"gl.convert_layout({text}, {self.layout(dims)})"

    # --- memory ---

    def _load(self, s: Statement, dims: tuple[str, ...]) -> str:
        count = len(s.op.buffer.axes)
        at = self.address(s.op.buffer, s.operands[:count], dims)
        mask = " & ".join(self.seen(value, dims) for value in s.operands[count:])
        where = f", {mask}, {number_text(s.op.fill)}" if mask else ""
        return f"gl.load({at}{where})"

    def store(self, s: Statement) -> None:
        """The line that stores a tile."""
        count = len(s.op.buffer.axes)
        index, value, masks = s.operands[:count], s.operands[count], s.operands[count + 1 :]
        names = {name for each in index for name in self.roles.dims[each]}
        dims = self.roles.dims[value]
        if {*dims} != names or self.roles.own not in names:
            raise Unknown("a store of what no group of warps owns alone")
        at = self.address(s.op.buffer, index, dims)
        mask = " & ".join(self.seen(each, dims) for each in masks)
        self.line(f"gl.store({at}, {self.seen(value, dims)}{f', {mask}' if mask else ''})")

    def address(
        self, buffer: lang.Buffer, index: Sequence[Value], dims: tuple[str, ...], whole: bool = True
    ) -> str:
        """The pointer of an element for each index; not `whole`: of where a tensor begins along
        axes of a tile."""
        terms = [pointer(buffer)]
        tiles: list[str] = []
        for (axis, _), value in zip(buffer.axes, index, strict=True):
            scalar, tile = lang.parts(value, self.roles.made.get(value))
            step = times_text(self.shared.arguments.stride(buffer, axis))
            skipped = not whole and tile is not None
            if scalar is not None and not skipped and self.name(scalar) not in ("0", "0.0"):
                terms.append(f"gl.cast({self.name(scalar)}, gl.int64){step}")
            if tile is not None and not skipped:
                tiles.append(f"{self.seen(tile, dims)}{step}")
        base = " + ".join(terms)
        return " + ".join([f"({base})", *tiles]) if tiles else base
