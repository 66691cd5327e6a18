"""Tile programs of one token that solve a system with a state, as Gluon for Hopper: a thread has
four columns of a state and a part of the rows, and each warp has vectors whole.

Of a product with the state a thread so reads a part of the vector, warps hand each other one vector
a product, and sums of vectors are sums of a warp. Triton has whole columns or rows in a thread, and
vectors over all warps: each sum is a barrier. What cannot be said is a `Refusal`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from archc.backends.triton.elementwise import GLUON_TEXT
from archc.backends.triton.printer import Printer, head
from archc.backends.triton.spelling import GLUON, INDENT, number_text

from archc.ir.refusal import Refusal
from archc.tile import language as lang
from archc.tile.given import given_names
from archc.tile.language import Statement, Value

SUFFIX = "_by_columns"

LAYOUTS = """
# four columns a thread and four rows of 16, which other warps have other columns of
of_tiles: gl.constexpr = gl.BlockedLayout([4, 4], [4, 8], [1, gl.num_warps()], [1, 0])
of_rows: gl.constexpr = gl.SliceLayout(1, of_tiles)
of_columns: gl.constexpr = gl.SliceLayout(0, of_tiles)
of_vectors: gl.constexpr = gl.BlockedLayout([4], [32], [gl.num_warps()], [0])
""".strip().splitlines()

SAID = (
    lang.Scalar, lang.ProgramId, lang.Iota, lang.Full, lang.Apply, lang.Cast, lang.Given,
    lang.While, lang.Reduce, lang.Relabel, lang.Load, lang.Store, lang.If, lang.Chosen, lang.AtMost,
)  # fmt: skip
"""The ops that are written as in Triton, but for layouts."""


def to_gluon_columns(program: lang.Program) -> str | Refusal:
    """The text of a kernel that is called as that of Triton is, with `SUFFIX` behind."""
    for statement in lang.statements(program.body):
        op, types = statement.op, [value.type for value in statement.results]
        if not isinstance(op, SAID) or any(len(type.dims) > 2 for type in types):
            return Refusal(None, f"{type(op).__name__} of {types}")
    printer = ColumnPrinter(program)
    known = given_names(program)
    lines = [*head(program, printer.names, GLUON), *(INDENT + line for line in LAYOUTS)]
    lines[0] = f"def {program.name}{SUFFIX}("
    varying = [f'"{name}"' for name in program.varying if name in known]
    decorator = f"@gluon_kernel(varying=({', '.join(varying)}{',' * (len(varying) == 1)}))"
    return "\n".join([decorator, *lines, *printer.lines(), ""])


class ColumnPrinter(Printer):
    """The lines of one program: each warp has every vector, and changes its layout where that goes
    along a tile. Places and masks have a name for each layout."""

    of, functions = GLUON, GLUON_TEXT

    def __init__(self, program: lang.Program):
        self.placed, self.layout = set[Value](), ""
        super().__init__(program)

    def name(self, value: Value) -> str:
        """How a value is written; a place or a mask, in the layout of what is written now."""
        name = super().name(value)
        return f"{name}{self.layout}" if self.layout and self._is_placed(value) else name

    def _is_placed(self, value: Value) -> bool:
        """Whether there is one of a value for each layout."""
        own = self.source(value)
        return self.twins.get(own, own) in self.placed

    def seen(self, value: Value, names: Sequence[str], least: int = 0) -> str:
        """A value among dims: a vector along one of two lies as the tile does."""
        own = value.type.names
        if len(own) != 1 or len(names) != 2:
            return super().seen(value, names, least)
        first = names[0] == own[0]
        layout, place = ("_rows", "[:, None]") if first else ("_columns", "[None, :]")
        if self._is_placed(value):
            return f"{self.name(value)}{layout}{place}"
        return f"gl.convert_layout({self.name(value)}, of{layout}){place}"

    def tile(
        self, buffer: lang.Buffer, index: Sequence[Value], dims: Sequence[str],
        masks: Sequence[Value],
    ) -> tuple[list[str], list[str], list[str]] | None:  # fmt: skip
        """The arguments of `load_tile` and `store_tile`: first those of rows, then of columns."""
        made = []
        for layout in ("_rows", "_columns", ""):
            self.layout = layout
            made.append(super().tile(buffer, index, dims, masks))
        if made[0] is None or made[1] is None:
            return None
        (lines, (base, *rows), last), (_, columns, _), _ = made
        return lines, [base, *rows[:3], *columns[4:]], last

    def block_of_dim(self, mask: Statement, iota: Statement) -> Iterator[str]:
        """The places of a block along a dim, and which of them are inside."""
        (inside,), (place, end) = mask.results, mask.operands
        base = None if place is iota.results[0] else lang.parts(place, self.made[place])[0]
        first = "" if base is None else f"{self.bound(base)} + "
        yield from self._places_of(iota)
        self.placed.add(inside)
        for self.layout in ("", "_rows", "_columns"):
            i = self.name(iota.results[0])
            yield f"{self.name(inside)} = {first}{i} < {self.name(end)}"
        self.layout = ""

    def _places_of(self, iota: Statement) -> Iterator[str]:
        """The places along a dim, in each layout."""
        (places,), count = iota.results, self.size(iota.op.dim.length)
        self.placed.add(places)
        for self.layout, of in (("", "vectors"), ("_rows", "rows"), ("_columns", "columns")):
            yield f"{self.name(places)} = gl.arange(0, {count}, of_{of})"
        self.layout = ""

    def _statement(self, statement: Statement, indent: str) -> Iterator[str]:
        op, text = statement.op, ""
        if isinstance(op, lang.Full) and len(op.type.dims) == 1:
            given = [self.shape(op.type), number_text(op.number), self.dtype(op.type.dtype)]
            text = f"gl.full({', '.join([*given, 'of_vectors'])})"
        elif isinstance(op, lang.Reduce) and len(statement.operands[0].type.dims) == 2:
            (x,) = statement.operands
            text = f"gl.{op.function}({self.name(x)}, {x.type.place(op.dim)})"
            text = f"gl.convert_layout({text}, of_vectors)"
        elif isinstance(op, lang.Iota) and statement not in self.beside:
            yield from (indent + line for line in self._places_of(statement))
            return
        if text:
            yield from (indent + line for line in self.let(statement, text))
        else:
            yield from super()._statement(statement, indent)
