"""Seven kernels written by hand in the language of tile programs: its examples, and its proof.

Each function writes one program. What it computes is in its docstring; float64 references stand in
`references.py`, and the same kernels as a person writes them in Triton in `by_hand.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import sympy

from archc.tile.compose import Composer, Tile, ceil_div, real
from archc.tile.language import Buffer, Dim, Program

NEVER = float("-inf")


def gated_rmsnorm() -> Program:
    """y = x / sqrt(mean(x^2) + eps) * gain * silu(g) for rows x, g [D]."""
    k = Composer("gated_rmsnorm", "y = rmsnorm(x) gain silu(g), a block of rows a program.")
    k.dtypes("IO")
    rows, D = k.sizes("R", "D")
    BLOCK_R, BLOCK_D = k.lengths("BLOCK_R", "BLOCK_D")
    x, g, y = (k.buffer(name, r=rows, d=D, dtype="IO") for name in ("x", "g", "y"))
    gain = k.buffer("gain", d=D)
    (eps,) = k.reals("EPS")
    r = (k.program("block", ceil_div(rows, BLOCK_R)) * BLOCK_R + k.iota("r", BLOCK_R)).named("r")
    d = k.iota("d", BLOCK_D)
    inside = ((r < rows).named("in_r"), (d < D).named("in_d"))
    b_x, b_g = (k.load(each, r, d, where=inside) for each in (x, g))
    mean = (b_x * b_x).sum("d") / k.lift(D).to("f32")
    scale = k.apply("rsqrt", mean + eps).named("scale", "1 / sqrt(mean(x^2) + eps)")
    gate = (b_g * k.apply("sigmoid", b_g)).named("gate", "silu(g)")
    made = (b_x * scale * k.load(gain, d, where=inside[1:]) * gate).named("b_y")
    k.store(y, r, d, value=made, where=inside)
    return k.done()


def gated_rmsnorm_gradient() -> Program:
    """dx, dg of the same, and for each program its share of dgain: partial sums in a fixed order,
    so that the whole is deterministic."""
    k = Composer("gated_rmsnorm_gradient", "dx, dg and a share of dgain, many blocks a program.")
    k.dtypes("IO")
    rows, D, each = k.sizes("R", "D", "BLOCKS")
    BLOCK_R, BLOCK_D = k.lengths("BLOCK_R", "BLOCK_D")
    names = ("x", "g", "dy", "dx", "dg")
    x, g, dy, dx, dg = (k.buffer(name, r=rows, d=D, dtype="IO") for name in names)
    gain, (eps,) = k.buffer("gain", d=D), k.reals("EPS")
    programs = ceil_div(rows, BLOCK_R * each)
    dgain = k.buffer("dgain", p=programs, d=D)
    p, d = k.program("p", programs), k.iota("d", BLOCK_D)
    in_d = (d < D).named("in_d")
    b_gain = k.load(gain, d, where=[in_d]).named("b_gain")
    size = k.lift(D).to("f32").named("size")
    nothing = k.full(0.0, Dim("d", BLOCK_D)).named("d_gain")
    with k.loop(0, each, nothing, index="n") as turn:
        r = ((p * each + turn.index) * BLOCK_R + k.iota("r", BLOCK_R)).named("r")
        inside = ((r < rows).named("in_r"), in_d)
        b_x, b_g, b_dy = (k.load(buffer, r, d, where=inside) for buffer in (x, g, dy))
        scale = k.apply("rsqrt", (b_x * b_x).sum("d") / size + eps).named("scale")
        unit = (b_x * scale).named("unit", "x / sqrt(mean(x^2) + eps)")
        half = k.apply("sigmoid", b_g).named("half")
        gate = (b_g * half).named("gate", "silu(g)")
        d_norm = (b_dy * gate).named("d_norm")
        d_unit = (d_norm * b_gain).named("d_unit")
        along = ((d_unit * unit).sum("d") / size).named("along")
        k.store(dx, r, d, value=(d_unit - unit * along) * scale, where=inside)
        slope = (half * (1.0 + b_g * (1.0 - half))).named("slope", "silu'(g)")
        k.store(dg, r, d, value=b_dy * unit * b_gain * slope, where=inside)
        (summed,) = turn.carried
        turn.next(summed + (d_norm * unit).sum("r"))
    k.store(dgain, p, d, value=turn.results[0], where=[in_d])
    return k.done()


WIDTH = 4


@dataclass(frozen=True)
class Convolved:
    """A short convolution that is being written: its tensors, and where a program stands."""

    k: Composer
    x: Buffer
    places: tuple[Tile, Tile, Tile]
    first: Tile
    taps: tuple[Tile, ...]
    in_k: Tile
    T: sympy.Expr
    BLOCK_T: sympy.Expr

    def tokens(self, shift: int) -> tuple[Tile, tuple[Tile, ...]]:
        """The tokens of the block, some tokens later, and which of them there are."""
        t = self.first + shift + self.k.iota("t", self.BLOCK_T)
        return t, (*((t >= 0,) if shift < 0 else ()), t < self.T, self.in_k)

    def at(self, buffer: Buffer, shift: int) -> Tile:
        """A buffer at those tokens, 0 where there is none."""
        (b, h, i), (t, inside) = self.places, self.tokens(shift)
        return self.k.load(buffer, b, t, h, i, where=inside)

    def unit(self, shift: int, past: dict[int, Tile]) -> tuple[Tile, Tile, Tile]:
        """u, s / |s| and 1 / |s| some tokens later, with s = silu(u)."""
        terms = [self.taps[w] * past[shift - w] for w in range(WIDTH)]
        u = sum(terms[1:], terms[0]).named("u", "conv(x, c)")
        s = (u * self.k.apply("sigmoid", u)).named("s", "silu(u)")
        r = self.k.apply("rsqrt", (s * s).sum("k") + 1e-6).named("r", "1 / |s|")
        return u, (s * r).named("y"), r


def _convolution(k: Composer, *names: str) -> tuple[Convolved, list[Buffer], Buffer]:
    """What both kernels of a short convolution begin with, and their tensors x, ... and c."""
    k.dtypes("IO")
    B, T, H, K = k.sizes("B", "T", "H", "K")
    BLOCK_T, BLOCK_K = k.lengths("BLOCK_T", "BLOCK_K")
    tensors = [k.buffer(name, b=B, t=T, h=H, k=K, dtype="IO") for name in names]
    c = k.buffer("c", w=WIDTH, h=H, k=K)
    b, block = k.program("b", B), k.program("block", ceil_div(T, BLOCK_T))
    h, i = k.program("h", H), k.iota("k", BLOCK_K)
    in_k = (i < K).named("in_k")
    taps = tuple(k.load(c, w, h, i, where=[in_k]).named(f"c_{w}") for w in range(WIDTH))
    first = (block * BLOCK_T).named("first")
    return Convolved(k, tensors[0], (b, h, i), first, taps, in_k, T, BLOCK_T), tensors, c


def short_convolution() -> Program:
    """y = l2norm(silu(u)), u[t] = sum over w of c[w] x[t - w], for a head of K channels."""
    k = Composer("short_convolution", "y = l2norm(silu(conv(x, c))), a block of tokens of a head.")
    conv, (x, y), _ = _convolution(k, "x", "y")
    past = {-w: conv.at(x, -w) for w in range(WIDTH)}
    (b, h, i), (t, inside) = conv.places, conv.tokens(0)
    k.store(y, b, t, h, i, value=conv.unit(0, past)[1], where=inside)
    return k.done()


def short_convolution_gradient() -> Program:
    """dx of the same, and each program's share of dc. u is made again at every token that reads a
    token of the block: dx[t] = sum over w of c[w] du[t + w]."""
    k = Composer("short_convolution_gradient", "dx and a share of dc, a block of tokens of a head.")
    conv, (x, dy, dx), c = _convolution(k, "x", "dy", "dx")
    dc = k.buffer("dc", b=k.grid[0][1], n=k.grid[1][1], w=WIDTH, h=c.axes[1][1], k=c.axes[2][1])
    (b, h, i), block = conv.places, conv.first // conv.BLOCK_T
    past = {shift: conv.at(x, shift) for shift in range(1 - WIDTH, WIDTH)}
    shares = []
    for w in range(WIDTH):
        u, y, r = conv.unit(w, past)
        b_dy = conv.at(dy, w).named("b_dy")
        ds = (r * (b_dy - y * (b_dy * y).sum("k"))).named("ds")
        half = k.apply("sigmoid", u)
        du = (ds * half * (1.0 + u * (1.0 - half))).named("du", "silu'(u) ds")
        shares.append(conv.taps[w] * du)
        if w == 0:
            for v in range(WIDTH):
                k.store(dc, b, block, v, h, i, value=(du * past[-v]).sum("t"), where=[conv.in_k])
    t, inside = conv.tokens(0)
    k.store(dx, b, t, h, i, value=sum(shares[1:], shares[0]), where=inside)
    return k.done()


def capped_attention() -> Program:
    """o = softmax(cap tanh(q k / (cap sqrt(K)))) v, causal: an online softmax over blocks of keys,
    and the log of the sum for a gradient. Blocks that every reader sees whole need no mask."""
    k = Composer("capped_attention", "A block of readers walks the keys before them.", 8, 3)
    (IO,) = k.dtypes("IO")
    B, T, H, K = k.sizes("B", "T", "H", "K")
    k.reals("SCALE", "CAP")
    BLOCK_T, BLOCK_S, BLOCK_K = k.lengths("BLOCK_T", "BLOCK_S", "BLOCK_K")
    q, key, v, o = (k.buffer(n, b=B, t=T, h=H, k=K, dtype="IO") for n in ("q", "k", "v", "o"))
    lse = k.buffer("lse", b=B, h=H, t=T)
    b, h = k.program("b", B), k.program("h", H)
    late = ceil_div(T, BLOCK_T) - 1 - k.program("block", ceil_div(T, BLOCK_T))
    first = (late.named("late", "the longest rows first") * BLOCK_T).named("first")
    i, t = k.iota("k", BLOCK_K), (first + k.iota("t", BLOCK_T)).named("t")
    in_t, in_k = (t < T).named("in_t"), (i < K).named("in_k")
    b_q = k.load(q, b, t, h, i, where=(in_t, in_k), wide=False)
    rows, columns = Dim("t", BLOCK_T), Dim("v", BLOCK_K)
    start = (k.full(NEVER, rows), k.full(0.0, rows), k.full(0.0, rows, columns))
    carried = [each.named(n) for each, n in zip(start, ("m", "total", "acc"), strict=True)]
    whole = first // BLOCK_S
    for low, high, seen in ((0, whole, None), (whole, whole + BLOCK_T // BLOCK_S, t)):
        with k.loop(low, high, *carried) as turn:
            s = ((turn.index * BLOCK_S).named("early") + k.iota("s", BLOCK_S)).named("s")
            in_s = (s < T).named("in_s")
            b_k, b_v = (
                k.load(each, b, s, h, i, where=(in_s, in_k), wide=False) for each in (key, v)
            )
            visible = None if seen is None else (seen >= s) & in_s
            turn.next(*_softmax(k, b_q.dot(b_k), b_v.along(k="v"), visible, turn.carried, IO))
        carried = [*turn.results]
    m, total, acc = carried
    k.store(o, b, t, h, i.along(k="v"), value=acc / total, where=(in_t, in_k.along(k="v")))
    k.store(lse, b, h, t, value=m + k.apply("log", total), where=[in_t])
    return k.done()


def _softmax(
    k: Composer, product: Tile, v: Tile, visible: Tile | None, carried: tuple[Tile, ...], IO: str
) -> tuple[Tile, ...]:
    """The largest score so far, the sum of weights, and the sum of weighted values, with a block of
    keys more."""
    (m, total, acc), SCALE, CAP = carried, real("SCALE"), real("CAP")
    bent = k.apply("tanh", product * (k.lift(SCALE) / CAP))
    score = (k.lift(CAP) * bent).named("score", "cap tanh(q k / cap)")
    if visible is not None:
        score = k.where(visible, score, NEVER)
    m_next = k.apply("max", m, score.max("s")).named("m_next")
    p = k.apply("exp", score - m_next).named("p")
    decay = k.apply("exp", m - m_next).named("decay")
    return m_next, total * decay + p.sum("s"), p.to(IO).dot(v, acc * decay)


LATEST = 1 << 30
"""Places are below this."""


def top_indices() -> Program:
    """The places of the N largest of a row of scores, from the largest on; of equal ones the first.

    A score and its place are one integer that sorts as the score does, and earlier places first.
    The best N so far stand in rising order, those of a block in falling order: the larger of each
    pair are the best N of both."""
    k = Composer("top_indices", "The places of the largest scores of a row, block by block.", 4, 2)
    R, S = k.sizes("R", "S")
    N, BLOCK_S = k.lengths("N", "BLOCK_S")
    scores, found = k.buffer("scores", r=R, s=S), k.buffer("found", r=R, n=N, dtype="i32")
    r, places = k.program("r", R), Dim("n", N)
    with k.loop(0, ceil_div(S, BLOCK_S), k.full(-1, places, dtype="i64").named("best")) as turn:
        s = (turn.index * BLOCK_S + k.iota("s", BLOCK_S)).named("s")
        in_s = (s < S).named("in_s")
        score = k.load(scores, r, s, where=[in_s], fill=NEVER) + 0.0  # -0.0 is 0.0
        bits = score.to("i32", bits=True).to("i64").named("bits")
        rank = k.where(bits < 0, -1 - bits, bits + (1 << 31)).named("rank", "sorts as the score")
        keyed = k.where(in_s, rank * LATEST + (LATEST - 1 - s.to("i64")), -1).named("keyed")
        block = keyed.sort(most=places).along(s="n")
        (best,) = turn.carried
        turn.next(k.apply("max", best, block).sort())
    (best,) = turn.results
    back = k.lift(N - 1) - k.iota("n", N)
    place = (LATEST - 1 - best % LATEST).named("place")
    k.store(found, r, back, value=place.to("i32"))
    return k.done()


def cell() -> Program:
    """An LSTM's tokens on the whole GPU: each program has BLOCK_D of the D channels of all four
    gates, h[t] goes through memory, and a barrier ends a token. `a` are the gates' inputs, in the
    order input, forget, candidate, output."""
    k = Composer("cell", "h, c of every token; programs share h through memory, token by token.", 4)
    k.dtypes("IO")
    T, B, D = k.sizes("T", "B", "D")
    BLOCK_B, BLOCK_D, PART = k.lengths("BLOCK_B", "BLOCK_D", "PART")
    a = k.buffer("a", t=T, gate=4, b=B, d=D, dtype="IO")
    W = k.buffer("W", gate=4, e=D, d=D, dtype="IO")
    h = k.buffer("h", t=T + 1, b=B, d=D, dtype="IO", doc="h[0] is the start")
    counter = k.buffer("counter", one=1, dtype="i32")
    p = k.program("p", ceil_div(D, BLOCK_D))
    d = (p * BLOCK_D + k.iota("d", BLOCK_D)).named("d")
    b = k.iota("b", BLOCK_B)
    in_b, in_d = (b < B).named("in_b"), (d < D).named("in_d")
    rows, columns = Dim("b", BLOCK_B), Dim("d", BLOCK_D)
    with k.loop(0, T, k.full(0.0, rows, columns).named("c"), index="t") as turn:
        t = turn.index
        gates = [k.load(a, t, gate, b, d, where=(in_b, in_d)) for gate in range(4)]
        with k.loop(0, ceil_div(D, PART), *gates, index="n", ahead=3) as part:
            e = ((part.index * PART).named("first") + k.iota("e", PART)).named("e")
            in_e = (e < D).named("in_e")
            b_h = k.load(h, t, b, e, where=(in_b, in_e), wide=False)
            weights = [k.load(W, g, e, d, where=(in_e, in_d), wide=False) for g in range(4)]
            part.next(*(b_h.dot(w, add) for w, add in zip(weights, part.carried, strict=True)))
        i, f, z, o = part.results
        (c,) = turn.carried
        c = (k.apply("sigmoid", f) * c + k.apply("sigmoid", i) * k.apply("tanh", z)).named("c_next")
        made = (k.apply("sigmoid", o) * k.apply("tanh", c)).named("h_next", "sigmoid(o) tanh(c)")
        k.store(h, t + 1, b, d, value=made, where=(in_b, in_d))
        k.barrier(counter, t)
        turn.next(c)
    return k.done()


@dataclass(frozen=True)
class Chunk:
    """One chunk of a sweep that is being written: its operands in float32, and its tokens."""

    q: Tile
    k: Tile
    g: Tile
    v: Tile
    beta: Tile
    t: Tile
    in_t: Tile


def delta_sweep(blocks: bool = False) -> Program:
    """A delta rule with a decay a channel, all of it in one sweep along the sequence:

        S[t] = (I - beta k k') diag(alpha) S[t-1] + beta k v',   o = S[t]' q

    A program has one head and a block of V; `_chunk` says what becomes of a chunk. `blocks`: tiles
    are read by the copy engine."""
    k = Composer("delta_sweep", "Scores, solve, state and output of a chunk, chunk by chunk.", 4, 3)
    (IO,) = k.dtypes("IO")
    B, T, H, K, V = k.sizes("B", "T", "H", "K", "V")
    C, BLOCK_K, BLOCK_V = k.lengths("C", "BLOCK_K", "BLOCK_V")
    keyed = [k.buffer(n, b=B, t=T, h=H, k=K, dtype="IO") for n in ("q", "k", "log_alpha")]
    v, o = (k.buffer(n, b=B, t=T, h=H, v=V, dtype="IO") for n in ("v", "o"))
    beta, end = k.buffer("beta", b=B, t=T, h=H, dtype="IO"), k.buffer("S_end", b=B, h=H, k=K, v=V)
    b, h, part = k.program("b", B), k.program("h", H), k.program("v", ceil_div(V, BLOCK_V))
    i = k.iota("k", BLOCK_K)
    j = ((part * BLOCK_V).named("first_v") + k.iota("v", BLOCK_V)).named("i_part")
    in_k, in_v = (i < K).named("in_k"), (j < V).named("in_v")
    dims = {"t": Dim("t", C), "k": Dim("k", BLOCK_K), "v": Dim("v", BLOCK_V)}

    def read(first: Tile) -> Chunk:
        t = (first + k.iota("t", C)).named("t")
        in_t = (t < T).named("in_t")
        if blocks:
            rows, columns = {n: dims[n] for n in "tk"}, {n: dims[n] for n in "tv"}
            found = [k.load_block(each, b, first, h, 0, wide=True, **rows) for each in keyed]
            found.append(k.load_block(v, b, first, h, part * BLOCK_V, wide=True, **columns))
        else:
            found = [k.load(each, b, t, h, i, where=(in_t, in_k)) for each in keyed]
            found.append(k.load(v, b, t, h, j, where=(in_t, in_v)))
        return Chunk(*found, k.load(beta, b, t, h, where=[in_t]), t, in_t)

    start = k.full(0.0, dims["k"], dims["v"]).named("S")
    with k.loop(0, ceil_div(T, C), start, ahead=3) as turn:
        chunk = read((turn.index * C).named("first"))
        made, S = _chunk(k, chunk, turn.carried[0], IO)
        k.store(o, b, chunk.t, h, j, value=made, where=(chunk.in_t, in_v))
        turn.next(S)
    k.store(end, b, h, i, j, value=turn.results[0], where=(in_k, in_v))
    return k.done()


def _chunk(k: Composer, c: Chunk, S: Tile, IO: str) -> tuple[Tile, Tile]:
    """The output of a chunk and the state after it. With G the running sum of log alpha,
    q' = q exp(G), k' = k exp(G) and k" = k exp(-G):

        u = (I + beta tril(k' k", -1))^-1 beta (v - k' S),   o = q' S + tril(q' k") u
        S = exp(G_C) S + (k" exp(G_C))^T u

    exp(-G) stays finite as log alpha is at least -5 and a chunk has 16 tokens. The inverse is the
    product (I + N)(I + N^2)(I + N^4)(I + N^8), as N^16 is 0."""
    decay = k.apply("exp", c.g.scan("sum", "t").named("G")).named("decay")
    end_decay = k.apply("exp", c.g.sum("t")).named("end_decay", "exp(G_C)")
    q_decayed = (c.q * decay).to(IO).named("q_decayed")
    k_decayed = (c.k * decay).to(IO).named("k_decayed")
    k_grown = (c.k / decay).named("k_grown", "k exp(-G)")
    k_columns = k_grown.to(IO).along(t="s")
    (tokens,) = (dim for dim in c.k.dims if dim.name == "t")
    row, column = k.iota("t", tokens.length), k.iota("s", tokens.length)
    N = k.where(row > column, -(c.beta * k_decayed.dot(k_columns)), 0.0).named("N")
    A = k.where(row >= column, q_decayed.dot(k_columns), 0.0).named("scores")
    S_io = S.to(IO)
    right = (c.beta * (c.v - k_decayed.dot(S_io))).named("right")
    u = _neumann(N, right).named("u").to(IO).along(t="s")
    o = A.to(IO).dot(u, q_decayed.dot(S_io)).named("b_o", "q' S + tril(q' k\") u")
    k_end = (k_grown * end_decay).to(IO).along(t="s").named("k_end")
    return o, k_end.dot(u, S * end_decay).named("S_next")


def _neumann(N: Tile, right: Tile) -> Tile:
    """(I - N)^-1 right for a strictly lower N of 16 rows: right is multiplied by I + N^8, I + N^4,
    I + N^2 and I + N, in this order."""
    powers = [N]
    for _ in range(3):
        last = powers[-1].to("f16")
        powers.append(last.along(s="m").dot(last.along(t="m")).ordered("t", "s"))
    for power in reversed(powers):
        right = power.to("f16").dot(right.to("f16").along(t="s"), right)
    return right


def delta_scan_gradient() -> Program:
    """The gradient of the state, from the last chunk to the first, of

        u = U - W S,   o = Q S + A u,   S_next = diag(decay) S + K^T u

        d_u = A^T d_o + K d_S_next,   d_S = diag(decay) d_S_next + Q^T d_o - W^T d_u

    W, Q, K [C, K], A [C, C] and U [C, V] of a chunk stand in memory."""
    k = Composer("delta_scan_gradient", "d_u and d_S of every chunk, from the last on.", 4, 2)
    (IO,) = k.dtypes("IO")
    B, T, H, K, V = k.sizes("B", "T", "H", "K", "V")
    C, BLOCK_K, BLOCK_V = k.lengths("C", "BLOCK_K", "BLOCK_V")
    chunks = ceil_div(T, C)
    names = ("w_decayed", "q_decayed", "k_end")
    W, Q, Kend = (k.buffer(n, b=B, h=H, n=chunks, t=C, k=K, dtype="IO") for n in names)
    A = k.buffer("scores", b=B, h=H, n=chunks, t=C, s=C, dtype="IO")
    decay = k.buffer("chunk_decay", b=B, h=H, n=chunks, k=K)
    d_o = k.buffer("d_o", b=B, h=H, n=chunks, t=C, v=V, dtype="IO")
    d_u = k.buffer("d_u", b=B, h=H, n=chunks, t=C, v=V, dtype="IO")
    d_S = k.buffer("d_S", b=B, h=H, n=chunks, k=K, v=V, dtype="IO")
    b, h, part = k.program("b", B), k.program("h", H), k.program("v", ceil_div(V, BLOCK_V))
    i, t, s = k.iota("k", BLOCK_K), k.iota("t", C), k.iota("s", C)
    j = ((part * BLOCK_V).named("first_v") + k.iota("v", BLOCK_V)).named("i_part")
    in_k, in_v = (i < K).named("in_k"), (j < V).named("in_v")
    start = k.full(0.0, Dim("k", BLOCK_K), Dim("v", BLOCK_V)).named("dS")
    with k.loop(0, chunks, start, index="turn", ahead=2) as turn:
        n = (chunks - 1 - turn.index).named("n")
        (dS,) = turn.carried
        k.store(d_S, b, h, n, i, j, value=dS, where=(in_k, in_v))
        b_do = k.load(d_o, b, h, n, t, j, where=[in_v], wide=False)
        b_A = k.load(A, b, h, n, t, s, wide=False)
        b_K = k.load(Kend, b, h, n, t, i, where=[in_k], wide=False).along(t="s")
        d_u_made = b_A.dot(b_do).ordered("s", "v")
        d_u_made = b_K.dot(dS.to(IO), d_u_made).named("du", "A^T d_o + K d_S")
        k.store(d_u, b, h, n, t, j, value=d_u_made.along(s="t"), where=[in_v])
        b_W = k.load(W, b, h, n, t, i, where=[in_k], wide=False).along(t="s")
        b_Q = k.load(Q, b, h, n, t, i, where=[in_k], wide=False)
        b_decay = k.load(decay, b, h, n, i, where=[in_k])
        turn.next(b_Q.dot(b_do, dS * b_decay) - b_W.dot(d_u_made.to(IO)))
    return k.done()
