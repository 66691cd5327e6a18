"""Recurrences unlike any that is published: every form of each is the same."""

from __future__ import annotations

import pytest

import archc
from archc.compile import before_chunks
from archc.recurrence.chunk.loops import loops
from tests.few import but, few
from tests.recurrence.test_random import check_graphs, check_module, check_op, parsed
from tests.test_law import near, random_inputs

INVENTIONS = {
    # A running mean of keys is erased: the sum over it and a matrix is a read of the matrix.
    "a smoothed key that erases": """
layer Example(H, K, V):
    input q[H, K], k[H, K], u[H, K], v[H, V], b[H]
    be = sigmoid(b)
    uk = l2norm[K](k)
    recurrence z[K], S[K, V] over H:
        z[t] = sigmoid(u) * z[t-1] + (1 - sigmoid(u)) * uk
        S[t] = be * (I - 0.5 * uk @ z[t].T) @ S[t-1] + k @ v.T
        o = S[t].T @ q + S[t-1].T @ z[t-1]
    output o
""",
    # Running means of keys and values, which a covariance takes whole and the read sums along the
    # keys.
    "a covariance about running means": """
layer Example(H, K, V):
    input q[H, K], k[H, K], v[H, V], b[H]
    r = sigmoid(b)
    recurrence a[K], c[V], C[K, V] over H:
        d = k - a[t-1]
        a[t] = a[t-1] + r * d
        c[t] = c[t-1] + r * (v - c[t-1])
        C[t] = (1 - r) * C[t-1] + d @ (v - c[t]).T
        o = c[t] + C[t].T @ (q - a[t])
    output o
""",
    # A delta rule; a second one, transposed, learns what the first fails to recall. Its decay and
    # its correction lie on the other side of the matrix, and its query is a third vector.
    "a memory of errors": """
layer Example(H, K, V):
    input q[H, K], k[H, K], u[H, K], x[H, K], v[H, V], b[H]
    be = sigmoid(b)
    uk = l2norm[K](k)
    uu = l2norm[K](u)
    recurrence S[K, V], P[V, K] over H:
        S[t] = (I - be * uk @ uk.T) @ diag(sigmoid(x)) @ S[t-1] + be * uk @ v.T
        e = v - S[t-1].T @ uk
        P[t] = P[t-1] @ diag(1 - 0.5 * sigmoid(x)) @ (I - 1.5 * be * uu @ uu.T) + e @ uu.T
        o = S[t].T @ q + P[t] @ q - tanh(P[t-1] @ k)
    output o
""",
    # Two delta rules of each token read a matrix whose values fade before each of them, with a
    # write in between; another one is corrected along its values, while its keys fade.
    "values that fade": """
layer Example(H, K, V):
    input q[H, K], k[H, K], u[H, K], x[H, K], v[H, V], z[H, V], b[H]
    be = sigmoid(b)
    uk = l2norm[K](k)
    uu = l2norm[K](u)
    uz = l2norm[V](z)
    recurrence S[K, V], P[K, V] over H:
        D = diag(sigmoid(x)) @ S[t-1] @ diag(sigmoid(z))
        R = D - be * uk @ (uk.T @ D) + u @ z.T
        F = R @ diag(1 - 0.5 * sigmoid(v))
        S[t] = F - 0.5 * uu @ (uu.T @ F) + be * uk @ v.T
        P[t] = diag(sigmoid(x)) @ P[t-1] @ (I - be * uz @ uz.T) + k @ v.T
        o = S[t].T @ q + tanh(R.T @ k) + F.T @ u - D.T @ q + P[t].T @ q + S[t-1].T @ k
    output o
""",
    # A stabilised matrix with two gates of its own; what it reads, normalised, is a value, a gate
    # and a scalar for a second matrix with a decay per channel and for a leaky sum.
    "a stabilised memory before another": """
layer Example(H, K, V):
    input q[H, K], k[H, K], u[H, K], x[H, K], v[H, V], a[H], b[H]
    f = -softplus(a)
    g = -softplus(x)
    recurrence C[K, V], n[K], m[] = -inf, P[K, V], h[] over H:
        m[t] = max(f + m[t-1], b)
        i = exp(b - m[t])
        d = exp(f + m[t-1] - m[t])
        C[t] = d * C[t-1] + i * k @ v.T
        n[t] = d * n[t-1] + i * k
        r = C[t].T @ q / max(abs(n[t].T @ q), exp(-m[t]))
        P[t] = sigmoid(sum[V](r)) * (diag(exp(g)) @ P[t-1]) + u @ tanh(r).T
        h[t] = 0.5 * h[t-1] + sum[V](P[t].T @ u)
        o = P[t].T @ q + h[t] + r
    output o
""",
    # A diagonal minus a matrix of rank two, as two micro-steps with a write in between; what is
    # read before, in between and after is mixed, through a function too.
    "rank two and three reads": """
layer Example(H, K, V):
    input q[H, K], k[H, K], u[H, K], y[H, K], x[H, K], v[H, V], z[H, V], a[H], b[H]
    be = sigmoid(b)
    uk = l2norm[K](k)
    uu = l2norm[K](u)
    w = (1 - sigmoid(x)) * (1 - 0.5 * sigmoid(a))
    recurrence S[K, V] over H:
        R = diag(w) @ S[t-1] - be * uk @ ((w * uu).T @ S[t-1]) + u @ z.T
        S[t] = R - 0.5 * uu @ (uk.T @ R) + k @ v.T
        o = (S[t].T @ q) * sigmoid(z) + tanh(R.T @ y) - S[t-1].T @ (q - k)
    output o
""",
    # The state two steps back enters through a state that carries it: linearly coupled matrices.
    "a state two steps back": """
layer Example(H, K, V):
    input q[H, K], k[H, K], v[H, V], a[H]
    recurrence S[K, V], P[K, V] over H:
        P[t] = S[t-1]
        S[t] = 0.6 * sigmoid(a) * S[t-1] + 0.3 * P[t-1] + k @ v.T
        o = S[t].T @ q - P[t].T @ k
    output o
""",
    # Three matrices in a row: each has its own decay, and what is written to the first and the
    # last, by different numbers, is what the last two fail to recall.
    "a momentum of a momentum": """
layer Example(H, K, V):
    input q[H, K], k[H, K], u[H, K], v[H, V], a[H], b[H]
    f = sigmoid(a)
    uk = l2norm[K](k)
    recurrence S[K, V], P[K, V], M[K, V] over H:
        e = v - M[t-1].T @ uk - f * (P[t-1].T @ u)
        S[t] = 0.3 * b * S[t-1] + f * uk @ e.T
        P[t] = 0.5 * P[t-1] - S[t]
        M[t] = f * M[t-1] + b * P[t] + uk @ e.T
        o = M[t].T @ q - tanh(S[t-1].T @ u) + e
    output o
""",
    # The same for several keys of each token, whose errors are read, with what is written to the
    # second matrix differing by key.
    "a momentum of several keys": """
layer Example(H, K, V, R = 2):
    input q[H, K], k[H, R, K], u[H, K], v[H, R, V], z[H, V], a[H], b[H], c[H, R]
    uk = l2norm[K](k)
    g = sigmoid(c)
    recurrence S[K, V], M[K, V] over H:
        e = v - uk @ (M[t-1] + 0.3 * S[t-1])
        S[t] = tanh(a) * S[t-1] + uk.T @ diag(g) @ e + 0.1 * u @ (u.T @ M[t-1])
        M[t] = sigmoid(b) * M[t-1] + a * S[t] + uk.T @ e + u @ z.T
        o = M[t].T @ q - tanh(S[t-1].T @ u) + sum[R](g * e)
    output o
""",
    # What a memory with momentum was, as it is held, and before that.
    "what a momentum's memory was": """
layer Example(H, K, V):
    input q[H, K], k[H, K], v[H, V], a[H], e[H], c[H]
    uk = l2norm[K](k)
    begins = sigmoid(c)
    recurrence M[K, V], S[K, V], held[K, V], older[K, V] over H:
        S[t] = sigmoid(e) * S[t-1] - 0.5 * uk @ (M[t-1].T @ uk - v).T
        M[t] = sigmoid(a) * M[t-1] + S[t]
        held[t] = begins * M[t-1] + (1 - begins) * held[t-1]
        older[t] = begins * held[t-1] + (1 - begins) * older[t-1]
        o = held[t].T @ q - tanh(older[t].T @ q) + M[t].T @ k
    output o
""",
    # Sums of sums, of which the last alone is read.
    "a cascade of three": """
layer Example(H, K, V):
    input q[H, K], k[H, K], v[H, V], a[H], b[H], c[H]
    recurrence S[K, V], M[K, V], N[K, V] over H:
        S[t] = sigmoid(a) * S[t-1] + k @ v.T
        M[t] = tanh(b) * M[t-1] + S[t]
        N[t] = sigmoid(c) * N[t-1] - b * M[t]
        o = N[t].T @ q
    output o
""",
    # A number for each head that may be negative, beside a correction of several keys.
    "several keys and a sign": """
layer Example(H, K, V, R = 2):
    input q[H, K], k[H, R, K], v[H, R, V], a[H], b[H, R]
    uk = l2norm[K](k)
    recurrence S[K, V] over H:
        e = v - uk @ S[t-1]
        S[t] = tanh(a) * S[t-1] + uk.T @ diag(sigmoid(b)) @ e
        o = S[t].T @ q + sum[R](e)
    output o
""",
    # The same with a write to each, and reads of all: its gradient keeps more values than an op of
    # torch has arguments.
    "more values than an op takes": """
layer Example(H, K, V):
    input q[H, K], k[H, K], u[H, K], v[H, V], z[H, V], a[H], b[H]
    f = sigmoid(a)
    g = 0.3 * b
    uk = l2norm[K](k)
    recurrence S[K, V], P[K, V], M[K, V] over H:
        e = v - M[t-1].T @ uk - f * (P[t-1].T @ u)
        S[t] = g * S[t-1] + f * uk @ e.T
        P[t] = 0.5 * P[t-1] - S[t] + u @ z.T
        M[t] = f * M[t-1] + b * P[t] + 2 * uk @ e.T
        o = M[t].T @ q + b * (S[t-1].T @ u) - tanh(P[t].T @ k) + e
    output o
""",
    # A matrix that only adds up another one: it is never stored for each token.
    "a sum of what a memory was": """
layer Example(H, K, V):
    input q[H, K], k[H, K], v[H, V], a[H], b[H]
    recurrence S[K, V], M[K, V] over H:
        S[t] = sigmoid(a) * S[t-1] + k @ v.T
        M[t] = M[t-1] + b * S[t-1]
        o = M[t].T @ q - S[t].T @ k
    output o
""",
    # The same of a number: no dim is left beside the matrix that turns it.
    "a number two steps back": """
layer Example(H):
    input v[H], a[H]
    recurrence s[], p[] over H:
        p[t] = s[t-1]
        s[t] = 0.6 * sigmoid(a) * s[t-1] + 0.3 * p[t-1] + v
        o = s[t] * v - p[t]
    output o
""",
    # Parameters are read where the state is.
    "a memory that makes its keys": """
layer Example(H, K, V):
    input q[H, K], v[H, V], x[H, K]
    param W[H, K, K']; w[H, K]
    recurrence S[K, V] over H:
        k = W.T @ (x * w)
        S[t] = 0.9 * S[t-1] + k @ v.T
        o = S[t].T @ q
    output o
""",
    # Two matrices that each token turns into one another, channel by channel, are corrected
    # together; then each of two square ones by the other alone, with numbers that go in a circle.
    "matrices in a circle": """
layer Example(H, K, V):
    input q[H, K], k[H, K], u[H, K], x[H, K], v[H, V], z[H, V], a[H], b[H]
    be = sigmoid(b)
    uk = l2norm[K](k)
    f = exp(-softplus(x))
    c = f * cos(u)
    s = f * sin(u)
    recurrence S[K, V], P[K, V], M[K, K'], N[K, K'] over H:
        S1 = diag(c) @ S[t-1] + diag(s) @ P[t-1]
        P1 = diag(c) @ P[t-1] - diag(s) @ S[t-1]
        e = S1.T @ uk + 0.3 * P1.T @ q - v
        S[t] = S1 - 0.5 * be * uk @ e.T
        P[t] = P1 - 0.1 * q @ e.T + k @ z.T
        r = S[t].T @ q + P[t-1].T @ u
        w = tanh(x * (r.T @ z))
        M[t] = 0.8 * tanh(a) * M[t-1] + 0.3 * N[t-1] - 0.5 * uk @ (N[t-1].T @ uk - w).T
        N[t] = 0.4 * tanh(b) * M[t-1] + 0.7 * N[t-1] + q @ u.T
        o = ((M[t].T @ q + N[t-1].T @ k).T @ u) * v + r
    output o
""",
    # Corrected along the values and read along the keys, the values and both, before and after;
    # a decay for each value, and one that is a number.
    "corrections along the values": """
layer Example(H, K, V):
    input q[H, K], k[H, K], v[H, V], z[H, V], a[H], b[H]
    be = sigmoid(b)
    uv = l2norm[V](v)
    recurrence S[K, V], P[K, V] over H:
        S[t] = S[t-1] @ diag(sigmoid(z)) @ (I - be * uv @ uv.T) + k @ uv.T
        P[t] = sigmoid(a) * P[t-1] @ (I - be * uv @ uv.T) + q @ v.T
        p = S[t-1] @ v + P[t] @ z
        o = S[t].T @ q + P[t-1].T @ k + q.T @ tanh(p) + q.T @ P[t] @ v
    output o
""",
    # Corrections that read the state before one side of it decays, and after the other one does.
    "decays of both sides, of which a correction reads one": """
layer Example(H, K, V):
    input q[H, K], k[H, K], x[H, K], v[H, V], z[H, V], b[H]
    be = sigmoid(b)
    uk = l2norm[K](k)
    uv = l2norm[V](v)
    recurrence S[K, V], P[K, V] over H:
        R = S[t-1] @ diag(sigmoid(z))
        S[t] = diag(sigmoid(x)) @ R - be * uk @ (uk.T @ R - v.T)
        T = diag(sigmoid(x)) @ P[t-1]
        P[t] = (T @ (I - be * uv @ uv.T)) @ diag(sigmoid(z)) + q @ v.T
        o = S[t].T @ q + S[t-1].T @ k + P[t].T @ q
    output o
""",
    # No correction, read along either axis, with a decay for each entry of both.
    "a table read by rows and by columns": """
layer Example(H, K, V):
    input q[H, K], k[H, K], x[H, K], v[H, V], z[H, V], w[H, V]
    recurrence S[K, V] over H:
        S[t] = diag(sigmoid(x)) @ S[t-1] @ diag(sigmoid(z)) + k @ v.T
        o = S[t].T @ q + q.T @ tanh(S[t-1] @ w)
    output o
""",
    # Gates a channel that may be negative, of two steps a token, or exactly 0, of both sides, read
    # along both axes, before and after.
    "channels that change their sign": """
layer Example(H, K, V):
    input q[H, K], k[H, K], u[H, K], x[H, K], v[H, V], z[H, V], w[H, V], b[H]
    f = tanh(x) * sigmoid(b)
    uk = l2norm[K](k)
    recurrence S[K, V] over H:
        A = (I - sigmoid(b) * uk @ uk.T) @ diag(f) @ S[t-1] @ diag(tanh(z)) + u @ v.T
        S[t] = diag(min(max(u, 0), 1)) @ (A - uk @ (q.T @ A)) + k @ v.T
        o = S[t].T @ q + q.T @ tanh(S[t-1] @ w)
    output o
""",
    # Several dims of keys, and of values, that decay together.
    "decays along several dims": """
layer Example(H, K = 4, V = 3, R = 3, D = 3):
    input q[H, K], k[H, K], v[H, V], x[H, K], r[H, R], z[H, V], g[H, D], b[H]
    f = sigmoid(x) * sigmoid(r)
    p = softmax[R](r) * l2norm[K](k)
    w = sigmoid(z) * tanh(g)
    c = g * v
    recurrence S[R, K, D, V] over H:
        A = f * S[t-1] * w
        S[t] = A + sigmoid(b) * p * (c - sum[R, K](p * A))
        e = sum[D, V](z * S[t-1])
        o = sum[R, K](q * S[t]) + sum[R, K](f * e)
    output o
""",
    # The least squares solution for keys that another memory makes.
    # A running minimum, and the logarithm of a running sum.
    "over other semirings": """
layer Example(H, K):
    input a[H], b[H, K], q[H, K]
    recurrence n[K] = inf, r[K] = -inf over H:
        n[t] = min(n[t-1] + a, b)
        r[t] = log(exp(r[t-1] - softplus(a)) + exp(b))
        o    = tanh(n[t]) * q + sigmoid(r[t-1]) + r[t]
    output o
""",
    "a solve for keys that are read": """
layer Example(H, K):
    input q[H, K], k[H, K], v[H, K], a[H], b[H]
    recurrence S[K, K'], A[K, K'], G[K, K'] over H:
        S[t] = sigmoid(a) * S[t-1] + k @ v.T
        p = l2norm[K](S[t-1].T @ k + v)
        A[t] = sigmoid(b) * A[t-1] + sigmoid(a) * p @ p.T
        G[t] = sigmoid(b) * G[t-1] + sigmoid(a) * p @ v.T
        o = G[t].T @ solve(A[t] + diag(1 + q * q), q)
    output o
""",
}


