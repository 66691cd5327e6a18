"""Functions around the ops of torch that do chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from archc.runtime.chunks import runs_of_chunks
from archc.runtime.repeated import Known, learns, recording_now, unwatched


def free_space(name: str, op: str) -> torch.library.Library:
    """A namespace for the ops of a file: one of its own each time that the file is loaded."""
    count, found = 1, name
    while hasattr(getattr(torch.ops, found), op):
        count += 1
        found = f"{name}_{count}"
    return torch.library.Library(found, "FRAGMENT")


def new_op(
    space: torch.library.Library, schema: str, function: Callable, fake: Callable | str,
    gradient: Callable, keep: Callable | None = None, wide: Callable | None = None,
) -> Callable:  # fmt: skip
    """An op of torch: what it does, what its results look like (a function, or the names of the
    arguments that they are like), and what its gradient is, from what it keeps. It is called by the
    function that comes back, whose `op` it is. In the `schema` what has no type is a tensor.
    `wide`: `in_a_list`, if it has more arguments than an op of torch takes, which are 64."""
    title, _, _ = schema.partition("(")
    name, (given, made) = f"{space.ns}::{title}", names_in(schema)
    if isinstance(fake, str):
        fake = like_those_at([given.index(each) for each in fake.split()])
    typed = schema.partition("(")[2].partition(") -> ")[0].split(", ")
    schema = f"{title}{with_types(schema.removeprefix(title))}"
    schema, spread_out, in_front = wide(schema) if wide else (schema, as_it_is, as_it_is)
    space.define(schema, tags=torch.Tag.pt2_compliant_tag)
    space.impl(title, spread_out(function), "CompositeExplicitAutograd")
    torch.library.register_fake(name, spread_out(fake), lib=space)
    listed = getattr(getattr(torch.ops, space.ns), title).default
    op = in_front(listed)
    learning, one = learning_of(op, gradient, keep), len(listed._schema.returns) == 1
    space.impl(title, spread_out(with_autograd(op, learning, one)), "Autograd")
    floats = [i for i, each in enumerate(typed) if each.startswith("float ")]
    call = called(op, function, learning, learning_here(function, gradient, keep), floats, one)
    vars(call).update(op=listed, given=given, made=made)
    return call


def as_it_is(function: Callable) -> Callable:
    """The function."""
    return function


def called(
    op: Callable, function: Callable, learning: type, known: type, floats: list[int], one: bool
) -> Callable:
    """The function that calls an op, or what the op does: torch takes longer to find an op than it
    takes to begin. Each with the class by which autograd knows it; numbers at the places of
    `floats` are real ones, and `one` result comes by itself."""

    def call(*given):
        recording = None if torch.compiler.is_compiling() else recording_now()
        if recording is not None or unwatched(given):
            if floats:  # as an op makes them of whole numbers
                given = tuple(float(x) if i in floats else x for i, x in enumerate(given))
            if recording is not None:
                numbers = (x for x in given if not isinstance(x, Tensor) and x is not None)
                recording.numbers = tuple(numbers)
            if recording is not None or not learns(given):
                return function(*given)
            made = known.apply(*given)
        elif torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
            return op(*given)
        else:
            made = learning.apply(*given)  # torch.func knows functions of autograd, no ops
        return made[0] if one else made

    return call


def new_op_with_gradient(
    space: torch.library.Library, schema: str, function: Callable, fake: Callable | str,
    gradient_op: Any, wide: Callable | None = None,
) -> Callable:  # fmt: skip
    """An op whose gradient is another op. By their names that op takes arguments and results of
    this one, and as `d_x` what arrives for the result x; it returns `d_x` for the argument x."""
    (given, made), takes = names_in(schema), gradient_op.given
    every, arriving = [*given, *made], [f"d_{name}" for name in made]
    kept = [every.index(name) if name in every else -1 for name in takes]
    slopes = [(place, arriving.index(d)) for place, d in enumerate(takes) if d in arriving]
    found = [f"d_{name}" for name in given]
    found = [gradient_op.made.index(d) if d in gradient_op.made else -1 for d in found]
    saved = [name in takes and d not in takes for name, d in zip(made, arriving, strict=True)]

    def keep(ctx, inputs, output):
        known = (*inputs, *output, None)
        known = [known[place] for place in kept]
        ctx.save_for_backward(*[x if isinstance(x, Tensor) else None for x in known])
        ctx.rest = [None if isinstance(x, Tensor) else x for x in known]
        ctx.like = [*map(result_kind, output)]
        ctx.mark_non_differentiable(*[
            x for x, alone in zip(output, saved, strict=True)
            if alone or not x.is_floating_point()
        ])  # fmt: skip
        ctx.set_materialize_grads(False)

    def derive(ctx, *arrived):
        if all(d is None for d in arrived):
            return (None,) * len(given)
        known = [b if a is None else a for a, b in zip(ctx.saved_tensors, ctx.rest, strict=True)]
        for place, number in slopes:
            known[place] = arrived[number]
            if known[place] is None:  # kernels take no expanded 0
                shape, dtype, device = ctx.like[number]
                known[place] = torch.zeros(shape, dtype=dtype, device=device)
        made = gradient_op(*known)
        made = (*made, None) if isinstance(made, tuple) else (made, None)
        return tuple([made[place] for place in found])

    return new_op(space, schema, function, fake, derive, keep, wide)


def names_in(schema: str) -> tuple[list[str], list[str]]:
    """The names of the arguments and of the results of a schema."""
    given, _, made = schema.partition("(")[2].partition(") -> ")

    def last(listed: str) -> list[str]:
        return [each.split(" ")[-1] for each in listed.strip("()").split(", ")]

    return last(given), last(made)


def like_those_at(places: list[int]) -> Callable:
    """What results are like that have shapes and dtypes of arguments."""

    def fake(*given):
        made = [given[i].new_empty(given[i].shape) for i in places]
        return tuple(made) if len(made) > 1 else made[0]

    return fake


def with_types(schema: str) -> str:
    """The part of a schema in brackets, with a type for every name: (x, int n) -> (y)."""
    given, _, made = schema.partition(" -> ")
    if not made.startswith("("):
        return schema
    typed = (
        ", ".join(each if " " in each else f"Tensor {each}" for each in part[1:-1].split(", "))
        for part in (given, made)
    )
    return "({}) -> ({})".format(*typed)


def in_a_list(schema: str) -> tuple[str, Callable, Callable]:
    """A schema with its tensors as one list, in front; what makes a function of that of one that
    has them apart, and the other way around."""
    head, _, rest = schema.partition("(")
    given, _, results = rest.rpartition(") -> ")
    arguments = given.split(", ")
    order = [i for i, each in enumerate(arguments) if each.split(" ")[0] in ("Tensor", "Tensor?")]
    others = [i for i in range(len(arguments)) if i not in order]

    def spread_out(function: Callable) -> Callable:
        def call(tensors, *rest):
            given = dict(zip([*order, *others], [*tensors, *rest], strict=True))
            return function(*(given[i] for i in range(len(given))))

        return call

    def in_front(function: Callable) -> Callable:
        return lambda *given: function([given[i] for i in order], *(given[i] for i in others))

    listed = ", ".join(["Tensor?[] tensors", *(arguments[i] for i in others)])
    return f"{head}({listed}) -> {results}", spread_out, in_front


def learning_of(op: Callable, gradient: Callable, keep: Callable | None) -> type:
    """The class by which autograd and `torch.func` know an op; its results are always a tuple."""

    class Learning(torch.autograd.Function):
        @staticmethod
        def forward(*given):
            with torch._C._AutoDispatchBelowAutograd():
                made = op(*given)
            return made if isinstance(made, tuple) else (made,)

        @staticmethod
        def setup_context(ctx, inputs, output):
            if keep is not None:
                keep(ctx, inputs, output)

        @staticmethod
        def backward(ctx, *arriving):
            return gradient(ctx, *arriving)

        @staticmethod
        def jvp(ctx, *tangents):
            raise RuntimeError(
                "a recurrence by chunks has no derivative in forward mode (torch.func.jvp, jacfwd, "
                "hessian, torch.autograd.forward_ad); token by token it has one: with chunk=None, "
                "or STEPS, in the head of its file, above the number of tokens"
            )

        @staticmethod
        def vmap(info, in_dims, *given):
            made = []
            for i in range(info.batch_size):
                own = zip(given, in_dims, strict=True)
                each = [x if place is None else x.select(place, i) for x, place in own]
                made.append(Learning.apply(*each))
            stacked = tuple(torch.stack(xs) for xs in zip(*made, strict=True))
            return stacked, (0,) * len(stacked)

    # torch asks for the signature in each call: told, it takes a third of the time less
    vars(Learning.forward)["__signature__"] = signature(Learning.forward)
    return Learning


def learning_here(function: Callable, gradient: Callable, keep: Callable | None) -> type:
    """The class by which autograd alone knows what an op does: where no transform is to know it,
    too, torch takes a third of the time to call it."""

    class Learning(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *given):
            with torch._C._AutoDispatchBelowAutograd():
                made = function(*given)
            made = made if isinstance(made, tuple) else (made,)
            if keep is not None:
                keep(ctx, given, made)
            return made

        @staticmethod
        def backward(ctx, *arriving):
            return gradient(ctx, *arriving)

    return Learning


def with_autograd(op: Callable, learning: type, one: bool) -> Callable:
    """An op with its gradient, as `torch.library.register_autograd` makes one, in a third of the
    time a call."""

    def call(*given):
        tensors = [x for x in given if isinstance(x, Tensor)]
        if torch._C._are_functorch_transforms_active():
            raise RuntimeError(
                f"{op} cannot be transformed by torch.func as an op: call the function of its "
                "file, and torch.compile what torch.func is not inside of"
            )
        if learns(given) or has_tangents(tensors):
            made = learning.apply(*given)
            return made[0] if one else made
        with torch._C._AutoDispatchBelowAutograd():
            return op(*given)

    return call


def transformed(*tensors: Tensor) -> bool:
    """Whether a transform of torch.func, or forward mode, looks at what is done with these."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._are_functorch_transforms_active() or has_tangents(tensors)


