"""Losses that a loop sums, of targets that may be left out: tokens are made without them."""

from __future__ import annotations

import torch

import archc

DEEP = """
block Mean(d):
    input x[d]
    param W[d, d']
    u = x @ W
    recurrence m[d]:
        m[t] = 0.5 * m[t-1] + u
    output m

block Told(d, vocab):
    input x[d]
    input targets in vocab
    param U[d, vocab]
    y = Mean(d)(x)
    output y
    output told[] = cross_entropy[vocab](y @ U, targets)

model Deep(vocab, d, L = 2):
    input tokens in vocab
    input targets in vocab optional
    param E[vocab, d]
    x = E[tokens]
    cost = 0 * sum[d](x)
    repeat L as l:
        param O[d, vocab]
        x = tanh(Mean(d)(x))
        cost = cost + cross_entropy[vocab](x @ O, targets)
        x, told = Told(d, vocab)(x, targets)
        cost = cost + told
    output logits[vocab] = x @ E.T
    output deep_loss = mean[batch, t](cost)
"""


def test_tokens_need_no_targets_of_losses_in_a_loop() -> None:
    """They were left out with the targets, and one at a time each forgot those before it."""
    model = archc.parse(DEEP).module(dtype=torch.float64, backend="eager", vocab=5, d=3)
    w = dict(model.named_parameters())
    tokens, targets = torch.randint(5, (2, 2, 4))
    x, cost = w["E"][tokens], torch.zeros((), dtype=torch.float64)

    def mean(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        made = [x[:, 0] @ matrix]
        for t in range(1, x.shape[1]):
            made.append(0.5 * made[-1] + x[:, t] @ matrix)
        return torch.stack(made, 1)

    for at in range(2):
        each, beside = f"layers.{at}.", f"layers_optional.{at}."
        x = torch.tanh(mean(x, w[f"{each}mean.W"]))
        cost = cost + torch.nn.functional.cross_entropy((x @ w[f"{beside}O"]).mT, targets)
        x = mean(x, w[f"{each}told.mean.W"])
        logits = x @ w[f"{beside}told_optional.U"]
        cost = cost + torch.nn.functional.cross_entropy(logits.mT, targets)
    expected = x @ w["E"].mT
    logits, loss = model(tokens, targets)
    torch.testing.assert_close((logits, loss), (expected, cost))
    torch.testing.assert_close(model(tokens), expected)
    state = None
    for t in range(4):
        made, state = model(tokens[:, t, None], state=state, return_state=True)
        torch.testing.assert_close(made[:, 0], expected[:, t])
