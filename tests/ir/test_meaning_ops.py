"""Each tensor op of the oracle against torch, numpy or a loop written from its definition."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor

from archc.dims import Axis, size_symbol
from archc.functions.definitions import FUNCTIONS as DEFINED
from archc.ir import layer as ir
from archc.ir.meaning import evaluate
from archc.ir.meaning_ops import FUNCTIONS
from tests.graphs import Sketch, axis, layer, single

NAN = float("nan")
INF = float("inf")


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def real(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def of(op: object, dims: str, *more: str, **inputs: Tensor) -> Tensor:
    """An op on inputs whose axes are given in the same order."""
    s = Sketch()
    kinds = {torch.int64: "int", torch.bool: "bool"}
    ids = [
        s.input(name, own, kinds.get(value.dtype, "real"))
        for own, (name, value) in zip((dims, *more), inputs.items(), strict=True)
    ]
    return single(s.outputs(y=s.add(op, *ids)), **inputs)


# --- elementwise -------------------------------------------------------------------------------

UNARY: dict[str, Callable[[float], float]] = {
    "neg": lambda x: -x,
    "exp": math.exp,
    "exp2": lambda x: 2.0**x,
    "log": math.log,
    "sqrt": math.sqrt,
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "abs": abs,
    "sign": lambda x: math.copysign(1, x) if x else 0,
    "floor": math.floor,
    "sin": math.sin,
    "cos": math.cos,
    "erf": math.erf,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "logsigmoid": lambda x: -math.log1p(math.exp(-x)),
    "softplus": lambda x: math.log1p(math.exp(x)),
    "tanh": math.tanh,
    "relu": lambda x: max(x, 0.0),
    "detach": lambda x: x,
}
BINARY: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "pow": lambda a, b: a**b,
    "mod": lambda a, b: a % b,
    "floordiv": lambda a, b: a // b,
    "max": max,
    "min": min,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def test_every_elementwise_function_has_a_meaning() -> None:
    logic = {"not", "and", "or", "real", "where"}
    assert set(UNARY) | set(BINARY) | logic == set(FUNCTIONS) == set(DEFINED)


@pytest.mark.parametrize("fn", UNARY)
def test_functions_of_one_number(fn: str) -> None:
    positive = DEFINED[fn].domain.nonnegative
    xs = [0.25, 1.0, 3.5, 30.0] if positive else [-30.0, -1.25, 0.0, 0.5, 2.0, 30.0]
    y = of(ir.Elementwise(fn), "K", x=real(*xs))
    assert y.tolist() == pytest.approx([UNARY[fn](x) for x in xs], rel=1e-14, abs=0)


@pytest.mark.parametrize("fn", BINARY)
def test_functions_of_two_numbers(fn: str) -> None:
    a, b = [2.0, 7.5, 0.5, 3.0], [3.0, -2.0, 0.25, 3.0]
    y = of(ir.Elementwise(fn), "K", "K", a=real(*a), b=real(*b))
    assert y.tolist() == pytest.approx([BINARY[fn](*pair) for pair in zip(a, b, strict=True)])


def test_operands_are_broadcast_by_name_not_by_place() -> None:
    a, b = randn(3, 2), randn(2, 4)  # [K, H] and [H, V]
    y = of(ir.Elementwise("mul"), "K H", "H V", a=a, b=b)
    assert torch.equal(y, a[:, :, None] * b[None])


def test_whole_numbers_stay_whole_and_divide_into_reals() -> None:
    i, j = torch.tensor([-7, 7, 5]), torch.tensor([2, 2, -3])
    for fn, want in (("floordiv", [-4, 3, -2]), ("mod", [1, 1, -1]), ("mul", [-14, 14, -15])):
        y = of(ir.Elementwise(fn), "K", "K", i=i, j=j)
        assert y.dtype == torch.int64 and y.tolist() == want
    y = of(ir.Elementwise("div"), "K", "K", i=i, j=j)
    assert y.dtype == torch.float64 and y.tolist() == [-3.5, 3.5, 5 / -3]
    assert of(ir.Elementwise("exp"), "K", i=i).dtype == torch.float64
    assert of(ir.Elementwise("real"), "K", i=i).tolist() == [-7.0, 7.0, 5.0]


def test_logic() -> None:
    p, q = torch.tensor([True, True, False]), torch.tensor([True, False, False])
    assert of(ir.Elementwise("and"), "K", "K", p=p, q=q).tolist() == [True, False, False]
    assert of(ir.Elementwise("or"), "K", "K", p=p, q=q).tolist() == [True, True, False]
    assert of(ir.Elementwise("not"), "K", p=p).tolist() == [False, False, True]


def test_what_where_does_not_choose_reaches_neither_value_nor_gradient() -> None:
    s = Sketch()
    x = s.input("x", "K")
    big = s.fn("exp", s.fn("mul", x, s.number(1000)))  # overflows, with an infinite slope
    root = s.fn("sqrt", x)  # NaN below 0, infinite slope at 0
    chosen = s.fn("lt", x, s.number(-5))
    s.outputs(y=s.fn("where", chosen, s.fn("add", big, root), s.fn("mul", x, x)))
    x_value = real(-1.0, 0.0, 2.0).requires_grad_()
    y = single(s, x=x_value)
    (gradient,) = torch.autograd.grad(y.sum(), x_value)
    assert y.tolist() == [1.0, 0.0, 4.0] and gradient.tolist() == [-2.0, 0.0, 4.0]


# --- values ------------------------------------------------------------------------------------


def test_constants_are_exact_and_may_be_infinite() -> None:
    K = size_symbol("K")
    for value, want in (
        (1 / (K + 1), 0.25),
        (sympy.Rational(1, 10), 0.1),
        (-sympy.oo, -INF),
        (sympy.Integer(2) ** 40 + 1, 2**40 + 1),
    ):
        s = Sketch()
        s.outputs(y=s.fn("add", s.input("x", "K"), s.number(value)))
        assert single(s, x=torch.zeros(3, dtype=torch.float64)).tolist() == [want] * 3


def test_position_delta_and_noise() -> None:
    s = Sketch()
    x = s.input("x", "batch t K")
    at = s.add(ir.Position(axis("t")))
    same = s.add(ir.Delta(axis("K"), axis("K'")))
    noise = s.add(ir.Noise(sympy.Rational(1, 2)), x)
    s.outputs(at=at, same=same, noise=noise)
    found = evaluate(layer(s), {"x": randn(2, 3, 4)}, {}, {}).outputs
    assert found["at"].tolist() == [0, 1, 2] and found["at"].dtype == torch.int64
    assert torch.equal(found["same"], torch.eye(4, dtype=torch.float64))
    assert torch.equal(found["noise"], torch.ones(2, 3, 4, dtype=torch.float64))


# --- tokenwise algebra -------------------------------------------------------------------------


@pytest.mark.parametrize("fn", ["sum", "mean", "max", "min", "prod", "logsumexp"])
def test_reduce(fn: str) -> None:
    x = randn(2, 3, 4)
    y = of(ir.Reduce(fn, ("V", "H")), "H K V", x=x)
    along = np.logaddexp.reduce if fn == "logsumexp" else getattr(np, fn)
    want = along(x.numpy(), axis=(0, 2))
    assert torch.allclose(y, torch.from_numpy(want), atol=1e-14)


def test_reduce_of_nothing() -> None:
    x = torch.zeros(0, 2, dtype=torch.float64)
    for fn, want in (("sum", 0.0), ("prod", 1.0), ("max", -INF), ("min", INF), ("logsumexp", -INF)):
        assert of(ir.Reduce(fn, ("K",)), "K V", x=x).tolist() == [want, want]


@pytest.mark.parametrize(
    ("text", "subscripts", "shapes"),
    [
        ("batch d, d H K -> batch H K", "bd,dhk->bhk", ("batch d", "d H K")),
        ("i j, j K -> i:K' K", "ij,jk->ik", ("K' K", "K V")),
        ("K V -> V K", "kv->vk", ("K V",)),
        ("K V -> V", "kv->v", ("K V",)),
        ("i i V -> i:K V", "iiv->iv", ("K K' V",)),
        ("K, V -> V K", "k,v->vk", ("K", "V")),
        ("K V, K V -> K", "kv,kv->k", ("K V", "K V")),
        ("H K, V ->", "hk,v->", ("H K", "V")),
    ],
)
def test_contract(text: str, subscripts: str, shapes: tuple[str, ...]) -> None:
    sizes = {"batch": 2, "d": 3, "H": 2, "K": 3, "K'": 3, "V": 4}
    if text.startswith("i j"):
        sizes["V"] = 5
    inputs = {f"x{i}": randn(*(sizes[n] for n in s.split()), seed=i) for i, s in enumerate(shapes)}
    s = Sketch()
    ids = [s.input(name, own) for own, name in zip(shapes, inputs, strict=True)]
    y = single(s.outputs(y=s.einsum(text, *ids)), **inputs)
    want = np.einsum(subscripts, *(value.numpy() for value in inputs.values()))
    assert np.allclose(y.numpy(), want, atol=1e-13) and y.shape == want.shape


def test_gather_puts_the_axes_of_the_index_in_place() -> None:
    x, i = randn(4, 3, 2), torch.tensor([[2, 0, 1], [1, 1, 2]])
    y = of(ir.Gather("K"), "H K V", "d D", x=x, i=i)
    assert y.shape == (4, 2, 3, 2) and torch.equal(y, x[:, i])


def test_gather_reads_shared_axes_at_the_same_position() -> None:
    x, i = randn(2, 3, 5), torch.tensor([[4, 0], [1, 1], [3, 2]])  # x[batch, H, K], i[H, V]
    y = of(ir.Gather("K"), "batch H K", "H V", x=x, i=i)
    want = [[[x[b, h, i[h, v]] for v in range(2)] for h in range(3)] for b in range(2)]
    assert torch.equal(y, torch.tensor(want, dtype=torch.float64))


def test_gather_of_an_axis_by_itself_is_a_permutation() -> None:
    x = randn(2, 4)
    y = of(ir.Gather("K"), "H K", "K", x=x, i=torch.tensor([1, 0, 3, 2]))
    assert torch.equal(y, x[:, [1, 0, 3, 2]])


def test_gather_is_an_embedding_and_keeps_its_gradient() -> None:
    E, tokens = randn(7, 3).requires_grad_(), torch.tensor([[1, 1, 6], [0, 6, 2]])
    y = of(ir.Gather("d"), "d K", "batch t", E=E, tokens=tokens)
    assert torch.equal(y, F.embedding(tokens, E))
    (mine,) = torch.autograd.grad(y.square().sum(), E)
    (torchs,) = torch.autograd.grad(F.embedding(tokens, E).square().sum(), E)
    assert torch.allclose(mine, torchs)


@pytest.mark.parametrize("index", [-1, 3])
def test_gather_refuses_an_index_out_of_range(index: int) -> None:
    with pytest.raises(IndexError, match="between 0 and 2"):
        of(ir.Gather("K"), "K", "V", x=randn(3), i=torch.tensor([0, index]))


def test_scatter_sums_what_has_the_same_number_and_drops_the_rest() -> None:
    x, i = randn(2, 5, 3), torch.tensor([1, 0, 1, 9, -1])
    into = Axis("G", sympy.Integer(3))
    y = of(ir.Scatter("H", into), "batch H K", "H", x=x, i=i)
    want = torch.stack([x[:, 1], x[:, 0] + x[:, 2], torch.zeros(2, 3, dtype=torch.float64)], 1)
    assert torch.allclose(y, want)


def test_top_chooses_the_lowest_position_among_equals() -> None:
    x = real(1.0, 3.0, 3.0, -INF, 3.0)
    for count, want in ((2, [1, 2]), (4, [0, 1, 2, 4]), (9, [0, 1, 2, 4]), (0, [])):
        y = of(ir.Top("K", sympy.Integer(count)), "K", x=x)
        assert y.dtype == torch.bool and y.nonzero().flatten().tolist() == want


def test_top_along_a_middle_axis() -> None:
    x = randn(2, 6, 3)
    y = of(ir.Top("K", sympy.Integer(2)), "H K V", x=x)
    want = torch.zeros_like(y).scatter(1, x.topk(2, dim=1).indices, True)
    assert torch.equal(y, want)


def test_solve() -> None:
    root, b = randn(2, 3, 4, 4), randn(2, 3, 4, seed=1).requires_grad_()
    A = (root @ root.mT + torch.eye(4, dtype=torch.float64)).requires_grad_()
    y = of(ir.Solve("K", "K'", None), "batch H K K'", "batch H K", A=A, b=b)
    want = torch.einsum("bhij,bhj->bhi", torch.linalg.inv(A), b)
    assert torch.allclose(y, want)
    for mine, theirs in zip(
        torch.autograd.grad(y.sum(), (A, b)), torch.autograd.grad(want.sum(), (A, b)), strict=True
    ):
        assert torch.allclose(mine, theirs)


def test_solve_takes_the_rows_of_a_matrix_that_comes_transposed() -> None:
    A, b = randn(3, 3) + 5 * torch.eye(3), randn(3)
    y = of(ir.Solve("K", "K'", None), "K' K", "K", A=A, b=b)
    assert torch.allclose(A.mT @ y, b)


# --- along a sequence --------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 3, 9])
def test_shift(steps: int) -> None:
    x = randn(2, 4, 3)
    y = of(ir.Shift("t", steps), "batch t K", x=x)
    want = [x[:, t - steps] if t >= steps else torch.zeros(2, 3) for t in range(4)]
    assert torch.equal(y, torch.stack(want, 1).double())


@pytest.mark.parametrize("length", [0, 1, 2, 7])
def test_a_causal_window_is_a_causal_convolution(length: int) -> None:
    x, w = randn(2, length, 5), randn(5, 4, seed=1)
    y = of(ir.Window("t", Axis("w", sympy.Integer(4))), "batch t d", x=x)
    want = F.conv1d(F.pad(x.mT, (3, 0)), w[:, None], groups=5).mT if length else x
    assert y.shape == (2, length, 4, 5)
    assert torch.allclose(torch.einsum("btwd,dw->btd", y, w), want)


@pytest.mark.parametrize("length", [0, 3, 4, 5, 6, 11])
def test_a_window_with_a_stride_holds_complete_runs(length: int) -> None:
    x = randn(2, length, 3)
    op = ir.Window("t", Axis("w", sympy.Integer(4)), sympy.Integer(2), axis("m"))
    y = of(op, "batch t K", x=x)
    count = max((length - 4) // 2 + 1, 0) if length >= 4 else 0
    assert y.shape == (2, count, 4, 3)
    if count:
        assert torch.equal(y, x.unfold(1, 4, 2).mT)


def test_softmax_is_torch_softmax_of_what_is_left_in() -> None:
    x, mask = randn(2, 3, 5), randn(3, 5, seed=1) > -1
    mask[:, 0] = True
    y = of(ir.Softmax("V"), "H K V", "K V", x=x, mask=mask)
    assert torch.allclose(y, x.masked_fill(~mask, -INF).softmax(-1))


def test_softmax_with_a_sink() -> None:
    x, mask, sink = randn(2, 3, 5), torch.ones(5, dtype=torch.bool), 3 * randn(2, seed=1)
    y = of(ir.Softmax("V"), "H K V", "V", "H", x=x, mask=mask, sink=sink)
    joined = torch.cat([x, sink[:, None, None].expand(2, 3, 1)], -1).softmax(-1)[..., :-1]
    assert torch.allclose(y, joined)


def test_softmax_of_nothing_is_zero_with_zero_gradient() -> None:
    x = torch.stack([randn(3), real(-INF, -INF, -INF), real(NAN, INF, 1e300), real(0, 900, -INF)])
    mask = torch.tensor([[True, True, False], [True] * 3, [False] * 3, [True] * 3])
    x.requires_grad_()
    y = of(ir.Softmax("V"), "K V", "K V", x=x, mask=mask)
    (gradient,) = torch.autograd.grad((y * randn(4, 3)).sum(), x)
    assert y[1].tolist() == y[2].tolist() == [0.0] * 3 and y[3].tolist() == [0.0, 1.0, 0.0]
    assert gradient[1:].tolist() == [[0.0] * 3] * 3
    assert torch.autograd.gradcheck(
        lambda x: of(ir.Softmax("V"), "V", "V", x=x, mask=mask[0]), x[0].detach().requires_grad_()
    )


def test_softmax_over_no_tokens() -> None:
    x = torch.zeros(2, 0, dtype=torch.float64)
    assert of(ir.Softmax("V"), "K V", "K V", x=x, mask=x > 0).shape == (2, 0)


def segment(kind: str, x: Tensor, dims: str, *matrix: str) -> Tensor:
    return of(ir.Segment(kind, "r", axis("t"), axis("s"), *matrix), dims, x=x)


def test_segment_sum_counts_from_after_s_up_to_t() -> None:
    x = randn(2, 5)
    x[0, 3] = -INF
    y = segment("sum", x, "batch r")
    for t in range(5):
        for s in range(5):
            want = sum((x[:, r] for r in range(s + 1, t + 1)), torch.zeros(2))
            assert torch.allclose(y[:, t, s], want.double())


def test_segment_product_multiplies_from_the_left_to_the_right() -> None:
    M = randn(2, 4, 3, 3)
    y = segment("product", M, "batch r K K'", "K", "K'")
    for t in range(4):
        for s in range(4):
            want = torch.eye(3, dtype=torch.float64).expand(2, 3, 3)
            for r in range(s + 1, t + 1):
                want = want @ M[:, r]
            assert torch.allclose(y[:, t, s], want)


def test_segment_product_of_numbers_and_of_no_tokens() -> None:
    x = randn(3)
    y = segment("product", x, "r")
    assert torch.allclose(y[2], torch.stack([x[1] * x[2], x[2], real(1.0)[0]]))
    assert segment("sum", x[:0], "r").shape == (0, 0)


def test_a_segment_may_depend_on_the_reader() -> None:
    x = randn(4, 4)  # [t, r]
    y = segment("sum", x, "t r")
    want = [[x[t, s + 1 : t + 1].sum() for s in range(4)] for t in range(4)]
    assert torch.allclose(y, torch.tensor(want, dtype=torch.float64))