def has_tangents(tensors: Iterable[Tensor]) -> bool:
    """Whether some of these have a tangent in forward mode; outside of it none is asked."""
    forward = torch.autograd.forward_ad
    if forward._current_level < 0:
        return False
    return any(forward.unpack_dual(x).tangent is not None for x in tensors)


def no_second_gradient(ctx: Any, *given: Tensor) -> None:
    """The gradient of a gradient: refused."""
    raise RuntimeError(
        "a recurrence by chunks has a gradient, but no gradient of that gradient; token by token "
        "(with chunk=None, or STEPS, in the head of its file, above the number of tokens) it has "
        "one"
    )


def no_gradient(ctx: Any, *given: Tensor) -> None:
    """The gradient of an op that keeps nothing for it: refused."""
    raise RuntimeError("this op keeps nothing for a gradient: call the function of its file")


def as_op(function: Callable) -> Callable:
    """The function as an op does it: with autocast switched off, and on the GPU of its tensors."""

    def run(*args):
        device = next(x.device for x in args if isinstance(x, Tensor))
        away = device.type == "cuda" and device.index != torch.cuda.current_device()
        if not away and not torch.is_autocast_enabled(device.type):
            return function(*args)
        with torch.autocast(device.type, enabled=False):
            if not away:
                return function(*args)
            with torch.cuda.device(device):
                return function(*args)

    return run


