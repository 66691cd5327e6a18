"""What stands between two levels of a tree of spans with gates by channel: vectors, a product of
gates for each channel of a span, in place of matrices.

Of two spans side by side, of products A and then B, the later one's readers go on to the begin of
both, and the earlier one's tokens to the end:

    q' = A q      k' = B k      P = A B

Rows are [B, h, T, K], products [B, h, spans, K]. A last span without another beside it stays.
"""

from __future__ import annotations

import torch
from torch import Tensor


def span_halves(x: Tensor, size: int, side: int) -> list[tuple[Tensor, slice]]:
    """The rows [B, h, n, size, K] of spans that are earlier (0) or later (1) in their pair, and the
    places of the spans beside them; those of whole pairs together, then of a last one."""
    tokens, pairs = x.shape[2], x.shape[2] // (2 * size)
    whole = pairs * 2 * size
    found = []
    if pairs:
        rows = x[:, :, :whole].unflatten(2, (pairs, 2, size))[:, :, :, side]
        found.append((rows, slice(1 - side, 2 * pairs, 2)))
    if tokens - whole > size:
        rows = x[:, :, whole + size :] if side else x[:, :, whole : whole + size]
        found.append((rows.unsqueeze(2), slice(2 * pairs + 1 - side, 2 * pairs + 2 - side)))
    return found


def climb_gates(P: Tensor, both: Tensor, tokens: int, size: int) -> None:
    """q and k at the borders of spans of twice the length, in place."""
    for side, rows in ((1, both[0]), (0, both[1])):
        for own, other in span_halves(rows, size, side):
            own.mul_(P[:, :, other, None])


def climb_gates_keeping(P: Tensor, both: Tensor, kept: Tensor, tokens: int, size: int) -> None:
    """The same, with the rows that change kept: of q in later spans, of k in earlier ones."""
    pairs = tokens // (2 * size)
    whole = pairs * 2 * size
    rows = (x[:, :, :whole].unflatten(2, (pairs, 2, size)) for x in (both[1], both[0], kept))
    k, q, own = rows
    own[:, :, :, 0], own[:, :, :, 1] = k[:, :, :, 0], q[:, :, :, 1]
    kept[:, :, whole : whole + size] = both[1][:, :, whole : whole + size]
    kept[:, :, whole + size :] = both[0][:, :, whole + size :]
    climb_gates(P, both, tokens, size)


def join_gates(P: Tensor, joined: Tensor, tokens: int, size: int) -> None:
    """The products of spans of twice the length."""
    count = P.shape[2] // 2
    torch.mul(P[:, :, 0 : 2 * count : 2], P[:, :, 1 : 2 * count : 2], out=joined[:, :, :count])
    joined[:, :, count:] = P[:, :, 2 * count :]


def descend_gates(
    P: Tensor, kept: Tensor, both: Tensor, above: Tensor, made: Tensor, tokens: int, size: int
) -> None:  # fmt: skip
    """The gradients of q and k at the borders of the spans of a level, in place, and those of the
    logarithms of its products, from those of spans of twice the length."""
    made.copy_(above.repeat_interleave(2, 2)[:, :, : P.shape[2]])
    for side, rows in ((1, both[0]), (0, both[1])):
        was = [own for own, _ in span_halves(kept, size, side)]
        for (own, other), x in zip(span_halves(rows, size, side), was, strict=True):
            own.mul_(P[:, :, other, None])
            made[:, :, other] += (own * x).sum(3)
