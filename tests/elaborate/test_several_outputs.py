"""Layers with several outputs, which a statement names in their order."""

from __future__ import annotations

import pytest
import torch

import archc
from archc.diagnostics import ArchError

SPEC = """
layer Two(d, n):
    input x[d]
{param}
    output a[d] = {a}
    output b[d] = x * x

layer Calls(d):
    input x[d]
    y = x + 1
    {call}
    output z[d] = left - 3 * right
"""


@pytest.mark.parametrize("param", ["", "    param W[d, d']"], ids=["in place", "called"])
@pytest.mark.parametrize("call", ["left, right = Two(d, 2)(y)", "left[d], right = Two(n = 2)(y)"])
def test_each_output_has_its_name(param: str, call: str) -> None:
    """Layers without parameters are elaborated in place, others are modules of their own."""
    text = SPEC.format(param=param, a="x @ W" if param else "n * x", call=call)
    module = archc.parse(text).module(dtype=torch.float64, d=3)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    weights = next(module.parameters(), 2 * torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(module(x), (x + 1) @ weights - 3 * (x + 1) ** 2)


@pytest.mark.parametrize(
    ("call", "code", "text"),
    [
        ("left, right, rest = Two(d, 2)(y)", "E0214", "3 names for the 2 outputs of `Two`: a, b"),
        ("left, right = relu(y)", "E0214", "only a layer has several"),
        ("left, right = Two(d, 2)", "E0214", "only a layer has several"),
        ("left = Two(d, 2)(y); right = y", "E0311", "several outputs, a, b, and one is used"),
    ],
)
def test_what_does_not_fit_is_said(call: str, code: str, text: str) -> None:
    with pytest.raises(ArchError) as found:
        archc.parse(SPEC.format(param="", a="n * x", call=call))
    assert code in str(found.value) and text in str(found.value)
