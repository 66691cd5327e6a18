"""The language of tile programs: typed SSA values on tiles, loops, branches and memory.

A *launch* runs many *programs* of one `Program` side by side, one for each place of its grid. A
value is a tile: a small array with named dims (`[t, K]`), or a scalar, which is a tile without
dims. Every value is made once, by one `Statement`; a loop carries values from turn to turn.

Dims have a name and a block length, which is a number or an expression over the program's
constants. Names say what lines up: elementwise ops broadcast by name, `Dot` sums over the dim that
its operands share. A dim is padded: its length is a block, and the places beyond the tensor's size
are masked where memory is read or written.

Memory is buffers with named axes. A load or a store has one index an axis, which is a scalar or an
integer tile; there are no pointers to compute with. Offsets of scalars are counted in 64 bits; the
part of an index that is a tile is multiplied by the stride in its own dtype: i64 where 32 bits may
not do, as `verify_launch` says.

Integers stay within their dtype, and quotients and remainders are of integers that are not
negative: `verify_launch` and the interpreter refuse what they can tell. A `max`, `min`, `argmax` or
`argmin` of a NaN may drop it, as may `relu`: a program that needs it says `where(x != x, x, ...)`.
Zeros have no sign.

Nothing here knows of layouts in registers, warps or text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sympy

from archc.source import Span

REALS = ("f16", "bf16", "f32", "f64")
DTYPES = (*REALS, "i32", "i64", "bool")
"""Dtypes with a fixed meaning. Any other name is a constant of the program: a real dtype that is
given at launch, as the dtype of the data; or `@x`, the dtype that buffer `x` has at launch."""

OF_BUFFER = "@"
"""The prefix of the dtype of a buffer that is whatever it is at launch: it needs no constant."""


def kind(dtype: str) -> str:
    """Whether a dtype holds real numbers, integers or truth values."""
    return {"i32": "int", "i64": "int", "bool": "bool"}.get(dtype, "real")


@dataclass(frozen=True)
class Dim:
    """A dim of a tile: what it runs along, and the length of its block."""

    name: str
    length: sympy.Expr


@dataclass(frozen=True)
class Type:
    """The type of a value: a dtype, and dims from the outermost to the innermost."""

    dtype: str
    dims: tuple[Dim, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the dims, in order."""
        return tuple(dim.name for dim in self.dims)

    def place(self, name: str) -> int:
        """The position of a dim; ValueError if there is none of that name."""
        return self.names.index(name)


@dataclass(frozen=True, eq=False)
class Value:
    """One value; `name` is for readers, and unique in a program; `title` is what somebody called
    it, which others may be called too; `hint` is what it is called if it has a line of its own."""

    name: str
    type: Type
    title: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Buffer:
    """Memory that a launch is given: named axes with their sizes, in the order of the tensor's
    dims, and a dtype. `strided`: the tensor may be any view, and its strides are arguments.
    `rows`: the one axis whose stride is an argument, as slices of a wider tensor have it; of the
    axes before it strides follow from that one, and those after it are contiguous. Else it is
    contiguous in the order of the axes. `optional`: it may be missing at launch, and is touched in
    a branch on `Given` alone. `anywhere`: machine code knows nothing of where rows begin, so that a
    thread has single numbers of them, and the threads beside it the next ones."""

    name: str
    axes: tuple[tuple[str, sympy.Expr], ...]
    dtype: str
    strided: bool = False
    doc: str = ""
    optional: bool = False
    rows: str = ""
    anywhere: bool = False

    @property
    def steps(self) -> tuple[str, ...]:
        """The axes whose strides are arguments."""
        return tuple(axis for axis, _ in self.axes if self.strided or axis == self.rows)


# --- ops: values without operands ---------------------------------------------------------------


@dataclass(frozen=True)
class Scalar:
    """A size of the launch: an expression over the program's sizes and constants."""

    size: sympy.Expr


@dataclass(frozen=True)
class ProgramId:
    """The place of this program along an axis of the grid."""

    axis: str


@dataclass(frozen=True)
class Iota:
    """0, 1, 2, ... along a dim. `most`: a thread is to have so many at most side by side (0: as
    many as memory is read best with), so that it has all of the other dim of its tiles."""

    dim: Dim
    most: int = 0


@dataclass(frozen=True)
class Full:
    """A tile of one number."""

    number: float
    type: Type


@dataclass(frozen=True)
class Given:
    """Whether an optional buffer is there: known when machine code is made, so that a branch on it
    costs nothing."""

    buffer: Buffer


@dataclass(frozen=True)
class Chosen:
    """Whether a constant of the program that is a dtype or a precision is this one, or `@x` the
    dtype of buffer `x`: known when machine code is made, as `Given` is."""

    constant: str
    choice: str


@dataclass(frozen=True)
class AtMost:
    """Whether one size of the program's constants is at most another: known when machine code is
    made, as `Given` is."""

    size: sympy.Expr
    most: sympy.Expr


