"""`python -m tests.specs.references.kimi_model_without_fla FILE`: reads sizes from FILE, writes
weights, tokens and logits of a small Kimi Linear into it, fla being hidden from transformers."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from tests.specs.references import apart

apart.hide("fla")

from transformers import KimiLinearConfig, KimiLinearForCausalLM  # noqa: E402

from tests.specs.references import deepseek, kimi_without_fla  # noqa: E402
from tests.specs.references.weights import into, named, randomise  # noqa: E402


def run(B: int, T: int, seed: int, full: list[int], **sizes: int) -> dict[str, Any]:
    """Weights of `KimiLinear`, tokens [B, T] and their logits; `full`: layers with attention."""
    config = configured(full, **sizes)
    model = randomise(KimiLinearForCausalLM(config).double(), seed)
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if hasattr(module, "e_score_correction_bias"):
            module.e_score_correction_bias.normal_(0, 0.3, generator=generator)
    tokens = torch.randint(0, sizes["vocab"], (B, T), generator=generator)
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits
    return {"weights": weights(model, sizes["H"]), "tokens": tokens, "logits": logits}


def configured(
    full: list[int],
    vocab: int,
    d: int,
    L: int,
    H: int,
    experts: int,
    active: int,
    f: int,
    dense: int,
) -> KimiLinearConfig:
    """The released model's shape, with few layers, heads and experts; the first layer is dense."""
    return KimiLinearConfig(
        vocab_size=vocab,
        hidden_size=d,
        num_hidden_layers=L,
        layer_types=["full_attention" if i in full else "linear_attention" for i in range(L)],
        mlp_layer_types=["dense"] + ["sparse"] * (L - 1),
        num_attention_heads=H,
        num_key_value_heads=H,
        linear_num_heads=H,
        num_local_experts=experts,
        num_experts_per_tok=active,
        moe_intermediate_size=f,
        intermediate_size=dense,
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",
        experts_implementation="eager",
    )


def weights(model: KimiLinearForCausalLM, H: int) -> dict[str, Tensor]:
    """Parameters of `KimiLinear`."""
    inner = model.model
    made = {
        "E": inner.embed_tokens.weight.detach(),
        "n_f": inner.norm.weight.detach(),
        "W_head": into(model.lm_head, model.vocab_size),
    }
    for index, layer in enumerate(inner.layers):
        own = {
            "n1": layer.input_layernorm.weight.detach(),
            "n2": layer.post_attention_layernorm.weight.detach(),
            **_mixer(layer.self_attn, H),
            **_channels(layer.mlp),
        }
        made |= named(f"layers.{index}", own)
    return made


def _mixer(module: nn.Module, H: int) -> dict[str, Tensor]:
    if hasattr(module, "kv_b_proj"):
        return named("mla", deepseek.weights(module))
    return named("kda", kimi_without_fla.weights(module, H, module.head_dim))


def _channels(module: nn.Module) -> dict[str, Tensor]:
    if not hasattr(module, "experts"):
        return named("swiglu", _gated(module))
    gate, up = module.experts.gate_up_proj.detach().mT.chunk(2, dim=-1)
    made = {
        "W_r": module.gate.weight.detach().T,
        "bias": module.gate.e_score_correction_bias,
        "W_g": gate,
        "W_u": up,
        "W_d": module.experts.down_proj.detach().mT,
        **named("swiglu", _gated(module.shared_experts)),
    }
    return named("moe", made)


def _gated(module: nn.Module) -> dict[str, Tensor]:
    d, f = module.hidden_size, module.intermediate_size
    return {
        "W_gate": into(module.gate_proj, f),
        "W_in": into(module.up_proj, f),
        "W_out": into(module.down_proj, d),
    }


if __name__ == "__main__":
    torch.save(run(**torch.load(sys.argv[1])), sys.argv[1])
