"""Attentions of papers that are in no bundle, beside what their authors' formulas say in torch."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import softplus

from tests.newcomers.agreement import held

Values = Mapping[str, Tensor]


def causal(scores: Tensor) -> Tensor:
    """Softmax of [..., T, T] over the past and the token itself."""
    ahead = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(ahead, -torch.inf).softmax(-1)


def rotated(x: Tensor, base: float) -> Tensor:
    """[B, T, H, R] turned by the token's position, the two halves as pairs."""
    half = x.shape[-1] // 2
    rates = base ** (-2 * torch.arange(half, dtype=x.dtype) / x.shape[-1])
    angle = (torch.arange(x.shape[1], dtype=x.dtype)[:, None] * rates)[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def test_a_fused_projection_and_a_rotation_of_part_of_a_head() -> None:
    """As transformers' GPTNeoXAttention computes it."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        z = torch.einsum("btd,dhc->bthc", x, p["W"]) + p["b"]
        q, k, v = z.chunk(3, -1)
        q = torch.cat([rotated(q[..., :2], 10000.0), q[..., 2:]], -1)
        k = torch.cat([rotated(k[..., :2], 10000.0), k[..., 2:]], -1)
        weights = causal(torch.einsum("bthk,bshk->bhts", q, k) / 5**0.5)
        o = torch.einsum("bhts,bshk->bthk", weights, v).flatten(2)
        return torch.nn.functional.linear(o, p["W_o"], p["b_o"])

    held("neox_attention", reference, {"x": [2, 5, 10]}, d=10, H=2, R=2, N=3)


def heads(x: Tensor, w: Tensor) -> Tensor:
    """[B, T, d] by [d, H, K], heads first."""
    return torch.einsum("btd,dhk->bhtk", x, w)


def back(o: Tensor, w: Tensor) -> Tensor:
    """[B, H, T, V] by [H, V, d]."""
    return torch.einsum("bhtv,hvd->btd", o, w)


def test_scores_by_content_and_by_distance() -> None:
    """Each token for itself, over the tokens of its window."""

    def reference(inputs: Values, p: Values) -> Tensor:
        q, k, v = (torch.einsum("btd,dhk->bthk", inputs["x"], p[f"W_{n}"]) for n in "qkv")
        r, rows = torch.einsum("wd,dhk->whk", p["R"], p["W_r"]), []
        for t in range(q.shape[1]):
            seen = torch.arange(max(0, t - 3), t + 1)
            content = torch.einsum("bhk,bshk->bhs", q[:, t] + p["u"], k[:, seen])
            distance = torch.einsum("bhk,shk->bhs", q[:, t] + p["b"], r[t - seen])
            weights = ((content + distance) / 3**0.5).softmax(-1)
            rows.append(torch.einsum("bhs,bshk->bhk", weights, v[:, seen]))
        return torch.einsum("bthk,hkd->btd", torch.stack(rows, 1), p["W_o"])

    held("relative_content", reference, {"x": [2, 6, 5]}, d=5, H=2, K=3, w=4)


def test_a_stick_that_is_broken_by_the_latest_tokens_first() -> None:
    """A value for each pair, summed between the token read and the reader."""

    def reference(inputs: Values, p: Values) -> Tensor:
        q, k, v = (heads(inputs["x"], p[name]) for name in ("W_q", "W_k", "W_v"))
        share, rows = (q @ k.mT / 3**0.5).sigmoid(), []
        for t in range(q.shape[2]):
            left, o = torch.ones_like(q[..., 0, :1]), torch.zeros_like(v[..., 0, :])
            for s in range(t - 1, -1, -1):
                o = o + left * share[..., t, s, None] * v[..., s, :]
                left = left * (1 - share[..., t, s, None])
            rows.append(o)
        return back(torch.stack(rows, 2), p["W_o"])

    held("stick_breaking", reference, {"x": [2, 5, 4]}, d=4, H=2, K=3)


def test_positions_that_gates_count() -> None:
    def reference(inputs: Values, p: Values) -> Tensor:
        q, k, v = (heads(inputs["x"], p[name]) for name in ("W_q", "W_k", "W_v"))
        score = q @ k.mT
        gates = score.sigmoid().tril()
        place = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=p["E"].shape[0] - 1)
        low = place.detach().floor().long()
        high = (low + 1).clamp(max=p["E"].shape[0] - 1)
        z = q @ p["E"].mT
        part = place - low
        bias = z.gather(-1, low) * (1 - part) + z.gather(-1, high) * part
        return back(causal(score / 3**0.5 + bias) @ v, p["W_o"])

    held("cope", reference, {"x": [2, 5, 4]}, d=4, H=2, K=3, P=3)


def test_a_decay_of_each_channel_between_two_tokens() -> None:
    """The sum over pairs is what the recurrence gives."""

    def reference(inputs: Values, p: Values) -> Tensor:
        q, k, v = (heads(inputs["x"], p[name]) for name in ("W_q", "W_k", "W_v"))
        g = heads(inputs["x"], p["W_g"]).sigmoid()
        state, rows = q.new_zeros(2, 2, 3, 2), []
        for t in range(q.shape[2]):
            state = g[:, :, t, :, None] * state + k[:, :, t, :, None] * v[:, :, t, None]
            rows.append(torch.einsum("bhk,bhkv->bhv", q[:, :, t], state))
        return back(torch.stack(rows, 2), p["W_o"])

    held("gla_pairs", reference, {"x": [2, 5, 4]}, d=4, H=2, K=3, V=2)


def test_a_softmax_of_scores_whose_channels_decay() -> None:
    """Keys that each token scales by its gates, before the next one is added to them."""

    def reference(inputs: Values, p: Values) -> Tensor:
        q, k, v = (heads(inputs["x"], p[name]) for name in ("W_q", "W_k", "W_v"))
        g, keys, rows = heads(inputs["x"], p["W_g"]).sigmoid(), k[:, :, :0], []
        for t in range(q.shape[2]):
            keys = torch.cat([keys * g[:, :, t, None], k[:, :, t, None]], 2)
            weights = (torch.einsum("bhk,bhsk->bhs", q[:, :, t], keys) / 3**0.5).softmax(-1)
            rows.append(torch.einsum("bhs,bhsv->bhv", weights, v[:, :, : t + 1]))
        return back(torch.stack(rows, 2), p["W_o"])

    held("channel_gates", reference, {"x": [2, 5, 4]}, d=4, H=2, K=3, V=2)


def test_values_that_are_corrected_by_earlier_ones() -> None:
    """A triangular system along the tokens."""

    def reference(inputs: Values, p: Values) -> Tensor:
        names = ("W_q", "W_k", "W_v", "W_w")
        q, k, v, w = (heads(inputs["x"], p[name]) for name in names)
        b = torch.einsum("btd,dh->bht", inputs["x"], p["W_b"]).sigmoid()
        score, values = w @ k.mT / 3**0.5, list[Tensor]()
        for t in range(q.shape[2]):
            u = v[:, :, t]
            if t:
                weight = score[:, :, t, :t].softmax(-1)
                read = torch.einsum("bhs,bhsk->bhk", weight, torch.stack(values, 2))
                u = u - b[:, :, t, None] * read
            values.append(u)
        return back(causal(q @ k.mT / 3**0.5) @ torch.stack(values, 2), p["W_o"])

    held("deltaformer", reference, {"x": [2, 5, 4]}, d=4, H=2, K=3)


def test_the_difference_of_two_attentions() -> None:
    def reference(inputs: Values, p: Values) -> Tensor:
        q, k, v = (heads(inputs["x"], p[name]) for name in ("W_q", "W_k", "W_v"))
        lam = (p["l_q1"] @ p["l_k1"]).exp() - (p["l_q2"] @ p["l_k2"]).exp() + 0.8
        one, two = (
            causal(a @ b.mT / 3**0.5) for a, b in zip(q.chunk(2, -1), k.chunk(2, -1), strict=True)
        )
        o = torch.nn.functional.rms_norm((one - lam * two) @ v, (2,), eps=1e-5)
        return back(0.2 * o, p["W_o"])

    held("diff_attention", reference, {"x": [2, 5, 4]}, d=4, H=2, K=3, V=2)


def test_attention_without_queries_and_keys() -> None:
    """Positions of a table are read by `left[t]` and `right[s]`."""

    def reference(inputs: Values, p: Values) -> Tensor:
        q, k, v = (inputs["x"] @ p[name] for name in ("W_q", "W_k", "W_v"))
        bias = (p["left"] @ p["right"].T)[:5, :5]
        score = k.exp()[:, None] * bias.exp()[..., None] * torch.ones(5, 5).tril()[..., None]
        o = (score * v[:, None]).sum(2) / score.sum(2)
        return (q.sigmoid() * o) @ p["W_o"]

    held("aft", reference, {"x": [2, 5, 4]}, d=4, D=3, length=6, r=2)


def distances(tokens: int, least: int) -> Tensor:
    """t - s of every pair of tokens, at least a number."""
    t = torch.arange(tokens, dtype=torch.float64)
    return (t[:, None] - t).clamp(min=least)


def test_a_bias_by_the_logarithm_of_the_distance() -> None:
    """It is no number for tokens ahead, which are not read: nor is a gradient made of it."""

    def reference(inputs: Values, p: Values) -> Tensor:
        q, k, v = (heads(inputs["x"], p[name]) for name in ("W_q", "W_k", "W_v"))
        rates = (softplus(p[name])[:, None, None] for name in ("r_1", "r_2"))
        scale, rate = rates
        bias = scale * (1 + rate * distances(5, 0)).log()
        return back(causal(q @ k.mT / 3**0.5 - bias) @ v, p["W_o"])

    held("kerple", reference, {"x": [2, 5, 4]}, d=4, H=2, K=3)


def test_weights_by_the_inverse_of_the_distance() -> None:
    """A token does not read itself, at a distance of 0."""

    def reference(inputs: Values, p: Values) -> Tensor:
        v, gap = heads(inputs["x"], p["W_v"]), distances(5, 1)
        score = p["c"][:, None, None] / gap - p["p"][:, None, None] * gap.log()
        weights = causal(score[:, 1:, :-1])
        o = torch.cat([torch.zeros_like(v[:, :, :1]), weights @ v[:, :, :-1]], 2)
        return back(o, p["W_o"])

    held("inverse_distance", reference, {"x": [2, 5, 4]}, d=4, H=2, K=3)


def test_distances_of_a_window_written_in_another_way() -> None:
    """No gradient is made of pairs outside of it, before or behind."""

    def reference(inputs: Values, p: Values) -> Tensor:
        v, gap = heads(inputs["x"], p["W_v"]), distances(6, 0)
        near = (3 - gap).clamp(min=1).log() * p["p"][:, None, None]
        score = near - p["c"][:, None, None] * (1 + gap).log()
        return back(causal(score.masked_fill(gap >= 3, -torch.inf)) @ v, p["W_o"])

    held("near_distance", reference, {"x": [2, 6, 4]}, d=4, H=2, K=3)


def test_a_sum_up_to_the_reader_has_its_own_distance() -> None:
    """No token reads itself, but the sum between has a distance of 0 in it."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"].transpose(1, 2)
        each = x.sum(-1)[:, :, None] * (2 + p["r"][:, None, None] ** 2 + distances(5, 0)).log()
        rows = []
        for t in range(5):
            sums = [each[:, :, t, s + 1 : t + 1].sum(-1) for s in range(t)]
            score = (x[:, :, t, None] * x[:, :, :t]).sum(-1)
            weights = (score - torch.stack(sums, -1)).sigmoid() if t else score
            rows.append((weights[..., None] * x[:, :, :t]).sum(2))
        return torch.stack(rows, 1)

    held("summed_distance", reference, {"x": [2, 5, 2, 3]}, H=2, K=3)


