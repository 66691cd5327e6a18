"""What the plan says of values that no kernel makes."""

from __future__ import annotations

from archc.show import region_listing
from tests.elaborate.specs import layer

TEXT = """layer Alone(H, N, R, V, K = N + R, d = H * V):
    input a[H, N], r[H, R], v[H, V]
    k = join[N, R as K](a, r)
    attend s < t over H:
        u[V] = v - tanh(k[t].T @ k[s]) @ u[s]
    output y[d] = merge[H, V as d](u)
"""


def test_who_does_packed_sequences_is_told() -> None:
    """A layer with an attention takes them one by one, by the kernels of batches."""
    text = "layer Conv(K):\n    input x[K]\n    param c[K, 3]\n    output y[K] = "
    alone = region_listing.as_text(layer(text + "silu(shortconv(x, c)) * x"))
    told = "looks 2 tokens back, packed sequences by the same kernels;"
    assert told in alone
    beside = "silu(shortconv(x, c)) * x\n    output z[K] = mean[t](x)"
    assert "tokens back; " in region_listing.as_text(layer(text + beside))


def test_what_stands_between_kernels_is_told() -> None:
    assert region_listing.as_text(layer(TEXT)).splitlines() == [
        "Alone: in PyTorch",
        "  k: PyTorch moves 2*H*K + 2*H*N + 2*H*R bytes a token in 16 bits, 1.0 times its own, "
        "which no kernel is worth",
        "  u: a triangular system along the tokens, which torch solves",
        "  y: a dim counted otherwise, a view where memory allows it",
    ]


def test_passes_that_stay_are_told_with_their_bytes() -> None:
    """A bias is read, and its sum written: 2 bytes of each number, for each token."""
    text = "layer Biased(d, H, K):\n    input x[d]\n    param W[d, H, K]; b[H, K]\n"
    told = region_listing.as_text(layer(text + "    output y[H, K] = x @ W + b"))
    assert "y: PyTorch moves 4*H*K bytes a token in 16 bits, 1.0 times its own" in told
