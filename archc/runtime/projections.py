"""Products of one value with several parameters, whose gradients are one sum that products make."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from archc.runtime.ops import transformed
from archc.runtime.repeated import PLAIN, learns, unwatched


def products_of(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
    """x [..., d] times each of `weights` [d, ...], which stay tensors of their own.

    Each is a product of torch. Where autograd alone looks on, the gradient of x is made by one
    function, whose products add to the sum so far: each gradient of its own would be written, and
    read again by an addition. Autocast would make a copy of x for each product: here it is one."""
    device = x.device.type
    exact = any(each.dtype == torch.float64 for each in (x, *weights))
    if torch.is_autocast_enabled(device) and not exact:  # float64 is left as it is
        kind = torch.get_autocast_dtype(device)
        x, weights = x.to(kind), tuple(weight.to(kind) for weight in weights)
    if not torch_alone(x, weights):
        return tuple(times(x, weight) for weight in weights)
    if torch.is_grad_enabled() and x.requires_grad:
        return tuple(ProductsOf.apply(x, *weights))
    return tuple(each_product(x, weights))


def each_product(x: Tensor, weights: tuple[Tensor, ...]) -> list[Tensor]:
    """x [..., d] times each weight; those of thin ones are parts of one product."""
    if not x.numel():
        return [times(x, weight) for weight in weights]
    found, rows = dict[int, Tensor](), x.reshape(-1, x.shape[-1])
    for places in made_together(len(rows), weights):
        chosen = [weights[place] for place in places]
        if chosen[0].dim() < 2:
            found[places[0]] = torch.mv(rows, chosen[0]).view(x.shape[:-1])
            continue
        made = torch.mm(rows, joined_columns([weight.flatten(1) for weight in chosen]))
        found |= products_in(made, x, places, weights)
    return [found[place] for place in range(len(weights))]


def products_in(
    made: Tensor, x: Tensor, places: list[int], weights: tuple[Tensor, ...]
) -> dict[int, Tensor]:
    """The products of x in that with the weights at these places side by side."""
    chosen, lead = [weights[place] for place in places], x.shape[:-1]
    if len(chosen) == 1:
        return {places[0]: made.view(*lead, *chosen[0].shape[1:])}
    parts = made.view(*lead, -1).split([columns(weight) for weight in chosen], -1)
    pairs = zip(places, parts, chosen, strict=True)
    return {place: y if w.dim() < 3 else y.unflatten(-1, w.shape[1:]) for place, y, w in pairs}


def in_turn(make: Callable, x: Tensor, *weights: Tensor) -> Iterator[Tensor]:
    """What `make(x, *weights)`, `products_of`, makes, one after the other, each let go of as it is
    taken. Long products are made beside what reads those before them."""
    if torch.compiler.is_compiling():
        return iter(make(x, *weights))
    return arriving(x, weights) if arrive(x, weights) else given_away([*make(x, *weights)])


def given_away(made: list[Tensor]) -> Iterator[Tensor]:
    """Tensors one after the other, which nothing here holds on to."""
    made.reverse()
    while made:
        yield made.pop()


LONG = 1 << 35
"""Multiplications of a product that takes some 0.1 ms on the fastest GPU."""


def arrive(x: Tensor, weights: tuple[Tensor, ...]) -> bool:
    """Whether products are so long that what reads one is to run beside the next: several are, on a
    GPU, for no gradient, and neither a CUDA graph nor anything else looks on."""
    rows = math.prod(x.shape[:-1])
    if not x.is_cuda or sum(rows * weight.numel() >= LONG for weight in weights) < 2:
        return False
    if learns((x, *weights)) or any(weight.dim() < 2 for weight in weights):
        return False
    if torch.is_autocast_enabled("cuda") or not torch_alone(x, weights):
        return False
    return unwatched((x, *weights)) and not torch.cuda.is_current_stream_capturing()


def arriving(x: Tensor, weights: tuple[Tensor, ...]) -> Iterator[Tensor]:
    """`each_product`, each once the stream of now may read it. They are made on another stream: the
    last programs of a product leave processors to what reads the product before.

    All room is of the stream of now, from before the other begins. It, and what is multiplied, is
    held until the stream of now has waited for the other, whatever happens before."""
    here, rows = torch.cuda.current_stream(x.device), x.reshape(-1, x.shape[-1])
    groups = sorted(made_together(len(rows), weights), key=min)
    sides = [joined_columns([weights[place].flatten(1) for place in each]) for each in groups]
    rooms = [rows.new_empty(len(rows), side.shape[1]) for side in sides]
    found, done, there = dict[int, Tensor](), dict[int, Any](), stream_beside(here)
    there.wait_stream(here)
    try:
        with torch.cuda.stream(there):
            for places, side in zip(groups, sides, strict=True):
                room = torch.mm(rows, side, out=rooms.pop(0))
                done |= dict.fromkeys(places, there.record_event())
                found |= products_in(room, x, places, weights)
                del room  # each product goes after its last reader
        for place in range(len(weights)):
            here.wait_event(done[place])
            yield found.pop(place)
    finally:
        here.wait_stream(there)


@lru_cache(64)
def stream_beside(here: Any) -> Any:
    """The stream on which products are made that a stream reads."""
    return torch.cuda.Stream(here.device)


def made_together(rows: int, weights: Sequence[Tensor]) -> list[list[int]]:
    """Places of weights, those of one product in a list."""
    return places_together(rows, tuple((w.shape, w.element_size()) for w in weights))


@lru_cache(1024)
def places_together(rows: int, weights: tuple[tuple[torch.Size, int], ...]) -> list[list[int]]:
    """The same of weights by their shapes and the bytes of a number: a product of many rows with
    few columns takes as long as its rows are read, so thin weights are copied side by side for it.
    They come last, each where a vector of 16 bytes begins; those that are less than one follow
    them, if rows stay a multiple of 16 bytes."""
    thin, least = list[int](), list[int]()
    many = [shape.numel() // max(shape[0], 1) for shape, _ in weights]
    size = [count * each for count, (_, each) in zip(many, weights, strict=True)]
    for place, (shape, _) in enumerate(weights):
        if 0 < many[place] <= THIN and len(shape) > 1:
            if size[place] % 16 == 0:
                thin.append(place)
            elif size[place] < 16:
                least.append(place)
    if sum(size[place] for place in least) % 16 == 0:
        thin += least
    total = sum(many[place] for place in thin)
    if len(thin) < 2 or rows * (len(thin) - 1) < 8 * total:
        return [[place] for place in range(len(weights))]
    return [*([place] for place in range(len(weights)) if place not in thin), thin]


THIN = 256
"""The most columns of a weight whose product takes as long as what it multiplies is read."""


def columns(weight: Tensor) -> int:
    """How many numbers a weight [d, ...] makes of each row."""
    return weight.numel() // max(weight.shape[0], 1)


def times(x: Tensor, weight: Tensor) -> Tensor:
    """x [..., d] times a weight [d, ...]: a view around a product, for which Python needs a third
    of what an einsum takes it."""
    if weight.dim() < 3:
        return x @ weight
    return (x @ weight.flatten(1)).unflatten(-1, weight.shape[1:])


class Later:
    """What the op of a token region will make of what it is given, once a product asks for it."""

    def __init__(self, op: Any, given: tuple):
        self.op, self.given = op, given


def made_later(op: Any, *given: Any) -> Tensor | Later:
    """What the op of a token region makes, which nothing but a product with a weight reads. Where
    autograd alone looks on, the product makes it, and keeps what the op was given instead."""
    tensors = tuple(x for x in given if isinstance(x, Tensor))
    later = learns(tensors) and torch_alone(tensors[0], tensors)
    return Later(op, given) if later else op(*given)


def weighed(summed: int, weight: Tensor, x: Tensor | Later) -> Tensor:
    """x [..., *d] times a weight [*d, ...]; d: so many `summed`. What is made later is not kept for
    the gradient of the weight: the gradient of its op makes it again, of what that reads."""
    if not isinstance(x, Later):
        return sums_times(summed, weight, x)
    kind, device, side = x.given[-1], weight.device.type, weight
    if torch.is_autocast_enabled(device) and weight.dtype == torch.float32:
        side = weight.to(torch.get_autocast_dtype(device))
    if side.dtype == kind and torch_alone(side, ()):
        return MadeTimes.apply(summed, side, x.op, *x.given)
    return sums_times(summed, weight, x.op(*x.given))


def sums_times(summed: int, weight: Tensor, x: Tensor) -> Tensor:
    """x [..., *d] times a weight [*d, ...]; d: so many `summed`."""
    if summed > 1:
        x, weight = x.flatten(-summed), weight.flatten(0, summed - 1)
    return times(x, weight)


def torch_alone(x: Tensor, weights: tuple[Tensor, ...]) -> bool:
    """Whether nothing but torch and its autograd looks at products: no tensor of a kind of its own
    (of several devices, of a quantiser), no compiler, no transform."""
    if torch.compiler.is_compiling() or type(x) not in PLAIN:
        return False
    if any(type(weight) not in PLAIN for weight in weights):
        return False
    return not transformed(x, *weights)


class ProductsOf(torch.autograd.Function):
    """x [..., d] times each weight [d, ...]; gradients that do not arrive are not asked for.
    Autocast around the backward pass changes no dtype: products have those of the forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        """The products."""
        ctx.save_for_backward(x, *weights)
        ctx.set_materialize_grads(False)
        return tuple(each_product(x, weights))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor | None) -> tuple[Tensor | None, ...]:
        """That of x, each product added to those before, and that of each weight."""
        saved = ctx.saved_tensors  # unpacked once: checkpoints ask for it
        with torch.autocast(saved[0].device.type, enabled=False):
            return products_gradient(saved, slopes, ctx.needs_input_grad)


