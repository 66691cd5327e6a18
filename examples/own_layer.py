"""From the equations of a paper to a layer that trains, in one file.

The memory of this example is in no bundled spec: a delta rule, and beside it a second, slower
memory, both read at once. archc derives its chunked form and its gradient; here it is held against
the equations themselves, token by token, and then trained to repeat what it saw.

    python examples/own_layer.py
    python examples/own_layer.py --steps 20
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import archc

PAPER = '''
layer TwoSpeeds(d, H, K = d / H, V = d / H):
    """A delta rule, and beside it a memory that forgets slowly; what is read is the sum of both.
    source: written for this example"""
    input x[d]
    param W_q, W_k[d, H, K]; W_v[d, H, V]; W_o[H, V, d]; w_fast, w_slow, w_beta[d, H]

    q = l2norm[K](x @ W_q)
    k = l2norm[K](x @ W_k)
    v = x @ W_v
    fast = sigmoid(x @ w_fast)
    slow = sigmoid(x @ w_slow + 4)
    beta = sigmoid(x @ w_beta)

    recurrence A[K, V], B[K, V] over H:
        A[t] = fast * (I - beta * k @ k.T) @ A[t-1] + beta * k @ v.T
        B[t] = slow * B[t-1] + k @ v.T
        o    = A[t].T @ q + B[t].T @ q

    output y[d] = o @ W_o
'''


def by_hand(layer: nn.Module, x: Tensor) -> Tensor:
    """The same as the paper prints it: one token after the other."""
    q, k, v = (torch.einsum("btd,dhk->bthk", x, w) for w in (layer.W_q, layer.W_k, layer.W_v))
    fast, slow, beta = (x @ w for w in (layer.w_fast, layer.w_slow, layer.w_beta))
    q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
    fast, slow, beta = (each.sigmoid()[..., None, None] for each in (fast, slow + 4, beta))
    A = B = x.new_zeros(*k.shape[:1], *k.shape[2:], v.shape[-1])
    rows = []
    for t in range(x.shape[1]):
        key, value = k[:, t, :, :, None], v[:, t, :, None]
        forgotten = A - beta[:, t] * key @ (key.transpose(-1, -2) @ A)
        A = fast[:, t] * forgotten + beta[:, t] * key @ value
        B = slow[:, t] * B + key @ value
        rows.append((q[:, t, :, None] @ (A + B)).squeeze(-2))
    return torch.einsum("bthv,hvd->btd", torch.stack(rows, 1), layer.W_o)


class Repeats(nn.Module):
    """Tokens in, logits out: an embedding, the layer on a short past, a head."""

    def __init__(self, layer: nn.Module, words: int, d: int):
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, d), nn.Linear(d, words)
        self.mix, self.layer = nn.Conv1d(d, d, 2), layer

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, time] -> [batch, time, words]."""
        x = self.embedding(tokens)
        x = x + self.mix(F.pad(x.transpose(1, 2), (1, 0))).transpose(1, 2)
        return self.head(x + self.layer(x))


def train(model: nn.Module, steps: int, words: int) -> list[float]:
    """The losses of learning to say a drawn sequence again."""
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=3e-3), []
    for _ in range(steps):
        told = torch.rand(32, words).argsort(1)[:, :8]
        tokens = torch.cat([told, told], 1)
        logits = model(tokens[:, :-1])[:, 8:]
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 9:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Compile, hold against the equations, train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    torch.manual_seed(0)
    spec = archc.parse(PAPER)
    for found in spec.classify():
        print(f"found: {found}")
    exact = spec.module(d=16, H=2, dtype=torch.float64)
    x = torch.randn(2, 100, 16, dtype=torch.float64)
    away = (exact(x) - by_hand(exact, x)).abs().max().item()
    print(f"100 tokens, beside the equations: {away:.0e} away at most")
    model = Repeats(spec.module(d=64, H=2), words=32, d=64)
    losses = train(model, given.steps, words=32)
    print(f"loss of the repeated tokens: {losses[0]:.2f} at first, {losses[-1]:.2f} at the end")


if __name__ == "__main__":
    main()
