"""Layer IR: what a layer computes, on named tensors.

A value is a tensor whose axes have names; batch and time are axes like any other (`batch`, `t`),
and a parameter has neither. Ops are joined by axis name, so there is no broadcasting rule to
remember and no layout. What the language calls norm, rope, convolution, expert, block or
memory is not here: it has become these ops, and a compiler pass sees only them.

Not here: layouts, devices, precision; nor chunks, whose ops are in `chunk.py`.

Reading order: the ops below, `typing.py` (types of results), `meaning.py` (what each op computes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import sympy

from archc.dims import Axis
from archc.ir.chunk_section import NO_RULES, ChunkRules
from archc.ir.graph import Graph, Node, Type
from archc.ir.value_names import state_before
from archc.source import Source, Span

# --- values that come from outside -------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """A value given from outside: an input of the layer, or of a body graph.

    An optional input of a layer may be left out; outputs that depend on it are then left out too.
    """

    name: str
    type: Type
    optional: bool = False


@dataclass(frozen=True)
class Init:
    """How a parameter starts: `fn` of numbers and of further `Init`s.

    fn is one of: value (args[0]: a sympy number), normal (mean, std), uniform (low, high),
    loguniform (low, high), or a function of one Init: exp, log, neg, inverse_softplus, logit;
    `default` stands for normal(0, 1/sqrt(args[0])) with args[0] the size of what the parameter
    contracts.
    """

    fn: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Param:
    """A trained tensor of the layer."""

    name: str
    axes: tuple[Axis, ...]
    init: Init


@dataclass(frozen=True)
class Constant:
    """A number: an exact sympy expression in the layer's sizes and options (`1/sqrt(K)`, `-oo`)."""

    value: sympy.Expr


@dataclass(frozen=True)
class Position:
    """0, 1, 2, ... along an axis, as integers of shape [axis].

    Along a stream it is the token's position in the whole sequence, also when that is continued.
    `own`: each sequence of the batch has positions of its own, [batch, axis] (`own_positions.py`).
    """

    axis: Axis
    own: bool = False


@dataclass(frozen=True)
class Delta:
    """The identity matrix of shape [row, col]: 1 where the two positions are equal."""

    row: Axis
    col: Axis


@dataclass(frozen=True)
class Noise:
    """Dropout's factor with the shape of its operand: in training 0 with probability p (a number)
    and 1/(1 - p) otherwise; 1 outside training. The operand gives only the shape. A second one, if
    there is any, is the seed that the factor is a function of."""

    p: sympy.Expr


# --- tokenwise algebra -------------------------------------------------------------------------


@dataclass(frozen=True)
class Elementwise:
    """`fn` of its operands, broadcast by axis name (`FUNCTIONS`,
    `archc/functions/definitions.py`)."""

    fn: str


@dataclass(frozen=True)
class Reduce:
    """`fn` (sum, mean, max, min, prod) over the named axes; of nothing, max is -inf and sum 0."""

    fn: str
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Contract:
    """Sum of the product of one or two operands over every label that is not in `out` (einsum).

    `ins` gives each operand's axes a label in order; `out` lists the labels kept, with the axis
    each becomes. With one operand it transposes, renames axes, sums some of them or takes a
    diagonal.
    """

    ins: tuple[tuple[str, ...], ...]
    out: tuple[tuple[str, Axis], ...]


@dataclass(frozen=True)
class Gather:
    """`x[..., index, ...]`: operand 0 read along `axis` at the integers of operand 1.

    The axes of the index take the place of `axis`; axes of both are read at the same position.
    """

    axis: str


@dataclass(frozen=True)
class Scatter:
    """The sums of operand 0 over those positions of `axis` whose integer in operand 1 ([axis]) is
    0, 1, 2, ... : the transpose of Gather. `into` takes the place of `axis`."""

    axis: str
    into: Axis


@dataclass(frozen=True)
class Join:
    """The entries of each operand along its own axis, one operand after the other, along `into`.

    `axes` names the axis of each operand; operands broadcast along all others.
    """

    axes: tuple[str, ...]
    into: Axis


