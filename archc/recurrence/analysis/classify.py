"""Layer IR -> the class of every recurrence and attend in it, and the reason, in words."""

from __future__ import annotations

from dataclasses import dataclass

from archc.ir import layer as ir
from archc.ir.graph import Graph, components
from archc.recurrence.analysis.degree import CONSTANT, OTHER, degrees, reads, updates
from archc.recurrence.analysis.semirings import SEMIRINGS
from archc.recurrence.analysis.transition import Transition, transition
from archc.source import Span


@dataclass(frozen=True)
class Class:
    """The kind of a memory: `kind` is one of linear, tropical, law (the spec says how it composes),
    clamped, sequential, attention, window.

    `text` says it in words; `reason` and `span` say why a sequential one has no chunked form.
    """

    kind: str
    states: tuple[str, ...]
    text: str
    reason: str = ""
    span: Span | None = None

    def __str__(self) -> str:
        names = f"{', '.join(self.states)}: " if self.states else ""
        return f"{names}{self.text}" + (f" ({self.reason})" if self.reason else "")


def classify(layer: ir.Layer) -> tuple[Class, ...]:
    """The classes of a layer's memories in dataflow order, with those of the layers it calls."""
    found: list[Class] = []
    seen: set[int] = set()
    _visit(layer, found, seen)
    return tuple(found)


def _visit(layer: ir.Layer, found: list[Class], seen: set[int]) -> None:
    if id(layer) in seen:
        return
    seen.add(id(layer))
    for node in layer.graph:
        if isinstance(node.op, ir.Recurrence):
            found += recurrence_classes(node.op)
        elif isinstance(node.op, ir.Attend):
            found.append(pair_class(node.op))
        elif isinstance(node.op, ir.Window) and node.op.stride is None:
            found.append(Class("window", (), f"short convolution over {node.op.width.size} tokens"))
        elif isinstance(node.op, ir.Call):
            _visit(node.op.callee, found, seen)


def summary(layer: ir.Layer) -> str:
    """The classes in one line, each once; `token by token` for a layer that remembers nothing."""
    texts = list(dict.fromkeys(found.text for found in classify(layer)))
    return "; ".join(texts) if texts else "token by token"


def recurrence_classes(recurrence: ir.Recurrence) -> list[Class]:
    """One class for each group of states that feed one another, in an order to compute them."""
    graph = {state.name: reads(recurrence, state.name) for state in recurrence.states}
    return [_component(recurrence, tuple(group)) for group in components(graph)]


def _component(recurrence: ir.Recurrence, states: tuple[str, ...]) -> Class:
    """The class of states that must be computed together."""
    after = updates(recurrence)
    linear = degrees(recurrence, states)
    broken = next((linear[after[s]] for s in states if linear[after[s]].kind == OTHER), None)
    if broken is None:
        return Class("linear", states, describe(recurrence, states, transition(recurrence, states)))
    if any({*states} <= {*law.states} for law in recurrence.laws):
        return Class("law", states, "recurrence with a composition law of its own")
    for sums, text in SEMIRINGS.items():
        tropical = degrees(recurrence, states, sums)
        if all(tropical[after[s]].kind != OTHER for s in states):
            return Class("tropical", states, text)
    if len(states) == 1 and _within_bounds(recurrence, states[0]):
        return Class("clamped", states, "linear recurrence kept within bounds")
    span = recurrence.body[broken.culprit].span if broken.culprit is not None else None
    return Class("sequential", states, "sequential cell", broken.why, span)


BOUNDED = {"add", "sub", "mul", "div", "max", "min", "relu", "where"}
"""Functions of a state that a recurrence within bounds has."""


def _within_bounds(recurrence: ir.Recurrence, state: str) -> bool:
    """Whether a state is scaled, moved and kept within bounds, whatever it is scaled by."""
    body, known = recurrence.body, degrees(recurrence, (state,))
    update = updates(recurrence)[state]
    inside = {id for id in (update, *body.ancestors(update)) if known[id].kind != CONSTANT}
    for node in (body[id] for id in inside if not isinstance(body[id].op, ir.Input)):
        held = [id for id in node.operands if id in inside]
        fn = node.op.fn if isinstance(node.op, ir.Elementwise) else ""
        several = fn == "where" and node.operands[0] not in held
        first = fn not in ("sub", "div") or held == [node.operands[0]]
        if fn not in BOUNDED or not first or (len(held) > 1 and not several):
            return False
        if fn == "where" and not several:
            return False
    return True


def describe(recurrence: ir.Recurrence, states: tuple[str, ...], found: Transition) -> str:
    """A linear recurrence in words: its decay, its corrections, what mixes its channels."""
    own = [state for state in recurrence.states if state.name in states]
    axes = dict.fromkeys(axis.name for state in own for axis in state.axes if axis.kind == "dim")
    dims = [name for name in axes if name not in recurrence.heads]
    parts = ["linear recurrence"]
    if found.dense:
        constant = all(_is_constant(recurrence.body, id) for id in found.dense)
        parts.append(f"{'constant' if constant else 'data-dependent'} dense transition")
    elif found.decay is None:
        parts.append("no decay")
    else:
        parts.append(_decay_text([name for name in dims if name in found.decay], dims))
    if found.corrections:
        count = found.corrections
        parts.append(f"{count} low-rank correction{'s' if count > 1 else ''}")
    if found.coupled:
        parts.append("states coupled")
    return ", ".join(parts)


def _decay_text(inner: list[str], whole: list[str]) -> str:
    """Along which axes of the state a decay varies."""
    if not inner:
        return "scalar decay"
    if len(inner) == len(whole) > 1:
        return "decay per element"
    return f"decay per channel of {' and '.join(inner)}"


def _is_constant(body: Graph, id: int) -> bool:
    """Whether the matrix that a contraction applies is the same at every token: it has no batch."""
    return any("batch" not in body[operand].type.names for operand in body[id].operands)


def pair_class(pair: ir.Attend) -> Class:
    """Attention, by what weighs the tokens read and how far back they lie."""
    soft = any(isinstance(node.op, ir.Softmax) for node in pair.body)
    text = "softmax attention" if soft else "attention without softmax"
    if pair.window is not None:
        text += f" over the last {pair.window} tokens"
    elif not pair.causal and pair.source == "t":
        text += " over all tokens"
    elif pair.source != "t":
        text += f" over {pair.source}"
    if pair.path is not None:
        text += ", along a path"
    return Class("attention", (), text)
