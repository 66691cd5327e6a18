"""LSTM, sLSTM and mLSTM against torch.nn.LSTM and the package xlstm."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

import archc
from tests.specs.agreement import agree
from tests.specs.references import cells
from tests.specs.references.weights import randomise

B, T, d, H, D = 2, 23, 24, 3, 8
VARIANTS = Path(__file__).parent / "variants"


def values(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_lstm() -> None:
    reference = randomise(torch.nn.LSTM(d, 16, batch_first=True, dtype=torch.float64), seed=0)
    layer = archc.load("lstm").module(d=d, D=16, dtype=torch.float64)
    layer.load_state_dict(cells.lstm_weights(reference))
    x = values(1, B, T, d)
    h, state = layer(x, return_state=True)
    with torch.no_grad():
        theirs, (_, c) = reference(x)
    agree("lstm", "torch.nn.LSTM", h, theirs)
    agree("lstm", "torch.nn.LSTM, final cell", state.c, c[0])


def test_slstm() -> None:
    layer = archc.load("slstm").module(d=d, H=H, dtype=torch.float64)
    randomise(layer, seed=0)
    x = values(2, B, T, d)
    theirs = cells.slstm(layer.state_dict(), x)
    agree("slstm", "xlstm vanilla sLSTM", layer(x), theirs)


def test_mlstm_memory() -> None:
    """Gates strong enough that the stabiliser and both sides of the denominator matter."""
    q, k, v = (values(seed, B, T, H, D) for seed in (3, 4, 5))
    li, f = 3 * values(6, B, T, H), 3 * values(7, B, T, H)
    lf = torch.nn.functional.logsigmoid(f)
    o, state = archc.load("mlstm").op(q=q, k=k / D**0.5, v=v, li=li, lf=lf)
    agree("mlstm", "xlstm mLSTM, parallel form", o, cells.mlstm(q, k, v, li, f))
    theirs, C, n, m = cells.mlstm_steps(q, k, v, li, f, start=-torch.inf, eps=0.0)
    agree("mlstm", "xlstm mLSTM, steps", o, theirs)
    for name, value in (("C", C), ("n", n), ("m", m)):
        agree("mlstm", f"xlstm mLSTM, final {name}", getattr(state, name), value)


def test_mlstm_as_packaged() -> None:
    """The package's own defaults, as a variant of the spec."""
    q, k, v = (values(seed, B, T, H, D) for seed in (3, 4, 5))
    li, f = 3 * values(6, B, T, H) - 3, 3 * values(7, B, T, H)
    layer = archc.load(str(VARIANTS / "mlstm_with_eps.arch")).module(H=H, K=D, V=D)
    o = layer(q, k / D**0.5, v, li, torch.nn.functional.logsigmoid(f))
    theirs = cells.mlstm_steps(q, k, v, li, f, start=0.0, eps=1e-6)[0]
    agree("mlstm", "xlstm mLSTM, its default eps and m = 0", o, theirs)


def test_mlstm_layer() -> None:
    layer = archc.load("mlstm").module(d=d, H=H, dtype=torch.float64)
    weights = randomise(layer, seed=0).state_dict()
    x = values(8, B, T, d)

    def heads(name: str) -> Tensor:
        return torch.einsum("btd,dhk->bthk", x, weights[name])

    gates = (x @ weights[f"w_{gate}"] + weights[f"b_{gate}"] for gate in "if")
    o = cells.mlstm(heads("W_q"), heads("W_k"), heads("W_v"), *gates)
    theirs = torch.sigmoid(heads("W_og") + weights["b_og"]) * o
    agree("mlstm", "xlstm mLSTM between torch projections", layer(x), theirs)
