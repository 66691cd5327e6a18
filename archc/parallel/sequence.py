"""Earlier tokens where each process has a part of the sequence: short looks back are given the
tokens of the process before, recurrences the state that all earlier parts come to, attends the
earlier tokens that they read, in halves of parts that read as much on all processes:

    tokens of four processes      0 0 1 1 2 2 3 3
    computed, if all are read     0 1 2 3 3 2 1 0
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archc.backends.eager.memory import memory_of
from archc.ir import layer as ir
from archc.ir.sizes import Number, evaluate
from archc.law import CompositionLaw
from archc.parallel.exchange import gathered
from archc.parallel.mesh import Ranks
from archc.parallel.overlapped import gathering, halves_of, moving
from archc.runtime.growing import one_after_other

Call = Callable[[Sequence[Tensor], Any], tuple[Tensor, ...]]
"""The outputs of a piece, of its values and the state before them."""


def anchor_of(values: Sequence[Tensor]) -> int:
    """The place of a value that has a gradient, if one has: of values that outputs are made of."""
    return next((i for i, x in enumerate(values) if x.requires_grad), 0)


def earlier_tokens(
    ranks: Ranks, title: str, values: Sequence[Tensor], streamed: Sequence[bool], halo: int
) -> tuple[list[Tensor], list[Tensor] | None]:
    """The values, and the same of the last `halo` tokens of the process before: none at the first
    process, whose tokens have none before them."""
    found = list(values)
    places = [i for i, along in enumerate(streamed) if along]
    length = found[places[0]].shape[1]
    if length < halo:
        raise ValueError(
            f"{title} looks {halo} tokens back, and each of the {ranks.count} ranks along "
            f"`{ranks.dim}` has {length} tokens: longer sequences or fewer ranks are needed"
        )
    at = places[anchor_of([found[i] for i in places])]
    tails = [found[i][:, length - halo :] for i in places]
    what = f"the tokens before its own, for {title}"
    found[at], every = gathered(ranks, what, found[at], tails)
    if not ranks.rank:
        return found, None
    before = dict(enumerate(found)) | dict(zip(places, every[ranks.rank - 1], strict=True))
    return found, [before[i] for i in range(len(found))]


def started(
    ranks: Ranks, law: CompositionLaw, values: Sequence[Tensor], first: Any, options: dict[str, Any]
) -> tuple[list[Tensor], Any]:
    """The values, and the state that this process's tokens start from: each process summarises its
    own, all tell each other, and each applies the summaries of those before it to `first`."""
    found, states = list(values), [first] * (ranks.count + 1)
    along = [i for i, stream in enumerate(law.streams) if stream is not None]
    at = along[anchor_of([found[i] for i in along])]  # not a learned first state: it is not read
    for number in range(law.rounds):
        part = law.part(number, found, states[ranks.rank], **options)
        what = f"summaries of {law.name}"
        found[at], every = gathered(ranks, what, found[at], list(part.values()))
        for i, each in enumerate(every):
            known = dict(zip(part, each, strict=True))
            states[i + 1] = law.after(number, known, states[i], states[i + 1])
    return found, states[ranks.rank]


def with_earlier(
    ranks: Ranks, layer: ir.Layer, sizes: Mapping[str, Number], values: Sequence[Tensor],
    first: Any, length: int,
) -> tuple[list[Tensor], Any]:  # fmt: skip
    """The values, and the state of an attend that holds all earlier tokens which it reads."""
    found, offset = list(values), ranks.rank * length
    place = {id: i for i, (id, _) in enumerate(layer.inputs)}
    fields = [each for each in memory_of(layer).fields if each.kind == "seen"]
    if not fields:
        return found, with_position(first, offset)
    counts = [length if f.count is None else int(evaluate(f.count, sizes)) for f in fields]
    read = [place[each.node] for each in fields]
    at = read[anchor_of([found[i] for i in read])]
    what = f"the tokens that {layer.name} reads"
    tails = [found[i][:, max(0, length - n) :] for i, n in zip(read, counts, strict=True)]
    found[at], every = gathered(ranks, what, found[at], tails)
    earlier = {}
    for n, each in enumerate(fields):
        tokens = torch.cat([*(row[n] for row in every[: ranks.rank]), tails[n][:, :0]], 1)
        if each.count is not None:
            tokens = tokens[:, max(0, tokens.shape[1] - counts[n]) :]
        earlier[each.name] = tokens
    return found, with_position(first._replace(**earlier), offset)


class Part(NamedTuple):
    """A part of the heads of an attend: what computes it, its values, and its state before the
    first token."""

    call: Call
    values: Sequence[Tensor]
    first: Any


def in_halves(
    ranks: Ranks, layer: ir.Layer, parts: Sequence[Part], streamed: Sequence[bool],
    along: Sequence[int],
) -> tuple[Tensor, ...]:  # fmt: skip
    """The outputs of an attend to all earlier tokens, where each process computes two halves of
    parts of the sequence that read as many tokens on all of them. What is exchanged for some heads
    goes on while others are computed; `along` are the dims of outputs that have the heads."""
    places = [i for i, stream in enumerate(streamed) if stream]
    place = {id: i for i, (id, _) in enumerate(layer.inputs)}
    fields = {place[f.node]: f.name for f in memory_of(layer).fields if f.kind == "seen"}
    readers = [i for i in places if i not in fields]
    half = parts[0].values[places[0]].shape[1] // 2
    begun = []
    for part in parts:
        pairs = [x.split(half, 1) if i in places else () for i, x in enumerate(part.values)]
        own = [part.values[i] for i in fields]
        read = gathering(ranks, f"the tokens that {layer.name} reads", own)
        what = f"the tokens that {layer.name} computes"
        begun.append((read, moving(ranks, what, False, [pairs[i] for i in readers])))
    leaving = []
    for part, (read, here) in zip(parts, begun, strict=True):
        every, own = read(), dict(zip(readers, here(), strict=True))
        blocks = {i: [b for r in every for b in r[n].split(half, 1)] for n, i in enumerate(fields)}
        made = [_half(part, fields, blocks, own, n, b) for n, b in enumerate(halves_of(ranks))]
        what = f"outputs of {layer.name}"
        leaving.append(moving(ranks, what, True, [*zip(*made, strict=True)]))
    found = [[torch.cat(pair, 1) for pair in back()] for back in leaving]
    if len(found) == 1:
        return tuple(found[0])
    return tuple(
        torch.cat(each, at) for each, at in zip(zip(*found, strict=True), along, strict=True)
    )


def _half(
    part: Part, fields: Mapping[int, str], blocks: Mapping[int, Sequence[Tensor]],
    readers: Mapping[int, Sequence[Tensor]], n: int, block: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The outputs of the half `n` that this process computes, a block of tokens of the sequence."""
    inner = dict(enumerate(part.values)) | {i: blocks[i][block] for i in fields}
    inner |= {i: pair[n] for i, pair in readers.items()}
    earlier = {name: _joined(blocks[i][:block], blocks[i][0]) for i, name in fields.items()}
    half = next(iter(blocks.values()))[0].shape[1]
    state = with_position(part.first._replace(**earlier), block * half)
    return part.call([inner[i] for i in range(len(part.values))], state)


def _joined(blocks: Sequence[Tensor], like: Tensor) -> Tensor:
    """Blocks of tokens one after the other, not copied where they lie so; none are 0 tokens."""
    return one_after_other([*blocks]) if len(blocks) > 1 else blocks[0] if blocks else like[:, :0]


def goes_in_halves(layer: ir.Layer, length: int) -> bool:
    """Whether an attend reads all earlier tokens, of which later parts of the sequence have more,
    and parts of so many tokens have two halves."""
    fields = [each for each in memory_of(layer).fields if each.kind != "pos"]
    along = {id for id, op in layer.inputs if "t" in op.type.names}
    whole = all(f.kind == "seen" and f.count is None and f.node in along for f in fields)
    return bool(fields) and whole and length > 0 and length % 2 == 0


def with_position(state: Any, offset: int) -> Any:
    """A state with so many tokens before it, if it counts them."""
    return state._replace(pos=offset) if "pos" in state._fields else state
