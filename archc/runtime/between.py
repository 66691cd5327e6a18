"""A softmax over tokens whose score goes through matrices of the tokens between, by a tree of
spans: what stands around the kernels of its folds.

    score = k[s]' M[s+1] ... M[t] q[t] + ...,    M[i] = I + sign u[i] w[i]' + ...

Vectors are [B, T, heads ..., K] as they are given, and [B, h, T, K] here, with the tokens of whole
spans: those behind the last are 0, and no other reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

SHORTEST = 64
"""Tokens of the smallest spans."""


class Given(NamedTuple):
    """What enters such an attention. `sources` in the order of the kernels' arguments, each of a
    "reader", of a token "read", or the "same" for all, as `roles` say, and a vector or not; at the
    places `ends` are q and k of the product with matrices, at `values` what is weighted. `ranks`
    are u and w of each outer product, `signs` theirs; `numbers` are those of the kernels."""

    sources: list[Tensor]
    roles: tuple[str, ...]
    vectors: tuple[bool, ...]
    ends: tuple[int, int]
    values: int
    ranks: list[tuple[Tensor, Tensor]]
    signs: tuple[int, ...]
    numbers: list[float]


class Part(NamedTuple):
    """Spans of one length side by side, in pairs: `first` is the first token, `pairs` how many
    there are, `size` the tokens of each earlier span, `late` those of each later one."""

    first: int
    pairs: int
    size: int
    late: int

    def cut(self, x: Tensor, dim: int, later: bool) -> Tensor:
        """The tokens of every earlier, or every later, span: [..., pairs, tokens, ...] in place of
        the tokens' dim."""
        if self.late == self.size:
            every = x.narrow(dim, self.first, 2 * self.pairs * self.size)
            return every.unflatten(dim, (self.pairs, 2, self.size)).select(dim + 1, int(later))
        start, size = (self.first + self.size, self.late) if later else (self.first, self.size)
        return x.narrow(dim, start, size).unsqueeze(dim)


def parts_of(tokens: int, size: int) -> Iterator[Part]:
    """The pairs of spans of a size: those of whole spans, and a last one whose later span is
    shorter."""
    pairs = tokens // (2 * size)
    if pairs:
        yield Part(0, pairs, size, size)
    rest = tokens - 2 * pairs * size
    if rest > size:
        yield Part(2 * pairs * size, 1, size, rest - size)


def sizes_of(tokens: int) -> list[int]:
    """The lengths of spans whose later halves read the earlier ones, from the smallest on."""
    found, size = [], SHORTEST
    while size < tokens:
        found.append(size)
        size *= 2
    return found


def by_heads(x: Tensor, tokens: int) -> Tensor:
    """Vectors [B, T, heads ..., K] as [B, h, tokens, K], in one piece of memory."""
    x = x.flatten(2, -2) if x.dim() > 3 else x.unsqueeze(2)
    return F.pad(x, (0, 0, 0, 0, 0, tokens - x.shape[1])).transpose(1, 2).contiguous()


def of_heads(x: Tensor, like: Tensor) -> Tensor:
    """[B, h, tokens, K] as vectors of the shape of some."""
    x = x.transpose(1, 2)[:, : like.shape[1]]
    return x.reshape(like.shape).to(like.dtype)


def of_ranks(vectors: list[Tensor]) -> Tensor:
    """Vectors [B, h, T, K] of each rank as rows of one matrix, those of a token side by side."""
    return vectors[0] if len(vectors) == 1 else torch.stack(vectors, 3).flatten(2, 3)


def padded(x: Tensor, tokens: int) -> Tensor:
    """[B, T, ...] with so many tokens."""
    if x.shape[1] == tokens:
        return x
    return torch.cat([x, x.new_zeros((x.shape[0], tokens - x.shape[1], *x.shape[2:]))], 1)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Products of matrices [..., n, m] and [..., m, l], of what may be half as exact, in float32
    and more."""
    if a.dtype == b.dtype and a.is_cuda and a.dtype.itemsize == 2:
        made = torch.bmm(a.flatten(0, -3), b.flatten(0, -3), out_dtype=torch.float32)
        return made.unflatten(0, a.shape[:-2])
    wide = torch.promote_types(torch.float32, a.dtype)
    return a.to(wide) @ b.to(wide)


def less(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x - a b, of matrices in one dtype."""
    x, a, b = (y.flatten(0, -3) for y in (x.expand(*a.shape[:-2], *x.shape[-2:]), a, b))
    return torch.baddbmm(x, a, b, alpha=-1)