def products_gradient(
    saved: Sequence[Tensor], slopes: Sequence[Tensor | None], asked: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """The gradients of x and of each weight, of those that are `asked`."""
    x, *weights = saved
    rows, total = x.reshape(-1, x.shape[-1]), None
    found: list[Tensor | None] = [None] * len(weights)
    for places in made_together(len(rows), weights):
        sides = {
            place: slope.reshape(len(rows), columns(weights[place]))
            for place in places
            if (slope := slopes[place]) is not None
        }
        if not sides:
            continue
        flat = joined_columns([*sides.values()])
        if any(asked[1 + place] for place in sides):
            made = torch.mm(rows.mT, flat)
            parts = made.split([y.shape[1] for y in sides.values()], 1)
            for place, part in zip(sides, parts, strict=True):
                found[place] = part.reshape(weights[place].shape) if asked[1 + place] else None
        if asked[0]:
            side = joined_columns([weights[place].flatten(1) for place in sides]).mT
            total = torch.mm(flat, side) if total is None else total.addmm_(flat, side)
    return (None if total is None else total.reshape(x.shape), *found)


class MadeTimes(torch.autograd.Function):
    """What an op makes times a weight, as `weighed` says."""

    @staticmethod
    def forward(ctx: Any, summed: int, weight: Tensor, op: Any, *given: Any) -> Tensor:
        """The product."""
        tensors = [x for x in given if isinstance(x, Tensor)]
        ctx.save_for_backward(weight, *tensors)
        ctx.summed, ctx.op, ctx.rest = summed, op, given[len(tensors) :]
        return sums_times(summed, weight, op(*given))

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        """That of the weight, and those of what the op was given."""
        (d,), (weight, *tensors) = slopes, ctx.saved_tensors
        kept = weight.shape[ctx.summed :]
        rows, side = d.reshape(-1, math.prod(kept)), weight.reshape(-1, math.prod(kept))
        lead = d.shape[: d.dim() - len(kept)]
        with torch.autocast(d.device.type, enabled=False):
            slope = (rows @ side.mT).reshape(*lead, *weight.shape[: ctx.summed])
            made, found = ctx.op.again((*tensors, *ctx.rest), slope)
            flat = made.reshape(len(rows), -1)
            d_weight = (flat.mT @ rows).reshape(weight.shape) if ctx.needs_input_grad[1] else None
        return (None, d_weight, None, *found, *(None for _ in ctx.rest))


def joined_columns(matrices: list[Tensor]) -> Tensor:
    """Matrices [d, ...] side by side."""
    return matrices[0] if len(matrices) == 1 else torch.cat(matrices, 1)
