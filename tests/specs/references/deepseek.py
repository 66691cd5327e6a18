"""transformers' DeepSeek-V3 attention, with weights named as in `MLA`."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3RotaryEmbedding,
)

from tests.specs.references.weights import into, out_of, randomise


def attention(
    d: int, H: int, K: int, R: int, V: int, C: int, Q: int, base: float, seed: int
) -> DeepseekV3Attention:
    """A small attention layer in float64; Q = 0 is a query without compression."""
    config = DeepseekV3Config(
        hidden_size=d,
        num_attention_heads=H,
        num_key_value_heads=H,
        qk_nope_head_dim=K,
        qk_rope_head_dim=R,
        v_head_dim=V,
        kv_lora_rank=C,
        q_lora_rank=Q or None,
        rope_parameters={"rope_type": "default", "rope_theta": base},
        rope_interleave=True,
        attn_implementation="sdpa",
    )
    return randomise(DeepseekV3Attention(config, layer_idx=0).double(), seed)


def output(layer: DeepseekV3Attention, x: Tensor) -> Tensor:
    """[B, T, d] to [B, T, d]."""
    rotation = DeepseekV3RotaryEmbedding(layer.config)(x, torch.arange(x.shape[1])[None])
    with torch.no_grad():
        return layer(x, position_embeddings=rotation, attention_mask=None)[0]


def weights(layer: DeepseekV3Attention) -> dict[str, Tensor]:
    """Parameters of `MLA`: its reference keeps several of them in one matrix."""
    H, K, R, V = layer.num_heads, layer.qk_nope_head_dim, layer.qk_rope_head_dim, layer.v_head_dim
    C = layer.kv_lora_rank
    down = into(layer.kv_a_proj_with_mqa, C + R)
    up = into(layer.kv_b_proj, H, K + V)
    named = {
        "W_DKV": down[:, :C],
        "W_KR": down[:, C:],
        "g_kv": layer.kv_a_layernorm.weight,
        "W_UK": up[..., :K],
        "W_UV": up[..., K:],
        "W_O": out_of(layer.o_proj, H, V),
    }
    if layer.q_lora_rank is None:
        query = into(layer.q_proj, H, K + R)
        return named | {"W_Q": query[..., :K], "W_R": query[..., K:]}
    query = into(layer.q_b_proj, H, K + R)
    return named | {
        "W_DQ": into(layer.q_a_proj, layer.q_lora_rank),
        "g_q": layer.q_a_layernorm.weight,
        "W_UQ": query[..., :K],
        "W_QR": query[..., K:],
    }
