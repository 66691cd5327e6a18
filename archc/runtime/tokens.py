"""Token regions as they run: when kernels do one, how large its tiles are, and the op of torch that
it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from archc.runtime.kernels import has_triton, needs_gradient, processors_of
from archc.runtime.launch import launch_kernel
from archc.runtime.layers import dropout_factor, kept_of_sequences, rows_of_sequences
from archc.runtime.ops import (
    as_op,
    new_op,
    no_second_gradient,
    or_zero,
    result_kind,
    transformed,
)  # fmt: skip
from archc.runtime.programs import compiled_for
from archc.runtime.repeated import SEEN, Known, Repeated, learns, likeness, unwatched


def by_token_kernels(largest: int, *tensors: Tensor) -> bool:
    """Whether kernels can do a token region: on a GPU, in their dtypes, with room for a token's
    tile; of nothing there is nothing to do."""
    kinds, device = (torch.float32, torch.bfloat16, torch.float16), tensors[0].device
    if device.type != "cuda" or largest > 16_384:
        return False
    for x in tensors:
        if x.is_floating_point() and x.dtype not in kinds:
            return False
        if x.device != device or 0 in x.shape:
            return False
    return not transformed(*tensors) and has_triton()


def token_block(size: int, most: int = 1 << 20) -> int:
    """The length of a tile along a dim: a power of 2 that holds all of it, up to `most`."""
    return min(most, 1 << max(0, size - 1).bit_length())


def tokens_of_block(tokens: int, numbers: int, most: int) -> int:
    """How many tokens a tile has, of so many numbers each: about `most` numbers in all."""
    return max(1, min(64, most // numbers, token_block(tokens)))


def token_warps(numbers: int) -> int:
    """How many warps work on a tile of so many numbers: what was fastest on an H200."""
    return 2 if numbers <= 1024 else 4 if numbers <= 4096 else 8 if numbers <= 8192 else 16


def blocks_of_program(programs: int, device: torch.device) -> int:
    """How many blocks of tokens a program does one after the other, if there would be so many
    programs of one each: it writes one sum for all of them."""
    return max(1, min(32, programs // (8 * max(1, processors_of(device)))))


def walk_warps(numbers: int, each: int) -> int:
    """How many warps walk over tokens with so many numbers in a tile."""
    return max(1, min(16, numbers // each))


def turns_of_walk(programs: int, device: torch.device, most: int) -> int:
    """How many tokens a program does one after the other, at most, if there would be so many
    programs of one each: before the first it makes a few of those before again."""
    return max(1, min(most, programs // (16 * max(1, processors_of(device)))))


def token_kind(wide: bool, *tensors: Tensor) -> torch.dtype:
    """The dtype that PyTorch gives to what is made of tensors; `wide`: by ops some of which
    autocast does in float32."""
    kind = tensors[0].dtype
    for x in tensors:
        kind = torch.promote_types(kind, x.dtype) if x.dim() else kind
    if wide and torch.is_autocast_enabled(tensors[0].device.type):
        return torch.promote_types(kind, torch.float32)
    return kind


def in_rows(*tensors: Tensor) -> list[Tensor]:
    """Tensors [B, T, ...] as kernels of tokens read them, copied where they are not so: the numbers
    of a token one after the other, and all tokens equally far apart, as in a part of a wider
    tensor."""
    return [_one_stride(x) if _is_in_rows(x) else x.contiguous() for x in tensors]


def _one_stride(x: Tensor) -> Tensor:
    """The tensor with the stride of its sequences as that of tokens, where each has one token: any
    number may stand there."""
    if x.shape[1] != 1 or x.stride(0) == x.stride(1):
        return x
    return x.as_strided(x.shape, (x.stride(0), x.stride(0), *x.stride()[2:]))


def _is_in_rows(x: Tensor) -> bool:
    if x.is_contiguous():
        return True
    step, (batch, tokens, *sizes), (first, second, *strides) = 1, x.shape, x.stride()
    for size, stride in zip(sizes[::-1], strides[::-1], strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return batch == 1 or first == tokens * second


def tokens_apart(x: Tensor) -> tuple[Tensor, int]:
    """A tensor [B, T, ...] as kernels of tokens read it, and how far apart its tokens are."""
    (x,) = in_rows(x)
    return x, x.stride(1)


class Learned(NamedTuple):
    """The gradient of a tensor, for which a launch makes room: of another dtype, or for the sums of
    its programs along axes of their grid."""

    of: Tensor
    axes: tuple = ()
    dtype: torch.dtype | None = None

    def room(self, grid: tuple) -> Tensor:
        """The room that kernels write into."""
        if not self.axes:
            return self.of.new_empty(self.of.shape, dtype=self.dtype)
        own = (*(grid[axis] for axis in self.axes), *self.of.shape)
        return self.of.new_empty(own, dtype=torch.float32)

    def found(self, room: Tensor) -> Tensor:
        """What is learned, of what kernels wrote."""
        return room.sum([*range(len(self.axes))]).to(self.of.dtype) if self.axes else room


EACH = "each"
"""Stands among the numbers of a launch for how many blocks of tokens a program does one after the
other, or how many tokens, if it walks."""


def launch_tokens(
    kernel: Any, grid: tuple, given: list, counts: list, fixed: dict, most: int,
    warps: int = 1, turns: int = 0, tile: int = 0,
) -> Any:  # fmt: skip
    """A kernel of tokens, launched; what it has learned.

    `grid`: sequences, tokens or their rows, and programs that share a token. `given`: tensors with
    their strides, and what is `Learned`. `counts`: tokens, and other numbers. `fixed`: what it is
    compiled for, in its order; of a block the arguments of `token_block`. A tile has about `most`
    numbers, `tile` of a token: all its blocks where it is not said. `warps` are the fewest; a walk
    does `turns` tokens at most."""
    device = next(x.device for x in given if isinstance(x, Tensor))
    own = (device, grid, counts[0], EACH in counts, tuple(fixed.items()), most, warps, turns, tile)
    grid, each, constants, options = tiles_of(*own)
    tensors = [x.room(grid) if x.__class__ is Learned else x for x in given]
    counts = [each if n is EACH else n for n in counts]
    launch_kernel(kernel, math.prod(grid), tensors, counts, constants, options)
    pairs = zip(given, tensors, strict=True)
    made = [x.found(room) for x, room in pairs if x.__class__ is Learned]
    return tuple(made) if len(made) > 1 else made[0] if made else None


@lru_cache(1024)
def tiles_of(
    device: torch.device, grid: tuple, tokens: int, in_turn: bool, fixed: tuple, most: int,
    warps: int, turns: int, tile: int,
) -> tuple[tuple, int, dict, dict]:  # fmt: skip
    """The grid of a launch of tokens, how many blocks or tokens a program does `in_turn`, and the
    constants and options of its code."""
    blocks = {name: token_block(*size) for name, size in fixed if size.__class__ is tuple}
    numbers, each, (batch, rows, *rest) = tile or math.prod(blocks.values()), 1, grid
    block = tokens_of_block(tokens, numbers, most)
    if in_turn:
        programs = batch * -(-rows // block) * math.prod(rest)
        walk = turns_of_walk(programs, device, turns)
        each = walk if turns else blocks_of_program(programs, device)
    warps = walk_warps(block * numbers, most) if turns else max(warps, token_warps(block * numbers))
    constants = compiled_for(**{"BLOCK_T": block, **dict(fixed), **blocks})
    options = {"num_warps": warps, "num_stages": 2}
    return (batch, -(-rows // (block * each)), *rest), each, constants, options


def dropout_seed(training: bool, p: float, like: Tensor) -> Tensor | None:
    """The seed of a dropout, drawn from torch's generator of a device; None where nothing is
    dropped."""
    if not 0 <= p <= 1:
        raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        return None
    return torch.randint(2**62, (), device=like.device)


def drawn_factor(training: bool, shape: Sequence[int], p: float, like: Tensor) -> Tensor:
    """The factor of a dropout of that shape, as PyTorch draws it."""
    return dropout_factor(like.new_ones(()).expand(tuple(shape)), p, training)


def rows_of_tokens(
    cu_seqlens: Tensor | None, tokens: int, before: int, ahead: int
) -> tuple[Tensor | None, int]:
    """The table of packed sequences with `before` rows in front of each, and how many rows a
    program goes along: without packed sequences the tokens, and `ahead` rows in front of them."""
    if cu_seqlens is None:
        return None, tokens + ahead
    table = rows_of_sequences(cu_seqlens, tokens, before)
    return table, table.shape[1]


def ends_by_kernel(
    tokens: int, cu_seqlens: Tensor | None, pasts: Sequence[Tensor], kinds: Sequence[torch.dtype],
    *tensors: Tensor,
) -> bool:  # fmt: skip
    """Whether a kernel is to write the last tokens of pasts and of what follows them, of these
    dtypes: where PyTorch would join both, as of few tokens, and no gradient is asked for."""
    if needs_gradient(*tensors) or torch.compiler.is_compiling():
        return False
    pairs = zip(pasts, kinds, strict=True)
    alike = all(past.dtype == kind and past.is_contiguous() for past, kind in pairs)
    few = cu_seqlens is not None or any(tokens <= past.shape[1] for past in pasts)
    return alike and few


def kept_of_tail(past: Tensor, tail: Tensor, tokens: int, cu_seqlens: Tensor | None) -> Tensor:
    """The last tokens of each past and of what follows it, of which a kernel made those in place in
    `tail`, which is like the past."""
    if cu_seqlens is not None:
        return kept_of_sequences(past, cu_seqlens, tail=tail)
    rest = max(0, past.shape[1] - tokens)
    return torch.cat([past[:, tokens:], tail[:, rest:]], 1) if rest else tail


def kept_tokens(past: Tensor, x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """The last tokens of each past and what follows it, as many as the past has."""
    if cu_seqlens is not None:
        return kept_of_sequences(past, cu_seqlens, x)
    return torch.cat([past, x], 1)[:, x.shape[1] :] if x.shape[1] < past.shape[1] else (
        x[:, x.shape[1] - past.shape[1] :]
    )  # fmt: skip


def with_gradients(passes: Callable, inputs: tuple, rest: tuple, places: tuple) -> tuple:
    """Those results of passes on inputs, with a gradient that autograd knows."""
    with torch.enable_grad():
        made = passes(*inputs, *rest)
        made = made if isinstance(made, tuple) else (made,)
        return tuple(made[place] for place in places)


def gradients_again(outputs: tuple, slopes: list, learns: list) -> list:
    """The gradients of those that ask for one, which have gradients themselves. An output that
    only compares what it is made of has none to give."""
    asked = [x for x in learns if x is not None and x.requires_grad]
    pairs = zip(outputs, slopes, strict=True)
    given = [(y, d.to(y.dtype)) for y, d in pairs if y.requires_grad]
    if not given:
        return [None for _ in learns]
    made, arrived = zip(*given, strict=True)
    found = torch.autograd.grad(made, asked, arrived, create_graph=True, allow_unused=True)
    rest = iter(found)
    return [next(rest) if x is not None and x.requires_grad else None for x in learns]


def like_those_of(names: list, learns: dict, *inputs: Any) -> Any:
    """Empty tensors like the gradients of inputs: contiguous; of one that others have too of the
    wider dtype."""
    found, given = [], dict(zip(names, inputs, strict=False))
    for name in [name for name, same in learns.items() if not same]:
        kinds = [given[each] for each, same in learns.items() if name in (each, same)]
        kind = token_kind(False, *kinds) if len(kinds) > 1 else given[name].dtype
        found.append(given[name].new_empty(given[name].shape, dtype=kind))
    return found[0] if len(found) == 1 else tuple(found)


def shared_out(names: list, learns: dict, inputs: Any, slopes: Any, made: Any) -> list:
    """The gradients of inputs, of those that kernels made and those that are the same as others."""
    wanted = [name for name, same in learns.items() if not same]
    found = dict(zip(wanted, made if isinstance(made, tuple) else (made,), strict=True))
    found |= {str(place): d for place, d in enumerate(slopes)}
    pairs = zip(names, inputs, strict=True)
    return [found[learns[n] or n].to(x.dtype) if n in learns else None for n, x in pairs]


def filled_by(kernel: Callable, room: Callable, results: int) -> Callable:
    """The op's function: a kernel fills the room for its results, whose dtypes come last."""

    def run(*inputs: Any) -> Any:
        made = room(*inputs)
        kernel(*inputs[:-results], *(made if isinstance(made, tuple) else (made,)))
        return made

    return run


