"""Outputs that need inputs which may be left out: their order, and what is kept of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import archc
import archc.hf

ORDER = """
layer Inner(d):
    input x[d]
    input s[d] optional
    param w[d]
    output b[d] = x * s
    output a[d] = w * x

layer Outer(d):
    input x[d]
    b, a = Inner(d)(x, x + 10)
    output p[d] = a
    output q[d] = b
"""
AHEAD = """
block Memory(d):
    input x[d]
    param a[d]; w[d, 2]
    mixed = shortconv(x, w)
    recurrence h[d]:
        h[t] = sigmoid(a) * h[t-1] + mixed
    output y[d] = x + h

model Ahead(vocab, d):
    input tokens in vocab
    input next in vocab optional
    input targets in vocab optional
    param E[vocab, d] = normal(0, 1); W[d, d']; g[d]
    x = Memory(d)(E[tokens])
    {}
    output later_loss = mean[batch, t](cross_entropy[vocab](y @ E.T, targets))
    output logits[vocab] = x @ E.T
"""
HEADS = {
    "a layer": "y = Memory(d)(x @ W + E[next] * g)",
    "a state": (
        "z = x @ W + E[next] * g\n    recurrence u[d]:\n        u[t] = 0.5 * u[t-1] + z\n    y = u"
    ),
    "a convolution": "y = shortconv(x @ W + E[next] * g, W)",
    "an attention": (
        "z = x @ W + E[next] * g\n    attend s <= t:\n"
        "        o = softmax(z[t].T @ z[s]) @ z[s]\n    y = o"
    ),
    "an attention to what is there": (
        "z = E[next] * g\n    k = x @ W\n    attend s <= t:\n"
        "        o = softmax(z[t].T @ k[s]) @ k[s]\n    y = o"
    ),
    "a stack": (
        "y = x @ W + E[next] * g\n    repeat 2 as l:\n        y = Memory(d)(y)"
    ),
}  # fmt: skip


def test_outputs_come_in_the_order_of_the_spec() -> None:
    outer = archc.parse(ORDER).module(d=3, dtype=torch.float64)
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    p, q = outer(x)
    torch.testing.assert_close(p, x * outer.inner.w)
    torch.testing.assert_close(q, x * (x + 10))
    inner = archc.parse(ORDER, layer="Inner").module(d=3, dtype=torch.float64)
    torch.testing.assert_close(inner(x), x * inner.w)
    b, a = inner(x, x + 1)
    torch.testing.assert_close(b, x * (x + 1))
    torch.testing.assert_close(a, x * inner.w)
    assert archc.parse(ORDER, layer="Inner").source("eager")  # its check passes


@pytest.mark.parametrize("head", HEADS)
def test_what_looks_along_tokens_that_may_be_left_out(head: str) -> None:
    """A head that predicts further tokens, in training; it is no part of what is continued."""
    text = AHEAD.format(HEADS[head])
    model = archc.parse(text).module(vocab=11, d=4, dtype=torch.float64)
    tokens, more = (
        torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(s)) for s in (0, 1)
    )
    loss, logits = model(tokens, more, more)
    alone = model(tokens)
    torch.testing.assert_close(alone, logits)
    assert loss.isfinite() and loss.dim() == 0
    first, state = model(tokens[:, :4], return_state=True)
    rest = model(tokens[:, 4:], state=state)
    torch.testing.assert_close(torch.cat([first, rest], 1), logits)
    with pytest.raises(ValueError, match="`later_loss`: made of all tokens so far"):
        model(tokens[:, 4:], more[:, 4:], more[:, 4:], state=state)
    loss.backward()
    assert archc.generate(model, tokens, 3, temperature=0).shape == (2, 12)


def test_the_number_of_a_head_is_that_of_its_layers() -> None:
    model = archc.parse(AHEAD.format(HEADS["a layer"])).module(vocab=11, d=4, dtype=torch.float64)
    tokens, more = (
        torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(s)) for s in (0, 1)
    )
    p = dict(model.named_parameters())

    def memory(x: Tensor, place: str) -> Tensor:
        w, h, rows = p[place + "w"], torch.zeros_like(x[:, 0]), list[Tensor]()
        before = torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1)
        mixed = before * w[:, 0] + x * w[:, 1]
        for t in range(x.shape[1]):
            h = p[place + "a"].sigmoid() * h + mixed[:, t]
            rows.append(h)
        return x + torch.stack(rows, 1)

    x = memory(p["E"][tokens], "memory.")
    y = memory(x @ p["W"] + p["E"][more] * p["g"], "memory_2.")
    expected = F.cross_entropy((y @ p["E"].T).mT, more)
    torch.testing.assert_close(model(tokens, more, more)[0], expected)


def test_losses_that_are_not_there() -> None:
    """Of a model with one loss in every call and one in some, by name."""
    text = AHEAD.format(HEADS["a layer"]) + "    output size_loss = mean[batch, t](sum[d](x * x))\n"
    model = archc.parse(text).module(vocab=11, d=4, dtype=torch.float64)
    tokens = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(0))
    later, _, size = every = model(tokens, tokens, tokens)
    torch.testing.assert_close(archc.auxiliary_loss(model, every), (later + size).float())
    torch.testing.assert_close(archc.auxiliary_loss(model, model(tokens)), size.float())
    made = archc.hf.wrap(model)(tokens)
    torch.testing.assert_close(made.aux_loss, size.float())
    torch.testing.assert_close(made.logits, model(tokens)[0])
    plain = archc.parse(AHEAD.format(HEADS["a layer"])).module(vocab=11, d=4)
    assert archc.auxiliary_loss(plain, plain(tokens)) is None