# --- ops: arithmetic ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Apply:
    """An elementwise function (`archc/functions`), broadcast by the names of dims."""

    function: str


@dataclass(frozen=True)
class Cast:
    """A number in another dtype; `bits` keeps the bits instead (32 bits to 32 bits)."""

    dtype: str
    bits: bool = False


RANDOM = 1 << 16
"""What random numbers are below."""


@dataclass(frozen=True)
class Random:
    """Numbers of 16 bits, evenly distributed: a function of a seed and a counter (Philox 4x32 of
    ten rounds, Salmon et al. 2011), so that a gradient makes the same ones again. A counter has
    eight: the first, or with a `dim` all of them, one after the other along the last dim."""

    dim: Dim | None = None


@dataclass(frozen=True)
class Reduce:
    """`sum`, `product`, `max`, `min`, `argmax` or `argmin` along a dim, which goes. Of equal
    numbers, `argmax` and `argmin` choose the first."""

    function: str
    dim: str


@dataclass(frozen=True)
class Scan:
    """The running `sum`, `product`, `max` or `min` along a dim, from its end if `reverse`.

    Without a function, several tiles are scanned together by the statement's own block: it takes an
    element of each of what comes before, then of what follows, and yields both joined. The join is
    associative and elementwise: of h -> a h + b it is (a1, b1), (a2, b2) -> (a1 a2, a2 b1 + b2)."""

    function: str
    dim: str
    reverse: bool = False


@dataclass(frozen=True)
class Sort:
    """A tile sorted along its last dim; where `most` is given, only the largest so many, from the
    largest on."""

    descending: bool = False
    most: Dim | None = None


@dataclass(frozen=True)
class Flip:
    """A tile from the end of a dim to its begin."""

    dim: str


@dataclass(frozen=True)
class Dot:
    """A product of matrices `[m, k] @ [k, n]`, or of several, `[b, m, k] @ [b, k, n]`, added to a
    third operand if there is one, summed in float32. `precision` is of float32 operands: `ieee`,
    `tf32` or `tf32x3`, or a constant of the program that is one of them at launch."""

    precision: str = "ieee"


# --- ops: the same numbers, arranged otherwise --------------------------------------------------


@dataclass(frozen=True)
class Transpose:
    """Dims in another order."""

    order: tuple[str, ...]


