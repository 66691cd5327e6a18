"""An attend's body -> one in which sums over a dim of each pair are products of vectors.

    sum[K]((q[t] - k[s]) ** 2)              ->  relu(q . q + k . k - 2 q . k)
    sum[K](q[t] * k[s] * cos(a[t] - b[s]))  ->  (q cos a) . (k cos b) + (q sin a) . (k sin b)

A polynomial in values of the reader, of the token read and of neither is multiplied out; each of
its terms is then a vector of the one times a vector of the other. A wave of a sum of both, as
rotary positions are printed, is a sum of two products. Kernels alone see it: with few digits, a
small distance of long vectors is only right where the squares are added up in float32.
"""

from __future__ import annotations

from collections.abc import Sequence

from archc.attention.polynomials import Factors, Polynomial
from archc.attention.rewritten import rewritten
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


def multiplied_out(attend: ir.Attend) -> ir.Attend:
    """The attend with such sums as products of vectors; the same one where it has none."""
    pairs = {attend.reader.name, attend.read.name}

    def made(body: Graph, node: Node) -> int | None:
        dim = summed_dim(body, node, pairs)
        return _Sum(body, node, dim, attend).made() if dim else None

    return rewritten(attend, made)


def summed_dim(body: Graph, node: Node, pairs: set[str]) -> str:
    """The one dim that a value of pairs is a sum over, of what has a number for each entry of it;
    empty where there is none."""
    operands = [body[operand] for operand in node.operands]
    if not pairs <= {*node.type.names} or not any(pairs <= {*o.type.names} for o in operands):
        return ""
    if isinstance(node.op, ir.Reduce) and node.op.fn in ("sum", "mean"):
        return node.op.axes[0] if len(node.op.axes) == 1 else ""
    if not isinstance(node.op, ir.Contract):
        return ""
    axes = {label: axis.name for label, axis in node.op.out}
    named = {
        (label, name)
        for labels, o in zip(node.op.ins, operands, strict=True)
        for label, name in zip(labels, o.type.names, strict=True)
    }
    gone = {name for label, name in named if label not in axes}
    same = all(axes.get(label, name) == name for label, name in named)
    return gone.pop() if same and len(gone) == 1 and gone.isdisjoint(axes.values()) else ""


class _Sum(Polynomial):
    """A sum over a dim that is multiplied out."""

    def __init__(self, body: Graph, node: Node, dim: str, attend: ir.Attend):
        super().__init__(body, node, attend)
        self.node, self.dim = node, dim
        wide = next(body[o] for o in node.operands if dim in body[o].type.names)
        self.axis = wide.type.axis(dim)

    def made(self) -> int | None:
        """The sum of its terms, where one is the square of a vector of one token or a wave was
        among them; None where there is no such sum."""
        terms = self.of_all(self.node.operands)
        if terms is None or self.axis.kind != "dim":
            return None
        if self.node.op == ir.Reduce("mean", (self.dim,)):
            terms = {factors: number / self.axis.size for factors, number in terms.items()}
        listed = sorted(terms.items(), key=lambda term: (str(term[1]).startswith("-"), term[0]))
        parts = [self._sides(factors) for factors, _ in listed]
        exact = [self._is_exact(sides) for sides in parts]
        if not parts or not all(exact) or not (self.waves or self._has_square(parts)):
            return None
        total: int | None = None
        for (_, number), sides in zip(listed, parts, strict=True):
            less = total is not None and bool(number.is_negative)
            value = self.times(self._term(*sides), -number if less else number)
            if total is not None:
                value = self.make.fn("sub" if less else "add", total, value)
            total = value
        assert total is not None, "there are terms"
        return self.make.fn("relu", total) if self._is_square() else total

    # --- its terms ---

    def _sides(self, factors: Factors) -> tuple[Factors, Factors]:
        """The factors of the reader and those of the token read; what is of neither is on a side
        that has a vector."""
        found: dict[bool, list[int]] = {True: [], False: []}
        rest = []
        for id in factors:
            names = self.body[id].type.names
            if self.reader in names or self.read in names:
                found[self.reader in names].append(id)
            else:
                rest.append(id)
        left = not self._has_vector(found[False])
        found[left] += rest
        return tuple(found[True]), tuple(found[False])

    def _has_square(self, parts: Sequence[tuple[Factors, Factors]]) -> bool:
        """Whether a term is of one token alone."""
        return not all(map(self._has_two, parts))

    def _has_two(self, sides: tuple[Factors, Factors]) -> bool:
        """Whether a term has a vector of the reader and one of the token read."""
        return all(map(self._has_vector, sides))

    def _has_vector(self, ids: Sequence[int]) -> bool:
        return any(self.dim in self.body[id].type.names for id in ids)

    def _is_exact(self, sides: tuple[Factors, Factors]) -> bool:
        """Whether a term is a product of two vectors of pairs, or the square of one: what else is
        summed for each token has only the digits of the data."""
        if self._has_two(sides):
            return True
        alone = [id for side in sides for id in side if self._has_vector([id])]
        return len(alone) == 2 and alone[0] == alone[1]

    def _term(self, left: Factors, right: Factors) -> int:
        """The sum over the dim of one product."""
        sides = [side for side in (left, right) if self._has_vector(side)]
        numbers = [id for side in (left, right) if side not in sides for id in side]
        if len(sides) == 2:
            made = self._contracted(*(self.make.chain("mul", side) for side in sides))
        else:
            (alone,) = sides
            vectors = [id for id in alone if self._has_vector([id])]
            numbers += [id for id in alone if id not in vectors]
            made = self._contracted(*vectors)
        return self.make.chain("mul", [made, *numbers])

    def _contracted(self, left: int, right: int) -> int:
        """The product of two vectors."""
        types = [self.body[id].type for id in (left, right)]
        axes = {axis.name: axis for type in types for axis in type.axes if axis.name != self.dim}
        names = [name for name in self.node.type.names if name in axes]
        op = ir.Contract(tuple(t.names for t in types), tuple((n, axes[n]) for n in names))
        return self.make.add(op, left, right)

    def _is_square(self) -> bool:
        """Whether what is summed is the square of something, so that rounding alone is below 0."""
        node, operands = self.node, self.node.operands
        if isinstance(node.op, ir.Contract):
            return len(operands) == 2 and operands[0] == operands[1]
        inner = self.body[operands[0]]
        if inner.op == ir.Elementwise("pow"):
            exponent = self.body[inner.operands[1]].op
            return isinstance(exponent, ir.Constant) and bool(exponent.value.is_even)
        return inner.op == ir.Elementwise("mul") and inner.operands[0] == inner.operands[1]
