"""Rules of tensor ops against torch's autograd of the oracle."""

from __future__ import annotations

import math

import pytest
import sympy
import torch

from archc.autodiff.gradient_builder import NoGradient
from archc.autodiff.reverse import gradient
from archc.dims import stream
from archc.ir import layer as ir
from tests.autodiff.agreement import agree
from tests.graphs import Sketch, axis

# --- reductions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("fn", ["sum", "mean", "max", "min", "prod", "logsumexp"])
@pytest.mark.parametrize("over", [("K",), ("t", "V"), ("batch", "t", "K", "V"), ()])
def test_reductions(fn: str, over: tuple[str, ...]) -> None:
    s = Sketch()
    s.outputs(y=s.add(ir.Reduce(fn, over), s.input("x", "batch t K V")))
    agree(s.graph)


@pytest.mark.parametrize("fn", ["max", "min"])
def test_a_largest_that_stands_twice(fn: str) -> None:
    s = Sketch()
    s.outputs(y=s.add(ir.Reduce(fn, ("t", "K")), s.input("x", "t K")))
    agree(s.graph, {"x": torch.ones(5, 4, dtype=torch.float64)})


def test_a_total_of_nothing() -> None:
    s = Sketch()
    s.outputs(y=s.fn("exp", s.add(ir.Reduce("logsumexp", ("K",)), s.input("x", "t K"))))
    x = torch.randn(5, 4, dtype=torch.float64)
    x[2], x[3, 1] = -torch.inf, -torch.inf
    agree(s.graph, {"x": x})


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_a_product_with_zeros(zeros: int) -> None:
    s = Sketch()
    s.outputs(y=s.add(ir.Reduce("prod", ("t", "K")), s.input("x", "batch t K")))
    x = torch.rand(2, 5, 3, dtype=torch.float64) + 0.5
    x[:, :zeros, 1] = 0
    agree(s.graph, {"x": x})


def test_a_sum_over_what_was_broadcast_counts() -> None:
    """sum over t of (a[t, K] + b[K]) * c: b and c get their cotangent T times."""
    s = Sketch()
    a, b, c = s.input("a", "t K"), s.input("b", "K"), s.input("c")
    wide = s.fn("mul", s.fn("add", a, s.fn("tanh", b)), c)
    s.outputs(y=s.add(ir.Reduce("sum", ("t", "K")), wide))
    agree(s.graph)


# --- contractions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "batch t K, K V -> batch t V",
        "batch t K, batch t K -> batch t",
        "batch t K, batch t V -> batch t V K",
        "batch t K, V -> batch",
        "t K K', t -> K:K' K':K",
        "t K, K t -> ",
        "K K, t -> K t",
        "K K, K V -> V",
        "K L, L V -> K:K' V",
    ],
)
def test_contractions_of_two(text: str) -> None:
    left, right = text.partition("->")[0].split(",")
    distinct = [" ".join(prime(part.split())) for part in (left, right)]
    s = Sketch()
    ids = [s.input(name, part) for name, part in zip("ab", distinct, strict=True)]
    s.outputs(y=s.einsum(text, *ids))
    agree(s.graph, sizes={"L": 4})


def prime(names: list[str]) -> list[str]:
    """`K K` as axes: `K K'`."""
    return [name + "'" * names[:at].count(name) for at, name in enumerate(names)]


@pytest.mark.parametrize(
    "text",
    ["t K V -> V K t", "t K V -> K", "K K -> K", "K K V -> ", "K K K t -> t", "t K -> t K:K'"],
)
def test_contractions_of_one(text: str) -> None:
    s = Sketch()
    s.outputs(y=s.einsum(text, s.input("a", " ".join(prime(text.partition("->")[0].split())))))
    agree(s.graph)


def test_a_value_times_itself() -> None:
    s = Sketch()
    a = s.input("a", "t K")
    s.outputs(y=s.einsum("t K, t K -> t", a, a), z=s.fn("mul", a, a))
    agree(s.graph)


# --- reads by index -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "index"),
    [("E d", "t"), ("E d", "batch t"), ("batch E d", "batch t"), ("E", ""), ("batch E d", "batch"),
     ("batch E", "E")],
)  # fmt: skip
def test_gather(value: str, index: str) -> None:
    s = Sketch()
    x, i = s.input("x", value), s.input("i", index, "int")
    s.outputs(y=s.fn("tanh", s.add(ir.Gather("E"), x, i)))
    shape = [{"batch": 2, "t": 5, "E": 4}[name] for name in index.split()]
    agree(s.graph, {"i": torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(0))})


def test_gather_at_a_number() -> None:
    s = Sketch()
    x = s.input("x", "batch E d")
    s.outputs(a=s.add(ir.Gather("E"), x, s.number(2)), b=s.add(ir.Gather("E"), x, s.number(0)))
    agree(s.graph)


def test_scatter() -> None:
    s = Sketch()
    x, i = s.input("x", "batch t K"), s.input("i", "t", "int")
    s.outputs(y=s.add(ir.Scatter("t", axis("E")), x, i))
    agree(s.graph, {"i": torch.tensor([3, -1, 0, 7, 3])}, sizes={"E": 4})


def test_nothing_passes_a_choice_by_top() -> None:
    s = Sketch()
    x = s.input("x", "t E")
    best = s.add(ir.Top("E", sympy.Integer(2)), x)
    s.outputs(y=s.fn("where", best, x, s.number(0)))
    agree(s.graph)


