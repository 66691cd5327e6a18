"""A layer under a name is one set of weights, a call written where it is applied is one each."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import archc
from tests.elaborate.forms import randn, routes
from tests.elaborate.specs import codes, refusal
from tests.few import but

LAYERS = """
layer MLP(d, f = 2 * d):
    input x[d]
    param W_in[d, f]; W_out[f, d]; b[d]
    output y[d] = tanh(x @ W_in) @ W_out + b

layer Mix(d, H, K = d / H):
    input x[d]
    param W_k, W_v, W_a[d, H, K]; W_o[H, K, d]; c[d, 3]
    u = shortconv(x, c)
    k = l2norm[K](u @ W_k)
    v = u @ W_v
    a = sigmoid(x @ W_a)
    recurrence S[K, K'] over H:
        S[t] = diag(a) @ S[t-1] + k @ v.T
        o = S[t].T @ k
    attend s <= t over H:
        p = softmax(k[t].T @ k[s]) @ v[s]
    output y[d] = (o + p) @ W_o

block Deep(d, H, n = 2):
    input x[d]
    repeat n as i:
        param gain[d] = 1
        x = x + Mix(d, H)(rmsnorm[d](x) * gain)
    output y[d] = x + MLP(d)(x)

layer Wrap(d):
    input x[d]
    output y[d] = MLP(d)(x)

block Twice(d, inner):
    input x[d]
    output y[d] = inner(inner(x))

function twice(f, x):
    return f(f(x))

"""
Layer = Callable[[Tensor], Tensor]
USES: dict[str, tuple[str, str, Callable[[Layer, Tensor], Tensor]]] = {
    "twice": ("MLP(d)", "    output y = m(m(x))\n", lambda f, x: f(f(x))),
    "in a stack": (
        "Mix(d, 2)",
        "    repeat 3 as l:\n        x = x + m(x) / 2\n    output y = x\n",
        lambda f, x: [x := x + f(x) / 2 for _ in range(3)][-1],
    ),
    "in a stack and after it": (
        "Deep(d, 2)",
        "    repeat 2 as l:\n        x = m(x)\n    output y = m(x)\n",
        lambda f, x: f(f(f(x))),
    ),
    "under two names": ("Wrap(d)", "    n = m\n    output y = n(m(x))\n", lambda f, x: f(f(x))),
    "of two branches": (
        "MLP(d) if wide else Mix(d, 2)",
        "    output y = m(x) + m(2 * x)\n",
        lambda f, x: f(x) + f(2 * x),
    ),
}


def model(bound: str, uses: str) -> str:
    return f"{LAYERS}model M(d, wide = true):\n    input x[d]\n    m = {bound}\n{uses}"


def alone(bound: str, weights: dict[str, Tensor]) -> nn.Module:
    """The layer that is bound, by itself, with the weights that a model has under its name."""
    name, *rest = re.findall(r"\w+", bound.split(" if ", maxsplit=1)[0])
    sizes = {"d": 4} | ({"H": int(rest[1])} if len(rest) > 1 else {})
    layer = archc.parse(LAYERS, name).module(dtype=torch.float64, **sizes)
    layer.load_state_dict({n: weights["m_" + n.replace(".", "_")] for n in layer.state_dict()})
    assert len(weights) == len(layer.state_dict())
    return layer


@pytest.mark.default("twice", "under two names", "of two branches")
@pytest.mark.parametrize("use", but(USES, ["in a stack"]))
def test_one_set_of_weights(use: str) -> None:
    """Every route gives what the layer alone gives, applied as often with the same weights."""
    bound, uses, formula = USES[use]
    torch.manual_seed(1)
    weights = archc.parse(model(bound, uses)).module(d=4, dtype=torch.float64).state_dict()
    layer, x = alone(bound, weights), randn(4)
    expected = formula(layer, x).detach()
    for route, found in routes(model(bound, uses), {"x": x}, d=4):
        torch.testing.assert_close(found, expected, msg=lambda m, route=route: f"{route}: {m}")


def test_the_gradient_is_that_of_all_uses() -> None:
    bound, uses, formula = USES["in a stack"]
    torch.manual_seed(1)
    made, x = archc.parse(model(bound, uses)).module(d=4, dtype=torch.float64), randn(4)
    layer = alone(bound, made.state_dict())
    made(x).square().sum().backward()
    formula(layer, x).square().sum().backward()
    for name, weight in layer.named_parameters():
        torch.testing.assert_close(made.get_parameter(f"m_{name}").grad, weight.grad)


@pytest.mark.parametrize(
    ("uses", "count"),
    [
        ("    repeat 3 as l:\n        x = x + MLP(d)(x)\n    output y = x\n", 3),
        ("    repeat 3 as l:\n        m = MLP(d)\n        x = x + m(x)\n    output y = x\n", 3),
        ("    repeat 3 as l:\n        m = MLP(d)\n        x = m(m(x))\n    output y = x\n", 3),
        ("    output y = MLP(d)(MLP(d)(x))\n", 2),
        ("    output y = Twice(d, MLP(d))(x)\n", 1),
        ("    output y = twice(MLP(d), twice(MLP(d), x))\n", 2),
        ("    m = MLP(d)\n    output y = twice(m, m(x))\n", 1),
        ("    m = MLP(d)\n    n = MLP(d)\n    output y = m(n(m(x)))\n", 2),
        ("    m = MLP(d)\n    h = m(x) if 3 > 2 else x\n    output y = m(h) if 3 > 2 else h\n", 1),
    ],
)
def test_how_many_sets_of_weights(uses: str, count: int) -> None:
    made = archc.parse(f"{LAYERS}model M(d):\n    input x[d]\n{uses}").module(d=4)
    assert len(list(made.parameters())) == 3 * count
    assert made(torch.randn(1, 5, 4)).shape == (1, 5, 4)


def test_weights_start_as_those_of_the_layer_alone() -> None:
    """As wide as what the layer contracts, and not what its caller does."""
    text = model("MLP(d)", "    output y = m(m(x))\n")
    made = archc.parse(text).module(d=400)
    assert float(made.get_parameter("m_W_in").detach().std()) == pytest.approx(400**-0.5, rel=0.05)
    assert float(made.get_parameter("m_W_out").detach().std()) == pytest.approx(800**-0.5, rel=0.05)


@pytest.mark.parametrize(
    ("uses", "said"),
    [
        ("    param P[d, e]\n    output y = sum[e](m(x @ P)) + m(x)\n", "different sizes"),
        ("    output y = Twice(d, m)(m(x))\n", "is an argument here"),
        (
            "    param W[d, e]\n    route i in top(1, softmax[e](x @ W)):\n        y = m(x)\n"
            "    output y\n",
            "a `route` has one for each of the chosen",
        ),
    ],
)
def test_what_cannot_share_weights_is_refused(uses: str, said: str) -> None:
    text = f"{LAYERS}model M(d, e = 3):\n    input x[d]\n    m = MLP()\n{uses}"
    assert codes(text) == ["E0311"] and said in refusal(text)


def test_a_layer_that_is_given_with_the_module_is_one() -> None:
    """`inner(inner(x))` asks for one module, and applies it twice."""
    given = nn.Linear(4, 4, dtype=torch.float64)
    made = archc.parse(LAYERS, "Twice").module(d=4, inner=given, dtype=torch.float64)
    x = randn(4)
    torch.testing.assert_close(made(x), given(given(x)))
    assert len(list(made.parameters())) == 2
