"""What a layer costs: counts by hand, published sizes, and what the modules really keep."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import archc
from archc.algebra.absorb import absorb
from archc.algebra.simplify import simplify
from archc.ir import layer as ir
from archc.ir.count import cost, weight_products
from archc.ir.sizes import evaluate, resolve_sizes
from archc.specfile import bundled
from tests.specs.cases import SMALL, inputs

d, H, G, K, V, C, Q, R, r, f, n = 210, 8, 2, 34, 31, 37, 41, 46, 43, 47, 53
"""Sizes for which no two counts are equal by accident; n tokens."""


def counted(
    spec: archc.Spec, tokens: int = n, absorbed: bool = False, **sizes: int
) -> tuple[float, ...]:
    """Operations a token, and numbers kept: in states, as last tokens, for each token."""
    layer = simplify(spec.layer)
    found = cost(absorb(layer) if absorbed else layer)
    known = resolve_sizes(spec.layer, sizes) | dict.fromkeys(("T#", "T_seen#", "T_m#"), tokens)
    flops, *kept = (evaluate(e, known) for e in (found.flops, found.state, found.tail, found.cache))
    return (flops / tokens, *kept)


def test_a_gated_feed_forward_layer():
    """Three matrices of d x f; sigmoid and two products for each of f."""
    assert counted(archc.load("swiglu"), d=d, f=f) == (6 * d * f + 3 * f, 0, 0, 0)


@pytest.mark.parametrize(
    ("name", "flops"),
    [("swiglu", 6 * d * f), ("attention", 4 * d * H * K + 4 * d * G * K), ("lstm", 8 * d * d)],
)
def test_products_with_weights(name: str, flops: int):
    """No scores, no recurrent matrices."""
    layer = archc.load(name).layer
    sizes = {"d": d, "f": f, "H": H, "G": G, "K": K, "D": d}
    own = {arg.name: sizes[arg.name] for arg in layer.args if arg.name in sizes}
    assert evaluate(weight_products(layer), resolve_sizes(layer, own) | {"T#": n}) == n * flops


def test_products_with_weights_of_called_layers():
    known = resolve_sizes(archc.load("transformer").layer, {"d": d, "H": H, "G": G, "K": K, "f": f})
    flops = evaluate(weight_products(archc.load("transformer").layer), known | {"T#": n})
    assert flops == n * (4 * d * H * K + 4 * d * G * K + 6 * d * f)


def test_attention():
    """Four projections; scores and values of n tokens; 5 for the softmax and 1 for the scale of
    each score. Keys and values of the groups are kept. A rotation is 4 an element."""
    flops = 4 * d * H * K + 4 * d * G * K + 4 * n * H * K + 6 * n * H
    sizes = {"d": d, "H": H, "G": G, "K": K}
    assert counted(archc.load("attention", base=None), **sizes) == (flops, 0, 0, 2 * G * K)
    assert counted(archc.load("attention"), **sizes)[0] == flops + 4 * (H + G) * K


def test_attention_of_a_latent():
    """Keys and values of every head are kept as they are read, and the key that they share once;
    or, in place of the keys and values, the latent."""
    sizes = {"d": d, "H": H, "K": K, "V": V, "C": C, "Q": Q, "R": R}
    projections = 2 * d * (C + R + Q) + 2 * C * H * (K + V) + 2 * Q * H * (K + R) + 2 * H * V * d
    scores = 2 * n * H * (K + R + V) + 7 * n * H
    norms, rotations = (4 * C + 2) + (4 * Q + 2), 4 * R * (H + 1)
    flops = projections + scores + norms + rotations
    assert counted(archc.load("mla"), **sizes) == (flops, 0, 0, H * (K + V) + R)
    assert counted(archc.load("mla"), absorbed=True, **sizes) == (flops, 0, 0, C + R)


def test_a_delta_rule_with_a_decay_per_channel():
    """The state is decayed (1), read (2), corrected and written (2 each), read again (2)."""
    width = 5
    sizes = {"d": d, "H": H, "K": K, "V": V, "r": r, "width": width}
    memory = 9 * H * K * V + H * K + H * V  # the update, beta * k and the scale of o
    projections = 2 * d * (2 * H * K + 2 * H * V + H + 2 * r) + 2 * r * H * (K + V)
    short = 2 * width * H * (2 * K + V)
    silus, norms_of_keys = 2 * H * (2 * K + V), 2 * (3 * H * K + 2 * H)
    gates = 4 * H * K + H + H * V
    norm_of_o = 5 * H * V + 2 * H  # with the gate and the gain
    flops = memory + projections + short + silus + norms_of_keys + gates + norm_of_o
    kept = (H * K * V, (width - 1) * H * (2 * K + V), 0)
    assert counted(archc.load("kda"), **sizes) == (flops, *kept)


def test_a_window_reads_and_keeps_no_more_than_it_shows():
    spec = archc.parse(
        "layer W(d):\n    input q[d], k[d]\n    attend t - 4 < s <= t:\n"
        "        o = softmax(q[t].T @ k[s]) @ k[s]\n    output o\n"
    )
    assert counted(spec, d=d) == (4 * (2 * d + 5 + 2 * d), 0, 3 * d, 0)
    assert counted(spec, tokens=2, d=d)[0] == 2 * (2 * d + 5 + 2 * d)


def test_what_is_not_chosen_costs_nothing():
    """Every expert is scored, n of them run."""
    spec = archc.parse(
        "layer E(d, N, n):\n    input x[d]\n    param W_r[d, N]; W[N, d, d']; U[N, d', d]\n"
        "    p = x @ W_r\n    route e in top(n, p):\n        y = x @ W[e] @ U[e]\n    output y\n"
    )
    two, three = (counted(spec, d=d, N=16, n=chosen)[0] for chosen in (2, 3))
    assert 4 * d * d <= three - two < 4 * d * d + 4 * d
    assert 2 * d <= counted(spec, d=d, N=17, n=2)[0] - two < 2 * d + 8


@pytest.mark.parametrize(("name", "billions"), [("kimi_linear", 3), ("xlstm", 7)])
def test_published_models(name: str, billions: float):
    """Two operations for every parameter that a token meets, which their papers count."""
    flops = counted(archc.load(name), **({"vocab": 163840} if name == "kimi_linear" else {}))[0]
    assert flops / 2e9 == pytest.approx(billions, rel=0.15)


@pytest.mark.default(
    "attention",
    "dsa",
    "fox",
    "kda",
    "mamba",
    "mlstm",
    "lstm",
    "lm",
    "moe",
    "mom",
    "cross_attention",
)
@pytest.mark.parametrize("name", [name for name in bundled() if name in SMALL])
def test_modules_keep_as_much_as_is_counted(name: str):
    """Numbers in a module's state after two lengths of a sequence; blocks come with their last."""
    spec = archc.load(name, **SMALL[name])
    module = spec.module(dtype=torch.float64)
    short, long = (kept(spec, module, tokens) for tokens in (8, 16))
    # as many tokens as `inputs` gives another sequence
    _, state, tail, cache = counted(spec, 7, absorbed=True)
    assert long - short == 8 * cache
    if not any(isinstance(node.op, ir.Window) and node.op.stride for node in spec.layer.graph):
        assert short == state + tail + 8 * cache


def kept(spec: archc.Spec, module: nn.Module, tokens: int) -> int:
    """How many numbers a module keeps after some tokens; 0 if it cannot be continued."""
    values = inputs(spec.layer, SMALL[spec.source_file.name.removesuffix(".arch")], 1, tokens, 0)
    try:
        *_, state = module(**values, return_state=True)
    except ValueError as error:
        assert "whole sequence" in str(error) or "tokens that come later" in str(error)
        return 0
    return size(state)


def size(state: object) -> int:
    """Numbers in the tensors of a state."""
    if isinstance(state, Tensor):
        return state.numel() if state.dim() > 0 else 0
    return sum(map(size, state)) if isinstance(state, tuple) else 0
