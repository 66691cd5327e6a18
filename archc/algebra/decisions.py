"""Every choice that algebra makes about a layer by what each way costs, for a reader."""

from __future__ import annotations

from archc.algebra import absorb, pair_products, scales
from archc.algebra.decision import Decision
from archc.ir import layer as ir
from archc.ir.text import called_layers


def decisions(layer: ir.Layer) -> tuple[Decision, ...]:
    """The decisions about a layer that has been simplified, and about the layers that it calls,
    callers first."""
    return tuple(
        decision
        for each in called_layers(layer)
        for decisions_of in (absorb.decisions, scales.decisions, pair_products.decisions)
        for decision in decisions_of(each)
    )


def as_text(decisions: tuple[Decision, ...]) -> str:
    """Decisions as text, one block each."""
    return "\n".join("\n".join(decision.lines()) + "\n" for decision in decisions)
