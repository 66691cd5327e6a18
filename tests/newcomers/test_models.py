"""Layers that call layers, as papers stack them, beside what their authors say, in torch."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import pad, rms_norm

from tests.newcomers.agreement import held
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


def test_a_convolution_whose_filter_each_token_makes() -> None:
    """As the authors' DynamicConv, with a softmax over the taps."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        filters = torch.einsum("btd,dhw->bthw", x, p["W_f"]).softmax(-1)
        v = pad(torch.einsum("btd,dhk->bhkt", x, p["W_v"]), (3, 0))
        v = v.unfold(-1, 4, 1)
        return torch.einsum("bthw,bhktw,hkd->btd", filters, v, p["W_o"])

    held("dynamic_convolution", reference, {"x": [2, 5, 6]}, d=6, H=2, K=3, W=4)
