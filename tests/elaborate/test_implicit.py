"""Values that are made from their own earlier tokens: triangular systems, against substitution."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import archc
from archc.autodiff.reverse import gradient
from archc.ir import layer as ir
from archc.ir.meaning import evaluate_graph
from tests.elaborate.forms import randn, same
from tests.elaborate.specs import codes, layer, refusal

TEXT = """layer Solved(H, K, V):
    input k[H, K], v[H, V], b[H]
    attend {range} over H:
        w = tanh(k[t].T @ k[s])
        {line}
    {after}
"""
LINES = [
    "u[V] = v - b * w @ u[s]",
    "u[V] = (2 * v - b * (w @ u[s]) * 2) / 2",
    "u[V] = -(b * w @ u[s] - v)",
    "c = b[t] * w; u[V] = v + v - (v + c @ u[s])",
]
AFTER = "output u"


def spec(line: str = LINES[0], after: str = AFTER, range: str = "s < t") -> str:
    return TEXT.format(line=line, after=after, range=range)


def solved(k: Tensor, v: Tensor, b: Tensor, reach: int = 99) -> Tensor:
    """The matrix of the system, and its exact solution."""
    at = torch.arange(k.shape[1])
    before = (at < at[:, None]) & (at > at[:, None] - reach)
    w = torch.einsum("bthk,bshk->bhts", k, k).tanh() * before
    system = torch.eye(k.shape[1], dtype=k.dtype) + b.mT[..., None] * w
    return torch.linalg.solve(system, v.transpose(1, 2)).transpose(1, 2)


def inputs() -> dict[str, Tensor]:
    return {"k": randn(2, 3) / 2, "v": randn(2, 4, seed=1), "b": randn(2, seed=2)}


@pytest.mark.parametrize("line", LINES)
def test_however_it_is_written_the_system_is_the_same(line: str) -> None:
    made = layer(spec(line))
    assert [n.op.read for n in made.graph if isinstance(n.op, ir.Substitute)] == ["s"]
    same(spec(line), inputs(), solved, H=2, K=3, V=4)


def test_a_window_of_earlier_tokens() -> None:
    text = spec(range="t - 3 < s < t")
    same(text, inputs(), lambda k, v, b: solved(k, v, b, 3), H=2, K=3, V=4)


def test_a_factor_for_each_element_makes_a_system_of_each() -> None:
    text = spec("u[V] = v - b * (w @ u[s])").replace("b[H]", "b[H, V]")
    given = {**inputs(), "b": randn(2, 4, seed=2)}

    def formula(k: Tensor, v: Tensor, b: Tensor) -> Tensor:
        parts = [solved(k, v[..., c : c + 1], b[..., c]) for c in range(v.shape[-1])]
        return torch.cat(parts, -1)

    same(text, given, formula, H=2, K=3, V=4)


def test_what_is_solved_is_read_by_another_attend() -> None:
    after = "attend s <= t over H:\n        o = (k[t].T @ k[s]) @ u[s]\n    output o"

    def formula(k: Tensor, v: Tensor, b: Tensor) -> Tensor:
        score = torch.einsum("bthk,bshk->bhts", k, k).tril()
        return torch.einsum("bhts,bshv->bthv", score, solved(k, v, b))

    same(spec(after=after), inputs(), formula, H=2, K=3, V=4)


def test_the_derived_gradient_is_that_of_finite_differences() -> None:
    graph, at, h = layer(spec()).graph, inputs(), 1e-5
    sizes = {"batch": 2, "t": 6, "T#": 6, "T_seen#": 6, "H#": 2, "K#": 3, "V#": 4}
    along = {name: randn(*x.shape[2:], seed=7) for name, x in at.items()}

    def shifted(by: float) -> Tensor:
        moved = {name: x + by * along[name] for name, x in at.items()}
        return evaluate_graph(graph, moved, sizes)["u"]

    found = gradient(graph, [*at], ["u"], save=False).backward
    d = {name: evaluate_graph(found, {**at, "d.u": torch.ones(2, 6, 2, 4)}, sizes)[f"d.{name}"]
         for name in at}  # fmt: skip
    slope = sum((d[name] * along[name]).sum() for name in at)
    expected = (shifted(h) - shifted(-h)).sum() / (2 * h)
    torch.testing.assert_close(slope, expected, rtol=1e-7, atol=1e-7)


def test_packed_sequences_and_the_memory_alone() -> None:
    made = archc.parse(spec())
    module, x = made.module(dtype=torch.float64, H=2, K=3, V=4), inputs()
    row = {name: value[:1] for name, value in x.items()}
    packed = module(**row, cu_seqlens=torch.tensor([0, 2, 6]))
    alone = [solved(*(value[:, a:b] for value in row.values())) for a, b in ((0, 2), (2, 6))]
    torch.testing.assert_close(packed, torch.cat(alone, 1))
    found = made.op(*x.values())
    torch.testing.assert_close(found[0] if isinstance(found, tuple) else found, solved(**x))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (spec("u = v - b * w @ u[s]"), "says no dims"),
        (spec(range="s <= t"), "not all earlier ones"),
        (spec("u[V] = v - tanh(w @ u[s])"), "neither a sum, nor a factor"),
        (spec("u[V] = v - diag(v) @ (w @ u[s])"), "not made of itself by weighted sums"),
        (spec("u[V] = v - u[s]"), "without weights to sum over"),
        (spec("u[V] = v - w @ u[s]; o = w @ u[s]", "output o"), "another `attend`"),
        (spec("u[V] = w @ u[s]"), "nothing but"),
        (spec("u[V] = v - w @ u[s]; o = w @ v[s] + u", "output y = o + u"), "behind the block"),
        (spec("u[V] = b - w @ u[s]"), "without what it is of itself"),
    ],
)
def test_what_is_no_system_is_refused(text: str, words: str) -> None:
    assert codes(text) in (["E0317"], ["E0309"])
    assert words in refusal(text)
