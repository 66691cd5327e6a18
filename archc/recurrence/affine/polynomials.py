"""Body of a Recurrence -> polynomials: every value of the body over constants and versions of a
state.

A value that is linear in the states of a component is a polynomial of degree one in them. Sums
against vectors are symbols, too, so that a read that is written back is a product like any other.
Where a state that already holds such a correction is read again, a new version of the state begins:
products of corrections stay factored, one micro-step each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.recurrence.affine.atoms import Table, TooLong, bounded, total
from archc.recurrence.analysis.degree import CONSTANT, LINEAR, Degree, before, updates

ZERO, ONE = sympy.Integer(0), sympy.Integer(1)

MAX_POWER = 4
"""Whole powers up to this one are products."""


class Reading:
    """The values of one component's body.

    `versions` are the polynomials that versions 1, 2, ... of the state begin as, each over the
    version before; `found` is one more that turned out to be needed: then start again with it.
    Nodes in `broken` are linear, but not in a way that a polynomial says; each has the reason.
    `written` are nodes that stand for themselves: version 1 of the states whose values they are.
    """

    def __init__(
        self,
        recurrence: ir.Recurrence,
        degrees: Mapping[int, Degree],
        table: Table,
        versions: Sequence[sympy.Expr] = (),
        written: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self.body = recurrence.body
        self.recurrence = recurrence
        self.degrees = degrees
        self.table = table
        self.old = before(recurrence)
        self.after = {id: name for name, id in updates(recurrence).items()}
        self.own = {s for id, s in self.old.items() if degrees[id].kind == LINEAR}
        self.axes = {state.name: state.axes for state in recurrence.states}
        self.written = written
        self.versions = {form: i + 1 for i, form in enumerate(versions)}
        self.values: dict[int, sympy.Expr] = {}
        self.broken: dict[int, str] = {}
        self.found: sympy.Expr | None = None
        self.others, self.wholes = self._others()
        self.rests = self._rests()

    def _rests(self) -> sympy.Expr:
        """The value that everything adds to the component's only state, as one written by how far
        it is from there: versions are, too."""
        before = [id for id in self.old if id in self.degrees and self.old[id] in self.own]
        if len(before) != 1:
            return ZERO
        users = [self.body[id] for id in self.body.users(before[0])]
        others = {o for user in users for o in user.operands} - {*before}
        sums = all(isinstance(u.op, ir.Elementwise) and u.op.fn == "add" for u in users)
        if not sums or len(others) != 1 or not isinstance(self.body[min(others)].op, ir.Input):
            return ZERO
        return self.constant(min(others))

    def at_rest(self, value: sympy.Expr) -> sympy.Expr:
        """What a value has of that."""
        terms = sympy.Add.make_args(value)
        return self.rests if self.rests != 0 and self.rests in terms else ZERO

    def _others(self) -> tuple[frozenset[int], frozenset[int]]:
        """Nodes that depend on a state of another component, and those that nothing of it is summed
        in."""
        roots = {id for id, name in self.old.items() if name not in self.own}
        roots |= {id for id, name in self.after.items() if name not in self.own}
        wholes = set(roots)
        for node in self.body:
            if not wholes.isdisjoint(node.operands) and not _sums(node):
                wholes.add(node.id)
        found = frozenset(roots).union(*(self.body.descendants(id) for id in sorted(roots)))
        return found, frozenset(wholes)

    def run(self) -> None:
        """Read every linear node, until a new version is needed."""
        for node in self.body:
            if self.degrees[node.id].kind == LINEAR:
                value = self.linear(node)
                if self.found is not None:
                    return
                if value is not None:
                    self.values[node.id] = value

    def version(self, number: int, state: str | None = None) -> sympy.Symbol:
        """A version of the component's state, with its axes as they are declared."""
        name = state or min(self.own)
        return self.table.state(f"{name}@{number}", self.axes[name])

    def whole(self, expr: sympy.Expr) -> list[sympy.Symbol]:
        """The versions of states that an expression has as they are, outside sums."""
        return [s for s in self.table.symbols(expr) if self.table.atoms[s].kind == "state"]

    # --- values that do not depend on the component's states -------------------------------------

    def constant(self, id: int) -> sympy.Expr:
        """The polynomial of a constant node."""
        if id not in self.values:
            node = self.body[id]
            try:
                self.values[id] = self._constant(node)
            except TooLong:
                self.values[id] = self._opaque(node)
        return self.values[id]

    def _constant(self, node: Node) -> sympy.Expr:
        op, sums = node.op, isinstance(node.op, ir.Contract | ir.Reduce)
        given = node.id in self.after and self.after[node.id] not in self.own
        if node.id in self.old or given:
            return self._opaque(node)
        if isinstance(op, ir.Constant):
            return op.value if op.value.is_finite is not False else self._opaque(node)
        if isinstance(op, ir.Delta):
            return self.table.delta(op.row, op.col)
        if sums and node.id in self.others and not self._is_open(node):
            return self._opaque(node)  # a read of an earlier state is a value of its own
        if isinstance(op, ir.Contract):
            return self._contract(op, [self.constant(o) for o in node.operands], node)
        if isinstance(op, ir.Reduce) and op.fn in ("sum", "mean"):
            return self._reduce(op, self.constant(node.operands[0]), node)
        if isinstance(op, ir.Elementwise):
            return self._elementwise(node, op.fn, [self.constant(o) for o in node.operands])
        return self._opaque(node)

    def _is_open(self, node: Node) -> bool:
        """Whether a contraction reads no earlier state: it sums nothing, as a change of axes, or it
        sums products of two sides over several keys of what was read at each."""
        if isinstance(node.op, ir.Reduce):
            return False
        if not _sums(node):
            return True
        kept = {label for label, _ in node.op.out}
        sides = len(node.operands) > 1 and not any(map(kept.isdisjoint, node.op.ins))
        return sides and self.wholes.isdisjoint(node.operands)

    def _opaque(self, node: Node) -> sympy.Expr:
        """A value that is not looked into, called by what it is made of."""
        if isinstance(node.op, ir.Input):
            head = node.op.name
        elif isinstance(node.op, ir.Constant):
            head = str(node.op.value)
        elif node.id in self.after:
            head = self.after[node.id]
        elif isinstance(node.op, ir.Elementwise):
            head = node.name or f"%{node.id}"
        elif isinstance(node.op, ir.Gather) and node.id not in self.others:
            head = self._gathered(node)
        else:
            head = node.name or f"%{node.id}"
        return self.table.value(head, node.type.axes, node.id)

    def _gathered(self, node: Node) -> str:
        """`k[n=0]`: what is read, along which axis, where."""
        what, index = (self.constant(o) for o in node.operands)
        atom = self.table.atoms.get(what) if isinstance(what, sympy.Symbol) else None
        own = atom is not None and atom.kind == "value" and atom.axes == atom.source
        name = atom.head if atom is not None and own else self.table.text(what)
        return f"{name}[{node.op.axis}={self.table.text(index)}]"

    def _elementwise(self, node: Node, fn: str, args: list[sympy.Expr]) -> sympy.Expr:
        """Sums and products are polynomials; other functions are symbols."""
        types = [self.body[o].type.dtype for o in node.operands]
        table = self.table
        if fn in ("add", "sub", "neg", "mul", "div") or (fn == "real" and types[0] != "bool"):
            return self._algebra(fn, args)
        if fn == "pow" and args[1].is_Integer and 1 <= args[1] <= MAX_POWER:
            result = args[0]
            for _ in range(int(args[1]) - 1):
                result = table.times(result, args[0])
            return result
        if fn == "where" and (args[1] == args[2] or any(map(self._is_outer, args[1:]))):
            return self.where(*args)
        return table.fn(fn, *args, node=node.id, axes=node.type.axes)

    def _is_outer(self, value: sympy.Expr) -> bool:
        """Whether a value has products of which no factor has all axes, which stay apart."""
        for term in sympy.Add.make_args(value):
            own = [{a.name for a in self.table.axes(s)} for s in self.table.split(term)[1]]
            if own and set().union(*own) not in own:
                return True
        return False

    def _algebra(self, fn: str, args: list[sympy.Expr]) -> sympy.Expr:
        if fn == "add":
            return self._total(args)
        if fn == "sub":
            return self._total([args[0], -args[1]])
        if fn == "mul":
            return self.table.times(*args)
        if fn == "div":
            return self.table.times(args[0], self.table.inverse(args[1]))
        return -args[0] if fn == "neg" else args[0]

    def _total(self, args: Sequence[sympy.Expr]) -> sympy.Expr:
        return bounded(total(args))

    # --- values that are linear in the states ----------------------------------------------------

    def linear(self, node: Node) -> sympy.Expr | None:
        """The polynomial of a linear node; None if there is none."""
        if node.id in self.old:
            return self.version(0, self.old[node.id])
        if node.id in self.written:
            return self.version(1, self.written[node.id])
        if any(o in self.broken for o in node.operands):
            self.broken[node.id] = next(self.broken[o] for o in node.operands if o in self.broken)
            return None
        try:
            value = self._linear_value(node)
        except TooLong:
            self.broken[node.id] = "a sum of too many products"
            return None
        if value is None:
            self.broken[node.id] = f"`{type(node.op).__name__.lower()}` of a state"
            return None
        return self.known(value)

    def _linear_value(self, node: Node) -> sympy.Expr | None:
        op = node.op
        if isinstance(op, ir.Reduce):
            return self._reduce(op, self._factored(op, node), node)
        args = [self._operand(o) for o in node.operands]
        if isinstance(op, ir.Contract):
            return self._contract(op, args, node)
        if not isinstance(op, ir.Elementwise):
            return None
        if op.fn == "where":
            return self.where(*args)
        return self._algebra(op.fn, args)

    def _operand(self, id: int) -> sympy.Expr:
        """A polynomial that is constant or linear."""
        return self.constant(id) if self.degrees[id].kind == CONSTANT else self.values[id]

    def known(self, value: sympy.Expr) -> sympy.Expr:
        """The version that a value is, if it is one; else the value."""
        if value in self.versions:
            return self.version(self.versions[value])
        rest = self.at_rest(value)
        form = self._total([value, -rest])
        return (
            self._total([self.version(self.versions[form]), rest])
            if form in self.versions
            else value
        )

    def where(self, condition: sympy.Expr, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
        """A choice between values that may be linear: a sum, each times 1 where it is chosen."""
        if a == b:
            return a
        table = self.table
        chosen = table.choice(condition), table.choice(table.fn("not", condition))
        return self._total([table.times(chosen[0], a), table.times(chosen[1], b)])

    def _factored(self, op: ir.Reduce, node: Node) -> sympy.Expr:
        """The addend of a sum. In sum(q * S) q reads the state: S is looked at before q enters."""
        inner = self.body[node.operands[0]]
        if not isinstance(inner.op, ir.Elementwise) or inner.op.fn != "mul":
            return self._readable(self.values[inner.id], op.axes)
        a, b = (self._operand(o) for o in inner.operands)
        state, vector = (a, b) if self.degrees[inner.operands[0]].kind == LINEAR else (b, a)
        return self.table.times(self._readable(state, op.axes), vector)

    def _reduce(self, op: ir.Reduce, value: sympy.Expr, node: Node) -> sympy.Expr:
        """A sum or a mean."""
        axes = [a for a in self.body[node.operands[0]].type.axes if a.name in op.axes]
        number = sympy.Mul(*(axis.size for axis in axes)) if op.fn == "mean" else ONE
        return self.table.times(self.table.sum(value, axes), 1 / number)

    def _contract(self, op: ir.Contract, args: list[sympy.Expr], node: Node) -> sympy.Expr:
        """Operands with their axes called as the labels, multiplied, summed, renamed."""
        kept = {label for label, _ in op.out}
        value, labels = ONE, dict[str, Axis]()
        for arg, names, operand in zip(args, op.ins, node.operands, strict=True):
            axes = self.body[operand].type.axes
            gone = [a.name for a, label in zip(axes, names, strict=True) if label not in kept]
            mapping = {a.name: a.renamed(f"@{label}") for a, label in zip(axes, names, strict=True)}
            labels |= {a.name: a for a in mapping.values()}
            value = self.table.times(value, self.table.rename(self._readable(arg, gone), mapping))
        summed = [axis for name, axis in labels.items() if name[1:] not in kept]
        value = self.table.sum(value, summed) if summed else value
        return self.table.rename(value, {f"@{label}": axis for label, axis in op.out})

    def _readable(self, value: sympy.Expr, gone: Sequence[str]) -> sympy.Expr:
        """A value to be summed over axes: with corrections in it, it is a new version first."""
        states = self.whole(value)
        sums = [s for s in self.table.symbols(value) if self.table.atoms[s].kind == "sum"]
        if not gone or not states or not any(self.table.atoms[s].states for s in sums):
            return value
        if len(self.own) > 1:
            return value
        here = self.table.atoms[states[0]].axes
        declared = self.axes[min(self.own)]
        pairs = list(zip(here, declared, strict=True))
        back = {axis.name: own for axis, own in pairs}
        found = self.table.rename(value, back)
        self.found = self._total([found, -self.at_rest(found)])
        if self.found in self.versions:  # cannot be: what is known has its version's symbol
            self.found = None
        return self.version(len(self.versions) + 1)


def _sums(node: Node) -> bool:
    """Whether a node sums over an axis."""
    if not isinstance(node.op, ir.Contract):
        return isinstance(node.op, ir.Reduce)
    kept = {label for label, _ in node.op.out}
    return any(label not in kept for labels in node.op.ins for label in labels)


def coefficient(table: Table, expr: sympy.Expr, symbol: sympy.Symbol | None) -> sympy.Expr:
    """The factor of a symbol in a linear expression; for None the part that holds no state."""
    found = []
    for term in sympy.Add.make_args(expr):
        _, factors = table.split(term)
        if symbol is None and not any(table.atoms[s].states for s in factors):
            found.append(term)
        elif symbol is not None and symbol in factors:
            found.append(term / symbol)
    return total(found)
