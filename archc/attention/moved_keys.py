"""An attend of one reader whose score goes through matrices of the tokens between -> one without.

    score(t, s) = k[s]' M[s+1] ... M[t] q[t] = k[t, s]' q[t]
    k[t, s] = M[t]' k[t-1, s],    k[s, s] = k[s]

M[i] = I + sign u[i] w[i]' + ..., so that a token moves each key before it by a number times w; or
M[i] = diag(exp(g[i])), so that it scales each by channel. What is left for a reader that comes
alone is the fold of moved keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from archc.attention.between import Term, Through, factors_of, multiplied, through
from archc.attention.gated import gate_of, with_gates
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node


@dataclass(frozen=True, eq=False)
class Moved:
    """`op` reads keys, the capture `key`, that the matrices of later tokens have moved. `factors`
    makes u0, w0, u1, ... of a token, of captures of the attend, or the logarithms of its gates;
    `signs` are those of u w'."""

    op: ir.Attend
    key: str
    factors: Graph
    signs: tuple[int, ...]


def moved_keys(op: ir.Attend) -> Moved | None:
    """The attend of one reader in which keys were moved; None where no product of matrices is all
    that its keys enter."""
    if op.source != op.reader.name or op.path is None or not op.causal or op.decode is not None:
        return None
    op = with_gates(op)
    body, roles = op.body, dict(op.captures)
    both = [(n, through(body, n, op.reader.name, op.read.name)) for n in body
            if isinstance(n.op, ir.Contract)]  # fmt: skip
    found = [(node, each) for node, each in both if isinstance(each, Through)]
    matrices = [n for n in body if isinstance(n.op, ir.Segment) and n.op.kind == "product"]
    if len(found) != 1 or op.window is not None:
        return None
    (node, made), key = found[0], body[found[0][1].read[0]]
    own = [term for term in factors_of(body, node) if isinstance(term[0].op, ir.Segment)]
    if len(matrices) != len(own):
        return None
    if not isinstance(key.op, ir.Input) or roles.get(key.op.name) != "read":
        return None
    if len(body.users(key.id)) != 1 or not _alike(body, key, made):
        return None
    own = body.copy()
    own.substitute(node.id, _without(own, node, {op.reader.name, op.read.name}))
    own.prune()
    left = {n.op.name for n in own if isinstance(n.op, ir.Input)}
    factors = body.copy()
    factors.outputs = {f"{side}{i}": getattr(outer, side)
                       for i, outer in enumerate(made.outers) for side in "uw"}  # fmt: skip
    if made.gate is not None:
        factors.outputs = {"gate": made.gate[0]}
    factors.prune()
    if any(roles.get(n.op.name) != "path" for n in factors if isinstance(n.op, ir.Input)):
        return None
    captures = tuple(each for each in op.captures if each[0] in left)
    alone = replace(op, body=own, captures=captures)
    return Moved(alone, key.op.name, factors, tuple(outer.sign for outer in made.outers))


def _alike(body: Graph, key: Node, made: Through) -> bool:
    """Whether a key, u and w are vectors of a token, each of as many numbers for the same heads."""
    batch, stream, *heads, dim = key.type.names
    ends = [(outer.u, outer.rows) for outer in made.outers]
    ends += [(outer.w, outer.columns) for outer in made.outers]
    ends += [made.gate] if made.gate is not None else []
    sides = [(body[id].type, own) for id, own in ends]
    found = [{*type.names} - {own} for type, own in sides]
    streams = [{a.name for a in type.axes if a.kind == "stream"} for type, _ in sides]
    sizes = {type.axis(own).size for type, own in sides} | {key.type.axis(dim).size}
    same = all(own - along == {batch, *heads} for own, along in zip(found, streams, strict=True))
    return same and made.read[1] == dim and len(sizes) == 1 and stream not in heads


def _without(body: Graph, node: Node, pairs: set[str]) -> int:
    """The product of both vectors without the matrix between."""
    every = factors_of(body, node)
    matrices = [term for term in every if isinstance(term[0].op, ir.Segment)]
    row, column = "", ""
    for matrix, labels in matrices:
        row, column = (labels[matrix.type.names.index(x)] for x in (matrix.op.row, matrix.op.col))
    if not matrices:
        every = multiplied(body, node, pairs)
    vectors: list[Term] = [
        term for term in every if term not in matrices and gate_of(body, term[0]) is None
    ]
    ins = tuple(tuple(row if x == column else x for x in labels) for _, labels in vectors)
    ids = [each.id for each, _ in vectors]
    return body.add(ir.Contract(ins, node.op.out), *ids, name=node.name)