def as_op_again(function: Callable) -> Callable:
    """The function as an op does it; from the third call for tensors alike it is done again as it
    was the second time, if it launched kernels."""
    return Known(as_op(function)).__call__


def with_new_states(function: Callable, *places: int) -> Callable:
    """A function that writes states after the last token, as one that makes them: of new memory
    like the states before, which are at these places of its arguments."""

    def run(*given):
        made = function(*given, into=tuple(given[i].new_empty(given[i].shape) for i in places))
        return made if len(made) > 1 else made[0]

    return run


def few(tokens: int, steps: int) -> bool:
    """Whether tokens, fewer than `steps`, go one by one. What torch.compile makes is for any number
    of tokens, but one is a case of its own anyway."""
    return tokens < (min(steps, 2) if torch.compiler.is_compiling() else steps)


def in_a_graph(tokens: int) -> bool:
    """Whether torch compiles, for more tokens than one: the graph should be for any number."""
    return torch.compiler.is_compiling() and tokens > 1


def rows_of_chunk(chunk: int, tokens: int, x: Tensor, steps: int) -> int:
    """The length of chunks: the next power of 2 to the tokens, where these may decide; fewer than
    `steps` go one by one."""
    if not isinstance(chunk, int) or chunk < 1:
        raise ValueError(f"`chunk` must be a number of tokens, at least 1, got {chunk!r}")
    if x.is_cuda or torch.compiler.is_compiling():
        return chunk
    return min(chunk, 1 << (max(tokens, steps) - 1).bit_length())


