"""A softmax over tokens whose score goes through matrices of the tokens between, by a tree of
spans: what stands around the kernels of its folds.

    score = k[s]' M[s+1] ... M[t] q[t] + ...,    M[i] = I + sign u[i] w[i]' + ...

Vectors are [B, T, heads ..., K] as they are given, and [B, h, T, K] here, with the tokens of whole
spans: those behind the last are 0, and no other reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from archc.runtime.tokens import in_rows

NEAR = 4
"""The levels, from the smallest spans on, that a forward reads in one walk."""

SHORTEST = 64
"""Tokens of the smallest spans, where each has one outer product; of more, as many fewer."""


def has_span_room(x: Tensor) -> bool:
    """Whether processors of a GPU have the 227 KB of shared memory that the gradient at the borders
    of spans takes in float32: those of compute capability 9 and 10."""
    return torch.cuda.get_device_capability(x.device)[0] in (9, 10)


def level_rows(size: int, dtype: torch.dtype) -> int:
    """The rows of a block of the kernels between levels, whose spans have so many tokens."""
    return min(size, 64 if dtype.itemsize == 2 else 32)


def span_warps(dtype: torch.dtype) -> int:
    """How many warps have a block of rows or a span of the smallest: half of what float32 has room
    with are two programs a processor, and do no product twice."""
    return 4 if dtype.itemsize == 2 else 8


class Given(NamedTuple):
    """The inputs of such an attention. `sources` in the order of the kernels' arguments, each of a
    "reader", of a token "read", or the "same" for all, as `roles` say, and a vector or not; at the
    places `ends` are q and k of the product with matrices, at `values` the values that are
    weighted. `ranks` are u and w of each outer product, `signs` theirs, where u is [B, T, heads
    ..., 1] if it is w at a rate; `numbers` are those of the kernels. `gate`: in place of ranks the
    logarithms of gates by channel, in a dtype of their own."""

    sources: list[Tensor]
    roles: tuple[str, ...]
    vectors: tuple[bool, ...]
    ends: tuple[int, int]
    values: int
    ranks: list[tuple[Tensor, Tensor]]
    signs: tuple[int, ...]
    numbers: list[float]
    gate: Tensor | None = None


class Share(NamedTuple):
    """Sequences and heads that are done at a time: of no other does anything come in between."""

    sequence: int
    sequences: int
    head: int
    heads: int

    def of(self, x: Tensor, dim: int = 2) -> Tensor:
        """The part of a tensor that is theirs; `dim` is that of the heads."""
        x = x.narrow(0, self.sequence, self.sequences)
        return x.narrow(dim, self.head, self.heads) if self.heads else x

    def given(self, every: Given) -> Given:
        """The part of all inputs that is theirs."""
        pairs = zip(every.sources, every.roles, strict=True)
        sources = [x if role == "same" else self.of(x) for x, role in pairs]
        ranks = [(self.of(u), self.of(w)) for u, w in every.ranks]
        gate = None if every.gate is None else self.of(every.gate)
        return every._replace(sources=sources, ranks=ranks, gate=gate)


MANY = 1 << 18
"""Tokens of heads, of all together, that keep a GPU busy: half of them read at once at the top of
the tree, in blocks of 64 or 128."""


def shares_of(given: Given) -> list[Share]:
    """The sequences and heads, at a time so many as have about `MANY` tokens. Heads are apart where
    there is one axis of them and all that enters has it."""
    first = given.sources[given.ends[0]]
    (B, T), heads = first.shape[:2], first.shape[2:-1]
    most = max(1, MANY // max(T, 1))
    every = 1
    for n in heads:
        every *= n
    alike = len(heads) == 1 and all(
        role != "same" and x.shape[2] == heads[0]
        for x, role in zip(given.sources, given.roles, strict=True)
    )
    if not alike or every <= most:
        count = max(1, most // every)
        return [Share(b, min(count, B - b), 0, 0) for b in range(0, B, count)]
    starts = range(0, every, most)
    return [Share(b, 1, h, min(most, every - h)) for b in range(B) for h in starts]


class Part(NamedTuple):
    """Spans of readers side by side, and the span of tokens that each reads: so many `spans`, from
    the tokens `first_reader` and `first_read` on, a `pitch` apart; `readers` and `read` are the
    tokens of each, and `pos` is the place of its first reader from the first token read on. Readers
    before the token `done` read no more after it."""

    spans: int
    pitch: int
    first_reader: int
    first_read: int
    readers: int
    read: int
    pos: int
    done: int = 0


def alone(tokens: int, short: int, done: int = 0) -> Part:
    """The smallest spans, which read themselves."""
    return Part(tokens // short, short, 0, 0, short, short, 0, done)


def parts_of(tokens: int, size: int) -> Iterator[Part]:
    """The pairs of spans of a size: those of whole spans, and a last one whose later span is
    shorter."""
    pairs = tokens // (2 * size)
    if pairs:
        yield Part(pairs, 2 * size, size, 0, size, size, size, 2 * size)
    first = 2 * pairs * size
    if tokens - first > size:
        readers = tokens - first - size
        yield Part(1, 2 * size, first + size, first, readers, size, size, 2 * size)


def sizes_of(tokens: int, shortest: int) -> list[int]:
    """The lengths of spans whose later halves read the earlier ones, from the smallest on."""
    found, size = [], shortest
    while size < tokens:
        found.append(size)
        size *= 2
    return found


def shortest(ranks: int) -> int:
    """The tokens of the smallest spans, where each has so many outer products."""
    return SHORTEST // ranks_of(ranks)


def whole_spans(tokens: int, ranks: int) -> int:
    """The tokens of so many of the smallest spans as hold these."""
    return -(-tokens // shortest(ranks)) * shortest(ranks)


def by_rows(x: Tensor) -> Tensor:
    """Vectors [B, T, heads ..., K] as [B, T, h, K]."""
    return x.flatten(2, -2) if x.dim() > 3 else x.unsqueeze(2)


def each_head(x: Tensor, heads: Sequence[int]) -> Tensor:
    """Vectors [B, T, groups ..., K] of every head."""
    for place, (own, count) in enumerate(zip(x.shape[2:-1], heads, strict=True)):
        x = x if own == count else x.repeat_interleave(count // own, place + 2)
    return x


def of_ranks(vectors: list[Tensor]) -> Tensor:
    """Vectors [B, T, h, K] of each outer product as rows [B, T n, h, K], those of a token side by
    side; n is a power of two, and what is more than there are is 0."""
    if len(vectors) == 1:
        return vectors[0]
    missing = [torch.zeros_like(vectors[0])] * (ranks_of(len(vectors)) - len(vectors))
    return torch.stack([*vectors, *missing], 2).flatten(1, 2)


def ranks_of(count: int) -> int:
    """The rows of a token that so many outer products take."""
    return 1 << max(0, count - 1).bit_length()


def between_rows(given: Given) -> list[Tensor]:
    """What matrices are made of as kernels have it: rows of u, turned where it is added, and of w,
    or the logarithms of gates."""
    if given.gate is not None:
        return [by_rows(given.gate)]
    signs = zip(given.ranks, given.signs, strict=True)
    u = of_ranks([by_rows(u if sign < 0 else -u) for (u, _), sign in signs])
    return [u, of_ranks([by_rows(w) for _, w in given.ranks])]


def joined_shape(P: Tensor) -> tuple[int, ...]:
    """The shape of the matrices of spans of twice the length."""
    B, h, count, *rest = P.shape
    return B, h, -(-count // 2), *rest


def padded(x: Tensor, tokens: int) -> Tensor:
    """[B, T, ...] with so many tokens."""
    if x.shape[1] == tokens:
        return x
    return torch.cat([x, x.new_zeros((x.shape[0], tokens - x.shape[1], *x.shape[2:]))], 1)


def of_all_readers(given: Given) -> tuple[Given, int]:
    """The inputs with a reader for each token that is read, of which those in front are 0, and how
    many of these are: where readers are the last tokens of a sequence."""
    missing = given.sources[given.values].shape[1] - given.sources[given.ends[0]].shape[1]
    if not missing:
        return given, 0
    pairs = zip(given.sources, given.roles, strict=True)
    sources = [in_front(x, missing) if role == "reader" else x for x, role in pairs]
    return given._replace(sources=sources), missing


def in_front(x: Tensor, missing: int) -> Tensor:
    """[B, T, ...] behind so many more tokens, which are 0."""
    return torch.cat([x.new_zeros((x.shape[0], missing, *x.shape[2:])), x], 1)


# --- the tree ------------------------------------------------------------------------------------


class Moves(NamedTuple):
    """Kernels of what is at the borders of spans: of the smallest ones, of `rows` of q and k at
    those of spans of twice the length, and of the matrices of these; of rows, too, `keeping` those
    that change."""

    borders: Callable
    rows: Callable
    join: Callable
    keeping: Callable


class Tree:
    """An attention under way: q and k at the borders of the level that it has come to, and the
    matrices of the spans there."""

    def __init__(self, moves: Moves, given: Given):
        self.given, self.moves = given, moves
        first = given.sources[given.ends[0]]
        self.shape, self.heads = first.shape, first.shape[2:-1]
        self.short = shortest(len(given.ranks))
        self.tokens = whole_spans(first.shape[1], len(given.ranks))
        self.rows = [*(by_rows(given.sources[i]) for i in given.ends), *between_rows(given)]
        self.others = [
            x if role == "same" else in_rows(padded(x, self.tokens))[0]
            for x, role in zip(given.sources, given.roles, strict=True)
        ]
        (B, _, h, K), inner = self.rows[0].shape, SHORTEST
        self.both = first.new_empty((2, B, h, self.tokens, K))
        self.q, self.k = self.both
        spans = (B, h, self.tokens // self.short, K)
        self.P = first.new_empty((*spans, K))
        if given.gate is not None:
            self.P = first.new_empty(spans, dtype=torch.promote_types(first.dtype, torch.float32))
        self.left, self.right = (first.new_empty((B, h, self.tokens, inner)) for _ in range(2))
        moves.borders(*self.rows, self.q, self.k, self.P, self.left, self.right, self.shape[1])

    def sources(self, q: Tensor, k: Tensor) -> list[Tensor]:
        """The inputs of kernels, with q and k at the borders of spans."""
        found = [*self.others]
        for place, x in zip(self.given.ends, (q, k), strict=True):
            found[place] = x
        return found

    def first_sources(self) -> list[Tensor]:
        """The same of the smallest spans by themselves, with q and k as they are given, and the
        vectors beside these."""
        return [*self.others, self.left, self.right]

    def climb(self, size: int, *kept: Tensor) -> None:
        """Bring later readers to the begin of the span before, earlier tokens to the end of the one
        behind, and join the matrices: those of spans of twice the size. The rows that change are
        `kept` as they were, where there is room."""
        joined = self.P.new_empty(joined_shape(self.P))
        move = self.moves.keeping if kept else self.moves.rows
        move(self.P, self.both, *kept, self.tokens, size)
        self.moves.join(self.P, joined, self.tokens, size)
        self.P = joined


def between_forward(
    moves: Sequence[Callable], inside: Callable, near: Callable, across: Callable, given: Given
) -> tuple[Tensor, Tensor]:
    """o [B, T, heads ..., V], and the log of the sum of weights [B, heads ..., T] in float32: the
    smallest spans by the kernel `inside`, what is in spans before by `near` of the first levels at
    once, and by `across` of others; `moves` as those of a tree."""
    given, missing = of_all_readers(given)
    first, last = given.sources[given.ends[0]], given.sources[given.values].shape[-1]
    (B, T), heads = first.shape[:2], first.shape[2:-1]
    wide = torch.promote_types(first.dtype, torch.float32)
    tokens = whole_spans(T, len(given.ranks))
    o = first.new_empty((B, tokens, *heads, last))
    sums = o if o.dtype == wide else torch.empty_like(o, dtype=wide)
    lse = first.new_empty((B, *heads, tokens), dtype=wide)
    for share in shares_of(given):
        tree = Tree(Moves(*moves), share.given(given))
        add_values(tree, (inside, near, across), share.of(o), share.of(sums), share.of(lse, 1))
        del tree
    lse.masked_fill_(lse == -torch.inf, 0.0)
    return o[:, missing:T].contiguous(), lse[..., missing:T].contiguous()


def add_values(
    tree: Tree, kernels: Sequence[Callable], o: Tensor, sums: Tensor, lse: Tensor
) -> None:
    """Find o and the log of the sum of weights of all tokens of whole spans, -inf where nothing is
    read. What readers have not done with is in `sums`, which are float32."""
    (inside, near, across), numbers = kernels, tree.given.numbers
    sizes = sizes_of(tree.tokens, tree.short)
    part = alone(tree.tokens, tree.short, 0 if sizes else tree.tokens)
    inside(*tree.first_sources(), o, sums, lse, part, *numbers)
    del tree.left, tree.right
    first, further = sizes[:NEAR], sizes[NEAR:]
    if first:
        rows = tree.q.new_empty((len(first), *tree.q.shape))
        for own, size in zip(rows, first, strict=True):
            tree.climb(size, own)
        rows = rows.flatten(0, 1)
        part = alone(tree.tokens, tree.short, tree.short << len(first))
        near(*tree.sources(rows, rows), o, sums, lse, part, *numbers)
        del rows
    for size in further:
        for part in parts_of(tree.tokens, size):
            across(*tree.sources(tree.q, tree.k), o, sums, lse, part, *numbers)
        if 2 * size < tree.tokens:
            tree.climb(size)


class Level(NamedTuple):
    """A level of the tree before the next was made of it: its length of spans, its matrices, and q
    of the later spans and k of the earlier ones, with other rows between."""

    size: int
    P: Tensor
    q: Tensor
    k: Tensor


def levels_of(tree: Tree) -> list[Level]:
    """Every level of a tree, which is at the last one then."""
    found = []
    for size in sizes_of(tree.tokens, tree.short):
        P, q, k = tree.P, tree.q, tree.k
        if 2 * size < tree.tokens:
            q = k = torch.empty_like(q)
            tree.climb(size, q)
        found.append(Level(size, P, q, k))
    return found


class Slopes:
    """The gradients of an attention under way, in float32: of q and k at the borders of a level, of
    its matrices, and of all else that learns. `learned` are places in the sources."""

    def __init__(self, tree: Tree, learned: Sequence[int], wide: torch.dtype):
        self.tree, self.learned, given = tree, learned, tree.given
        self.both = torch.zeros_like(tree.both, dtype=wide)
        self.q, self.k = self.both
        self.P: Tensor | None = None
        self.others: dict[int, Tensor] = {}
        B, tokens = tree.shape[0], tree.tokens
        for place in learned:
            if place not in given.ends:
                own = given.sources[place].shape[-1]
                shape = (B, *tree.heads, tokens)
                if given.vectors[place]:
                    shape = (B, tokens, *tree.heads, own)
                self.others[place] = tree.q.new_zeros(shape, dtype=wide)

    def room(self, q: Tensor, k: Tensor) -> list[Tensor]:
        """Where kernels add their gradients, those of q and k to these."""
        ends = dict(zip(self.tree.given.ends, (q, k), strict=True))
        return [ends[i] if i in ends else self.others[i] for i in self.learned]

    def descend(self, of_rows: Callable, level: Level) -> None:
        """From borders of spans of twice the size to those of a level: before its own readers add
        to them."""
        d_P = torch.empty_like(level.P)
        above = level.P.new_zeros(joined_shape(level.P)) if self.P is None else self.P
        of_rows(level.P, level.k, self.both, above, d_P, self.tree.tokens, level.size)
        self.P = d_P


class Room(NamedTuple):
    """Where gradients come to: of the sources that learn, each with the dim of its heads; q and k,
    u and w at the `ends`, [B, T, h, K] and as rows of all outer products, by the kernel of borders.
    """

    ends: list[Tensor]
    tensors: dict[int, Tensor]
    dims: dict[int, int]

    def take(self, share: Share, found: dict[int, Tensor]) -> None:
        """Those of some sequences and heads."""
        for place, x in found.items():
            share.of(self.tensors[place], self.dims[place]).copy_(x)

    def given(self, every: Given, learned: Sequence[int]) -> list[Tensor]:
        """All of them, as `between_backward` gives them."""
        q, k, *rows = self.ends
        own = {**self.tensors, **dict(zip(every.ends, (q, k), strict=True))}
        found = [own[i].view_as(every.sources[i]) if i in every.ends else own[i] for i in learned]
        if every.gate is not None:
            return [*found, rows[0].view_as(every.gate)]
        count = ranks_of(len(every.ranks))
        for i, sign in enumerate(every.signs):
            for d, x, scale in zip(rows, every.ranks[i], (-sign, 1), strict=True):
                one = d.unflatten(1, (-1, count))[:, :, i].view_as(x)
                found.append(one if scale == 1 else -one)
        return found


def room_of(given: Given, learned: Sequence[int], wide: torch.dtype) -> Room:
    """Room for every gradient: vectors in their own dtype if no heads share them."""
    first = given.sources[given.ends[0]]
    (B, T), heads = first.shape[:2], first.shape[2:-1]
    tensors, dims = {}, {}
    for place in learned:
        x = given.sources[place]
        if place in given.ends:
            continue
        if given.vectors[place]:
            shape = (B, T, *heads, x.shape[-1])
            tensors[place] = x.new_empty(shape, dtype=x.dtype if x.shape == shape else wide)
        else:
            tensors[place] = x.new_empty((B, *heads, T), dtype=wide)
        dims[place] = 2 if given.vectors[place] else 1
    of_rows = (by_rows(given.sources[i]) for i in given.ends)
    ends = [x.new_empty(x.shape) for x in of_rows]  # in one piece, whatever strides these have
    if given.gate is not None:
        gate = by_rows(given.gate)
        return Room([*ends, gate.new_empty(gate.shape, dtype=wide)], tensors, dims)
    for x in between_rows(given._replace(ranks=given.ranks[:1], signs=given.signs[:1])):
        ends.append(x.new_empty((B, T * ranks_of(len(given.ranks)), *x.shape[2:])))
    return Room(ends, tensors, dims)


def between_backward(
    moves: Sequence[Callable], of_moves: Sequence[Callable], inside: Sequence[Callable],
    across: Sequence[Callable], learned: Sequence[int], given: Given, d_o: Tensor, o: Tensor,
    lse: Tensor,
) -> list[Tensor]:  # fmt: skip
    """The gradients of the sources `learned`, as kernels have them, a head each; then those of u
    and of w, one outer product after the other. `moves` as those of a tree, which keep rows that
    change; `of_moves` their gradients, of borders and of a level; `inside` and `across` kernels of
    readers and of tokens read."""
    given, missing = of_all_readers(given)
    if missing:
        d_o, o = in_front(d_o, missing), in_front(o, missing)
        lse = F.pad(lse, (missing, 0), value=torch.inf)  # of no weights
    room = room_of(given, learned, lse.dtype)
    for share in shares_of(given):
        tree = Tree(Moves(*moves), share.given(given))
        arriving = in_rows(*(padded(share.of(x), tree.tokens) for x in (d_o, o)))
        known = F.pad(share.of(lse, 1), (0, tree.tokens - lse.shape[-1])).contiguous()
        arriving += [known, torch.empty_like(known)]
        slopes = slopes_across(of_moves[1], across, tree, learned, arriving)
        ends = [share.of(x) for x in room.ends]
        room.take(share, slopes_inside(of_moves[0], inside, tree, slopes, arriving, ends))
        del tree, slopes, arriving, known  # before there are those of others
    found = room.given(given, learned)
    for i, place in enumerate(learned):
        if missing and given.roles[place] == "reader":
            found[i] = found[i][:, missing:] if given.vectors[place] else found[i][..., missing:]
    return found


def slopes_across(
    of_rows: Callable, across: Sequence[Callable], tree: Tree, learned: Sequence[int],
    arriving: list[Tensor],
) -> Slopes:  # fmt: skip
    """The gradients of what readers have of spans before theirs, down the levels of a tree."""
    levels, slopes = levels_of(tree), Slopes(tree, learned, arriving[2].dtype)
    while levels:
        level = levels.pop()
        if 2 * level.size < tree.tokens:
            slopes.descend(of_rows, level)
        entering = [*tree.sources(level.q, level.k), *arriving]
        entering += slopes.room(slopes.q, slopes.k)
        for part in parts_of(tree.tokens, level.size):
            for kernel in across:
                kernel(*entering, part, *tree.given.numbers)
    return slopes


def slopes_inside(
    of_borders: Callable, inside: Sequence[Callable], tree: Tree, slopes: Slopes,
    arriving: list[Tensor], ends: list[Tensor],
) -> dict[int, Tensor]:  # fmt: skip
    """The gradients, with those of the smallest spans, which all others go through; those of q and
    k, u and w where they belong."""
    T, given = tree.shape[1], tree.given
    q, k = (torch.empty_like(x) for x in (slopes.q, slopes.k))
    beside = [torch.empty_like(x, dtype=q.dtype) for x in (tree.left, tree.right)]
    entering = [*tree.first_sources(), *arriving, *slopes.room(q, k), *beside]
    for kernel in inside:
        kernel(*entering, alone(tree.tokens, tree.short), *given.numbers)
    del entering, tree.left, tree.right
    d_P = torch.zeros_like(tree.P) if slopes.P is None else slopes.P
    within = [*beside, q, k] if given.gate is None else beside[:1]
    of_borders(*tree.rows, slopes.q, slopes.k, d_P, *within, *ends, T)
    found = slopes.others.items()
    return {i: x[:, :T] if given.vectors[i] else x[..., :T] for i, x in found}
