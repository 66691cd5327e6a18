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
from archc.compile import slots_text_of, text_of
from archc.ir.sizes import evaluate
from archc.runtime import gluon_kernels
from tests.attention.test_folds import SCORES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
TOKENS = 1100


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


@pytest.mark.parametrize("wide, dtype", [(128, torch.bfloat16), (64, torch.float16)])
@pytest.mark.parametrize("name", SCORES)
def test_scores(name: str, wide: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors are at most half as large again as those of Triton's kernels."""
    text, sizes = SCORES[name]
    layer = archc.parse(text).layer
    module: Any = load(text_of(layer, "triton"), f"scored_{[*SCORES].index(name)}")
    if not hasattr(module, "are_specialized"):
        pytest.skip("no such kernel")
    known = {"H": 4, "K": wide, "V": wide, **sizes}
    made = module.Scored(**known).cuda()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.rand_like(parameter) * 0.2)
    given = drawn(layer, {"batch": 2, **known}, name == "forgetting")
    monkeypatch.setattr(gluon_kernels, "ROWS_FROM", 0)
    asked, kept = [], module.are_specialized
    monkeypatch.setattr(module, "are_specialized", lambda *x: asked.append(kept(*x)) or asked[-1])
    special = results(made, given, dtype)
    monkeypatch.setattr(module, "are_specialized", lambda *x: False)
    usual, exact = (results(made, given, kind) for kind in (dtype, torch.float64))
    if torch.cuda.get_device_capability() == (9, 0):
        assert asked and all(asked)
    for x, y, z in zip(special, usual, exact, strict=True):
        assert (x.double() - z).norm() <= 1.5 * (y.double() - z).norm() + 1e-3 * z.norm()


@pytest.mark.parametrize("slots", [False, True])
@pytest.mark.parametrize(
    "tokens, S, H, C",
    [
        (1, 1000, 128, 512),
        (3, 777, 128, 512),
        (1, 63, 192, 512),
        (2, 4097, 64, 512),
        (1, 500, 80, 320),
    ],
)
def test_tokens_of_latents(
    tokens: int, S: int, H: int, C: int, slots: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of sums so wide that two groups of warps have half of each: as those of Triton's kernel, of
    tokens that end in a block, of rows that are no whole number of blocks, and of slots."""
    if slots and tokens > 1:
        pytest.skip("a slot reads one token")
    write = slots_text_of if slots else text_of
    module: Any = load(write(archc.load("mla").layer, "triton"), f"latents_{slots}")
    R, K = 64, 128
    torch.manual_seed(0)
    shapes = [(2, S, C), (2, S, R), (2, tokens, H, K), (2, tokens, H, R), (C, H, K), (C, H, K)]
    given = [torch.randn(shape, device="cuda").to(torch.bfloat16) for shape in shapes]
    given[4:] = [x * C**-0.5 for x in given[4:]]
    pos: Any = torch.tensor([S - 40, S - 1], device="cuda") if slots else S - tokens
    asked, kept = [], module.are_halved
    monkeypatch.setattr(module, "are_halved", lambda *x: asked.append(kept(*x)) or asked[-1])
    special = module.mla_memory_fold(*given, pos=pos)
    if torch.cuda.get_device_capability() == (9, 0):
        assert asked == [True]
    monkeypatch.setattr(module, "are_halved", lambda *x: False)
    usual = module.mla_memory_fold(*given, pos=pos)
    wide = [x.double() for x in given]
    if slots:
        ends = [S - 39, S]
        of_each = [[x[n : n + 1, :end] for x in wide[:2]] for n, end in enumerate(ends)]
        rest = [[x[n : n + 1] for x in wide[2:4]] + wide[4:] for n in range(2)]
    else:
        of_each, rest = [wide[:2]], [wide[2:]]
    exact = torch.cat([attended(*a, *b) for a, b in zip(of_each, rest, strict=True)])
    errors = [(x.double() - exact).norm() for x in (special, usual)]
    assert errors[0] <= 1.2 * errors[1] + 1e-3 * exact.norm()
    assert errors[0] <= 6e-3 * exact.norm()


def attended(
    c: Tensor, k_r: Tensor, q_c: Tensor, q_r: Tensor, W_UK: Tensor, W_UV: Tensor
) -> Tensor:
    """The same by all pairs, of keys and values of each head."""
    k, v = (torch.einsum("bsc,chk->bshk", c, W) for W in (W_UK, W_UV))
    score = torch.einsum("bthk,bshk->bhts", q_c, k) + torch.einsum("bthr,bsr->bhts", q_r, k_r)
    T, S = score.shape[2:]
    seen = torch.ones(T, S, device=c.device, dtype=torch.bool).tril(S - T)
    score = score / (q_c.shape[-1] + q_r.shape[-1]) ** 0.5
    weights = torch.softmax(score.masked_fill(~seen, float("-inf")), -1)
    return torch.einsum("bhts,bshv->bthv", weights, v)
