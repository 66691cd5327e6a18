"""The T x T matrix of a token mixer: how much each token takes from each other token.

Where the algebra of the memory says o[t] = sum over s of M[t, s] v[s] (`recurrence/mixer.py`), M is
read off exactly, by letting the memory mix one-hot vectors in place of v. Elsewhere it is the size
of a derivative. Everything is computed in float64, by the meaning of the layer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import ceil, prod

import torch
from torch import Tensor, nn

from archc.algebra.cut import NoMemory, memory_of
from archc.algebra.simplify import simplify
from archc.backends.renamed import at_path
from archc.backends.writer import identifier
from archc.ir import layer as ir
from archc.ir.graph import Graph, Node
from archc.ir.initial import all_params
from archc.ir.meaning import evaluate
from archc.ir.named import Named
from archc.ir.optional_inputs import with_inputs
from archc.origin import Origin, origin_of
from archc.recurrence.analysis.mixed import Mixer, entering, mixer

TOKENS_AT_ONCE = 4096
"""How many tokens of all batches together are computed in one go."""


@dataclass(frozen=True)
class MixerMatrix:
    """How much token t (row) takes from token s (column).

    data: float64, [B, T, T], or [B, H, T, T] where `axes` has dims between the batch and the
    tokens: the heads of the memory, or whatever else its weights differ along. exact: whether
    `output[t] = sum over s of data[t, s] * value[s]` holds; otherwise `data[t, s]` is the Frobenius
    norm of the derivative of `output[t]` by `value[s]`. Printed, it says which. summed: those of
    the axes that the sum runs over too, where a token has several values.
    """

    data: Tensor
    axes: tuple[str, ...]
    exact: bool
    output: str
    value: str
    summed: tuple[str, ...] = ()

    def __str__(self) -> str:
        t, s = self.axes[-2:]
        if not self.exact:
            return f"M[{t}, {s}] = |d {self.output}[{t}] / d {self.value}[{s}]|"
        over = ", ".join((s, *self.summed))
        return f"{self.output}[{t}] = sum over {over} of M[{t}, {over}] {self.value}[{over}]"


def mixer_matrix(
    layer: nn.Module, *inputs: Tensor, with_grad: bool = False, **named: Tensor
) -> MixerMatrix:
    """The matrix of a layer that `Spec.module` has made, or of a layer in one, for these inputs.

    It is the memory's: of what stands between `v` and `o` in the spec, all else that enters it
    (queries, keys, gates) held fixed; projections and norms around it are no part of it. A layer
    whose memory is not linear in any value (its gates read its state), that mixes channels too, has
    several results, or lies in a layer that is called, gets the norms of the derivatives of its
    first output by its first input. Outputs that need an optional input are left out.

    inputs: in the order of the spec or by name, as the layer takes them. with_grad: whether an
    exact M has a gradient for the layer's parameters and inputs, so that one mixer can be trained
    to mix as another does. Costs about T / D passes over the sequence for values of D channels,
    T * D with their derivatives for norms. Raises ValueError for a layer that archc has not made,
    whose input are integers, by which nothing has a derivative, or that has norms alone where a
    gradient is asked for; TypeError for inputs that are missing or too many.
    """
    origin = origin_of(layer)
    model = simplify(origin.layer)
    given = by_name(model, inputs, named)
    model = with_inputs(model, frozenset())
    params = {path: at_path(layer, path) for path, _, _ in all_params(model, origin.sizes)}
    run = _Run(
        replace(origin, layer=model),
        {path: (x if with_grad else x.detach()).double() for path, x in params.items()},
        {path: _in_float64(at_path(layer, path)) for path in given_layers(model)},
        given,
    )
    try:
        inside = memory_of(model)
    except NoMemory:
        inside = None
    found = None if inside is None else mixer(model.graph, inside)
    if found is not None and inside is not None:
        with torch.set_grad_enabled(with_grad):
            return _exact(run, found, inside)
    if with_grad:
        raise ValueError(f"{model.name} mixes no value linearly, so its matrix has no gradient")
    return _norms(run)


def by_name(
    layer: ir.Layer, inputs: Sequence[Tensor], named: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """The inputs of a layer by name."""
    takes = [op.name for _, op in layer.inputs]
    own = {identifier(name): name for name in takes}
    by_name = {own.get(name, name): value for name, value in named.items()}
    given = {**dict(zip(takes, inputs, strict=False)), **by_name}
    missing = [op.name for _, op in layer.inputs if not op.optional and op.name not in given]
    if missing or len(inputs) > len(takes) or given.keys() - takes:
        raise TypeError(f"{layer.name} takes {', '.join(takes)}")
    return given


def given_layers(layer: ir.Layer, prefix: str = "") -> Iterator[str]:
    """The paths of layers that are arguments of a spec."""
    for _, call in layer.calls:
        if call.callee.kind == "argument":
            yield prefix + call.path
        else:
            yield from given_layers(call.callee, f"{prefix}{call.path}.")


def _in_float64(module: nn.Module) -> nn.Module:
    """A copy of a module, whose weights stay what they are."""
    return deepcopy(module).double().requires_grad_(False)


@dataclass(frozen=True)
class _Run:
    """Computes values of a layer with the weights of a module, and the layers that it was given."""

    origin: Origin
    params: Mapping[str, Tensor]
    layers: Mapping[str, nn.Module]
    inputs: Mapping[str, Tensor]

    def __call__(
        self, graph: Graph, nodes: Mapping[str, int], given: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Nodes of a graph by name, from its inputs."""
        part = graph.copy()
        part.outputs = dict(nodes)
        part.prune([n.id for n in part if isinstance(n.op, ir.Input) and n.op.name in given])
        layer = replace(self.origin.layer, graph=part)
        inputs = {op.name: given[op.name] for _, op in layer.inputs}
        sizes, layers = self.origin.sizes, self.layers
        return evaluate(layer, inputs, self.params, sizes, layers=layers).outputs

    def at_once(self) -> int:
        """How many times the batch may be repeated in one go."""
        tokens = max(prod(x.shape[:2]) for x in self.inputs.values())
        return max(1, TOKENS_AT_ONCE // max(1, tokens))


def _repeated(values: Mapping[str, Tensor], times: int) -> dict[str, Tensor]:
    """Values with their batch (the first dim) repeated."""
    return {name: x.repeat(times, *[1] * (x.dim() - 1)) for name, x in values.items()}


def _stream(node: Node) -> str:
    return next(axis.name for axis in node.type.axes if axis.kind == "stream")


def _called(node: Node, otherwise: str) -> str:
    """A value's name in the spec."""
    return node.name or getattr(node.op, "name", otherwise)


# --- memories that are linear in a value --------------------------------------------------------


def _exact(run: _Run, found: Mixer, inside: Collection[int]) -> MixerMatrix:
    """The exact matrix, from one-hot vectors in place of the memory's values: channel c holds token
    c, so that as many tokens as there are channels are seen at a time."""
    graph = run.origin.layer.graph
    enters = {str(id): id for id in entering(graph, inside) if "batch" in graph[id].type.names}
    operands = run(graph, enters, run.inputs)
    memory = graph.copy()
    for name, id in enters.items():
        memory.substitute(id, memory.add(ir.Input(name, graph[id].type)))

    mixed = []
    for one_hot in _one_hot(graph, found, operands[str(found.value)], run.at_once()):
        times, batch = one_hot.shape[:2]
        given = _repeated(operands, times) | {str(found.value): one_hot.flatten(0, 1)}
        made = run(memory, {"o": found.result}, given)["o"]
        mixed.append(made.unflatten(0, (times, batch)))
    value, result = graph[found.value], graph[found.result]
    t, s, size = _stream(result), _stream(value), _sizes(value, operands[str(found.value)])
    order = ("batch", *found.heads, t, "times", *(here for _, here in found.channels))
    rows = Named(torch.cat(mixed), ("times", *result.type.names)).to(order)
    rows = rows.flatten(2 + len(found.heads))  # the last dim: tokens, and what is summed with them
    rows = rows[..., : prod(size[n] for n in (s, *found.summed))]
    rows = rows.unflatten(-1, [size[n] for n in (s, *found.summed)])
    s = "s" if s == t else s
    data = Named(rows, ("batch", *found.heads, t, s, *found.summed))
    axes = ("batch", *found.heads, *found.summed, t, s)
    names = _called(result, "o"), _called(value, "v")
    return MixerMatrix(data.to(axes), axes, True, *names, found.summed)


def _one_hot(graph: Graph, found: Mixer, held: Tensor, at_once: int) -> list[Tensor]:
    """Values that are 1 at one token each (and at one place of what is summed with it), a different
    one in each channel and repeat of the batch: [times, B, T, ...], `at_once` times each."""
    node = graph[found.value]
    size = _sizes(node, held)
    sources = (_stream(node), *found.summed)
    channels = [own for own, _ in found.channels]
    count, width = prod(size[n] for n in sources), prod(size[n] for n in channels)
    times = max(1, ceil(count / width))
    rows = torch.eye(times * width, count, dtype=held.dtype, device=held.device)
    rows = rows.reshape(times, *(size[n] for n in (*channels, *sources)))
    rows = Named(rows, ("times", *channels, *sources)).to(("times", *node.type.names))
    return [part.expand(len(part), *held.shape) for part in rows.split(at_once)]


def _sizes(node: Node, data: Tensor) -> dict[str, int]:
    return dict(zip(node.type.names, data.shape, strict=True))


# --- all others ---------------------------------------------------------------------------------


def _norms(run: _Run) -> MixerMatrix:
    """The derivative of the output by the input, some rows of the Jacobian at a time, as norms."""
    model = run.origin.layer
    output, id = next(iter(model.graph.outputs.items()))
    name, op = next((op.name, op) for _, op in model.inputs)
    if op.type.dtype != "real":
        raise ValueError(
            f"{model.name}: `{name}` are integers, by which nothing has a derivative; "
            "ask for the matrix of one of the layers inside"
        )
    x = run.inputs[name].detach().double()
    with torch.no_grad():
        shape = run(model.graph, {"y": id}, run.inputs)["y"].shape
    batch, count = len(x), prod(shape[1:])
    squares = [x.new_zeros(0, batch, x.shape[1])]
    for rows in torch.arange(count, device=x.device).split(run.at_once()) if count else ():
        given = _repeated({**run.inputs, name: x}, len(rows))
        given[name].requires_grad_()
        made = run(model.graph, {"y": id}, given)["y"].reshape(len(rows), batch, count)
        chosen = made[torch.arange(len(rows)), :, rows].sum()
        (slope,) = torch.autograd.grad(chosen, given[name])
        squares.append(slope.square().flatten(2).sum(-1).unflatten(0, (len(rows), batch)))
    total = torch.cat(squares).unflatten(0, (shape[1], prod(shape[2:]))).sum(1)  # [T, B, S]
    t, s = _stream(model.graph[id]), op.type.axes[1].name
    axes = ("batch", t, "s" if s == t else s)
    return MixerMatrix(total.transpose(0, 1).sqrt(), axes, False, output, name)
