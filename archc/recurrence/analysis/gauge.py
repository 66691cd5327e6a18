"""Layer IR -> a proof that a stabiliser does not change what a recurrence gives.

A running maximum keeps exponentials in range: states are stored divided by exp(m), and every result
divides it out again. Then m is a gauge: with m[t] + delta[t] in place of m[t], for any delta, the
other states are scaled and nothing else changes. So the results do not depend on m, and neither do
the final states on any m[t] before the last token: a gradient may take those for constants. The
proof goes through the body once and notes for each value whether it is shifted, scaled, or the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

import sympy

from archc.dims import Axis
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.recurrence.analysis.degree import before, updates

SAME, SHIFT, SCALE = "same", "shift", "scale"
ZERO, INFINITE = "zero", "infinite"

MOST_STATES = 5
"""Beside the stabiliser; with more of them nothing is proved."""


@dataclass(frozen=True)
class Weight:
    """The change of a value x when m[t] becomes m[t] + delta[t] at every t.

    With w = now * delta[t] + before * delta[t-1]: x + w ("shift"), x * exp(w) ("scale"), or x
    ("same"). The numbers 0 ("zero") and oo ("infinite") are scaled by anything, oo also shifted.
    """

    kind: str = SAME
    now: Fraction = Fraction(0)
    before: Fraction = Fraction(0)

    def times(self, number: Fraction) -> Weight:
        """The weight with w * number."""
        return weight(self.kind, self.now * number, self.before * number)

    def __str__(self) -> str:
        parts = [(self.now, "delta[t]"), (self.before, "delta[t-1]")]
        shown = [f"{'' if n == 1 else '-' if n == -1 else f'{n} '}{d}" for n, d in parts if n]
        total = " + ".join(shown).replace("+ -", "- ")
        return {SHIFT: f"+ {total}", SCALE: f"* exp({total})"}.get(self.kind, "unchanged")


def weight(kind: str, now: Fraction | int, before: Fraction | int) -> Weight:
    """A weight; one that changes nothing is "same"."""
    if not now and not before and kind in (SHIFT, SCALE):
        return Weight()
    return Weight(kind, Fraction(now), Fraction(before))


@dataclass(frozen=True)
class Proof:
    """That `state` is a gauge: what becomes of the other states, and of each value of the body
    (None: of one that nothing reads but the update of `state`)."""

    state: str
    states: tuple[tuple[str, Weight], ...]
    values: Mapping[int, Weight | None]

    def lines(self) -> tuple[str, ...]:
        """The proof in words."""
        name = self.state
        rest = [f"{other}[t] -> {other}[t] {found}" for other, found in self.states if found.now]
        return (f"{name}[t] -> {name}[t] + delta[t]", *rest)


def proved(
    recurrence: ir.Recurrence, state: str, wanted: Collection[str] | None = None
) -> Proof | None:
    """A proof that a state of a Recurrence does not change the results; None if there is none.

    `wanted` are the results that are read along the stream (None: all that are no states).
    """
    own = next(each for each in recurrence.states if each.name == state)
    names = {each.name for each in recurrence.states}
    read = [
        n for n in recurrence.body.outputs if (n not in names if wanted is None else n in wanted)
    ]
    wide = {axis.name for axis in own.axes}
    if {*recurrence.body[recurrence.body.outputs[state]].type.names} != wide or state in read:
        return None
    others = [each for each in recurrence.states if each.name != state]
    if len(others) > MOST_STATES:
        return None
    choices = [CHOICES if wide <= {a.name for a in each.axes} else CHOICES[:1] for each in others]
    for chosen in product(*choices):
        states = {each.name: found for each, found in zip(others, chosen, strict=True)}
        values = _Walk(recurrence, own, states).values
        if _holds(recurrence, states, read, values):
            return Proof(state, tuple(states.items()), values)
    return None


CHOICES = (Weight(), weight(SCALE, -1, 0), weight(SCALE, 1, 0), weight(SHIFT, 1, 0))
"""The changes tried for another state after the token."""


def _holds(
    recurrence: ir.Recurrence,
    states: Mapping[str, Weight],
    read: Collection[str],
    values: Mapping[int, Weight | None],
) -> bool:
    """Whether the updates of the states are as was supposed, and the results the same."""
    expected = {**dict.fromkeys(read, Weight()), **states}
    for name in read:
        if states.get(name, Weight()) != Weight():
            return False
    return all(
        equal([values[recurrence.body.outputs[name]], wanted]) == wanted
        for name, wanted in expected.items()
    )


class _Walk:
    """The change of each value of the body under a gauge; None where no rule says it."""

    def __init__(
        self, recurrence: ir.Recurrence, own: ir.State, states: Mapping[str, Weight]
    ) -> None:
        self.body, self.gauge = recurrence.body, {axis.name for axis in own.axes}
        old, after = before(recurrence), updates(recurrence)
        known: dict[int, Weight] = {after[own.name]: weight(SHIFT, 1, 0)}
        for id, name in old.items():
            found = weight(SHIFT, 1, 0) if name == own.name else states[name]
            known[id] = weight(found.kind, 0, found.now)
        self.values: dict[int, Weight | None] = {}
        for node in self.body:
            self.values[node.id] = known[node.id] if node.id in known else self._weight(node)

    def _weight(self, node: Node) -> Weight | None:
        if isinstance(node.op, ir.Constant):
            return _number(node.op.value)
        found = [self.values[operand] for operand in node.operands]
        weights = [w for w in found if w is not None]
        if len(weights) < len(found):
            return None
        if all(w.kind not in (SHIFT, SCALE) for w in weights):
            return Weight()
        rule = RULES.get(type(node.op))
        return None if rule is None else rule(self, node, weights)

    def number(self, id: int) -> Fraction | None:
        """The value of a constant fraction."""
        op = self.body[id].op
        value = op.value if isinstance(op, ir.Constant) else None
        if not isinstance(value, sympy.Rational):
            return None
        return Fraction(int(value.p), int(value.q))

    def touches(self, names: Collection[str]) -> bool:
        """Whether delta varies along one of the axes."""
        return bool(self.gauge & set(names))


def _number(value: sympy.Expr) -> Weight:
    """0 and oo are what they are, however they are scaled."""
    if value == 0:
        return Weight(ZERO)
    return Weight(INFINITE) if value in (sympy.oo, -sympy.oo) else Weight()


def equal(weights: list[Weight | None]) -> Weight | None:
    """The one weight that all these values have; None if there is none."""
    firm = [w for w in weights if w is None or w.kind not in (ZERO, INFINITE)]
    if not firm:
        return Weight()
    zero = any(w is not None and w.kind == ZERO for w in weights)
    first = firm[0]
    if first is None or any(w != first for w in firm):
        return None
    return None if zero and first.kind == SHIFT else first


# --- rules -----------------------------------------------------------------------------------
# Each is asked about a node of which at least one operand is shifted or scaled.


def _scaled(weights: list[Weight], signs: tuple[int, ...]) -> Weight | None:
    """A product: exponents add up, with their signs."""
    if any(w.kind == SHIFT for w in weights):
        return None
    now = sum((w.now * s for w, s in zip(weights, signs, strict=True)), Fraction(0))
    old = sum((w.before * s for w, s in zip(weights, signs, strict=True)), Fraction(0))
    return weight(SCALE, now, old)


def _product(walk: _Walk, node: Node, weights: list[Weight]) -> Weight | None:
    """x * y and x / y; something shifted has only multiples by numbers."""
    divides = node.op.fn == "div"
    for place in (0,) if divides else (0, 1):
        number = walk.number(node.operands[1 - place])
        if weights[place].kind == SHIFT and number:
            return weights[place].times(1 / number if divides else number)
    return _scaled(weights, (1, -1 if divides else 1))


def _sum(walk: _Walk, node: Node, weights: list[Weight]) -> Weight | None:
    """x + y and x - y: shifts add up; what is scaled is scaled alike."""
    if all(w.kind != SHIFT for w in weights):
        return equal([*weights])
    if any(w.kind == SCALE for w in weights):
        return None
    a, b = weights[0], weights[1].times(Fraction(-1 if node.op.fn == "sub" else 1))
    return weight(SHIFT, a.now + b.now, a.before + b.before)


def _alike(walk: _Walk, node: Node, weights: list[Weight]) -> Weight | None:
    return equal([*weights])


def _comparison(walk: _Walk, node: Node, weights: list[Weight]) -> Weight | None:
    return None if equal([*weights]) is None else Weight()


def _choice(walk: _Walk, node: Node, weights: list[Weight]) -> Weight | None:
    return equal([*weights[1:]]) if weights[0] == Weight() else None


def _power(walk: _Walk, node: Node, weights: list[Weight]) -> Weight | None:
    number = walk.number(node.operands[1])
    return weights[0].times(number) if number is not None and weights[0].kind == SCALE else None


def _from_to(old: str, new: str, number: Fraction | int = 1) -> Rule:
    """A function of one value that is `old`: the result is `new`, by `number` times as much."""

    def rule(walk: _Walk, node: Node, weights: list[Weight]) -> Weight | None:
        w = weights[0]
        return weight(new, w.now * number, w.before * number) if w.kind == old else None

    return rule


def _negative(walk: _Walk, node: Node, weights: list[Weight]) -> Weight | None:
    return weights[0].times(Fraction(-1)) if weights[0].kind == SHIFT else weights[0]


def _sign(walk: _Walk, node: Node, weights: list[Weight]) -> Weight | None:
    return Weight() if weights[0].kind == SCALE else None


def _elementwise(walk: _Walk, node: Node, weights: list[Weight]) -> Weight | None:
    rule = FUNCTIONS.get(node.op.fn)
    return None if rule is None else rule(walk, node, weights)


def _contract(walk: _Walk, node: Node, weights: list[Weight]) -> Weight | None:
    """A product summed; axes along which delta varies stay, and keep their names."""
    out: dict[str, Axis] = dict(node.op.out)
    for labels, operand in zip(node.op.ins, node.operands, strict=True):
        for label, name in zip(labels, walk.body[operand].type.names, strict=True):
            if walk.touches([name]) and (label not in out or out[label].name != name):
                return None
    summed = any(label not in out for labels in node.op.ins for label in labels)
    if len(weights) == 1 and not summed:
        return weights[0]
    return _scaled(weights, (1,) * len(weights))


def _reduce(walk: _Walk, node: Node, weights: list[Weight]) -> Weight | None:
    kept = ("mean", "max", "min") if weights[0].kind == SHIFT else ("sum", "mean", "max", "min")
    return weights[0] if node.op.fn in kept and not walk.touches(node.op.axes) else None


def _gather(walk: _Walk, node: Node, weights: list[Weight]) -> Weight | None:
    fits = weights[1] == Weight() and not walk.touches([node.op.axis])
    return weights[0] if fits else None


def _solve(walk: _Walk, node: Node, weights: list[Weight]) -> Weight | None:
    fits = not walk.touches([node.op.row, node.op.col])
    return _scaled(weights, (-1, 1)) if fits else None


Rule = Callable[[_Walk, Node, list[Weight]], Weight | None]
"""The change of a node whose operands change so; None if it is no shift and no scaling."""

FUNCTIONS: dict[str, Rule] = {
    "exp": _from_to(SHIFT, SCALE),
    "log": _from_to(SCALE, SHIFT),
    "sqrt": _from_to(SCALE, SCALE, Fraction(1, 2)),
    "rsqrt": _from_to(SCALE, SCALE, Fraction(-1, 2)),
    "neg": _negative,
    "sign": _sign,
    "pow": _power,
    "where": _choice,
    **dict.fromkeys(("abs", "relu"), _from_to(SCALE, SCALE)),
    **dict.fromkeys(("add", "sub"), _sum),
    **dict.fromkeys(("mul", "div"), _product),
    **dict.fromkeys(("max", "min", "real"), _alike),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), _comparison),
}

RULES: dict[type, Rule] = {
    ir.Elementwise: _elementwise,
    ir.Contract: _contract,
    ir.Reduce: _reduce,
    ir.Gather: _gather,
    ir.Solve: _solve,
}
