"""Every op of the layer IR, emitted: the same numbers as the oracle, whole and in pieces."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import cache
from textwrap import dedent

import pytest
import torch
from archc.backends.eager.elementwise import IN_FLOAT32
from torch import Tensor, nn

import archc
from archc.functions.definitions import FUNCTIONS
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.meaning import evaluate

SPECS = """
layer Windows(d, e):
    input x[d]
    param w[d, 3]; u[d, 3, e]
    output y[d] = shortconv(x, w) + sum[e](max[3](window[3](x) * u))

layer Shifts(d):
    input x[d]
    output y = x - 0.5 * x[t-1] + x[t-3]

layer Functions(d):
    input x[d]
    a = where(x > 0, x, -(x ** 2)) + floor(x) * sign(x) - erf(x) / (1 + abs(x))
    b = min(max(x, -0.5), 0.5) + max(x, tanh(x)) - min(x, cos(x)) + sin(x)
    c = sigmoid(x) * logsigmoid(x) + softplus(x) * silu(x) + gelu(x) * rsqrt(1 + x * x)
    output y = a * b + c + log(1 + relu(x)) * sqrt(exp(x))

layer Reductions(d):
    input x[d]
    output y[d] = (prod[d](x) + max[d](x) - min[d](x)) * mean[d](x) * x + sum[d](x)

layer Positions(d):
    input x[d]
    output y = rope[d](x, 100) + position(x) / 7 + index[d] % 3 - rope_half[d](x, 10)

layer Rows(d, e):
    input x[d]
    param E[e, d]
    output y = take[d](x, (index[d] + 1) % size(d)) + E[t]

layer Parts(d, K = d / 2, R = d / 4):
    input x[d]
    a, b = x by K, [2, R]
    output y[d] = join[K, K as d](2 * a, merge[2, R as K](b * b))

layer Corrected(d, H):
    input x[H, d]
    attend s < t over H:
        u[d] = x - sigmoid(x[t].T @ x[s]) @ u[s] / 4
    output y = u + u[t-1]

layer Groups(d, H, G):
    input x[H, d]
    input g[G, d]
    attend s <= t over H grouped G:
        o = softmax(x[t].T @ g[s]) @ g[s]
    z[G, d] = sum[H in G](o)
    output y = z * g

layer Sink(d, H):
    input x[H, d]
    param b[H]
    attend s <= t over H:
        y = softmax(x[t].T @ x[s], b) @ x[s]
    output y

layer Bias(d, w):
    input x[d]
    param slope[] = 0.5
    attend t - w < s <= t:
        y = softmax(x[t].T @ x[s] - slope * (t - s)) @ x[s]
    output y

layer Weights(d):
    input x[d]
    attend s <= t:
        y = exp(x[t].T @ x[s] - 1) @ x[s]
    output y

layer Sums(d):
    input x[d]
    f = logsigmoid(mean[d](x))
    attend s <= t:
        y = softmax(x[t].T @ x[s] + (sum r in (s, t]: f[r])) @ x[s]
    output y

layer Products(d):
    input x[d]
    w = l2norm[d](x)
    attend s <= t:
        P = product r in (s, t]: I - w[r] @ w[r].T
        y = softmax(x[s].T @ P @ x[t]) @ x[s]
    output y

layer Choice(d):
    input x[d]
    index s <= t:
        score = x[t].T @ x[s]
    chosen = top(2, score)
    attend s <= t in chosen:
        y = softmax(x[t].T @ x[s]) @ x[s]
    output y

layer Blocks(d, w, n):
    input x[d]
    param P[w, d]
    blocks b of w every n:
        c = sum[w](x[b] * P)
    attend b ending <= t:
        y = softmax(x[t].T @ c[b]) @ c[b]
    output y

