"""States as objects: named tuples that are moved, copied, reordered, and kept in files."""

import os
import sys
import zipfile
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archc.runtime.growing import limited, most_of, with_most


class StateMethods:
    """The methods of every state. It is a named tuple still: of tensors, numbers, and states of
    layers."""

    _asdict: Any  # of every named tuple, as the next one
    _replace: Any
    rows: Any  # of a RaggedState

    def to(self, device: Any = None, dtype: torch.dtype | None = None) -> Any:
        """The state on a device, or in a dtype: `state.to("cuda")`, `state.to(torch.bfloat16)`.
        States of recurrences stay in float32 at least, whole numbers what they are."""
        if isinstance(device, torch.dtype):
            device, dtype = None, device

        def moved_to(x: Tensor, wide: bool, shared: bool) -> Tensor:
            kind = dtype if x.is_floating_point() else None
            kind = torch.promote_types(kind, torch.float32) if kind and wide else kind
            return x.to(device=device, dtype=kind)

        return each_tensor(self, moved_to)

    def detach(self) -> Any:
        """The state without its history: no gradient goes further back."""
        return each_tensor(self, lambda x, wide, shared: x.detach())

    def clone(self) -> Any:
        """A copy that shares no memory with the state."""
        return each_tensor(self, lambda x, wide, shared: x.clone())

    def select(self, index: Any) -> Any:
        """The states of some sequences of the batch, in the order of `index`: numbers, which may
        repeat (the survivors of a beam search), or a mask."""
        title, given = type(self).__name__, torch.as_tensor(index)
        if given.is_floating_point() and given.numel():
            raise TypeError(f"{title}: `index` must be whole numbers or a mask, got {index}")
        at = given.nonzero().squeeze(1) if given.dtype == torch.bool else given.long()
        if isinstance(self, RaggedState):
            check_chosen(title, given, len(self.rows))
            return joined_states([self.rows[i] for i in at.tolist()])

        def chosen(x: Tensor, wide: bool, shared: bool) -> Tensor:
            if shared:
                return x
            check_chosen(title, given, x.shape[0])
            return x.index_select(0, at.to(x.device))

        return each_tensor(self, chosen)

    def replace(self, **tensors: Any) -> Any:
        """The state with tensors of yours in place of its own, by name: of the same shape, but for
        dims that held nothing yet."""
        title, known = type(self).__name__, self._asdict()
        for name, new in tensors.items():
            if name not in known:
                have = ", ".join(f"`{each}`" for each in known)
                raise ValueError(f"{title} has no `{name}`: it has {have or 'nothing'}")
            old = known[name]
            if isinstance(new, Tensor) != isinstance(old, Tensor) and old is not None:
                wanted, got = type(old).__name__, type(new).__name__
                raise TypeError(f"{title}: `{name}` must be an instance of {wanted}, got {got}")
            if isinstance(old, Tensor):
                pairs = zip(old.shape, new.shape, strict=False)
                if old.dim() != new.dim() or any(a not in (b, 0) for a, b in pairs):
                    wanted = ", ".join(str(n) if n else "any" for n in old.shape)
                    got = f"got a tensor of shape {list(new.shape)}"
                    raise ValueError(f"{title}: `{name}` must be [{wanted}], {got}")
        return self._replace(**tensors)

    def reserve(self, capacity: int) -> Any:
        """The state, with room for so many tokens of each sequence in all that an attention keeps:
        it is taken at once when the first is kept, and one token more is an error. A state without
        this grows as it has to."""
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            raise ValueError(f"`capacity` must be a number of tokens, at least 1, got {capacity!r}")
        return with_capacity(self, capacity)

    def save(self, path: Any) -> None:
        """Keep the state in a file, for `load`: tensors and numbers by their names, no code. The
        file is replaced when the new one is whole."""
        new = f"{os.fspath(path)}.new"
        torch.save(as_plain(self), new)
        os.replace(new, path)

    @classmethod
    def load(cls, path: Any, device: Any = None) -> Any:
        """The state that `save` kept of a layer of the same kind: `layer.State.load(path)`."""
        with open(path, "rb") as file:
            try:
                with zipfile.ZipFile(file) as whole:
                    torn = whole.testzip()  # torch does not look at the check sums
            except zipfile.BadZipFile as error:
                torn = str(error)
        if torn:
            raise ValueError(f"{path} is torn, or no state that was saved: {torn}")
        kept = torch.load(path, map_location=device, weights_only=True)
        if not isinstance(kept, dict) or kept.get("state") not in (cls.__name__, "RaggedState"):
            found = kept.get("state") if isinstance(kept, dict) else type(kept).__name__
            raise ValueError(f"{path} holds {found}, not {cls.__name__}")
        return from_plain(kept, cls)


def state_object(
    wide: str = "", shared: str = "", grows: str = "", rings: str = "", blocks: str = ""
) -> Callable[[type], type]:  # fmt: skip
    """Give a named tuple the methods of a state. `wide` names its fields that are in float32 at
    least, `shared` those that have no row for each sequence, `grows` those that get longer with
    every token, or have room for all of them, `rings` those that keep the latest in turn, `blocks`
    those that have the last tokens for a block that is not complete."""

    def with_methods(kind: type) -> type:
        for name, method in vars(StateMethods).items():
            if not name.startswith("__"):
                setattr(kind, name, method)
        kind._wide, kind._shared = frozenset(wide.split()), frozenset(shared.split())
        kind._grows, kind._rings = frozenset(grows.split()), frozenset(rings.split())
        kind._blocks = frozenset(blocks.split())
        return kind

    return with_methods


