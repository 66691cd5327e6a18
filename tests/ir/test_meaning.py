"""The oracle's recurrences, attends and called layers against torch modules and loops."""

from __future__ import annotations

from dataclasses import replace

import pytest
import sympy
import torch
import torch.nn.functional as F
from torch import Tensor

from archc.dims import TIME, size_symbol
from archc.ir import layer as ir
from archc.ir.initial import sample_layer
from archc.ir.meaning import evaluate
from tests.graphs import Sketch, axes, axis, layer, random_inputs, run, single


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --- recurrences -------------------------------------------------------------------------------


def cell() -> ir.Layer:
    """An LSTM: gates i, f, g, o from x @ W + h[t-1] @ R + b, on an axis G of their own."""
    s, body = Sketch(), Sketch()
    x = s.input("x", "batch t d")
    W, R, b = s.param("W", "d G D"), s.param("R", "D' G D"), s.param("b", "G D")
    a = s.fn("add", s.einsum("batch t d, d G D -> batch t G D", x, W), b)
    h, c = body.input("h[t-1]", "batch D"), body.input("c[t-1]", "batch D")
    pre = body.fn(
        "add",
        body.input("a", "batch G D"),
        body.einsum("batch D', D' G D -> batch G D", h, body.input("R", "D' G D")),
    )
    fns = ("sigmoid", "sigmoid", "tanh", "sigmoid")
    i, f, g, o = (
        body.fn(fn, body.add(ir.Gather("G"), pre, body.number(n))) for n, fn in enumerate(fns)
    )
    c_new = body.fn("add", body.fn("mul", f, c), body.fn("mul", i, g))
    h_new = body.fn("mul", o, body.fn("tanh", c_new))
    body.outputs(h=h_new, c=c_new, f=f)
    states = (ir.State("h", axes("batch D")), ir.State("c", axes("batch D")))
    zero = s.number(0)
    recurrence = s.add(ir.Recurrence(TIME, ("a", "R"), states, body.graph), a, R, zero, zero)
    s.outputs(**{name: s.add(ir.Result(name), recurrence) for name in ("h", "c", "f")})
    return layer(s, "d G D")


SIZES = {"d": 3, "G": 4, "D": 5}


def torch_lstm(params: dict[str, Tensor]) -> torch.nn.LSTM:
    lstm = torch.nn.LSTM(3, 5, batch_first=True).double()
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(params["W"].flatten(1).mT)
        lstm.weight_hh_l0.copy_(params["R"].flatten(1).mT)
        lstm.bias_ih_l0.copy_(params["b"].flatten())
        lstm.bias_hh_l0.zero_()
    return lstm


def test_a_recurrence_with_two_states_is_torch_lstm() -> None:
    model, x = cell(), randn(2, 6, 3)
    params = sample_layer(model, SIZES)
    found = evaluate(model, {"x": x}, params, SIZES)
    h, (h_last, c_last) = torch_lstm(params)(x)
    assert torch.allclose(found.outputs["h"], h, atol=1e-12)
    assert torch.allclose(found.states["h"], h_last[0], atol=1e-12)
    assert torch.allclose(found.states["c"], c_last[0], atol=1e-12)
    assert torch.equal(found.outputs["c"][:, -1], found.states["c"])


def test_a_recurrence_has_the_gradients_of_torch_lstm() -> None:
    model, x = cell(), randn(2, 4, 3).requires_grad_()
    params = {name: p.requires_grad_() for name, p in sample_layer(model, SIZES).items()}
    weight = randn(2, 4, 5, seed=1)
    loss = (evaluate(model, {"x": x}, params, SIZES).outputs["h"] * weight).sum()
    mine = torch.autograd.grad(loss, (x, params["W"]))
    lstm = torch_lstm(params)
    theirs = torch.autograd.grad((lstm(x)[0] * weight).sum(), (x, lstm.weight_ih_l0))
    assert torch.allclose(mine[0], theirs[0], atol=1e-12)
    assert torch.allclose(mine[1].flatten(1).mT, theirs[1], atol=1e-12)


