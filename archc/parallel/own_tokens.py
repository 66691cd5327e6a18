"""Layer IR -> what each value of a layer is when its tokens are split over the processes along
`cp`: its own tokens on each, or a sum over the tokens that is taken over all of them."""

from __future__ import annotations

from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.parallel.placement import Crossing, Mark, Pending, Split, looks_along

TOKENS = Split("t")


def tokens_of(layer: ir.Layer) -> dict[int, Mark]:
    """The mark of each value. Raises Crossing for an op that has no form on parts of a sequence."""
    graph = layer.graph
    return {node.id: _mark(node, [graph[o] for o in node.operands]) for node in graph}


def _mark(node: Node, operands: list[Node]) -> Mark:
    own = "t" in node.type.names
    along = any("t" in operand.type.names for operand in operands)
    if along:
        _refuse(node, operands)
    if not along or own or isinstance(node.op, ir.Recurrence | ir.Attend | ir.Call | ir.Result):
        return TOKENS if own else None
    if isinstance(node.op, ir.Reduce) and node.op.fn in ("sum", "mean"):
        return Pending(node.op.fn)
    if isinstance(node.op, ir.Contract):
        return Pending("sum")
    raise Crossing("all tokens are looked at together", node)


def _refuse(node: Node, operands: list[Node]) -> None:
    """Refuse what needs more of the sequence than its neighbours, a summary, or earlier tokens."""
    op = node.op
    if isinstance(op, ir.Recurrence):
        if op.stream.name != "t":
            raise Crossing(f"a recurrence runs along `{op.stream.name}`, made of the tokens", node)
        if op.reverse:
            raise Crossing("a recurrence runs from the last token to the first", node)
    elif isinstance(op, ir.Attend):
        if op.reader.name != "t" or (op.source == "t" and not op.causal):
            raise Crossing("tokens that come later are read", node)
        made = [axis for o in operands for axis in o.type.axes if axis.kind == "stream"]
        if op.source != "t" and any(axis.name == op.source and _grown(axis) for axis in made):
            raise Crossing(f"`{op.source}` is made of the tokens", node)
    elif isinstance(op, ir.Window) and op.stream == "t" and op.stride is not None:
        raise Crossing("tokens are taken together in blocks", node)
    elif isinstance(op, ir.Substitute):
        raise Crossing("each token is made from all earlier ones", node)
    elif isinstance(op, ir.Call):
        if dict(op.axes).get("t") is not None and dict(op.axes)["t"].name != "t":
            raise Crossing(f"`{op.callee.name}` runs along another sequence", node)
    elif isinstance(op, ir.Contract):
        _same_tokens(node, op, operands)
    elif "t" in looks_along(op) and not isinstance(op, ir.Shift | ir.Window | ir.Reduce):
        raise Crossing("all tokens are looked at together", node)


def _grown(axis: object) -> bool:
    from archc.dims import T_SEEN, TIME, Axis

    return isinstance(axis, Axis) and axis.size.has(TIME.size, T_SEEN)


def _same_tokens(node: Node, op: ir.Contract, operands: list[Node]) -> None:
    """Refuse a product of each token with every other."""
    labels = {
        place[operand.type.names.index("t")]
        for place, operand in zip(op.ins, operands, strict=True)
        if "t" in operand.type.names
    }
    made = {out.name for label, out in op.out if label in labels}
    if len(labels) > 1 or made - {"t"}:
        raise Crossing("each token meets every other", node)
