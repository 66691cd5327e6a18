"""Recurrences whose composition law the spec gives, as texts: the tests of such laws share them."""

from __future__ import annotations

LOG_SPACE = """
layer Token(D):
    input a[D], b[D]
    output p[D] = a
    output q[D] = b

layer Merge(D):
    input p[D], q[D], p'[D], q'[D]
    output P[D] = p + p'
    output Q[D] = log(exp(q + p') + exp(q'))

layer Apply(D):
    input p[D], q[D], m[D]
    output after[D] = log(exp(m + p) + exp(q))

layer LogSpace(D):
    input a[D], b[D]
    chunk: law(Token, Merge, Apply)
    recurrence m[D]:
        m[t] = log(exp(m[t-1] + a) + exp(b))
    output m
"""

STABLE = """
layer Token(D):
    input a[D], b[D]
    output p[D] = a
    output q[D] = b

layer Merge(D):
    input p[D], q[D], p'[D], q'[D]
    top = max(q + p', q')
    output P[D] = p + p'
    output Q[D] = top + log(exp(q + p' - top) + exp(q' - top))

layer Apply(D):
    input p[D], q[D], m[D]
    top = max(m + p, q)
    output after[D] = top + log(exp(m + p - top) + exp(q - top))

layer LogSpace(D):
    input a[D], b[D]
    chunk: law(Token, Merge, Apply)
    recurrence m[D] = -inf:
        top = max(m[t-1] + a, b)
        m[t] = top + log(exp(m[t-1] + a - top) + exp(b - top))
    output m
"""

RECORD = """
layer Token(D):
    input r[D], x[D]
    output reset[D] = r
    output top[D] = x

layer Merge(D):
    input r[D], x[D], r'[D], x'[D]
    output reset[D] = max(r, r')
    output top[D] = where(r' > 0, x', max(x, x'))

layer Apply(D):
    input r[D], x[D], m[D]
    output new[D] = where(r > 0, x, max(m, x))

layer Record(D):
    input r[D], x[D]
    chunk: law(Token, Merge, Apply)
    recurrence m[D] = -inf:
        m[t] = where(r > 0, x, max(m[t-1], x))
    output m
"""

ROTATION = """
layer Token(H):
    input a[], b[], c[], d[]
    output A[] = a
    output B[] = b
    output C[] = c
    output T[] = d

layer Product(H):
    input a[], b[], c[], d[], a'[], b'[], c'[], d'[]
    output A[] = a' * a - b' * b - c' * c - d' * d
    output B[] = a' * b + b' * a + c' * d - d' * c
    output C[] = a' * c - b' * d + c' * a + d' * b
    output E[] = a' * d + b' * c - c' * b + d' * a

layer Turn(H):
    input a[], b[], c[], d[], p[], q[], r[], s[]
    output P[] = a * p - b * q - c * r - d * s
    output Q[] = a * q + b * p + c * s - d * r
    output R[] = a * r - b * s + c * p + d * q
    output S[] = a * s + b * r - c * q + d * p

layer Rotation(H):
    input a[H], b[H], c[H], d[H]
    chunk: law(Token(H), Product(H), apply = Turn(H))
    recurrence p[] = 1, q[], r[], s[] over H:
        p[t] = a * p[t-1] - b * q[t-1] - c * r[t-1] - d * s[t-1]
        q[t] = a * q[t-1] + b * p[t-1] + c * s[t-1] - d * r[t-1]
        r[t] = a * r[t-1] - b * s[t-1] + c * p[t-1] + d * q[t-1]
        s[t] = a * s[t-1] + b * r[t-1] - c * q[t-1] + d * p[t-1]
    output p; output q; output r; output s
"""

AFFINE = """
layer Token(K):
    input A[K, K'], b[K]
    output M[K, K'] = A
    output v[K] = b

layer Merge(I, J, L):
    input M[J, I], v[J], N[L, J], w[L]
    output P[L, I] = N @ M
    output q[L] = N @ v + w

layer Apply(I, J):
    input M[J, I], v[J], s[I]
    output new[J] = M @ s + v

layer Affine(H, K):
    input x[H, K, K'], b[H, K]
    chunk: law(Token, Merge, Apply)
    A = tanh(x)
    recurrence s[K] over H:
        s[t] = A @ s[t-1] + b
    output s
"""

PHASE = """
layer Token(D):
    input w[D]
    output p[D] = w

layer Merge(D):
    input p[D], p'[D]
    output q[D] = (p + p') % 1

layer Apply(D):
    input p[D], phase[D]
    output after[D] = (phase + p) % 1

layer Phase(D):
    input w[D]
    chunk: law(Token, Merge, Apply)
    recurrence phase[D]:
        phase[t] = (phase[t-1] + w) % 1
    output phase
"""

PRODUCTS = """
layer Token(D):
    input x[D]
    output p[D] = log(exp(x))

layer Merge(D):
    input p[D], p'[D]
    output q[D] = log(exp(p) * exp(p'))

layer Apply(D):
    input p[D], c[D]
    output after[D] = c * exp(p)

layer Largest(D):
    input r[D], x[D]
    output top[D] = x + 0 * r

layer Larger(D):
    input p[D], p'[D]
    output q[D] = max(p, p')

layer Reached(D):
    input p[D], m[D]
    output after[D] = max(p, m)

layer Beside(H, K, V, D):
    input q[H, K], k[H, K], v[H, V], x[D], f[H]
    chunk: law(Token, Merge, Apply), law(Largest, Larger, Reached)
    recurrence S[K, V] over H:
        S[t] = sigmoid(f) * S[t-1] + k @ v.T
        o = S[t].T @ q
    recurrence c[D] = 1, r[D], m[D], z[D]:
        c[t] = c[t-1] * exp(x)
        r[t] = 0.5 * r[t-1] + x
        m[t] = max(x + 0 * r[t], m[t-1])
        z[t] = tanh(c[t]) * z[t-1] + m[t]
    output o; output z; output c
"""

PROVED = {
    "log space": LOG_SPACE, "stabilised": STABLE, "record": RECORD, "rotation": ROTATION,
    "affine": AFFINE, "beside": PRODUCTS,
}  # fmt: skip
EVERY = {**PROVED, "phase": PHASE}
