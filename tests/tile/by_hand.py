"""The same kernels as a person writes them in Triton: what printed programs are timed beside.

Each takes the buffers and numbers of the program of its name, in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from archc.runtime.tiles import grid_barrier


@triton.jit
def gated_rmsnorm(
    x, g, y, gain, R, D, EPS, IO: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr
):
    rows = tl.program_id(0) * BLOCK_R + tl.arange(0, BLOCK_R)
    cols = tl.arange(0, BLOCK_D)
    mask = (rows < R)[:, None] & (cols < D)[None, :]
    at = rows.to(tl.int64)[:, None] * D + cols[None, :]
    b_x = tl.load(x + at, mask=mask, other=0).to(tl.float32)
    b_g = tl.load(g + at, mask=mask, other=0).to(tl.float32)
    b_gain = tl.load(gain + cols, mask=cols < D, other=0)
    rstd = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / D + EPS)
    b_y = b_x * rstd[:, None] * b_gain[None, :] * (b_g * tl.sigmoid(b_g))
    tl.store(y + at, b_y, mask=mask)


@triton.jit
def gated_rmsnorm_gradient(
    x, g, dy, dx, dg, gain, dgain, R, D, BLOCKS, EPS,
    IO: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    cols = tl.arange(0, BLOCK_D)
    in_d = cols < D
    b_gain = tl.load(gain + cols, mask=in_d, other=0)
    acc = tl.zeros([BLOCK_D], dtype=tl.float32)
    for n in range(0, BLOCKS):
        rows = (pid * BLOCKS + n) * BLOCK_R + tl.arange(0, BLOCK_R)
        mask = (rows < R)[:, None] & in_d[None, :]
        at = rows.to(tl.int64)[:, None] * D + cols[None, :]
        b_x = tl.load(x + at, mask=mask, other=0).to(tl.float32)
        b_g = tl.load(g + at, mask=mask, other=0).to(tl.float32)
        b_dy = tl.load(dy + at, mask=mask, other=0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(b_x * b_x, axis=1) / D + EPS)[:, None]
        unit = b_x * rstd
        sig = tl.sigmoid(b_g)
        d_norm = b_dy * b_g * sig
        d_unit = d_norm * b_gain[None, :]
        mean = tl.sum(d_unit * unit, axis=1)[:, None] / D
        tl.store(dx + at, (d_unit - unit * mean) * rstd, mask=mask)
        tl.store(dg + at, b_dy * unit * b_gain[None, :] * sig * (1 + b_g * (1 - sig)), mask=mask)
        acc += tl.sum(d_norm * unit, axis=0)
    tl.store(dgain + pid * D + cols, acc, mask=in_d)


@triton.jit
def _shifted(p, start, T, H, K, h, shift, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr):
    """Rows `start + shift` and on of one head."""
    rows = start + shift + tl.arange(0, BLOCK_T)
    cols = tl.arange(0, BLOCK_K)
    mask = ((rows >= 0) & (rows < T))[:, None] & (cols < K)[None, :]
    at = rows[:, None] * (H * K) + h * K + cols[None, :]
    return tl.load(p + at, mask=mask, other=0).to(tl.float32)


@triton.jit
def _unit(x0, x1, x2, x3, c0, c1, c2, c3):
    """u, s / |s| and 1 / |s|."""
    u = c0[None, :] * x0 + c1[None, :] * x1 + c2[None, :] * x2 + c3[None, :] * x3
    s = u * tl.sigmoid(u)
    r = tl.rsqrt(tl.sum(s * s, axis=1) + 1e-6)[:, None]
    return u, s * r, r


@triton.jit
def short_convolution(
    x, y, c, B, T, H, K, IO: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr
):
    pid = tl.program_id(0)
    h = pid % H
    block = (pid // H) % tl.cdiv(T, BLOCK_T)
    b = (pid // H // tl.cdiv(T, BLOCK_T)).to(tl.int64)
    cols = tl.arange(0, BLOCK_K)
    taps = c + h * K + cols
    c0 = tl.load(taps, mask=cols < K, other=0)
    c1 = tl.load(taps + H * K, mask=cols < K, other=0)
    c2 = tl.load(taps + 2 * H * K, mask=cols < K, other=0)
    c3 = tl.load(taps + 3 * H * K, mask=cols < K, other=0)
    start = block * BLOCK_T
    p = x + b * T * H * K
    x0 = _shifted(p, start, T, H, K, h, 0, BLOCK_T, BLOCK_K)
    x1 = _shifted(p, start, T, H, K, h, -1, BLOCK_T, BLOCK_K)
    x2 = _shifted(p, start, T, H, K, h, -2, BLOCK_T, BLOCK_K)
    x3 = _shifted(p, start, T, H, K, h, -3, BLOCK_T, BLOCK_K)
    _, b_y, _ = _unit(x0, x1, x2, x3, c0, c1, c2, c3)
    rows = start + tl.arange(0, BLOCK_T)
    mask = (rows < T)[:, None] & (cols < K)[None, :]
    tl.store(y + b * T * H * K + rows[:, None] * (H * K) + h * K + cols[None, :], b_y, mask=mask)


@triton.jit
def _du(u, y, r, b_dy):
    """The gradient of u."""
    ds = r * (b_dy - y * tl.sum(b_dy * y, axis=1)[:, None])
    sig = tl.sigmoid(u)
    return ds * sig * (1 + u * (1 - sig))


@triton.jit
def short_convolution_gradient(
    x, dy, dx, c, dc, B, T, H, K, IO: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_K: tl.constexpr
):
    pid = tl.program_id(0)
    h = pid % H
    blocks = tl.cdiv(T, BLOCK_T)
    block = (pid // H) % blocks
    b = (pid // H // blocks).to(tl.int64)
    cols = tl.arange(0, BLOCK_K)
    in_k = cols < K
    taps = c + h * K + cols
    c0 = tl.load(taps, mask=in_k, other=0)
    c1 = tl.load(taps + H * K, mask=in_k, other=0)
    c2 = tl.load(taps + 2 * H * K, mask=in_k, other=0)
    c3 = tl.load(taps + 3 * H * K, mask=in_k, other=0)
    p, d, start = x + b * T * H * K, dy + b * T * H * K, block * BLOCK_T
    xm3 = _shifted(p, start, T, H, K, h, -3, BLOCK_T, BLOCK_K)
    xm2 = _shifted(p, start, T, H, K, h, -2, BLOCK_T, BLOCK_K)
    xm1 = _shifted(p, start, T, H, K, h, -1, BLOCK_T, BLOCK_K)
    x0 = _shifted(p, start, T, H, K, h, 0, BLOCK_T, BLOCK_K)
    xp1 = _shifted(p, start, T, H, K, h, 1, BLOCK_T, BLOCK_K)
    xp2 = _shifted(p, start, T, H, K, h, 2, BLOCK_T, BLOCK_K)
    xp3 = _shifted(p, start, T, H, K, h, 3, BLOCK_T, BLOCK_K)
    u, y, r = _unit(x0, xm1, xm2, xm3, c0, c1, c2, c3)
    du = _du(u, y, r, _shifted(d, start, T, H, K, h, 0, BLOCK_T, BLOCK_K))
    acc = c0[None, :] * du
    share = dc + ((b * blocks + block) * 4 * H + h) * K + cols
    tl.store(share, tl.sum(du * x0, axis=0), mask=in_k)
    tl.store(share + H * K, tl.sum(du * xm1, axis=0), mask=in_k)
    tl.store(share + 2 * H * K, tl.sum(du * xm2, axis=0), mask=in_k)
    tl.store(share + 3 * H * K, tl.sum(du * xm3, axis=0), mask=in_k)
    u, y, r = _unit(xp1, x0, xm1, xm2, c0, c1, c2, c3)
    acc += c1[None, :] * _du(u, y, r, _shifted(d, start, T, H, K, h, 1, BLOCK_T, BLOCK_K))
    u, y, r = _unit(xp2, xp1, x0, xm1, c0, c1, c2, c3)
    acc += c2[None, :] * _du(u, y, r, _shifted(d, start, T, H, K, h, 2, BLOCK_T, BLOCK_K))
    u, y, r = _unit(xp3, xp2, xp1, x0, c0, c1, c2, c3)
    acc += c3[None, :] * _du(u, y, r, _shifted(d, start, T, H, K, h, 3, BLOCK_T, BLOCK_K))
    rows = start + tl.arange(0, BLOCK_T)
    at = b * T * H * K + rows[:, None] * (H * K) + h * K + cols[None, :]
    tl.store(dx + at, acc, mask=(rows < T)[:, None] & in_k[None, :])


@triton.jit
def _attend(
    b_q, k, v, n, rows, m, total, acc, T, H, K, SCALE, CAP,
    IO: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_K: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """The online softmax after one more block of keys."""
    s, cols = n * BLOCK_S + tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_K)
    mask = (s < T)[:, None] & (cols < K)[None, :]
    at = s[:, None] * (H * K) + cols[None, :]
    b_k = tl.load(k + at, mask=mask, other=0)
    b_v = tl.load(v + at, mask=mask, other=0)
    score = tl.dot(b_q, tl.trans(b_k)) * (SCALE / CAP)
    score = CAP * (2 * tl.sigmoid(2 * score) - 1)
    if MASKED:
        score = tl.where((rows[:, None] >= s[None, :]) & (s < T)[None, :], score, float("-inf"))
    m_new = tl.maximum(m, tl.max(score, axis=1))
    p = tl.exp(score - m_new[:, None])
    decay = tl.exp(m - m_new)
    return m_new, total * decay + tl.sum(p, axis=1), tl.dot(p.to(IO), b_v, acc * decay[:, None])


@triton.jit
def capped_attention(
    q, k, v, o, lse, B, T, H, K, SCALE, CAP,
    IO: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_S: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    blocks = tl.cdiv(T, BLOCK_T)
    block = blocks - 1 - pid % blocks
    h = (pid // blocks) % H
    b = (pid // blocks // H).to(tl.int64)
    rows = block * BLOCK_T + tl.arange(0, BLOCK_T)
    cols = tl.arange(0, BLOCK_K)
    in_k = cols < K
    base = b * T * H * K + h * K
    b_q = tl.load(
        q + base + rows[:, None] * (H * K) + cols[None, :],
        mask=(rows < T)[:, None] & in_k[None, :], other=0,
    )  # fmt: skip
    m = tl.full([BLOCK_T], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_T], dtype=tl.float32)
    acc = tl.zeros([BLOCK_T, BLOCK_K], dtype=tl.float32)
    whole = block * BLOCK_T // BLOCK_S
    for n in range(0, whole):
        m, total, acc = _attend(
            b_q, k + base, v + base, n, rows, m, total, acc, T, H, K, SCALE, CAP,
            IO, BLOCK_S, BLOCK_K, False,
        )  # fmt: skip
    for n in range(whole, whole + BLOCK_T // BLOCK_S):
        m, total, acc = _attend(
            b_q, k + base, v + base, n, rows, m, total, acc, T, H, K, SCALE, CAP,
            IO, BLOCK_S, BLOCK_K, True,
        )  # fmt: skip
    tl.store(
        o + base + rows[:, None] * (H * K) + cols[None, :], acc / total[:, None],
        mask=(rows < T)[:, None] & in_k[None, :],
    )  # fmt: skip
    tl.store(lse + (b * H + h) * T + rows, m + tl.log(total), mask=rows < T)


@triton.jit
def top_indices(scores, found, R, S, N: tl.constexpr, BLOCK_S: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    best = tl.full([N], -1, dtype=tl.int64)
    for start in range(0, S, BLOCK_S):
        s = start + tl.arange(0, BLOCK_S)
        score = tl.load(scores + row * S + s, mask=s < S, other=float("-inf")) + 0.0
        bits = score.to(tl.int32, bitcast=True).to(tl.int64)
        rank = tl.where(bits < 0, -1 - bits, bits + 2147483648)
        keyed = tl.where(s < S, rank * 1073741824 + (1073741823 - s), -1)
        best = tl.sort(tl.maximum(best, tl.topk(keyed, N)))
    at = N - 1 - tl.arange(0, N)
    tl.store(found + row * N + at, (1073741823 - best % 1073741824).to(tl.int32))


@triton.jit
def cell(
    a, W, h, counter, T, B, D,
    IO: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_D: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    cols = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    rows = tl.arange(0, BLOCK_B)
    mask = (rows < B)[:, None] & (cols < D)[None, :]
    at = rows[:, None] * D + cols[None, :]
    c = tl.zeros([BLOCK_B, BLOCK_D], dtype=tl.float32)
    for t in range(0, T):
        p = a + t.to(tl.int64) * 4 * B * D + at
        i = tl.load(p, mask=mask, other=0).to(tl.float32)
        f = tl.load(p + B * D, mask=mask, other=0).to(tl.float32)
        z = tl.load(p + 2 * B * D, mask=mask, other=0).to(tl.float32)
        o = tl.load(p + 3 * B * D, mask=mask, other=0).to(tl.float32)
        past = h + t.to(tl.int64) * B * D
        for first in tl.range(0, D, PART, num_stages=3):
            e = first + tl.arange(0, PART)
            b_h = tl.load(
                past + rows[:, None] * D + e[None, :],
                mask=(rows < B)[:, None] & (e < D)[None, :], other=0,
            )  # fmt: skip
            w = W + e[:, None] * D + cols[None, :]
            inside = (e < D)[:, None] & (cols < D)[None, :]
            i = tl.dot(b_h, tl.load(w, mask=inside, other=0), i)
            f = tl.dot(b_h, tl.load(w + D * D, mask=inside, other=0), f)
            z = tl.dot(b_h, tl.load(w + 2 * D * D, mask=inside, other=0), z)
            o = tl.dot(b_h, tl.load(w + 3 * D * D, mask=inside, other=0), o)
        c = tl.sigmoid(f) * c + tl.sigmoid(i) * (2 * tl.sigmoid(2 * z) - 1)
        made = tl.sigmoid(o) * (2 * tl.sigmoid(2 * c) - 1)
        tl.store(past + B * D + at, made, mask=mask)
        grid_barrier(counter, t)


@triton.jit
def _solved(N1, u):
    """(I - N)^-1 u."""
    N2 = tl.dot(N1, N1).to(tl.float16)
    N4 = tl.dot(N2, N2).to(tl.float16)
    N8 = tl.dot(N4, N4).to(tl.float16)
    u = tl.dot(N8, u.to(tl.float16), u)
    u = tl.dot(N4, u.to(tl.float16), u)
    u = tl.dot(N2, u.to(tl.float16), u)
    return tl.dot(N1, u.to(tl.float16), u)


@triton.jit
def delta_sweep(
    q, k, g, v, o, beta, S_end, B, T, H, K, V,
    IO: tl.constexpr, C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    parts = tl.cdiv(V, BLOCK_V)
    part = pid % parts
    h = (pid // parts) % H
    b = (pid // parts // H).to(tl.int64)
    row, i_k, i_v = tl.arange(0, C), tl.arange(0, BLOCK_K), part * BLOCK_V + tl.arange(0, BLOCK_V)
    in_k, in_v = i_k < K, i_v < V
    S = tl.zeros([BLOCK_K, BLOCK_V], dtype=tl.float32)
    for n in tl.range(0, tl.cdiv(T, C), num_stages=3):
        t = n * C + row
        in_t = t < T
        token = (b * T + t) * H + h
        at = token[:, None] * K + i_k[None, :]
        mask = in_t[:, None] & in_k[None, :]
        b_q = tl.load(q + at, mask=mask, other=0).to(tl.float32)
        b_k = tl.load(k + at, mask=mask, other=0).to(tl.float32)
        b_g = tl.load(g + at, mask=mask, other=0).to(tl.float32)
        at_v = token[:, None] * V + i_v[None, :]
        mask_v = in_t[:, None] & in_v[None, :]
        b_v = tl.load(v + at_v, mask=mask_v, other=0).to(tl.float32)
        b_beta = tl.load(beta + token, mask=in_t, other=0).to(tl.float32)
        decay = tl.exp(tl.cumsum(b_g, axis=0))
        last = tl.exp(tl.sum(b_g, axis=0))
        qd = (b_q * decay).to(IO)
        kd = (b_k * decay).to(IO)
        kg = b_k / decay
        kt = tl.trans(kg.to(IO))
        N = tl.where(row[:, None] > row[None, :], -b_beta[:, None] * tl.dot(kd, kt), 0.0)
        A = tl.where(row[:, None] >= row[None, :], tl.dot(qd, kt), 0.0).to(IO)
        S_io = S.to(IO)
        u = b_beta[:, None] * (b_v - tl.dot(kd, S_io))
        u = _solved(N.to(tl.float16), u).to(IO)
        tl.store(o + at_v, tl.dot(A, u, tl.dot(qd, S_io)), mask=mask_v)
        S = tl.dot(tl.trans((kg * last[None, :]).to(IO)), u, S * last[:, None])
    S_end += (b * H + h) * K * V
    tl.store(S_end + i_k[:, None] * V + i_v[None, :], S, mask=in_k[:, None] & in_v[None, :])


@triton.jit
def delta_scan_gradient(
    W, Q, Kend, A, decay, d_o, d_u, d_S, B, T, H, K, V,
    IO: tl.constexpr, C: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    parts = tl.cdiv(V, BLOCK_V)
    part = pid % parts
    bh = (pid // parts).to(tl.int64)
    chunks = tl.cdiv(T, C)
    row, i_k = tl.arange(0, C), tl.arange(0, BLOCK_K)
    i_v = part * BLOCK_V + tl.arange(0, BLOCK_V)
    in_k, in_v = i_k < K, i_v < V
    dS = tl.zeros([BLOCK_K, BLOCK_V], dtype=tl.float32)
    for turn in tl.range(0, chunks, num_stages=2):
        chunk = bh * chunks + chunks - 1 - turn
        at_s = chunk * K * V + i_k[:, None] * V + i_v[None, :]
        tl.store(d_S + at_s, dS, mask=in_k[:, None] & in_v[None, :])
        at_v = chunk * C * V + row[:, None] * V + i_v[None, :]
        at_k = chunk * C * K + row[:, None] * K + i_k[None, :]
        b_do = tl.load(d_o + at_v, mask=in_v[None, :], other=0)
        b_A = tl.load(A + chunk * C * C + row[:, None] * C + row[None, :])
        b_K = tl.load(Kend + at_k, mask=in_k[None, :], other=0)
        du = tl.dot(b_K, dS.to(IO), tl.dot(tl.trans(b_A), b_do))
        tl.store(d_u + at_v, du, mask=in_v[None, :])
        b_W = tl.load(W + at_k, mask=in_k[None, :], other=0)
        b_Q = tl.load(Q + at_k, mask=in_k[None, :], other=0)
        b_decay = tl.load(decay + chunk * K + i_k, mask=in_k, other=0)
        dS = tl.dot(tl.trans(b_Q), b_do, dS * b_decay[:, None])
        dS -= tl.dot(tl.trans(b_W), du.to(IO))
