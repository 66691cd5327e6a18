"""A model whose sequences have a slot each: its weights, in code that reads one token of each.

The state of such a model is one batch, in which sequences are of different lengths. What an
attention keeps of them is written in place, into memory with room for a number of tokens; nothing
of a call has a shape or an address that depends on a sequence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
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
from archc.runtime.paged import NOBODY, PAGE, Pages


def alone(model: nn.Module) -> str | None:
    """The reason why sequences of different lengths cannot be in one batch; None if they can."""
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


class Table:
    """The pages of each of some slots: `pages` in all, and `table` [slots, N] on a device, for
    sequences of at most `most` tokens."""

    def __init__(self, slots: int, pages: int, most: int, device: torch.device) -> None:
        self.pages, self.free = pages, [*range(NOBODY + pages, NOBODY, -1)]
        self.held: list[list[int]] = [[] for _ in range(slots)]
        shape = (slots, -(-most // PAGE))
        self.table = torch.full(shape, NOBODY, dtype=torch.int32, device=device)

    def wanted(self, slot: int, length: int) -> int:
        """How many pages a slot needs to hold so many tokens, besides those that it has."""
        return max(0, -(-length // PAGE) - len(self.held[slot]))

    def lacking(self, lengths: Mapping[int, int], leaving: Collection[int] = ()) -> str:
        """The reason why there is no room in slots for so many tokens each, once others have left;
        "" where there is."""
        wanted = sum(self.wanted(*each) for each in lengths.items())
        free = len(self.free) + sum(len(self.held[slot]) for slot in leaving)
        if wanted <= free:
            return ""
        need = "1 page is needed" if wanted == 1 else f"{wanted} pages are needed"
        return f"{need}, of {PAGE} tokens, and {free} of {self.pages} are free"

    def hold(self, lengths: Mapping[int, int]) -> None:
        """Give slots pages for so many tokens each. Raises ValueError, and changes nothing, where
        there are not enough."""
        if lacking := self.lacking(lengths):
            raise ValueError(lacking)
        rows, columns, pages = list[int](), list[int](), list[int]()
        for slot, length in lengths.items():
            for _ in range(self.wanted(slot, length)):
                rows.append(slot)
                columns.append(len(self.held[slot]))
                pages.append(self.free.pop())
                self.held[slot].append(pages[-1])
        if pages:
            at = torch.tensor([rows, columns, pages], device=self.table.device)
            self.table[at[0], at[1]] = at[2].int()

    def release(self, slot: int) -> list[int]:
        """Take its pages from a slot."""
        pages, self.held[slot] = self.held[slot], []
        self.free += pages
        self.table[slot] = NOBODY
        return pages


class Slots:
    """Sequences of different lengths, of each of which a call reads one token. `room`: for how many
    tokens of each there is memory at first; `steady`: the model's states need none, and it reads
    them itself where it has no form for slots, which writes them in place. With `pages`
    what is kept of every token is in so many pages, and no sequence gets longer than `room`."""

    def __init__(
        self, model: nn.Module, count: int, room: int, steady: bool = False, pages: int = 0
    ) -> None:
        self.own = not steady or alone(model) is None
        self.model: Any = in_slots(model) if self.own else model
        self.count, self.room, self.steady = count, room, steady
        self.lengths = [0] * count
        self.table: Table | None = None
        if pages:
            device = next(model.parameters()).device
            self.table, self.room = Table(count, pages, room, device), self._longest_ring()
        self.state, self.first = self._blank(count), self._blank(1)
        if self.table is not None:
            self.room = room
            rooms = (PAGE, PAGE * self.table.table.shape[1]) if self.own else ()
            each = (self.model.initial_state(1, n, "meta") for n in rooms)
            self.state = paged(self.state, pages, self.table.table, *each)
            if not any(how == "paged" for _, how, _ in parts(self.state)):
                raise ValueError("`pages` are for what is kept of every token, and nothing is here")

    def _longest_ring(self) -> int:
        """The tokens that the largest cache of the latest tokens alone has room for; at least 1."""
        shapes = parts(self.model.initial_state(1, self.room, "meta")) if self.own else ()
        return max([1, *(x.shape[1] for _, how, x in shapes if how == "ring")])

    def _blank(self, count: int) -> Any:
        """The state of so many sequences before their first token."""
        room = (self.room,) if self.own else ()
        return self.model.initial_state(count, *room).clone()

    def put(self, slot: int, state: Any) -> bool:
        """Let a slot hold a sequence that has been read, as a state of any module of archc has it;
        whether memory is another one now. Raises ValueError where pages are lacking."""
        length = tokens_seen(state)
        if self.table is not None:
            self.table.hold({slot: length})
        self.lengths[slot] = length
        anew = self.make_room()
        put(self.state, state, slot)
        return anew

    def clear(self, slot: int) -> None:
        """Forget what a slot holds."""
        self.lengths[slot] = 0
        clear(self.state, self.first, slot)
        if self.table is not None:
            pages = self.table.release(slot)
            for _, how, x in parts(self.state):
                if how == "paged":
                    x.memory[pages] = 0  # nothing stays that is no number

    def make_room(self) -> bool:
        """More room for every sequence where one has none left: twice as much, or what it needs; or
        a page for each that needs one. Whether memory is another one now."""
        if self.table is not None:
            self.table.hold(dict(enumerate(self.lengths)))
            return False
        if self.steady or max(self.lengths) <= self.room:
            return False
        self.room = max(2 * self.room, *self.lengths)
        before, self.state = self.state, self._blank(self.count)
        moved(self.state, before)
        return True

    def run(self, tokens: Tensor, live: Tensor) -> Any:
        """The result of the model for tokens [slots, 1]: a call of tensors alone, which a CUDA
        graph can record. Slots that are not `live` [slots] are as if nothing had been read
        there."""
        made, state = self.model(tokens, state=self.state, return_state=True)
        advance(self.state, state, live)
        return made


# --- states -------------------------------------------------------------------------------------


def parts(state: Any, path: str = "") -> Iterator[tuple[str, str, Any]]:
    """The tensors of a state by their paths in it, and how each keeps what it does: "cache" (room
    for every token), "paged" (such a cache, in `Pages`), "ring" (room for the latest, in turn),
    "count" (how many tokens there were), "shared" (no row for each sequence) or "row"."""
    kind = type(state)
    names = getattr(kind, "_fields", range(len(state)))
    marks = {"_grows": "cache", "_rings": "ring", "_shared": "shared"}
    for name, part in zip(names, state, strict=True):
        if isinstance(part, Tensor):
            how = "count" if name == "pos" else "row"
            how = next((mark for key, mark in marks.items() if name in getattr(kind, key)), how)
            yield f"{path}.{name}", how, part
        elif isinstance(part, Pages):
            yield f"{path}.{name}", "paged", part
        elif isinstance(part, tuple):
            yield from parts(part, f"{path}.{name}")


def paged(state: Any, pages: int, table: Tensor, one: Any, all: Any) -> Any:
    """A state of slots, what it keeps of every token in so many pages, which a table names. `one`
    and `all` are states with room for as many tokens as one page has, and as all of a sequence:
    of blocks of tokens a page has room for fewer."""
    kind = type(state)
    if not hasattr(kind, "_fields"):
        parts = zip(state, one, all, strict=True)
        return tuple(paged(part, pages, table, *others) for part, *others in parts)

    def field(name: str, part: Any, one: Any, all: Any) -> Any:
        if isinstance(part, Tensor) and name in kind._grows:
            each = max(one.shape[1], -(-all.shape[1] // table.shape[1]), 1)
            return Pages(part.new_zeros(NOBODY + 1 + pages, each, *part.shape[2:]), table)
        return paged(part, pages, table, one, all) if isinstance(part, tuple) else part

    fields = zip(kind._fields, state, one, all, strict=True)
    return kind(*(field(*each) for each in fields))


def tokens_seen(state: Any) -> int:
    """How many tokens a state of one sequence has seen, where it counts them; else 0."""
    inner = (tokens_seen(part) for part in state if isinstance(part, tuple))
    return max([getattr(state, "pos", 0), *inner])


def put(into: Any, state: Any, slot: int) -> None:
    """Write the state of one sequence, as any module of archc has it, into a slot. Raises
    IndexError where there is no such slot, ValueError where the state is of several sequences, or
    has more tokens than a slot has room for."""
    for name, part in zip(into._fields, into, strict=True):
        put_part(into, state, name, part, slot)


def put_part(into: Any, state: Any, name: str, part: Any, slot: int) -> None:
    """The same of one field."""
    given, kind = getattr(state, name), type(into)
    if isinstance(part, Tensor) and name not in kind._shared and not 0 <= slot < len(part):
        raise IndexError(f"there are {len(part)} slots, from 0 on: there is no {slot}")
    if isinstance(part, tuple):
        each = [(part, given)] if hasattr(part, "_fields") else zip(part, given, strict=True)
        for inner, own in each:
            put(inner, own, slot)
    elif name == "pos":
        part[slot] = given
    elif name in kind._shared:
        return
    elif len(given) != 1:
        raise ValueError(f"a slot is for one sequence, and `{name}` is of {len(given)}")
    elif isinstance(part, Pages):
        part.write(slot, given[0])
    elif name in kind._grows and given.shape[1] > part.shape[1]:
        room = f"a slot has room for {part.shape[1]}"
        raise ValueError(f"`{name}` has {given.shape[1]} tokens, and {room}")
    elif name in kind._grows:
        part[slot, : given.shape[1]] = given[0]
    elif name in kind._rings:
        at = torch.arange(state.pos - given.shape[1], state.pos, device=part.device)
        part[slot, at % part.shape[1]] = given[0]
    elif name in kind._blocks:
        _put_last(part[slot], given[0])
    elif isinstance(part, Tensor):
        part[slot] = given[0]


def _put_last(into: Tensor, given: Tensor) -> None:
    """Write the tokens of a block that is not complete behind those that it has no need of."""
    count = min(len(into), len(given))
    into.zero_()
    into[len(into) - count :] = given[len(given) - count :]


def clear(into: Any, first: Any, slot: int) -> None:
    """Let a slot be as those of `first` are, which has one: nothing of what was kept stays, numbers
    that are none among it."""
    for (_, how, x), (_, _, y) in zip(parts(into), parts(first), strict=True):
        if how in ("cache", "ring"):
            x[slot] = 0
        elif how not in ("shared", "paged"):
            x[slot] = y[0]


def advance(into: Any, after: Any, live: Tensor) -> None:
    """Write what a call made of a state over it, which took the place of what it read already where
    it was kept in place. Sequences that are not `live` [batch] have seen nothing."""
    changed = [
        (how, x, y)
        for (_, how, x), (_, _, y) in zip(parts(into), parts(after), strict=True)
        if how != "paged" and (x.data_ptr() != y.data_ptr() or x.shape != y.shape)
    ]
    written = {x.untyped_storage().data_ptr() for _, x, _ in changed}
    found = [
        (how, x, y.clone() if y.untyped_storage().data_ptr() in written else y)
        for how, x, y in changed
    ]
    if found:  # one launch for all that lie alike
        every = [x for _, x, _ in found]
        made = [y * live if how == "count" else y for how, _, y in found]
        torch.ops.aten._foreach_copy_(every, made)


def changed(state: Any) -> list[Tensor]:
    """The tensors of a state that a call changes elsewhere than at the place of its token."""
    return [x for _, how, x in parts(state) if how in ("row", "count")]


def moved(into: Any, state: Any) -> None:
    """Write a state into one with more room."""
    for (_, _, x), (_, _, y) in zip(parts(into), parts(state), strict=True):
        x[tuple(slice(length) for length in y.shape)] = y


def taken(model: Any, state: Any, slot: int, like: Any) -> Any:
    """The state of one sequence out of its slot, as modules have it that keep no slots: the inverse
    of `put`. `model`: that of the slots; `like`: such a state of the same model, for its
    classes."""
    seen = max([int(x[slot]) for _, how, x in parts(state) if how == "count"], default=0)
    return _taken(state, slot, like, model.initial_state(1, seen, "meta"))


def _taken(state: Any, slot: int, like: Any, whole: Any) -> Any:
    """The same; `whole`: a state with room for all tokens of the sequence, and no more."""
    kind = type(like)
    if not hasattr(kind, "_fields"):
        each = zip(state, like, whole, strict=True)
        return tuple(_taken(part, slot, *others) for part, *others in each)
    each = ((name, getattr(like, name), getattr(whole, name)) for name in kind._fields)
    return kind(*(_taken_part(state, name, slot, *others) for name, *others in each))


def _taken_part(state: Any, name: str, slot: int, like: Any, whole: Any) -> Any:
    """The same of one field."""
    part, kind = getattr(state, name), type(state)
    if isinstance(part, tuple):
        return _taken(part, slot, like, whole)
    if name == "pos":
        return int(part[slot])
    if isinstance(part, Pages):
        return part.of(slot, whole.shape[1])
    if not isinstance(part, Tensor) or name in kind._shared:
        return part
    if name in kind._grows:
        return part[slot : slot + 1, : whole.shape[1]].clone()
    if name in kind._blocks:
        return part[slot : slot + 1, max(0, part.shape[1] - int(state.pos[slot])) :].clone()
    if name in kind._rings:
        end, places = int(state.pos[slot]), part.shape[1]
        at = torch.arange(max(0, end - places + 1), end, device=part.device) % places
        return part[slot : slot + 1, at]
    return part[slot : slot + 1].clone()
