"""Kernels whose warps have work of their own, on a GPU: values and all gradients of scores of many
kinds, beside Triton's kernels and against PyTorch in float64."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from archc.backends.load import load
from torch import Tensor, nn

import archc
from archc.compile import text_of
from archc.ir.sizes import evaluate
from archc.runtime import gluon_kernels
from tests.attention.test_folds import SCORES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
TOKENS, WIDE = 1100, 128


def drawn(layer: Any, known: dict[str, Any], negative: bool) -> list[Tensor]:
    """The inputs of a layer; `negative`: numbers of tokens are logs of gates."""
    torch.manual_seed(0)
    found = []
    for _, op in layer.inputs:
        dims = [axis for axis in op.type.axes if axis.kind not in ("batch", "stream")]
        shape = [2, TOKENS, *(int(evaluate(axis.size, known)) for axis in dims)]
        x = torch.randn(shape, device="cuda")
        found.append(-nn.functional.softplus(x) / 20 if negative and len(dims) == 1 else x)
    return [x.to(torch.bfloat16) for x in found]


def results(layer: nn.Module, given: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """What a layer gives, and all gradients, by a copy of it in a dtype."""
    own = deepcopy(layer).to(torch.bfloat16).to(dtype)
    inputs = [x.to(dtype).requires_grad_() for x in given]
    o = own(*inputs)
    slope = torch.sin(torch.arange(o.numel(), device="cuda")).view(o.shape).to(o.dtype)
    return [o, *torch.autograd.grad(o, [*inputs, *own.parameters()], slope)]


@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are at most half as large again as those of Triton's kernels."""
    text, sizes = SCORES[name]
    layer = archc.parse(text).layer
    module: Any = load(text_of(layer, "triton"), f"scored_{[*SCORES].index(name)}")
    if not hasattr(module, "are_specialized"):
        pytest.skip("no such kernel")
    known = {"H": 4, "K": WIDE, "V": WIDE, **sizes}
    made = module.Scored(**known).cuda()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.rand_like(parameter) * 0.2)
    given = drawn(layer, {"batch": 2, **known}, name == "forgetting")
    monkeypatch.setattr(gluon_kernels, "ROWS_FROM", 0)
    asked, kept = [], module.are_specialized
    monkeypatch.setattr(module, "are_specialized", lambda *x: asked.append(kept(*x)) or asked[-1])
    special = results(made, given, torch.bfloat16)
    monkeypatch.setattr(module, "are_specialized", lambda *x: False)
    usual, exact = (results(made, given, kind) for kind in (torch.bfloat16, torch.float64))
    if torch.cuda.get_device_capability() == (9, 0):
        assert asked and all(asked)
    for x, y, z in zip(special, usual, exact, strict=True):
        assert (x.double() - z).norm() <= 1.5 * (y.double() - z).norm() + 1e-3 * z.norm()
