"""The gradient of every bundled spec that calls no other layer, as one graph, against autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from archc.algebra.simplify import simplify
from archc.autodiff.builder import NoGradient
from archc.autodiff.reverse import gradient
from archc.ir import layer as ir
from archc.ir.graph import Graph, Type
from archc.ir.initial import sample_layer
from tests.algebra.test_specs import inputs, small, spec
from tests.autodiff.agreement import agree

REFUSED = {"path_fox": "x", "path": "x"}
"""Specs with an op that has no gradient, and why."""


def with_inputs(layer: ir.Layer) -> Graph:
    """A layer's graph, its parameters as inputs."""
    graph = layer.graph.copy()
    for id, op in layer.params:
        graph.replace_op(id, ir.Input(op.name, Type(op.axes)))
    return graph


def case(name: str) -> tuple[Graph, dict[str, torch.Tensor], dict[str, Any]]:
    """The simplified graph of a spec, random values for its inputs, and sizes."""
    layer = simplify(spec(name))
    sizes = small(layer)
    values = {**inputs(layer, sizes, 5), **sample_layer(layer, sizes)}
    return with_inputs(layer), values, {**sizes, "T_seen": 5}