def test_a_softmax_with_one_more_in_its_denominator() -> None:
    """The sink is a number: the logarithm of the 1."""

    def reference(inputs: Values, p: Values) -> Tensor:
        q, k, v = (heads(inputs["x"], p[name]) for name in ("W_q", "W_k", "W_v"))
        weights = (q @ k.mT / 3**0.5).exp().tril()
        return back(weights / (1 + weights.sum(-1, keepdim=True)) @ v, p["W_o"])

    held("off_by_one", reference, {"x": [2, 5, 4]}, d=4, H=2, K=3)


def test_a_bias_for_each_bucket_of_distances() -> None:
    """As transformers' T5 computes it, for a decoder: what its `floor` of a logarithm counts is how
    many of the buckets' ends a distance has reached."""

    def reference(inputs: Values, p: Values) -> Tensor:
        q, k, v = (heads(inputs["x"], p[name]) for name in ("W_q", "W_k", "W_v"))
        gap = distances(24, 0)
        far = 4 + ((gap.clamp(min=1) / 4).log() / math.log(16 / 4) * 4).long()
        place = torch.where(gap < 4, gap.long(), far.clamp(max=7))
        return back(causal(q @ k.mT + p["E"][place].permute(2, 0, 1)) @ v, p["W_o"])

    held("buckets", reference, {"x": [1, 24, 4]}, d=4, H=2, K=3)