@state_object()
class RaggedState(NamedTuple):
    """States of sequences of which each keeps as much as it has seen: one of a batch of 1 for each.
    It is given where a state of all would be, and sequences that keep equally much run together."""

    rows: tuple

    @property
    def pos(self) -> Tensor:
        """How many tokens each sequence has seen."""
        return torch.tensor([row.pos for row in self.rows])


def each_tensor(value: Any, change: Callable, wide: bool = False, shared: bool = False) -> Any:
    """A state, its tensors changed; `change` is told what kind of field each one is."""
    if isinstance(value, Tensor):
        return with_most(change(value, wide, shared), most_of(value))
    if not isinstance(value, tuple):
        return value
    kind: Any = type(value)
    if not hasattr(kind, "_fields"):
        return tuple(each_tensor(part, change) for part in value)
    wides, alike = getattr(kind, "_wide", ()), getattr(kind, "_shared", ())
    named = zip(kind._fields, value, strict=True)
    return kind(*(each_tensor(part, change, n in wides, n in alike) for n, part in named))


def with_capacity(value: Any, capacity: int) -> Any:
    """A state whose values of every token are at most so long."""
    if not isinstance(value, tuple):
        return value
    kind: Any = type(value)
    grows = getattr(kind, "_grows", ())
    names = getattr(kind, "_fields", [""] * len(value))
    parts = [
        limited(part, capacity) if name in grows else with_capacity(part, capacity)
        for name, part in zip(names, value, strict=True)
    ]
    return kind(*parts) if hasattr(kind, "_fields") else tuple(parts)


def as_plain(value: Any) -> Any:
    """A state without its classes: a dict for a named tuple, a list for another one."""
    if isinstance(value, Tensor):
        return value.clone() if value.numel() < value.untyped_storage().nbytes() else value
    if hasattr(value, "_fields"):
        named = zip(value._fields, value, strict=True)
        fields = {name: as_plain(part) for name, part in named}
        return {"state": type(value).__name__, "fields": fields}
    return [as_plain(part) for part in value] if isinstance(value, tuple) else value


def from_plain(kept: Any, kind: type) -> Any:
    """The inverse: classes are those of the file that `kind` is from."""
    if isinstance(kept, list):
        return tuple(from_plain(part, kind) for part in kept)
    if not isinstance(kept, dict):
        return kept
    name, home = kept["state"], sys.modules[kind.__module__]
    made: Any = RaggedState if name == "RaggedState" else getattr(home, name, None)
    if [*kept["fields"]] != [*getattr(made, "_fields", ())] or not isinstance(made, type):
        have = ", ".join(kept["fields"])
        raise ValueError(f"the state of another layer was kept: {name} with {have or 'nothing'}")
    return made(*(from_plain(part, kind) for part in kept["fields"].values()))


def check_chosen(title: str, given: Tensor, count: int) -> None:
    """Refuse a mask or numbers of other sequences than there are; on a GPU, where nothing is waited
    for, torch does."""
    if given.dtype == torch.bool:
        if given.shape != (count,):
            wanted = f"a mask has {count} truth values, got {list(given.shape)}"
            raise ValueError(f"{title}: {wanted}")
    elif given.device.type == "cpu" and not torch.compiler.is_compiling():
        wrong = [row for row in given.flatten().tolist() if not 0 <= row < count]
        if wrong:
            raise IndexError(f"{title} is of {count} sequences, from 0 on: there is no {wrong[0]}")


def state_rows(layer: str, state: Any, rows: list[int], count: int) -> Any:
    """Some rows of a state, or of another value, of `count` sequences."""
    refused = f"{layer}: there are {count} sequences, so must the state be of {count}, got {{}}"

    def chosen(x: Tensor, wide: bool, shared: bool) -> Tensor:
        if not shared and x.shape[0] != count:
            raise ValueError(refused.format(x.shape[0]))
        return x if shared or rows == whole else x[rows]

    whole = [*range(count)]  # all of them are what they are, with the room behind them
    if isinstance(state, RaggedState):
        if len(state.rows) != count:
            raise ValueError(refused.format(len(state.rows)))
        return joined_states([state.rows[i] for i in rows])
    return each_tensor(state, chosen)


def joined_states(states: list) -> Any:
    """The states of several sequences as one of a batch; where they differ in what they keep,
    a state that has each by itself."""
    if not states:
        raise ValueError("there is no state of no sequences")
    if len({kept_by(state) for state in states}) > 1:
        return RaggedState(tuple(states))
    return one_batch(states)


def one_batch(values: list, shared: bool = False) -> Any:
    """States of one shape, one after the other in the batch."""
    first = values[0]
    if len(values) == 1:
        return first
    if isinstance(first, Tensor):
        known = [most for x in values if (most := most_of(x)) is not None]
        return first if shared else with_most(torch.cat(values), min(known, default=None))
    if not isinstance(first, tuple):
        return first
    kind: Any = type(first)
    alike = getattr(kind, "_shared", ())
    names = getattr(kind, "_fields", range(len(first)))
    parts = zip(names, zip(*values, strict=True), strict=True)
    made = [one_batch([*part], name in alike) for name, part in parts]
    return kind(*made) if hasattr(kind, "_fields") else tuple(made)


def kept_by(state: Any, shared: bool = False) -> Any:
    """The part of a state that must be alike for states to stand in one batch: shapes of tensors,
    and numbers."""
    if not isinstance(state, tuple):
        return state.shape[0 if shared else 1 :] if isinstance(state, Tensor) else state
    alike = getattr(type(state), "_shared", ())
    names = getattr(type(state), "_fields", range(len(state)))
    return tuple(kept_by(part, n in alike) for n, part in zip(names, state, strict=True))
