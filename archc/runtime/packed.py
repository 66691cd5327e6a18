"""Functions that run a layer on packed sequences."""

import math
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from archc.runtime.chunks import moved, placed, to_chunks
from archc.runtime.growing import last_tokens
from archc.runtime.kept_states import RaggedState, joined_states, kept_by, state_rows
from archc.runtime.layers import extreme_of, once_for, told_by
from archc.runtime.repeated import made_of_numbers


def check_borders(layer: str, cu_seqlens: Tensor, x: Tensor) -> None:
    """Refuse what cannot be the borders of sequences in x [1, T], whatever the values are."""
    if not isinstance(cu_seqlens, Tensor):
        got = f"got {type(cu_seqlens).__name__}"
        raise TypeError(f"{layer}: `cu_seqlens` must be a tensor of integers, {got}")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        wanted = "must be a tensor of integers (torch.int32 or torch.int64)"
        raise TypeError(f"{layer}: `cu_seqlens` {wanted}, got {cu_seqlens.dtype}")
    if cu_seqlens.device != x.device:
        where = f"is on {cu_seqlens.device}, not on {x.device}"
        raise ValueError(f"{layer}: `cu_seqlens` {where}")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        got = f"got a tensor of shape {list(cu_seqlens.shape)}"
        raise ValueError(f"{layer}: `cu_seqlens` must be [N + 1] for N >= 1 sequences, {got}")
    if x.shape[0] != 1:
        got = f"got a batch of {x.shape[0]}"
        raise ValueError(f"{layer}: with `cu_seqlens` the batch must be 1, {got}")


def sequence_bounds(layer: str, cu_seqlens: Tensor, x: Tensor) -> list[int]:
    """The borders of packed sequences, as numbers; refuses what cannot be that."""
    check_borders(layer, cu_seqlens, x)
    bounds = cu_seqlens.tolist()
    if bounds[0] != 0 or bounds[-1] != x.shape[1] or sorted(bounds) != bounds:
        wanted = f"must ascend from 0 to the number of tokens, {x.shape[1]}"
        raise ValueError(f"{layer}: `cu_seqlens` {wanted}, got {bounds}")
    return bounds


def rows_beside(cu_seqlens: Tensor | None, x: Tensor) -> int:
    """How many rows there are of what each sequence has one of, beside tokens x [B, T, ...]."""
    if isinstance(cu_seqlens, Tensor) and cu_seqlens.dim() == 1:
        return len(cu_seqlens) - 1
    return x.shape[0]


