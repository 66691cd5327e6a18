"""A recurrence's derivation as listings and as plain data: its normal form, its chunked form stage
by stage, and its gradient."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from archc.algebra.decisions import decisions
from archc.algebra.simplify import simplify
from archc.autodiff.keep import report
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.text import graph_json, graph_text
from archc.recurrence.affine.listing import as_text
from archc.recurrence.analysis.classify import recurrence_classes
from archc.recurrence.chunk.loops import named
from archc.verify.study import Study

NOTHING = "no recurrence: nothing is carried from token to token\n"


def heading(study: Study) -> str:
    """`recurrence of S in Layer  # my.arch:18`."""
    states = ", ".join(state.name for state in study.recurrence.states)
    place = f"  # {study.node.span.where}" if study.node.span else ""
    return f"recurrence of {states} in {study.layer.name}{place}"


def titled(studies: Iterable[Study], show: Any) -> str:
    """Each recurrence under its heading."""
    return "\n".join(f"{heading(each)}\n{show(each)}" for each in studies) or NOTHING


# --- the normal form ------------------------------------------------------------------------------


def normal_text(study: Study) -> str:
    """Classes, normal forms, and which states stay a loop."""
    lines = [f"  {found}" for found in recurrence_classes(study.recurrence)] + [""]
    for form in study.derived.forms:
        lines += [f"  {line}" for line in as_text(form).split("\n")]
    return "\n".join([*lines, "", *(f"  {line}" for line in _verdict(study))]) + "\n"


def _verdict(study: Study) -> Iterator[str]:
    """The states that are computed in chunks, and those that are not."""
    kept = {name for each in study.derived.kept for name in each.states}
    chunked = [state.name for state in study.recurrence.states if state.name not in kept]
    if chunked:
        yield f"in chunks: {named(chunked)}"
    for each in study.derived.kept:
        yield f"a loop over the tokens: {named(each.states)}, as {each.reason}"
        if each.help:
            yield f"  help: {each.help}"
    yield from (f"note: {note}" for note in study.derived.notes)


def decisions_text(layer: ir.Layer) -> str:
    """The decisions of the algebra about a whole layer; "" if it had no choice."""
    made = decisions(simplify(layer))
    if not made:
        return ""
    lines = [f"  {line}" for each in made for line in each.lines()]
    return "\n".join(["decisions by cost", *lines]) + "\n"


# --- the chunked form -----------------------------------------------------------------------------


def stage_title(stage: Stage, last: int) -> str:
    """The title of a stage in a listing."""
    if stage.kind == CHUNKS:
        return "along the chunks"
    if stage.kind == TOKENS:
        return "along the tokens, one after the other"
    if stage.number == 0:
        return "for all chunks at once, before the state"
    where = "after" if stage.number == last else "in between"
    return f"for all chunks at once, {where}"


def staged(graph: Graph, stream: str) -> list[tuple[str, Stage]]:
    """The stages of a chunked form with their titles."""
    found = stages(graph, stream)
    last = max((stage.number for stage in found), default=0)
    return [(stage_title(stage, last), stage) for stage in found]


def chunk_text(study: Study) -> str:
    """The chunked form in its stages, then its outputs and notes."""
    graph = study.derived.graph
    if graph is None:
        return "".join(f"  {line}\n" for line in _verdict(study))
    lines = list(_sections(graph, study.recurrence.stream.name))
    notes = [*anchoring(graph), *study.derived.notes]
    lines += [f"  note: {note}" for note in notes]
    lines += [f"  {line}" for line in _verdict(study) if "loop" in line]
    return "\n".join(lines) + "\n"


def _sections(graph: Graph, stream: str) -> Iterator[str]:
    """The inputs, each stage, and the results."""
    given = [node.id for node in graph if isinstance(node.op, ir.Input)]
    parts = [("given", given)]
    parts += [(title, list(stage.nodes)) for title, stage in staged(graph, stream)]
    for title, nodes in parts:
        yield f"  -- {title}"
        yield from _indented(graph_text(graph, only=set(nodes)))
        yield ""
    yield f"  {graph_text(graph).rstrip().rsplit(chr(10), 1)[-1].strip()}"


def anchoring(graph: Graph) -> Iterator[str]:
    """How the exponents of decays between rows are made."""
    if any(isinstance(node.op, ck.Gram | ck.Mix) for node in graph):
        yield "exponents are sums from the border between halves: right for any gate"


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.rstrip("\n").split("\n")]


# --- the gradient ---------------------------------------------------------------------------------


def gradient_text(study: Study) -> str:
    """The values that are saved and computed again, then the backward graph."""
    found = study.gradient
    if found is None:
        return "  a loop over the tokens, with the gradient of a loop\n"
    lines = [f"  {line}" for line in report(found).rstrip("\n").split("\n")]
    return "\n".join([*lines, "", *_sections(found.backward, study.recurrence.stream.name)]) + "\n"


# --- data -----------------------------------------------------------------------------------------


def head_json(study: Study) -> dict[str, Any]:
    """The recurrence: its layer, states and place."""
    return {
        "layer": study.layer.name,
        "states": [state.name for state in study.recurrence.states],
        "where": study.node.span.where if study.node.span else None,
    }


def normal_json(study: Study) -> dict[str, Any]:
    """Classes, normal forms as text, and the states that stay a loop."""
    kept = [
        {"states": list(k.states), "code": k.code, "reason": k.reason, "help": k.help}
        for k in study.derived.kept
    ]
    return head_json(study) | {
        "classes": [str(found) for found in recurrence_classes(study.recurrence)],
        "forms": [
            {"kind": form.kind, "states": list(form.states), "text": as_text(form).split("\n")}
            for form in study.derived.forms
        ],
        "loops": kept,
        "notes": list(study.derived.notes),
    }


def chunk_json(study: Study) -> dict[str, Any]:
    """The chunked form, and the stage of each of its nodes."""
    graph = study.derived.graph
    if graph is None:
        return head_json(study) | {"form": None}
    numbers = {node.id: number for number, node in enumerate(graph)}
    parts = [
        {"title": title, "kind": stage.kind, "nodes": [numbers[id] for id in stage.nodes]}
        for title, stage in staged(graph, study.recurrence.stream.name)
    ]
    return head_json(study) | {"form": graph_json(graph), "stages": parts}


def gradient_json(study: Study) -> dict[str, Any]:
    """The saved values, and the backward graph."""
    found = study.gradient
    if found is None:
        return head_json(study) | {"backward": None}
    saved = [
        {"name": s.name, "axes": list(s.type.names), "bytes a token": str(s.bytes), "why": s.reason}
        for s in found.saved
    ]
    return head_json(study) | {"saved": saved, "backward": graph_json(found.backward)}


PARALLEL, CHUNKS, TOKENS = "parallel", "along chunks", "along tokens"


@dataclass(frozen=True)
class Stage:
    """Nodes of one stage in dataflow order. kind: "parallel" (for all chunks at once), "along
    chunks", or "along tokens" (states that stay a loop); `number` counts the loops before it."""

    kind: str
    number: int
    nodes: tuple[int, ...]


def stages(graph: Graph, stream: str) -> tuple[Stage, ...]:
    """The stages of a chunked form of a Recurrence along `stream`, in order, without its inputs.

    Only a Recurrence waits from chunk to chunk: a value's stage is the number of Recurrences, one
    after the other, that it depends on.
    """
    depth: dict[int, int] = {}
    found: dict[tuple[int, str], list[int]] = {}
    for node in graph:
        depth[node.id] = max((depth[operand] for operand in node.operands), default=0)
        if isinstance(node.op, ir.Recurrence):
            kind = TOKENS if node.op.stream.name == stream else CHUNKS
            found.setdefault((depth[node.id], kind), []).append(node.id)
            depth[node.id] += 1
        elif not isinstance(node.op, ir.Input):
            found.setdefault((depth[node.id], PARALLEL), []).append(node.id)
    order = [PARALLEL, CHUNKS, TOKENS]
    keys = sorted(found, key=lambda key: (key[0], order.index(key[1])))
    return tuple(Stage(kind, number, tuple(found[number, kind])) for number, kind in keys)
