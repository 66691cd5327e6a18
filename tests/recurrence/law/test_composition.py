"""The composition law: summaries of runs of tokens, their merge, and what they do to a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from archc.dims import TIME
from archc.functions.interval import Interval
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph, Type
from archc.ir.meaning import evaluate_graph
from archc.ir.typing import layer_graph
from archc.numerics.propagation import intervals
from archc.recurrence.law.composition import Law, LawRound, WithoutLaw, law_of
from tests.elaborate.specs import layer
from tests.recurrence.forms import random_inputs, recurrences, sizes_of

CHUNK = 3

HEAD = """
layer Example(H, K = 4, V = 3, D = 2):
    input q[H, K], k[H, K], u[H, K], v[H, V], a[H], b[H], x[H, K], y[H, K]
    input M[H, K, K']
    g = -softplus(x)
    f = -softplus(a)
    e = -softplus(v)
"""

KINDS = {
    "no decay": ("S[K, V]", "S[t] = S[t-1] + k @ v.T"),
    "scalar": ("S[K, V]", "S[t] = exp(f) * S[t-1] + k @ v.T"),
    "channel": ("S[K, V]", "S[t] = diag(exp(g)) @ S[t-1] + k @ v.T"),
    "two sides": ("S[K, V]", "S[t] = diag(exp(g)) @ S[t-1] @ diag(exp(e)) + k @ v.T"),
    "correction": ("S[K, V]", "S[t] = exp(f) * (I - b * k @ k.T) @ S[t-1] + k @ v.T"),
    "two corrections": (
        "S[K, V]",
        "S[t] = diag(exp(g)) @ S[t-1] - k @ (k.T @ S[t-1]) - u @ (y.T @ S[t-1]) + k @ v.T",
    ),
    "two micro-steps": (
        "S[K, V]",
        "S[t] = (I - b * k @ k.T) @ (I - a * u @ u.T) @ diag(exp(g)) @ S[t-1] + k @ v.T",
    ),
    "diagonal": ("S[K]", "S[t] = tanh(x) * S[t-1] + k"),
    "dense": ("S[K]", "S[t] = M @ S[t-1] + k"),
    "coupled": ("S[K], R[K]", "S[t] = exp(g) * S[t-1] - x * R[t-1] + k\n"
                "        R[t] = x * S[t-1] + exp(g) * R[t-1]"),
    "linked": (
        "S[K, V], R[K, V]",
        "S[t] = exp(f) * S[t-1] + k @ (v - R[t-1].T @ k).T\n"
        "        R[t] = exp(a - 9) * R[t-1] + b * S[t]",
    ),
    "a maximum": ("S[K] = -inf", "S[t] = max(g + S[t-1], k)"),
    "rescaled": (
        "S[K, V], m[] = -inf",
        "m[t] = max(f + m[t-1], b)\n"
        "        S[t] = exp(f + m[t-1] - m[t]) * S[t-1] + exp(b - m[t]) * k @ v.T",
    ),
    "two groups": (
        "S[K, V], R[K]", "S[t] = exp(f) * S[t-1] + k @ v.T\n        R[t] = exp(g) * R[t-1] + u"
    ),
}  # fmt: skip


@lru_cache
def made(kind: str) -> tuple[Law, ir.Recurrence, dict[str, Type], dict[str, Interval]]:
    """The law of an example, its Recurrence, and the types and intervals of the captures."""
    states, update = KINDS[kind]
    read = "S[t].T @ q / exp(-m[t])" if "m[t]" in update else "S[t]"
    text = f"{HEAD}\n    recurrence {states} over H:\n        {update}\n        o = {read}\n"
    ((graph, node, _),) = recurrences(layer(text + "    output o\n"))
    lies, types = intervals(graph), {}
    operands = dict(zip(node.op.captures, node.operands, strict=False))
    types = {name: graph[id].type for name, id in operands.items()}
    known = {name: lies[id] for name, id in operands.items()}
    law = law_of(node.op, types, known)
    assert isinstance(law, Law), law
    return law, node.op, types, known


def run_graph(recurrence: ir.Recurrence, types: Mapping[str, Type]) -> Graph:
    """The loop over tokens, from `S[0]` to `S[T]`."""
    graph = layer_graph()
    ids = [graph.add(ir.Input(name, type)) for name, type in types.items()]
    starts = [graph.add(ir.Input(ck.start(s.name), Type(s.axes))) for s in recurrence.states]
    whole = graph.add(recurrence, *ids, *starts)
    for state, start in zip(recurrence.states, starts, strict=True):
        after = graph.add(ir.Result(state.name), whole)
        graph.outputs[ck.final(state.name)] = graph.add(
            ck.Last(recurrence.stream.name), after, start
        )
    return graph


def tokens(types: Mapping[str, Type], x: Mapping[str, Tensor], part: slice) -> dict[str, Tensor]:
    """Some tokens of the captures."""
    found = {}
    for name, value in x.items():
        names = types[name].names
        place = names.index("t") if "t" in names else None
        found[name] = value if place is None else value[(slice(None),) * place + (part,)]
    return found


class Example:
    """The law of an example, on random numbers."""

    def __init__(self, kind: str, count: int, seed: int = 0):
        self.law, self.recurrence, self.types, known = made(kind)
        self.loop = run_graph(self.recurrence, self.types)
        self.sizes = sizes_of(self.loop, count, CHUNK)
        every = random_inputs(self.loop, self.sizes, known, seed)
        self.captures = {name: every[name] for name in self.types}
        self.start = {name: x for name, x in every.items() if name not in self.types}
        (self.round,) = self.law.rounds

    def summary(self, part: slice) -> dict[str, Tensor]:
        given = tokens(self.types, self.captures, part)
        count = len(range(*part.indices(self.sizes[TIME.size.name])))
        return evaluate_graph(self.round.summary, given, self.sizes | {TIME.size.name: count})

    def merge(self, one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return merged(self.round, one, other, self.sizes)

    def apply(self, part: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return evaluate_graph(self.round.apply, {**part, **self.start}, self.sizes)


def merged(
    law: LawRound,
    one: Mapping[str, Tensor],
    other: Mapping[str, Tensor],
    sizes: Mapping[str, int],
) -> dict[str, Tensor]:
    given = {f"{name}.1": x for name, x in one.items()}
    given |= {f"{name}.2": x for name, x in other.items()}
    return evaluate_graph(law.merge, given, sizes)


def near(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    assert one.keys() == other.keys()
    return all(torch.allclose(one[name], other[name], 1e-9, 1e-10) for name in one)


@pytest.mark.default("scalar", "correction", "dense", "a maximum", "two groups")
@pytest.mark.parametrize("kind", KINDS)
def test_a_summary_does_to_a_state_what_its_tokens_do(kind: str) -> None:
    for count in (0, 1, 8):
        example = Example(kind, count)
        given = {**example.captures, **example.start}
        stepped = evaluate_graph(example.loop, given, example.sizes)
        assert near(example.apply(example.summary(slice(None))), stepped)


@pytest.mark.default("scalar", "correction", "dense", "a maximum", "two groups")
@pytest.mark.parametrize("kind", KINDS)
@given(cuts=st.lists(st.integers(0, 8), min_size=2, max_size=2), seed=st.integers(0, 99))
@settings(max_examples=6, deadline=None)
def test_the_merge_is_associative_and_joins_runs(kind: str, cuts: list[int], seed: int) -> None:
    example, (i, j) = Example(kind, 8, seed), sorted(cuts)
    a, b, c = (example.summary(slice(*part)) for part in ((0, i), (i, j), (j, 8)))
    left = example.merge(example.merge(a, b), c)
    assert near(left, example.merge(a, example.merge(b, c)))
    assert near(left, example.summary(slice(None)))


@pytest.mark.parametrize("kind", KINDS)
def test_the_identity_changes_no_summary(kind: str) -> None:
    example = Example(kind, 5)
    unit = evaluate_graph(example.round.identity, {}, example.sizes)
    whole = example.summary(slice(None))
    assert near(unit, example.summary(slice(0, 0)))
    assert near(example.merge(unit, whole), whole)
    assert near(example.merge(whole, unit), whole)


@given(seed=st.integers(0, 99))
@settings(max_examples=20, deadline=None)
@pytest.mark.parametrize("kind", ["channel", "correction", "dense", "coupled", "linked"])
def test_the_merge_of_any_three_pairs_is_associative(kind: str, seed: int) -> None:
    """Whatever the numbers are, also those that no run of tokens gives."""
    example, generator = Example(kind, 4), torch.Generator().manual_seed(seed)
    like = example.summary(slice(None))
    three = [
        {name: torch.randn(x.shape, generator=generator, dtype=x.dtype) for name, x in like.items()}
        for _ in range(3)
    ]
    first = reduce(example.merge, three)
    assert near(first, example.merge(three[0], example.merge(three[1], three[2])))


# --- rounds ---------------------------------------------------------------------------------------

CASCADE = """
layer Example(H, K = 4, V = 3):
    input q[H, K], k[H, K], v[H, V], x[H, K], a[H]
    recurrence S[K, V], R[K, V] over H:
        S[t] = exp(-softplus(a)) * S[t-1] + k @ v.T
        r    = tanh(S[t].T @ q)
        R[t] = diag(exp(-softplus(x))) @ R[t-1] + k @ r.T
        o    = R[t].T @ q
    output o
"""


def of(text: str) -> Law | WithoutLaw:
    ((graph, node, _),) = recurrences(layer(text))
    lies = intervals(graph)
    operands = dict(zip(node.op.captures, node.operands, strict=False))
    types = {name: graph[id].type for name, id in operands.items()}
    return law_of(node.op, types, {name: lies[id] for name, id in operands.items()})


def states(rounds: Sequence[LawRound]) -> list[tuple[str, ...]]:
    return [each.states for each in rounds]


def test_what_reads_another_state_at_every_token_is_summarised_later() -> None:
    law = of(CASCADE)
    assert isinstance(law, Law)
    assert states(law.rounds) == [("S",), ("R",)]
    later = {n.op.name for n in law.rounds[1].summary if isinstance(n.op, ir.Input)}
    assert "S[0]" in later
    assert "R[0]" not in later


def test_a_later_round_is_right_where_it_starts_from_the_state_before() -> None:
    law = of(CASCADE)
    assert isinstance(law, Law)
    ((graph, node, _),) = recurrences(layer(CASCADE))
    lies = intervals(graph)
    operands = dict(zip(node.op.captures, node.operands, strict=False))
    types = {name: graph[id].type for name, id in operands.items()}
    loop = run_graph(node.op, types)
    sizes = sizes_of(loop, 7, CHUNK)
    given = random_inputs(loop, sizes, {name: lies[id] for name, id in operands.items()})
    found = {}
    for each in law.rounds:
        names = {n.op.name for n in each.summary if isinstance(n.op, ir.Input)}
        part = evaluate_graph(each.summary, {n: given[n] for n in names}, sizes)
        names = {n.op.name for n in each.apply if isinstance(n.op, ir.Input)} - {*part}
        found |= evaluate_graph(each.apply, {**part, **{n: given[n] for n in names}}, sizes)
    assert near(found, evaluate_graph(loop, given, sizes))


# --- refusals -------------------------------------------------------------------------------------


def test_a_cell_that_is_not_linear_has_no_law() -> None:
    law = of(CASCADE.replace("exp(-softplus(a)) * S[t-1]", "tanh(S[t-1])"))
    assert isinstance(law, WithoutLaw)
    assert law.states == ("S",)
    assert "`tanh` of a state" in law.reason


def test_a_gate_that_may_grow_has_no_law() -> None:
    law = of(CASCADE.replace("diag(exp(-softplus(x)))", "diag(exp(x))"))
    assert isinstance(law, WithoutLaw)
    assert law.states == ("R",)
    assert "may grow" in law.reason