def rooms_like(places: list[int]) -> Callable:
    """Room for results that have shapes of inputs at some places, whose dtypes come last."""

    def room(*given: Any) -> Any:
        kinds = given[len(given) - len(places) :]
        pairs = zip(places, kinds, strict=True)
        made = [given[i].new_empty(given[i].shape, dtype=kind) for i, kind in pairs]
        return tuple(made) if len(made) > 1 else made[0]

    return room


def by_passes(
    passes: Callable, places: tuple, names: list, learns: dict, saved: tuple, slopes: list,
    rest: tuple,
) -> tuple:  # fmt: skip
    """What passes make of what was saved, and the gradients of that, with gradients themselves."""
    inputs = [x if x is None else x.view_as(x) for x in saved]  # one may be made of another
    outputs = with_gradients(passes, tuple(inputs), rest, places)
    asked = [x if n in learns else None for n, x in zip(names, inputs, strict=True)]
    return outputs, gradients_again(outputs, slopes, asked)


def made_again(
    gradient: Callable, room: Callable, passes: Callable, names: list, learns: dict,
    in_place: bool, given: tuple, slope: Tensor,
) -> tuple:  # fmt: skip
    """The result of an op, from what it was given, and the gradients of that, from the one that
    arrives, which nobody else has: the kernel of the gradient writes both, the result where that
    one stands if it may be `in_place`."""
    saved, rest = given[: len(names)], given[len(names) : -1]
    if torch.is_grad_enabled():
        (y,), ds = by_passes(passes, (0,), names, learns, saved, [slope], rest)
        return y.to(slope.dtype), ds
    y = slope if in_place else room(*given)
    made = gradient(*saved, slope, *rest, y)
    return y, shared_out(names, learns, saved, [slope], made)


