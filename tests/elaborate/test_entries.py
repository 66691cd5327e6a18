"""Entries that a number names in brackets, which may be another one in each layer of a stack."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import archc
from tests.elaborate import forms
from tests.elaborate.forms import T, randn
from tests.elaborate.specs import codes

STACK = """layer L(d, L = 3, n = 3, early = [0, n - 1]):
    input x[d]
    input e[n]
    h = x
    repeat L as l:
        {line}
    output h
"""


def back(h: Tensor, n: int) -> Tensor:
    """The values of n tokens before, 0 before the first."""
    return torch.cat([torch.zeros_like(h[:, :n]), h[:, : T - n]], 1)


@pytest.mark.parametrize("line", ["h = h * e[l]", "h = h * take[n](e, l)"])
def test_of_each_layer_of_a_stack(line: str) -> None:
    def formula(x: Tensor, e: Tensor) -> Tensor:
        return x * e.prod(-1, keepdim=True)

    forms.same(STACK.format(line=line), {"x": randn(2), "e": randn(3, seed=1)}, formula, d=2)


@pytest.mark.parametrize("given", [0, 1, 2])
def test_by_a_size_that_is_given_when_the_module_is_made(given: int) -> None:
    """It had been that of the default, in silence."""
    text = "layer L(d, n, i = 1):\n    input x[d]\n    param E[n, d]\n    output y = x * E[i]\n"
    module = archc.parse(text).module(d=2, n=3, i=given, dtype=torch.float64)
    x = randn(2)
    torch.testing.assert_close(module(x), x * module.get_parameter("E")[given])


def test_by_parameters_of_all_layers() -> None:
    """A recursion whose layers add something of their own."""
    text = STACK.replace("input e[n]", "param W[d, d']; A[n, d, d']").format(
        line="h = h @ W + h @ A[l] + x @ A[n - 1 - l]"
    )
    module = archc.parse(text).module(d=2, dtype=torch.float64)
    W, A = (module.get_parameter(name) for name in "WA")
    x = randn(2)
    h = x
    for place in range(3):
        h = h @ W + h @ A[place] + x @ A[2 - place]
    torch.testing.assert_close(module(x), h)


def test_of_no_entry() -> None:
    text = STACK.format(line="h = h * e[l]").replace("n = 3", "n = 2")
    with pytest.raises(archc.ArchError, match="requires `l < n`"):
        archc.parse(text).module(d=2)


def test_earlier_tokens_by_the_number_of_the_layer() -> None:
    """Layers that differ by what was settled for them are no shared one."""

    def formula(x: Tensor, e: Tensor) -> Tensor:
        return back(back(x, 1), 2) + 0 * e.sum()

    text = STACK.format(line="h = h[t-l] + 0 * sum[n](e)")
    inputs = {"x": randn(2), "e": randn(3, seed=1)}
    forms.same(text, inputs, formula, d=2)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_members_of_a_list_by_what_is_given_later(number: int) -> None:
    head = "layer L(d, n = 1, few = [1, 2]):\n    input x[d]\n"
    text = head + "    output y = x * (2 if n in few else 3)\n"
    x = randn(2)
    module = archc.parse(text).module(d=2, n=number, dtype=torch.float64)
    torch.testing.assert_close(module(x), x * (2 if number < 3 else 3))


def test_members_of_a_list_that_are_made_of_sizes() -> None:
    def formula(x: Tensor, e: Tensor) -> Tensor:
        return x * 2 * 3 * 2 + 0 * e.sum()

    text = STACK.format(line="h = h * (2 if l in early else 3) + 0 * sum[n](e)")
    forms.same(text, {"x": randn(2), "e": randn(3, seed=1)}, formula, d=2)


def test_a_number_that_no_entry_has() -> None:
    assert codes(STACK.format(line="h = h * e[-1]")) == ["E0310"]


def test_an_item_of_a_list_for_each_layer() -> None:
    """Numbers, and options that some layers are without."""
    head = """block Scaled(d, by, plus):
    input x[d]
    param W[d, d']
    a = x @ W
    output y = by * a if plus == none else by * a + plus

"""
    text = head + STACK.replace("early = [0, n - 1]", "by = [2, 3, 2], plus = [none, d, 1 / 2]")
    text = text.replace("    input e[n]\n", "").format(line="h = Scaled(d, by[l], plus[l])(h)")
    module = archc.parse(text).module(d=2, dtype=torch.float64)
    x = h = randn(2)
    weights = dict(module.named_parameters())
    for place, (by, plus) in enumerate([(2, 0), (3, 2), (2, 0.5)]):
        h = by * (h @ weights[f"layers.{place}.scaled.W"]) + plus
    torch.testing.assert_close(module(x), h)
    assert codes(text.replace("[2, 3, 2]", "[2, 3]")) == ["E0310"]


CARRIED = """layer L(d, L = 3):
    input x[d]
    h = x
    k = 1
    repeat L as l:
        {line}
        k = 2 * k + l
    output y = h + k
"""


FAR = """attend t - k < s <= t:
            o = (1 + 0 * (t - s)) @ h[s]
        h = o"""


def far(h: Tensor, n: int) -> Tensor:
    """Sums of the n latest tokens."""
    return torch.stack([back(h, i) for i in range(n)]).sum(0)


@pytest.mark.parametrize(
    ("line", "each"),
    [
        ("h = h * k + l", lambda h, k, place: h * k + place),
        ("h = h * (2 if k > 2 else 3)", lambda h, k, place: h * (2 if k > 2 else 3)),
        (FAR, lambda h, k, place: far(h, k)),
    ],
)
def test_numbers_that_a_stack_carries_are_those_of_each_layer(
    line: str, each: Callable[[Tensor, int, int], Tensor]
) -> None:
    """1, 2, 5 and 12: they had been one tensor, or an int where a tensor is due."""

    def formula(x: Tensor) -> Tensor:
        h, k = x, 1
        for place in range(3):
            h, k = each(h, k, place), 2 * k + place
        return h + k

    forms.same(CARRIED.format(line=line), {"x": randn(2)}, formula, d=2)


def test_the_rest_of_a_whole_number_is_one() -> None:
    def formula(x: Tensor, e: Tensor) -> Tensor:
        return x * e[..., 1:2] * e[..., :1] * e[..., 2:]

    text = STACK.format(line="h = h * e[(2 * l + 1) % n]")
    forms.same(text, {"x": randn(2), "e": randn(3, seed=1)}, formula, d=2)
