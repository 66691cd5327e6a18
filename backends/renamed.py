"""Words of a spec that a generated file spells otherwise, as they have a meaning there already: a
parameter or a size `F` is `F_` in a file that imports that word.

Code E0019: two names of a layer that a file would spell alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from archc.backends.writer import attribute, identifier

from archc.diagnostics import Report
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.source import Span

if TYPE_CHECKING:
    from torch import Tensor, nn


Spelling = Callable[[str], str]


def check_spelling(layer: ir.Layer) -> None:
    """Refuse a layer, or one that it calls, where two names would be one in Python."""
    report = Report()
    _check(layer, report, set())
    report.check()


def _check(layer: ir.Layer, report: Report, done: set[int]) -> None:
    done.add(id(layer))
    known: dict[tuple[Spelling, str], str] = {}
    for spelling, name, span in _names(layer):
        other = known.setdefault((spelling, spelling(name)), name)
        if other != name:
            report.error(
                "E0019",
                f"`{other}` and `{name}` are one name in Python: `{spelling(name)}`",
                span or layer.span,
                helps=["choose another for one of them"],
            )
    for _, call in layer.calls:
        if call.callee.kind != "argument" and id(call.callee) not in done:
            _check(call.callee, report, done)


def spelled(layer: ir.Layer) -> set[str]:
    """The names of a layer as a file spells them."""
    return {spelling(name) for spelling, name, _ in _names(layer)}


def _names(layer: ir.Layer) -> Iterator[tuple[Spelling, str, Span | None]]:
    """The names of a layer, with their spelling in a file and their place: attributes of its
    module, then values."""
    for arg in layer.args:
        yield attribute, arg.name, None
    for id, param in layer.params:
        yield attribute, param.name, layer.graph[id].span
    for id, call in layer.calls:
        yield attribute, call.path.split(".")[0], layer.graph[id].span
    yield from _values(layer.graph)


def _values(graph: Graph) -> Iterator[tuple[Spelling, str, Span | None]]:
    """The inputs, named values and states of a graph."""
    for node in graph:
        if isinstance(node.op, ir.Input):
            yield identifier, node.op.name, node.span
        elif node.name and not isinstance(node.op, ir.Param):
            yield identifier, node.name, node.span
        if isinstance(node.op, ir.Recurrence):
            yield from ((identifier, state.name, node.span) for state in node.op.states)
            yield from _values(node.op.body)


class Weights(dict[str, "Tensor"]):
    """Tensors by the names that a module has for them, and by those of the spec."""

    def __missing__(self, name: str) -> Tensor:
        own = ".".join(p if p.isdigit() else attribute(p) for p in name.split("."))
        if own not in self:
            raise KeyError(name)
        return self[own]


def at_path(module: nn.Module, path: str) -> Any:
    """A parameter or layer of a module by its path in the spec: the value that it computes with
    (`torch.nn.utils.parametrize`), of modules that `torch.compile` may have wrapped."""
    found: Any = module
    for part in path.split("."):
        name = part if part.isdigit() else attribute(part)
        owner = getattr(found, "_orig_mod", found)
        if name in getattr(owner, "_linear", ()):
            kind = f"`{path}` is kept as nn.Linear (`nn_linear=True`)"
            raise ValueError(f"{kind}: give the weights of a module that was made without it")
        found = getattr(owner, name)
    return getattr(found, "_orig_mod", found)


def weights(module: nn.Module) -> Weights:
    """The parameters of a module."""
    return Weights(module.state_dict())


def declared(layer: ir.Layer, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inputs of a layer as the spec names them, from those that its module takes."""
    names = {identifier(op.name): op.name for _, op in layer.inputs}
    return {names[name]: value for name, value in given.items()}


def entering(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Inputs of a memory as its function takes them, from those that the spec names."""
    return {identifier(name): value for name, value in given.items()}


def arguments(given: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes and other arguments of a layer, as its module takes them."""
    return {attribute(name): value for name, value in given.items()}