layer Solved(d):
    input x[d]
    recurrence A[d, d'], z[d]:
        A[t] = 0.9 * A[t-1] + x @ x.T
        z[t] = z[t-1] + x
        y = solve(A[t] + diag(1 + x * x), z[t])
    output y

layer States(d):
    input x[d]
    param a[d]
    recurrence h[d] = 1, m[d] = -inf:
        m[t] = max(m[t-1] + a, x)
        h[t] = tanh(h[t-1] + m[t])
        y = h[t-1] - h[t]
    output z = y * h

layer Experts(d, n):
    input x[d]
    param W_r[d, n]; W[n, d, d']
    p = softmax[n](x @ W_r)
    route e in top(2, p) weight normalised(p):
        y = x @ W[e]
    output y

layer Split(d, H):
    input x[d]
    param W[d, H, 3]
    a, b, c = x @ W by 3
    output y = a * b - c

layer Across(d, e):
    input x[d]
    input c[e] along m
    param W[e, d]
    k = c @ W
    attend all m:
        y = softmax(x[t].T @ k[m]) @ k[m]
    output y

layer Tokens(d, e):
    input tokens in e
    param E[e, d] = normal(0, 1)
    output y = tanh(E[tokens]) @ E.T

layer Inner(d, e):
    input x[d]
    param W[d, e]; c[e, 2]
    output y = shortconv(x @ W, c)

layer Outer(d, e):
    input x[d]
    param n[d] = 1
    a = Inner(d, e)(x * n)
    output y = a + Inner(d, e)(-x)

layer Stack(d, L = 3):
    input x[d]
    repeat L as l:
        param W[d, d']
        x = x[t-1] + tanh(x @ W) / (l + 1)
    output y = x

layer Dropped(d, p = 0.5):
    input x[d]
    output y = dropout(x, p) + x * keep(x + 1, p)
"""
SIZES = {"d": 4, "e": 12, "H": 4, "G": 2, "w": 3, "n": 3}
NAMES = [line.split("(")[0].split()[1] for line in SPECS.split("\n") if line.startswith("layer")]
NAMES.remove("Inner")


def sizes_of(layer: ir.Layer) -> dict[str, int]:
    """The sizes that a layer has no default for."""
    return {arg.name: SIZES[arg.name] for arg in layer.args if arg.default is None}


def built(name: str) -> tuple[ir.Layer, nn.Module, dict[str, Tensor]]:
    """A layer of `SPECS`, a module of it with random parameters, and random inputs."""
    layer, module, inputs = built_once(name)
    return layer, copy.deepcopy(module), inputs


@cache
def built_once(name: str) -> tuple[ir.Layer, nn.Module, dict[str, Tensor]]:
    """The same, made once for all tests."""
    spec = archc.parse(SPECS, layer=name)
    sizes = sizes_of(spec.layer)
    torch.manual_seed(0)
    module = spec.module(dtype=torch.float64, **sizes).eval()
    for parameter in module.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    inputs = {}
    for _, op in spec.layer.inputs:
        if op.type.dtype == "int":
            inputs[op.name] = torch.randint(0, SIZES["e"], (2, 10))
        else:
            length = 10 if "t" in op.type.names else 6
            dims = [SIZES[axis.name] for axis in op.type.axes[2:]]
            inputs[op.name] = torch.randn(2, length, *dims, dtype=torch.float64)
    return spec.layer, module, inputs


def ops_in(graph: Graph) -> Iterator[type]:
    """The ops of a graph, of the bodies in it and of the layers it calls."""
    for node in graph:
        yield type(node.op)
        if isinstance(node.op, ir.Recurrence | ir.Attend):
            yield from ops_in(node.op.body)
        elif isinstance(node.op, ir.Call):
            yield from ops_in(node.op.callee.graph)


def test_every_op_is_in_the_specs_here() -> None:
    found = {op for name in NAMES for op in ops_in(archc.parse(SPECS, layer=name).layer.graph)}
    assert set(ir.OPS) - found <= {ir.Delta, ir.Scatter}
    lowered = archc.parse(SPECS, layer="Groups").layer.graph
    assert ir.Scatter in set(ops_in(lowered)) or ir.Scatter in found


@pytest.mark.parametrize("name", NAMES)
def test_whole(name: str) -> None:
    layer, module, inputs = built(name)
    expected = evaluate(layer, inputs, dict(module.state_dict()), sizes_of(layer)).outputs
    (wanted,) = expected.values()
    torch.testing.assert_close(module(**inputs), wanted, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("lengths", [[1] * 10, [5, 0, 4, 1], [0, 2, 8]], ids=str)
def test_pieces(name: str, lengths: list[int]) -> None:
    _, module, inputs = built(name)
    whole, state, start, parts = module(**inputs), None, 0, []
    for length in lengths:
        piece = {
            key: value[:, start : start + length] if value.shape[1] == 10 else value
            for key, value in inputs.items()
            if value.shape[1] == 10 or state is None
        }
        made, state = module(**piece, state=state, return_state=True)
        parts.append(made)
        start += length
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", ["Windows", "Functions", "Sums", "States", "Outer"])
def test_gradients(name: str) -> None:
    _, module, inputs = built(name)
    names, values = zip(*inputs.items(), strict=True)
    short = [value[:1, :4].clone().requires_grad_() for value in values]
    assert torch.autograd.gradcheck(
        lambda *args: module(**dict(zip(names, args, strict=True))), short, atol=1e-6
    )


@pytest.mark.default("dtype0")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NAMES)
def test_lower_precision(name: str, dtype: torch.dtype) -> None:
    _, module, inputs = built(name)
    wanted = module(**inputs)
    low = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    made, state = module.to(dtype)(**low, return_state=True)
    assert made.dtype == dtype and made.isfinite().all()
    if dtype == torch.float32:
        torch.testing.assert_close(made.double(), wanted, rtol=1e-3, atol=1e-3)
    if name == "States":
        assert state.h.dtype == state.m.dtype == torch.float32


def test_what_goes_into_a_stack_is_there_after_it() -> None:
    text = """
    layer L(d, n = 3):
        input x[d]
        h = x
        repeat n as i:
            param W[d, d']
            h = h + tanh(h @ W)
        output y = h - 2 * x
    """
    layer = archc.parse(dedent(text)).module(d=4, dtype=torch.float64)
    x = h = torch.randn(2, 5, 4, dtype=torch.float64)
    for weight in layer.parameters():
        h = h + torch.tanh(h @ weight)
    torch.testing.assert_close(layer(x), h - 2 * x)


def test_dropout_only_in_training() -> None:
    _, module, inputs = built("Dropped")
    x = inputs["x"]
    torch.testing.assert_close(module(x), 2 * x)
    module.train()
    torch.manual_seed(1)
    dropped = module(x) / x
    assert set(dropped.round().flatten().tolist()) == {0.0, 2.0, 4.0}


def test_a_branch_that_is_not_chosen_has_no_gradient() -> None:
    spec = archc.parse(
        "layer Safe(d):\n    input x[d]\n"
        "    output y = where(x > 900, 1, exp(x)) + where(x > 0, log(x), 0)\n"
    )
    module = spec.module(d=3)
    x = torch.tensor([[[1000.0, -1.0, 2.0]]], requires_grad=True)
    y = module(x)
    y.sum().backward()
    assert y.isfinite().all() and x.grad is not None and x.grad.isfinite().all()
    torch.testing.assert_close(x.grad[0, 0, 2], torch.tensor(2.0).exp() + 0.5)


CHOICE = """
layer Choice(d):
    input x[d]
    param w[d, d']
    output y = (where(x > 0, 0.1, 1) * where(position(x) % 2 == 1, 0.3, 0)) @ w
"""


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_one_of_two_numbers_is_as_wide_as_the_data(dtype: torch.dtype) -> None:
    module = archc.parse(CHOICE).module(d=2, dtype=dtype)
    y = module(torch.tensor([[[5.0, 1], [-1, 5]]], dtype=dtype))
    chosen = torch.tensor([[0, 0], [0.3, 0.03]], dtype=dtype)
    torch.testing.assert_close(
        y[0], chosen @ module.w, rtol=1e-15 if y.dtype.itemsize > 2 else 0.02, atol=0
    )


def test_functions_that_autocast_does_in_float32_are_those_of_torch() -> None:
    """As torch has registered them for a GPU, on a machine without one too."""
    cast = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    cast = {each.removeprefix("aten::").partition(".")[0] for each in cast}
    called = {"logsigmoid": "log_sigmoid", "floordiv": "floor_divide", "softplus": "softplus"}
    found = {name for name, fn in FUNCTIONS.items() if called.get(name, fn.torch) in cast}
    assert found == set(IN_FLOAT32)
