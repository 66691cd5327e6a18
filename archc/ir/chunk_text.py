"""Chunk ops -> text: how each is written in a listing, `gram[K, i, j strict](q, k, g)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from archc.dims import Axis
from archc.ir import chunk as ck
from archc.ir.graph import Graph

NAMES: dict[type, str] = {
    ck.Chunks: "chunks",
    ck.Tokens: "tokens",
    ck.Stack: "stack",
    ck.Select: "select",
    ck.Place: "place",
    ck.Last: "last",
    ck.AtLast: "at_last",
    ck.Unwindow: "unwindow",
    ck.Expand: "expand",
    ck.Sums: "sums",
    ck.Move: "move",
    ck.Scan: "scan",
    ck.Spans: "spans",
    ck.SpansGradient: "spans_gradient",
    ck.Gram: "gram",
    ck.Mix: "mix",
    ck.GateGradient: "gate_gradient",
    ck.Inverse: "inverse",
    ck.Detach: "detach",
    ck.Conjugate: "conjugate",
}


def _text(op: Any, operands: tuple[str, ...]) -> str:
    """The op's name, its fields (flags by name where they hold), and its operands."""
    details = [_detail(f.name, getattr(op, f.name)) for f in fields(op)]
    shown = ", ".join(detail for detail in details if detail)
    return f"{NAMES[type(op)]}{f'[{shown}]' if shown else ''}({', '.join(operands)})"


def _detail(name: str, value: Any) -> str:
    """One field; nothing for one that says nothing."""
    if isinstance(value, bool):
        return name if value else ""
    if value is None or value == () or isinstance(value, Graph):
        return ""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return str(value) if isinstance(value, str | Axis) else f"{name} {value}"


CHUNK_TEXT: dict[type, Callable[[Any, tuple[str, ...]], str]] = dict.fromkeys(NAMES, _text)
"""How each chunk op is written; one entry an op."""
