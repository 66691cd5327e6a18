"""`recurrence`: states carried from token to token, as a Recurrence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise

import sympy

from archc.diagnostics import Refused
from archc.dims import BATCH, TIME, Axis
from archc.elaborate import ops
from archc.elaborate.heads import Define, heads_of, live_entries, node_name
from archc.elaborate.law_in_place import laws_of
from archc.elaborate.scope import Along, Scope
from archc.elaborate.values import Frame, Identity, Lazy, Tensor
from archc.ir import layer as ir
from archc.ir.given_law import GivenLaw
from archc.ir.graph import Type
from archc.ir.typing import layer_graph
from archc.ir.value_names import state_before
from archc.syntax import habits, tree

MOST_BACK = 4
"""Earliest state that `S[t - n]` may name."""


@dataclass(eq=False)
class StateRef:
    """A state inside its recurrence: its value before the token, and the definition of the next."""

    decl: tree.StateDecl
    axes: tuple[Axis, ...]
    before: Tensor
    after: Lazy | None = None
    looped: bool = False
    older: list[StateRef] = field(default_factory=list)

    def at(self, scope: Scope, node: tree.Index, steps: int) -> Tensor:
        """`S[t]`, `S[t-1]`, or an earlier one, for which states of their own are carried."""
        if steps > MOST_BACK:
            raise scope.error(
                "E0312",
                f"`{self.decl.name}` is read {steps} steps back",
                node.span,
                f"at most {MOST_BACK} are kept, each as a state of its own",
                others=[(self.decl.span, "declared here")],
            )
        while len(self.older) < steps - 1:
            self.older.append(self._one_older(len(self.older) + 1))
        if steps:
            return (self, *self.older)[steps - 1].before
        if self.after is None:
            raise self.never_updated(scope)
        value = scope.lookup(self.decl.name, node.span)
        assert isinstance(value, Tensor)
        return value

    def _one_older(self, count: int) -> StateRef:
        """The state that is this one so many tokens late; before the first it is as this one."""
        decl = replace(self.decl, name=f"{self.decl.name}_{count}_ago")
        frame = self.before.frame
        before = frame.graph.add(
            ir.Input(state_before(decl.name), Type(self.axes)), span=self.decl.span
        )
        return StateRef(decl, self.axes, Tensor(frame, before, origin=self.decl.span))

    def late(self, scope: Scope) -> Iterator[tuple[StateRef, Tensor]]:
        """Those states, and what each of them is after the token."""
        for newer, ref in pairwise((self, *self.older)):
            value, at = newer.before, self.decl.span
            if scope.gate is not None:
                where = ir.Elementwise("where")
                value = ops.node(scope, where, scope.gate, value, ref.before, span=at)
            yield ref, value

    def never_updated(self, scope: Scope) -> Refused:
        """The error for a state whose new value the recurrence does not say."""
        name = self.decl.name
        near = [each for each in scope.names if habits.of_value(each, {name})]
        helps = [f"write `{name}[t] = ...` once in the block"]
        if near:
            helps = [f"write `{name}[t] = ...`: `{near[0]}` is another name, and no state"]
        if self.looped:
            helps = [
                f"a `repeat` carries a name: `Z = {name}[t-1]` in front of it, `Z = ...` in it, of "
                f"`Z`, and `{name}[t] = Z` behind it"
            ]
        return scope.error(
            "E0313",
            f"the recurrence never says what `{name}[t]` is",
            self.decl.span,
            "declared here",
            helps=helps,
        )


def recurrence(
    scope: Scope, node: tree.Recurrence, exported: set[str], define: Define
) -> dict[str, Tensor]:
    """A Recurrence, and its states and exported names along the stream."""
    heads, grouped = heads_of(scope, node)
    frame = Frame(layer_graph(), scope.frame, _token_capture(scope, node), region=True)
    inner = scope.child(
        frame=frame,
        memory=True,
        grouped=grouped,
        attend=None,
        hidden=scope.hidden | {axis.name for axis in heads},
        indices={"t": Along("reader", TIME)},
    )
    looping = _given_in_repeats(node.body)
    for state in node.states:
        axes = (BATCH, *scope.extra, *heads, *ops.settle(inner.axes(state.axes), inner.hidden))
        before = frame.graph.add(ir.Input(state_before(state.name), Type(axes)), span=state.span)
        old, looped = Tensor(frame, before, origin=state.span), state.name in looping
        inner.states[state.name] = StateRef(state, axes, old, looped=looped)
    states = inner.states
    assigned, inner = define(inner, node.body)
    updates = {name: _update(inner, ref) for name, ref in states.items()}
    late = [each for ref in states.values() for each in ref.late(inner)]
    for ref, value in late:
        if inner.find(ref.decl.name) is not None:
            text = f"`{ref.decl.name}` is the name of an older state, read by `[t-2]` or before"
            raise scope.error(
                "E0312", text, ref.decl.span, helps=["call the other value otherwise"]
            )
        updates[ref.decl.name] = value
    states = {**states, **{ref.decl.name: ref for ref, _ in late}}
    frame.graph.outputs = {name: value.node for name, value in updates.items()}
    for name in assigned:
        value = inner.lookup(name, node.span)
        if name in exported and name not in updates and isinstance(value, Tensor):
            frame.graph.outputs[name] = frame.bring(value).node
    laws = laws_of(inner, {name: ref.axes for name, ref in states.items()}, heads)
    copies = tuple(axis.name for axis in (*scope.extra, *heads))
    return _recurrence(scope, node, frame, states, copies, laws)


def _given_in_repeats(block: Iterable[tree.Stmt]) -> set[str]:
    """Names that a `repeat` of a block gives as states, `S[t] = ...`."""
    repeats = [stmt for stmt in block if isinstance(stmt, tree.Repeat)]
    return set().union(*(_given_in_repeats(each.body) for each in repeats)) | {
        target.name for each in repeats for stmt in each.body if isinstance(stmt, tree.Assign)
        for target in stmt.targets if target.items
    }  # fmt: skip


def _recurrence(
    scope: Scope,
    node: tree.Recurrence,
    frame: Frame,
    states: dict[str, StateRef],
    heads: tuple[str, ...],
    laws: tuple[GivenLaw, ...],
) -> dict[str, Tensor]:
    """The Recurrence node with its captures and initial states, and its results; nothing reads the
    summaries of tokens."""
    frame.graph.prune(keep=[ref.before.node for ref in states.values()])
    entries = live_entries(frame)
    inits = [_initial(scope, ref) for ref in states.values()]
    op = ir.Recurrence(
        TIME,
        tuple(name for name, _, _ in entries),
        tuple(ir.State(name, ref.axes) for name, ref in states.items()),
        frame.graph,
        heads,
        laws=laws,
    )
    inside = {law.in_body(part) for law in laws for part in law.parts}
    made = ops.node(scope, op, *(outer for _, _, outer in entries), *inits, span=node.span)
    return {
        name: ops.node(scope, ir.Result(name), made, span=node.span)
        for name in frame.graph.outputs
        if name not in inside
    }


def _token_capture(scope: Scope, node: tree.Recurrence) -> Callable[[Frame, Tensor, str], int]:
    """Captures into a recurrence: the value at one token."""

    def capture(frame: Frame, outer: Tensor, role: str) -> int:
        streams = [axis.name for axis in outer.axes if axis.kind == "stream"]
        if any(name != "t" for name in streams):
            raise scope.error(
                "E0306",
                f"a value along `{streams[-1]}` enters a recurrence over the layer's own tokens",
                node.states[0].span,
                others=[(outer.origin, "from here")],
            )
        text, outer = node_name(outer, "u"), ops.batched(outer)
        name = frame.enter(text, role, outer)
        axes = tuple(axis for axis in outer.axes if axis.kind != "stream")
        return frame.graph.add(ir.Input(name, Type(axes, outer.type.dtype)), name=name)

    return capture


def _initial(scope: Scope, ref: StateRef) -> Tensor:
    """The state before the first token: 0 unless given; `I` is of the state's size."""
    value = scope.evaluate(ref.decl.init) if ref.decl.init is not None else sympy.Integer(0)
    if isinstance(value, Identity) and len(ref.decl.axes) == 2:
        rows, cols = ref.axes[-2:]
        value = ops.identity_matrix(scope, value, rows, cols, ref.decl.span)
    made = ops.tensor(scope, value, ref.decl.span)
    if any(axis.kind == "stream" for axis in made.axes):
        raise scope.error("E0313", "an initial state does not depend on the token", ref.decl.span)
    extra = [axis.name for axis in made.axes if axis.name not in {a.name for a in ref.axes}]
    if extra:
        raise scope.error(
            "E0301",
            f"the initial value has an axis `{extra[0]}` that the state has not",
            ref.decl.span,
        )
    return made


