"""A score through the product of matrices of the tokens between -> folds without that product.

    score(t, s) = k[s]' M[s+1] ... M[t] q[t] + ...,    M[i] = I + sign u[i] w[i]' + ...

No inverse of M need exist, so there is no running product to divide by. The tokens are a tree
instead: spans of `SPAN` tokens, of twice as many, and so on. A reader in the later half of a span
reads all of the earlier half, and between the two stands a border: with q' = M[border] ... M[t]
q[t] and k' = k[s]' M[s+1] ... M[border - 1] the score is k' q', which is a fold as any other
(`across`). From one level to the next, q' of later halves and k' of earlier ones are multiplied by
the matrix of the other half once; each pair of tokens is of one level.

Within the smallest spans the product is that of a chunk of the delta rule, whose factors (WY) come
out of a triangular system, with a row of U and of W for each outer product of each token and
"stril" for what is of earlier tokens:  A = (I - sign stril(U W'))^-1,

    score = Q K' + sign tril(Q W') A stril(U K')        a second product of vectors (`inside`)
    q'    = Q + sign tril(Q W') A U
    k'    = K + sign stril(U K')' A' W
    M     = I + sign U' A' W                            of all of the span

M[i] = diag(exp(g[i])) has gates by channel: the matrix of a span is a diagonal, a vector of
products of gates, and within the smallest spans the score is found pair by pair and enters as the
second product alone. No difference of running sums is in it, so that a gate may be 0.

source: Bischof and Van Loan 1987 for products of reflections; the tree is that of hierarchical
matrices, Hackbusch 1999.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import sympy

from archc.attention.bounds import S, T, affine, up_to_the_reader
from archc.attention.gated import gate_of
from archc.attention.weighted_sum import Dot, Source, WeightedSum
from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.graph import Graph, Node
from archc.ir.refusal import Refusal

SPAN, MOST_RANKS = 64, 4
"""Rows of U in the smallest spans: tokens, if each has one; and how many a token may have."""


@dataclass(frozen=True)
class Outer:
    """sign u w', an outer product of the matrix of a token: the nodes of u and w, and their
    dims; of a number, where u is w times a `rate`."""

    u: int
    w: int
    rows: str
    columns: str
    sign: int
    rate: int | None


@dataclass(frozen=True)
class Through:
    """A product of vectors through matrices: the vector read and the reader's, each a node and its
    dim, and the outer products that the matrix of a token has beside the identity; or the log
    `gate` of which it is the diagonal, a node and its dim."""

    read: tuple[int, str]
    reader: tuple[int, str]
    outers: tuple[Outer, ...]
    gate: tuple[int, str] | None = None

    @property
    def firsts(self) -> list[tuple[int, str | None]]:
        """u of each outer product, a node and its dim; its rate, if every one has one."""
        rates = [outer.rate for outer in self.outers if outer.rate is not None]
        if len(rates) == len(self.outers):
            return [(rate, None) for rate in rates]
        return [(outer.u, outer.rows) for outer in self.outers]


@dataclass(frozen=True)
class Rank:
    """sign u w' of the matrix of each token between; u is a vector, or a number of each token by
    which it is w."""

    u: Source
    w: Source
    sign: int


@dataclass(frozen=True, eq=False)
class Between:
    """A softmax whose score goes through matrices of the tokens between. `whole` has all that
    enters and the score with the name of that product; `inside` is the fold of a span of `SPAN`
    tokens, which has two sources more, `left` and `right`; `across` that of the readers of a span
    and the tokens of the one before. `gate`: the logarithms of the diagonal that a token's matrix
    is; `inside` has the second product in place of the first then."""

    whole: WeightedSum
    inside: WeightedSum
    across: WeightedSum
    dot: Dot
    left: Source
    right: Source
    ranks: tuple[Rank, ...]
    gate: Source | None = None


# --- what a product is ---------------------------------------------------------------------------

Term = tuple[Node, tuple[str, ...]]


def through(body: Graph, node: Node, reader: str, read: str) -> Through | str | None:
    """The parts of a product of pairs that goes through matrices, or the reason why it has no
    kernels; None where no matrices are in it."""
    terms = factors_of(body, node)
    if (gates := _gates(body, node, reader, read)) is not None:
        return gates
    matrices = [term for term in terms if isinstance(term[0].op, ir.Segment)]
    if len(matrices) != 1 or len(terms) != 3:
        return None
    (matrix, labels), op = matrices[0], matrices[0][0].op
    if op.kind != "product" or op.row is None or op.col is None:
        return None
    row, column = (labels[matrix.type.names.index(name)] for name in (op.row, op.col))
    out = {label for label, _ in node.op.out}
    found: dict[str, tuple[int, str]] = {}
    for vector, own in terms:
        if vector is not matrix:
            summed = [label for label in own if label not in out]
            if len(summed) != 1 or summed[0] not in (row, column) or row == column:
                return "a product of matrices between is summed over more than one dim"
            found[summed[0]] = (vector.id, vector.type.names[own.index(summed[0])])
    if {*found} != {row, column}:
        return "a product of matrices between does not go from a token to a reader"
    first, last = (body[found[label][0]].type.names for label in (row, column))
    if read not in first or reader in first or reader not in last or read in last:
        return "a product of matrices between goes from the reader to a token"
    if not _same_names(terms, dict(node.op.out)):
        return "a dim of a product changes its name"
    each = body[matrix.operands[0]]
    if reader in each.type.names:
        return "a matrix between depends on the reader"
    made = outers(body, each, op.row, op.col)
    if isinstance(made, str):
        gate = _diagonal(body, each, op.row, op.col)
        return made if gate is None else Through(found[row], found[column], (), gate)
    return Through(found[row], found[column], made)


def _gates(body: Graph, node: Node, reader: str, read: str) -> Through | str | None:
    """The parts of a product of a reader's vector, a vector read and gates by channel between; None
    where no gates are in it."""
    pairs = {reader, read}
    terms = multiplied(body, node, pairs)
    gates = [(gate, each) for each, _ in terms if (gate := gate_of(body, each)) is not None]
    if len(gates) != 1 or len(terms) != 3:
        return None
    (gate, factor), out = gates[0], dict(node.op.out)
    vectors = [each for each, _ in terms if each is not factor]
    readers = [each for each in vectors if reader in each.type.names]
    tokens = [each for each in vectors if read in each.type.names]
    summed = {
        (name, label) for each, labels in terms
        for name, label in zip(each.type.names, labels, strict=True) if label not in out
    }  # fmt: skip
    if len(readers) != 1 or len(tokens) != 1 or readers == tokens or len(summed) != 1:
        return "gates between are not summed over one dim with a vector of each token"
    ((dim, _),) = summed
    if any(dim not in each.type.names for each in (gate, *readers, *tokens)):
        return "gates between, and a factor has no number for each of them"
    if reader in gate.type.names:
        return "a gate between depends on the reader"
    if not _same_names(terms, out):
        return "a dim of a product changes its name"
    return Through((tokens[0].id, dim), (readers[0].id, dim), (), (gate.id, dim))


def multiplied(body: Graph, node: Node, pairs: set[str]) -> list[Term]:
    """The factors of a product with the labels that they have in it: those of values of pairs that
    are multiplied element by element, too."""
    operands = zip(node.operands, node.op.ins, strict=True)
    return [term for o, labels in operands for term in _multiplied(body, body[o], labels, pairs)]


def _multiplied(
    body: Graph, node: Node, labels: tuple[str, ...], pairs: set[str]
) -> list[Term]:  # fmt: skip
    """The factors of an operand of a product, with their labels."""
    if node.op != ir.Elementwise("mul") or not pairs <= {*node.type.names}:
        return [(node, labels)]
    own = dict(zip(node.type.names, labels, strict=True))
    factors = [body[operand] for operand in node.operands]
    return [(each, tuple(own[name] for name in each.type.names)) for each in factors]


def _diagonal(body: Graph, node: Node, row: str, col: str) -> tuple[int, str] | None:
    """The logarithms, and their dim, of a matrix diag(exp(g)) [row, col]; None of another."""
    if node.op != ir.Elementwise("mul"):
        return None
    operands = [body[operand] for operand in node.operands]
    vectors = [each for each in operands if not isinstance(each.op, ir.Delta)]
    if len(vectors) != 1 or vectors[0].op != ir.Elementwise("exp"):
        return None
    gate = body[vectors[0].operands[0]]
    dims = [name for name in gate.type.names if name in (row, col)]
    return (gate.id, dims[0]) if len(dims) == 1 else None


def _same_names(terms: Sequence[Term], out: dict[str, Axis]) -> bool:
    """Whether no dim that stays has another name afterwards."""
    return all(
        label not in out or out[label].name == name
        for node, labels in terms for name, label in zip(node.type.names, labels, strict=True)
    )  # fmt: skip


def factors_of(body: Graph, node: Node) -> list[Term]:
    """The factors of a product with the labels that they have in it: those of a product inside of
    it, which goes through a segment, too."""
    found: list[Term] = []
    for operand, labels in zip(node.operands, node.op.ins, strict=True):
        each = body[operand]
        if isinstance(each.op, ir.Contract) and _has_segment(body, each):
            outer = dict(zip((label for label, _ in each.op.out), labels, strict=True))
            for own, names in zip(each.operands, each.op.ins, strict=True):
                renamed = tuple(outer.get(label, f"{each.id} {label}") for label in names)
                found.append((body[own], renamed))
        else:
            found.append((each, labels))
    return found


def _has_segment(body: Graph, node: Node) -> bool:
    return any(isinstance(body[operand].op, ir.Segment) for operand in node.operands)


MORE = "a matrix between is more than the identity with outer products of vectors"


def outers(body: Graph, node: Node, row: str, col: str) -> tuple[Outer, ...] | str:
    """The outer products that a matrix [row, col] is the identity with; or why it has none."""
    found: list[Outer] = []
    identities = 0
    waiting = [(node, 1)]
    while waiting:
        each, sign = waiting.pop()
        if isinstance(each.op, ir.Delta):
            identities += sign
        elif isinstance(each.op, ir.Elementwise) and each.op.fn in ("add", "sub", "neg"):
            last = -sign if each.op.fn != "add" else sign
            first = last if each.op.fn == "neg" else sign
            signs = (first, last)[: len(each.operands)]
            waiting += [(body[id], s) for id, s in zip(each.operands, signs, strict=True)]
        else:
            outer = _outer(body, each, row, col, sign)
            if outer is None:
                return MORE
            found.append(outer)
    if identities != 1 or not found:
        return MORE
    return tuple(sorted(found, key=lambda outer: (outer.u, outer.w)))


def _outer(body: Graph, node: Node, row: str, col: str, sign: int) -> Outer | None:
    """A matrix u w' of two vectors of the token."""
    if not ir.is_product(node.op):
        return None
    out, found = dict(node.op.out), {}
    for operand, labels in zip(node.operands, node.op.ins, strict=True):
        own = body[operand]
        if any(label not in out for label in labels):
            return None
        for name, label in zip(own.type.names, labels, strict=True):
            if out[label].name in (row, col):
                found[out[label].name] = (operand, name)
            elif out[label].name != name:
                return None
    if {*found} != {row, col}:
        return None
    (u, rows), (w, columns) = found[row], found[col]
    return Outer(u, w, rows, columns, sign, _rate(body, body[u], body[w], rows))


