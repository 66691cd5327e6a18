"""The plan of `apply` for a module, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from archc.backends.writer import attribute
from archc.ir.sizes import evaluate
from archc.origin import blocks_of, origin_of
from archc.parallel.apply import layers_of
from archc.parallel.execute import Program, program_for
from archc.parallel.mesh import known_dim, names_of
from archc.parallel.pieces import ATTEND, BETWEEN, RECURRENCE
from archc.parallel.pipeline import parts_of
from archc.parallel.placement import Pending, Split
from archc.parallel.sequence import goes_in_halves


def plan(module: nn.Module, mesh: DeviceMesh | Mapping[str, int]) -> str:
    """The plan of `apply` for a module on a mesh, which may be told by its dims alone, `{"tp": 4}`:
    no process need run. Raises ValueError as `apply` does."""
    if isinstance(mesh, DeviceMesh):
        counts = {name: mesh[name].size() for name in names_of(mesh)}
    else:
        counts = {known_dim(name): count for name, count in mesh.items()}
    shown = ", ".join(f"{name} {count}" for name, count in counts.items())
    lines = [f"{type(module).__name__} on a mesh of {shown}"]
    tp, cp = counts.get("tp", 1), counts.get("cp", 1)
    if counts.get("pp", 1) > 1:
        lines += _parts(module, counts["pp"], tp, cp)
    if "dp" in counts:
        lines += _blocks(module)
    if tp > 1 or cp > 1:
        lines += _layers(module, tp, cp)
    return "\n".join(lines) + "\n"


def _parts(module: nn.Module, count: int, tp: int, cp: int) -> Iterator[str]:
    program = program_for(module, tp, cp, frozenset())
    graph = program.layer.graph
    for n, part in enumerate(parts_of(program, count)):
        inside = sorted(part.blocks, key=lambda path: (len(path), path))
        yield f"  pp, rank {n}: {', '.join([*inside, *sorted(part.parameters)])}"
        if part.makes is not None:
            axes = ["[" + ", ".join(graph[id].type.names) + "]" for id in part.makes]
            yield f"    hands on {' and '.join(axes)}"


def _blocks(module: nn.Module) -> Iterator[str]:
    names = {id(each): path for path, each in module.named_modules()}
    blocks = [names[id(each)] for each in blocks_of(module, origin_of(module))]
    listed = f"{len(blocks)} blocks ({blocks[0]} ... {blocks[-1]}), then " if blocks else ""
    yield f"  dp: fully_shard of {listed}the whole"


def _layers(module: nn.Module, tp: int, cp: int) -> Iterator[str]:
    """The layers, each with the paths where it stands."""
    found: dict[int, tuple[Program, list[str]]] = {}
    for path, each in layers_of(module).items():
        optional = frozenset(op.name for _, op in origin_of(each).layer.inputs if op.optional)
        program = program_for(each, tp, cp, optional)
        found.setdefault(id(program), (program, []))[1].append(path or "the whole")
    for program, paths in found.values():
        where = paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} like it"
        yield f"  {program.layer.name} ({where})"
        if tp > 1:
            yield from _heads(program)
        if cp > 1:
            yield from _tokens(program)


def _heads(program: Program) -> Iterator[str]:
    heads, layer = program.heads, program.layer
    assert heads is not None
    if not heads.axes:
        yield "    tp: every rank computes all of it"
    for axis in heads.axes:
        yield f"    tp: {axis} = {_size(program, axis, False)}, {_size(program, axis, True)} a rank"
    for id, param in layer.params:
        axes = [axis.name for axis in param.axes]
        if id in heads.parameters:
            place = axes.index(heads.parameters[id])
            yield f"      {attribute(param.name)} [{', '.join(axes)}]: Shard({place})"
    rest = [attribute(p.name) for id, p in layer.params if id not in heads.parameters]
    if rest:
        yield f"      Replicate(): {', '.join(rest)}"
    for node in layer.graph:
        mark = heads.places.marks[node.id]
        if isinstance(mark, Pending):
            yield f"      all-reduce ({mark.fn}) of {_text(node)}"
        elif isinstance(mark, Split) and node.id in layer.graph.outputs.values():
            yield f"      all-gather of the output along {mark.axis}"
    for axis, why in heads.refused.items():
        yield f"      {axis} stays whole: {why}"


def _size(program: Program, axis: str, local: bool) -> int:
    sizes = program.local if local else program.sizes
    found = (a.size for _, p in program.layer.params for a in p.axes if a.name == axis)
    return int(evaluate(next(found), sizes))


def _tokens(program: Program) -> Iterator[str]:
    graph = program.layer.graph
    for piece, law, alone in zip(program.pieces, program.laws, program.columns, strict=True):
        halo = int(evaluate(piece.halo, program.sizes))
        if piece.kind == BETWEEN and halo:
            names = ", ".join(op.name for _, op in piece.layer.inputs if "t" in op.type.names)
            yield f"    cp: {halo} tokens of {names} from the rank before"
        elif alone is not None:
            more = f"each by its own recurrence on more of {alone.column}"
            yield f"    cp: the state {alone.state.name} by summaries of all ranks, {more}"
        elif piece.kind == RECURRENCE and law is not None:
            states = ", ".join(law.states)
            yield f"    cp: the state {states} by summaries {', '.join(law.parts)} of all ranks"
        elif piece.kind == ATTEND and piece.node is not None:
            read = [n for n, role in piece.node.op.captures if role != "reader"]
            how = ", of an early and a late part" if goes_in_halves(piece.layer, 2) else ""
            yield f"    cp: {', '.join(read)} of all ranks, for an attend{how}"
    for id, mark in program.tokens.items():
        if isinstance(mark, Pending):
            yield f"    cp: all-reduce ({mark.fn}) of {_text(graph[id])}"


def _text(node: object) -> str:
    """A value as the spec has it."""
    name, span = getattr(node, "name", None), getattr(node, "span", None)
    if name:
        return f"`{name}`"
    return f"`{' '.join(span.text.split())}`" if span is not None else "a value"
