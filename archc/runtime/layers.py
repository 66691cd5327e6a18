"""Functions that layers call: checks of arguments, and ops on tokens that torch has no name for."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from archc.runtime.onward import ONWARD_PAYS, attention_onward


def check_sizes(layer: str, least: int, **sizes: int) -> None:
    """Refuse what cannot be a size."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{layer}: `{name}` must be an int, got {value!r}")
        if value < least:
            raise ValueError(f"{layer}: `{name}` must be at least {least}, got {value}")


def check_numbers(layer: str, **options: float) -> None:
    """Refuse what is no number."""
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{layer}: `{name}` must be a number, got {value!r}")


def whole_quotient(layer: str, name: str, top: int, bottom: int) -> int:
    """A size that is a fraction of others, which must come out whole."""
    if bottom == 0 or top % bottom:
        raise ValueError(f"{layer}: `{name}` = {top} / {bottom} is not a whole number")
    return top // bottom


def check_input(layer: str, name: str, x: Tensor, axes: str, sizes: dict, like: Tensor) -> None:
    """Refuse a tensor of another rank, size or device than the layer works on.

    `axes` names its dims; `sizes` holds those that are known and learns the others.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{layer}: `{name}` must be a tensor, got {type(x).__name__}")
    names, shape = axes.split(), x.shape
    wrong = "" if len(shape) == len(names) else ","
    for axis, length in zip(names, shape, strict=False):
        if length != sizes.setdefault(axis, length):
            wrong = wrong or f" with {axis} = {sizes[axis]},"
    if wrong:
        want, got = f"`{name}` must be [{', '.join(names)}]", f"a tensor of shape {list(shape)}"
        raise ValueError(f"{layer}: {want}{wrong} got {got}")
    if x.device != like.device:
        raise ValueError(f"{layer}: `{name}` is on {x.device}, not on {like.device}")


def check_real(layer: str, name: str, x: Tensor, like: Tensor | None = None) -> None:
    """Refuse what holds no real numbers, or, outside autocast, others than the layer's."""
    if not x.is_floating_point():
        raise TypeError(f"{layer}: `{name}` must hold real numbers, got {x.dtype}")
    dtype = x.dtype if like is None else like.dtype
    if x.dtype != dtype and not torch.is_autocast_enabled(x.device.type):
        raise TypeError(f"{layer}: `{name}` is {x.dtype}, the layer {dtype}")


def check_index(layer: str, name: str, x: Tensor) -> None:
    """Refuse what holds no integers."""
    if x.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{layer}: `{name}` must hold integers (torch.int64), got {x.dtype}")


def check_chunk(layer: str, chunk: int | None) -> None:
    """Refuse what is no number of tokens."""
    if chunk is not None and (not isinstance(chunk, int) or isinstance(chunk, bool) or chunk < 1):
        raise ValueError(
            f"{layer}: `chunk` must be a number of tokens, at least 1, or None, got {chunk!r}"
        )


def any_length(want: Any) -> bool:
    """Whether a dim may have any length, or any one that others have, too."""
    return want is None or type(want) is str


def check_kept(layer: str, name: str, x: Tensor, shape: tuple) -> None:
    """Refuse what has another shape than a tensor of the state; None: any length is right."""
    same = x.dim() == len(shape)
    if same and shape[0] is not None and x.shape[0] != shape[0]:
        batch = f"{x.shape[0]}, the input of {shape[0]}"
        raise ValueError(f"{layer}: `state.{name}` is of a batch of {batch}")
    for have, want in zip(x.shape, shape, strict=False):
        same = same and (any_length(want) or have == want)
    if not same:
        wanted = ", ".join("any" if any_length(want) else str(want) for want in shape)
        got = f"got a tensor of shape {list(x.shape)}"
        raise ValueError(f"{layer}: `state.{name}` must be [{wanted}], {got}")


