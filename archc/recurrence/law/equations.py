"""Layer IR -> layer IR: what must be equal if a law of the spec holds, as one graph.

Summaries are those of tokens, and of two tokens merged: a law has to hold for what a recurrence can
come to, and not for numbers that are no summary of anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.given_law import GivenLaw
from archc.ir.graph import Graph, Type
from archc.ir.typing import layer_graph
from archc.ir.value_names import state_before, state_of
from archc.recurrence.chunk.by_law import spread
from archc.recurrence.chunk.frame import Frame, input_of, settled

Summary = Mapping[str, int]
MERGE, APPLY, TOKEN = "merge", "apply", "token"


@dataclass(frozen=True)
class Equation:
    """Two outputs that must be equal: a part of a summary or a state, and by which of the three
    rules of a law. `of` are the outputs that both sides are made from, each with a word for it."""

    rule: str
    name: str
    left: str
    right: str
    of: tuple[tuple[str, str], ...]


def trial(recurrence: ir.Recurrence, law: GivenLaw) -> tuple[Graph, tuple[Equation, ...]]:
    """The graph, from captures of single tokens and states, and the pairs of its outputs."""
    made = _Trial(recurrence, law)
    return made.frame.graph, tuple(made.equations())


class _Trial:
    """The graph under construction."""

    def __init__(self, recurrence: ir.Recurrence, law: GivenLaw):
        self.recurrence, self.law = recurrence, law
        axis = recurrence.stream  # there are no chunks here
        self.frame = Frame(layer_graph(), axis, axis, axis, axis, tuple(recurrence.heads))
        states = {
            state.name: Type(state.axes) for state in recurrence.states if state.name in law.states
        }
        self.types = {**law.types, **states}
        self.states = {
            name: input_of(self.frame.graph, state_before(name), type)
            for name, type in states.items()
        }
        self.body = recurrence.body.copy()
        names = [*law.states, *map(law.in_body, law.parts)]
        self.body.outputs = {name: recurrence.body.outputs[name] for name in names}
        self.body.prune()

    def equations(self) -> Iterator[Equation]:
        """Every pair, for tokens and for pairs of them."""
        one, two, *rest = (self.token(which) for which in "abcdef")
        token = {part: one[self.law.in_body(part)] for part in self.law.parts}
        yield from self.equal(TOKEN, self.applied(token, self.states), one, {"token": token})
        x, y, z = token, self.parts(two), self.parts(rest[0])
        yield from self.rules(x, y, z)
        pairs = (self.merged(x, y), self.merged(z, self.parts(rest[1])))
        yield from self.rules(*pairs, self.merged(*(self.parts(each) for each in rest[2:])))

    def rules(self, x: Summary, y: Summary, z: Summary) -> Iterator[Equation]:
        """The rules about merged summaries."""
        left, right = self.merged(self.merged(x, y), z), self.merged(x, self.merged(y, z))
        yield from self.equal(MERGE, left, right, {"x": x, "y": y, "z": z})
        both = self.applied(self.merged(x, y), self.states)
        apart = self.applied(y, self.applied(x, self.states))
        yield from self.equal(APPLY, both, apart, {"x": x, "y": y})

    def equal(
        self, rule: str, left: Summary, right: Summary, of: Mapping[str, Summary]
    ) -> Iterator[Equation]:
        """The equations of values that both sides have."""
        given = [(f"{part} of {word}", id) for word, run in of.items() for part, id in run.items()]
        given += [(state_before(name), id) for name, id in self.states.items() if rule != MERGE]
        shown = tuple((self.output(id), word) for word, id in given)
        for name in self.law.parts if rule == MERGE else self.law.states:
            graph, type = self.frame.graph, self.types[name]
            one, other = (settled(graph, run[name], type) for run in (left, right))
            yield Equation(rule, name, self.output(one), self.output(other), shown)

    def output(self, id: int) -> str:
        """A value as an output."""
        self.frame.graph.outputs[str(id)] = id
        return str(id)

    def token(self, which: str) -> Summary:
        """The body at a token of its own; what has no batch is the same at all of them."""
        given = {}
        for node in self.body:
            if not isinstance(node.op, ir.Input):
                continue
            name = node.op.name
            own = any(axis.kind == "batch" for axis in node.type.axes)
            state = state_of(name)
            if state in self.states:
                given[name] = self.states[state]
            else:
                fresh = f"{name}.{which}" if own else name
                given[name] = self.frame.add(ir.Input(fresh, node.type))
        return spread(self.frame, self.body, given)

    def parts(self, token: Summary) -> Summary:
        """The summary of a token."""
        return {part: token[self.law.in_body(part)] for part in self.law.parts}

    def merged(self, first: Summary, second: Summary) -> Summary:
        """The summary of two runs."""
        both = {f"{part}.1": first[part] for part in self.law.parts}
        both |= {f"{part}.2": second[part] for part in self.law.parts}
        return spread(self.frame, self.law.merge, both)

    def applied(self, run: Summary, states: Summary) -> Summary:
        """The states after a run."""
        given = {**run, **{ck.start(name): states[name] for name in self.law.states}}
        found = spread(self.frame, self.law.apply, given)
        return {name: found[ck.final(name)] for name in self.law.states}
