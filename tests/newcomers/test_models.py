"""Layers that call layers, as papers stack them, beside what their authors say, in torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad, rms_norm, silu

import archc
from tests.newcomers.agreement import HERE, held, leaf, slopes
from tests.newcomers.test_attentions import back, causal, heads

Values = Mapping[str, Tensor]


def test_values_of_the_first_layer_in_all_others() -> None:
    """The first layer has two outputs."""

    def reference(inputs: Values, p: Values) -> Tensor:
        y, first = inputs["x"], None
        for place in ("first.", "layers.0.later.", "layers.1.later."):
            h = rms_norm(y, (4,), eps=1e-6)
            q, k, v = (heads(h, p[place + name]) for name in ("W_q", "W_k", "W_v"))
            if first is not None:
                lam = p[place + "lam"]
                v = lam * first + (1 - lam) * v
            first = v if first is None else first
            y = y + back(causal(q @ k.mT / 3**0.5) @ v, p[place + "W_o"])
        return y

    held("value_residual", reference, {"x": [2, 5, 4]}, d=4, H=2, K=3)


def test_attention_over_depth() -> None:
    """What the last layer of a stack gives is read, and none in the stack is given it."""

    def reference(inputs: Values, p: Values) -> Tensor:
        y, past = inputs["x"], [inputs["x"]]
        for place in ("layers.0.", "layers.1.", "layers.2."):
            each = torch.stack(past, 2)
            share = (rms_norm(each, (4,), eps=1e-6) @ p[place + "w"]).softmax(-1)
            read = (share[..., None] * each).sum(2)
            past.append(silu(read @ p[place + "W_1"]) @ p[place + "W_2"])
            y = read + past[-1]
        return y

    held("depth_attention", reference, {"x": [2, 5, 4]}, d=4, e=3)


def test_a_convolution_whose_filter_each_token_makes() -> None:
    """As the authors' DynamicConv, with a softmax over the taps."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        filters = torch.einsum("btd,dhw->bthw", x, p["W_f"]).softmax(-1)
        v = pad(torch.einsum("btd,dhk->bhkt", x, p["W_v"]), (3, 0))
        v = v.unfold(-1, 4, 1)
        return torch.einsum("bthw,bhktw,hkd->btd", filters, v, p["W_o"])

    held("dynamic_convolution", reference, {"x": [2, 5, 6]}, d=6, H=2, K=3, W=4)


def test_layers_along_another_sequence() -> None:
    """One of them along both, with one set of weights; later calls need the other one no more."""

    def attended(x: Tensor, e: Tensor, p: Values, place: str) -> Tensor:
        return x + (x @ (e @ p[place + "W_k"]).mT).softmax(-1) @ (e @ p[place + "W_v"])

    def summed(x: Tensor, a: Tensor) -> Tensor:
        rows = [x[:, 0]]
        for t in range(1, x.shape[1]):
            rows.append(a.sigmoid() * rows[-1] + x[:, t])
        return torch.stack(rows, 1)

    spec = archc.load(str(HERE / "encoder_decoder.arch"))
    module = spec.module(d=4, dtype=torch.float64, backend="eager")
    p = dict(module.named_parameters())
    for seed, (_, value) in enumerate(sorted(p.items())):
        value.data = leaf(list(value.shape), 100 + seed).data / 2
    x, c = leaf([2, 5, 4], 0), leaf([2, 7, 4], 1)
    z = c * torch.arange(7, dtype=c.dtype).cos()[:, None]
    for place in ("layers.0.encoder.", "layers.1.encoder."):
        z = attended(z, z, p, place)
    e, expected = summed(z, p["memory_a"]), summed(x, p["memory_a"])
    for place in ("layers_2.0.decoder.", "layers_2.1.decoder."):
        expected = attended(expected, e, p, place)
    found, by = module(x, c), [x, c, *p.values()]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(slopes(found, by), slopes(expected, by))
    first, state = module(x[:, :3], c, return_state=True)
    rows = [first]
    for t in (3, 4):
        row, state = module(x[:, t : t + 1], state=state, return_state=True)
        rows.append(row)
    torch.testing.assert_close(torch.cat(rows, 1), expected)
    packed = module(x.flatten(0, 1)[None], c, cu_seqlens=torch.tensor([0, 5, 10]))
    torch.testing.assert_close(packed.unflatten(1, (2, 5))[0], expected)