def test_keys_and_values_that_are_learned() -> None:
    """What the past leaves of a softmax is theirs."""

    def reference(inputs: Values, p: Values) -> Tensor:
        q, k, v = (heads(inputs["x"], p[name]) for name in ("W_q", "W_k", "W_v"))
        own, learned = p["M_v"].transpose(0, 1), torch.einsum("bhtk,nhk->bhtn", q, p["M_k"])
        ahead = torch.ones(5, 5, dtype=torch.bool).triu(1)
        score = (q @ k.mT).masked_fill(ahead, -torch.inf)
        weights = (torch.cat([learned, score], -1) / 3**0.5).softmax(-1)
        return back(weights[..., :3] @ own + weights[..., 3:] @ v, p["W_o"])

    held("persistent_memory", reference, {"x": [2, 5, 4]}, d=4, N=3, H=2, K=3)


def test_a_matrix_of_positions() -> None:
    """Read at two tokens, without any scores."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x, nn = inputs["x"], torch.nn.functional
        u, z = nn.gelu(nn.rms_norm(x, (4,), eps=1e-6) @ p["U"]).chunk(2, -1)
        mixed = p["W"][:5, :5].tril() @ nn.layer_norm(z, (3,)) + p["b"][:5, None]
        return x + (u * mixed) @ p["V"]

    held("spatial_gate", reference, {"x": [2, 5, 4]}, d=4, f=6, e=3, length=6)


def test_a_convolution_along_all_tokens() -> None:
    """Filters of distances alone: made for the last token, and moved."""

    def reference(inputs: Values, p: Values) -> Tensor:
        x = inputs["x"]
        q, k, v = (x @ p[name] for name in ("W_q", "W_k", "W_v"))
        back = torch.arange(x.shape[1], dtype=x.dtype)
        far = torch.sin(back[:, None] * p["w"] + p["b"]) @ p["W_f"]
        far = far * torch.exp(-torch.exp(p["a"]) * back[:, None])
        table = p["E"][back.long().clamp(max=3)]
        weights = far + table + torch.where(back[:, None] < 4, table, 0)
        u = k * v
        rows = [
            sum(weights[t - s] * u[:, s] for s in range(t + 1)) + p["D"] * u[:, t]
            for t in range(x.shape[1])
        ]
        return q * torch.stack(rows, 1)

    held("long_convolution", reference, {"x": [2, 7, 4]}, d=4, F=3)


def test_scores_that_are_convolved() -> None:
    """Scores of readers and of tokens read that are none count as 0."""

    def reference(inputs: Values, p: Values) -> Tensor:
        q, k, v = (heads(inputs["x"], p[name]) for name in ("W_q", "W_k", "W_v"))
        score = (torch.einsum("bhtk,bhsk->bhts", q, k) / 3**0.5).tril()
        tokens = score.shape[-1]
        weighed = sum(
            p["theta"][:, i, j, None, None]
            * torch.nn.functional.pad(score, (1 - j, 0, 2 - i, 0))[..., :tokens, :tokens]
            for i in range(3)
            for j in range(2)
        )
        assert isinstance(weighed, Tensor)
        return back(causal(weighed) @ v, p["W_o"])

    held("multi_token", reference, {"x": [2, 6, 4]}, d=4, H=2, K=3)