def check_state(
    layer: str, state: NamedTuple, kind: type, like: Tensor, shapes: dict,
    wide: str = "", whole: str = "", layers: str = "", optional: str = "",
) -> None:  # fmt: skip
    """Refuse a state that another layer, another batch or another precision left behind, and one
    that lacks what it must hold.

    `shapes` says how long the dims of each tensor are, None where any length is right, and a name
    for one that several have. Those named in `wide` are at least as exact as float32 and the data,
    `like`; those in `whole` hold no real numbers, those in `optional` may be None; `layers` are the
    fields with states of layers.
    """
    if not isinstance(state, kind):
        wanted, got = f"an instance of {kind.__name__}", type(state).__name__
        got += ", that of another model" * (got == kind.__name__)
        raise TypeError(f"{layer}: `state` must be {wanted}, got {got}")
    for name in layers.split():
        value = getattr(state, name)
        lacks = type(value) is tuple and any(each is None for each in value)
        if lacks or not isinstance(value, tuple):
            got = "one that is None" if lacks else type(value).__name__
            raise TypeError(f"{layer}: `state.{name}` must hold states of layers, got {got}")
    alike: dict[str, tuple[str, int]] = {}
    for name, shape in shapes.items():
        value = getattr(state, name)
        if value is None and name in optional.split():
            continue
        kinds = name in whole.split(), name in wide.split()
        check_tensor(layer, name, value, like, shape, *kinds)
        check_alike(layer, name, value, shape, alike)
    known = state._asdict()
    if "pos" in known and "pos" not in shapes and not torch.compiler.is_compiling():
        check_pos(layer, known["pos"], [*alike.values()])