def _rate(body: Graph, u: Node, w: Node, dim: str) -> int | None:
    """What a vector u is times w, a number for each place of these."""
    if not isinstance(u.op, ir.Elementwise) or u.op.fn != "mul" or w.id not in u.operands:
        return None
    (id,) = {*u.operands} - {w.id} or {w.id}
    wanted, rate = [name for name in w.type.names if name != dim], body[id].type
    return id if [*rate.names] == wanted and rate.dtype == "real" else None


# --- the folds of the tree -----------------------------------------------------------------------


def by_spans(
    whole: WeightedSum, dot: Dot, ranks: tuple[Rank, ...], gate: Source | None = None
) -> Between | Refusal:  # fmt: skip
    """The folds that a sum is whose score has such a product; `whole` takes it for one of q and
    k."""
    if reason := _why_not(whole, dot, ranks, gate):
        return Refusal(whole.node, reason)
    names = {axis.name for source in whole.sources for axis in source.type.axes}
    ends = [_of_each_head(whole.source(name), whole) for name in (dot.reader, dot.read)]
    full = {source.name: source for source in ends}
    moved = {name: _by_heads(source) for name, source in full.items()}
    across, inside = (
        tuple(own.get(source.name, source) for source in whole.sources) for own in (moved, full)
    )
    across = replace(whole, sources=across, sink=None, moved=(*moved,))
    inner = Axis(_unused("inner", names), sympy.Integer(SPAN))
    used = {source.name for source in whole.sources}
    left, right = (
        _beside(moved[name], _unused(title, used), inner)
        for name, title in ((dot.reader, "left"), (dot.read, "right"))
    )
    second = Dot(_unused("between", {d.name for d in whole.dots}), left.name, right.name)
    pairs = _with_second(whole.pairs, dot.name, second.name, gate is not None)
    dots = (*(each for each in whole.dots if gate is None or each != dot), second)
    inside = replace(
        whole, sources=(*inside, left, right), dots=dots, pairs=pairs,
        moved=(*moved, left.name, right.name),
    )  # fmt: skip
    return Between(whole, inside, across, dot, left, right, ranks, gate)