@pytest.mark.parametrize("length", [0, 1])
def test_a_recurrence_over_few_tokens(length: int) -> None:
    model = cell()
    found = evaluate(model, {"x": randn(2, length, 3)}, sample_layer(model, SIZES), SIZES)
    assert found.outputs["h"].shape == (2, length, 5)
    if length == 0:
        assert torch.equal(found.states["h"], torch.zeros(2, 5, dtype=torch.float64))


def test_a_recurrence_continues_from_given_states() -> None:
    model, x = cell(), randn(2, 6, 3)
    params = sample_layer(model, SIZES)
    whole = evaluate(model, {"x": x}, params, SIZES)
    first = evaluate(model, {"x": x[:, :2]}, params, SIZES)
    rest = evaluate(model, {"x": x[:, 2:]}, params, SIZES, states=first.states)
    joined = torch.cat([first.outputs["h"], rest.outputs["h"]], 1)
    assert torch.allclose(joined, whole.outputs["h"], atol=1e-14)
    with pytest.raises(ValueError, match=r"`h` has the axes \[batch, D\]"):
        evaluate(model, {"x": x}, params, SIZES, states={"h": randn(2, 4)})


def test_a_state_may_start_anywhere_and_have_no_axes_but_batch() -> None:
    """m[t] = max(m[t-1] + f, i), from -inf: the running maximum of a decayed input."""
    s, body = Sketch(), Sketch()
    before = body.input("m[t-1]", "batch")
    body.outputs(
        m=body.fn("max", body.fn("add", before, body.input("f")), body.input("i", "batch"))
    )
    recurrence = ir.Recurrence(TIME, ("f", "i"), (ir.State("m", axes("batch")),), body.graph)
    ids = (s.number(-1), s.input("i", "batch t"), s.number(-sympy.oo))
    x = torch.tensor([[3.0, 0.0, 2.5, -9.0], [-1.0, -1.5, -5.0, 4.0]]).double()
    m = single(s.outputs(y=s.add(ir.Result("m"), s.add(recurrence, *ids))), i=x)
    assert m.tolist() == [[3.0, 2.0, 2.5, 1.5], [-1.0, -1.5, -2.5, 4.0]]


# --- attends -----------------------------------------------------------------------------------


def attention(source: str, causal: bool) -> Sketch:
    """q[t] reads k, v of `source`; weights softmax(q.T @ k / sqrt(K))."""
    s, body = Sketch(), Sketch()
    read = "s" if source == "t" else source
    q, k, v = (
        body.input("q", "batch t H K"),
        *(body.input(name, f"batch {read} H {dim}") for name, dim in (("k", "K"), ("v", "V"))),
    )
    score = body.einsum(f"batch t H K, batch {read} H K -> batch t {read} H", q, k)
    at_t, at_s = body.add(ir.Position(axis("t"))), body.add(ir.Position(axis(read)))
    mask = body.fn("le", at_s, at_t) if causal else body.fn("ge", at_s, body.number(0))
    scale = body.number(1 / sympy.sqrt(size_symbol("K")))
    p = body.add(ir.Softmax(read), body.fn("mul", score, scale), mask)
    body.outputs(o=body.einsum(f"batch t {read} H, batch {read} H V -> batch t H V", p, v), p=p)
    captures = (("q", "reader"), ("k", "read"), ("v", "read"))
    op = ir.Attend(axis("t"), axis(read), source, captures, body.graph, causal=causal)
    ids = [
        s.input(n, f"batch {at} H {d}")
        for n, at, d in (("q", "t", "K"), ("k", source, "K"), ("v", source, "V"))
    ]
    return s.outputs(y=s.add(ir.Result("o"), s.add(op, *ids)))


@pytest.mark.parametrize("length", [0, 1, 6])
def test_a_causal_attend_is_causal_attention(length: int) -> None:
    q, k, v = randn(2, length, 3, 4), randn(2, length, 3, 4, seed=1), randn(2, length, 3, 5, seed=2)
    y = single(attention("t", causal=True), q=q, k=k, v=v)
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    want = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2)
    assert y.shape == want.shape and torch.allclose(y, want, atol=1e-13)