def check_tensor(
    layer: str, name: str, value: Any, like: Tensor, shape: tuple, whole: bool, wide: bool
) -> None:
    """Refuse what is no tensor of such a shape, beside the data, of its kind and precision."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{layer}: `state.{name}` must be a tensor, got {type(value).__name__}")
    check_kept(layer, name, value, shape)
    if value.device != like.device:
        where = f"is on {value.device}, not on {like.device}"
        raise ValueError(f"{layer}: `state.{name}` {where}")
    if value.is_floating_point() == whole:
        wanted = "whole numbers" if whole else "real numbers"
        raise TypeError(f"{layer}: `state.{name}` must hold {wanted}, got {value.dtype}")
    least = torch.promote_types(like.dtype, torch.float32)
    if wide and torch.promote_types(least, value.dtype) != value.dtype:
        raise TypeError(f"{layer}: `state.{name}` must be {least} at least, got {value.dtype}")
    if not wide and not may_be_kept(value, like, least):
        wanted = f"must be {like.dtype}, as the data is"
        raise TypeError(f"{layer}: `state.{name}` {wanted}, got {value.dtype}")


def check_alike(
    layer: str, name: str, value: Any, shape: tuple, alike: dict[str, tuple[str, int]]
) -> None:
    """Refuse other lengths of dims with a name than those that are known as `alike`."""
    for length, of in zip(value.shape, shape, strict=True):
        first, known = alike.setdefault(of, (name, length)) if type(of) is str else ("", length)
        if known != length:
            both = f"`state.{first}` has {known} tokens, and `state.{name}` {length}"
            raise ValueError(f"{layer}: {both}: they keep the same ones")


def check_pos(layer: str, pos: Any, kept: list[tuple[str, int]]) -> None:
    """Refuse what is no number of tokens seen, or less than some that are kept."""
    if not isinstance(pos, int) or isinstance(pos, bool):
        raise TypeError(f"{layer}: `state.pos` must be a whole number, got {type(pos).__name__}")
    if pos < 0:
        raise ValueError(f"{layer}: `state.pos` must be the number of tokens seen, got {pos}")
    for name, length in kept:
        if length > pos:
            seen = f"`state.{name}` has {length} tokens, and `state.pos` = {pos} were seen"
            raise ValueError(f"{layer}: {seen}")


def may_be_kept(value: Tensor, like: Tensor, least: torch.dtype) -> bool:
    """Whether a value of this precision can have been made from the data: it is the data's, or
    `least`, which exact steps are done in, or that of autocast."""
    if not value.is_floating_point() or value.dtype in (like.dtype, least):
        return True
    kind = like.device.type
    return torch.is_autocast_enabled(kind) and value.dtype == torch.get_autocast_dtype(kind)


def kinds_of(module: nn.Module, device: Any, dtype: torch.dtype | None) -> dict:
    """The device and dtype of what a module makes: as given, or of its first parameter."""
    if device is None or dtype is None:
        like = next(module.parameters(), torch.empty(0))
        device = like.device if device is None else device
        dtype = like.dtype if dtype is None else dtype
    return {"device": device, "dtype": dtype}


def load_former_names(module: nn.Module, former: dict) -> None:
    """Let a module load state dicts in which layers inside it have the names that they had before,
    by those that they have now."""
    module.register_load_state_dict_pre_hook(partial(rename_former, former))


def rename_former(former: dict, module: nn.Module, found: dict, prefix: str, *_: Any) -> None:
    """Rename the parameters of former names in a state dict before it is loaded."""
    for name, old in former.items():
        start = f"{prefix}{old}."
        for key in [key for key in found if key.startswith(start)]:
            found.setdefault(f"{prefix}{name}.{key[len(start) :]}", found.pop(key))


def without_decay(module: nn.Module, *names: str) -> None:
    """Mark parameters that only scale, shift or gate: an optimizer should let none of them decay.
    The mark is an attribute of each, and the module knows their names."""
    vars(module)["_without_decay"] = frozenset(names)
    for name in names:
        getattr(module, name)._no_weight_decay = True


def keep_as_linear(module: nn.Module, maps: dict) -> None:
    """Let a module load weights as the spec has them into its maps of `nn.Linear`, [out, in]: by
    their names, the dims that a map makes, and those that it sums over."""
    vars(module)["_linear"] = maps
    module.register_load_state_dict_pre_hook(as_matrices)


def as_matrices(module: nn.Module, found: dict, prefix: str, *_: Any) -> None:
    """Weights of a state dict as maps of `nn.Linear` have them."""
    for name, (made, summed) in vars(module)["_linear"].items():
        weight = found.pop(prefix + name, None)
        if weight is not None:
            rows = math.prod(weight.shape[place] for place in made)
            matrix = weight.permute(*made, *summed).reshape(rows, -1)
            found[f"{prefix}{name}.weight"] = matrix


def without_autocast(function: Callable) -> Callable:
    """The function with autocast switched off: states keep their precision whatever enters."""

    def run(*args, **options):
        kind = next(x.device.type for x in args if isinstance(x, Tensor))
        if kind == "meta" or not torch.is_autocast_enabled(kind):
            return function(*args, **options)
        with torch.autocast(kind, enabled=False):
            return function(*args, **options)

    return run


def inverse_softplus(x: Tensor) -> Tensor:
    """y with softplus(y) = x."""
    return x + torch.log(-torch.expm1(-x))


def told_by(cu_seqlens: Tensor) -> tuple:
    """A key that changes with the borders: on a CPU their values, as numpy and `.data` change them
    without a word to torch; on a GPU, where reading them waits, torch's own count of changes."""
    if cu_seqlens.device.type == "cpu":
        return id(cu_seqlens), *cu_seqlens.tolist()
    now = id(cu_seqlens), cu_seqlens.data_ptr(), cu_seqlens._version
    if torch.is_anomaly_enabled():
        refuse_unseen(cu_seqlens, now)
    return now


def refuse_unseen(cu_seqlens: Tensor, now: tuple) -> None:
    """Refuse borders with other values than when torch told the same of them; waits for the GPU."""
    values = cu_seqlens.tolist()
    before, known = getattr(cu_seqlens, "_values_then", (None, None))
    if before == now and known != values:
        what = "was changed through `.data`, or by another library, which cannot be seen on a GPU"
        how = "change it by operations of PyTorch, or give a new tensor"
        raise ValueError(f"`cu_seqlens` {what}: it is {values}, and was {known}; {how}")
    vars(cu_seqlens)["_values_then"] = (now, values)


