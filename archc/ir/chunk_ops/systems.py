"""Chunk ops that solve systems of equations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sympy

from archc.ir import layer as ir
from archc.ir.chunk_ops.op import ChunkOp, Cotangents, Gradients
from archc.ir.chunk_ops.pairs import Gram
from archc.ir.graph import Graph, Node, Type
from archc.ir.named import Named
from archc.ir.shapes import Lengths, Types, elements, require

if TYPE_CHECKING:
    from archc.ir.meaning_ops import Scope


@dataclass(frozen=True)
class Inverse(ChunkOp):
    """(I - A)^-1 of a matrix A[row, col] that is 0 on the diagonal and above."""

    held = "inverse"
    row: str
    col: str

    in_order = True

    def typed(self, types: Types) -> Type:
        require({self.row, self.col} <= set(types[0].names), "inverse of a matrix")
        return types[0]

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        return types[0].axis(self.row).size * elements(node.type.axes, lengths) / 3

    def reduction_dims(self) -> tuple[str, ...]:
        return (self.row, self.col)

    def meaning(self, node: Node, scope: Scope, x: Named) -> Named:
        import torch

        rest = x.but(self.row, self.col)
        data = x.to([*rest, self.row, self.col])
        identity = torch.eye(data.shape[-1], dtype=data.dtype, device=data.device)
        data = torch.linalg.solve_triangular(identity - data.tril(-1), identity, upper=False)
        return Named(data, (*rest, self.row, self.col))

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """T = (I - A)^-1: dA = T^T dT T^T below the diagonal."""
        row, col = node.type.axis(self.row), node.type.axis(self.col)
        return [self.below(b, node, self.between(b, node, b.full(d, [row, col])))]

    def between(self, b: Gradients, node: Node, d: int) -> int:
        """T^T d T^T."""
        row, col = node.type.axis(self.row), node.type.axis(self.col)
        p, q = f"{row.name}'", f"{col.name}'"  # labels of what is summed
        d_labels = [{row.name: p, col.name: q}.get(name, name) for name in b.names(d)]
        first = [{row.name: p, col.name: row.name}.get(name, name) for name in node.type.names]
        last = [{row.name: col.name, col.name: q}.get(name, name) for name in node.type.names]
        batch = [(axis.name, axis) for axis in node.type.axes if axis not in (row, col)]
        out = [*batch, (row.name, row), (q, col)]
        half = b.contract([(node.id, first), (d, d_labels)], out)
        half_labels = [q if name == col.name else name for name in b.names(half)]
        every = [(axis.name, axis) for axis in node.type.axes]
        return b.contract([(half, half_labels), (node.id, last)], every)

    def below(self, b: Gradients, node: Node, d: int) -> int:
        """A cotangent of A, 0 on the diagonal and above."""
        source = b.graph[node.operands[0]].op
        if isinstance(source, Gram) and source.strict:  # looks at nothing else
            return d
        row, col = node.type.axis(self.row), node.type.axis(self.col)
        kept = b.fn("lt", b.add(ir.Position(col)), b.add(ir.Position(row)))
        return b.fn("where", kept, d, b.number(0))


@dataclass(frozen=True, eq=False)
class Conjugate(ChunkOp):
    """z with M z = b, where M is symmetric, positive definite and given by its products alone.

    `body` computes the product M p from its input "p" and from inputs named as in `captures`; its
    output is "product". Operands: b, then one for each capture. Axes of `over` are those of the
    system; every other axis is a system of its own. The meaning is the exact solution;
    `iterations` bounds the conjugate gradients (None: until it is exact).
    """

    held = "solution"
    over: tuple[str, ...]
    captures: tuple[str, ...]
    body: Graph
    iterations: sympy.Expr | None = None

    in_order = True

    def typed(self, types: Types) -> Type:
        require(len(types) == 1 + len(self.captures), "an operand for each capture")
        return self.body[self.body.outputs["product"]].type

    @property
    def inner(self) -> Graph:
        return self.body

    def inner_runs(self, node: Node) -> sympy.Expr:
        """As many as unknowns, unless they are bounded."""
        size = sympy.Mul(*(node.type.axis(name).size for name in self.over))
        return size if self.iterations is None else self.iterations

    def operations(self, node: Node, types: Types, lengths: Lengths) -> sympy.Expr:
        """In each step, besides the product, two inner products and three updates."""
        return 10 * elements(node.type.axes, lengths)

    def reduction_dims(self) -> tuple[str, ...]:
        """Besides those, what its products cross (`archc/schedule/axes.py`)."""
        return self.over

    def meaning(self, node: Node, scope: Scope, b: Named, *operands: Named) -> Named:
        """The system's matrix, column by column from the body, and its exact solution."""
        import torch

        rest = [name for name in node.type.names if name not in self.over]
        names = (*rest, *self.over)
        shape = scope.shape([node.type.axis(name) for name in names])
        of_system = shape[len(rest) :]
        size = math.prod(of_system)
        captured = dict(zip(self.captures, operands, strict=True))
        columns = []
        for unit in torch.eye(size, dtype=scope.like.dtype, device=scope.like.device):
            p = Named(unit.reshape(of_system).expand(shape), names)
            product = scope.run(self.body, {**captured, "p": p})["product"]
            columns.append(product.to(names).expand(shape).flatten(len(rest)))
        matrix = torch.stack(columns, -1) if columns else scope.like.new_zeros((*shape, 0))
        right = b.to(names).expand(shape).flatten(len(rest))
        return Named(torch.linalg.solve(matrix, right).reshape(shape), names)

    def gradient(self, b: Gradients, node: Node, d: int) -> Cotangents:
        """M z = b: db = y with M y = dz, by the implicit function theorem and not through
        iterations. What the product M p captures gets its cotangents at p = z for -y."""
        right, *captured = node.operands
        y = b.add(self, b.full(d, [node.type.axis(name) for name in self.over]), *captured)
        given = dict(zip(self.captures, captured, strict=True))
        read = {node.op.name for node in self.body if isinstance(node.op, ir.Input)}
        wanted = [name for name, id in given.items() if id in b.active and name in read]
        values = {**given, "p": node.id}
        found = b.of_body(self.body, values, wanted, {"product": b.neg(y)}) if wanted else {}
        return [b.fit(y, node.type, b.type(right)), *(found.get(name) for name in self.captures)]
