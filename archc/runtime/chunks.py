"""Functions that the chunked forms of recurrences are made of.

Nothing that autograd may look into is written in place. Rows stand second to last: [..., C, K].
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

# --- between tokens and chunks ------------------------------------------------------------------


def to_chunks(x: Tensor, chunk: int, outer: int = 0, fill: float = 0.0) -> Tensor:
    """Tokens cut into chunks, the last of which is filled up.

    x [B, T, heads..., ...] -> [B, n, heads..., chunk, ...]; `outer` is the number of `heads`
    """
    missing = -x.shape[1] % chunk
    if missing:
        new = x.new_full((1,), fill).expand(x.shape[0], missing, *x.shape[2:])
        x = torch.cat([x, new], 1)
    return x.unflatten(1, (x.shape[1] // chunk, chunk)).movedim(2, 2 + outer).contiguous()


def to_tokens(x: Tensor, tokens: int, outer: int = 0) -> Tensor:
    """The inverse of `to_chunks`: x [B, n, heads..., C, ...] -> [B, T, heads..., ...]."""
    return x.movedim(2 + outer, 2).flatten(1, 2)[:, :tokens]


def runs_of_chunks(xs: list[Tensor], chunk: int, reverse: bool = False) -> list:
    """Tokens [B, T, ...] in runs of whole chunks, to be done one after the other: on a CPU runs of
    values that stay in its caches, of 2^18 numbers or one chunk; elsewhere all tokens at once."""
    numbers = chunk * max(x[:, :1].numel() for x in xs)  # of the largest, in a chunk
    tokens = chunk * max(1, (1 << 18) // max(numbers, 1))
    if xs[0].device.type != "cpu" or xs[0].shape[1] <= tokens:
        return [xs]
    runs = list(zip(*(x.split(tokens, 1) for x in xs), strict=True))
    return runs[::-1] if reverse else runs


# --- along rows ---------------------------------------------------------------------------------


def sums_from_end(x: Tensor, dim: int) -> Tensor:
    """The sum of each element and all later ones."""
    return x.flip(dim).cumsum(dim).flip(dim)


def moved(x: Tensor, dim: int, steps: int, fill: float = 0.0) -> Tensor:
    """The element `steps` earlier along a dim (later, if negative); `fill` where there is none."""
    count = min(abs(steps), x.shape[dim])
    kept = x.narrow(dim, max(0, -steps) if count == abs(steps) else 0, x.shape[dim] - count)
    new = torch.full_like(x.narrow(dim, 0, count), fill)
    return torch.cat([new, kept] if steps > 0 else [kept, new], dim)


def convolved(weights: Tensor, x: Tensor, count: int) -> Tensor:
    """The sums over the past for the last `count` tokens of x [..., S], with the last one's weights
    [..., S] moved to each: one product for one token, else by Fourier transforms. These are in
    float64: a token has a share of what is rounded of all others, which may be much larger. Of what
    is not finite all would be NaN: so are only those from the first on that it reaches."""
    tokens, dtype = x.shape[-1], torch.promote_types(weights.dtype, x.dtype)
    weights, x = weights.double(), x.double()
    if count == 1:
        return (weights * x).sum(-1, keepdim=True).to(dtype)
    size = 1 << (2 * tokens - 1).bit_length()
    spectrum, wrong = torch.ones((), device=x.device), torch.zeros((), device=x.device)
    for each in (weights.flip(-1), x):
        spectrum = spectrum * torch.fft.rfft(torch.where(each.isfinite(), each, 0.0), size)
        wrong = wrong + (~each.isfinite()).cumsum(-1)
    made = torch.fft.irfft(spectrum, size)[..., :tokens] + torch.where(wrong > 0, math.nan, 0.0)
    return made[..., tokens - count :].to(dtype)


def sums_before(x: Tensor, dim: int) -> Tensor:
    """The sum of all earlier elements; nothing is subtracted."""
    return moved(x, dim, 1).cumsum(dim)


def sums_after(x: Tensor, dim: int) -> Tensor:
    """The sum of all later elements; nothing is subtracted."""
    return sums_from_end(moved(x, dim, -1), dim)


def last_of(x: Tensor, dim: int, empty: Tensor) -> Tensor:
    """The last element along a dim, or what stands for it where there is none."""
    return x.select(dim, -1) if x.shape[dim] else empty


def first_of(x: Tensor, dim: int, empty: Tensor) -> Tensor:
    """The first element along a dim, or what stands for it where there is none."""
    return x.select(dim, 0) if x.shape[dim] else empty


def placed(x: Tensor, dim: int, index: int, count: int) -> Tensor:
    """x at `index` of a new dim of `count` elements, and 0 elsewhere."""
    at = torch.arange(count, device=x.device) == index % max(count, 1)
    return torch.where(at.reshape(-1, *[1] * (x.dim() - dim)), x.unsqueeze(dim), 0.0)


def unwindowed(x: Tensor, tokens: int, stride: int = 1, past: int = 0) -> Tensor:
    """Runs of tokens put back where they came from: what stands for one token is summed.

    x [B, runs, width, ...] -> [B, T, ...]; run r starts at token r * stride - past
    """
    runs, width = x.shape[1:3]
    start = stride * torch.arange(runs, device=x.device) - past
    index = (start[:, None] + torch.arange(width, device=x.device)).flatten()
    inside = (index >= 0) & (index < tokens)
    x = torch.where(inside.reshape(-1, *[1] * (x.dim() - 3)), x.flatten(1, 2), 0.0)
    sums = x.new_zeros(x.shape[0], tokens + 1, *x.shape[2:])
    return sums.index_add(1, torch.where(inside, index, tokens), x)[:, :tokens]


def rows_of(x: Tensor | float, dim: int, count: int) -> list:
    """The rows of a tensor along a dim from the right; what has none is the same at every row."""
    if not isinstance(x, Tensor) or x.dim() < -dim:
        return [x] * count
    shape = [*x.shape]
    shape[dim] = count
    return list(x.expand(shape).unbind(dim))


def scan_rows(
    a: Tensor | float,
    b: Tensor,
    first: Tensor,
    dim: int,
    step: Callable,
    reverse: bool = False,
    exclusive: bool = False,
) -> Tensor:
    """h[i] = step(a[i], h[i - 1], b[i]) along a dim, from `first`; `reverse` from the last row.
    `exclusive`: the value before each row."""
    count = max(x.shape[dim] for x in (a, b) if isinstance(x, Tensor) and x.dim() >= -dim)
    pairs = list(zip(rows_of(a, dim, count), rows_of(b, dim, count), strict=True))
    h, rows = first, []
    for a_i, b_i in pairs[::-1] if reverse else pairs:
        before, h = h, step(a_i, h, b_i)
        rows.append(before + torch.zeros_like(h) if exclusive else h)
    return torch.stack(rows[::-1] if reverse else rows, dim)


def sums_of_blocks(x: Tensor, length: int) -> Tensor:
    """Each block of the last dim added up; the last may be shorter."""
    filled = torch.nn.functional.pad(x, (0, -x.shape[-1] % length))
    return filled.unflatten(-1, (-1, length)).sum(-1)


def linear_step(a: Tensor | float, h: Tensor, b: Tensor) -> Tensor:
    """a * h + b."""
    return a * h + b


def max_plus_step(a: Tensor | float, h: Tensor, b: Tensor) -> Tensor:
    """max(a + h, b)."""
    return torch.maximum(a + h, b)


def max_times_step(a: Tensor | float, h: Tensor, b: Tensor) -> Tensor:
    """max(a * h, b)."""
    return torch.maximum(a * h, b)


def matrix_step(a: Tensor, h: Tensor, b: Tensor) -> Tensor:
    """a @ h + b."""
    return a @ h + b


# --- between rows -------------------------------------------------------------------------------


def spans(g: Tensor, strict: bool = False, exclusive: bool = False) -> Tensor:
    """Sums of g over the rows r with j < r <= i (exclusive: r < i), -inf where a pair (i, j) is
    left out: j > i, or with `strict` j >= i. g [..., C] -> [..., C, C]

    Each is a sum of its own, so that gates of -1000 lose no digits and gates of -inf are no NaN.
    """
    rows = torch.arange(g.shape[-1], device=g.device)
    later = rows[:, None] > rows
    sums = torch.where(later, g[..., None], 0.0)
    sums = sums_before(sums, -2) if exclusive else sums.cumsum(-2)
    return torch.where(later if strict or exclusive else rows[:, None] >= rows, sums, -math.inf)


def differences(x: Tensor, strict: bool = False) -> Tensor:
    """Running sums at each row less those at each column, -inf where a pair (i, j) is left out, as
    in `spans`. x [..., C] -> [..., C, C]"""
    rows = torch.arange(x.shape[-1], device=x.device)
    kept = rows[:, None] > rows if strict else rows[:, None] >= rows
    return torch.where(kept, x[..., None] - x[..., None, :], -math.inf)


def spans_gradient(x: Tensor, exclusive: bool = False) -> Tensor:
    """At row r the sum over i >= r > j (exclusive: i > r) of x[..., i, j]."""
    x = x.tril(-1)
    x = sums_after(x, -2) if exclusive else sums_from_end(x, -2)
    return x.tril(-1).sum(-1)


def halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Blocks [..., 2 * count, h, K] in pairs: the first of each pair, and the second."""
    first, second = x.unflatten(-3, (x.shape[-3] // 2, 2)).unbind(-3)
    return first, second


def halves_of_rows(x: Tensor, half: int) -> tuple[Tensor, Tensor]:
    """Rows [..., C, K] as blocks of 2 * half: their first halves, and their second."""
    first, second = x.unflatten(-2, (x.shape[-2] // (2 * half), 2, half)).unbind(-3)
    return first, second


def off_diagonal(x: Tensor, half: int) -> Tensor:
    """The lower left quarters of the blocks [2 * half, 2 * half] on the diagonal of matrices."""
    count = x.shape[-1] // (2 * half)
    x = x.unflatten(-2, (count, 2, half)).unflatten(-1, (count, 2, half))
    return x[..., 1, :, :, 0, :].diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def with_off_diagonal(blocks: Tensor, below: Tensor) -> Tensor:
    """[[first, 0], [below, second]] for blocks in pairs: lower triangular of twice the size."""
    first, second = halves(blocks.expand(*below.shape[:-3], *blocks.shape[-3:]))
    first = F.pad(first, (0, below.shape[-1]))
    return torch.cat([first, torch.cat([below, second], -1)], -2)


def to_power(x: Tensor, rows: int) -> Tensor:
    """Rows [..., C, K] filled up with zeros."""
    return F.pad(x, (0, 0, 0, rows - x.shape[-2])) if rows > x.shape[-2] else x


def sum_of_rows(x: Tensor) -> Tensor:
    """The sum over the rows of blocks [..., h, K] -> [..., 1, K]."""
    return x.sum(-2, keepdim=True) if x.shape[-2] > 1 else x


def block_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b; for blocks of one or two rows, term by term, which is faster."""
    if a.shape[-1] > 2:
        return a @ b
    first = a[..., :1] * b[..., :1, :]
    return first if a.shape[-1] == 1 else torch.addcmul(first, a[..., 1:], b[..., 1:, :])


def decays_between(g: Tensor, exclusive: bool = False) -> list[tuple[Tensor, Tensor]]:
    """How values decay between the rows of a chunk: for halves of 1, 2, 4, ... rows, the factors
    from each row of a first half to the border, and from the border to each row of the second; and
    at last those from each row to the end of the chunk, and from its start to each row.

    A pair of rows meets at the border between the halves that hold them. So each factor is a
    product of gates exp(g) along the way, never a quotient: gates of -inf are 0 and no NaN.
    g [..., C, K] -> pairs of [..., blocks, h, K], the last of [..., C, K]; `exclusive` leaves out
    the later row's own gate, but for the last pair.
    """
    rows, levels = g.shape[-2], (g.shape[-2] - 1).bit_length()
    since = to_power(g, 1 << levels).exp().unsqueeze(-2)
    until = since.new_ones(()).expand_as(since)
    found = []
    for _ in range(levels):
        (until_1, until_2), (since_1, since_2) = halves(until), halves(since)
        found.append((until_1, moved(since_2, -2, 1, 1.0) if exclusive else since_2))
        until = torch.cat([until_1 * since_2[..., -1:, :], until_2], -2)
        since = torch.cat([since_1, since_1[..., -1:, :] * since_2], -2)
    return [*found, (until[..., 0, :rows, :], since[..., 0, :rows, :])]


def decayed_gram(a: Tensor, b: Tensor, decays: list, strict: bool = False) -> Tensor:
    """A[i, j] = sum over k of a[i, k] decay[i, j, k] b[j, k] for j <= i, or with `strict` j < i.

    a, b [..., C, K] -> [..., C, C]
    """
    rows = a.shape[-2]
    a, b = (to_power(x, 1 << len(decays) - 1) for x in (a, b))
    gram = (a * b).sum(-1, keepdim=True)[..., None]
    gram = torch.zeros_like(gram) if strict else gram
    for early, late in decays[:-1]:
        first, second = halves_of_rows(b, late.shape[-2])[0], halves_of_rows(a, late.shape[-2])[1]
        gram = with_off_diagonal(gram, (second * late) @ (first * early).mT)
    return gram[..., 0, :rows, :rows]


def decayed_mix(
    weights: Tensor, x: Tensor, decays: list, strict: bool = False, transpose: bool = False
) -> Tensor:
    """o[i] = sum over j <= i of weights[i, j] decay[i, j] x[j]; transposed, o[j] sums over i.

    weights [..., C, C], x [..., C, K] -> [..., C, K]; `strict` leaves out j = i
    """
    rows, size = x.shape[-2], 1 << len(decays) - 1
    weights = F.pad(weights, (0, size - rows, 0, size - rows))
    x = to_power(x, size)
    mixed = (weights.diagonal(dim1=-2, dim2=-1)[..., None] * x).unsqueeze(-2)
    mixed = torch.zeros_like(mixed) if strict else mixed
    for early, late in decays[:-1]:
        below = off_diagonal(weights, late.shape[-2])
        (first, second), (top, bottom) = halves_of_rows(x, late.shape[-2]), halves(mixed)
        if transpose:
            top = top + early * block_product(below.mT, second * late)
        else:
            bottom = bottom + late * block_product(below, first * early)
        top, bottom = torch.broadcast_tensors(top, bottom)
        mixed = torch.cat([top, bottom], -2)
    return mixed[..., 0, :rows, :]


def decayed_gram_gradients(
    d: Tensor, a: Tensor, b: Tensor, decays: list, strict: bool = False, exclusive: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of `decayed_gram` for a, b and the log gates, from that of its result, d.

    The gates' share at row r is a sum over the pairs i >= r > j (exclusive: i > r) of what i and j
    have of each other. From the widest halves on, `a * d_a` and `b * d_b` hold what rows have of
    those that they met at wider borders, and `whole` is what all rows of a block lie between.
    """
    rows, size = a.shape[-2], 1 << len(decays) - 1
    d = F.pad(d, (0, size - rows, 0, size - rows)) if size > rows else d
    a, b = torch.broadcast_tensors(to_power(a, size), to_power(b, size))
    a, b = a.expand(*d.shape[:-1], -1), b.expand(*d.shape[:-1], -1)
    d_a, d_b = (torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (a, b))
    whole = torch.zeros_like(d_a[..., :2, None, :])  # of the widest halves: none are wider
    for early, late in decays[-2::-1]:
        half, block = late.shape[-2], off_diagonal(d, late.shape[-2])
        (first, _), (_, second) = halves_of_rows(b, half), halves_of_rows(a, half)
        (d_first, _), (_, d_second) = halves_of_rows(d_b, half), halves_of_rows(d_a, half)
        if 2 * half < size:
            above, below = sum_of_rows(second * d_second), sum_of_rows(first * d_first)
            whole = torch.stack([whole + above, whole + below], -3).flatten(-4, -3)
        d_second.addcmul_(block_product(block, first * early), late)
        d_first.addcmul_(block_product(block.mT, second * late), early)
    whole = whole.squeeze(-2)
    d_g = whole if exclusive else torch.addcmul(whole, a, d_a)
    if not strict:
        diagonal = d.diagonal(dim1=-2, dim2=-1)[..., None]
        d_a.addcmul_(diagonal, b)
        d_b.addcmul_(diagonal, a)
    return d_a[..., :rows, :], d_b[..., :rows, :], d_g[..., :rows, :]


# --- systems of equations -----------------------------------------------------------------------


def inverse_unit_lower(a: Tensor) -> Tensor:
    """(I - A)^-1 for matrices A [..., C, C] that are 0 on the diagonal and above, from the inverses
    of the blocks on the diagonal, of 1, 2, 4, ... rows."""
    rows = a.shape[-1]
    levels = (rows - 1).bit_length()
    missing = (1 << levels) - rows
    a = F.pad(a, (0, missing, 0, missing)) if missing else a
    inverse = torch.ones_like(a[..., :1, None])
    for level in range(levels):
        first, second = halves(inverse)
        inverse = with_off_diagonal(inverse, second @ off_diagonal(a, 1 << level) @ first)
    return inverse[..., 0, :rows, :rows]


def conjugate_gradients(product: Callable, b: Tensor, dims: tuple, steps: int) -> Tensor:
    """z with product(z) = b, for a product with symmetric positive definite matrices over `dims`;
    a system that is solved stays as it is."""
    z, r = torch.zeros_like(b), b
    p, rest = b, (b * b).sum(dims, keepdim=True)
    done = rest * torch.finfo(b.dtype).eps ** 2
    for _ in range(steps):
        y = product(p)
        going = rest > done
        scale = torch.where(going, rest / torch.where(going, (p * y).sum(dims, keepdim=True), 1), 0)
        z, r = z + scale * p, r - scale * y
        new = (r * r).sum(dims, keepdim=True)
        p = r + torch.where(going, new / torch.where(going, rest, 1), 0) * p
        rest = new
    return z
