"""Recurrences in both directions, beside torch's; two sequences of which each reads the other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import archc
from tests.newcomers.agreement import HERE, leaf, slopes

SPEC = archc.parse(
    (HERE / "gru.arch").read_text("utf-8")
    + """
layer BothWays(d, N):
    input x[d]
    onward = GRU(d, N)
    back = GRU(d, N)
    output y[N] = onward(x)
    output z[N] = reversed(back(reversed(x)))
"""
)


def gru(module: torch.nn.Module) -> torch.nn.Module:
    """torch's GRU in both directions with the weights of ours."""
    cell = torch.nn.GRU(4, 3, batch_first=True, bidirectional=True, dtype=torch.float64)
    own = {name: value.detach() for name, value in module.named_parameters()}
    for side, ending in (("gru", "l0"), ("gru_2", "l0_reverse")):
        p = {name.removeprefix(f"{side}."): value for name, value in own.items()}
        weights = {
            "weight_ih": torch.cat([p["W_r"].T, p["W_z"].T, p["W_n"].T]),
            "weight_hh": torch.cat([p["U_r"].T, p["U_z"].T, p["U_n"].T]),
            "bias_ih": torch.zeros(9, dtype=torch.float64),
            "bias_hh": torch.cat([torch.zeros(6, dtype=torch.float64), p["b_n"]]),
        }
        for name, value in weights.items():
            getattr(cell, f"{name}_{ending}").data = value
    return cell


@pytest.mark.parametrize("backend", ["eager", "triton"])
def test_a_gated_unit_in_both_directions(backend: str) -> None:
    """Values and gradients of the input; packed and padded sequences as each by itself."""
    module = SPEC.module(d=4, N=3, dtype=torch.float64, backend=backend)
    cell, x = gru(module), leaf([2, 7, 4], 0)
    want = cell(x)[0]

    def both(**more: Tensor) -> Tensor:
        return torch.cat(module(**more), -1)

    torch.testing.assert_close(both(x=x), want)
    torch.testing.assert_close(slopes(both(x=x), [x]), slopes(want, [x]))
    packed = both(x=x[:1], cu_seqlens=torch.tensor([0, 3, 7]))
    torch.testing.assert_close(packed[:, :3], cell(x[:1, :3])[0])
    torch.testing.assert_close(packed[:, 3:], cell(x[:1, 3:])[0])
    padded = both(x=x, attention_mask=torch.arange(7) >= torch.tensor([[0], [4]]))
    torch.testing.assert_close(padded[0], want[0])
    torch.testing.assert_close(padded[1:, 4:], cell(x[1:, 4:])[0])


def test_what_runs_backwards_is_not_continued() -> None:
    module = SPEC.module(d=4, N=3)
    with pytest.raises(ValueError, match="`z` has the tokens in another order"):
        module(torch.zeros(1, 2, 4), return_state=True)


def test_the_direction_of_a_block_stays() -> None:
    """A value inside of a block is that of one token."""
    text = """layer L(d):
    input x[d]
    recurrence h[d]:
        h[t] = h[t-1] / 2 + reversed(x)
    output h
"""
    with pytest.raises(archc.ArchError, match="reversed") as caught:
        archc.parse(text)
    assert "above it" in str(caught.value)


def joint(x: Tensor, c: Tensor, module: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """Torch's attention of both sequences, one behind the other, each by its own weights."""
    own, other = module.get_submodule("project"), module.get_submodule("project_2")
    read, into = torch.nn.functional.scaled_dot_product_attention, "bthk, hkd -> btd"

    def made(z: Tensor, by: torch.nn.Module, name: str) -> Tensor:
        value = torch.einsum("btd, dhk -> bhtk", z, by.get_parameter(f"W_{name}"))
        if name == "v":
            return value
        norm = torch.nn.functional.rms_norm(value, value.shape[-1:], eps=1e-6)
        return norm * by.get_parameter(f"g_{name}")

    both = [torch.cat([made(x, own, n), made(c, other, n)], 2) for n in "qkv"]
    found = read(*both).transpose(1, 2)
    y = x + torch.einsum(into, found[:, : x.shape[1]], module.get_parameter("W_o"))
    return y, c + torch.einsum(into, found[:, x.shape[1] :], module.get_parameter("U_o"))


def test_two_sequences_that_read_each_other() -> None:
    """A layer along another sequence reads the own tokens: values, gradients, packed sequences with
    a row of the other each, and no state, as all tokens are read."""
    spec = archc.load(str(HERE / "joint_attention.arch"))
    module = spec.module(d=4, e=5, H=2, K=3, dtype=torch.float64)
    x, c = leaf([2, 7, 4], 0), leaf([2, 5, 5], 1)
    by = [x, c, *module.parameters()]
    got, wanted = (
        torch.cat([y.flatten(), z.flatten()]) for y, z in (module(x, c), joint(x, c, module))
    )
    torch.testing.assert_close(got, wanted)
    torch.testing.assert_close(slopes(got, by), slopes(wanted, by))
    y, z = module(x[:1], c, cu_seqlens=torch.tensor([0, 3, 7]))
    for row, (begin, end) in enumerate([(0, 3), (3, 7)]):
        Y, Z = joint(x[:1, begin:end], c[row : row + 1], module)
        torch.testing.assert_close(y[:, begin:end], Y)
        torch.testing.assert_close(z[row : row + 1], Z)
    with pytest.raises(ValueError, match="reads tokens that come later"):
        module(x, c, return_state=True)


READS = """layer Reads(d):
    input x[d]
    input c[d] along m
    param W[d, d']
    attend all m:
        o = softmax(x[t].T @ c[m]) @ c[m]
    output y[d] = o @ W
"""


def test_what_another_sequence_reads_of_the_tokens_is_not_continued() -> None:
    """Not by the layer that hands them over, and not by one that calls it."""
    both = """layer Both(d):
    input x[d]
    input c[d] along m
    output z[d] = Reads(d)(c, x)
"""
    outer = """layer Outer(d):
    input x[d]
    input c[d] along m
    output z[d] = Both(d)(x, c)
"""
    for text in (READS + both, READS + both + outer):
        module = archc.parse(text).module(d=2)
        with pytest.raises(ValueError, match="reads all tokens along another sequence"):
            module(torch.zeros(1, 3, 2), torch.zeros(1, 2, 2), return_state=True)


def test_tokens_are_not_another_sequence_for_their_own_layer() -> None:
    text = READS + "layer L(d):\n    input x[d]\n    output y[d] = Reads(d)(x, x)\n"
    with pytest.raises(archc.ArchError, match="is along `m`, and gets tokens"):
        archc.parse(text)