def run_packed(
    layer: str, run: Callable, cu_seqlens: Tensor | None, attention_mask: Tensor | None,
    tokens: dict, others: dict, state: Any, rows: tuple = (), whole: tuple = (),
    further: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """Outputs and the state of sequences, as if each ran by itself: that stand one after the other,
    or in a batch with padding, or whose states are ragged.

    `tokens` are inputs [1, T, ...] or [B, T, ...], `others` hold one row a sequence, as outputs at
    the places `rows` do; outputs named in `whole` are of all tokens, and no sequence's. `further`:
    no token depends on later ones, and no state is wanted: sequences of which none is twice as long
    as another then run as one batch.
    """
    first = next(x for x in tokens.values() if x is not None)
    if cu_seqlens is None:
        kept = check_mask(layer, attention_mask, first)
        cu_seqlens, packed = without_padding(kept, tokens)
        given = (packed, others, state, rows, whole, further)
        made, state = run_packed(layer, run, cu_seqlens, None, *given)
        return with_padding(made, kept, rows), state
    if attention_mask is not None:
        raise ValueError(f"{layer}: give `cu_seqlens` or `attention_mask`, not both")
    bounds = sequence_bounds(layer, cu_seqlens, first)
    cut = {name: x if x is None else each_sequence(x, bounds) for name, x in tokens.items()}
    if further and state is None:
        return run_near(run, bounds, cut), None
    count, outputs, states = len(bounds) - 1, {}, {}
    for members in alike_sequences(layer, bounds, state):
        given = {name: x if x is None else batch_of(x, members) for name, x in cut.items()}
        given |= {name: state_rows(layer, x, members, count) for name, x in others.items()}
        made, after = run(**given, state=state_rows(layer, state, members, count))
        refuse_whole(layer, made, whole)
        for row, i in enumerate(members):
            outputs[i] = state_rows(layer, made, [row], len(members))
            states[i] = state_rows(layer, after, [row], len(members))
    return outputs_in_order(outputs, rows), joined_states([states[i] for i in range(count)])


def state_of_each(state: Any, cu_seqlens: Tensor, x: Tensor, seen: dict) -> Any:
    """The states of packed sequences that were done at once, x [1, T, ...]: one of a batch where
    they keep equally much, else a ragged one. `seen` has by their names values of all tokens
    [1, T, ...] that are kept, and how many of the latest each sequence keeps, or None; other fields
    of `state` have a row for each sequence."""
    bounds, kind = bounds_of(cu_seqlens, x), type(state)
    cut = {name: each_sequence(value, bounds) for name, (value, _) in seen.items()}
    alike, states = getattr(kind, "_shared", ()), []
    for i, (start, end) in enumerate(pairwise(bounds)):
        own = {}
        for name, part in zip(kind._fields, state, strict=True):
            if name in seen:
                most = seen[name][1]
                own[name] = cut[name][i] if most is None else last_tokens(cut[name][i], most)
            elif name == "pos":
                own[name] = end - start
            else:
                own[name] = part if name in alike else row_of_state(part, i)
        states.append(kind(**own))
    return joined_states(states)


def row_of_state(value: Any, row: int) -> Any:
    """The part of a state that is one sequence's, of its own layer or of those inside it."""
    if isinstance(value, RaggedState):
        return value.rows[row]
    if isinstance(value, Tensor):
        return value[row : row + 1]
    if not isinstance(value, tuple):
        return value
    kind: Any = type(value)
    if not hasattr(kind, "_fields"):
        return tuple(row_of_state(part, row) for part in value)
    alike = getattr(kind, "_shared", ())
    named = zip(kind._fields, value, strict=True)
    return kind(*(part if n in alike else row_of_state(part, row) for n, part in named))


def outputs_in_order(outputs: dict, rows: tuple) -> Any:
    """The outputs of sequences, by their numbers, one after the other."""
    every = [outputs[i] for i in range(len(outputs))]
    if not isinstance(every[0], tuple):
        return torch.cat(every, 0 if 0 in rows else 1)
    values = zip(*every, strict=True)
    return tuple(torch.cat(ys, 0 if i in rows else 1) for i, ys in enumerate(values))


def run_padded(
    layer: str,
    run: Callable,
    cu_seqlens: Tensor | None,
    attention_mask: Tensor,
    tokens: dict,
    state: Any,
    return_state: bool,
    rows: tuple = (),
) -> Any:
    """The result of `run`, which takes packed sequences at once, for a batch with padding: of its
    other tokens, one sequence after the other. Arguments are those of `run_packed`."""
    if cu_seqlens is not None:
        raise ValueError(f"{layer}: give `cu_seqlens` or `attention_mask`, not both")
    kept = check_mask(layer, attention_mask, next(x for x in tokens.values() if x is not None))
    cu_seqlens, packed = without_padding(kept, tokens)
    made = run(**packed, cu_seqlens=cu_seqlens, state=state, return_state=return_state)
    if return_state:
        return with_padding(made[0], kept, rows), made[1]
    return with_padding(made, kept, rows)


def check_mask(layer: str, mask: Tensor | None, x: Tensor) -> Tensor:
    """True at the tokens of x [B, T, ...] that are no padding; refuses what cannot say that."""
    if mask is None:
        return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    title = f"{layer}: `attention_mask`"
    if not isinstance(mask, Tensor) or mask.is_floating_point() or mask.is_complex():
        got = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        wanted = "must be a tensor of bools or integers, 0 for padding"
        raise TypeError(f"{title} {wanted}, got {got}")
    if mask.shape != x.shape[:2]:
        wanted = f"must be {list(x.shape[:2])}, as the tokens that are given with it"
        raise ValueError(f"{title} {wanted}, got a tensor of shape {list(mask.shape)}")
    if mask.device != x.device:
        raise ValueError(f"{title} is on {mask.device}, not on {x.device}")
    return mask != 0


def without_padding(mask: Tensor, tokens: dict) -> tuple[Tensor, dict]:
    """The tokens of a batch that are no padding, one sequence after the other, and where each
    begins."""
    at = mask.flatten().nonzero().squeeze(1)
    packed = {
        name: x if x is None else x.flatten(0, 1).index_select(0, at)[None]
        for name, x in tokens.items()
    }
    return F.pad(mask.sum(1).cumsum(0), (1, 0)), packed


def with_padding(made: Any, mask: Tensor, rows: tuple = ()) -> Any:
    """Outputs of packed tokens where these stand in the batch, 0 at padding; those at the places
    `rows` as they are."""
    if isinstance(made, tuple):
        pairs = enumerate(made)
        return tuple(y if i in rows else with_padding(y, mask) for i, y in pairs)
    if 0 in rows:
        return made
    padded = made.new_zeros((mask.numel(), *made.shape[2:]))
    at = mask.flatten().nonzero().squeeze(1)
    return padded.index_copy(0, at, made[0]).unflatten(0, mask.shape)


def alike_sequences(layer: str, bounds: list[int], state: Any) -> list[list[int]]:
    """Groups of sequences that can run as one batch, as they have equal lengths and states."""
    count = len(bounds) - 1
    ragged = isinstance(state, RaggedState)
    groups: dict[Any, list[int]] = {}
    for i in range(count):
        kept = kept_by(state_rows(layer, state, [i], count)) if ragged else None
        groups.setdefault((bounds[i + 1] - bounds[i], kept), []).append(i)
    return list(groups.values())


def run_near(run: Callable, bounds: list[int], cut: dict) -> Any:
    """The outputs of sequences without a state, those of near lengths as one batch."""
    outputs = {}
    for members in near_sequences(bounds):
        given = {n: x if x is None else longest_batch(x, members) for n, x in cut.items()}
        made, _ = run(**given, state=None)
        for row, i in enumerate(members):
            outputs[i] = first_tokens(made, row, bounds[i + 1] - bounds[i])
    return outputs_in_order(outputs, ())


RUN_TOKENS = 2048
"""A batch more is run where that leaves so many tokens out that shorter sequences repeat."""


def near_sequences(bounds: list[int]) -> list[list[int]]:
    """Groups of sequences of which none is twice as long as another of its group, nor repeats more
    than it is worth to run fewer batches."""
    lengths = [end - start for start, end in pairwise(bounds)]
    groups: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        longest = lengths[groups[-1][0]] if groups else -1
        if lengths[i] == longest or 2 * lengths[i] > longest >= 0:
            groups[-1].append(i)
        else:
            groups.append([i])
    return [part for group in groups for part in nearer_sequences(group, lengths)]


def nearer_sequences(group: list[int], lengths: list[int]) -> list[list[int]]:
    """Sequences, the longest first, taken apart where that saves most, while it is worth it."""
    longest = lengths[group[0]]
    saved = [(longest - lengths[each]) * (len(group) - i) for i, each in enumerate(group)]
    best = max(range(len(group)), key=lambda i: saved[i])
    if saved[best] < RUN_TOKENS:
        return [group]
    parts = (group[:best], group[best:])
    return [part for own in parts for part in nearer_sequences(own, lengths)]


def longest_batch(pieces: tuple[Tensor, ...], members: list[int]) -> Tensor:
    """Some sequences [1, T, ...] as a batch; shorter ones repeat their last token to the end."""
    longest = max(pieces[i].shape[1] for i in members)
    made = []
    for x in (pieces[i] for i in members):
        more = x[:, -1:].expand(1, longest - x.shape[1], *x.shape[2:])
        made.append(torch.cat([x, more], 1) if more.shape[1] else x)
    return made[0] if len(made) == 1 else torch.cat(made)


def first_tokens(made: Any, row: int, count: int) -> Any:
    """The first tokens of one sequence of a batch, of every output."""
    if isinstance(made, tuple):
        return tuple(first_tokens(x, row, count) for x in made)
    return made[row : row + 1, :count]


def refuse_whole(layer: str, made: Any, whole: tuple) -> None:
    """Refuse outputs of all tokens together, if they are there: those of optional inputs, which
    come last, may have been left out."""
    for place, name in whole:
        if place < (len(made) if isinstance(made, tuple) else 1):
            what = "is made from all tokens together: make it from the other outputs"
            raise ValueError(f"{layer}: with `cu_seqlens`, `{name}` {what}")


def check_packed(layer: str, cu_seqlens: Tensor, x: Tensor) -> None:
    """Refuse what cannot be the borders of sequences that stand one after the other in x [1, T].

    The values of a tensor are looked at once, which waits for the GPU; not while PyTorch compiles
    or a CUDA graph is recorded, where nothing can be waited for.
    """
    check_borders(layer, cu_seqlens, x)
    if torch.compiler.is_compiling() or (
        cu_seqlens.is_cuda and torch.cuda.is_current_stream_capturing()
    ):
        return
    if cu_seqlens.is_inference():  # torch keeps no account of changes
        sequence_bounds(layer, cu_seqlens, x)
        return
    seen = (told_by(cu_seqlens), x.shape[1])
    if getattr(cu_seqlens, "_checked", None) != seen:
        sequence_bounds(layer, cu_seqlens, x)
        vars(cu_seqlens)["_checked"] = seen


def check_positions(
    layer: str, table: str, rows: int, tokens: int, cu_seqlens: Any = None, x: Any = None,
    reach: Callable[[int], tuple[int, int]] | None = None,
) -> None:  # fmt: skip
    """Refuse sequences that are longer than a table of positions; of packed ones, each alone.
    `reach` has the first and the last row that pairs of so many tokens read."""
    if torch.compiler.is_compiling():
        return
    if cu_seqlens is not None:
        if cu_seqlens.is_cuda and torch.cuda.is_current_stream_capturing():
            return
        tokens = max(end - start for start, end in pairwise(bounds_of(cu_seqlens, x)))
    first, last = (0, tokens - 1) if reach is None else reach(tokens)
    if tokens and not 0 <= first <= last < rows and reach is not None:
        has, read = f"`{table}` has {rows} rows", f"rows {first} to {last}, counted from 0"
        raise ValueError(f"{layer}: {has}, and pairs of {tokens} tokens may read {read}")
    if tokens > rows and reach is None:
        has = f"`{table}` has positions for {rows} tokens"
        raise ValueError(f"{layer}: {has}, and a sequence has {tokens} with those seen before")


def each_sequence(x: Tensor, bounds: list[int]) -> tuple[Tensor, ...]:
    """Packed sequences, each by itself: one op, whose gradient goes through x once and not once for
    each of them."""
    return x.split([end - start for start, end in pairwise(bounds)], 1)


def batch_of(pieces: tuple[Tensor, ...], members: list[int]) -> Tensor:
    """Some sequences of equal length as a batch."""
    return pieces[members[0]] if len(members) == 1 else torch.cat([pieces[i] for i in members])


def bounds_of(cu_seqlens: Tensor, x: Tensor) -> list[int]:
    """The borders of packed sequences in x [1, T, ...], read from the device once."""
    seen = ("bounds", x.shape[:2])
    return once_for(cu_seqlens, seen, lambda given: sequence_bounds("packed sequences", given, x))


def one_by_one(run: Callable, cu_seqlens: Tensor, tokens: list, states: list) -> tuple:
    """The result of `run(*tokens, *states)` for packed sequences, each by itself: values along the
    tokens, then the states after the last. Sequences of equal length run as one batch.

    tokens [1, T, ...]; states [N, ...]
    """
    bounds = bounds_of(cu_seqlens, tokens[0])
    wanted = len(bounds) - 1
    for x in states:
        if x.shape[0] != wanted:
            got = f"got one of shape {list(x.shape)}"
            raise ValueError(f"a state must have a row for each of {wanted} sequences, {got}")
    groups: dict[int, list[int]] = {}
    for i in range(wanted):
        groups.setdefault(bounds[i + 1] - bounds[i], []).append(i)
    cut, parts = [each_sequence(x, bounds) for x in tokens], {}
    for members in groups.values():
        given = [batch_of(x, members) for x in cut]
        made = run(*given, *(state[members] for state in states))
        made = made if isinstance(made, tuple) else (made,)
        parts |= dict(zip(members, zip(*(y.split(1) for y in made), strict=True), strict=True))
    values = list(zip(*(parts[i] for i in range(len(parts))), strict=True))
    count = len(values) - len(states)
    return tuple(torch.cat(ys, 1 if place < count else 0) for place, ys in enumerate(values))


def places_in_each(cu_seqlens: Tensor, places: Tensor) -> Tensor:
    """The place of each packed token in its own sequence, of its place among all of them."""
    own = torch.searchsorted(cu_seqlens[1:], places.to(cu_seqlens.dtype), right=True)
    return places - cu_seqlens[:-1].to(places.dtype)[own.clamp(max=cu_seqlens.shape[0] - 2)]


def packed_tables(cu_seqlens: Tensor, tokens: int, chunk: int) -> tuple[Tensor, Tensor]:
    """Tables of packed sequences in chunks of which none has tokens of two sequences: a row [7] for
    each chunk, and one for each sequence. A row is the sequence, the token that a chunk 0 of it
    would begin with, its first token and the one after its last, the same of its chunks, and the
    row of the batch that all of it is in.

    There are as many chunks as such sequences can need: nothing waits for the device. Those that
    they do not need are of sequence -1.
    """

    def make(cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        start, end = cu_seqlens[:-1].long(), cu_seqlens[1:].long()
        high = ((end - start + chunk - 1) // chunk).cumsum(0)
        low, sequence = F.pad(high, (1, 0))[:-1], torch.arange(len(start), device=start.device)
        batch = torch.zeros_like(low)
        rows = torch.stack([sequence, start - low * chunk, start, end, low, high, batch], 1)
        count = (tokens + len(start) * (chunk - 1)) // chunk
        chunks = torch.arange(count, device=start.device)
        own = torch.searchsorted(high, chunks, right=True)
        return F.pad(rows, (0, 0, 0, 1), value=-1)[own], rows

    return once_for(cu_seqlens, ("chunks", tokens, chunk), make)


def tables_of_chunks(
    cu_seqlens: Tensor | None, batch: int, tokens: int, chunk: int
) -> tuple[int, int, Tensor | None, Tensor | None]:
    """How many sequences and chunks there are, and of packed sequences the tables of chunks and of
    sequences."""
    if cu_seqlens is None:
        return batch, -(-tokens // chunk), None, None
    chunks, rows = packed_tables(cu_seqlens, tokens, chunk)
    return len(rows), len(chunks), chunks, rows


def segment_tables(
    rows: Tensor | None, sequences: int, tokens: int, chunks: int, length: int, device: torch.device
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Segments of `length` chunks of sequences, each a row as `packed_tables` has it, with the
    number of the segment for that of its sequence; and a row for each sequence, with its segments
    for its chunks. `rows` are those of packed sequences, else each has `tokens` in `chunks`.

    There are as many segments as such sequences can need; others have no chunks. Some twenty
    launches make the tables: they are made once.
    """
    if rows is not None:
        return once_for(
            rows, ("segments", chunks, length), lambda x: segments_of(x, chunks, length)
        )
    return made_of_numbers(even_segments, sequences, tokens, chunks, length, device)


def even_segments(*sizes: Any) -> tuple[Tensor, Tensor]:
    """The tables of `segment_tables` of sequences that are not packed. Made once on each stream, as
    another one would have to wait for them; a CUDA graph has its own, as it reads its own memory
    when it is replayed, whoever is still there."""
    device = sizes[-1]
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    if capturing or torch.compiler.is_compiling() or torch.empty(0).__class__ is not Tensor:
        return new_segments(*sizes)
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    return known_segments(stream, torch.is_inference_mode_enabled(), *sizes)


@lru_cache(64)
def known_segments(stream: int, inference: bool, *sizes: Any) -> tuple[Tensor, Tensor]:
    """The same, made once."""
    return new_segments(*sizes)


def new_segments(
    sequences: int, tokens: int, chunks: int, length: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The same, made now."""
    each = torch.arange(sequences, device=device)
    nothing = torch.zeros_like(each)
    ends = nothing + tokens, nothing, nothing + chunks
    rows = torch.stack([each, nothing, nothing, *ends, each], 1)
    return segments_of(rows, sequences * chunks, length)


def segments_of(rows: Tensor, every: int, length: int) -> tuple[Tensor, Tensor]:
    """The tables of `segment_tables` of sequences with so many chunks in all."""
    last = ((rows[:, 5] - rows[:, 4] + length - 1) // length).cumsum(0)
    first = F.pad(last, (1, 0))
    none = torch.zeros_like(last)
    joined_rows = torch.stack([rows[:, 0], none, none, none, first[:-1], last, none], 1)
    count = (every + len(rows) * (length - 1)) // length
    segment = torch.arange(count, device=rows.device)
    own = torch.searchsorted(last, segment, right=True)
    found = F.pad(rows, (0, 0, 0, 1))[own]
    low = found[:, 4] + (segment - first[own]) * length
    high = torch.minimum(low + length, found[:, 5])
    parts = torch.stack([segment, *found[:, 1:4].unbind(1), low, high, found[:, 6]], 1)
    return parts, joined_rows


def sequence_of_segment(rows: Tensor, joined: Tensor) -> Tensor:
    """The sequence of each segment of `segment_tables`; of those that have no chunks, any."""
    segment = torch.arange(len(rows), device=rows.device)
    owner = torch.searchsorted(joined[:, 5].contiguous(), segment, right=True)
    return owner.clamp(max=len(joined) - 1)


def last_of_each(x: Tensor, empty: Tensor, rows: Tensor | None, reverse: bool = False) -> Tensor:
    """The last token of each sequence (with `reverse` the first), or what stands for it where it
    has none: x [B, T, ...] -> [B, ...], or of packed sequences, which `rows` is a table of,
    [1, T, ...] -> [N, ...]."""
    if rows is None:
        found = x[:, 0 if reverse else -1] if x.shape[1] else empty
        return found.expand(torch.broadcast_shapes(found.shape, empty.shape))
    start, end = rows[:, 2], rows[:, 3]
    chosen = x[0].index_select(0, (start if reverse else end - 1).clamp(0, x.shape[1] - 1))
    return torch.where((end > start).reshape(-1, *[1] * (x.dim() - 2)), chosen, empty)


def tokens_before(x: Tensor, rows: Tensor, reverse: bool = False) -> Tensor:
    """How many tokens stand before each of x [1, T, ...] in its sequence (with `reverse` after it),
    [T, 1, ...]."""
    t = torch.arange(x.shape[1], device=x.device)
    own = torch.searchsorted(rows[:, 3].contiguous(), t, right=True)
    own = rows[own.clamp(max=len(rows) - 1)]
    before = own[:, 3] - 1 - t if reverse else t - own[:, 2]
    return before.reshape(-1, *[1] * (x.dim() - 2))


def since_start(x: Tensor, function: Callable, rows: Tensor, reverse: bool = False) -> Tensor:
    """`function` (torch.add, torch.maximum, ...) over each token and those before it in its
    sequence (with `reverse` those after it), x [1, T, ...]: in steps of 1, 2, 4, ... tokens, so
    that nothing is subtracted, and nothing of one sequence reaches another."""
    before, steps = tokens_before(x, rows, reverse), 1
    while steps < x.shape[1]:
        there = x.roll(-steps if reverse else steps, 1)
        x = torch.where(before >= steps, function(x, there), x)
        steps *= 2
    return x


def sums_of_each(
    x: Tensor, rows: Tensor | None, reverse: bool = False, exclusive: bool = False
) -> Tensor:
    """Cumulative sums along the tokens (with `reverse` from the last on; `exclusive`: without the
    token's own), x [B, T, ...]; of packed sequences, which `rows` is a table of, within each."""
    if rows is None:
        x = moved(x, 1, -1 if reverse else 1) if exclusive else x
        x = x.movedim(1, -1)  # along the last dim a GPU adds up with many threads
        return (x.flip(-1).cumsum(-1).flip(-1) if reverse else x.cumsum(-1)).movedim(-1, 1)
    if exclusive:
        inner = tokens_before(x, rows, reverse) > 0
        x = torch.where(inner, x.roll(-1 if reverse else 1, 1), 0.0)
    return since_start(x, torch.add, rows, reverse)


def by_chunks(rows: Tensor | None) -> Tensor | None:
    """A table of packed sequences as one of their chunks, in place of their tokens."""
    return None if rows is None else rows[:, [0, 1, 4, 5]]


def whole_of_each(x: Tensor, kind: str, rows: Tensor | None) -> Tensor:
    """The "sum", "max" or "min" of all tokens, x [B, T, ...] -> [B, ...]; of packed sequences,
    which `rows` is a table of, [1, T, ...] -> [N, ...]."""
    if rows is None and kind == "sum":
        return x.sum(1)
    if rows is None:
        return extreme_of(x, 1, torch.amax if kind == "max" else torch.amin)
    functions = {"sum": (torch.add, 0.0), "max": (torch.maximum, -math.inf)}
    function, nothing = functions.get(kind, (torch.minimum, math.inf))
    empty = x.new_full((len(rows), *x.shape[2:]), nothing)
    return last_of_each(since_start(x, function, rows), empty, rows)


def chunks_of_each(
    x: Tensor, chunk: int, table: Tensor | None, outer: int = 0, fill: float = 0.0, steps: int = 1
) -> Tensor:
    """`to_chunks`; of packed sequences, which `table` has the chunks of, none has rows of two:
    x [1, T * steps, ...] -> [1, n, heads..., chunk, ...]."""
    if table is None:
        return to_chunks(x, chunk, outer, fill)
    place = torch.arange(chunk, device=x.device)
    first = table[:, 1] * steps + chunk * torch.arange(len(table), device=x.device)
    at = first[:, None] + place
    chosen = x[0].index_select(0, at.clamp(0, x.shape[1] - 1).flatten()).unflatten(0, at.shape)
    inside = (at < table[:, 3:4] * steps).reshape(*at.shape, *[1] * (x.dim() - 2))
    return torch.where(inside, chosen, fill)[None].movedim(2, 2 + outer).contiguous()


def at_last_of_each(x: Tensor, tokens: int, rows: Tensor | None, reverse: bool = False) -> Tensor:
    """x [B, ...] at the last token of each sequence (with `reverse` the first), and 0 at every
    other: [B, T, ...]; of packed sequences, which `rows` is a table of, [N, ...] -> [1, T, ...]."""
    if rows is None:
        return placed(x, 1, 0 if reverse else -1, tokens)
    t = torch.arange(tokens, device=x.device)
    sequence = torch.searchsorted(rows[:, 3].contiguous(), t, right=True)
    there = t == (rows[sequence, 2] if reverse else rows[sequence, 3] - 1)
    wide = there.reshape(-1, *[1] * (x.dim() - 1))
    return torch.where(wide, x.index_select(0, sequence), 0.0)[None]
