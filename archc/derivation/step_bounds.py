"""The step of a derivation about a state that is scaled, moved and kept within bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce

from archc.derivation.dependence import dependence
from archc.derivation.letters import Letters
from archc.derivation.maths import (
    EQUALS,
    MINUS,
    NEGATIVE,
    PLUS,
    TIMES,
    Fence,
    Math,
    Name,
    Number,
    Sign,
    Sum,
    Words,
    function,
    named,
    row,
    slope,
)
from archc.derivation.outside import spelled
from archc.derivation.page import PARALLEL, SEQUENTIAL, Block, Formula, Step, para
from archc.derivation.telling import Telling, excerpt, joined
from archc.ir import layer as ir
from archc.ir.given_law import GivenLaw
from archc.ir.graph import Graph, Node
from archc.recurrence.chunk.frame import settled
from archc.verify.checks import Check
from archc.verify.trial import Trial, Values, furthest

FIRST = row(Name("s"), Sign("≤"), Name("i"))
INFINITE = Number("∞")
LETTERS = {"slope": "γρλ", "shift": "bmn", "low": "lp", "high": "uvr"}
"""Letters for the parts of a summary, the first that is free."""


class _Clamp:
    """The formulas of one law: a summary is min(max(slope S + shift, low), high), of the parts that
    there are."""

    def __init__(self, telling: Telling, law: GivenLaw) -> None:
        self.law, self.state = law, law.states[0]
        stream = telling.study.recurrence.stream.name
        captured = telling.study.captured.items()
        types = {name: telling.study.graph[id].type for name, id in captured}
        self.steady = {name for name, type in types.items() if stream not in type.names}
        self.letters = Letters(telling.study)
        self.names = {part: self.letters.of(LETTERS[part]) for part in law.parts}

    def part(self, name: str, *at: str) -> Math:
        """A part of a summary."""
        return Name(self.names[name], at)

    def of_token(self, node: Node) -> Math | None:
        """A value that a token enters with."""
        name = node.op.name if isinstance(node.op, ir.Input) else node.name
        return None if name is None else named(name, *([] if name in self.steady else ["t"]))

    def moved(self, state: Math, *at: str) -> Math:
        """slope S + shift."""
        scaled = row(self.part("slope", *at), TIMES, state) if "slope" in self.names else state
        return row(scaled, PLUS, self.part("shift", *at)) if "shift" in self.names else scaled

    def applied(self, state: Math, *at: str) -> Math:
        """What a summary does to a state."""
        value = self.moved(state, *at)
        value = function("max", value, self.part("low", *at)) if "low" in self.names else value
        return function("min", value, self.part("high", *at)) if "high" in self.names else value

    def graph(
        self, graph: Graph, called: Callable[[Node], Math | None], *at: str
    ) -> Iterator[Math]:
        """The parts that a graph makes."""
        for name in self.law.parts:
            yield row(self.part(name, *at), EQUALS, spelled(graph, graph.outputs[name], 9, called))

    def merged(self, first: str, second: str, *at: str) -> Iterator[Math]:
        """The summary of two runs, one after the other."""

        def called(node: Node) -> Math | None:
            if not isinstance(node.op, ir.Input):
                return None
            name, place = node.op.name.rsplit(".", 1)
            return self.part(name, first if place == "1" else second)

        return self.graph(self.law.merge, called, *at)


def within_bounds(telling: Telling, law: GivenLaw) -> Step:
    """A state that is kept within bounds: its law, its chunks, and its gradient."""
    clamp, names = _Clamp(telling, law), joined(named(name) for name in law.states)
    old, new = named(clamp.state, "t-1"), named(clamp.state, "t")
    assert law.token is not None, "archc has found the law"
    blocks: list[Block] = [
        para("An update scales and moves ", *names, ", and keeps it within bounds:"),
        *([] if law.span is None else [excerpt(law.span, [law.span])]),
        Formula(row(new, EQUALS, clamp.applied(old, "t")), "one token"),
        *(Formula(math) for math in clamp.graph(law.token, clamp.of_token, "t")),
        para(
            "Nothing scales it by less than 0, so that order stays, and what a run of tokens does"
            " is of that kind again: its bounds are what later tokens make of the bounds of earlier"
            " ones, as of any value."
        ),
        *_noted(clamp.merged("1", "2"), "two runs, 1 before 2"),
        Formula(
            row(named(clamp.state, "T"), EQUALS, clamp.applied(named(clamp.state, "0"))),
            "a run of tokens",
        ),
        *telling.run(_checks(telling.trial, law)),
        *_chunks(clamp),
        *_gradient(clamp, old, new),
        dependence("summaries", clamp.state, "all rows"),
    ]
    return Step("Within bounds", tuple(blocks), law.span)


def _noted(maths: Iterator[Math], note: str, tone: str = "") -> Iterator[Block]:
    """Formulas, the first with a remark."""
    for number, math in enumerate(maths):
        yield Formula(math, "" if number else note, tone)


# --- chunks ---------------------------------------------------------------------------------------


def _chunks(clamp: _Clamp) -> Iterator[Block]:
    """The state in a chunk, from summaries of its rows, or by scans where there is one bound."""
    last, state = clamp.letters.of("C"), clamp.state
    yield para(
        "Cut the tokens into chunks of ", Name(last), ", in which ", Name("i"), " counts the rows"
        " 1, 2, …, and the subscript 0 is what was there before. Scans along the rows make the"
        " summary of the rows up to each, for all chunks at once; that of a whole chunk is applied"
        " to the state, one chunk after the other, and then that up to a row is the state there:",
    )  # fmt: skip
    both = {"low", "high"} <= {*clamp.names}
    rows = _noted(clamp.merged("≤i-1", "i", "≤i"), "rows merged", PARALLEL)
    yield from rows if both else _scans(clamp)
    for at, note, tone in (
        (last, "to the next chunk", SEQUENTIAL),
        ("i", "at every row", PARALLEL),
    ):
        value = clamp.applied(named(state, "0"), f"≤{at}") if both else _by_scans(clamp, at)
        yield Formula(row(named(state, at), EQUALS, value), note, tone)


def _scans(clamp: _Clamp) -> Iterator[Block]:
    """One bound: the products of slopes, what they make of shifts, and the bound without these."""
    bound, fn = ("low", "max") if "low" in clamp.names else ("high", "min")
    product, total, reached = (clamp.letters.of(letter) for letter in "FAc")
    before, floor = Name(reached, ("i-1",)), clamp.part(bound, "i")
    if "slope" in clamp.names:
        scale = clamp.part("slope", "i")
        math = row(Name(product, ("i",)), EQUALS, Sum("∏", FIRST), clamp.part("slope", "s"))
        yield Formula(math, "slopes so far", PARALLEL)
        before = row(scale, TIMES, before)
    if "shift" in clamp.names:
        earlier: Math = Name(total, ("i-1",))
        earlier = (
            row(clamp.part("slope", "i"), TIMES, earlier) if "slope" in clamp.names else earlier
        )
        nothing = [Words(", "), Name(total, ("0",)), EQUALS, Number("0")]
        math = row(Name(total, ("i",)), EQUALS, earlier, PLUS, clamp.part("shift", "i"), *nothing)
        yield Formula(math, "shifts so far", PARALLEL)
        floor = row(floor, MINUS, Name(total, ("i",)))
    least = row(NEGATIVE, INFINITE) if fn == "max" else INFINITE
    nothing = [Words(", "), Name(reached, ("0",)), EQUALS, least]
    yield Formula(
        row(Name(reached, ("i",)), EQUALS, function(fn, before, floor), *nothing),
        "the bound, from nothing", PARALLEL,
    )  # fmt: skip


def _by_scans(clamp: _Clamp, at: str) -> Math:
    """The state at a row of a chunk by the scans of `_scans`."""
    fn, state = "max" if "low" in clamp.names else "min", named(clamp.state, "0")
    product, total, reached = (clamp.letters.of(letter) for letter in "FAc")
    scaled = row(Name(product, (at,)), TIMES, state) if "slope" in clamp.names else state
    value = function(fn, scaled, Name(reached, (at,)))
    return row(value, PLUS, Name(total, (at,))) if "shift" in clamp.names else value


# --- the gradient ---------------------------------------------------------------------------------


def _gradient(clamp: _Clamp, old: Math, new: Math) -> Iterator[Block]:
    """What the gradient of a state goes to: the state before, or a bound."""
    yield para(
        "These values are constants to the gradient, which is a linear recurrence: at each token"
        " all of it goes to the state before, or all of it to the bound that was reached. In square"
        " brackets stands 1 where something is so, and else 0; where two are equal, it is as in"
        " PyTorch, a half for each of max and min, and 0 for what relu is given."
    )  # fmt: skip
    value = clamp.moved(old, "t")
    inside = row(clamp.part("low", "t"), Sign("<"), value) if "low" in clamp.names else value
    inside = row(inside, Sign("<"), clamp.part("high", "t")) if "high" in clamp.names else inside
    scale = [clamp.part("slope", "t"), TIMES] if "slope" in clamp.names else []
    kept = Fence(inside, "[", "]")
    yield Formula(
        row(slope(old), EQUALS, kept, TIMES, *scale, slope(new), PLUS, Words("what reads it")),
        "gradient", SEQUENTIAL,
    )  # fmt: skip
    for name, sign in (("low", "<"), ("high", ">")):
        if name in clamp.names:
            reached = Fence(row(value, Sign(sign), clamp.part(name, "t")), "[", "]")
            made = slope(clamp.part(name, "t"))
            yield Formula(row(made, EQUALS, reached, TIMES, slope(new)), "", PARALLEL)


# --- numbers --------------------------------------------------------------------------------------


def _checks(trial: Trial, law: GivenLaw) -> Iterator[Check]:
    """The law, with numbers."""
    yield Check("summaries of all tokens, merged", lambda: _composed(trial, law))
    yield Check("merged from either side", lambda: _associative(trial, law))


def _composed(trial: Trial, law: GivenLaw) -> float:
    """The state in the end, from the merged summaries of all tokens."""
    whole = reduce(lambda one, two: _merged(trial, law, one, two), _summaries(trial, law))
    found = trial.run(law.apply, {**trial.starts, **whole})
    return furthest(found, {name: trial.expected[name] for name in found})


def _associative(trial: Trial, law: GivenLaw) -> float:
    """The first tokens merged first, against the last ones."""
    tokens = _summaries(trial, law)
    left = reduce(lambda one, two: _merged(trial, law, one, two), tokens)
    right = reduce(lambda one, two: _merged(trial, law, two, one), reversed(tokens))
    return furthest(left, right)


def _summaries(trial: Trial, law: GivenLaw) -> list[Values]:
    """The summary of each token."""
    assert law.token is not None, "archc has found the law"
    graph, stream = law.token.copy(), trial.study.recurrence.stream
    for name, type in law.types.items():
        along = replace(type, axes=(stream, *type.axes))
        graph.outputs[name] = settled(graph, graph.outputs[name], along)
    found = trial.run(graph, trial.inputs)
    return [{name: x[t] for name, x in found.items()} for t in range(trial.tokens)]


def _merged(trial: Trial, law: GivenLaw, one: Values, two: Values) -> Values:
    pair = {f"{name}.1": x for name, x in one.items()} | {f"{name}.2": x for name, x in two.items()}
    return trial.run(law.merge, pair)