class Chunks(NamedTuple):
    """Spans of `SHORTEST` tokens, [B, h, n, ...] of each: what enters, Q, K and the ranks' U
    and W; the inverse A = (I + L)^-1 with L = stril(U W'); G = tril(Q W') and H = stril(U K'); and
    what comes of them. The strict mask is of tokens: a matrix has all its ranks at once."""

    Q: Tensor
    K: Tensor
    U: Tensor
    W: Tensor
    A: Tensor
    G: Tensor
    H: Tensor
    left: Tensor
    turned: Tensor


def masks_of(steps: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Which ranks are of earlier tokens than others, [step, step]; which are up to a reader,
    [t, step]; which come after a token, [step, s]."""
    step, token = (torch.arange(SHORTEST * n, device=device) for n in (steps, 1))
    own = step // steps
    return own[:, None] > own, token[:, None] >= own, own[:, None] > token


def chunks_of(q: Tensor, k: Tensor, u: Tensor, w: Tensor) -> Chunks:
    """What there is of spans of `SHORTEST` tokens before they are joined: of [B, h, T, K], with as
    many rows of u and w a token as it has ranks."""
    steps, kind = u.shape[2] // q.shape[2], q.dtype
    Q, K = (x.unflatten(2, (-1, SHORTEST)) for x in (q, k))
    U, W = (x.unflatten(2, (-1, SHORTEST * steps)) for x in (u, w))
    earlier, reached, after = masks_of(steps, q.device)
    L = product(U, W.mT) * earlier
    one = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device)
    A = torch.linalg.solve_triangular(L + one, one.expand_as(L), upper=False, unitriangular=True)
    A = A.to(kind)
    G = (product(Q, W.mT) * reached).to(kind)
    H = (product(U, K.mT) * after).to(kind)
    return Chunks(Q, K, U, W, A, G, H, G @ A, A.mT @ W)


def borders_of(c: Chunks) -> tuple[Tensor, Tensor, Tensor]:
    """q at the begin of each span and k at its end, [B, h, T, K], and the matrix of the span,
    [B, h, n, K, K]."""
    one = torch.eye(c.Q.shape[-1], dtype=c.Q.dtype, device=c.Q.device)
    shape = c.Q.shape[:2]
    q = less(c.Q, c.left, c.U).view(*shape, -1, c.Q.shape[-1])
    k = less(c.K, c.H.mT, c.turned).view(*shape, -1, c.K.shape[-1])
    return q, k, less(one, c.U.mT, c.turned).view(*c.Q.shape[:3], *one.shape)


def of_borders(
    c: Chunks, d_q: Tensor, d_k: Tensor, d_P: Tensor, d_left: Tensor, d_right: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of Q, K, U and W, [B, h, n, rows, K], from those of what is at borders, of the
    matrices of spans, and of the two vectors beside: all by the products that made them."""
    kind = c.Q.dtype
    d_q, d_k = (x.unflatten(2, (-1, SHORTEST)).to(kind) for x in (d_q, d_k))
    d_left, d_H = (x.unflatten(2, (-1, SHORTEST)) for x in (d_left, d_right))
    earlier, reached, after = masks_of(c.U.shape[3] // SHORTEST, d_q.device)
    d_left = (d_left - product(d_q, c.U.mT)).to(kind)
    d_H = (d_H.mT - product(c.turned, d_k.mT)) * after
    d_H = d_H.to(kind)
    d_P = d_P.to(kind)
    d_U = -product(c.left.mT, d_q) - product(c.turned, d_P.mT)
    d_turned = (-product(c.H, d_k) - product(c.U, d_P)).to(kind)
    d_G = (product(d_left, c.A.mT) * reached).to(kind)
    d_A = (product(c.G.mT, d_left) + product(c.W, d_turned.mT)).to(kind)
    d_L = (product((c.A.mT @ d_A), c.A.mT) * earlier).neg().to(kind)
    d_W = product(c.A, d_turned) + product(d_G.mT, c.Q) + product(d_L.mT, c.U)
    d_U = d_U + product(d_H, c.K) + product(d_L, c.W)
    return d_q + product(d_G, c.W), d_k + product(d_H.mT, c.U), d_U, d_W


# --- the tree ------------------------------------------------------------------------------------


class Tree:
    """An attention under way: q and k at the borders of the level that it has come to, and the
    matrices of the spans there."""

    def __init__(self, given: Given):
        self.given = given
        first = given.sources[given.ends[0]]
        self.shape, self.heads = first.shape, first.shape[2:-1]
        self.tokens = -(-first.shape[1] // SHORTEST) * SHORTEST
        self.q, self.k = (by_heads(given.sources[i], self.tokens) for i in given.ends)
        signs = zip(given.ranks, given.signs, strict=True)
        u = of_ranks([by_heads(u if sign < 0 else -u, self.tokens) for (u, _), sign in signs])
        w = of_ranks([by_heads(w, self.tokens) for _, w in given.ranks])
        self.chunks = chunks_of(self.q, self.k, u, w)
        self.others = [
            x if role == "same" or i in given.ends else padded(x, self.tokens)
            for i, (x, role) in enumerate(zip(given.sources, given.roles, strict=True))
        ]
        self.plain = self.q, self.k
        self.q, self.k, self.P = borders_of(self.chunks)

    def sources(self, part: Part | None, q: Tensor, k: Tensor) -> list[Tensor]:
        """What kernels are given of the spans of a part, or of all of the smallest: readers of the
        later ones, and tokens of those before. A dim of spans stands in front of the tokens."""
        found = [*self.others]
        for place, role in enumerate(self.given.roles):
            if role != "same" and place not in self.given.ends:
                found[place] = self.spans(part, found[place], 1, role == "reader")
        for place, x in zip(self.given.ends, (q, k), strict=True):
            found[place] = self.vectors(part, x, place == self.given.ends[0])
        return found

    def spans(self, part: Part | None, x: Tensor, dim: int, later: bool) -> Tensor:
        """[..., T, ...] as the spans and the tokens of each."""
        return x.unflatten(dim, (-1, SHORTEST)) if part is None else part.cut(x, dim, later)

    def vectors(self, part: Part | None, x: Tensor, later: bool) -> Tensor:
        """[B, h, T, K] as [B, n, tokens, heads ..., K]."""
        cut = self.spans(part, x, 2, later).permute(0, 2, 3, 1, 4)
        return cut.unflatten(3, self.heads) if self.heads else cut.squeeze(3)

    def made(self, part: Part | None, x: Tensor, later: bool) -> Tensor:
        """Results that are vectors, [B, T, heads ..., V], as kernels make them: [B, tokens, n,
        heads ..., V]."""
        return self.spans(part, x, 1, later).transpose(1, 2)

    def numbers(self, part: Part | None, x: Tensor, later: bool) -> Tensor:
        """Results that are numbers, [B, heads ..., T], as kernels make them: [B, n, heads ...,
        tokens]."""
        return self.spans(part, x, x.dim() - 1, later).movedim(-2, 1)

    def call(self, part: Part | None, *rest: Any) -> tuple[Any, ...]:
        """The numbers that a launch is told behind its tensors."""
        tokens, pos = (SHORTEST, 0) if part is None else (part.late, part.size)
        return (*rest, tokens, pos, 0, *self.given.numbers)

    def beside(self, x: Tensor) -> Tensor:
        """The vectors beside q, or k, of the smallest spans, [B, h, n, tokens, steps]."""
        x = x.permute(0, 2, 3, 1, 4)
        return x.unflatten(3, self.heads) if self.heads else x.squeeze(3)

    def climb(self, size: int) -> None:
        """Bring later readers to the begin of the span before, earlier tokens to the end of the one
        behind, and join the matrices: those of spans of twice the size."""
        count = self.P.shape[2] // 2
        early, late = self.P[:, :, : 2 * count : 2], self.P[:, :, 1 : 2 * count : 2]
        if 2 * size >= self.tokens:
            return
        for part in parts_of(self.tokens, size):
            at = slice(part.first // (2 * size), part.first // (2 * size) + part.pairs)
            q, k = part.cut(self.q, 2, True), part.cut(self.k, 2, False)
            q.copy_(q @ early[:, :, at].mT)
            k.copy_(k @ late[:, :, at])
        self.P = torch.cat([early @ late, self.P[:, :, 2 * count :]], 2)


def between_forward(
    inside: Callable, across: Callable, given: Given, wide: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """o [B, T, heads ..., V] in float32 and the log of the sum of weights [B, heads ..., T]: the
    smallest spans by the kernel `inside`, and what is in spans before by `across`."""
    tree = Tree(given)
    B, last = tree.shape[0], given.sources[given.values].shape[-1]
    o = tree.q.new_zeros((B, tree.tokens, *tree.heads, last), dtype=wide)
    lse = tree.q.new_zeros((B, *tree.heads, tree.tokens), dtype=wide)
    left, right = tree.beside(tree.chunks.left), tree.beside(tree.chunks.H.mT)
    made = tree.made(None, o, True), tree.numbers(None, lse, True)
    inside(*tree.sources(None, *tree.plain), left, right, *tree.call(None, *made))
    del left, right
    tree.plain, tree.chunks = (), None
    for size in sizes_of(tree.tokens):
        for part in parts_of(tree.tokens, size):
            made = tree.made(part, o, True), tree.numbers(part, lse, True)
            across(*tree.sources(part, tree.q, tree.k), *tree.call(part, *made))
        tree.climb(size)
    T = tree.shape[1]
    return o[:, :T], lse.masked_fill_(lse == -torch.inf, 0.0)[..., :T].contiguous()


class Level(NamedTuple):
    """What a level of the tree was before the next: its length of spans, its matrices, and of each
    part q of the later spans and k of the earlier ones."""

    size: int
    P: Tensor
    q: list[Tensor]
    k: list[Tensor]


def levels_of(tree: Tree) -> list[Level]:
    """Every level of a tree, which is at the last one then."""
    found = []
    for size in sizes_of(tree.tokens):
        parts = [*parts_of(tree.tokens, size)]
        q = [part.cut(tree.q, 2, True).clone() for part in parts]
        k = [part.cut(tree.k, 2, False).clone() for part in parts]
        found.append(Level(size, tree.P, q, k))
        tree.climb(size)
    return found


class Slopes:
    """The gradients of an attention under way, in float32: of q and k at the borders of a level, of
    its matrices, and of all else that learns. `learned` are places in the sources."""

    def __init__(self, tree: Tree, learned: Sequence[int], wide: torch.dtype):
        self.tree, self.learned, given = tree, learned, tree.given
        self.q, self.k = (torch.zeros_like(x, dtype=wide) for x in (tree.q, tree.k))
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

    def views(self, part: Part | None, q: Tensor, k: Tensor) -> list[Tensor]:
        """Where kernels add their gradients."""
        tree, found = self.tree, []
        for place in self.learned:
            later = tree.given.roles[place] != "read"
            if place in tree.given.ends:
                x = q if place == tree.given.ends[0] else k
                found.append(tree.vectors(part, x, later).transpose(1, 2))
            elif tree.given.vectors[place]:
                found.append(tree.made(part, self.others[place], later))
            else:
                found.append(tree.numbers(part, self.others[place], later))
        return found

    def descend(self, level: Level) -> None:
        """From borders of spans of twice the size to those of a level: before its own readers add
        to them."""
        P, kind = level.P, level.P.dtype
        count, d_P = P.shape[2] // 2, torch.zeros_like(level.P)
        early, late = P[:, :, : 2 * count : 2], P[:, :, 1 : 2 * count : 2]
        d_early, d_late = d_P[:, :, : 2 * count : 2], d_P[:, :, 1 : 2 * count : 2]
        if self.P is not None:
            whole = self.P[:, :, :count]
            d_early += whole @ late.mT
            d_late += early.mT @ whole
            d_P[:, :, 2 * count :] = self.P[:, :, count:]
        parts = parts_of(self.tree.tokens, level.size)
        for part, q, k in zip(parts, level.q, level.k, strict=True):
            at = slice(part.first // (2 * level.size), part.first // (2 * level.size) + part.pairs)
            d_q, d_k = part.cut(self.q, 2, True), part.cut(self.k, 2, False)
            arriving, leaving = d_q.to(kind), d_k.to(kind)
            d_early[:, :, at] += arriving.mT @ q
            d_late[:, :, at] += k.mT @ leaving
            d_q.copy_(arriving @ early[:, :, at])
            d_k.copy_(leaving @ late[:, :, at].mT)
        self.P = d_P


def between_backward(
    inside: Sequence[Callable], across: Sequence[Callable], learned: Sequence[int], given: Given,
    d_o: Tensor, o: Tensor, lse: Tensor, wide: torch.dtype = torch.float32,
) -> list[Tensor]:  # fmt: skip
    """The gradients of the sources `learned`, as kernels have them, a head each; then those of u
    and of w, rank by rank. `inside` and `across` are kernels of readers and of tokens read."""
    tree = Tree(given)
    levels, slopes = levels_of(tree), Slopes(tree, learned, wide)
    arriving = [padded(d_o, tree.tokens), padded(o, tree.tokens)]
    lse = F.pad(lse, (0, tree.tokens - lse.shape[-1]))
    numbers = [lse, torch.zeros_like(lse)]
    for level in reversed(levels):
        if 2 * level.size < tree.tokens:
            slopes.descend(level)
        for i, part in enumerate(parts_of(tree.tokens, level.size)):
            for place, x, q in ((0, tree.q, level.q[i]), (1, tree.k, level.k[i])):
                part.cut(x, 2, not place).copy_(q)
            given_here = tree.sources(part, tree.q, tree.k)
            made = [tree.made(part, x, True) for x in arriving]
            made += [tree.numbers(part, x, True) for x in numbers]
            for kernel in across:
                views = slopes.views(part, slopes.q, slopes.k)
                kernel(*given_here, *tree.call(part, *made, *views))
    return slopes_inside(inside, tree, slopes, arriving, numbers)


def slopes_inside(
    inside: Sequence[Callable], tree: Tree, slopes: Slopes, arriving: list[Tensor],
    numbers: list[Tensor],
) -> list[Tensor]:  # fmt: skip
    """The gradients, with those of the smallest spans, which all others go through."""
    chunks, (T, given) = tree.chunks, (tree.shape[1], tree.given)
    q, k = (torch.zeros_like(x) for x in (slopes.q, slopes.k))
    beside = [x.new_zeros((*x.shape[:3], SHORTEST, x.shape[-1]), dtype=q.dtype)
              for x in (chunks.left, chunks.H.mT)]  # fmt: skip
    made = [tree.made(None, x, True) for x in arriving]
    made += [tree.numbers(None, x, True) for x in numbers]
    views = slopes.views(None, q, k) + [tree.beside(x).transpose(1, 2) for x in beside]
    entering = tree.sources(None, *tree.plain)
    entering += [tree.beside(chunks.left), tree.beside(chunks.H.mT)]
    for kernel in inside:
        kernel(*entering, *tree.call(None, *made, *views))
    d_P = torch.zeros_like(tree.P) if slopes.P is None else slopes.P
    left, right = (x.flatten(2, 3) for x in beside)
    d_Q, d_K, d_U, d_W = of_borders(chunks, slopes.q, slopes.k, d_P, left, right)
    q += d_Q.flatten(2, 3)
    k += d_K.flatten(2, 3)
    found = []
    for place in slopes.learned:
        if place in given.ends:
            x = q if place == given.ends[0] else k
            found.append(x.transpose(1, 2)[:, :T].reshape(given.sources[place].shape))
        elif given.vectors[place]:
            found.append(slopes.others[place][:, :T])
        else:
            found.append(slopes.others[place][..., :T])
    count = len(given.ranks)
    for i, sign in enumerate(given.signs):
        for d, x, scale in zip((d_U, d_W), given.ranks[i], (-sign, 1), strict=True):
            own = d.flatten(2, 3).unflatten(2, (-1, count))[:, :, :, i] * scale
            found.append(own.transpose(1, 2)[:, :T].reshape(x.shape))
    return found