@dataclass(frozen=True)
class Reshape:
    """The entries along `axes`, the last of them counted fastest, counted along `into` instead."""

    axes: tuple[str, ...]
    into: tuple[Axis, ...]


@dataclass(frozen=True)
class Top:
    """True at the `count` largest values along `axis` (ties: the lowest position), else False.

    NaN is the largest, as torch has it; -inf is never chosen; if `count` is larger than the axis,
    everything else is. No gradient.
    """

    axis: str
    count: sympy.Expr


@dataclass(frozen=True)
class Solve:
    """z with A z = b for operands A[..., row, col] and b[..., row].

    The result has `row` again. Its meaning is the exact solution; where A is `definite`, known to
    be symmetric and positive definite, `iterations` of conjugate gradients are how a backend may
    approximate it (None: exact).
    """

    row: str
    col: str
    iterations: sympy.Expr | None
    definite: bool = False


# --- ops that look along a sequence ------------------------------------------------------------


@dataclass(frozen=True)
class Shift:
    """The value `steps` tokens earlier along `stream`; 0 before the first token."""

    stream: str
    steps: int


@dataclass(frozen=True)
class Window:
    """Runs of tokens along `stream`, laid out on a new axis `width` right after the streams.

    stride None: the result keeps the stream; at token t it holds tokens t - width + 1 ... t, oldest
    first, 0 before the first token. With a stride: the stream is replaced by `blocks`, whose
    element b holds tokens b * stride ... b * stride + width - 1; there is one for every complete
    run.
    """

    stream: str
    width: Axis
    stride: sympy.Expr | None = None
    blocks: Axis | None = None


@dataclass(frozen=True)
class Softmax:
    """Weights along the axis `over` (inside an Attend: the tokens read).

    Operands: scores, mask (bool; False is left out), and optionally a sink: a score without the
    axis that takes part in the denominator only. Where nothing is left in, all weights are 0.
    """

    over: str


@dataclass(frozen=True)
class Segment:
    """`kind` ("sum" or "product") over the tokens r with s < r <= t, for every pair (t, s).

    Operand: a value along `path`, which may depend on the reader too. Result: `reader` and `read`
    in place of `path`. A product multiplies the matrices [row, col] in order, M[s+1] @ ... @ M[t];
    where s >= t it is 0 or the identity.
    """

    kind: str
    path: str
    reader: Axis
    read: Axis
    row: str | None = None
    col: str | None = None


@dataclass(frozen=True)
class State:
    """A state of a Recurrence: its name in the spec and its axes, batch among them."""

    name: str
    axes: tuple[Axis, ...]

    @property
    def before(self) -> str:
        """The name of its value before the token, an input of the body."""
        return state_before(self.name)


@dataclass(frozen=True)
class Substitute:
    """z with z[t] = b[t] + the sum over earlier s of A[t, s] z[s]: forward substitution.

    Operands: A[..., t, read, ...], of which only s < t counts, and b[..., t, ...]; `read` stands
    for all tokens that there have been. In `reverse`, z[t] is made from later tokens s, from the
    last one on: the transposed system, which a gradient solves.
    """

    read: str
    reverse: bool = False


@dataclass(frozen=True, eq=False)
class Recurrence:
    """States carried from token to token along `stream` by `body`.

    Operands: one for each name in `captures`, then the initial value of each state (broadcast to
    its axes). Inputs of the body: the captures at one token (without the stream axis), and for each
    state S its value before the token, named `S[t-1]`. Outputs of the body: for each state S its
    value after the token, named `S`, and any further names. `Result(name)` reads either along the
    stream. `heads` are the axes over which the spec declares independent copies of the states,
    `laws` the composition laws that it gives (`given_law.py`).
    """

    stream: Axis
    captures: tuple[str, ...]
    states: tuple[State, ...]
    body: Graph
    heads: tuple[str, ...] = ()
    reverse: bool = False
    chunked: Any = None
    laws: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class Attend:
    """The result of each token t (`reader`) from the tokens it reads: `body` over pairs of
    positions.

    Operands: one for each of `captures`: (name of the body's input, role). Role "reader" enters as
    it is, "read" with its stream renamed to `read`, "path" with its stream renamed to `path`. In
    the body `reader` and `read` are ordinary axes, so a score has both; a mask is a bool made from
    their positions. `source` is the stream that is read (`t` itself, or another), `window` the
    number of latest positions that can ever be read, if bounded. `decode` is the body in another
    order, which takes less where few tokens read many.
    """

    reader: Axis
    read: Axis
    source: str
    captures: tuple[tuple[str, str], ...]
    body: Graph
    path: Axis | None = None
    window: sympy.Expr | None = None
    causal: bool = True
    decode: Graph | None = None


