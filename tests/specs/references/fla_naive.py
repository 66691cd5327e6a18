"""The step-by-step functions of flash-linear-attention, all called one way.

Tensors are [B, T, H, D], decays are logarithms, queries enter unscaled; each returns the output and
the final state [B, H, K, V]. fla computes in float32.
"""

from __future__ import annotations

from fla.ops.delta_rule.naive import delta_rule_recurrence
from fla.ops.gated_delta_product.naive import naive_recurrent_gated_delta_product
from fla.ops.gated_delta_rule.naive import naive_recurrent_gated_delta_rule
from fla.ops.gla.naive import naive_recurrent_gla
from fla.ops.kda.naive import naive_recurrent_kda
from fla.ops.linear_attn.naive import naive_recurrent_linear_attn
from fla.ops.simple_gla.naive import naive_recurrent_simple_gla
from torch import Tensor


def kda(
    q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, S: Tensor
) -> tuple[Tensor, Tensor]:
    """log_alpha [B, T, H, K]; the output is scaled by 1/sqrt(K)."""
    return naive_recurrent_kda(q, k, v, log_alpha, beta, initial_state=S, output_final_state=True)


def gated_delta(
    q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, S: Tensor
) -> tuple[Tensor, Tensor]:
    """log_alpha [B, T, H]; the output is scaled by 1/sqrt(K)."""
    return naive_recurrent_gated_delta_rule(
        q, k, v, beta, log_alpha, initial_state=S, output_final_state=True
    )


def gated_delta_product(
    q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, beta: Tensor, S: Tensor
) -> tuple[Tensor, Tensor]:
    """k [B, T, n, H, K], v [B, T, n, H, V], beta [B, T, n, H]; the output times 1/sqrt(K)."""
    return naive_recurrent_gated_delta_product(
        q,
        k.flatten(1, 2),
        v.flatten(1, 2),
        log_alpha,
        beta.flatten(1, 2),
        scale=q.shape[-1] ** -0.5,
        initial_state=S.float(),
        output_final_state=True,
        num_householder=k.shape[2],
    )


def delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """beta [B, T, H]; the output is scaled by 1/sqrt(K)."""
    heads_first = (value.transpose(1, 2) for value in (q, k, v, beta))
    o, final = delta_rule_recurrence(*heads_first, initial_state=S)
    return o.transpose(1, 2), final


def gla(q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """log_alpha [B, T, H, K]; fla always scales by 1/sqrt(K), which is undone here."""
    return naive_recurrent_gla(
        q * q.shape[-1] ** 0.5, k, v, log_alpha, initial_state=S, output_final_state=True
    )


def retention(
    q: Tensor, k: Tensor, v: Tensor, log_alpha: Tensor, S: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """log_alpha [B, T, H]; the output is scaled by 1/sqrt(K)."""
    return naive_recurrent_simple_gla(q, k, v, log_alpha, initial_state=S)


def linear_attention(q: Tensor, k: Tensor, v: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Neither a feature map nor a normaliser."""
    return naive_recurrent_linear_attn(q, k, v, 1.0, S, output_final_state=True)


def normalised_linear_attention(
    q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """q and k have been through the feature map; the final state is S and z [B, 1, H, K]."""
    return naive_recurrent_linear_attn(q, k, v, 1.0, output_final_state=True, normalize=True)