def test_an_attend_may_read_another_sequence() -> None:
    q, k, v = randn(2, 5, 3, 4), randn(2, 7, 3, 4, seed=1), randn(2, 7, 3, 5, seed=2)
    y = single(attention("m", causal=False), q=q, k=k, v=v)
    heads = [x.transpose(1, 2) for x in (q, k, v)]
    assert torch.allclose(y, F.scaled_dot_product_attention(*heads).transpose(1, 2), atol=1e-13)


def test_an_attend_with_a_path_between_reader_and_read() -> None:
    """y[t] = sum of v[s] for s <= t, faded by f[s+1] * ... * f[t]: a decaying running sum."""
    s, body = Sketch(), Sketch()
    fade = body.add(ir.Segment("product", "r", axis("t"), axis("s")), body.input("f", "batch r"))
    at_t, at_s = body.add(ir.Position(axis("t"))), body.add(ir.Position(axis("s")))
    kept = body.fn("where", body.fn("le", at_s, at_t), fade, body.number(0))
    body.outputs(o=body.einsum("batch t s, batch s -> batch t", kept, body.input("v", "batch s")))
    captures = (("f", "path"), ("v", "read"))
    op = ir.Attend(axis("t"), axis("s"), "t", captures, body.graph, path=axis("r"))
    attend = s.add(op, s.input("f", "batch t"), s.input("v", "batch t"))
    f, v = randn(2, 6), randn(2, 6, seed=1)
    y = single(s.outputs(y=s.add(ir.Result("o"), attend)), f=f, v=v)
    total = torch.zeros(2, dtype=torch.float64)
    for t in range(6):
        total = f[:, t] * total + v[:, t]
        assert torch.allclose(y[:, t], total)


# --- layers ------------------------------------------------------------------------------------


def projection() -> ir.Layer:
    """layer P(a, b): y[b] = x[a] @ W, and the running sum S of y."""
    s, body = Sketch(), Sketch()
    y = s.einsum("batch t a, a b -> batch t b", s.input("x", "batch t a"), s.param("W", "a b"))
    s.graph.rename(y, "y")
    body.outputs(S=body.fn("add", body.input("S[t-1]", "batch b"), body.input("y", "batch b")))
    recurrence = ir.Recurrence(TIME, ("y",), (ir.State("S", axes("batch b")),), body.graph)
    total = s.add(ir.Result("S"), s.add(recurrence, y, s.number(0)))
    return layer(s.outputs(y=y, total=total), "a b")


def caller() -> ir.Layer:
    """Two projections, d to H to d, by calls of one layer."""
    s, inner = Sketch(), projection()
    d, H = size_symbol("d"), size_symbol("H")

    def call(x: int, path: str, a: str, b: str, out: str) -> int:
        sizes = (("a", size_symbol(a)), ("b", size_symbol(b)))
        made = s.add(ir.Call(inner, path, sizes, (("a", axis(a)), ("b", axis(b)))), x)
        return s.add(ir.Result(out), made)

    up = call(s.input("x", "batch t d"), "up", "d", "H", "y")
    down = call(s.fn("add", up, s.number(d * H)), "blocks.0.down", "H", "d", "total")
    return layer(s.outputs(y=down), "d H")


def test_a_called_layer_has_its_own_parameters_values_and_states() -> None:
    model, sizes = caller(), {"d": 3, "H": 4}
    params, x = sample_layer(model, sizes), randn(2, 5, 3)
    assert {name: tuple(p.shape) for name, p in params.items()} == {
        "up.W": (3, 4),
        "blocks.0.down.W": (4, 3),
    }
    found = evaluate(model, {"x": x}, params, sizes)
    up = x @ params["up.W"]
    down = (up + 12) @ params["blocks.0.down.W"]
    assert torch.allclose(found.outputs["y"], down.cumsum(1), atol=1e-12)
    assert torch.allclose(found.values["up.y"], up)
    assert torch.allclose(found.values["blocks.0.down.y"], down)
    assert torch.allclose(found.states["blocks.0.down.S"], down.sum(1))
    start = {"blocks.0.down.S": torch.ones(2, 3, dtype=torch.float64)}
    again = evaluate(model, {"x": x}, params, sizes, states=start)
    assert torch.allclose(again.outputs["y"], down.cumsum(1) + 1)


