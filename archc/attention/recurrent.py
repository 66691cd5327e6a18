"""Layer IR -> layer IR: sums over the tokens read whose weights factor are a recurrence.

    o[t] = a[t] sum over s <= t of (q[t]' D k[s]) b[s] v[s]',    D = exp(sum of g between) or
                                                                 a product of matrices M
      ->  S[t] = exp(g[t]) S[t-1] + b k v'  or  M[t]' S[t-1] + b k v',    o = a S' q

All that a reader has of earlier tokens is a state, whatever their number: time grows with the
tokens in place of their square. A softmax, a weight that is no such product (relu of a score, a
position) and a window stay a fold. With s < t what is read is the state before the token writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import sympy

from archc.attention.between import Outer, Through, through
from archc.attention.gated import segments_of, with_gates
from archc.dims import TIME
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.free_names import marked, numbered
from archc.ir.graph import Graph, Node, Type
from archc.ir.rewrite import rewrite
from archc.ir.typing import layer_graph
from archc.ir.value_names import state_before


def recurrent(layer: ir.Layer) -> ir.Layer:
    """The layer with recurrences in place of attends whose weights factor."""
    return rewrite(layer, [_recurrence])


def states_of(node: Node) -> tuple[ir.State, ...]:
    """The states that the sums of an attend are, if all of them are some."""
    made = _made(node) if isinstance(node.op, ir.Attend) else None
    return () if made is None else made.op.states


def _recurrence(graph: Graph, node: Node) -> int | None:
    """An attend -> a recurrence with the same results."""
    made = _made(node) if isinstance(node.op, ir.Attend) else None
    if made is None:
        return None
    start = [graph.add(ir.Constant(sympy.S.Zero), span=node.span) for _ in made.op.states]
    return graph.add(made.op, *made.operands, *start, span=node.span)


class _NoState(Exception):
    """A sum is no state."""


@dataclass(frozen=True)
class _Made:
    """A recurrence, and what enters it."""

    op: ir.Recurrence
    operands: tuple[int, ...]


def _made(node: Node) -> _Made | None:
    """The recurrence of an attend of the layer's own tokens, if it is one."""
    op = node.op
    plain = op.causal and op.source == op.reader.name == TIME.name
    if not plain or op.window is not None or op.decode is not None:
        return None
    try:
        return _Recurrent(node).made()
    except _NoState:
        return None


@dataclass
class _Weight:
    """The factors of a weight: numbers of the reader and of the token read, vectors of both and
    their dims, logarithms of decays, matrices between; `before`: of earlier tokens alone."""

    readers: list[int] = field(default_factory=list)
    read: list[int] = field(default_factory=list)
    q: int | None = None
    k: int | None = None
    dims: tuple[str, ...] = ()
    gates: list[tuple[int, sympy.Expr]] = field(default_factory=list)
    outers: tuple[Outer, ...] = ()
    before: bool = False


