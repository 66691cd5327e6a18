"""Numbers and sizes that have no value, are too large for an integer, or are known to a callee
alone; and what a layer may put out."""

from __future__ import annotations

import pytest
import torch

import archc
from archc.diagnostics import ArchError
from tests.elaborate.forms import agree, randn
from tests.elaborate.specs import codes

X = "layer L(d):\n    input x[d]\n"


@pytest.mark.parametrize(
    ("value", "factor"),
    [("max(x, -1e30) + 1e-30", 1.0), ("x * 1e25 / 10 ** 24", 10.0), ("2 ** 70 * x / 2 ** 69", 2.0)],
)
def test_whole_numbers_beyond_64_bits(value: str, factor: float) -> None:
    """They are real numbers, as tensors of integers do not hold them."""
    x = randn(3)
    agree(f"{X}    output y = {value}\n", {"x": x}, x * factor, d=3)


@pytest.mark.slow
def test_a_large_number_where_a_score_is_masked_a_state_starts_and_an_option_defaults() -> None:
    text = (
        "layer L(d, big = 1e30):\n    input x[d]\n    param b[d] = -1e30\n"
        "    recurrence m[d] = -1e30:\n        m[t] = max(m[t-1], x)\n"
        "    attend s <= t:\n"
        "        o = softmax(where(s % 2 == t % 2, x[t].T @ x[s], -1e30)) @ x[s]\n"
        "    output y = max(min(m, big), b) + o\n"
    )
    x = randn(3)
    t = torch.arange(x.shape[1])
    even = (t[:, None] % 2 == t % 2) & (t <= t[:, None])
    read = (x @ x.mT).masked_fill(~even, -torch.inf).softmax(2) @ x
    agree(text, {"x": x}, x.cummax(1).values + read, d=3)


@pytest.mark.parametrize("number", ["1e400", "-1e309", "10 ** 309", "1e200 * 1e200"])
def test_a_number_beyond_the_reals_is_refused(number: str) -> None:
    assert codes(f"{X}    output y = x * ({number})\n") == ["E0404"]


@pytest.mark.parametrize("value", ["x / 0", "x * (1 / (2 - 2))", "where(index[d] % 0 == 0, x, 0)"])
def test_a_division_by_zero_is_refused(value: str) -> None:
    assert codes(f"{X}    output y = {value}\n") == ["E0404"]


UNDEFINED = {
    "a size": ("K = d / (H - 2)", "    param W[d, K]\n    output y = x @ W\n"),
    "a start": ("K = 1", "    param W[d] = uniform(0, 1 / (H - 2))\n    output y = x * W\n"),
    "a stride": (
        "K = 1",
        "    blocks b of 4 every H - 2:\n        k = mean[4](x[b])\n"
        "    attend b ending <= t:\n        o = softmax(x[t].T @ k[b]) @ k[b]\n    output o\n",
    ),
}


@pytest.mark.parametrize("case", UNDEFINED)
def test_sizes_for_which_nothing_is_defined(case: str) -> None:
    """A file is written, by an instance for which everything is; sizes as these are refused."""
    more, body = UNDEFINED[case]
    spec = archc.parse(f"layer L(d, H = 3, {more}):\n    input x[d]\n{body}")
    assert "class L(" in spec.source()
    with pytest.raises((ArchError, ValueError)):
        spec.module(d=4, H=2)(torch.randn(1, 6, 4))


def test_a_default_for_which_a_constant_has_no_value() -> None:
    spec = archc.parse("layer L(d, H = 2):\n    input x[d]\n    output y = x * (1 / (H - 2))\n")
    with pytest.raises(ArchError, match="has no value with H = 2"):
        spec.source()
    assert spec.module(d=4, H=4)(torch.ones(1, 2, 4)).max() == 0.5


def test_a_size_that_is_only_the_default_of_another() -> None:
    """The caller gives what follows from it; the class inside never hears of it."""
    text = (
        "layer A(d, D, e = 2 * D, g = 3 * e):\n    input x[d]\n    param W[d, g]\n"
        "    output y[g] = x @ W\n"
        "layer L(d, D):\n    input x[d]\n    output y = A(d, D)(x)\n"
    )
    spec = archc.parse(text)
    assert spec.module(d=3, D=2)(torch.randn(1, 5, 3)).shape == (1, 5, 12)
    assert "def forward" in spec.source()


@pytest.mark.parametrize("value", ["3", "index[d]", "W", "2 * W + index[d]"])
def test_an_output_that_no_input_enters_is_refused(value: str) -> None:
    text = f"{X}    param W[d]\n    output z = x * W\n    output y = {value}\n"
    assert codes(text) == ["E0222"]


def test_a_condition_is_put_out_as_a_number() -> None:
    x = randn(3)
    agree(f"{X}    output y = x > 0\n", {"x": x}, (x > 0).double(), d=3)


DECIDED = """
layer A(d, k):
    input x[d]
    param W[d] = 1
    output y[d] = (x if k == 2 else 2 * x) * W

block B(d, n):
    input x[d]
    repeat n as i:
        x = x + A(d, n + 1)(x)
    output y[d] = x

layer L(d, wide = 1, n = wide):
    input x[d]
    output y = B(d, n)(x)
"""


@pytest.mark.parametrize("size", ["wide", "n"])
@pytest.mark.parametrize("value", [1, 2, 3])
def test_a_size_that_decides_something_in_a_layer_inside(size: str, value: int) -> None:
    """Given when the spec is loaded or when a module is made, it is the same."""
    x = torch.ones(1, 1, 1)
    early = archc.parse(DECIDED, **{size: value}).module(d=1)(x)
    late = archc.parse(DECIDED).module(d=1, **{size: value})(x)
    assert float(early.detach()) == float(late.detach()) == (2.0 if value == 1 else 3.0**value)


@pytest.mark.parametrize("value", ["1 / 2", "-1", "1e-6", "3"])
def test_an_option_without_a_default_is_any_number(value: str) -> None:
    """What no shape and no count is made from is a number, in a layer inside and in the layer."""
    callee = "layer A(d, eps):\n    input x[d]\n    param b[d] = 0\n    output y[d] = x * eps + b\n"
    text = f"{callee}layer L(d):\n    input x[d]\n    output y = A(d, {value})(x)\n"
    x, number = randn(3), {"1 / 2": 0.5}.get(value) or float(value)
    agree(text, {"x": x}, x * number, d=3)
    torch.testing.assert_close(
        archc.parse(callee).module(d=3, eps=number, dtype=torch.float64)(x), x * number
    )


def test_a_size_is_known_by_its_use_in_layers_inside_and_in_defaults() -> None:
    text = (
        "layer A(d, r, f = 2 * r):\n    input x[d]\n    param W[d, f]; V[f, d]\n"
        "    output y[d] = x @ W @ V\n"
        "layer L(d, n):\n    input x[d]\n    output y = A(d, n)(x)\n"
    )
    with pytest.raises(ArchError, match="must be a size"):
        archc.parse(text).module(d=4, n=0.5)
