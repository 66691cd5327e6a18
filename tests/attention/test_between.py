"""Sums whose score goes through matrices of the tokens between: what is recognised, and the tree of
spans, with its tile programs, against the reference semantics and autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import pytest
import torch
from torch import Tensor

from archc.attention.between import SPAN, Between, Rank, rows_of_token
from archc.attention.recognise import folds
from archc.compile import slopes_of
from archc.ir import layer as ir
from archc.lowering.span_borders import borders, of_borders
from archc.runtime import between as between_module
from archc.runtime.between import (
    Given,
    Part,
    Tree,
    add_values,
    parts_of,
)
from archc.verify.fold_trial import distance, drawn
from archc.verify.tree_trial import TreeTrial
from tests.attention.cases import pair_of, refusals
from tests.few import but

ONE = "I - w[i] @ w[i].T"
SCORE = "k[s].T @ P @ q[t] / sqrt(K)"


def spec(
    matrix: str = ONE, score: str = SCORE, range: str = "s <= t", inputs: str = "",
    params: str = "", sizes: str = "", path: str = "i in (s, t]", groups: str = "H",
) -> str:  # fmt: skip
    """A layer that is one attend with a product of matrices."""
    G = groups
    lines = [
        f"layer Turned(H, K, V{sizes and ', '}{sizes}):",
        f"    input q[H, K], k[{G}, K], v[{G}, V], w[{G}, K]{inputs and ', '}{inputs}",
        *([f"    param {params}"] if params else []),
        f"    attend {range} over H{' grouped G' if G != 'H' else ''}:",
        f"        P = product {path}: {matrix}",
        f"        o = softmax({score}) @ v[s]",
        "    output o",
    ]
    return "\n".join(lines) + "\n"


KINDS = {
    "one": (spec(), 70, {}),
    "another sign": (spec("I + u[i] @ w[i].T", inputs="u[H, K]"), 70, {}),
    "two ranks": (
        spec("(I - w[i] @ w[i].T) @ (I + u[i] @ r[i].T)", inputs="u[H, K], r[H, K]"), 70, {},
    ),
    "two rates": (
        spec("I - b[i] * w[i] @ w[i].T + c[i] * r[i] @ r[i].T", inputs="b[H], c[H], r[H, K]"),
        70, {},
    ),
    "three ranks, many spans": (
        spec("I - w[i] @ w[i].T - r[i] @ r[i].T - u[i] @ u[i].T", inputs="u[H, K], r[H, K]"),
        300, {},
    ),
    "window of many spans": (
        spec("I - w[i] @ w[i].T - r[i] @ r[i].T - u[i] @ u[i].T", inputs="u[H, K], r[H, K]",
             range="t - n < s <= t", sizes="n"), 200, {"n": 90},
    ),
    "a rate, and none": (
        spec("I - b[i] * w[i] @ w[i].T + u[i] @ w[i].T", inputs="b[H], u[H, K]"), 70, {},
    ),
    "gates": (spec(score=f"{SCORE} + sum r in (s, t]: g[r]", inputs="g[H]"), 130, {}),
    "capped, sloped": (
        spec(score=f"softcap({SCORE}, 3) - slope * (t - s)", params="slope[H]"), 70, {},
    ),
    "window, sink": (
        spec(score=f"{SCORE}, sink", range="t - n < s <= t", params="sink[H]", sizes="n"), 70,
        {"n": 30},
    ),
    "before the reader": (spec(range="s < t"), 66, {}),
    "groups": (
        spec("I - b[i] * w[i] @ w[i].T", inputs="b[H]", sizes="G", groups="G"), 70,
        {"H": 4, "G": 2},
    ),
    "a query and values that are in two products": (
        spec(score=f"{SCORE} + q[t].T @ v[s]").replace("v[H, V]", "v[H, K]"), 130, {"V": 6},
    ),
    "keys that are values": (spec().replace("@ v[s]", "@ k[s]").replace(", v[H, V]", ""), 70, {}),
    "another product": (
        spec(score=f"{SCORE} + p[t].T @ m[s]", inputs="p[H, R], m[R]", sizes="R"), 70, {"R": 5},
    ),
}  # fmt: skip

CHANNELS = "sum[K](q[t] * k[s] * exp(sum i in (s, t]: g[i]))"
BY_CHANNEL = {
    "gates": (CHANNELS, {}),
    "a matrix of them": (SCORE, {"path": "i in (s, t]", "matrix": "diag(exp(g[i]))"}),
    "capped, with gates a head": (
        f"softcap({CHANNELS}, 3) + sum r in (s, t]: b[r]", {"inputs": "b[H]"},
    ),
    "window, sink": (
        f"{CHANNELS}, sink", {"range": "t - n < s <= t", "params": "sink[H]", "sizes": "n"},
    ),
    "two sums, a number inside": (
        "sum[K](exp(-(sum i in (s, t]: b[i])) * k[s] * exp((sum i in (s, t]: g[i]) / 2)"
        " * (q[t] / 3))",
        {"inputs": "b[H]"},
    ),
    "groups": (CHANNELS, {"sizes": "G", "groups": "G"}),
    "the same without gates": (f"{CHANNELS} + q[t].T @ k[s]", {}),
    "another product": (
        f"{CHANNELS} + p[t].T @ m[s]", {"inputs": "p[H, R], m[R]", "sizes": "R"},
    ),
}  # fmt: skip


def gated(score: str, matrix: str = "", inputs: str = "", groups: str = "H", **more: str) -> str:
    """A layer that is one attend with gates by channel."""
    inputs = f"g[H, K]{inputs and ', '}{inputs}"
    text = spec(matrix, score, inputs=inputs, groups=groups, **more).replace(", w[G, K]", "")
    lines = text.replace(f", w[{groups}, K]", "").splitlines(keepends=True)
    return "".join(line for line in lines if matrix or "P =" not in line)


def between_of(text: str) -> Between:
    """What the one sum of a spec is."""
    (found,) = folds(pair_of(text), slopes_of)
    assert isinstance(found, Between), found
    return found


LARGE = ("three ranks, many spans", "a rate, and none")
"""Those of which each part is in another one."""


@pytest.mark.default("two ranks", "gates", "another product")
@pytest.mark.parametrize("name", but(KINDS, LARGE))
def test_values_and_gradients(name: str):
    check(name, 1)


@pytest.mark.default("one")
@pytest.mark.parametrize(("name", "many"), [("one", 1), ("capped, sloped", 140)])
def test_some_sequences_and_heads_after_others(
    name: str, many: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(between_module, "MANY", many)
    check(name, 2)


def test_nothing_of_some_heads_is_left_beside_others(monkeypatch: pytest.MonkeyPatch):
    alive = WeakSet[Tree]()

    class Counted(Tree):
        def __init__(self, *given: Any):
            assert not alive
            super().__init__(*given)
            alive.add(self)

    monkeypatch.setattr(between_module, "MANY", 70)
    monkeypatch.setattr(between_module, "Tree", Counted)
    check("one", 1)


@pytest.mark.default("gates", "window, sink")
@pytest.mark.parametrize(
    "name", but(BY_CHANNEL, ["a matrix of them", "the same without gates", "another product"])
)
def test_gates_by_channel(name: str):
    score, more = BY_CHANNEL[name]
    grouped = {"H": 4, "G": 2} if "groups" in more else {}
    check(name, 1, (gated(score, **more), 130, {"n": 90, "R": 5} | grouped))


@pytest.mark.default("channels")
@pytest.mark.parametrize("name", but(["channels", "gates", "window, sink"], ["gates"]))
def test_readers_that_go_on_after_others(name: str):
    """The last readers alone, as where others do not learn."""
    text, _, sizes = (gated(CHANNELS), 0, {}) if name == "channels" else KINDS[name]
    between, attend = between_of(text), pair_of(text)
    known: dict[str, float] = {"T#": 130, "T_seen#": 130, "batch": 2, "H": 2, "K": 6, "V": 5}
    known |= sizes
    trial = TreeTrial(between, attend, known, entering(attend, known, None))
    whole = trial.given
    found = []
    for before in (0, 80):
        own = zip(whole.sources, whole.roles, strict=True)
        sources = [x[:, before:] if role == "reader" else x for x, role in own]
        given = whole._replace(sources=sources)
        o, lse = trial.forward(given)
        d_o = torch.ones_like(o)
        d_o[:, : 80 - before] = 0
        found.append([o, *trial.backward(d_o, o, lse, given)])
    names = [s.name for s in between.whole.sources]
    places = [names.index(name) for name in between.whole.learned]
    roles = ["reader", *(whole.roles[place] for place in places)]
    vectors = [True, *(whole.vectors[place] for place in places)]
    rest = len(found[0]) - len(roles)
    kinds = zip([*roles, *["path"] * rest], [*vectors, *[True] * rest], strict=True)
    for x, y, (role, vector) in zip(*found, kinds, strict=True):
        wanted = x if role != "reader" else x[:, 80:] if vector else x[..., 80:]
        assert wanted.shape == y.shape and (wanted - y).abs().max() < 1e-12


@pytest.mark.default("-inf-63", "-0.1-1")
@pytest.mark.parametrize("T", but([1, 15, 63, 200, 330], [15, 330]))
@pytest.mark.parametrize("level", but([0.0, -0.1, -50.0, -float("inf")], [0.0]))
def test_gates_of_any_size(T: int, level: float):
    check("gates", 2, (gated(CHANNELS), T, {}), level)


def entering(attend: ir.Attend, known: dict[str, float], level: float | None) -> dict[str, Tensor]:
    """What enters an attend; some gates are of a `level`."""
    inputs = drawn(attend, known)
    with torch.no_grad():
        for vector in "wur":
            if vector in inputs:  # as matrices of a length about 1 are
                inputs[vector] *= 0.4
        if "g" in inputs:
            inputs["g"].copy_(-inputs["g"].abs())
        if "g" in inputs and level is not None:
            some = torch.rand(inputs["g"].shape, generator=torch.Generator().manual_seed(2)) < 0.3
            inputs["g"].copy_(torch.where(some, level, inputs["g"]))
    return inputs


def check(
    name: str, batch: int, instead: tuple[str, int, dict[str, Any]] | None = None,
    level: float | None = None,
) -> None:  # fmt: skip
    """Values and gradients are those of the reference semantics."""
    text, T, sizes = instead or KINDS[name]
    between, attend = between_of(text), pair_of(text)
    known = {"T#": T, "T_seen#": T, "batch": batch, "H": 2, "K": 6, "V": 5} | sizes
    inputs = entering(attend, known, level)
    trial = TreeTrial(between, attend, known, inputs)
    case = trial.case
    (wanted,) = case.values(between.whole.node)
    d_o = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1)).double()
    slopes = torch.autograd.grad(wanted, [*inputs.values()], d_o, allow_unused=True)
    o, _ = trial.forward()
    assert distance(o, case.as_made(wanted.detach())) < 1e-11
    assert torch.equal(apart(trial.moves, trial.of_spans, trial.given), o)
    made = trial.gradients(case.as_made(d_o).contiguous())
    for (input, x), slope in zip(made.items(), slopes, strict=True):
        right = torch.zeros_like(x) if slope is None else slope
        assert float((x - right).norm()) / max(float(right.norm()), 1e-3) < 1e-10, input


def apart(moves: Sequence[Callable], of_spans: Sequence[Callable], given: Given) -> Tensor:
    """o, of sums that are kept in other memory until readers are done."""
    first, values = given.sources[given.ends[0]], given.sources[given.values]
    tree = between_module.Tree(between_module.Moves(*moves), given)
    shape = (first.shape[0], tree.tokens, *first.shape[2:-1], values.shape[-1])
    o, sums = (torch.full(shape, float("nan"), dtype=torch.float64) for _ in range(2))
    add_values(tree, of_spans, o, sums, torch.empty(shape[0], *shape[2:-1], shape[1]).double())
    return o[:, : first.shape[1]].contiguous()


@pytest.mark.parametrize("tokens", [64, 128, 192, 320, 448, 1024])
def test_every_pair_of_spans_is_of_one_part(tokens: int):
    seen = torch.zeros(tokens, tokens, dtype=torch.int64)
    place, size = torch.arange(tokens), SPAN
    while size < tokens:
        for part in parts_of(tokens, size):
            assert isinstance(part, Part)
            for span in range(0, part.spans * part.pitch, part.pitch):
                readers = place[part.first_reader + span :][: part.readers]
                read = place[part.first_read + span :][: part.read]
                assert int(readers[0] - read[0]) == part.pos
                seen[readers[:, None], read] += 1
        size *= 2
    block = torch.arange(tokens) // SPAN
    assert torch.equal(seen, (block[:, None] > block).long())


@pytest.mark.parametrize(
    ("name", "rated"),
    [("two rates", True), ("groups", True), ("a rate, and none", False), ("one", False)],
)
def test_a_vector_that_is_another_at_a_rate_is_not_in_memory(name: str, rated: bool):
    between = between_of(KINDS[name][0])
    assert [rank.u.dim is None for rank in between.ranks] == [rated] * len(between.ranks)
    programs = [make(rows_of_token(len(between.ranks)), rated) for make in (borders, of_borders)]
    names = [{buffer.name for buffer in program.buffers} for program in programs]
    assert all(("rate" in own, "u" in own) == (rated, not rated) for own in names)


def test_rates_multiply_small_matrices_alone():
    statements = borders(1, True).body.statements
    made = [s.results[0].type.names for s in statements if getattr(s.op, "function", "") == "mul"]
    assert made
    assert not [names for names in made if {"d", "e"} & {*names}]


def test_what_a_matrix_is_made_of():
    between = between_of(KINDS["two ranks"][0])
    assert [type(rank) for rank in between.ranks] == [Rank, Rank]
    assert sorted((f.u.name, f.sign) for f in between.ranks) == [("u_2", 1), ("w", -1)]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (spec("diag(w[i]) @ (I - w[i] @ w[i].T)"), "more than the identity"),
        (spec(score="q[t].T @ P @ k[s]"), "goes from the reader to a token"),
        (spec(range="all s"), "tokens after the reader"),
        (
            spec(
                "I - w[i] @ w[i].T - w[i] @ a[i].T - w[i] @ b[i].T - w[i] @ c[i].T - w[i] @ e[i].T",
                inputs="a[H, K], b[H, K], c[H, K], e[H, K]",
            ),
            "more than 4 outer products",
        ),
        (spec(score=f"{SCORE} + log(1 + t)"), "a position itself"),
        (spec(score="q[t].T @ P @ q[t]"), "goes from the reader to a token"),
        (gated(CHANNELS, range="all s"), "tokens after the reader"),
        (gated(CHANNELS.replace("g[i]", "g[i] * m[t]"), inputs="m[H, K]"), "depends on the reader"),
        (gated(SCORE, "diag(g[i])"), "more than the identity"),
    ],
)
def test_what_has_no_tree(text: str, reason: str):
    (found,) = refusals(text)
    assert reason in found