def _of_each_head(source: Source, whole: WeightedSum) -> Source:
    """A vector that heads share as one of each head."""
    axes = {own: next(h for h in whole.heads if h.name == head) for own, head, _ in source.shares}
    type = replace(source.type, axes=tuple(axes.get(a.name, a) for a in source.type.axes))
    shares = tuple((head, head, sympy.Integer(1)) for _, head, _ in source.shares)
    return replace(source, type=type, shares=shares)


def _by_heads(source: Source) -> Source:
    """A vector that lies in memory one head after the other."""
    batch, stream, *heads, dim = source.type.axes
    return replace(source, type=replace(source.type, axes=(batch, *heads, stream, dim)))


def rows_of_token(ranks: int) -> int:
    """The rows of U and W that a token has: a power of two, of which some may be 0."""
    return 1 << max(0, ranks - 1).bit_length()


def _unused(name: str, names: set[str]) -> str:
    while name in names:
        name += "_"
    return name


def _beside(source: Source, name: str, inner: Axis) -> Source:
    """A vector beside that of a source: a number for each row of U in a span."""
    axes = tuple(inner if axis == source.dim else axis for axis in source.type.axes)
    return replace(source, name=name, type=replace(source.type, axes=axes), dim=inner)


def _with_second(pairs: Graph, product: str, second: str, alone: bool) -> Graph:
    """The score with one product less the other, or with the other `alone`."""
    made = pairs.copy()
    (old,) = (n for n in made if isinstance(n.op, ir.Input) and n.op.name == product)
    new = made.add(ir.Input(second, old.type), name=second)
    if alone:
        made.substitute(old.id, new)
        made.prune()
        return made
    marker = made.add(ir.Input(f"{product} alone", old.type))
    total = Builder(made).fn("sub", marker, new)
    made.substitute(old.id, total)
    made.substitute(marker, made.add(old.op, name=old.name))
    made.prune()
    return made


