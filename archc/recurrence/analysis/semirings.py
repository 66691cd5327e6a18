"""What stands for a sum where a sum of two numbers stands for their product: the largest, the
smallest, or the logarithm of the sum of exponentials.

    m[t] = max(a + m[t-1], b)      m[t] = log(exp(a + m[t-1]) + exp(b))

Over one of these, such an update is linear in the state.
"""

from __future__ import annotations

from archc.ir import layer as ir
from archc.ir.graph import Graph, Node

MAX, MIN, LOG = "max", "min", "logaddexp"

SEMIRINGS = {
    MAX: "running maximum, a recurrence over (max, +)",
    MIN: "running minimum, a recurrence over (min, +)",
    LOG: "running logarithm of a sum, a recurrence over (logaddexp, +)",
}
"""Each in words."""

LOWEST = -(10**30)
"""A number that values are above, in place of -inf, whose difference from itself is 0."""


def joined(kind: str, body: Graph, node: Node) -> tuple[int, ...] | None:
    """The two values that a node is the sum of, over a semiring; None if it is none."""
    if kind != LOG:
        return node.operands if node.op == ir.Elementwise(kind) else None
    return _log_of_sum(body, node) or _above_the_largest(body, node)


def _log_of_sum(body: Graph, node: Node) -> tuple[int, ...] | None:
    """x and y of log(exp(x) + exp(y))."""
    total = _arguments(body, node.id, "log")
    added = _arguments(body, total[0], "add") if total else None
    exponents = [_arguments(body, id, "exp") for id in added or ()]
    found = tuple(each[0] for each in exponents if each is not None)
    return found if len(found) == 2 else None


def _above_the_largest(body: Graph, node: Node) -> tuple[int, ...] | None:
    """x and y of z + log(exp(x - z) + exp(y - z)), of y + softplus(x - y), and of
    max(x, y) + softplus(-abs(x - y))."""
    added = _arguments(body, node.id, "add")
    for level, rest in (added, added[::-1]) if added else ():
        inner = _log_of_sum(body, body[rest])
        less = [_arguments(body, id, "sub") for id in inner or ()]
        found = tuple(x for x, z in filter(None, less) if _same(body, z, level))
        if len(found) == 2:
            return found
        above = _arguments(body, rest, "softplus")
        apart = _arguments(body, above[0], "sub") if above else None
        if apart is not None and _same(body, apart[1], level):
            return apart
        if above is not None and _is_minus_distance(body, above[0], level):
            return _arguments(body, level, "max")
    return None


def _is_minus_distance(body: Graph, id: int, level: int) -> bool:
    """Whether a value is -abs(x - y), where the level is max(x, y)."""
    size, pair = _arguments(body, id, "neg"), _arguments(body, level, "max")
    between = _arguments(body, size[0], "abs") if size else None
    apart = _arguments(body, between[0], "sub") if between else None
    if apart is None or pair is None:
        return False
    return any(all(map(_same, (body, body), apart, each)) for each in (pair, pair[::-1]))


def _same(body: Graph, one: int, other: int) -> bool:
    """Whether two nodes are the same function of the same values."""
    x, y = body[one], body[other]
    if one == other:
        return True
    alike = isinstance(x.op, ir.Elementwise | ir.Constant) and x.op == y.op
    return alike and all(_same(body, *each) for each in zip(x.operands, y.operands, strict=True))


def _arguments(body: Graph, id: int, fn: str) -> tuple[int, ...] | None:
    """The operands of a function of elements; None for another."""
    node = body[id]
    return node.operands if node.op == ir.Elementwise(fn) else None