def token_region(op: Any = None) -> Callable:
    """What makes of the function of a token region one that remembers its calls. Those with a
    gradient it does if all that the region makes is made by its op, which has it."""
    return lambda function: RegionCalls(function, op).__call__


class RegionCalls(Known):
    """The calls of a token region."""

    def __init__(self, function: Callable, op: Any):
        super().__init__(function)
        self.learning = None if op is None else learning_region(op)

    def __call__(self, *given: Any) -> Any:
        if not unwatched(given) or torch.is_autocast_enabled("cuda"):
            return self.function(*given)
        if not learns(given):
            return super().__call__(*given)
        if self.learning is None:
            return self.function(*given)
        key, addresses = likeness(given)
        if self.calls.get(key) is SEEN:
            with torch.no_grad():
                self.recorded(key, given)
        again = self.calls.get(key)
        if again is None:
            return self.first(key, given)
        if again.numbers is None:  # by passes, which is how it is done for no tokens or in float64
            return self.function(*given)
        made = self.learning.apply(again, addresses, *given)
        return made if len(made) > 1 else made[0]


def learning_region(op: Any) -> Any:
    """The class by which autograd knows calls of a region that are done again."""

    class Learning(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, again: Repeated, addresses: list, *given: Any) -> tuple:
            assert again.numbers is not None
            made = again(given, addresses)
            made = made if isinstance(made, tuple) else (made,)
            op.keep(ctx, (*given[: op.tensors], *again.numbers), made)
            return made

        @staticmethod
        def backward(ctx: Any, *arriving: Tensor | None) -> tuple:
            found = op.gradient(ctx, *arriving)
            return None, None, *found[: len(ctx.needs_input_grad) - 2]

    return Learning


