"""Layer IR -> warnings: states that stay a loop over the tokens though nobody asked for it.

A loop is right but slow: one token after another, however wide the machine is. Whoever writes the
spec should know, and know why. `chunk: sequential` in the spec says that a loop is meant.
"""

from __future__ import annotations

from collections.abc import Iterable

from archc.diagnostics import Diagnostic, Label
from archc.ir import layer as ir
from archc.ir.given_law import DRAWS, GivenLaw
from archc.ir.graph import Graph, Node
from archc.recurrence.chunk.chunked import studies
from archc.recurrence.chunk.derived import Kept
from archc.recurrence.chunk.unsaid import gates_of, unsaid
from archc.source import Span

LAW = (
    "if you know how a run of tokens acts as a whole, say so: `chunk: law(Token, Merge, Apply)` "
    "(`archc explain E0224`)"
)
MEANT = "to say that the loop is meant, add `chunk: sequential`"


def loops(layer: ir.Layer) -> tuple[Diagnostic, ...]:
    """A warning for each group of states without a chunked form, or with one by a law that is not
    proved, in a layer that is ready for it and in the layers that it calls."""
    found: list[Diagnostic] = []
    for each, node, derived in studies(layer):
        if not each.chunk.sequential:
            found += [warning(each, node, kept) for kept in derived.kept]
            found += [_believed(law) for law in derived.laws if law.proved is False]
    return tuple(found)


def _believed(law: GivenLaw) -> Diagnostic:
    """The warning about a law that may be wrong."""
    assert law.span is not None, "a law of the spec has a place there"
    return Diagnostic(
        "E0609",
        f"the composition law of {named(law.states)} is not proved",
        Label(law.span, "used all the same"),
        notes=(f"it held for {DRAWS} random draws, to about 8 digits",),
        helps=("formulas of sums, products, exp, log, max and choices are looked into",),
        severity="warning",
    )


def warning(layer: ir.Layer, recurrence: Node, kept: Kept) -> Diagnostic:
    """The warning about one group, which underlines what stands in the way."""
    span = _span(layer.graph, recurrence, kept) or layer.span
    missing = list(unsaid(layer, recurrence, kept))
    remarks = [each.note for each in missing if each.note]
    names = named(kept.states)
    short = len(kept.reason) <= 60
    verb = "stay a loop" if len(kept.states) > 1 else "stays a loop"
    return Diagnostic(
        kept.code,
        f"{names} {verb} over the tokens",
        Label(span, kept.reason if short else "because of this"),
        notes=(*(() if short else (kept.reason,)), *remarks),
        helps=(
            *(each.help for each in missing if each.note),
            *([kept.help] if kept.help else []),
            *(each.help for each in missing if not each.note),
            *([LAW] if kept.code == "E0607" else []),
            MEANT,
        ),
        severity="warning",
    )


def named(states: Iterable[str]) -> str:
    """`` `c` ``, or `` `c`, `h` and `m` ``."""
    quoted = [f"`{state}`" for state in states]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


def _span(graph: Graph, recurrence: Node, kept: Kept) -> Span | None:
    """The place of the reason in the spec: a node of the body, the value that it captures, or else
    the update of the state."""
    body = recurrence.op.body
    if kept.node is not None:
        node, gates = body[kept.node], gates_of(graph, recurrence, kept)
        inside = None if isinstance(node.op, ir.Input) else node.span
        spans = (gate.span for gate in gates.values() if gate.span is not None)
        found = inside or next(spans, None)
        if found is not None:
            return found
    return body[body.outputs[kept.states[0]]].span or recurrence.span
