"""Modules whose products with parameters are `nn.Linear`: the same numbers, weights as [out, in],
and found by what looks for `nn.Linear` to put something else in its place."""

from __future__ import annotations

import copy
import pickle
import warnings
from functools import cache

import pytest
import torch
from torch import Tensor, nn

import archc
from archc.api import as_linear
from tests.specs.cases import SMALL, inputs
from tests.specs.references.weights import randomise
from tests.specs.test_continued import first

QUICK = {"gpt", "kda", "linear_attention_full", "moe"}
GLA = {"d": 8, "H": 2, "K": 4, "V": 3, "r": 2}


@cache
def pair() -> tuple[nn.Module, nn.Module, Tensor]:
    """A layer, the same with `nn.Linear`, and tokens for both."""
    torch.manual_seed(0)
    spec = archc.load("gla")
    plain, linear = spec.module(**GLA), spec.module(**GLA, nn_linear=True)
    linear.load_state_dict(plain.state_dict())
    return plain, linear, torch.randn(2, 6, 8)


def maps(module: nn.Module) -> dict[str, nn.Linear]:
    return {path: m for path, m in module.named_modules() if isinstance(m, nn.Linear)}


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in SMALL]
)
def test_the_same_numbers(name: str) -> None:
    spec = archc.load(name, **SMALL[name])
    plain = randomise(spec.module(dtype=torch.float64), seed=0)
    linear = as_linear(plain)
    values = inputs(spec.layer, SMALL[name], B=2, T=5, seed=1)
    given = {op.name: values[op.name] for _, op in spec.layer.inputs if not op.optional}
    wanted = first(plain(**given))
    torch.testing.assert_close(first(linear(**given)), wanted, rtol=1e-10, atol=1e-11)
    assert maps(linear) and not maps(plain)
    count = [sum(p.numel() for p in each.parameters()) for each in (plain, linear)]
    assert count[0] == count[1]


def test_weights_are_out_by_in() -> None:
    plain, linear, x = pair()
    names = {name: tuple(value.shape) for name, value in linear.state_dict().items()}
    assert names["W_q.weight"] == (8, 8) and names["W_o.weight"] == (8, 6)
    torch.testing.assert_close(linear.W_v(x).unflatten(-1, (2, 3)), torch.einsum(
        "btd,dhv->bthv", x, plain.W_v))  # fmt: skip
    other = archc.load("gla").module(**GLA, nn_linear=True)
    other.load_state_dict(linear.state_dict())
    torch.testing.assert_close(other(x), linear(x), rtol=0, atol=0)
    linear = copy.deepcopy(linear)
    linear.reset_parameters()
    assert not torch.equal(linear.W_q.weight, other.W_q.weight)


def test_states_padding_and_gradients() -> None:
    plain, linear, x = pair()
    _, state = plain(x[:, :3], return_state=True)
    _, own = linear(x[:, :3], return_state=True)
    mask = torch.tensor([[1, 1, 0], [0, 1, 1]])
    y, wanted = (m(x[:, 3:], attention_mask=mask, state=s) for m, s in
                 ((linear, own), (plain, state)))  # fmt: skip
    torch.testing.assert_close(y, wanted)
    (found,) = torch.autograd.grad(y.square().sum(), linear.W_q.weight)
    (expected,) = torch.autograd.grad(wanted.square().sum(), plain.W_q)
    torch.testing.assert_close(found, expected.permute(1, 2, 0).flatten(0, 1))


def test_copies_and_pickles() -> None:
    _, linear, x = pair()
    for made in (copy.deepcopy(linear), pickle.loads(pickle.dumps(linear))):
        torch.testing.assert_close(made(x), linear(x), rtol=0, atol=0)
        assert {*maps(made)} == {*maps(linear)}


def test_a_quantiser_finds_and_replaces_them() -> None:
    _, linear, x = pair()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        small = torch.ao.quantization.quantize_dynamic(linear, {nn.Linear}, dtype=torch.qint8)
        y = small(x)
    replaced = {p for p, m in small.named_modules() if ".dynamic." in type(m).__module__}
    assert len(replaced) == len(maps(linear)) == 7 and not maps(small)
    error = (y - linear(x)).norm() / linear(x).norm()
    assert 0 < error < 0.15  # eight bits for maps one after the other


class Adapted(nn.Module):
    """A map with a low-rank one beside it, as adapters have them."""

    def __init__(self, base: nn.Linear):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def test_adapters_learn_and_nothing_else() -> None:
    _, linear, x = pair()
    model = copy.deepcopy(linear).requires_grad_(False)
    for path, each in maps(model).items():
        setattr(model, path, Adapted(each))
    before = model(x)
    before.square().sum().backward()
    learned = {name for name, p in model.named_parameters() if p.grad is not None}
    assert learned == {f"{path}.{part}.weight" for path in maps(linear) for part in ("down", "up")}
    for path in maps(linear):
        nn.init.zeros_(getattr(model, path).up.weight)
    torch.testing.assert_close(model(x), linear(x))
    assert not torch.allclose(before, linear(x))


def test_what_needs_the_weights_themselves_says_so() -> None:
    _, linear, x = pair()
    with pytest.raises(ValueError, match=r"`W_q` is kept as nn.Linear .*made without it"):
        archc.mixer_matrix(linear, x)
