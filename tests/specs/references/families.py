"""`python -m tests.specs.references.families FILE`: writes small models of transformers into the
folder that FILE names, a folder each with `reference.pt`: tokens and their logits.

fla and xlstm are hidden from transformers, which would call their GPU kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
import transformers as t
from torch import nn

from tests.specs.references import apart
from tests.specs.references.weights import randomise

SIZES: dict[str, Any] = {"vocab_size": 50, "hidden_size": 32, "pad_token_id": None}
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]
LINEAR = ["linear_attention", "full_attention", "linear_attention"]


def llama(**more: Any) -> nn.Module:
    """Its head is its embedding."""
    config = t.LlamaConfig(
        **SIZES, **HEADS, intermediate_size=48, num_hidden_layers=2, tie_word_embeddings=True,
        **more,
    )  # fmt: skip
    return t.LlamaForCausalLM(config)


def gemma3(**more: Any) -> nn.Module:
    config = t.Gemma3TextConfig(
        **SIZES, **HEADS, intermediate_size=48, num_hidden_layers=3, query_pre_attn_scalar=12,
        sliding_window=5, layer_types=SLIDING, **more,
    )  # fmt: skip
    return t.Gemma3ForCausalLM(config)


def deepseek_v3(latent: int | None = 16, **more: Any) -> nn.Module:
    """Experts in groups, of which some are open to a token."""
    config = t.DeepseekV3Config(
        **SIZES, intermediate_size=48, moe_intermediate_size=12, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, n_routed_experts=8, n_group=4, topk_group=2,
        num_experts_per_tok=3, first_k_dense_replace=1, kv_lora_rank=12, q_lora_rank=latent,
        qk_rope_head_dim=4, v_head_dim=6, qk_nope_head_dim=8, **more,
    )  # fmt: skip
    return t.DeepseekV3ForCausalLM(config)


def gpt_oss(**more: Any) -> nn.Module:
    config = t.GptOssConfig(
        **SIZES, **HEADS, intermediate_size=24, num_hidden_layers=2, num_local_experts=4,
        num_experts_per_tok=2, sliding_window=5, **more,
    )  # fmt: skip
    return t.GptOssForCausalLM(config)


def mamba2() -> nn.Module:
    config = t.Mamba2Config(
        **SIZES, num_heads=8, head_dim=8, state_size=6, n_groups=2, num_hidden_layers=2,
        chunk_size=16,
    )  # fmt: skip
    return t.Mamba2ForCausalLM(config)


def qwen3_next() -> nn.Module:
    """Its positions are those for longer texts: its own are a default that other families have."""
    longer = {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "partial_rotary_factor": 0.25,
        "original_max_position_embeddings": 16, "beta_fast": 2.0, "beta_slow": 1.0,
    }  # fmt: skip
    config = t.Qwen3NextConfig(
        **SIZES, **HEADS, moe_intermediate_size=12, shared_expert_intermediate_size=20,
        num_hidden_layers=3, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=8, linear_value_head_dim=6, num_experts=4, num_experts_per_tok=2,
        layer_types=LINEAR, rope_parameters=longer,
    )  # fmt: skip
    return t.Qwen3NextForCausalLM(config)


def kimi_linear() -> nn.Module:
    config = t.KimiLinearConfig(
        **SIZES, num_hidden_layers=3, layer_types=LINEAR, num_attention_heads=2,
        num_key_value_heads=2, linear_num_heads=2, num_local_experts=4, num_experts_per_tok=2,
        mlp_layer_types=["dense", "sparse", "sparse"], moe_intermediate_size=12,
        intermediate_size=24, bos_token_id=None, eos_token_id=None,
        experts_implementation="eager",
    )  # fmt: skip
    return t.KimiLinearForCausalLM(config)


def xlstm() -> nn.Module:
    return t.xLSTMForCausalLM(t.xLSTMConfig(**SIZES, num_heads=2, num_blocks=2))


MADE: dict[str, Callable[..., nn.Module]] = {
    "lm": llama, "gemma3": gemma3, "deepseek_v3": deepseek_v3, "gpt_oss": gpt_oss,
    "mamba2_lm": mamba2, "qwen3_next": qwen3_next, "kimi_linear": kimi_linear, "xlstm": xlstm,
}  # fmt: skip


def write(folder: Path, name: str, seed: int = 1) -> None:
    """One model, with random weights and biases of experts, in float32, and what it makes."""
    model = randomise(MADE[name]().float(), seed)
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if hasattr(module, "e_score_correction_bias"):
            module.e_score_correction_bias.normal_(0, 0.3, generator=generator)
    model.save_pretrained(folder / name)
    tokens = torch.arange(40).reshape(2, 20) * 7 % 50
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits
    torch.save((tokens, logits), folder / name / "reference.pt")


def run(folder: str, names: Iterable[str]) -> dict[str, Any]:
    """All of some models."""
    for name in names:
        write(Path(folder), name)
    return {}


if __name__ == "__main__":
    apart.hide("fla")
    apart.hide("xlstm")
    torch.save(run(**torch.load(sys.argv[1])), sys.argv[1])