def test_a_value_without_batch_is_handed_to_a_called_layer_for_every_token() -> None:
    s = Sketch()
    sizes = (("a", size_symbol("d")), ("b", size_symbol("d")))
    op = ir.Call(projection(), "p", sizes, (("a", axis("d")), ("b", axis("d"))))
    x, e = s.input("x", "batch t d"), s.param("e", "d")
    y = s.fn("add", s.add(ir.Result("y"), s.add(op, e)), x)
    model = layer(s.outputs(y=y), "d")
    params = sample_layer(model, {"d": 3})
    given = randn(2, 4, 3)
    found = evaluate(model, {"x": given}, params, {"d": 3}).outputs["y"]
    assert torch.allclose(found, given + params["e"] @ params["p.W"])


def test_a_layer_that_is_an_argument_is_given_by_path() -> None:
    model, x = caller(), randn(2, 5, 3)
    (_, call), _ = model.calls
    inner = Sketch()
    inner.outputs(y=inner.input("x", "batch t a"))
    op = replace(call, callee=replace(layer(inner), kind="argument"), axes=(("a", axis("d")),))
    s = Sketch()
    s.outputs(y=s.add(ir.Result("y"), s.add(op, s.input("x", "batch t d"))))
    taking = layer(s, "d H")
    sizes = {"d": 3, "H": 4}
    assert torch.equal(evaluate(taking, {"x": x}, {}, sizes).outputs["y"], x)
    found = evaluate(taking, {"x": x}, {}, sizes, layers={"up": torch.tanh})
    assert torch.equal(found.outputs["y"], x.tanh())


def test_gradients_are_those_of_finite_differences() -> None:
    model, sizes = caller(), {"d": 2, "H": 2}
    names, values = zip(*sample_layer(model, sizes).items(), strict=True)

    def y(x: Tensor, *params: Tensor) -> Tensor:
        found = evaluate(model, {"x": x}, dict(zip(names, params, strict=True)), sizes)
        return found.outputs["y"]

    inputs = [value.requires_grad_() for value in (randn(1, 3, 2), *values)]
    assert torch.autograd.gradcheck(y, inputs, check_undefined_grad=False)
    assert torch.autograd.gradgradcheck(y, inputs, check_undefined_grad=False)


def test_another_dtype_is_kept_to() -> None:
    model, sizes = caller(), {"d": 3, "H": 4}
    inputs, params = random_inputs(model, sizes), sample_layer(model, sizes)
    low = evaluate(model, inputs, params, sizes, dtype=torch.float32).outputs["y"]
    assert low.dtype == torch.float32
    assert torch.allclose(low.double(), run(model, **sizes).outputs["y"], rtol=1e-4, atol=1e-4)


def test_what_does_not_fit_is_named() -> None:
    model, sizes = caller(), {"d": 3, "H": 4}
    params, x = sample_layer(model, sizes), randn(2, 5, 3)
    with pytest.raises(ValueError, match=r"`x` has the axes \[batch, t, d\], .* is \[2, 5, 4\]"):
        evaluate(model, {"x": randn(2, 5, 4)}, params, sizes)
    with pytest.raises(ValueError, match=r"`up\.W` has the axes \[a, b\]"):
        evaluate(model, {"x": x}, {**params, "up.W": randn(4, 3)}, sizes)
    with pytest.raises(KeyError, match=r"blocks\.0\.down\.W"):
        evaluate(model, {"x": x}, {"up.W": params["up.W"]}, sizes)