class _Recurrent:
    """An attend on its way to be a recurrence: `new` is the body of a token."""

    def __init__(self, node: Node):
        self.node, self.op = node, with_gates(node.op)
        self.body: Graph = self.op.body.copy()
        self.t, self.s = self.op.reader.name, self.op.read.name
        self.r = self.op.path.name if self.op.path is not None else ""
        self.new: Graph = layer_graph()
        self.done = dict[int, int]()
        outer = [name for name, _ in self.op.captures]
        self.outer = dict(zip(outer, node.operands, strict=True))
        self.captured: dict[int, tuple[str, int]] = {}
        self.taken = {*outer, *self.body.outputs}
        self.states: list[ir.State] = []
        self.heads: set[str] | None = None
        self.apart: dict[str, str] = {}  # dims of values that keys have too, as the state has them

    def made(self) -> _Made:
        """The recurrence, and what enters it."""
        for name, id in self.body.outputs.items():
            own, wanted = self.new[self.token(id)].type, self.body[id].type
            along = (*own.axes[:1], self.op.reader, *own.axes[1:])
            if Type(along, own.dtype) != wanted or "batch" not in own.names:
                raise _NoState
            self.new.outputs[name] = self.token(id)
            self.new.rename(self.token(id), self.body[id].name, self.body[id].span)
        if not self.states:
            raise _NoState
        self.new.prune(self.new.ids(ir.Input))
        names = tuple(name for name, _ in self.captured.values())
        heads = tuple(a.name for a in self.states[0].axes if a.name in (self.heads or ()))
        op = ir.Recurrence(TIME, names, tuple(self.states), self.new, heads)
        return _Made(op, tuple(self.captured))

    def _is_sum(self, node: Node) -> bool:
        """Whether a value is summed over the tokens read."""
        along = [self.s in self.body[operand].type.names for operand in node.operands]
        return self.s not in node.type.names and any(along)

    # --- what is at one token ---

    def token(self, id: int) -> int:
        """A value at its own token, of the reader or of the token read."""
        if id not in self.done:
            self.done[id] = self._token(self.body[id])
        return self.done[id]

    def _token(self, node: Node) -> int:
        """The same of a node; elementwise, or summed over dims."""
        if self._is_sum(node):
            return self._state(node)
        match node.op:
            case ir.Input(name):
                return self._capture(name, node)
            case ir.Contract():
                return self._contract(node)
            case ir.Constant() | ir.Delta() | ir.Elementwise() | ir.Reduce():
                gone = {self.t, self.s, self.r}
                over = getattr(node.op, "over", ())
                if gone & {*over} or {self.t, self.s} <= {*node.type.names}:
                    raise _NoState
                made = [self.token(operand) for operand in node.operands]
                return self.new.add(node.op, *made, span=node.span)
        raise _NoState

    def _capture(self, name: str, node: Node) -> int:
        """A value that enters, once for all roles that it has."""
        outer = self.outer[name]
        if outer not in self.captured:
            axes = tuple(a for a in node.type.axes if a.name not in (self.t, self.s, self.r))
            if any(axis.kind == "stream" for axis in axes):
                raise _NoState
            op = ir.Input(name, Type(axes, node.type.dtype))
            self.captured[outer] = (name, self.new.add(op, name=node.name))
        return self.captured[outer][1]

    def _contract(self, node: Node) -> int:
        """A product without the tokens' axis, which all have that have it."""
        gone = {label for operand, labels in zip(node.operands, node.op.ins, strict=True)
                for axis, label in zip(self.body[operand].type.names, labels, strict=True)
                if axis in (self.t, self.s, self.r)}  # fmt: skip
        out = {label for label, _ in node.op.out}
        if len(gone) > 1 or gone - out:
            raise _NoState
        ins = tuple(tuple(each for each in labels if each not in gone) for labels in node.op.ins)
        kept = tuple((label, axis) for label, axis in node.op.out if label not in gone)
        made = [self.token(operand) for operand in node.operands]
        return self.new.add(ir.Contract(ins, kept), *made, span=node.span)

    # --- a sum ---

    def _state(self, node: Node) -> int:
        """What a sum reads of a state of its own."""
        weights, values = self._parts(node)
        found = _Weight()
        inner = self.body[weights]
        if inner.op != ir.Elementwise("where"):
            raise _NoState
        mask, inner, rest = (self.body[operand] for operand in inner.operands)
        if rest.op != ir.Constant(sympy.S.Zero):
            raise _NoState
        found.before = self._before(mask)
        self._factor(inner, found)
        own = {*self.body[weights].type.names} - {"batch", self.t, self.s}
        self.heads = own if self.heads is None else self.heads & own
        return self._read(node, found, values)

    def _parts(self, node: Node) -> tuple[int, int | None]:
        """The weights of a sum, and what they weight, of which no dim has another name."""
        if node.op == ir.Reduce("sum", (self.s,)):
            return node.operands[0], None
        if not isinstance(node.op, ir.Contract) or len(node.operands) != 2:
            raise _NoState
        pairs = zip(node.operands, node.op.ins, strict=True)
        if any(self.body[id].type.names != labels for id, labels in pairs):
            raise _NoState
        if any(label != axis.name for label, axis in node.op.out):
            raise _NoState
        of_pairs = [{self.t, self.s} <= {*self.body[o].type.names} for o in node.operands]
        if sorted(of_pairs) != [False, True]:
            raise _NoState
        weights, values = node.operands if of_pairs[0] else node.operands[::-1]
        names = {*self.body[weights].type.names}
        gone = {label for labels in node.op.ins for label in labels} - {a for a, _ in node.op.out}
        if gone != {self.s} or names - {self.s} - {a for a, _ in node.op.out}:
            raise _NoState
        return weights, values

    def _before(self, mask: Node) -> bool:
        """Whether a mask has earlier tokens alone, or the reader too."""
        places = [self.body[operand].op for operand in mask.operands]
        if not all(isinstance(place, ir.Position) for place in places):
            raise _NoState
        order = [place.axis.name for place in places]
        for fn, wanted in (("le", [self.s, self.t]), ("ge", [self.t, self.s])):
            if mask.op == ir.Elementwise(fn) and order == wanted:
                return False
        for fn, wanted in (("lt", [self.s, self.t]), ("gt", [self.t, self.s])):
            if mask.op == ir.Elementwise(fn) and order == wanted:
                return True
        raise _NoState

    def _factor(self, node: Node, found: _Weight) -> None:
        """Note the factors of a weight."""
        names = {*node.type.names}
        if not {self.t, self.s} <= names:
            (found.read if self.s in names else found.readers).append(node.id)
            return
        operands = [self.body[operand] for operand in node.operands]
        match node.op:
            case ir.Elementwise("mul"):
                for each in operands:
                    self._factor(each, found)
            case ir.Elementwise("div") if not {self.t, self.s} <= {*operands[1].type.names}:
                self._factor(operands[0], found)
                make = Builder(self.body, node.span)
                self._factor(self.body[make.fn("div", make.number(1), operands[1].id)], found)
            case ir.Elementwise("neg"):
                found.readers.append(Builder(self.body, node.span).number(-1))
                self._factor(operands[0], found)
            case ir.Elementwise("exp"):
                parts = segments_of(self.body, operands[0])
                of_readers = (self.t in self._summed(each).type.names for each, _ in parts or ())
                if parts is None or any(of_readers):
                    raise _NoState
                found.gates += [(self._summed(each).id, scale) for each, scale in parts]
            case ir.Contract() if found.k is None:
                self._product(node, found)
            case _:
                raise _NoState

    def _summed(self, segment: Node) -> Node:
        """What a segment adds up."""
        return self.body[segment.operands[0]]

    def _product(self, node: Node, found: _Weight) -> None:
        """Note a product of a vector of the reader and one of the token read."""
        operands = [self.body[operand] for operand in node.operands]
        sides = ["".join(n for n in (self.t, self.s) if n in each.type.names) for each in operands]
        if sorted(sides) == sorted([self.t, self.s]):
            labels = [*node.op.ins]
            if any(each.type.names != own for each, own in zip(operands, labels, strict=True)):
                raise _NoState
            if any(label != axis.name for label, axis in node.op.out):
                raise _NoState
            q, k = operands if sides[0] == self.t else operands[::-1]
            out = {label for label, _ in node.op.out}
            found.dims = tuple(n for n in k.type.names if n not in out)
            if {*found.dims} != {n for n in q.type.names if n not in out}:
                raise _NoState
            found.q, found.k = q.id, k.id
            return
        between = through(self.body, node, self.t, self.s)
        if not isinstance(between, Through):
            raise _NoState
        (found.k, dim), (found.q, other) = between.read, between.reader
        dims = {dim, other, *(n for each in between.outers for n in (each.rows, each.columns))}
        dims |= {between.gate[1]} if between.gate is not None else set()
        if len(dims) != 1:
            raise _NoState
        found.dims, found.outers = (dim,), between.outers
        found.gates += [(between.gate[0], sympy.S.One)] if between.gate is not None else []

    # --- its state ---

    def _read(self, node: Node, found: _Weight, values: int | None) -> int:
        """What a reader has of a new state."""
        make, self.apart = Builder(self.new, node.span), {}
        write = self._written(make, found, values)
        gates = [self._scaled(make, id, scale) for id, scale in found.gates]
        decay = make.fn("exp", make.chain("add", gates)) if gates else None
        axes, wide = self.new[write].type.axes, {*found.dims, "batch"}
        wide |= set() if decay is None else {*self.new[decay].type.names}
        if wide - {axis.name for axis in axes}:
            raise _NoState
        name = numbered(f"S_{node.name or 'sum'}", self.taken)
        self.taken.add(name)
        state = self.new.add(ir.Input(state_before(name), Type(axes)), span=node.span)
        kept = state if decay is None else make.fn("mul", decay, state)
        for outer in found.outers:
            kept = self._turned(make, kept, outer, found.dims[0])
        after = make.fn("add", kept, write)
        self.new.outputs[name] = after
        self.new.rename(after, name)
        self.states.append(ir.State(name, axes))
        made = kept if found.before else after
        if found.q is not None:
            made = self._against(make, made, self.token(found.q), found.dims)
        made = self._renamed(make, made, {new: old for old, new in self.apart.items()})
        for id in found.readers:
            made = make.fn("mul", made, self.token(id))
        return self._ordered(make, made, [n for n in node.type.names if n != self.t])

    def _outer(self, make: Builder, key: int | None, value: int | None) -> int:
        """The product of all entries of a key with all of a value, or the one that there is."""
        if key is None or value is None:
            one = value if key is None else key
            if one is None:
                raise _NoState
            return one
        types = [self.new[id].type for id in (key, value)]
        axes = {axis.name: axis for each in types for axis in each.axes}
        names = tuple(each.names for each in types)
        return make.add(ir.Contract(names, tuple(axes.items())), key, value)

    def _written(self, make: Builder, found: _Weight, values: int | None) -> int:
        """What a token adds to its state, which has all dims that decays differ along."""
        written = [] if found.k is None else [self.token(found.k)]
        written += [self.token(id) for id in found.read]
        key = make.chain("mul", written) if written else None
        if values is None:
            return self._outer(make, key, None)
        axes = self.new[self.token(values)].type.axes
        names = {axis.name for axis in axes}
        self.apart = {a.name: marked(a.name, names) for a in axes if a.name in found.dims}
        return self._outer(make, key, self._renamed(make, self.token(values), self.apart))

    def _scaled(self, make: Builder, id: int, scale: sympy.Expr) -> int:
        """A logarithm of a decay, so many times."""
        made = self.token(id)
        return made if scale == 1 else make.fn("mul", make.number(scale), made)

    def _turned(self, make: Builder, state: int, outer: Outer, dim: str) -> int:
        """M' S = S + sign w (u' S)."""
        u, w = self.token(outer.u), self.token(outer.w)
        found = self._outer(make, w, self._against(make, state, u, (dim,)))
        found = self._ordered(make, found, [*self.new[state].type.names])
        return make.fn("add" if outer.sign > 0 else "sub", state, found)

    def _against(self, make: Builder, state: int, vector: int, dims: Sequence[str]) -> int:
        """A state summed against a vector over some dims."""
        types = [self.new[id].type for id in (state, vector)]
        if {*types[1].names} - {*types[0].names}:
            raise _NoState
        out = tuple((a.name, a) for a in types[0].axes if a.name not in dims)
        return make.add(ir.Contract(tuple(each.names for each in types), out), state, vector)

    def _renamed(self, make: Builder, id: int, names: Mapping[str, str]) -> int:
        """A value some of whose dims have other names."""
        own = self.new[id].type
        if not {*names} & {*own.names}:
            return id
        out = tuple((a.name, a.renamed(names.get(a.name, a.name))) for a in own.axes)
        return make.add(ir.Contract((own.names,), out), id)

    def _ordered(self, make: Builder, id: int, names: list[str]) -> int:
        """A value with its axes in an order."""
        own = self.new[id].type
        if sorted(own.names) != sorted(names):
            raise _NoState
        if [*own.names] == names:
            return id
        out = tuple((name, own.axis(name)) for name in names)
        return make.add(ir.Contract((own.names,), out), id)