def _update(inner: Scope, ref: StateRef) -> Tensor:
    """The state after the token, in its own axes, in any order of three by name; a memory that is
    not chosen stays as it is."""
    if ref.after is None:
        raise ref.never_updated(inner)
    value = ops.tensor(inner, inner.lookup(ref.decl.name, ref.decl.span), ref.after.span)
    if value.type.dtype != "real":  # a condition counts as 0 or 1
        value = ops.node(inner, ir.Elementwise("real"), value, span=ref.after.span)
    wanted = [axis.name for axis in inner.visible(ref.before)]
    got = [axis.name for axis in inner.visible(value)]
    turned = value.row or sorted(got) == sorted(wanted)
    by_name = len({axis.base for axis in inner.visible(value)}) == len(got) > 2
    if value.row or (got != wanted and not (turned and by_name)):
        raise inner.error(
            "E0301",
            f"`{ref.decl.name}` is {ops.shape(inner, ref.before)}, and its update is "
            f"{'a row ' if value.row else ''}{ops.shape(inner, value)}",
            ref.after.span,
            others=[(ref.decl.span, "declared here")],
            helps=["transpose the update with `.T`"] if turned else [],
        )
    if inner.gate is not None:
        at = ref.after.span
        value = ops.node(inner, ir.Elementwise("where"), inner.gate, value, ref.before, span=at)
    missing = [axis for axis in ref.axes if axis.name not in value.type.names]
    if missing:
        chosen = ops.node(inner, ir.Elementwise("eq"), ref.before, ref.before, span=ref.after.span)
        value = ops.node(inner, ir.Elementwise("where"), chosen, value, value, span=ref.after.span)
    order = tuple((axis.name, axis) for axis in ref.axes)
    if value.axes != ref.axes:
        value = ops.node(inner, ir.Contract((value.type.names,), order), value, span=ref.after.span)
    return value
