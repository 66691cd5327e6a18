"""From a SPEC on the command line to the first stages of its compilation.

Passes and what writes files stay out of this module: `archc check` has no time to import them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from archc.backends.renamed import check_spelling
from archc.diagnostics import Diagnostic
from archc.elaborate.elaborate import elaborate
from archc.elaborate.last import parts_at_the_end
from archc.elaborate.ones import ones
from archc.elaborate.unread import unread
from archc.ir.layer import Layer, Recurrence
from archc.ir.layer_budget import check_budget
from archc.ir.text import called_layers
from archc.ir.verify import verify
from archc.specfile import import_source, read, split
from archc.syntax import tree
from archc.syntax.parse import parse

Given = Mapping[str, Any]
"""Sizes and options by name, as `--set` gives them."""


def warnings_of(layer: Layer, asked: bool = False) -> tuple[Diagnostic, ...]:
    """Warnings of a spec that is right but may not be meant: values that no output depends on, ones
    for the identity, and states that stay a loop, as `archc compile` says it; and that a file ends
    with a part, unless that layer was `asked` for by its name.

    Whether there is something to say is found from the layer as it is written, which takes a tenth
    of a second; what is said, from the layer that chunked forms are derived from.
    """
    parts = () if asked else parts_at_the_end(layer)
    found = (*parts, *unread(parse(layer.source)), *ones(layer))
    graphs = [each.graph for each in called_layers(layer)]
    if not any(isinstance(node.op, Recurrence) for graph in graphs for node in graph):
        return found
    from archc.numerics.gates import gates_in_logs  # passes: only where there is a recurrence
    from archc.recurrence.affine.normalize import decays
    from archc.recurrence.chunk.loops import loops

    if not loops(gates_in_logs(layer, decays)):
        return found
    from archc.compile import before_chunks

    return (*found, *loops(before_chunks(layer)))


def tree_of(spec: str) -> tree.File:
    """The tree of the whole file that `spec` names."""
    return parse(read(split(spec)[0]))


def layer_of(spec: str, given: Given) -> Layer:
    """The layer IR of what `spec` names, with the given sizes and options."""
    return layer_in(tree_of(spec), split(spec)[1], given)


def layer_and_rest(spec: str, given: Given, others: Collection[str]) -> tuple[Layer, Given]:
    """The layer IR of what `spec` names, and what is given by the names of `others`: a name that
    is a size or an option of the layer is that."""
    file = tree_of(spec)
    name = split(spec)[1] or file.decls[-1].name
    own = {each.name for decl in file.decls if decl.name == name for each in decl.params}
    rest = {key: given[key] for key in given if key in others and key not in own}
    return layer_in(file, name, {key: given[key] for key in given if key not in rest}), rest


def layer_in(file: tree.File, name: str | None, given: Given) -> Layer:
    """The layer IR of a layer of a file (None: its last), with the given sizes and options."""
    layer = elaborate(file, name, given, import_source)
    verify(layer)
    check_budget(layer)
    check_spelling(layer)
    if not any(each.chunk.laws for each in called_layers(layer)):
        return layer
    from archc.recurrence.law.numbers import (
        with_laws,  # passes: only where there is something to prove
    )

    return with_laws(layer)
