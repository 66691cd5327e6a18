"""Normal form -> a reason why a decay has no logarithm that chunks could sum."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

import sympy

from archc.dims import free_symbols
from archc.functions.interval import Interval
from archc.ir.graph import Graph
from archc.numerics.logs import NoLog, growth, log_of
from archc.numerics.propagation import intervals
from archc.recurrence.affine.build import build
from archc.recurrence.affine.form import NormalForm
from archc.recurrence.chunk.derived import NotChunked

SIGNED = "a decay that may be negative is in chunks where it lies between -1 and 1"


def check_log(
    body: Graph,
    known: Mapping[str, Interval],
    form: NormalForm,
    gate: sympy.Expr,
    old: Collection[int],
) -> None:
    """Raise NotChunked unless a decay has a logarithm, which is never above 0, in the body, where a
    stabiliser is still a maximum that gates are held against; `old`: states before the token."""
    node = _node_of(body, old, form, gate)
    states, inner = " and ".join(f"`{name}`" for name in form.states), body.copy()
    inside = build(inner, gate, form, {each.id: each.id for each in inner})
    log = log_of(inner, inside, intervals(inner, known))
    if isinstance(log, NoLog):
        reason = f"the decay of {states} has no logarithm: {log.reason}"
        low = intervals(inner, known)[inside].low
        raise NotChunked(reason, SIGNED if -math.inf < low < 0 else "", node, "E0602")
    if not growth(inner, log, intervals(inner, known)).never:
        raise NotChunked(
            f"{states} may grow: the decay is not known to be at most 1",
            "write the decay as exp(-softplus(..)), sigmoid(..) or another value in [0, 1]",
            node, "E0602",
        )  # fmt: skip


def _node_of(body: Graph, old: Collection[int], form: NormalForm, gate: sympy.Expr) -> int | None:
    """The first node of the body that holds all of a gate, and none of the states `old`."""
    atoms = [form.atoms[s] for s in sorted(free_symbols(gate), key=str) if s in form.atoms]
    parts = {atom.node for atom in atoms if atom.node is not None}
    moved = set(old).union(*map(body.descendants, old))
    every = (node.id for node in body if node.id not in moved)
    found = (id for id in every if parts <= body.ancestors(id) | {id})
    return next(found, None) if parts else None
