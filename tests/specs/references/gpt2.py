"""transformers' GPT-2, with weights named as in `GPT`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from tests.specs.references.weights import into, named, randomise


def language_model(
    vocab: int,
    d: int,
    H: int,
    L: int,
    length: int,
    seed: int,
    tied: bool = True,
    tanh: bool = True,
) -> GPT2LMHeadModel:
    """A small GPT-2 in float64; as released, its head is its embedding, its GELU the tanh form."""
    config = GPT2Config(
        vocab_size=vocab,
        n_embd=d,
        n_head=H,
        n_layer=L,
        n_positions=length,
        tie_word_embeddings=tied,
        activation_function="gelu_new" if tanh else "gelu",
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",
    )
    return randomise(GPT2LMHeadModel(config).double(), seed)


def logits_and_loss(
    model: GPT2LMHeadModel, tokens: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """[B, T, vocab] and the mean cross entropy of targets, of the same places as tokens."""
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits
    return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def block_weights(block: nn.Module, H: int) -> dict[str, Tensor]:
    """Parameters of `GPTBlock`; its reference keeps q, k and v in one map, of [inputs, outputs]."""
    d = block.attn.embed_dim
    maps = block.attn.c_attn.weight.reshape(d, 3, H, -1).unbind(1)
    biases = block.attn.c_attn.bias.reshape(3, H, -1)
    attention = {
        **dict(zip(("W_q", "W_k", "W_v"), maps, strict=True)),
        **dict(zip(("b_q", "b_k", "b_v"), biases, strict=True)),
        "W_o": block.attn.c_proj.weight.reshape(H, -1, d),
        "b_o": block.attn.c_proj.bias,
    }
    mlp = {
        "W_in": block.mlp.c_fc.weight,
        "b_in": block.mlp.c_fc.bias,
        "W_out": block.mlp.c_proj.weight,
        "b_out": block.mlp.c_proj.bias,
    }
    return {
        "n1": block.ln_1.weight,
        "b1": block.ln_1.bias,
        "n2": block.ln_2.weight,
        "b2": block.ln_2.bias,
        **named("causal_self_attention", attention),
        **named("gelumlp", mlp),
    }


def model_weights(model: GPT2LMHeadModel, H: int) -> dict[str, Tensor]:
    """Parameters of `GPT`, its head among them if it is not the embedding."""
    inner = model.transformer
    weights = {
        "E": inner.wte.weight,
        "P": inner.wpe.weight,
        "n_f": inner.ln_f.weight,
        "b_f": inner.ln_f.bias,
    }
    if model.lm_head.weight is not inner.wte.weight:
        weights["W_head"] = into(model.lm_head, model.config.vocab_size)
    for index, block in enumerate(inner.h):
        weights |= named(f"layers.{index}.gpt_block", block_weights(block, H))
    return weights