@dataclass(frozen=True)
class Relabel:
    """Dims with other names."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class Broadcast:
    """A tile along further dims. `held`: these stand last, and each thread has all of them."""

    dims: tuple[Dim, ...]
    held: bool = False


@dataclass(frozen=True)
class Reshape:
    """One dim as several, or several as one, the last of them fastest."""

    dims: tuple[Dim, ...]


@dataclass(frozen=True)
class Pick:
    """Elements along a dim, at the indices of a second operand, which has the same dims."""

    dim: str


@dataclass(frozen=True)
class Push:
    """The first `count` elements along the last dim moved down by one, and those of a second
    operand, which lacks this dim, put last. Each thread has all elements along it."""

    count: sympy.Expr


# --- ops: memory --------------------------------------------------------------------------------


@dataclass(frozen=True)
class SequenceRows:
    """Rows of an optional table of packed sequences, each of which has `before` rows in front of
    its tokens. Operands are a first row and a tile of what is added to it, how many tokens there
    are, and a row of the batch; results a scalar and a tile whose sum is the token of each row, and
    of its sequence the token after the last, how many tokens stand before, whether it has the token
    (which is one of all, then), and which it is. Off the table no token is in a sequence. Without a
    table the rows are those of the row of the batch, with `ahead` rows in front."""

    buffer: Buffer
    before: sympy.Expr
    ahead: sympy.Expr


@dataclass(frozen=True)
class Load:
    """Read a buffer: operands are an index for each axis, then masks. Where a mask is false nothing
    is read, and the value is `fill`. One that is `apart` is not joined with another of the same
    places."""

    buffer: Buffer
    fill: float = 0.0
    apart: bool = False


@dataclass(frozen=True)
class Store:
    """Write a buffer: operands are an index for each axis, the value, then masks. `exclusive` says
    of indices that are read from memory that no two are the same: checked when it runs."""

    buffer: Buffer
    exclusive: bool = False


@dataclass(frozen=True)
class LoadBlock:
    """Read a block of a buffer through a descriptor (the copy engine of newer GPUs): operands are
    the first index of each axis. Axes in `dims` get a tile dim; the others one index. Places beyond
    the buffer's size are 0. The last axis is contiguous, and is one of them. `chosen`: the constant
    of the program that is 1 where the branch is taken in which it stands: a descriptor of memory
    that the engine cannot read would be an error."""

    buffer: Buffer
    dims: tuple[tuple[str, Dim], ...]
    chosen: str = ""


@dataclass(frozen=True)
class Atomic:
    """Add, `max` or `min` into a buffer at once, and give what was there: operands as of a store.
    The order of real sums would change from run to run: only integers have `add`."""

    buffer: Buffer
    function: str = "add"


@dataclass(frozen=True)
class Barrier:
    """Wait until every program of the launch is here. Operands: how many barriers there were before
    this one. `counter` is one integer, 0 at launch; all programs must be on the GPU at once.
    Without a counter (and operands) a program waits for its own threads alone, so that it may read
    what it wrote."""

    counter: Buffer | None = None


# --- ops: control -------------------------------------------------------------------------------


@dataclass(frozen=True)
class For:
    """A loop: operands are the first index, the one after the last, then what is carried into the
    first turn. Its block takes the index (of the wider dtype of both bounds) and what is carried,
    and yields what the next turn gets. `ahead` is how many turns all loads may be issued
    ahead, a number or a constant of the program (None: the compiler's choice, which loads factors
    of products alone ahead). Machine code does `together` turns as one: `ahead` counts these."""

    ahead: int | str | None = None
    together: int = 1


@dataclass(frozen=True)
class While:
    """A loop that goes on while a truth value holds: operands are the first one, then what is
    carried into the first turn. Its block takes and yields the same; the results lack the truth
    value. `most` is how many turns there may be at most: a contract that the interpreter checks."""

    most: sympy.Expr


ROW = ("sequence", "base", "start", "end", "low", "high", "row", "live")
"""A row of a table of sequences or segments: which one, the token that a chunk 0 of it would begin
with, its first token and the one after its last, the same of its chunks, and its row of the batch.
It is `live` if it is of any sequence, as it is without a table."""


@dataclass(frozen=True)
class If:
    """A branch on a scalar: two blocks without arguments that yield values of the same types, which
    are the results. A barrier of all programs stands in none. `fields`: which numbers of a row of
    an optional table the results are (`ROW`), or what stands for these where there is none."""

    fields: tuple[str, ...] = ()


Op = (
    Scalar | ProgramId | Iota | Full | Given | Chosen | AtMost | Apply | Cast | Random | Reduce
    | Scan | Sort | Flip | Dot | Transpose | Relabel | Broadcast | Reshape | Pick | Push | Load
    | SequenceRows | Store | LoadBlock | Atomic | Barrier | For | While | If
)  # fmt: skip

PURE = (
    Scalar, ProgramId, Iota, Full, Apply, Cast, Random, Reduce, Scan, Sort, Flip, Dot, Transpose,
    Relabel,
    Broadcast, Reshape, Pick, Push, Given, Chosen, AtMost,
)  # fmt: skip
"""Ops that make the same value of the same operands, wherever they stand."""


# --- programs -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Statement:
    """One op (an `Op`), what it is given, and what it makes. `note` is the equation that it stands
    for, and `span` the place in a spec that it comes from."""

    op: Any
    operands: tuple[Value, ...] = ()
    results: tuple[Value, ...] = ()
    blocks: tuple[Block, ...] = ()
    note: str = ""
    span: Span | None = None


@dataclass(eq=False)
class Block:
    """Statements in order, with the values that enter and those that leave."""

    arguments: tuple[Value, ...] = ()
    statements: list[Statement] = field(default_factory=list)
    yields: tuple[Value, ...] = ()


@dataclass(frozen=True, eq=False)
class Program:
    """The program of one launch. `sizes` are numbers of the launch, `constants` numbers and dtypes
    that the machine code is made for; `varying` are sizes that change from call to call, as the
    number of tokens does: machine code knows nothing of them, not even whether 16 divides them.
    `grid` says how many programs there are along each axis, the last of them fastest.
    `cooperative`: all programs run at once, as a barrier needs it. `apart`: a size that is never 0,
    by which compilers are kept from seeing that products of matrices follow each other ("": they
    may see it); see `dot_apart` of the runtime."""

    name: str
    doc: str
    buffers: tuple[Buffer, ...]
    sizes: tuple[sympy.Symbol, ...]
    constants: tuple[str, ...]
    grid: tuple[tuple[str, sympy.Expr], ...]
    body: Block
    warps: int = 4
    ahead: int = 3
    cooperative: bool = False
    varying: tuple[str, ...] = ()
    apart: str = ""


def statements(block: Block) -> Iterator[Statement]:
    """Every statement of a block and of the blocks in it, in the order of the text."""
    for statement in block.statements:
        yield statement
        for inner in statement.blocks:
            yield from statements(inner)


def parts(index: Value, made: Statement | None) -> tuple[Value | None, Value | None]:
    """A scalar and a tile whose sum an index is, by what made it."""
    if not index.type.dims:
        return index, None
    if made is not None and made.op == Apply("add"):
        for scalar, tile in (made.operands, made.operands[::-1]):
            if not scalar.type.dims and tile.type.dims == index.type.dims:
                return scalar, tile
    return None, index


def memory(op: Op) -> Buffer | None:
    """The buffer that an op reads or writes, if any."""
    if isinstance(op, Load | Store | LoadBlock | Atomic | Given | SequenceRows):
        return op.buffer
    return op.counter if isinstance(op, Barrier) else None
