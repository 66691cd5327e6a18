"""Layer IR -> layer IR: a state that is scaled, moved and kept within bounds, in chunks.

m[t] = min(max(slope m[t-1] + shift, low), high), as a rectified or clipped integrator has it. While
no slope is negative a run of tokens is such a map again, as what comes later does to bounds what it
does to any value:

    (slope, shift, low, high), then (slope', shift', low', high')
        = (slope' slope, slope' shift + shift', kept'(slope' low + shift'), kept'(.. high ..))

The values are made by that law and are constants; their gradient is that of the loop, a linear
recurrence of what each token keeps of the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from archc.functions.interval import UNIT
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.builder import Builder
from archc.ir.given_law import GivenLaw
from archc.ir.graph import Graph, Node, Type
from archc.ir.typing import layer_graph
from archc.numerics.propagation import FINITE, Interval, intervals
from archc.recurrence.affine.form import NormalForm
from archc.recurrence.analysis.degree import CONSTANT, before, degrees
from archc.recurrence.analysis.semirings import LOWEST
from archc.recurrence.chunk.by_law import by_law
from archc.recurrence.chunk.derived import NotChunked
from archc.recurrence.chunk.frame import Frame, input_of
from archc.recurrence.chunk.lift import Lifted, StateNeeded
from archc.recurrence.chunk.scan import (
    Carried,
    along_rows,
    carried,
    cut,
    diagonal,
    in_last_row,
    starts,
)
from archc.recurrence.chunk.tropical import finite_rise, largest, negative
from archc.source import Span

SLOPE = "write what scales the state as sigmoid(..), exp(-softplus(..)) or another value in [0, 1]"


@dataclass(frozen=True)
class Clamp:
    """min(max(slope m[t-1] + shift, low), high), of values along tokens; None: no such part."""

    slope: int | None = None
    shift: int | None = None
    low: int | None = None
    high: int | None = None

    @property
    def parts(self) -> dict[str, int]:
        """Those that there are, by name."""
        named = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: id for name, id in named.items() if id is not None}


class _Walk:
    """The update of one state, read as a clamp."""

    def __init__(self, recurrence: ir.Recurrence, state: ir.State, lifted: Lifted) -> None:
        self.body, self.lifted, self.frame = recurrence.body, lifted, lifted.frame
        self.degrees = degrees(recurrence, [state.name])
        self.old = {id for id, name in before(recurrence).items() if name == state.name}
        self.factors: list[tuple[int, int]] = []  # along tokens, and where in the body
        self.floors: set[str] = set()

    def clamp(self, id: int) -> Clamp | None:
        """A node of the body that holds the state; None if it is nothing of the kind."""
        node = self.body[id]
        if id in self.old:
            return Clamp()
        fn = node.op.fn if isinstance(node.op, ir.Elementwise) else ""
        if fn == "where" and self._free(node.operands[0]):
            return self._chosen(node)
        held = [each for each in node.operands if not self._free(each)]
        inner = self.clamp(held[0]) if len(held) == 1 and fn in RULES else None
        if inner is None or (fn in ("sub", "div") and held[0] != node.operands[0]):
            return None
        given = [self.lifted[each] for each in node.operands if self._free(each)]
        return RULES[fn](self, inner, given, node)

    def check(self, state: ir.State, known: Mapping[str, Interval]) -> None:
        """Raise NotChunked unless all that scales the state lies in [0, 1]."""
        ranges = intervals(self.frame.graph, known)
        for factor, node in self.factors:
            if not ranges[factor].within(UNIT):
                raise NotChunked(
                    f"what scales `{state.name}`, which is kept within bounds, is not known to lie"
                    " in [0, 1]", SLOPE, node, "E0602",
                )  # fmt: skip

    def _free(self, id: int) -> bool:
        return self.degrees[id].kind == CONSTANT

    def _moved(self, inner: Clamp, given: Sequence[int], node: Node) -> Clamp:
        fn = node.op.fn
        moved = {n: self.frame.fn(fn, id, *given) for n, id in inner.parts.items() if n != "slope"}
        first = given[0] if fn == "add" else self.frame.fn("neg", given[0])
        return Clamp(inner.slope, **{"shift": first, **moved})

    def _scaled(self, inner: Clamp, given: Sequence[int], node: Node) -> Clamp:
        frame = self.frame
        factor = given[0] if node.op.fn == "mul" else frame.fn("div", frame.number(1), given[0])
        self.factors.append((factor, node.id))
        scaled = {name: frame.fn("mul", factor, id) for name, id in inner.parts.items()}
        return Clamp(**{"slope": factor, **scaled})

    def _raised(self, inner: Clamp, given: Sequence[int], node: Node) -> Clamp | None:
        fn = node.op.fn
        self.floors.add(fn)
        if len(self.floors) > 1:
            return None  # at 0 their gradients differ
        floor = self.frame.number(0) if fn == "relu" else given[0]
        high = None if inner.high is None else self.frame.fn("max", inner.high, floor)
        low = floor if inner.low is None else self.frame.fn("max", inner.low, floor)
        return Clamp(inner.slope, inner.shift, low, high)

    def _lowered(self, inner: Clamp, given: Sequence[int], node: Node) -> Clamp:
        high = given[0] if inner.high is None else self.frame.fn("min", inner.high, given[0])
        low = None if inner.low is None else self.frame.fn("min", inner.low, given[0])
        return Clamp(inner.slope, inner.shift, low, high)

    def _chosen(self, node: Node) -> Clamp | None:
        """where(c, x, y) of clamps with the same bounds, or of a value, which is its own bounds."""
        frame, (choice, *branches) = self.frame, node.operands
        found = [None if self._free(each) else self.clamp(each) for each in branches]
        own = [each for each in found if each is not None]
        if len(own) + sum(map(self._free, branches)) < 2:
            return None
        bounds = {(each.low is None, each.high is None) for each in own}
        if len(bounds) > 1:
            return None
        zero, one = frame.number(0), frame.number(1)
        usual: Mapping[str, int | None] = {"slope": one, "shift": zero, "low": None, "high": None}
        made = dict[str, int]()
        for name, nothing in usual.items():
            if nothing is None and getattr(own[0], name) is None:
                continue
            pair = []
            for id, each in zip(branches, found, strict=True):
                value = zero if name == "slope" else self.lifted[id] if each is None else None
                pair.append(value if each is None else each.parts.get(name, nothing))
            same = pair[0] == pair[1]
            made[name] = pair[0] if same else frame.fn("where", self.lifted[choice], *pair)
        return Clamp(**made)


RULES = {
    "add": _Walk._moved,
    "sub": _Walk._moved,
    "mul": _Walk._scaled,
    "div": _Walk._scaled,
    "max": _Walk._raised,
    "relu": _Walk._raised,
    "min": _Walk._lowered,
}
"""Functions of a clamp, and at most one value without the state, that are clamps."""


def in_bounds(
    recurrence: ir.Recurrence,
    form: NormalForm,
    lifted: Lifted,
    known: Mapping[str, Interval],
    initial: Mapping[str, Interval],
    starts: Mapping[str, int],
) -> Sequence[tuple[GivenLaw, Carried]]:
    """A state that is kept within bounds, along tokens, and its law; none for any others, for one
    that begins as infinity, and for one that is larger than what enters it, which summaries of all
    tokens would be as well. Raises NotChunked where it may grow."""
    own = [state for state in recurrence.states if state.name in form.states]
    state, graph = own[0], lifted.frame.graph
    axes = {axis.name for axis in state.axes} | {lifted.frame.stream.name}
    given = [node for node in graph if isinstance(node.op, ir.Input)]
    small = any(axes <= {*node.type.names} for node in given)
    if len(own) > 1 or not small or not initial.get(state.name, Interval()).within(FINITE):
        return ()
    walk = _Walk(recurrence, state, lifted)
    update = recurrence.body.outputs[state.name]
    try:
        clamp = walk.clamp(update)
    except StateNeeded:
        return ()
    if clamp is None or not {"low", "high"} & {*clamp.parts}:
        return ()
    walk.check(state, known)
    law = law_of_clamp(state, clamp, recurrence.body[update].span, graph)
    rectified = "relu" in walk.floors
    return [(law, _clamped(lifted.frame, state, clamp, rectified, starts[state.name], law))]


def _clamped(
    frame: Frame, state: ir.State, clamp: Clamp, rectified: bool, initial: int, law: GivenLaw
) -> Carried:
    """The state along tokens, by its law (`law_of_clamp`)."""
    if clamp.low is not None and clamp.high is not None:
        parts = [frame.real(clamp.parts[name]) for name in law.parts]
        found = by_law(frame, law, [state], parts, {state.name: initial})[state.name]
    else:
        found = _by_scans(frame, state, clamp, initial)
    old, new = (frame.add(ck.Detach(), id) for id in (found.before, found.after))
    rises = _rises(frame, state, clamp, rectified, old, initial)
    after = frame.fn("add", new, rises.after)
    last = frame.add(ck.Last(frame.stream.name), after, initial)
    return Carried(frame.fn("add", old, rises.before), after, last)


def _by_scans(frame: Frame, state: ir.State, clamp: Clamp, initial: int) -> Carried:
    """The values with one bound: max(slope m[t-1] + shift, low) as A[t] + max(F m, c[t]), with the
    m that the chunk began with, the product F of slopes, what they make of shifts, A, and the scan
    c[t] = max(slope c[t-1], low - A[t]). It may begin with any number that no state is below: what
    becomes of that is never above F m. With an upper bound all signs are the other ones."""
    sign = "neg" if clamp.low is None else ""

    def signed(id: int) -> int:
        return negative(frame, id) if sign else id

    bound = clamp.low if clamp.high is None else signed(clamp.high)
    assert bound is not None, "there is a bound"
    shift = None if clamp.shift is None else signed(clamp.shift)
    begin, zero = signed(initial), frame.number(0)
    if clamp.slope is None:
        return _signed(frame, largest(frame, state, shift, bound, begin), sign)
    a, floor = cut(frame, clamp.slope, fill=1), cut(frame, bound)
    given = {"bound": floor, "kept": along_rows(frame, a, zero, frame.number(1))}
    if shift is not None:
        given["moved"] = along_rows(frame, a, cut(frame, shift), zero)
        floor = frame.fn("sub", floor, given["moved"])
    given["floor"] = along_rows(frame, a, floor, frame.number(LOWEST), "max-times")
    last = {name: in_last_row(frame, id) for name, id in given.items()}
    start = starts(frame, state, begin, last, _step)
    return _signed(frame, carried(frame, state, _step(frame, start, given), start, begin), sign)


def _signed(frame: Frame, found: Carried, sign: str) -> Carried:
    """The values, with the other sign or as they are."""
    ids = (found.before, found.after, found.final)
    return Carried(*(frame.fn(sign, id) if sign else id for id in ids))


def _step(frame: Frame, state: int, given: Mapping[str, int]) -> int:
    """max(kept * state, floor) + moved, of rows or of a whole chunk; rounded, it is no less than
    its bound."""
    largest = frame.fn("max", frame.fn("mul", given["kept"], state), given["floor"])
    total = frame.total([largest, given.get("moved")])
    assert total is not None, "there is a value"
    return total if "moved" not in given else frame.fn("max", total, given["bound"])


def _rises(
    frame: Frame, state: ir.State, clamp: Clamp, rectified: bool, old: int, initial: int
) -> Carried:
    """0, with the gradient of the loop: of the largest and the least, half of each where two are
    equal."""
    slope = None if clamp.slope is None else frame.add(ck.Detach(), clamp.slope)
    value = frame.total([frame.times(slope, old), clamp.shift])
    rise = _rise(frame, clamp.slope)
    move = frame.total([None if rise is None else frame.fn("mul", rise, old),
                        _rise(frame, clamp.shift)])  # fmt: skip
    keep, one = slope, frame.number(1)
    assert value is not None, "a clamp has a state"
    for bound, fn, wins in ((clamp.low, "max", "gt ge"), (clamp.high, "min", "lt le")):
        if bound is None:
            continue
        some, every = (frame.fn("real", frame.fn(each, value, bound)) for each in wins.split())
        share = frame.fn("div", frame.fn("add", some, every), frame.number(2))
        share = some if rectified and fn == "max" else share
        moved = None if move is None else frame.fn("mul", share, move)
        own, rest = _rise(frame, bound), frame.fn("sub", one, share)
        move = frame.total([moved, None if own is None else frame.fn("mul", rest, own)])
        keep, value = frame.times(share, keep), frame.fn(fn, value, bound)
    return diagonal(frame, state, keep, move, finite_rise(frame, initial))


def _rise(frame: Frame, id: int | None) -> int | None:
    """0, with the gradient of a value; None of a number, which has none."""
    graph = frame.graph
    there = id is not None and any(
        isinstance(graph[each].op, ir.Input) for each in (id, *graph.ancestors(id))
    )
    return finite_rise(frame, id) if there and id is not None else None


# --- the law -------------------------------------------------------------------------------------


def law_of_clamp(state: ir.State, clamp: Clamp, span: Span | None, values: Graph) -> GivenLaw:
    """How clamps compose, `values` being the graph of what each token has."""
    names, type = tuple(clamp.parts), Type(state.axes)
    apply, merge = layer_graph(), layer_graph()
    run = {name: input_of(apply, name, type) for name in names}
    value = _of(apply, run, input_of(apply, ck.start(state.name), type))
    apply.outputs[ck.final(state.name)] = value
    one, two = ({n: input_of(merge, f"{n}.{i}", type) for n in names} for i in (1, 2))
    for name in names:
        if name == "slope":
            merge.outputs[name] = Builder(merge).fn("mul", two[name], one[name])
        else:
            merge.outputs[name] = _of(merge, two, one[name], bounds=name != "shift")
    token = values.copy()
    token.outputs = {**clamp.parts}
    token.prune()
    return GivenLaw((state.name,), names, merge, apply, "", span, proved=True, token=token)


def _of(graph: Graph, run: Mapping[str, int], value: int, bounds: bool = True) -> int:
    """What a run makes of a value."""
    steps = {"slope": "mul", "shift": "add", "low": "max", "high": "min"}
    for name, fn in steps.items():
        if name in run and (bounds or name in ("slope", "shift")):
            value = Builder(graph).fn(fn, value, run[name])
    return value
