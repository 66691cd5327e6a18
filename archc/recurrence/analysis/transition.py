"""The effect of a linear update on a state: its decay, and its corrections, which read it.

The update is a sum of terms in the state. A term that only scales the state is a decay; one that
sums over an axis of the state, and puts it back by an outer product, is a correction of low rank,
as is one that reads along another axis than the state's and sums that away again; one that sums it
against a matrix is a dense transition.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.recurrence.analysis.degree import CONSTANT, Degree, before, degrees, updates

Axes = frozenset[str]


@dataclass(frozen=True)
class Term:
    """One way from a state before the token into an update."""

    state: str
    scales: Axes = frozenset()
    contractions: tuple[int, ...] = ()
    dense: tuple[int, ...] = ()


@dataclass(frozen=True)
class Transition:
    """The linear part of a component's update, by what its terms do.

    `decay` holds the axes that a decay varies along, or is None where nothing decays; `corrections`
    counts the reads that are written back; `dense` the nodes that apply a matrix; `coupled` says
    that one state enters another's update.
    """

    decay: Axes | None
    corrections: int
    dense: tuple[int, ...]
    coupled: bool


def transition(recurrence: ir.Recurrence, component: Collection[str]) -> Transition:
    """The transition of a component whose updates are linear in its states."""
    known = degrees(recurrence, component)
    own = {name: id for name, id in updates(recurrence).items() if name in component}
    walk = _Walk(recurrence, known, component)
    terms = [(name, term) for name, id in own.items() for term in walk.terms(id)]
    dims = {s.name: frozenset(a.name for a in s.axes if a.kind == "dim") for s in recurrence.states}
    scaled = [dims[t.state] & t.scales for _, t in terms if not t.contractions and not t.dense]
    decays = any(t.scales for _, t in terms if not t.contractions and not t.dense)
    return Transition(
        frozenset().union(*scaled) if decays else None,
        len({node for _, term in terms for node in term.contractions}),
        tuple(sorted({node for _, term in terms for node in term.dense})),
        any(name != term.state for name, term in terms),
    )


class _Walk:
    """Terms of nodes, each computed once."""

    def __init__(
        self, recurrence: ir.Recurrence, known: Mapping[int, Degree], component: Collection[str]
    ) -> None:
        self.body, self.known = recurrence.body, known
        self.old = {id: name for id, name in before(recurrence).items() if name in component}
        self.axes = {s.name: frozenset(a.name for a in s.axes) for s in recurrence.states}
        self.done: dict[int, tuple[Term, ...]] = {}

    def terms(self, id: int) -> tuple[Term, ...]:
        """The terms of a node that is linear in the component's states."""
        if id not in self.done:
            self.done[id] = self._terms(self.body[id])
        return self.done[id]

    def _terms(self, node: Node) -> tuple[Term, ...]:
        if node.id in self.old:
            return (Term(self.old[node.id]),)
        if self.known[node.id].kind == CONSTANT:
            return ()
        linear = [o for o in node.operands if self.known[o].kind != CONSTANT]
        given = [o for o in node.operands if self.known[o].kind == CONSTANT]
        found = dict.fromkeys(term for operand in linear for term in self.terms(operand))
        fn = node.op.fn if isinstance(node.op, ir.Elementwise) else ""
        if fn in ("mul", "div", "where"):
            scales = frozenset(a for o in given for a in self._names(o))
            return tuple(self._scaled(term, scales) for term in found)
        if isinstance(node.op, ir.Contract | ir.Reduce):
            return tuple(self._summed(node, linear[0], given, term) for term in found)
        return tuple(found)

    def _names(self, id: int) -> Axes:
        """Axes a given factor varies along; `batch` is there for a factor that has none."""
        return frozenset(self.body[id].type.names) | {"batch"}

    @staticmethod
    def _scaled(term: Term, scales: Axes) -> Term:
        return Term(term.state, term.scales | scales, term.contractions, term.dense)

    def _summed(self, node: Node, linear: int, given: list[int], term: Term) -> Term:
        """A contraction of the state: a vector reads it, a matrix mixes it, alone it turns."""
        op = node.op
        state_axes = self.body[linear].type.names
        if isinstance(op, ir.Reduce):
            return Term(term.state, term.scales, (*term.contractions, node.id), term.dense)
        assert isinstance(op, ir.Contract)
        kept = {label for label, _ in op.out}
        place = node.operands.index(linear)
        lost = [
            name for name, label in zip(state_axes, op.ins[place], strict=True) if label not in kept
        ]
        other = [label for i, labels in enumerate(op.ins) if i != place for label in labels]
        gained = [label for label in other if label in kept and label not in op.ins[place]]
        if not lost:
            scales = frozenset(name for o in given for name in self._names(o))
            return self._scaled(term, scales) if given else term
        own = self.axes[term.state]
        if gained and own.isdisjoint(lost):  # the sum over a rank, written back
            return term
        if not own.isdisjoint(axis.name for label, axis in op.out if label in gained):
            return Term(term.state, term.scales, term.contractions, (*term.dense, node.id))
        return Term(term.state, term.scales, (*term.contractions, node.id), term.dense)
