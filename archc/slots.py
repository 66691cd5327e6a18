"""A model whose sequences have a slot each: its weights, in code that reads one token of each.

The state of such a model is one batch, in which sequences are of different lengths. What an
attention keeps of them is written in place, into memory with room for a number of tokens; nothing
of a call has a shape or an address that depends on a sequence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from archc.backends.eager.emit import class_name
from archc.backends.load import load
from archc.backends.renamed import arguments, at_path
from archc.backends.writer import snake
from archc.compile import slots_text_of
from archc.ir.own_positions import unready
from archc.origin import backend_here, origin_of


def alone(model: nn.Module) -> str | None:
    """Why sequences of different lengths cannot be continued in one batch, if they cannot."""
    return unready(origin_of(model).layer)


def in_slots(model: nn.Module) -> Any:
    """The model, with the same weights in the same memory, as a module that reads one token of each
    sequence: `initial_state(batch, capacity)`, and `module(tokens, state=state, return_state=True)`
    with tokens [batch, 1]. Raises ValueError where `alone` has a reason, and for a model in which a
    layer of archc was replaced."""
    reason = alone(model)
    if reason is not None:
        raise ValueError(f"its sequences are continued one by one: {reason}")
    origin = origin_of(model)
    layer, recipe = origin.layer, origin.recipe
    text = slots_text_of(layer, backend_here(recipe.backend), recipe.linear)
    code = load(text, f"{snake(layer.name)}_slots")
    paths = [call.path for _, call in layer.calls if call.callee.kind == "argument"]
    given = {path: at_path(model, path) for path in paths}
    made = getattr(code, class_name(layer))(**arguments({**origin.sizes, **given}), device="meta")
    _share(made, model, code.__name__)
    return made.eval()


def _share(made: nn.Module, model: nn.Module, code: str) -> None:
    """Give a module, and the layers of generated code in it, the parameters of another one, and all
    other layers themselves."""
    for name, child in [*made.named_children()]:
        own = getattr(model, name)
        own = getattr(own, "_orig_mod", own)
        if type(child).__module__ != code and not isinstance(child, nn.ModuleList):
            setattr(made, name, own)
        elif type(child).__name__ != type(own).__name__:
            wanted, got = type(child).__name__, type(own).__name__
            raise ValueError(f"`{name}` was replaced: it was a {wanted}, and is a {got}")
        else:
            _share(child, own, code)
    for kind in ("_parameters", "_buffers"):
        vars(made)[kind] = vars(model)[kind]


# --- states -------------------------------------------------------------------------------------


def parts(state: Any, path: str = "") -> Iterator[tuple[str, str, Tensor]]:
    """The tensors of a state by their paths in it, and how each keeps what it does: "cache" (room
    for every token), "ring" (for the latest, in turn), "count" (how many tokens there were),
    "shared" (no row for each sequence) or "row"."""
    kind = type(state)
    names = getattr(kind, "_fields", range(len(state)))
    marks = {"_grows": "cache", "_rings": "ring", "_shared": "shared"}
    for name, part in zip(names, state, strict=True):
        if isinstance(part, Tensor):
            how = "count" if name == "pos" else "row"
            how = next((mark for key, mark in marks.items() if name in getattr(kind, key)), how)
            yield f"{path}.{name}", how, part
        elif isinstance(part, tuple):
            yield from parts(part, f"{path}.{name}")


def put(into: Any, state: Any, slot: int) -> None:
    """Write the state of one sequence, as any module of archc has it, into a slot."""
    for name, part in zip(into._fields, into, strict=True):
        put_part(into, state, name, part, slot)


def put_part(into: Any, state: Any, name: str, part: Any, slot: int) -> None:
    """The same of one field."""
    given, kind = getattr(state, name), type(into)
    if isinstance(part, tuple):
        each = [(part, given)] if hasattr(part, "_fields") else zip(part, given, strict=True)
        for inner, own in each:
            put(inner, own, slot)
    elif name == "pos":
        part[slot] = given
    elif name in kind._grows:
        part[slot, : given.shape[1]] = given[0]
    elif name in kind._rings:
        at = torch.arange(state.pos - given.shape[1], state.pos, device=part.device)
        part[slot, at % part.shape[1]] = given[0]
    elif isinstance(part, Tensor) and name not in kind._shared:
        part[slot] = given[0]


def clear(into: Any, first: Any, slot: int) -> None:
    """Let a slot be as those of `first` are, which has one: nothing of what was kept stays, numbers
    that are none among it."""
    for (_, how, x), (_, _, y) in zip(parts(into), parts(first), strict=True):
        if how in ("cache", "ring"):
            x[slot] = 0
        elif how != "shared":
            x[slot] = y[0]


def advance(into: Any, after: Any, live: Tensor) -> None:
    """Write what a call made of a state over it, which took the place of what it read already where
    it was kept in place. Sequences that are not `live` [batch] have seen nothing."""
    changed = [
        (how, x, y)
        for (_, how, x), (_, _, y) in zip(parts(into), parts(after), strict=True)
        if x.data_ptr() != y.data_ptr() or x.shape != y.shape
    ]
    written = {x.untyped_storage().data_ptr() for _, x, _ in changed}
    found = [
        (how, x, y.clone() if y.untyped_storage().data_ptr() in written else y)
        for how, x, y in changed
    ]
    for how, x, y in found:
        x.copy_(y * live if how == "count" else y)


def changed(state: Any) -> list[Tensor]:
    """The tensors of a state that a call changes elsewhere than at the place of its token."""
    return [x for _, how, x in parts(state) if how not in ("cache", "ring", "shared")]


def moved(into: Any, state: Any) -> None:
    """Write a state into one with more room."""
    for (_, _, x), (_, _, y) in zip(parts(into), parts(state), strict=True):
        x[tuple(slice(length) for length in y.shape)] = y
