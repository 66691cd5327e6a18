"""Sequences that come and go between tokens: a pool of slots, of which each holds one.

    pool = archc.serving.Pool(model, slots=8, capacity=2048)
    number = pool.add(prompt, temperature=0.8, seed=3)
    while pool.live:
        for number, token in pool.step().items():
            ...

The states of all slots stand in one batch, which a step changes in place, whatever length each
sequence has (`archc/slots.py`): nothing of a step has a shape or an address that depends on the
sequences, so that a CUDA graph can record it. Models that have no such form (`alone` says why) have
a state for each slot, and read one sequence after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from archc import slots as own_slots
from archc.prefill import Prefill, groups
from archc.runtime.kept_states import kept_by
from archc.runtime.paged import PAGE
from archc.sampling import (
    Choice,
    at_shares,
    check_end,
    check_vocabulary,
    is_whole,
    reading,
    share,
    text_model,
)
from archc.side_by_side import SideBySide


@dataclass
class Continued:
    """One sequence of a pool: its tokens, how more are drawn, how many more there may be, and how
    many are read at once. One that `waits` has a slot with nothing in it."""

    slot: int
    tokens: list[int]
    choice: Choice
    left: int | None
    eos: int | None
    chunk: int | None = None
    new: list[int] = field(default_factory=list)
    waits: bool = False

    def __len__(self) -> int:
        return len(self.tokens) + len(self.new)

    def share(self) -> float:
        """The random number that chooses its next token."""
        if self.choice.seed is None:
            return float(torch.rand((), dtype=torch.float64))
        return share(self.choice.seed, 0, len(self.new))

    def take(self, token: int) -> bool:
        """One token more; whether it was the last."""
        self.new.append(token)
        self.left = None if self.left is None else self.left - 1
        return self.left == 0 or token == self.eos


class Lanes(Protocol):
    """The states of all slots, and the logits behind the last token of each."""

    logits: Tensor

    def seen(self) -> Tensor:
        """The likeliest token of every slot, and whether its logits are NaN: [2, slots]."""
        ...

    def put(self, slot: int, state: Any, logits: Tensor) -> None:
        """Let a slot hold a sequence that has been read."""
        ...

    def read(self, tokens: dict[int, int]) -> None:
        """Read one token more in some slots."""
        ...

    def clear(self, slot: int) -> None:
        """Forget what a slot holds."""
        ...

    def lacking(self, lengths: Mapping[int, int], leaving: Collection[int] = ()) -> str:
        """The reason why there is no room in slots for so many tokens each, once others have left;
        "" where there is."""
        ...


class Pool:
    """Sequences that a model continues together; each as `archc.generate` continues it alone."""

    def __init__(
        self,
        model: nn.Module,
        slots: int,
        capacity: int | None = None,
        pages: int | None = None,
    ) -> None:
        """`slots` sequences at once, each of at most `capacity` tokens that are read (its prompt,
        and all that is drawn but for the last): memory for these is taken at once. Without it there
        is room for more whenever a sequence needs it, in memory that is taken then.

        With `pages` sequences share so many pages of 64 tokens, each of which one takes when it
        gets so long, and gives back at its end: what attentions keep takes as much memory as all
        sequences are long together, and not `slots` times the longest. Where too few are free for a
        token more of each, the youngest sequence gives back its own and waits (`waiting`): it is
        read again, from its first token, once there are enough, and goes on as it would have."""
        given = {"capacity": capacity, "pages": pages}
        given = {"slots": slots} | {name: x for name, x in given.items() if x is not None}
        for name, value in given.items():
            if not is_whole(value) or value < 1:
                raise ValueError(f"`{name}` must be a whole number, at least 1, got {value!r}")
        self.model, self.kind = model, text_model(model, beside=True)
        whole = None if pages is None else pages * PAGE
        bounds = [each for each in (capacity, self.kind.limit, whole) if each is not None]
        self.most, self.paged = min(bounds, default=None), pages is not None
        self.free = list(range(slots))[::-1]
        self._live, self._done = dict[int, Continued](), dict[int, Continued]()
        self._next = 0
        steady = not self.kind.beside and _steady(model)
        self.alone = None if steady else own_slots.alone(model)
        if pages is not None and (steady or self.alone is not None):
            why = self.alone or f"{self.kind.name} keeps nothing of every token"
            raise ValueError(f"there is nothing to be in `pages`: {why}")
        self.prefill = Prefill(model, self.kind, None if self.alone is None else capacity)
        with reading(model):
            self.lanes: Lanes = (
                Together(model, self.kind, slots, self.most, steady, pages or 0)
                if self.alone is None
                else Alone(model, self.kind, slots)
            )

    @property
    def live(self) -> tuple[int, ...]:
        """The numbers of the sequences that are continued."""
        return tuple(self._live)

    @property
    def waiting(self) -> tuple[int, ...]:
        """The numbers of those among them that wait for pages: a step draws no token of these."""
        return tuple(number for number, each in self._live.items() if each.waits)

    def add(
        self,
        prompt: Tensor,
        count: int | None = None,
        *,
        temperature: float = 1.0,
        top: int | None = None,
        top_p: float | None = None,
        eos: int | None = None,
        seed: int | None = None,
        chunk: int | None = None,
        beside: Mapping[str, Tensor] | None = None,
    ) -> int:
        """Read a prompt [T], `chunk` tokens at a time or at once, and the other sequences `beside`
        it, [M] and so on by name, of a model that reads such; the number that its sequence has from
        now on. It ends behind `count` tokens, or as many as there is room for, and behind
        `eos`; options are those of `archc.generate`.

        Raises ValueError where no slot is free, or too few pages, or other sequences wait for some,
        and for a prompt that is empty or has no room.
        """
        choice = Choice(temperature, top, top_p, seed=seed)
        (number,) = self._add([prompt], count, choice, eos, chunk, beside)
        return number

    def add_all(
        self,
        prompts: Sequence[Tensor],
        count: int | None = None,
        *,
        temperature: float = 1.0,
        top: int | None = None,
        top_p: float | None = None,
        eos: int | None = None,
        seed: int | None = None,
        chunk: int | None = None,
    ) -> list[int]:
        """Read prompts [T] of any lengths, and the numbers of their sequences: what `add` makes of
        one after the other, but packed, so that the model reads as many at once as have `chunk`
        tokens in all, or all of them. Longer prompts are read side by side, in pieces that have
        `chunk` tokens in all.

        Raises ValueError as `add` does, before any prompt is read.
        """
        choice = Choice(temperature, top, top_p, seed=seed)
        return self._add(prompts, count, choice, eos, chunk)

    def _add(
        self,
        prompts: Sequence[Tensor],
        count: int | None,
        choice: Choice,
        eos: int | None,
        chunk: int | None,
        beside: Mapping[str, Tensor] | None = None,
    ) -> list[int]:
        """Read prompts, and give each a slot; other sequences may stand beside a single one."""
        check_end(self.kind, eos)
        for prompt in prompts:
            self._check_prompt(prompt)
        if len(prompts) > len(self.free):
            self._refuse_slots(len(prompts))
        if len(prompts) > 1 and self.kind.needed:
            raise ValueError(f"{self.kind.name} reads others too: `add` each prompt, `beside` it")
        left = [self._room(len(prompt), count) for prompt in prompts]
        lengths = dict(zip(self.free[::-1], map(len, prompts), strict=False))
        self._go_on()
        lacking = self.lanes.lacking(lengths)
        if self.waiting:
            lacking = f"{', '.join(map(str, self.waiting))} wait for pages before it"
        if lacking:
            what = f"a prompt of {len(prompts[0])}"
            if len(prompts) > 1:
                what = f"{len(prompts)} prompts of {sum(lengths.values())} tokens"
            raise ValueError(f"the pool has no room for {what}: {lacking}")
        slots = [*lengths]
        self._fill(slots, prompts, chunk, beside)
        numbers = list(range(self._next, self._next + len(prompts)))
        self._next += len(prompts)
        del self.free[len(self.free) - len(prompts) :]
        for number, slot, prompt, room in zip(numbers, slots, prompts, left, strict=True):
            self._live[number] = Continued(slot, prompt.tolist(), choice, room, eos, chunk)
        return numbers

    @torch.no_grad()
    def _fill(
        self,
        slots: Sequence[int],
        prompts: Sequence[Tensor],
        chunk: int | None,
        beside: Mapping[str, Tensor] | None,
    ) -> None:
        """Read prompts, each into its slot; where one cannot be read, all are empty again."""
        held, whole = list[int](), False
        try:
            for group in groups([*map(len, prompts)], chunk):
                read = self.prefill.read([prompts[place] for place in group], chunk, beside)
                for place, (state, logits) in zip(group, read, strict=True):
                    held.append(slots[place])
                    self.lanes.put(slots[place], state, logits)
            whole = True
        finally:
            for slot in () if whole else held:
                self.lanes.clear(slot)

    def _check_prompt(self, prompt: Tensor) -> None:
        """Refuse what is no prompt, or has tokens that the model does not know."""
        if not isinstance(prompt, Tensor):
            raise TypeError(f"`prompt` must be a tensor [T], got {type(prompt).__name__}")
        if prompt.dim() != 1 or len(prompt) == 0:
            raise ValueError(f"`prompt` must be [T] with T >= 1, got {list(prompt.shape)}")
        check_vocabulary(self.kind, prompt)

    def _refuse_slots(self, wanted: int) -> None:
        """Refuse more prompts than slots are free."""
        held, slots = len(self._live), len(self._live) + len(self.free)
        if not self.free:
            raise ValueError(f"the pool is full: all of its {slots} slots hold a sequence")
        raise ValueError(f"{wanted} prompts need a slot each: {held} of {slots} hold a sequence")

    def step(self) -> dict[int, int]:
        """One token more of every live sequence that does not wait for pages, by its number. A
        sequence that ends with it leaves its slot free. Raises ValueError where logits are NaN,
        before any token is drawn."""
        if not self._live:
            return {}
        if self.paged:
            self._go_on()
            self._let_wait()
        order, chosen = self._chosen()
        seen = self.lanes.seen()
        told = torch.cat([seen.flatten(), *chosen]).tolist()  # read from the device once
        slots = seen.shape[1]
        self._refuse_nan(told[slots : 2 * slots])
        drawn = {n: told[each.slot] for n, each in self._going()}
        drawn |= dict(zip(order, told[2 * slots :], strict=True))
        still = {}
        for number, each in self._going():
            if each.take(drawn[number]):
                self._finish(number)
            else:
                still[each.slot] = drawn[number]
        if still:
            self.lanes.read(still)
        return drawn

    @torch.no_grad()
    def _chosen(self) -> tuple[list[int], list[Tensor]]:
        """The sequences that do not take the likeliest token, and the next tokens of these: those
        with the same options together. What is random of a sequence is one number a token."""
        alike: dict[tuple[Any, ...], list[int]] = {}
        for number, each in self._going():
            options = each.choice
            if options.temperature > 0:
                key = (options.temperature, options.top, options.top_p)
                alike.setdefault(key, []).append(number)
        rows = []
        for numbers in alike.values():
            every = [self._live[number] for number in numbers]
            logits = self.lanes.logits[[each.slot for each in every]]
            weights = every[0].choice.weights(logits)
            rows.append(at_shares(weights, [each.share() for each in every]).flatten())
        return [number for numbers in alike.values() for number in numbers], rows

    def tokens(self, number: int) -> Tensor:
        """The prompt of a sequence and what was drawn so far, [T], until it is removed."""
        each = self._found(number)
        return self._text(each)

    def _text(self, each: Continued) -> Tensor:
        """All tokens of a sequence, [T]."""
        return torch.tensor(each.tokens + each.new, device=self.lanes.logits.device)

    def remove(self, number: int) -> Tensor:
        """The tokens of a sequence, which is forgotten; its slot is free if it was live."""
        made = self.tokens(number)
        if number in self._live:
            self._finish(number)
        del self._done[number]
        return made

    def _finish(self, number: int) -> None:
        """Free the slot of a sequence, whose tokens are kept."""
        each = self._done[number] = self._live.pop(number)
        with torch.no_grad():
            self.lanes.clear(each.slot)
        self.free.append(each.slot)

    def _found(self, number: int) -> Continued:
        found = self._live.get(number) or self._done.get(number)
        if found is None:
            was = (
                "was removed" if isinstance(number, int) and 0 <= number < self._next else "is not"
            )
            raise ValueError(f"sequence {number!r} {was} in this pool")
        return found

    def _room(self, length: int, count: int | None) -> int | None:
        """How many tokens may be drawn behind a prompt."""
        if count is not None and (not is_whole(count) or count < 1):
            raise ValueError(f"`count` must be a whole number, at least 1, got {count!r}")
        if self.most is None:
            return count
        room = self.most - length + 1  # the last token is drawn, and not read
        if room < 1 or (count is not None and count > room):
            wanted = f"a prompt of {length}" + (f" and {count} more" if count else "")
            table = self.kind.limit == self.most
            of = f"{self.kind.name} has positions" if table else "a slot has room"
            raise ValueError(f"{of} for {self.most} tokens, too few for {wanted}")
        return room if count is None else count

    def _going(self) -> list[tuple[int, Continued]]:
        """The sequences that a step continues, by their numbers, the oldest first."""
        return [(number, each) for number, each in self._live.items() if not each.waits]

    @torch.no_grad()
    def _let_wait(self) -> None:
        """Let the youngest sequences give back their pages, until all others have room for a token
        more: the last one has, as no sequence gets longer than all pages."""
        longer, leaving = list[Continued](), list[int]()
        for _, each in self._going():
            if each.left == 1:
                leaving.append(each.slot)
            else:
                longer.append(each)
        while self.lanes.lacking({each.slot: len(each) + 1 for each in longer}, leaving):
            each = longer.pop()
            self.lanes.clear(each.slot)
            each.waits = True

    @torch.no_grad()
    def _go_on(self) -> None:
        """Read sequences that wait once more, the oldest first, where there is room for a page more
        of all others as well: so that they need not wait again for so many tokens."""
        for each in [each for each in self._live.values() if each.waits]:
            longer = {own.slot: len(own) + PAGE for _, own in self._going()}
            if self.lanes.lacking({**longer, each.slot: len(each) + 1}):
                return
            for state, logits in self.prefill.read([self._text(each)], each.chunk):
                self.lanes.put(each.slot, state, logits)
            each.waits = False

    def _refuse_nan(self, wrong: list[int]) -> None:
        """Refuse to draw from what are no numbers."""
        for number, each in self._going():
            if wrong[each.slot]:
                how = "pool.remove(...) lets the others go on"
                what = f"logits of sequence {number} are NaN"
                raise ValueError(f"{self.kind.name}: {what}: {how}")


NO_TOKEN = -1
"""The token of a slot without a sequence: it is read as token 0, and not kept."""


def _steady(model: nn.Module) -> bool:
    """Whether a state is as large after a token as before it, and no number in it counts."""
    first = model.initial_state(1)  # type: ignore[operator]
    token = torch.zeros(1, 1, dtype=torch.int64, device=next(model.parameters()).device)
    _, after = model(token, state=first, return_state=True)
    return bool(kept_by(first) == kept_by(after))


def _blank_logits(model: nn.Module, kind: Any, slots: int) -> Tensor:
    """Logits [slots, vocab] as the model makes them, of zeros."""
    if kind.beside:
        return next(model.parameters()).new_zeros(slots, kind.vocab)
    token = torch.zeros(1, 1, dtype=torch.int64, device=next(model.parameters()).device)
    return kind.logits(model(token)).new_zeros(slots, kind.vocab)


def _seen(logits: Tensor) -> Tensor:
    """The facts about logits [slots, vocab] that drawing tokens needs, in one tensor."""
    return torch.stack([logits.argmax(-1), logits.isnan().any(-1).long()])


LEAST_ROOM = 64
"""Tokens of each sequence that there is room for when memory is first taken, if nobody says."""


class Together:
    """States of all slots in one batch. A step reads one token in every slot, also where there is
    no sequence: its tensors are the same in every step. `capacity`: how many tokens of a sequence
    there will be room for, None for as many as there are; `steady`: nothing needs room; `pages`: in
    how many pages the tokens of all are, 0 for room in each slot."""

    def __init__(
        self,
        model: nn.Module,
        kind: Any,
        slots: int,
        capacity: int | None,
        steady: bool,
        pages: int = 0,
    ) -> None:
        self.kind = kind
        self.slots = own_slots.Slots(
            model, slots, LEAST_ROOM if capacity is None else capacity, steady, pages
        )
        self.logits = _blank_logits(model, kind, slots)
        place = self.logits.device
        self.about = _seen(self.logits)
        self.tokens = torch.full((slots, 1), NO_TOKEN, dtype=torch.int64, device=place)
        self.copies, self.added = SideBySide(self.slots.model), False
        self.graph = self._recorded() if place.type == "cuda" else None

    def put(self, slot: int, state: Any, logits: Tensor) -> None:
        self._recorded_for(self.slots.put(slot, state))
        self.added = True
        self.logits[slot] = logits[0]
        self.about[:, slot] = _seen(logits)[:, 0]

    def clear(self, slot: int) -> None:
        self.slots.clear(slot)
        self.logits[slot] = 0
        self.about[:, slot] = 0

    def lacking(self, lengths: Mapping[int, int], leaving: Collection[int] = ()) -> str:
        table = self.slots.table
        return "" if table is None else table.lacking(lengths, leaving)

    def seen(self) -> Tensor:
        return self.about

    def read(self, tokens: dict[int, int]) -> None:
        for slot in tokens:
            self.slots.lengths[slot] += 1
        every = [tokens.get(slot, NO_TOKEN) for slot in range(self.slots.count)]
        with reading(self.slots.model):
            moved, self.added = self.copies.renew(every=self.added), False
            self._recorded_for(self.slots.make_room() or moved)
            self.tokens.copy_(torch.tensor(every)[:, None])
            if self.graph is not None:
                self.graph.replay()
            else:
                self._run()

    def _recorded_for(self, anew: bool) -> None:
        """Record the step again where memory is another one now."""
        if anew and self.graph is not None:
            self.graph = self._recorded()

    def _run(self) -> None:
        """The step itself, of tensors alone: what a CUDA graph records."""
        with self.copies.used():
            made = self.slots.run(self.tokens.clamp(min=0), self.tokens[:, 0] != NO_TOKEN)
        self.logits.copy_(self.kind.logits(made)[:, -1])
        self.about.copy_(_seen(self.logits))

    def _recorded(self) -> torch.cuda.CUDAGraph:
        """The step as a CUDA graph; kernels are compiled before, by steps that leave no trace but
        where the next token of a sequence will be written."""
        kept = [self.logits, self.about, *own_slots.changed(self.slots.state)]
        before = [x.clone() for x in kept]
        stream = torch.cuda.Stream(self.logits.device)
        stream.wait_stream(torch.cuda.current_stream(self.logits.device))
        with torch.cuda.stream(stream):
            for _ in range(3):
                self._run()
                _restore(kept, before)
        torch.cuda.current_stream(self.logits.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._run()
        _restore(kept, before)
        return graph


def _restore(kept: list[Tensor], before: list[Tensor]) -> None:
    """Give tensors the values that they had."""
    for x, y in zip(kept, before, strict=True):
        x.copy_(y)


class Alone:
    """A state for each slot: sequences are read one after the other."""

    def __init__(self, model: nn.Module, kind: Any, slots: int) -> None:
        self.model, self.kind = model, kind
        self.states: list[Any] = [None] * slots
        self.logits = _blank_logits(model, kind, slots)

    def put(self, slot: int, state: Any, logits: Tensor) -> None:
        self.states[slot], self.logits = state, self.logits.to(logits.dtype)
        self.logits[slot] = logits[0]

    def clear(self, slot: int) -> None:
        self.states[slot] = None
        self.logits[slot] = 0

    def lacking(self, lengths: Mapping[int, int], leaving: Collection[int] = ()) -> str:
        return ""

    def seen(self) -> Tensor:
        return _seen(self.logits)

    def read(self, tokens: dict[int, int]) -> None:
        with reading(self.model):
            for slot, token in tokens.items():
                one, state = torch.tensor([[token]], device=self.logits.device), self.states[slot]
                made, self.states[slot] = self.kind.call(self.model, one, state, {})
                self.logits[slot] = self.kind.logits(made)[0, -1]
