"""What each of the seven programs is given, and what it must make: references in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from archc.tile.interpreter import TORCH
from archc.tile.language import OF_BUFFER, Program
from tests.tile import programs


@dataclass(frozen=True)
class Case:
    """One launch of a program: all buffers, what is known, and what must stand in some buffers
    afterwards (in float64)."""

    program: Program
    tensors: Mapping[str, Tensor]
    sizes: Mapping[str, float]
    constants: Mapping[str, int | str]
    expected: Mapping[str, Tensor]

    @property
    def known(self) -> dict[str, int | float | str]:
        """What is known of the launch: sizes, constants, and the dtypes of buffers."""
        dtypes = {dtype: name for name, dtype in TORCH.items()}
        of_buffers = {f"{OF_BUFFER}{name}": dtypes[x.dtype] for name, x in self.tensors.items()}
        return {**self.sizes, **self.constants, **of_buffers}


@dataclass(frozen=True)
class Drawn:
    """Where a case draws its numbers: a dtype for the data, a device, a seed, and how large normal
    numbers are."""

    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    seed: int = 0
    size: float = 1.0

    def normal(self, *shape: int) -> Tensor:
        """Normal numbers, rounded to the dtype."""
        generator = torch.Generator("cpu").manual_seed(self.seed + sum(shape))
        made = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return (self.size * made).to(self.dtype).to(self.device)

    def empty(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Memory that a program must fill."""
        real = dtype or self.dtype
        fill = math.nan if real.is_floating_point else -7
        return torch.full(shape, fill, dtype=real, device=self.device)

    @property
    def wide(self) -> torch.dtype:
        """The dtype of what is kept exactly."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def name(self) -> str:
        """The dtype as programs call it."""
        return {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16"}[self.dtype]


def block(size: int, least: int = 16) -> int:
    """The length of a block that holds a dim."""
    return max(least, 1 << (size - 1).bit_length())


def gated_rmsnorm(draw: Drawn, R: int = 13, D: int = 60, BLOCK_R: int = 4) -> Case:
    """Rows whose number no block divides."""
    x, g, gain = draw.normal(R, D), draw.normal(R, D + 1)[:, :D].contiguous(), draw.normal(D)
    y = _gated_rmsnorm(x.double(), g.double(), gain.double())
    tensors = {"x": x, "g": g, "y": draw.empty(R, D), "gain": gain.to(draw.wide)}
    constants = {"BLOCK_R": BLOCK_R, "BLOCK_D": block(D), "IO": draw.name}
    sizes = {"R": R, "D": D, "EPS": 1e-5}
    return Case(programs.gated_rmsnorm(), tensors, sizes, constants, {"y": y})


def gated_rmsnorm_gradient(
    draw: Drawn, R: int = 13, D: int = 60, BLOCK_R: int = 4, BLOCKS: int = 2
) -> Case:
    """Two programs, the last of which has rows that are not there."""
    x, g, gain = draw.normal(R, D), draw.normal(R, D + 1)[:, :D].contiguous(), draw.normal(D)
    dy = draw.normal(R, D + 2)[:, :D].contiguous()
    leaves = [tensor.double().requires_grad_() for tensor in (x, g, gain)]
    found = torch.autograd.grad(_gated_rmsnorm(*leaves), leaves, dy.double())
    parts = -(-R // (BLOCK_R * BLOCKS))
    tensors = {"x": x, "g": g, "dy": dy, "dx": draw.empty(R, D), "dg": draw.empty(R, D)}
    tensors |= {"gain": gain.to(draw.wide), "dgain": draw.empty(parts, D, dtype=draw.wide)}
    sizes = {"R": R, "D": D, "BLOCKS": BLOCKS, "EPS": 1e-5}
    constants = {"BLOCK_R": BLOCK_R, "BLOCK_D": block(D), "IO": draw.name}
    expected = dict(zip(("dx", "dg", "dgain"), found, strict=True))
    return Case(programs.gated_rmsnorm_gradient(), tensors, sizes, constants, expected)


def _gated_rmsnorm(x: Tensor, g: Tensor, gain: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], gain, 1e-5) * F.silu(g)


def short_convolution(
    draw: Drawn, B: int = 2, T: int = 37, H: int = 3, K: int = 20, BLOCK_T: int = 16
) -> Case:
    """Tokens that no block divides."""
    x, c = draw.normal(B, T, H, K), draw.normal(4, H, K)
    tensors = {"x": x, "y": draw.empty(B, T, H, K), "c": c.to(draw.wide)}
    constants = {"BLOCK_T": BLOCK_T, "BLOCK_K": block(K), "IO": draw.name}
    expected = {"y": _convolved(x.double(), c.double())}
    sizes = {"B": B, "T": T, "H": H, "K": K}
    return Case(programs.short_convolution(), tensors, sizes, constants, expected)


def short_convolution_gradient(
    draw: Drawn, B: int = 2, T: int = 37, H: int = 3, K: int = 20, BLOCK_T: int = 16
) -> Case:
    """The same, and shares of the taps' gradient."""
    x, c, dy = draw.normal(B, T, H, K), draw.normal(4, H, K), draw.normal(B, T, H, K + 1)[..., :K]
    leaves = [x.double().requires_grad_(), c.double().requires_grad_()]
    dx, dc = torch.autograd.grad(_convolved(*leaves), leaves, dy.double())
    tensors = {"x": x, "dy": dy.contiguous(), "dx": draw.empty(B, T, H, K), "c": c.to(draw.wide)}
    tensors["dc"] = draw.empty(B, -(-T // BLOCK_T), 4, H, K, dtype=draw.wide)
    constants = {"BLOCK_T": BLOCK_T, "BLOCK_K": block(K), "IO": draw.name}
    sizes = {"B": B, "T": T, "H": H, "K": K}
    expected = {"dx": dx, "dc": dc}
    return Case(programs.short_convolution_gradient(), tensors, sizes, constants, expected)


def _convolved(x: Tensor, c: Tensor) -> Tensor:
    """By torch's convolution: channels are groups, taps run backwards."""
    b, t, h, k = x.shape
    taps = c.permute(1, 2, 0).reshape(h * k, 1, 4).flip(-1)
    given = F.pad(x.reshape(b, t, h * k).transpose(1, 2), (3, 0))
    s = F.silu(F.conv1d(given, taps, groups=h * k)).transpose(1, 2).reshape(x.shape)
    return s * torch.rsqrt(s.square().sum(-1, keepdim=True) + 1e-6)


def capped_attention(
    draw: Drawn, B: int = 2, T: int = 50, H: int = 2, K: int = 20, BLOCK_T: int = 16,
    BLOCK_S: int = 16, cap: float = 3.0,
) -> Case:  # fmt: skip
    """Causal, with scores bent at a cap."""
    q, k, v = (draw.normal(B, T, H, K + n)[..., :K].contiguous() for n in range(3))
    scale = K**-0.5
    o, lse = _attended(*(x.double().transpose(1, 2) for x in (q, k, v)), scale, cap)
    tensors = {"q": q, "k": k, "v": v, "o": draw.empty(B, T, H, K)}
    tensors["lse"] = draw.empty(B, H, T, dtype=draw.wide)
    constants = {"BLOCK_T": BLOCK_T, "BLOCK_S": BLOCK_S, "BLOCK_K": block(K), "IO": draw.name}
    sizes = {"B": B, "T": T, "H": H, "K": K, "SCALE": scale, "CAP": cap}
    expected = {"o": o.transpose(1, 2), "lse": lse}
    return Case(programs.capped_attention(), tensors, sizes, constants, expected)


def _attended(q: Tensor, k: Tensor, v: Tensor, scale: float, cap: float) -> tuple[Tensor, Tensor]:
    """Head by head, so that long sequences fit."""
    o, lse = torch.empty_like(v), torch.empty(v.shape[:3], dtype=v.dtype, device=v.device)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            score = cap * torch.tanh(q[b, h] @ k[b, h].T * scale / cap)
            score = score.masked_fill(torch.ones_like(score).triu(1).bool(), -math.inf)
            o[b, h], lse[b, h] = score.softmax(-1) @ v[b, h], score.logsumexp(-1)
    return o, lse


def top_indices(draw: Drawn, R: int = 5, S: int = 150, N: int = 16, BLOCK_S: int = 32) -> Case:
    """Scores with equal ones among them, and -inf."""
    scores = (draw.normal(R, S) * 4).round().float()
    scores[0, 40:] = -math.inf
    scores = scores.to(draw.wide)
    found = torch.sort(scores.double(), dim=-1, descending=True, stable=True).indices[:, :N]
    tensors = {"scores": scores, "found": draw.empty(R, N, dtype=torch.int32)}
    constants = {"N": N, "BLOCK_S": BLOCK_S}
    return Case(programs.top_indices(), tensors, {"R": R, "S": S}, constants, {"found": found})


def cell(
    draw: Drawn, T: int = 6, B: int = 3, D: int = 40, BLOCK_D: int = 16, PART: int = 16
) -> Case:
    """Against torch.nn.LSTM, whose input weights are the identity."""
    lstm = torch.nn.LSTM(4 * D, D, bias=False, dtype=torch.float64, device=draw.device)
    a = draw.normal(T, 4, B, D)
    weights = (draw.normal(4 * D, D).double() / D**0.5).to(draw.dtype)
    with torch.no_grad():
        lstm.weight_ih_l0.copy_(torch.eye(4 * D))
        lstm.weight_hh_l0.copy_(weights)
        made, _ = lstm(a.double().transpose(1, 2).reshape(T, B, 4 * D))
    h = draw.empty(T + 1, B, D)
    h[0] = 0
    W = weights.reshape(4, D, D).transpose(1, 2).contiguous()
    tensors = {"a": a, "W": W, "h": h}
    tensors["counter"] = torch.zeros(1, dtype=torch.int32, device=draw.device)
    constants = {"BLOCK_B": 16, "BLOCK_D": BLOCK_D, "PART": PART, "IO": draw.name}
    start = torch.zeros(1, B, D, dtype=torch.float64, device=draw.device)
    expected = {"h": torch.cat([start, made])}
    return Case(programs.cell(), tensors, {"T": T, "B": B, "D": D}, constants, expected)


def delta_sweep(
    draw: Drawn, B: int = 2, T: int = 37, H: int = 2, K: int = 20, V: int = 24, BLOCK_V: int = 16,
    blocks: bool = False,
) -> Case:  # fmt: skip
    """Against the recurrence, token by token."""
    q, k = (F.normalize(draw.normal(B, T, H, K + n)[..., :K].double(), dim=-1) for n in range(2))
    q = q * K**-0.5
    v, beta = draw.normal(B, T, H, V), torch.sigmoid(draw.normal(B, T, H).double())
    g = -5 * torch.sigmoid(draw.normal(B, T, H, K).double() - 2)
    given = [x.to(draw.dtype) for x in (q, k, g, v, beta)]
    o, S = _delta(*(x.double() for x in given))
    names = ("q", "k", "log_alpha", "v", "beta")
    tensors = dict(zip(names, given, strict=True)) | {"o": draw.empty(B, T, H, V)}
    tensors["S_end"] = draw.empty(B, H, K, V, dtype=draw.wide)
    constants = {"C": 16, "BLOCK_K": block(K), "BLOCK_V": BLOCK_V, "IO": draw.name}
    sizes = {"B": B, "T": T, "H": H, "K": K, "V": V}
    program = programs.delta_sweep(blocks)
    return Case(program, tensors, sizes, constants, {"o": o, "S_end": S})


def _delta(q: Tensor, k: Tensor, g: Tensor, v: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """S[t] = (I - beta k k') diag(alpha) S[t-1] + beta k v', o = S[t]' q"""
    S = torch.zeros(*q.shape[:1], *q.shape[2:], v.shape[-1], dtype=q.dtype, device=q.device)
    o = torch.empty_like(v)
    for t in range(q.shape[1]):
        S = S * g[:, t].exp()[..., None]
        u = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", S, k[:, t]))
        S = S + k[:, t, :, :, None] * u[:, :, None]
        o[:, t] = torch.einsum("bhkv,bhk->bhv", S, q[:, t])
    return o, S


def delta_scan_gradient(
    draw: Drawn, B: int = 2, chunks: int = 3, H: int = 2, K: int = 20, V: int = 24, C: int = 16,
    BLOCK_V: int = 16,
) -> Case:  # fmt: skip
    """Against autograd through the forward scan."""
    small = 0.4 / (C**0.5 + K**0.5)  # a product of two of them shrinks what it is applied to
    W, Q, Kend = (small * draw.normal(B, H, chunks, C, K + n)[..., :K] for n in range(3))
    W, Q, Kend = W.contiguous(), Q.contiguous(), Kend.contiguous()
    A, d_o = small * draw.normal(B, H, chunks, C, C), draw.normal(B, H, chunks, C, V)
    decay = torch.sigmoid(draw.normal(B, H, chunks, K).double()).to(draw.wide)
    d_u, d_S = _scan_gradient(*(x.double() for x in (W, Q, Kend, A, decay, d_o)))
    tensors = {"w_decayed": W, "q_decayed": Q, "k_end": Kend, "scores": A, "chunk_decay": decay}
    tensors |= {"d_o": d_o, "d_u": draw.empty(*d_u.shape), "d_S": draw.empty(*d_S.shape)}
    constants = {"C": C, "BLOCK_K": block(K), "BLOCK_V": BLOCK_V, "IO": draw.name}
    sizes = {"B": B, "T": chunks * C, "H": H, "K": K, "V": V}
    program = programs.delta_scan_gradient()
    return Case(program, tensors, sizes, constants, {"d_u": d_u, "d_S": d_S})


def _scan_gradient(
    W: Tensor, Q: Tensor, Kend: Tensor, A: Tensor, decay: Tensor, d_o: Tensor
) -> tuple[Tensor, Tensor]:
    """d U of the scan, and the gradient of the state after each chunk."""
    B, H, chunks, _, K = W.shape
    S = torch.zeros(B, H, K, d_o.shape[-1], dtype=W.dtype, device=W.device)
    U = torch.zeros_like(d_o, requires_grad=True)
    states, loss = [], torch.zeros((), dtype=W.dtype, device=W.device)
    for n in range(chunks):
        u = U[:, :, n] - W[:, :, n] @ S
        o = Q[:, :, n] @ S + A[:, :, n] @ u
        S = (decay[:, :, n, :, None] * S + Kend[:, :, n].transpose(-1, -2) @ u).clone()
        states.append(S)
        loss = loss + (o * d_o[:, :, n]).sum()
    # The last state reaches no output: its gradient is 0, and autograd has none.
    found = torch.autograd.grad(loss, [U, *states[:-1]])
    return found[0], torch.stack([*found[1:], torch.zeros_like(S)], 2)


CASES: Mapping[str, Callable[..., Case]] = {
    each.__name__: each
    for each in (
        gated_rmsnorm, gated_rmsnorm_gradient, short_convolution, short_convolution_gradient,
        capped_attention, top_indices, cell, delta_sweep, delta_scan_gradient,
    )
}  # fmt: skip

SUMMED = {"dgain": (0,), "dc": (0, 1)}
"""Partial sums of programs, and the axes that the caller adds them along."""


def errors(case: Case) -> dict[str, float]:
    """How far each output is from what it must be: |made - expected| / |expected|."""
    found = {}
    for name, expected in case.expected.items():
        made, wanted = case.tensors[name].double(), expected.detach().double()
        made = made.sum(SUMMED[name]) if name in SUMMED else made
        found[name] = float(((made - wanted).norm() / wanted.norm()).detach())
    return found
