"""transformers' LFM2 language model, with weights named as in `LFM2`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import Lfm2Config, Lfm2ForCausalLM

from tests.specs.references.llama import swiglu_weights
from tests.specs.references.weights import into, named, out_of, randomise


def language_model(
    vocab: int, d: int, H: int, G: int, f: int, L: int, attention: list[int], width: int, seed: int
) -> Lfm2ForCausalLM:
    """A small LFM2 in float64 (its norms compute in float32); its head is its embedding."""
    config = Lfm2Config(
        vocab_size=vocab,
        hidden_size=d,
        num_attention_heads=H,
        num_key_value_heads=G,
        intermediate_size=f,
        num_hidden_layers=L,
        conv_L_cache=width,
        block_auto_adjust_ff_dim=False,
        full_attn_idxs=attention,
        attn_implementation="sdpa",
    )
    return randomise(Lfm2ForCausalLM(config).double(), seed)


def logits(model: Lfm2ForCausalLM, tokens: Tensor) -> Tensor:
    """[B, T, vocab] from [B, T]."""
    with torch.no_grad():
        return model(tokens, use_cache=False).logits


def mixer_weights(layer: nn.Module, H: int, G: int) -> dict[str, Tensor]:
    """Parameters of `NormedAttention` or `GatedShortConv`."""
    if layer.is_attention_layer:
        attention = layer.self_attn
        K = attention.head_dim
        return {
            "W_q": into(attention.q_proj, H, K),
            "W_k": into(attention.k_proj, G, K),
            "W_v": into(attention.v_proj, G, K),
            "W_o": out_of(attention.out_proj, H, K),
            "g_q": attention.q_layernorm.weight,
            "g_k": attention.k_layernorm.weight,
        }
    d = layer.conv.in_proj.in_features
    maps = into(layer.conv.in_proj, 3, d)
    return {
        "W_b": maps[:, 0],
        "W_c": maps[:, 1],
        "W_h": maps[:, 2],
        "w": layer.conv.conv.weight[:, 0],
        "W_out": out_of(layer.conv.out_proj, d),
    }


def model_weights(model: Lfm2ForCausalLM, H: int, G: int) -> dict[str, Tensor]:
    """Parameters of `LFM2`."""
    weights = {"E": model.model.embed_tokens.weight, "n_f": model.model.embedding_norm.weight}
    for index, layer in enumerate(model.model.layers):
        mlp = layer.feed_forward
        mixer = "normed_attention" if layer.is_attention_layer else "gated_short_conv"
        weights |= named(
            f"layers.{index}",
            {
                "n1": layer.operator_norm.weight,
                "n2": layer.ffn_norm.weight,
                **named(mixer, mixer_weights(layer, H, G)),
                **named("swiglu", swiglu_weights(mlp.w1, mlp.w3, mlp.w2)),
            },
        )
    return weights
