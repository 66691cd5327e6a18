"""The gradient of every bundled spec that calls no other layer, as one graph, and of the chunked
forms of its recurrences, against autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from archc.algebra.simplify import simplify
from archc.autodiff.gradient_builder import NoGradient
from archc.autodiff.reverse import gradient
from archc.ir import layer as ir
from archc.ir.graph import Graph, Type
from archc.ir.initial import sample_layer
from archc.specfile import bundled, read
from tests.algebra.test_specs import inputs, small, spec
from tests.autodiff.agreement import agree
from tests.recurrence.forms import random_inputs, recurrences, sizes_of

CALLERS = {
    "deepseek_v3", "gemma3", "gla_block", "gpt", "gpt_block", "gpt_oss", "hyper_connected",
    "kimi_linear", "lfm2", "lm", "mamba2_lm", "mhc", "qwen3_next", "transformer", "xlstm",
}  # fmt: skip
"""Specs that call other layers, which no graph has a gradient of; listed, as to look took each
worker seconds before its first test."""
ALONE = [name for name in bundled() if name not in CALLERS]
REFUSED = ("path", "path_fox")
"""Specs with products of matrices along a path, which have no rule."""


def with_inputs(layer: ir.Layer) -> Graph:
    """A layer's graph, its parameters as inputs."""
    graph = layer.graph.copy()
    for id, op in layer.params:
        graph.replace_op(id, ir.Input(op.name, Type(op.axes)))
    return graph


def case(name: str) -> tuple[Graph, dict[str, torch.Tensor], dict[str, Any]]:
    """The simplified graph of a spec, random values for its inputs, and sizes."""
    layer = simplify(spec(name))
    sizes = small(name)
    values = {**inputs(layer, sizes, 5), **sample_layer(layer, sizes)}
    return with_inputs(layer), values, {**sizes, "T_seen#": 5}


@pytest.mark.parametrize("name", [name for name in ALONE if name not in REFUSED])
def test_a_spec(name: str) -> None:
    graph, values, sizes = case(name)
    agree(graph, values, sizes=sizes, ways=(True,))


@pytest.mark.parametrize("name", REFUSED)
def test_a_spec_with_products_along_a_path_is_refused(name: str) -> None:
    graph, _, _ = case(name)
    wanted = [n.op.name for n in graph if isinstance(n.op, ir.Input)]
    with pytest.raises(NoGradient, match="a product along a path"):
        gradient(graph, wanted, list(graph.outputs))


RECURRENT = [name for name in ALONE if "\n    recurrence " in read(name).text]


CELLS = ("lstm", "slstm")
"""What goes through a function from token to token has no chunks."""


@pytest.mark.default("delta", "gla", "mamba", "mlstm", "lstm", "mesa", "rwkv7")
@pytest.mark.parametrize("name", RECURRENT)
def test_the_chunked_forms_of_a_spec(name: str) -> None:
    """Chunks of 3 rows, and no token, or more than a chunk."""
    found = [derived.graph for _, _, derived in recurrences(spec(name))]
    forms = [form for form in found if form is not None]
    assert found and bool(forms) == (name not in CELLS)
    for form in forms:
        for length in (0, 5):
            sizes = sizes_of(form, length, 3)
            values = {
                name: -value.abs() if name.startswith(("log", "g")) else value
                for name, value in random_inputs(form, sizes, {}).items()
            }
            agree(form, values, sizes=sizes, tolerance=1e-7, ways=(True,))