def once_for(cu_seqlens: Tensor, what: tuple, make: Callable) -> Any:
    """The result of `make(cu_seqlens)`: made once, and again when there is a change in place. A
    graph, of CUDA or of torch.compile, makes its own each time that it runs, as its borders may be
    others by then."""
    device = cu_seqlens.device
    if torch.compiler.is_compiling() or cu_seqlens.is_inference():
        return make(cu_seqlens)
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return make(cu_seqlens)
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    now = (told_by(cu_seqlens), stream)
    before, kept = getattr(cu_seqlens, "_kept", (None, {}))
    if before != now:
        kept = {}
        vars(cu_seqlens)["_kept"] = (now, kept)
    if what not in kept:
        kept[what] = make(cu_seqlens)
    return kept[what]


def with_pasts(
    run: Callable, x: Tensor, past: Tensor, cu_seqlens: Tensor, *others: Tensor
) -> tuple[Tensor, Tensor]:
    """`run(x, past, *others)` of packed sequences, where each token looks back on as many as `past`
    holds: every sequence with its past in front of it, in one run. The others have a value for
    each token, [1, T, ...].

    x [1, T, ...], past [N, P, ...] -> [1, T, ...], and [N, P, ...] for the next call
    """
    (N, P), T = past.shape[:2], x.shape[1]

    def make(cu_seqlens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        start, end = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
        place = torch.arange(T + N * P, device=cu_seqlens.device)
        kept = place[:T] + P * torch.searchsorted(end, place[:T], right=True)
        before = place[: N * P].unflatten(0, (N, P)) + start[:, None]
        order = torch.cat([kept + P, before.flatten()])
        order = torch.empty_like(order).scatter_(0, order, place)
        return order, kept, (before + (end - start)[:, None]).flatten()

    order, kept, last = once_for(cu_seqlens, ("pasts", T, P), make)
    every = torch.cat([x, past.flatten(0, 1)[None]], 1).index_select(1, order)
    spread = [
        other.new_zeros(1, len(order) - P, *other.shape[2:]).index_copy(1, kept, other)
        for other in others
    ]
    made, _ = run(every[:, P:], every[:, :P], *spread)
    after = every[0].index_select(0, last).unflatten(0, (N, P))
    return made.index_select(1, kept), after


def dropout_factor(x: Tensor, p: float, training: bool) -> Tensor:
    """The factor of dropout in the shape of x; outside of training ones, which take no memory."""
    if not training or p == 0:
        return x.new_ones(()).expand(x.shape)
    return F.dropout(x.new_ones(()).expand(x.shape), p)


def rows_of_sequences(cu_seqlens: Tensor, tokens: int, before: int) -> Tensor:
    """Packed sequences as the rows of a program, each with `before` rows in front of its tokens: of
    each row the token that its sequence begins with, the one after its last, and which it is,
    [3, rows]."""

    def make(cu_seqlens: Tensor) -> Tensor:
        start, end = cu_seqlens[:-1], cu_seqlens[1:]
        sequence = torch.arange(len(start), device=cu_seqlens.device)
        row = torch.arange(tokens + len(start) * before, device=cu_seqlens.device)
        own = torch.searchsorted(end + before * (sequence + 1), row, right=True)
        own = own.clamp(max=len(start) - 1)
        return torch.stack([start[own], end[own], own.to(start.dtype)]).long()

    return once_for(cu_seqlens, ("rows", tokens, before), make)


def kept_of_sequences(
    past: Tensor, cu_seqlens: Tensor, x: Tensor | None = None, tail: Tensor | None = None
) -> Tensor:
    """The last tokens of each packed sequence with its past in front, as many as the past has:
    past [N, P, ...], of x [1, T, ...] or of a tail [N, P, ...], which has those of the sequence."""
    (N, P), tokens = past.shape[:2], 1 if x is None else x.shape[1]

    def make(cu_seqlens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        start, end = cu_seqlens[:-1, None].long(), cu_seqlens[1:, None].long()
        place = torch.arange(P, device=cu_seqlens.device)
        token = end - P + place
        row = P * torch.arange(N, device=cu_seqlens.device)[:, None]
        row = row + (place + end - start).clamp(max=P - 1)
        return token >= start, token.clamp(0, max(tokens - 1, 0)).flatten(), row.flatten()

    inside, token, row = once_for(cu_seqlens, ("kept", tokens, P), make)
    if tail is None:
        assert x is not None
        tail = x[0].index_select(0, token).unflatten(0, (N, P)) if x.shape[1] else past
    before = past.flatten(0, 1).index_select(0, row).unflatten(0, (N, P))
    return torch.where(inside.reshape(N, P, *[1] * (past.dim() - 2)), tail, before)


def shift_tokens(
    x: Tensor, past: Tensor, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The token before each token (as many before as `past` holds), and the past of the next
    call."""
    if cu_seqlens is not None:
        return with_pasts(shift_tokens, x, past, cu_seqlens)
    T = x.shape[1]
    x = torch.cat([past, x], 1)
    return x[:, :T], x[:, T:]


def window_tokens(
    x: Tensor, past: Tensor, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Each token with those before it, oldest first, and the past of the next call.

    x [B, T, ...] -> [B, T, width, ...], where `past` holds the last width - 1 tokens
    """
    if cu_seqlens is not None:
        return with_pasts(window_tokens, x, past, cu_seqlens)
    T = x.shape[1]
    x = torch.cat([past, x], 1)
    return torch.stack([x[:, i : i + T] for i in range(past.shape[1] + 1)], 2), x[:, T:]


def short_convolution(
    x: Tensor, past: Tensor, w: Tensor, cu_seqlens: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The sum over the last tokens of x times w, whose last dim is one tap a token, oldest first.

    `past` holds the tokens before x; those of the next call are returned. A filter of each token,
    [B, T, ..., width], has a dim more than x.
    """
    if cu_seqlens is not None:
        own = [w] if w.dim() > x.dim() else []

        def run(x: Tensor, past: Tensor, *filters: Tensor) -> tuple[Tensor, Tensor]:
            return short_convolution(x, past, *(filters or [w]))

        return with_pasts(run, x, past, cu_seqlens, *own)
    T = x.shape[1]
    x = torch.cat([past, x], 1)
    y = x[:, :T] * w[..., 0]
    for i in range(1, w.shape[-1]):
        y = y + x[:, i : i + T] * w[..., i]
    return y, x[:, T:]


def block_tokens(
    x: Tensor, past: Tensor, width: int, stride: int, pos: int
) -> tuple[Tensor, Tensor]:
    """Every complete run of `width` tokens, one every `stride`, [B, N, width, ...], and the tokens
    that later runs need. `pos` tokens have been seen before x."""
    done = max(0, (pos - width) // stride + 1)
    before = past.shape[1]
    x = torch.cat([past, x], 1) if before else x
    x = x[:, max(0, done * stride - (pos - before)) :]
    count = max(0, (x.shape[1] - width) // stride + 1)
    left = x[:, count * stride :] if before else x[:, count * stride :].clone()
    if count and width == stride:
        return x[:, : count * width].unflatten(1, (count, width)), left
    starts = stride * torch.arange(count, device=x.device)
    return x[:, starts[:, None] + torch.arange(width, device=x.device)], left


def extreme_of(x: Tensor, dim: int, function: Callable) -> Tensor:
    """amax or amin over tokens, of which there may be none; of whole numbers the least or largest
    stands for none."""
    least, most = -math.inf, math.inf
    if not x.is_floating_point():
        least, most = torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max
    nothing = least if function is torch.amax else most
    return function(torch.cat([x, torch.full_like(x.sum(dim, keepdim=True), nothing)], dim), dim)


def masked_softmax(
    score: Tensor, mask: Tensor, dim: int, sink: Tensor | float | None = None
) -> Tensor:
    """Softmax of the scores where the mask holds, in float32 at least; all 0 where it never does.

    A sink is one more score that takes its share and gives it to nobody.
    """
    wide = torch.promote_types(score.dtype, torch.float32)
    logits = score.masked_fill(~mask, -math.inf)
    if sink is not None:
        column = logits.narrow(dim, 0, 0).sum(dim, keepdim=True)
        last = sink.unsqueeze(dim) if isinstance(sink, Tensor) else torch.full_like(column, sink)
        logits = torch.cat([logits, last.expand_as(column)], dim)
    empty = (logits == -math.inf).all(dim, keepdim=True)
    weights = torch.softmax(logits.masked_fill(empty, 0.0), dim, dtype=wide).masked_fill(empty, 0.0)
    return weights.narrow(dim, 0, score.shape[dim]).to(score.dtype)


def log_sum_exp(score: Tensor, dim: int) -> Tensor:
    """log of the sum of exp(score), in float32 at least; -inf, with no gradient, where all are."""
    score = score.to(torch.promote_types(score.dtype, torch.float32))
    empty = (score == -math.inf).all(dim)
    total = torch.logsumexp(score.masked_fill(empty.unsqueeze(dim), 0.0), dim)
    return total.masked_fill(empty, -math.inf)


def softmax_attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, dropout: float = 0.0,
    read: Tensor | None = None, scale: float = 1.0,
) -> Tensor:  # fmt: skip
    """softmax(scale q k) v by torch's kernels, which lay no weights out; 0 where nothing is read.

    q [B, T, H, K], k [B, S, G, K], v [B, S, G, V], where H is a multiple of G -> [B, T, H, V].
    With `causal` the last token reads all S, the one before it all but the last, and so on; with
    `read` [B, S] all tokens read those where it is true.
    """
    T, S, heads = q.shape[1], k.shape[1], max(k.shape[2], v.shape[2])
    if T == 0 or S == 0:
        return (q[..., :1] * 0 + (k.sum() + v.sum()) * 0).expand(*q.shape[:3], v.shape[3])
    split = T == 1 and read is None and q.is_cuda and q.dtype != torch.float32
    split = split and q.shape[3] == v.shape[3]
    if heads == 1 < q.shape[2] and (T == 1 or not causal) and not split:
        # heads that read the same are readers; a kernel splits what one token alone reads
        readers = q.flatten(1, 2).unsqueeze(2)
        o = softmax_attention(readers, k, v, False, dropout, read, scale)
        return o.squeeze(2).unflatten(1, q.shape[1:3])
    exact = q.is_cuda and q.dtype == torch.float32  # for which no kernel shares keys
    if k.shape[2] != v.shape[2] or (exact and heads < q.shape[2]):
        heads = q.shape[2] if exact else heads
        k, v = (x.repeat_interleave(heads // x.shape[2], 2) for x in (k, v))
    width, wide = v.shape[3], max(q.shape[3], v.shape[3])
    if not q.is_cuda and q.shape[3] != v.shape[3]:  # kernels for a CPU want vectors of one length
        q, k, v = (F.pad(x, (0, wide - x.shape[3])) for x in (q, k, v))
    mask, triangle = None if read is None else read[:, None, None], causal and T > 1 and T >= S
    given = [x.transpose(1, 2) for x in (q, k, v)]
    if causal and 1 < T < S:  # tokens that go on after others
        calls = dropout == 0 and T * S >= ONWARD_PAYS
        o = attention_onward(given[0], given[1], given[2], scale) if calls else None
        if o is not None:
            return o.transpose(1, 2)[..., :width]
        mask = torch.ones(T, S, dtype=torch.bool, device=q.device).tril(S - T)
    options = {"is_causal": triangle, "scale": scale, "enable_gqa": q.shape[2] != heads}
    o = F.scaled_dot_product_attention(*given, attn_mask=mask, dropout_p=dropout, **options)
    return o.transpose(1, 2)[..., :width]


def combined_between(x: Tensor, readers: int, cumulative: Callable) -> Tensor:
    """Sums (or products) of x over the tokens r with s < r <= t, for the last `readers` tokens t.

    x [B, S, ...] -> [B, T, S, ...]; where s >= t it is 0 (or 1). Nothing is subtracted, so that
    large sums do not cancel.
    """
    neutral = 0.0 if cumulative is torch.cumsum else 1.0
    past = x.shape[1] - readers
    before = cumulative(x[:, :past].flip(1), 1).flip(1)[:, 1:]
    before = torch.cat([before, torch.full_like(x[:, max(past - 1, 0) :], neutral)], 1)
    s = torch.arange(x.shape[1], device=x.device)
    after = (s < s[past:, None]).reshape(readers, x.shape[1], *[1] * (x.dim() - 2))
    steps = torch.where(after, x[:, past:, None], neutral)
    return cumulative(torch.cat([before[:, None], steps], 1), 1)[:, 1:]


def combined_between_for_each(x: Tensor, cumulative: Callable) -> Tensor:
    """Sums (or products) of x over the tokens r with s < r <= t, where x depends on the reader t.

    x [B, T, S, ...], over r, -> [B, T, S, ...], over s; where s >= t it is 0 (or 1).
    """
    neutral = 0.0 if cumulative is torch.cumsum else 1.0
    readers, seen = x.shape[1:3]
    r = torch.arange(seen, device=x.device)
    past = (r <= r[seen - readers :, None]).reshape(readers, seen, *[1] * (x.dim() - 3))
    later = cumulative(torch.where(past, x, neutral).flip(2), 2).flip(2)[:, :, 1:]
    return torch.cat([later, torch.full_like(x[:, :, :1], neutral)], 2)


def top_of(score: Tensor, count: int, dim: int) -> Tensor:
    """True at the `count` largest scores; of equals the first, never -inf. What is no number is the
    largest, as torch has it."""
    if count >= score.shape[dim]:
        return score != -math.inf
    if count < 1:
        return torch.zeros_like(score, dtype=torch.bool)
    none = score.isnan()
    first = none & (none.cumsum(dim, dtype=torch.int32) <= count)
    least = score.masked_fill(none, math.inf).topk(count, dim, sorted=False).values
    least = least.amin(dim, keepdim=True)
    above, equal = (score > least) | first, score == least
    room = count - above.sum(dim, keepdim=True)
    equal = equal & (equal.cumsum(dim, dtype=torch.int32) <= room)
    return (above | equal) & (score != -math.inf)


def take_at(x: Tensor, index: Tensor, shared: int) -> Tensor:
    """x [shared..., N, rest...] at index [shared..., new...] -> [shared..., new..., rest...]; a dim
    of length 1 that is shared is repeated."""
    lead, rest = torch.broadcast_shapes(x.shape[:shared], index.shape[:shared]), x.shape[shared:]
    new = index.shape[shared:]
    flat = index.expand(*lead, *new).reshape(*lead, math.prod(new))
    at = flat.reshape(*flat.shape, *[1] * (len(rest) - 1)).expand(*flat.shape, *rest[1:])
    return x.expand(*lead, *rest).gather(shared, at).reshape(*lead, *new, *rest[1:])


def substituted(weights: Tensor, right: Tensor, past: Tensor | None = None) -> Tensor:
    """z [..., T, *rest] with z[t] = right[t] + the sum over s < t of weights[t, s] z[s], for
    weights [..., T, S]; `past` is z of the S - T tokens before."""
    dims = weights.dim() - 1
    rest, seen = right.shape[dims:], weights.shape[-1] - weights.shape[-2]
    wide = torch.promote_types(right.dtype, torch.float32)
    a, b = weights.to(wide), right.to(wide).reshape(*right.shape[:dims], math.prod(rest))
    if past is not None and seen:
        b = b + a[..., :seen] @ past.to(wide).reshape(*past.shape[:dims], math.prod(rest))
    own = -a[..., seen:].tril(-1)
    z = torch.linalg.solve_triangular(own, b, upper=False, unitriangular=True)
    return z.to(right.dtype).reshape(*z.shape[:-1], *rest)


def join_along(dim: int, *xs: Tensor) -> Tensor:
    """Tensors one after the other along a dim; along others, one of length 1 is repeated."""
    others = [list(x.shape) for x in xs]
    for shape in others:
        shape[dim] = 1
    whole = list(torch.broadcast_shapes(*others))
    wide = []
    for x in xs:
        whole[dim] = x.shape[dim]
        wide.append(x.expand(whole))
    return torch.cat(wide, dim)


def one_hot_rows(index: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """A row for each index: 1 in its column, 0 elsewhere; all 0 if there is no such column."""
    return (index[:, None] == torch.arange(count, device=index.device)).to(dtype)
