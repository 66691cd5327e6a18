"""A NaN in a token stays in its sequence and in its row of a batch; where the first one comes from
is found by token and value."""

from __future__ import annotations

import pytest
import torch

import archc

TEXT = """layer Rooted(d, K):
    input x[d]
    param W[d, K]
    root = sqrt(x @ W + 1)
    chunk: sequential
    recurrence S[K]:
        rate = log(4 - S[t-1] - root)
        S[t] = 0.5 * S[t-1] + rate
        o = S[t] * root
    output o
"""

SPECS = {
    "gla": {"d": 8, "H": 2},
    "kda": {"d": 8, "H": 2, "K": 4, "V": 4, "r": 4},
    "mlstm": {"d": 8, "H": 2, "K": 4, "V": 4},
    "mamba": {"d": 8, "D": 8, "N": 2, "r": 2},
    "lstm": {"d": 8},
}


@pytest.mark.parametrize("backend", ["eager", pytest.param("triton", marks=pytest.mark.slow)])
@pytest.mark.parametrize("spec", SPECS)
def test_a_nan_stays_in_its_sequence(spec: str, backend: str) -> None:
    """Outputs, states and gradients of all others are what they are without it."""
    torch.manual_seed(0)
    known = {arg.name for arg in archc.load(spec).layer.args}
    sizes = {name: size for name, size in SPECS[spec].items() if name in known}
    module = archc.load(spec).module(**sizes, backend=backend)
    borders = torch.tensor([0, 20, 41, 70])
    for packed in (True, False):
        x = torch.randn(1 if packed else 3, 70 if packed else 20, 8)
        bad = x.clone()
        bad[(0, 30) if packed else (1, 10)] = torch.nan
        found = []
        for given in (x, bad):
            given.requires_grad_()
            more = {"cu_seqlens": borders} if packed else {}
            y, state = module(given, return_state=True, **more)
            (dx,) = torch.autograd.grad(y.sum(), given)
            others = (slice(None), [*range(20), *range(41, 70)]) if packed else [0, 2]
            found.append([y[others], dx[others], *(part[[0, 2]] for part in state)])
            assert y.isnan().any() == dx.isnan().any() == (given is bad)
        torch.testing.assert_close(*found, rtol=0, atol=0)


def test_the_first_nan_by_token_and_value() -> None:
    """Of what is computed for all tokens at once, and of what a recurrence does at one."""
    module = archc.parse(TEXT).module(d=2, K=2, dtype=torch.float64)
    module.W.data.copy_(torch.eye(2))
    x = torch.zeros(3, 40, 2, dtype=torch.float64)
    assert archc.first_nan(module, x) is None
    x[2, 21, 1] = 9.0
    found = archc.first_nan(module, x)
    assert (found.value, found.token, found.row) == ("rate", 21, 2)
    assert "`rate` is NaN at token 21 of row 2: <text>:7" in str(found)
    x[1, 20, 0] = -2.0
    found = archc.first_nan(module, x=x)
    assert (found.value, found.token, found.row) == ("root", 20, 1)
    x[0, 20, 0] = torch.nan
    assert archc.first_nan(module, x).value == "x"


def test_the_first_nan_of_a_model() -> None:
    """Layers that are called have their paths; what is the same for all tokens has no token."""
    model = archc.load("gla_block").module(d=8, H=2)
    x = torch.randn(2, 20, 8)
    assert archc.first_nan(model, x) is None
    (name,) = [name for name, _ in model.named_parameters() if name.endswith("W_a2")]
    model.get_parameter(name).data[0, 0, 0] = torch.nan
    found = archc.first_nan(model, x)
    assert (found.value, found.token, found.row) == (name, None, None)


def test_a_module_of_another_maker() -> None:
    with pytest.raises(ValueError, match="was not made by"):
        archc.first_nan(torch.nn.Linear(2, 2), torch.ones(1, 2))
