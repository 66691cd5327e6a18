"""Library functions, written in `.arch`, against torch's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.elaborate.specs import outputs

FUNCTIONS: list[tuple[str, Callable[[Tensor], Tensor]]] = [
    ("silu(x)", F.silu),
    ("gelu(x)", F.gelu),
    ("gelu_tanh(x)", lambda x: F.gelu(x, approximate="tanh")),
    ("elu(x)", F.elu),
    ("squared_relu(x)", lambda x: F.relu(x) ** 2),
    ("softcap(x, 2)", lambda x: 2 * torch.tanh(x / 2)),
    ("dropout(x, 0.5)", lambda x: x),
    ("l2norm[K](x, 0)", lambda x: F.normalize(x, dim=-1, eps=0.0)),
    ("rmsnorm[K](x, 1e-6)", lambda x: F.rms_norm(x, (4,), eps=1e-6)),
    ("rmsnorm[H, K](x, 1e-6)", lambda x: F.rms_norm(x, (2, 4), eps=1e-6)),
    ("layernorm[K](x)", lambda x: F.layer_norm(x, (4,), eps=1e-5)),
    ("softmax[K](x)", lambda x: x.softmax(-1)),
    ("softmax[H](x)", lambda x: x.softmax(-2)),
    ("log(1 + exp(x))", F.softplus),
    ("max[K](x) - min[K](x)", lambda x: x.amax(-1) - x.amin(-1)),
    ("prod[K](x)", lambda x: x.prod(-1)),
    ("mean[H, K](x)", lambda x: x.mean((-1, -2))),
    ("x ** 2 % 3", lambda x: x.square() % 3),
    ("where(x > 0 and x < 1, x, -x)", lambda x: torch.where((x > 0) & (x < 1), x, -x)),
]


@pytest.mark.parametrize(("expression", "reference"), FUNCTIONS, ids=[f for f, _ in FUNCTIONS])
def test_function(expression: str, reference: Callable[[Tensor], Tensor]) -> None:
    text = f"layer L(H, K):\n    input x[H, K]\n    output y = {expression}\n"
    made, given = outputs(text, H=2, K=4)
    torch.testing.assert_close(made, reference(given["x"]), rtol=1e-12, atol=1e-12)


def rotate(x: Tensor, base: float, half: bool) -> Tensor:
    """Rotary positions by complex numbers, as RoFormer defines them."""
    size = x.shape[-1]
    angle = torch.arange(x.shape[1])[:, None] * base ** (-2.0 * torch.arange(size // 2) / size)
    turn = torch.polar(torch.ones_like(angle), angle).to(torch.complex128)[None, :, None]
    pairs = x.unflatten(-1, (2, -1)).transpose(-1, -2) if half else x.unflatten(-1, (-1, 2))
    turned = torch.view_as_real(torch.view_as_complex(pairs.contiguous()) * turn)
    return (turned.transpose(-1, -2) if half else turned).flatten(-2)


@pytest.mark.parametrize("half", [False, True])
def test_rope_turns_pairs(half: bool) -> None:
    name = "rope_half" if half else "rope"
    text = f"layer L(H, K, base = 100):\n    input x[H, K]\n    output y = {name}[K](x, base)\n"
    made, given = outputs(text, H=2, K=6)
    torch.testing.assert_close(made, rotate(given["x"], 100.0, half), rtol=1e-6, atol=1e-6)


def test_rope_without_base_changes_nothing() -> None:
    text = "layer L(K):\n    input x[K]\n    output y = rope[K](x, none)\n"
    made, given = outputs(text, K=4)
    assert torch.equal(made, given["x"])


def test_shortconv_is_a_causal_convolution() -> None:
    text = "layer L(d, width = 3):\n    input x[d], w[d, width]\n    output y = shortconv(x, w)\n"
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 6, 5, generator=generator, dtype=torch.float64)
    w = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    made, _ = outputs(text, {"x": x, "w": w.expand(2, 6, 5, 3)}, d=5)
    padded = F.pad(x.transpose(1, 2), (2, 0))
    torch.testing.assert_close(made, F.conv1d(padded, w[:, None], groups=5).transpose(1, 2))


def test_sinkhorn_makes_a_doubly_stochastic_matrix() -> None:
    text = "layer L(n, steps = 40):\n    input A[n, n']\n    output P = sinkhorn(A, steps)\n"
    made, _ = outputs(text, n=4)
    ones = torch.ones(2, 6, 4, dtype=torch.float64)
    torch.testing.assert_close(made.sum(-1), ones)
    torch.testing.assert_close(made.sum(-2), ones)
    assert (made > 0).all()
