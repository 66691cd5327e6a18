"""The memory of a layer alone: the values that enter it, by the spec's names, give its results."""

from __future__ import annotations

import pytest
import torch

import archc
from archc.algebra import cut
from archc.ir import layer as ir
from archc.ir.initial import sample_layer
from archc.ir.meaning import Evaluation, evaluate
from archc.ir.sizes import resolve_sizes
from archc.ir.verify import verify
from tests.specs.cases import SMALL, inputs

ENTER = {
    "kda": ("q k v log_alpha beta", "o"),
    "gla": ("q k v alpha", "o"),
    "mlstm": ("q k v li lf", "o"),
    "mesa": ("q k v beta gamma lam", "o"),
    "ssm_selective": ("u dt log_a b c", "o"),
    "attention": ("q k v", "o"),
    "cross_attention": ("q k v", "o"),
    "path_fox": ("q k v w beta log_f", "o"),
    "linear_attention_full": ("q k v", "o"),
    "dsa": ("q_c q_r k_c k_r v qi ki wi", "o"),
    "gated_delta_product": ("q k v log_alpha beta", "o"),
    "slstm": ("a_i a_f a_z a_o R_i R_f R_z R_o", "h"),
}
"""For specs: the values that enter their memory, and its result."""


def evaluated(name: str) -> tuple[ir.Layer, Evaluation, dict[str, torch.Tensor]]:
    """A layer, what the oracle finds in it, and every parameter."""
    layer = archc.load(name, **SMALL[name]).layer
    sizes = resolve_sizes(layer, {})
    params = sample_layer(layer, sizes)
    return layer, evaluate(layer, inputs(layer, SMALL[name], 2, 6, seed=2), params, sizes), params


@pytest.mark.parametrize("name", ENTER)
def test_op_gives_the_results_of_the_memory(name: str):
    entering, result = ENTER[name]
    layer, found, params = evaluated(name)
    memory = cut.op(layer)
    verify(memory)
    assert [op.name for _, op in memory.inputs] == entering.split()
    assert memory.params == () and result in memory.graph.outputs
    values = {**params, **found.values}
    given = {
        key: values[key.removeprefix("log_")].log() if key not in values else values[key]
        for key in entering.split()
    }
    again = evaluate(memory, given, {}, resolve_sizes(layer, {}))
    torch.testing.assert_close(again.outputs[result], found.values[result], rtol=1e-10, atol=1e-12)
    for state, value in again.states.items():
        torch.testing.assert_close(value, found.states[state], rtol=1e-10, atol=1e-12)


def test_fused_op_begins_at_the_nearest_weights():
    fused = cut.fused_op(archc.load("kda").layer)
    verify(fused)
    names = [op.name for _, op in fused.inputs]
    assert names == ["q", "k", "v", "alpha", "beta", "A_log", "dt_bias"]
    assert not fused.params and not any(isinstance(n.op, ir.Window) for n in fused.graph)


def test_fused_op_keeps_what_is_tokenwise():
    layer, found, params = evaluated("gla")
    fused = cut.fused_op(layer)
    names = [op.name for _, op in fused.inputs]
    assert names == ["q", "k", "v", "alpha", "b_a"]
    x = inputs(layer, SMALL["gla"], 2, 6, seed=2)["x"]
    projected = torch.einsum("btd,dr,rhk->bthk", x, params["W_a1"], params["W_a2"])
    given = {**{n: found.values[n] for n in "qkv"}, "alpha": projected, "b_a": params["b_a"]}
    again = evaluate(fused, given, {}, resolve_sizes(layer, {}))
    torch.testing.assert_close(again.outputs["o"], found.values["o"], rtol=1e-10, atol=1e-12)


def test_what_lies_between_two_memories_belongs_to_them():
    memory = cut.op(archc.load("dsa").layer)
    kinds = [type(node.op) for node in memory.graph]
    assert kinds.count(ir.Attend) == 3 and ir.Top in kinds  # scores, tokens chosen, their loss


@pytest.mark.parametrize("name", ["swiglu", "transformer", "moe"])
def test_a_layer_without_a_memory_is_refused(name: str):
    layer = archc.load(name).layer
    with pytest.raises(cut.NoMemory, match="has no recurrence or attention of its own"):
        cut.op(layer)
    with pytest.raises(cut.NoMemory):
        cut.fused_op(layer)


def test_the_layer_itself_stays_as_it_is():
    layer = archc.load("kda").layer
    nodes = len(layer.graph)
    cut.fused_op(layer)
    assert len(layer.graph) == nodes and len(layer.params) == 15


@pytest.mark.parametrize("name", ["kda", "ssm_selective", "slstm"])
def test_what_enters_and_the_memory_are_the_layer(name: str):
    layer, found, params = evaluated(name)
    memory, before = cut.op(layer), cut.entering(layer)
    verify(before)
    given = inputs(layer, SMALL[name], 2, 6, seed=2)
    entering = evaluate(before, given, params, resolve_sizes(layer, {})).outputs
    assert [*entering] == [op.name for _, op in memory.inputs]
    again = evaluate(memory, entering, {}, resolve_sizes(layer, {}))
    result = ENTER[name][1]
    torch.testing.assert_close(again.outputs[result], found.values[result], rtol=1e-10, atol=1e-12)