def rows_that_fit(
    op: str, table: dict, chunk: int, dtype: torch.dtype, **sizes: tuple[int, int]
) -> int:
    """The length of chunks by kernels: at most `chunk`, and so that every kernel has room on a GPU
    (sm_90: 232,448 bytes of shared memory a program). `table` says how many rows that are, where it
    is not 64, by the bytes of a number and the blocks of sizes, each given with its shortest block.

    Raises ValueError where there is no room even for the shortest chunk.
    """
    blocks = []
    for size, shortest in sizes.values():
        blocks.append(shortest)
        while blocks[-1] < min(size, 257):
            blocks[-1] *= 2
    rows = table.get((dtype.itemsize, *blocks), 64)
    if rows <= 64:
        return min(chunk, rows)
    given = ", ".join(f"{name} = {size}" for name, (size, _) in sizes.items())
    raise ValueError(
        f"{op}: no tile plan fits {given} in {dtype} (E0701): in chunks of 16 tokens a program "
        f"needs about {rows:,} bytes of shared memory of 232,448. Make the dims smaller, use a "
        "dtype of 16 bits, or take the tokens one by one with chunk=None"
    )


def in_runs(xs: list[Tensor], chunk: int, reverse: bool = False) -> list:
    """`runs_of_chunks`; of one run where the number of tokens may not decide."""
    if xs[0].is_cuda or torch.compiler.is_compiling():
        return [xs]
    return runs_of_chunks(xs, chunk, reverse)


def joined(parts: list[Tensor]) -> Tensor:
    """Runs of tokens, in order, as one tensor."""
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def check_tensors(op: str, names: str, *tensors: Tensor) -> None:
    """Refuse what is no tensor of those that are called so."""
    for place, x in enumerate(tensors):
        if not isinstance(x, Tensor):
            name = names.split()[place]
            raise TypeError(f"{op}: `{name}` must be a tensor, got {type(x).__name__}")


def check_together(op: str, *tensors: Tensor) -> None:
    """Refuse tensors on several devices, and what holds no real numbers."""
    for x in tensors:
        if not x.is_floating_point():
            raise TypeError(f"{op}: its tensors must hold real numbers, got {x.dtype}")
        if x.device != tensors[0].device:
            devices = f"{tensors[0].device} and {x.device}"
            raise ValueError(f"{op}: its tensors must be on one device, got {devices}")