def schemas_of(
    title: str, names: list[str], rest: list[str], results: int, gradients: int
) -> tuple[str, str]:
    """The schemas of the op of a token region and of its gradient."""
    given = [f"Tensor? {name[:-1]}" if name[-1] == "?" else f"Tensor {name}" for name in names]
    slopes = [f"Tensor d_{i}" for i in range(results)]
    made, learned = (", ".join(["Tensor"] * count) for count in (results, gradients))
    every, own = ", ".join([*given, *rest]), ", ".join([*given, *slopes, *rest[:-results]])
    return f"{title}({every}) -> ({made})", f"{title}_gradient({own}) -> ({learned})"


def new_token_op(
    space: torch.library.Library, title: str, tensors: str, numbers: str, results: tuple,
    learning: str, values: Callable, room: Callable | str, gradient: Callable, passes: Callable,
    in_place: bool = False, wide: Callable | None = None,
) -> Callable:  # fmt: skip
    """The op of a token region: of `tensors`, by name (`x?` may be None), and of `numbers`, as a
    schema has them, the last of which are the dtypes of its results; those of `learning` have
    gradients, `x=z` that of z, `x=0` that of the first result. `values` and `gradient` launch
    kernels, `room` is for results, or whose shapes these have; `passes` have a second gradient.
    `op.again` is `made_again` of an op with one result, `in_place` or not."""
    names, count, rest = tensors.split(), len(results), numbers.split("; ")
    room = rooms_like([*map(names.index, room.split())]) if isinstance(room, str) else room
    learns = {name: same for name, _, same in (each.partition("=") for each in learning.split())}
    schema, learned = schemas_of(title, names, rest, count, [*learns.values()].count(""))

    def keep(ctx: Any, inputs: tuple, output: tuple) -> None:
        ctx.save_for_backward(*inputs[: len(names)])
        ctx.rest, ctx.like = inputs[len(names) :], tuple(map(result_kind, output))
        ctx.set_materialize_grads(False)

    def derive(ctx: Any, *arriving: Tensor | None) -> tuple:
        slopes = [or_zero(d, like) for d, like in zip(arriving, ctx.like, strict=True)]
        saved, own = ctx.saved_tensors, ctx.rest[:-count]  # unpacked once: checkpoints ask for it
        if torch.is_grad_enabled():
            _, ds = by_passes(passes, results, names, learns, saved, slopes, own)
        else:
            given = (*saved, *slopes, *own)
            ds = (known if unwatched(given) else shared)(*given)
        return (*ds, *(None for _ in ctx.rest))

    def shared(*inputs: Any) -> list:
        saved, slopes = inputs[: len(names)], inputs[len(names) :][:count]
        return shared_out(names, learns, saved, slopes, gradient_op(*inputs))

    known, like = Known(shared), partial(like_those_of, names, learns)
    gradient_op = new_op(space, learned, as_op(gradient), like, no_second_gradient, None, wide)
    op = new_op(space, schema, as_op(filled_by(values, room, count)), room, derive, keep, wide)
    again = partial(made_again, as_op(gradient), room, passes, names, learns, in_place)
    vars(op).update(again=again, keep=keep, gradient=derive, tensors=len(names))
    return op