# --- structure ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """One of the results of a Recurrence, an Attend or a Call, by name."""

    name: str


@dataclass(frozen=True, eq=False)
class Call:
    """Another layer applied to the operands, one for each of the callee's inputs in order.

    `path` is where its parameters live in the caller (`layers.0.mixer`); `sizes` gives each symbol
    of the callee its value in the caller's symbols; `axes` names, for each callee axis, the
    caller's.
    """

    callee: Layer
    path: str
    sizes: tuple[tuple[str, sympy.Expr], ...]
    axes: tuple[tuple[str, Axis], ...]


Op = (
    Input | Param | Constant | Position | Delta | Noise | Elementwise | Reduce | Contract | Gather
    | Scatter | Join | Reshape | Top | Solve | Shift | Window | Softmax | Segment | Substitute
    | Recurrence | Attend | Result | Call
)  # fmt: skip

OPS: tuple[type, ...] = (
    Input, Param, Constant, Position, Delta, Noise, Elementwise, Reduce, Contract, Gather, Scatter,
    Join, Reshape, Top, Solve, Shift, Window, Softmax, Segment, Substitute, Recurrence, Attend,
    Result, Call,
)  # fmt: skip
"""Every op there is: tables about ops (meaning, emission, ...) must cover exactly these."""


def is_product(op: object) -> bool:
    """Whether an op multiplies two values, and sums over labels that it does not keep."""
    return isinstance(op, Contract) and len(op.ins) == 2


def captured(node: Node) -> dict[str, int]:
    """The values that the body of a Recurrence reads from around it, by their names there."""
    return dict(zip(node.op.captures, node.operands, strict=False))


def renames(op: object) -> bool:
    """Whether an op gives axes other names, or another order, and does nothing else."""
    if not isinstance(op, Contract) or len(op.ins) != 1:
        return False
    return sorted(op.ins[0]) == sorted(label for label, _ in op.out)


# --- layers ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arg:
    """A size or option of a layer.

    `symbol` stands for it in sizes and constants; None for an option that was settled when the
    layer was elaborated (a list, a text, `none`, a layer), whose value is then `default`.
    Otherwise `default` is a sympy expression in earlier arguments, or None where the user must give
    it.
    """

    name: str
    symbol: sympy.Symbol | None
    default: Any = None


@dataclass(frozen=True)
class Requirement:
    """A condition on sizes that must hold; `settled`: the elaboration took a branch on it."""

    condition: Any
    text: str
    span: Span | None
    settled: bool = False


@dataclass(eq=False)
class Layer:
    """A layer, block or model: its arguments, the conditions on them, and its graph.

    `kind` is the word of its declaration, or "argument" for a layer that the spec takes as an
    argument and that is given when a module is made: its graph hands on its input, as its shape.
    """

    name: str
    kind: str
    doc: str
    args: tuple[Arg, ...]
    graph: Graph
    source: Source
    span: Span
    requirements: tuple[Requirement, ...] = ()
    chunk: ChunkRules = NO_RULES

    @property
    def inputs(self) -> tuple[tuple[int, Input], ...]:
        """The inputs in the order of the spec, with their node ids."""
        return tuple((n.id, n.op) for n in self.graph if isinstance(n.op, Input))

    @property
    def params(self) -> tuple[tuple[int, Param], ...]:
        """The layer's own parameters (not those of layers it calls), in the order of the spec."""
        return tuple((n.id, n.op) for n in self.graph if isinstance(n.op, Param))

    @property
    def calls(self) -> tuple[tuple[int, Call], ...]:
        """The calls of other layers, with their node ids."""
        return tuple((n.id, n.op) for n in self.graph if isinstance(n.op, Call))
