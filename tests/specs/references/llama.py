"""transformers' Llama: a decoder block and the language model, weights named as in the specs."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

from tests.specs.references.weights import into, named, out_of, randomise


def language_model(
    vocab: int, d: int, H: int, G: int, K: int, f: int, L: int, base: float, eps: float, seed: int
) -> LlamaForCausalLM:
    """A small Llama in float64 (its norms and its softmax compute in float32)."""
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=d,
        num_attention_heads=H,
        num_key_value_heads=G,
        head_dim=K,
        intermediate_size=f,
        num_hidden_layers=L,
        rms_norm_eps=eps,
        rope_parameters={"rope_type": "default", "rope_theta": base},
        attn_implementation="sdpa",
    )
    return randomise(LlamaForCausalLM(config).double(), seed)


def logits(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """[B, T, vocab] from [B, T]."""
    with torch.no_grad():
        return model(tokens, use_cache=False).logits


def block(model: LlamaForCausalLM, layer: int, x: Tensor) -> Tensor:
    """One decoder block, [B, T, d] to [B, T, d]."""
    positions = torch.arange(x.shape[1])[None]
    rotation = model.model.rotary_emb(x, positions)
    with torch.no_grad():
        return model.model.layers[layer](x, position_embeddings=rotation, position_ids=positions)


def attention_weights(attention: nn.Module, H: int, G: int, K: int) -> dict[str, Tensor]:
    """Parameters of `Attention`."""
    return {
        "W_q": into(attention.q_proj, H, K),
        "W_k": into(attention.k_proj, G, K),
        "W_v": into(attention.v_proj, G, K),
        "W_o": out_of(attention.o_proj, H, K),
    }


def swiglu_weights(gate: nn.Linear, up: nn.Linear, down: nn.Linear) -> dict[str, Tensor]:
    """Parameters of `SwiGLU`."""
    return {
        "W_gate": into(gate, gate.out_features),
        "W_in": into(up, up.out_features),
        "W_out": out_of(down, down.in_features),
    }


def block_weights(layer: LlamaDecoderLayer, H: int, G: int, K: int) -> dict[str, Tensor]:
    """Parameters of `Transformer`."""
    mlp = layer.mlp
    return {
        "n1": layer.input_layernorm.weight,
        "n2": layer.post_attention_layernorm.weight,
        **named("attention", attention_weights(layer.self_attn, H, G, K)),
        **named("swiglu", swiglu_weights(mlp.gate_proj, mlp.up_proj, mlp.down_proj)),
    }


def model_weights(model: LlamaForCausalLM, H: int, G: int, K: int) -> dict[str, Tensor]:
    """Parameters of `LM`."""
    weights = {
        "E": model.model.embed_tokens.weight,
        "n_f": model.model.norm.weight,
        "W_head": model.lm_head.weight.T,
    }
    for index, layer in enumerate(model.model.layers):
        weights |= named(f"layers.{index}.transformer", block_weights(layer, H, G, K))
    return weights