def _why_not(
    whole: WeightedSum, dot: Dot, ranks: tuple[Rank, ...], gate: Source | None
) -> str:  # fmt: skip
    """Why the tree has no kernels for a sum; empty where it has."""
    if not whole.softmax or whole.values is None:
        return "matrices or gates between are in kernels of a softmax of values alone"
    if len(ranks) > MOST_RANKS:
        return f"a matrix between has more than {MOST_RANKS} outer products"
    if whole.choice is not None or whole.lookups:
        return "matrices between stand beside a choice, or beside a table"
    if any(each.square for each in whole.dots):
        return "matrices between stand beside the square of a vector"
    if not up_to_the_reader(whole.bounds):
        return "matrices between, and tokens after the reader are read"
    if any(bound.slope != 1 for bound in whole.bounds):
        return "matrices between, and what is read is not bounded by the distance"
    if not all(_by_distance(whole, node) for node in map(whole.pairs.__getitem__, _roots(whole))):
        return "matrices between, and a position itself is in the score"
    if any(share != 1 for _, _, share in whole.source(dot.reader).shares):
        return "the reader's vector before matrices between is shared by heads"
    heads = [head.name for head in whole.heads]
    turned = [whole.source(dot.reader), whole.source(dot.read)]
    turned += [each for rank in ranks for each in (rank.u, rank.w)]
    turned += [gate] if gate is not None else []
    for source in turned:
        wanted = [source.type.axes[1].name, *heads, *([source.dim.name] if source.dim else [])]
        full = _of_each_head(source, whole).type.axes
        if [a.name for a in full[1:]] != wanted or full[0].kind != "batch":
            return "vectors around matrices between, not each with a place for every head or group"
    for source in whole.sources:
        if source.role != "same" and [a.kind for a in source.type.axes[:2]] != ["batch", "stream"]:
            return f"`{source.name}` has no batch and tokens in front"
        if source.role == "same" and "batch" in source.type.names:
            return f"`{source.name}` is of a sequence"
    return ""


def _roots(whole: WeightedSum) -> list[int]:
    """The outputs of the formula of pairs."""
    return [*whole.pairs.outputs.values()]


def _by_distance(whole: WeightedSum, node: Node) -> bool:
    """Whether a value of pairs knows no position but by the distance of two tokens."""
    graph, names = whole.pairs, (whole.reader.name, whole.read.name)
    if isinstance(node.op, ir.Input | ir.Constant):
        return True
    if isinstance(node.op, ir.Position):
        return node.op.axis.name not in names
    operands = [graph[operand] for operand in node.operands]
    if isinstance(node.op, ir.Elementwise) and node.op.fn in ("lt", "le", "gt", "ge", "sub"):
        sides = [affine(graph, operand, *names) for operand in operands]
        if sides[0] is not None and sides[1] is not None:
            rest = sympy.expand(sides[0] - sides[1])
            return bool(rest.coeff(T) + rest.coeff(S) == 0)
    return all(_by_distance(whole, operand) for operand in operands)
