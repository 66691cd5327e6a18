"""Every bundled spec, elaborated and simplified: in order, equal in meaning and gradients."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from archc.algebra import merge, rules
from archc.algebra.simplify import simplify
from archc.elaborate.elaborate import elaborate
from archc.ir import layer as ir
from archc.ir.initial import sample_layer
from archc.ir.meaning import evaluate
from archc.ir.rewrite import rewrite
from archc.ir.sizes import Number, resolve_sizes
from archc.ir.sizes import evaluate as number
from archc.ir.verify import verify
from archc.source import Source
from archc.specfile import bundled, import_source, read
from archc.syntax.parse import parse

SMALL = {
    "d": 12, "e": 7, "H": 2, "G": 1, "K": 4, "V": 4, "D": 5, "N": 3, "C": 6, "R": 4, "Q": 6, "f": 8,
    "r": 3, "n": 2, "w": 3, "HI": 2, "KI": 4, "size": 2, "stride": 1, "pick": 2, "vocab": 11,
    "experts": 3, "active": 2, "width": 3, "base": 100,
}  # fmt: skip
DEPTH = {
    "lfm2": {"attention": [1]}, "kimi_linear": {"full": [1]}, "lm": {}, "qwen3_next": {"full": [1]},
    "deepseek_v3": {"first": 1}, "gemma3": {}, "gpt_oss": {}, "mamba2_lm": {},
}  # fmt: skip
"""Models, with the options that fit two layers."""

OWN = {
    "deepseek_v3": {"experts": 6, "groups": 3, "kept": 2},
    "mamba2_lm": {"P": SMALL["d"]},
    "qwen3_next": {"K": 8, "key_heads": 1, "heads": 2, "key": 4, "value": 4},
}
"""Sizes that a spec's own conditions ask for, in place of `SMALL`."""


@cache
def spec(name: str) -> ir.Layer:
    """A bundled spec's layer; a model has two layers of its stack."""
    given = {"L": 2, **DEPTH[name]} if name in DEPTH else {}
    return elaborate(parse(read(name)), None, given, import_source)


def small(name: str) -> dict[str, Number]:
    """A small size wherever the spec leaves or allows one."""
    layer, wanted = spec(name), SMALL | OWN.get(name, {})
    free = [arg for arg in layer.args if arg.symbol is not None]
    return resolve_sizes(layer, {arg.name: wanted[arg.name] for arg in free if arg.name in wanted})


def inputs(layer: ir.Layer, sizes: dict[str, Number], length: int) -> dict[str, Tensor]:
    """Random inputs: 2 sequences of `length` tokens, and of 4 in any other sequence."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for _, op in layer.inputs:
        known = {**sizes, "batch": 2, "T#": length, "T_m#": 4}
        shape = [int(number(axis.size, known)) for axis in op.type.axes]
        if op.type.dtype == "int":
            found[op.name] = torch.randint(0, SMALL["vocab"], shape, generator=generator)
        else:
            found[op.name] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return found


@pytest.mark.parametrize("name", bundled())
def test_a_spec_keeps_its_meaning_and_gradients(name: str) -> None:
    layer = spec(name)
    verify(layer)
    simple, sizes = simplify(layer), small(name)
    given, params = inputs(layer, sizes, 6), sample_layer(layer, sizes)
    leaves = [p.requires_grad_() for p in params.values()]
    outcomes = []
    for each in (layer, simple):
        found = evaluate(each, given, params, sizes)
        total = sum((value.square().sum() for value in found.outputs.values()), torch.zeros(()))
        gradients = torch.autograd.grad(total, leaves, materialize_grads=True)
        outcomes.append([*found.outputs.values(), *found.states.values(), *gradients])
    for old, new in zip(*outcomes, strict=True):
        assert old.isfinite().all()
        assert torch.allclose(new, old, rtol=1e-8, atol=1e-10 * (1 + old.abs().max().item()))


@pytest.mark.parametrize("length", [0, 1])
@pytest.mark.parametrize("name", bundled())
def test_a_spec_takes_no_token_or_one(name: str, length: int) -> None:
    layer = spec(name)
    sizes = small(name)
    params = sample_layer(layer, sizes)
    whole = evaluate(layer, inputs(layer, sizes, 6), params, sizes)
    found = evaluate(layer, inputs(layer, sizes, length), params, sizes)
    for key, value in found.outputs.items():
        if "t" in layer.graph[layer.graph.outputs[key]].type.names:
            assert value.shape == (2, length, *whole.outputs[key].shape[2:])
            assert value.isfinite().all()
    assert {key: value.shape for key, value in found.states.items()} == {
        key: value.shape for key, value in whole.states.items()
    }


RULES = (
    merge.share,
    merge.drop_neutral,
    merge.join_constants,
    rules.drop_delta,
    rules.distribute,
    rules.reassociate,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_rule_has_a_use_in_some_spec(rule: object) -> None:
    assert any(rewrite(spec(name), [rule]) is not spec(name) for name in bundled())


def test_values_that_are_written_twice_are_captured_once() -> None:
    text = """layer Twice(d, K):
    input x[d]
    param W[d, K]
    a = x @ W
    b = x @ W
    recurrence S[K, K']:
        S[t] = S[t-1] + a @ b.T
        o = S[t] @ a
    output o"""
    layer = elaborate(parse(Source("twice.arch", text)), None, {}, import_source)
    before, after = (
        next(node.op for node in each.graph if isinstance(node.op, ir.Recurrence))
        for each in (layer, simplify(layer))
    )
    assert (before.captures, after.captures) == (("a", "b"), ("a",))