def test_what_is_drawn_at_random_is_saved() -> None:
    s = Sketch()
    x = s.input("x", "t K")
    s.outputs(y=s.fn("mul", s.fn("tanh", x), s.add(ir.Noise(sympy.Rational(1, 10)), x)))
    made = agree(s.graph)
    assert "saved.noise" in [saved.name for saved in made.saved]


# --- linear systems, and ops along a sequence ---------------------------------------------------


@pytest.mark.parametrize(("matrix", "vector"), [("batch K K'", "batch t K"), ("t K K'", "K")])
def test_solve(matrix: str, vector: str) -> None:
    s = Sketch()
    A, b = s.input("A", matrix), s.input("b", vector)
    s.outputs(y=s.add(ir.Solve("K", "K'", None), A, b))
    values = torch.randn([{"batch": 2, "t": 5}.get(n, 4) for n in matrix.split()]).double()
    agree(s.graph, {"A": values + 5 * torch.eye(4, dtype=torch.float64)})


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("weights", "right"), [("batch t s H", "batch t H V"), ("t s", "t V H")])
def test_a_system_along_the_tokens(weights: str, right: str, reverse: bool) -> None:
    """Weights at the token itself and on the other side of it count for nothing."""
    s = Sketch()
    a, b = s.input("a", weights), s.input("b", right)
    s.outputs(z=s.fn("tanh", s.add(ir.Substitute("s", reverse), a, b)))
    agree(s.graph)


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_shift(steps: int) -> None:
    s = Sketch()
    s.outputs(y=s.add(ir.Shift("t", steps), s.input("x", "batch t K")))
    agree(s.graph)


@pytest.mark.parametrize("stride", [None, 1, 2, 3])
def test_window(stride: int | None) -> None:
    s = Sketch()
    x = s.input("x", "batch t K")
    blocks = None if stride is None else stream("c")
    number = None if stride is None else sympy.Integer(stride)
    runs = s.add(ir.Window("t", axis("W"), number, blocks), x)
    s.outputs(y=s.fn("tanh", runs))
    count = 5 if stride is None else (5 - 3) // stride + 1
    agree(s.graph, sizes={"W": 3, "T_c": count})


def test_softmax() -> None:
    """Scores, a mask that leaves nothing in one row, -inf scores, and a sink."""
    s = Sketch()
    scores, mask, sink = s.input("x", "t s"), s.input("mask", "t s", "bool"), s.input("sink", "t")
    plain = s.add(ir.Softmax("s"), scores, mask)
    s.outputs(y=plain, z=s.add(ir.Softmax("s"), scores, mask, sink))
    x = torch.randn(5, 5, dtype=torch.float64)
    x[2, 1], left = -math.inf, torch.ones(5, 5, dtype=torch.bool).tril()
    left[3] = False
    agree(s.graph, {"x": x, "mask": left})


def segment(kind: str, own: bool, matrix: bool = False) -> Sketch:
    s = Sketch()
    x = s.input("x", ("t r" if own else "r") + " K" + (" K'" if matrix else ""))
    ends = ("K", "K'") if matrix else (None, None)
    s.outputs(y=s.add(ir.Segment(kind, "r", axis("t"), axis("s"), *ends), x))
    return s


@pytest.mark.parametrize("own", [False, True])
def test_sums_along_a_path(own: bool) -> None:
    agree(segment("sum", own).graph)


@pytest.mark.parametrize("matrix", [False, True])
def test_a_product_along_a_path_is_refused(matrix: bool) -> None:
    with pytest.raises(NoGradient, match="a product along a path"):
        gradient(segment("product", False, matrix).graph, ["x"], ["y"])


# --- structure ----------------------------------------------------------------------------------


def test_an_input_that_nothing_depends_on_gets_zeros() -> None:
    s = Sketch()
    x, _ = s.input("x", "t K"), s.input("unused", "K V")
    s.outputs(y=s.fn("tanh", x))
    agree(s.graph, sizes={"K": 4, "V": 4})


def test_only_what_is_asked_for_is_computed() -> None:
    s = Sketch()
    x, w = s.input("x", "t K"), s.input("w", "K V")
    s.outputs(y=s.einsum("t K, K V -> t V", x, w), z=s.fn("tanh", x))
    made = gradient(s.graph, ["w"], ["y"])
    assert list(made.backward.outputs) == ["d.w"]
    assert {n.op.name for n in made.backward if isinstance(n.op, ir.Input)} == {"x", "d.y"}


@pytest.mark.parametrize(("wanted", "given"), [("i", "y"), ("nobody", "y"), ("x", "n")])
def test_a_name_that_is_no_real_is_refused(wanted: str, given: str) -> None:
    s = Sketch()
    x, i = s.input("x", "t"), s.input("i", "t", "int")
    s.outputs(y=s.fn("mul", x, i), n=i)
    with pytest.raises(ValueError, match="is no real value of the graph"):
        gradient(s.graph, [wanted], [given])


def test_cotangents_have_the_names_and_places_of_the_values() -> None:
    s = Sketch()
    x = s.input("x", "t K")
    q = s.add(ir.Elementwise("tanh"), x, name="q")
    s.outputs(y=s.einsum("t K, t K -> t", q, x))
    made = gradient(s.graph, ["x"], ["y"])
    assert "d_q" in {n.name for n in made.backward}
