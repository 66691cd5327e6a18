"""What the programs of chunks are given, and what they must make: sums over pairs in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from archc.lowering.row_decays import LIMIT
from tests.lowering import chunk_programs as programs
from tests.tile.cases import Case, Drawn, block


def gates(draw: Drawn, kind: str, *shape: int) -> Tensor:
    """Log gates [..., T, H, K]: `soft` ones, `strong` ones, some that forget everything at once
    (`hard`), none (`none`), -1e4 at every second row (`deep`), or -inf here and there (`never`);
    `edge`: as much in 32 rows as factors that share the middle one have room for."""
    soft = torch.nn.functional.logsigmoid(draw.normal(*shape).double())
    if kind == "strong":
        return 2.5 * soft
    if kind == "hard":
        return torch.where(draw.normal(*shape, 2)[..., 0] > 1.0, -1e4, 8 * soft)
    if kind == "deep":
        at = torch.arange(shape[-3], device=soft.device)[:, None, None] % 2 == 0
        return torch.where(at, -1e4, soft)
    if kind == "never":
        return torch.where(draw.normal(*shape, 2)[..., 0] > 1.2, -torch.inf, soft)
    if kind == "edge":
        return torch.full_like(soft, -(LIMIT - 0.5) / 32)
    return soft * (0.0 if kind == "none" else 1.0)


def decays(g: Tensor, exclusive: bool = False) -> Tensor:
    """exp(span[i, j]) of g [..., C, K] -> [..., C, C, K], pair by pair; 0 where j > i, and 1 where
    j = i."""
    C = g.shape[-2]
    found = g.new_zeros(*g.shape[:-2], C, C, g.shape[-1])
    for i in range(C):
        for j in range(i + 1):
            last = i if exclusive else i + 1
            found[..., i, j, :] = g[..., j + 1 : last, :].sum(-2).exp()
    return found


def chunked(x: Tensor, C: int) -> Tensor:
    """[B, T, H, ...] -> [B, n, H, C, ...], the last chunk filled up with 0."""
    B, T, H, *rest = x.shape
    n = -(-T // C)
    filled = x.new_zeros(B, n * C, H, *rest)
    filled[:, :T] = x
    return filled.reshape(B, n, C, H, *rest).transpose(2, 3)


def sums_of(g: Tensor, dtype: torch.dtype) -> Tensor:
    """Running sums of log gates [B, n, H, C, K], none of which counts as less than -104."""
    return g.clamp(min=-104.0).cumsum(-2).to(dtype)


def _drawn(
    draw: Drawn, B: int, T: int, H: int, K: int, C: int, kind: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    q, k = draw.normal(B, T, H, K), draw.normal(B, T + 1, H, K)[:, :T].contiguous()
    beta = torch.sigmoid(draw.normal(B, T, H).double()).to(draw.dtype)
    g = chunked(gates(draw, kind, B, T, H, K), C)
    return q / K**0.5, k / K**0.5, beta, g


def _constants(draw: Drawn, C: int, K: int, BLOCK: int | None) -> dict[str, int | str]:
    wide = draw.dtype == torch.bfloat16
    sums = "f32" if wide else "f64"
    return {
        "C": C, "LEVELS": C.bit_length() - 1, "BLOCK": BLOCK or block(K), "IO": draw.name,
        "DOT": "bf16" if wide else "f32", "SUMS": sums, "PRECISION": "tf32x3",
    }  # fmt: skip


def scores(
    draw: Drawn, B: int = 1, T: int = 40, H: int = 2, K: int = 20, C: int = 16, kind: str = "soft",
    BLOCK: int | None = None, exclusive: bool = False, from_memory: bool = True,
) -> Case:  # fmt: skip
    """Both matrices of chunks."""
    q, k, beta, g = _drawn(draw, B, T, H, K, C, kind)
    a, b, s = (chunked(x.double(), C) for x in (q, k, beta))
    weights = decays(g, exclusive)
    made = torch.einsum("bnhid,bnhijd,bnhjd->bnhij", a, weights, b)
    A = -s[..., None] * torch.einsum("bnhid,bnhijd,bnhjd->bnhij", b, weights, b)
    made, A = made.tril(-1 if exclusive else 0), A.tril(-1)
    sums = sums_of(g, torch.float32 if draw.dtype == torch.bfloat16 else torch.float64)
    tensors = {"q": q, "k": k, "beta": beta, "sums": sums}
    tensors |= {"scores": draw.empty(*A.shape), "A": draw.empty(*A.shape, dtype=draw.wide)}
    program = programs.scores(exclusive, from_memory)
    sizes = {"B": B, "T": T, "H": H, "K": K}
    return Case(program, tensors, sizes, _constants(draw, C, K, BLOCK), {"scores": made, "A": A})


def scores_gradient(
    draw: Drawn, B: int = 1, T: int = 40, H: int = 2, K: int = 20, C: int = 16, kind: str = "soft",
    BLOCK: int | None = None, exclusive: bool = False, from_memory: bool = True,
) -> Case:  # fmt: skip
    """Against sums over pairs: those of gates are around each row, nothing is subtracted."""
    q, k, beta, g = _drawn(draw, B, T, H, K, C, kind)
    a, b, s = (chunked(x.double(), C) for x in (q, k, beta))
    rows, weights = -s[..., None] * b, decays(g, exclusive)
    shape = weights.shape[:-1]
    first = draw.normal(*shape).tril(-1 if exclusive else 0)
    second = draw.normal(*shape[:-1], C + 1)[..., :C].tril(-1)
    d_s, d_A = first.double(), second.double()
    pairs = torch.einsum("bnhid,bnhij,bnhijd,bnhjd->bnhijd", a, d_s, weights, b)
    pairs += torch.einsum("bnhid,bnhij,bnhijd,bnhjd->bnhijd", rows, d_A, weights, b)
    around = [pairs[..., r + exclusive :, :r, :].sum((-3, -2)) for r in range(C)]
    expected = {
        "d_q": torch.einsum("bnhij,bnhijd,bnhjd->bnhid", d_s, weights, b),
        "d_rows": torch.einsum("bnhij,bnhijd,bnhjd->bnhid", d_A, weights, b),
        "d_k": torch.einsum("bnhij,bnhijd,bnhid->bnhjd", d_s, weights, a)
        + torch.einsum("bnhij,bnhijd,bnhid->bnhjd", d_A, weights, rows),
        "d_gates": torch.stack(around, -2),
    }
    sums = sums_of(g, torch.float32 if draw.dtype == torch.bfloat16 else torch.float64)
    tensors = {"q": q, "k": k, "beta": beta, "sums": sums, "d_scores": first, "d_A": second}
    tensors |= {n: draw.empty(*g.shape, dtype=draw.wide) for n in expected}
    program = programs.scores_gradient(exclusive, from_memory)
    sizes = {"B": B, "T": T, "H": H, "K": K}
    return Case(program, tensors, sizes, _constants(draw, C, K, BLOCK), expected)


def _triangle(draw: Drawn, *shape: int, size: float = 1.0) -> Tensor:
    """Matrices that are 0 on the diagonal and above."""
    made = size * draw.normal(*shape).double().tril(-1) / shape[-1] ** 0.5
    return made.to(draw.wide).contiguous()


def _inverse(A: Tensor) -> Tensor:
    unit = torch.eye(A.shape[-1], dtype=torch.float64, device=A.device)
    return torch.linalg.solve_triangular(unit - A.double(), unit.expand(A.shape), upper=False)


def solve_tril(
    draw: Drawn, B: int = 1, T: int = 80, H: int = 2, C: int = 32, SOLVE: str = "f32",
    size: float = 1.0,
) -> Case:  # fmt: skip
    """Inverses; a large `size` makes them grow."""
    A = _triangle(draw, B, -(-T // C), H, C, C, size=size)
    tensors = {"A": A, "inverse": draw.empty(*A.shape)}
    constants = {**_constants(draw, C, 16, None), "SOLVE": SOLVE}
    sizes = {"B": B, "T": T, "H": H, "K": 16}
    return Case(programs.solve_tril(), tensors, sizes, constants, {"inverse": _inverse(A)})
