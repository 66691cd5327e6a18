"""Earlier tokens where each process has a part of the sequence: short looks back are given the
tokens of the process before, recurrences the state that all earlier parts come to, attends the
earlier tokens that they read.


"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from archc.backends.eager.memory import memory_of
from archc.ir import layer as ir
from archc.ir.sizes import Number, evaluate
from archc.law import CompositionLaw
from archc.parallel.exchange import gathered
from archc.parallel.mesh import Ranks


def anchor_of(values: Sequence[Tensor]) -> int:
    """The place of a value that has a gradient, if one has: of values that outputs are made of."""
    return next((i for i, x in enumerate(values) if x.requires_grad), 0)


def with_halo(
    ranks: Ranks, title: str, values: Sequence[Tensor], streamed: Sequence[bool], halo: int
) -> tuple[list[Tensor], int]:
    """Values along the tokens with the last `halo` tokens of the process before in front, and how
    many these are: none at the first process, whose tokens have none before them."""
    found = list(values)
    places = [i for i, along in enumerate(streamed) if along]
    length = found[places[0]].shape[1]
    if length < halo:
        raise ValueError(
            f"{title} looks {halo} tokens back, and each of the {ranks.count} ranks along "
            f"`{ranks.dim}` has {length} tokens: longer sequences or fewer ranks are needed"
        )
    real = [i for i in places if found[i].is_floating_point()]
    whole = [i for i in places if not found[i].is_floating_point()]
    what = f"the tokens before its own, for {title}"
    for group in filter(None, (real, whole)):
        at = group[anchor_of([found[i] for i in group])]
        tails = [found[i][:, length - halo :] for i in group]
        found[at], every = gathered(ranks, what, found[at], tails)
        if ranks.rank:
            for i, tail in zip(group, every[ranks.rank - 1], strict=True):
                found[i] = torch.cat([tail, found[i]], 1)
    return found, halo if ranks.rank else 0


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
    read = [place[each.node] for each in fields]
    at = read[anchor_of([found[i] for i in read])]
    what = f"the tokens that {layer.name} reads"
    found[at], every = gathered(ranks, what, found[at], [found[i] for i in read])
    earlier = {}
    for n, each in enumerate(fields):
        parts = [row[n] for row in every[: ranks.rank]]
        tokens = torch.cat([*parts, found[read[n]][:, :0]], 1)
        if each.count is not None:
            most = int(evaluate(each.count, sizes))
            tokens = tokens[:, max(0, tokens.shape[1] - most) :]
        earlier[each.name] = tokens
    return found, with_position(first._replace(**earlier), offset)


def with_position(state: Any, offset: int) -> Any:
    """A state with so many tokens before it, if it counts them."""
    return state._replace(pos=offset) if "pos" in state._fields else state