LARGE = (
    "a momentum of several keys", "channels that change their sign", "corrections along the values",
    "matrices in a circle", "rank two and three reads", "values that fade",
    "what a momentum's memory was", "a solve for keys that are read",
)  # fmt: skip
"""Those of which each part is in a smaller one, or in a recurrence of a paper."""


@pytest.mark.default(
    "a cascade of three",
    "a sum of what a memory was",
    "over other semirings",
    "a table read by rows and by columns",
)
@pytest.mark.parametrize("name", but(INVENTIONS, LARGE))
def test_every_form(name: str) -> None:
    """By the oracle, in float64, for chunks of several lengths; nothing stays a loop. Then the
    emitted code: chunks, steps, both by turns, and packed sequences."""
    assert not loops(before_chunks(parsed(INVENTIONS[name]).layer))
    for tokens, chunk in ((9, 4), (5, 16), (1, 1), (0, 4)):
        check_graphs(INVENTIONS[name], tokens, chunk)
    check_module(INVENTIONS[name])
    check_op(INVENTIONS[name])


IN_PARTS = ("a memory of errors", "values that fade", "rank two and three reads",
            "matrices in a circle")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", few(IN_PARTS, ["a memory of errors"]))
def test_a_sequence_in_parts(name: str) -> None:
    """By the composition law."""
    spec = archc.parse(INVENTIONS[name])
    inputs = random_inputs(spec)
    *whole, state = spec.op(*inputs)
    *found, end = archc.law.split(spec.op, spec.law, inputs, 3, chunk=8)
    assert near([*whole, *state], [*found, *end])
