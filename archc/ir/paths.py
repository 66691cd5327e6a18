"""Names of the layers inside a module: `GatedMoE` is `gated_moe`."""

from __future__ import annotations

import re

from archc.ir import layer as ir

_BEFORE = re.compile(r"(?<=[A-Za-z0-9])(?=[A-Z][a-z]{2,})")
_BEHIND = re.compile(r"([A-Z][a-z]{3,}[0-9]*)(?=[A-Z])")


def snake(name: str) -> str:
    """The name in snake case. An underscore stands before a word (a capital and two or more
    lower-case letters) and behind one of four letters or more; all else is one: `GatedShortConv` is
    `gated_short_conv`, `GatedMoE` is `gated_moe`, and `SwiGLU` is `swiglu`."""
    return _BEFORE.sub("_", _BEHIND.sub(r"\1_", name)).replace("__", "_").lower()


def former_paths(layer: ir.Layer) -> dict[str, str]:
    """The paths of called layers that had another one until 0.1.0, with that: no underscore stood
    behind a word then."""
    paths = {call.path for _, call in layer.calls}
    found: dict[str, str] = {}
    for _, call in layer.calls:
        own, former = snake(call.callee.name), _BEFORE.sub("_", call.callee.name).lower()
        head, place, last = call.path.rpartition(".")
        if own != former and re.fullmatch(rf"{re.escape(own)}(_\d+)?", last):
            old = head + place + former + last[len(own) :]
            if old not in paths:
                found[call.path] = old
    return found


def present_name(layer: ir.Layer, name: str) -> str:
    """The name of a parameter, from one that it may have had."""
    former = {old: new for new, old in former_paths(layer).items()}
    callees = {call.path: call.callee for _, call in layer.calls}
    for path in sorted({*former, *callees}, key=len, reverse=True):
        if name.startswith(f"{path}."):
            now, rest = former.get(path, path), name[len(path) + 1 :]
            return f"{now}.{present_name(callees[now], rest)}"
    return name