def each_alone(
    run: Callable, cu_seqlens: Tensor, chunk: int, given: list, kinds: str, made_kinds: str
) -> tuple:
    """`run(*given)` of each of packed sequences by itself. One letter each says what is given and
    made: along the tokens (t) or the chunks (n) of all, in place 1 of a batch of 1; a row for each
    sequence (s); or of all together (-), which is a sum if it is made.

    There is room for as many chunks as such sequences can need: those that nobody needs hold 0.
    """
    bounds, parts, first = cu_seqlens.tolist(), [], 0
    for i in range(len(bounds) - 1):
        start, end = bounds[i : i + 2]
        count = -(-(end - start) // chunk)
        at = {"s": (0, i, 1), "t": (1, start, end - start), "n": (1, first, count)}
        own = [
            x.narrow(*at[kind]) if kind in at else x for x, kind in zip(given, kinds, strict=True)
        ]
        parts.append(run(*own))
        first += count
    made = []
    for kind, xs in zip(made_kinds, zip(*parts, strict=True), strict=False):
        if kind == "-":
            made.append(sum(xs))
            continue
        x = torch.cat(xs, 0 if kind == "s" else 1)
        if kind == "n":
            room = (bounds[-1] + len(parts) * (chunk - 1)) // chunk - first
            x = torch.cat([x, x.new_zeros(x.shape[0], room, *x.shape[2:])], 1)
        made.append(x)
    return tuple(made)


def in_chunks(
    run: Callable, given: tuple, rest: tuple, dtype: torch.dtype, cu_seqlens: Tensor | None,
    kinds: str, made_kinds: str,
) -> tuple:  # fmt: skip
    """`run(*given, *rest)` in a dtype, the last of the `rest` the length of chunks; `each_alone` of
    packed sequences."""
    own = in_dtype(dtype, given)
    if cu_seqlens is None:
        return run(*own, *rest)
    return each_alone(lambda *own: run(*own, *rest), cu_seqlens, rest[-1], own, kinds, made_kinds)


def rows_and_chunks(
    batch: int, tokens: int, cu_seqlens: Tensor | None, chunk: int
) -> tuple[int, int]:
    """How many sequences there are, and how many chunks: of packed ones the most that these can
    need."""
    if cu_seqlens is None:
        return batch, -(-tokens // chunk)
    sequences = cu_seqlens.shape[0] - 1
    return sequences, (tokens + sequences * (chunk - 1)) // chunk


def without_saved(function: Callable) -> Callable:
    """A function that keeps nothing for a gradient: its last argument says so."""
    return lambda *given: function(*given, False)


def first_results(count: int, function: Callable) -> Callable:
    """The first results of a function; one by itself."""
    return lambda *given: function(*given)[:count] if count > 1 else function(*given)[0]


FITTING = set[tuple]()
"""Shapes that were found to fit together."""


def check_shapes(
    op: str, shapes: str | tuple[str, str, Callable], tensors: tuple,
    cu_seqlens: Tensor | None = None,
) -> None:  # fmt: skip
    """Refuse tensors whose shapes do not fit together: `x, y [B, T, H]; S [B sequences, H, _]` says
    what each is along, by the name of a length, a number, or _ for any; with `cu_seqlens` there are
    as many sequences as these say. The text may come with a condition on lengths, after their
    names."""
    key: tuple | None = None
    if not torch.compiler.is_compiling():
        packed = None if cu_seqlens is None else cu_seqlens.shape[0]
        key = (shapes, packed, *[x.shape for x in tensors])
        if key in FITTING:
            return
    text, names, fits = (shapes, "", bool) if isinstance(shapes, str) else shapes
    sizes = lengths_by_name(text.partition(" with ")[0], tensors, cu_seqlens)
    if sizes is None or (names and not fits(*[sizes[name] for name in names.split()])):
        wanted, got = text.replace(" sequences", ""), ", ".join(str([*x.shape]) for x in tensors)
        raise ValueError(f"{op}: shapes must be {wanted}; got {got}")
    if key is not None:
        if len(FITTING) == 1024:
            FITTING.clear()
        FITTING.add(key)


def lengths_by_name(text: str, tensors: tuple, cu_seqlens: Tensor | None) -> dict[str, int] | None:
    """The lengths of tensors by their names in a text of shapes; None if two differ."""
    sizes: dict[str, int] = {}
    parts = [part.strip("]").split(" [") for part in text.split("; ")]
    layouts = [layout for names, layout in parts for _ in names.split(", ")]
    for layout, x in zip(layouts, tensors, strict=True):
        names = layout.split(", ") if layout else []
        if len(names) != x.dim():
            return None
        for name, size in zip(names, x.shape, strict=True):
            own, _, counted = name.partition(" ")
            if counted and cu_seqlens is not None:
                wanted = cu_seqlens.shape[0] - 1
            else:
                wanted = int(own) if own.isdigit() else sizes.setdefault(own, size)
            if own != "_" and size != wanted:
                return None
    return sizes


def present(function: Callable) -> Callable:
    """A function without those of its results that are None."""
    return lambda *given: tuple(x for x in function(*given) if x is not None)


def in_dtype(dtype: torch.dtype, given: tuple) -> list:
    """The arguments, those that are real in another dtype."""
    real = [isinstance(x, Tensor) and x.is_floating_point() for x in given]
    return [x.to(dtype) if each else x for x, each in zip(given, real, strict=True)]


def settled(made: tuple, given: tuple, *dtypes: torch.dtype) -> tuple:
    """Results as an op returns them: in these dtypes, one row after the other, and none in memory
    of another or of what was given."""
    taken = {x.untyped_storage().data_ptr() for x in given if isinstance(x, Tensor)}
    found = []
    for made_so, dtype in zip(made, dtypes, strict=True):
        x = made_so.to(dtype).contiguous()
        found.append(x.clone() if x.untyped_storage().data_ptr() in taken else x)
        taken.add(found[-1].untyped_storage().data_ptr())
    return tuple(found)


def flat(last: int, made: tuple) -> tuple:
    """Results, the last of them in one row. How many chunks there are is then no length of its own:
    a graph of torch.compile for any number of tokens would be another for one chunk."""
    first = len(made) - last
    return *made[:first], *(x.view(-1) for x in made[first:])


def result_kind(x: Tensor) -> tuple:
    """The shape, dtype and device that a 0 like a tensor needs."""
    return x.shape, x.dtype, x.device


def or_zero(d: Tensor | None, kind: tuple) -> Tensor:
    """A gradient; where nothing depends on the value, a single 0 in its shape."""
    if d is not None:
        return d
    shape, dtype, device = kind
    return torch.zeros((), dtype=dtype, device=device).expand(shape)
