"""`python -m tests.specs.references.xlstm_model FILE`: reads sizes from FILE, writes weights,
tokens and logits of transformers' xLSTM into it, the package xlstm being hidden from it."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from tests.specs.references import apart

apart.hide("xlstm")

from transformers import xLSTMConfig, xLSTMForCausalLM  # noqa: E402

from tests.specs.references.weights import into, named, out_of, randomise  # noqa: E402


def run(B: int, T: int, seed: int, **sizes: Any) -> dict[str, Any]:
    """Weights of `XLSTM`, tokens [B, T] and their logits.

    The reference's chunked form needs equal sizes of keys and values, and T = 16 n; its norms and
    logits are in float32.
    """
    model = randomise(xLSTMForCausalLM(configured(**sizes)).double(), seed)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, sizes["vocab"], (B, T), generator=generator)
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits
    return {"weights": weights(model, sizes["H"]), "tokens": tokens, "logits": logits}


def configured(
    vocab: int, d: int, H: int, L: int, f: int, cap: float | None, top: float | None
) -> xLSTMConfig:
    """A small model in one mode for all lengths; caps that are None are left out."""
    config = xLSTMConfig(
        vocab_size=vocab,
        hidden_size=d,
        num_heads=H,
        num_hidden_layers=L,
        qk_dim_factor=1.0,
        ffn_proj_factor=f / d,
        ffn_round_up_to_multiple_of=1,
        norm_reduction_force_float32=False,
        chunk_size=16,
        mode="train",
    )
    # Its code takes None, its checks of assigned values do not.
    config.__dict__.update(gate_soft_cap=cap, output_logit_soft_cap=top)
    return config


def weights(model: xLSTMForCausalLM, H: int) -> dict[str, Tensor]:
    """Parameters of `XLSTM`."""
    inner = model.backbone
    made = {
        "E": inner.embeddings.weight.detach(),
        "n_f": inner.out_norm.weight.detach(),
        "W_head": into(model.lm_head, model.lm_head.out_features),
    }
    for index, block in enumerate(inner.blocks):
        own = {
            "n1": block.norm_mlstm.weight.detach(),
            "n2": block.norm_ffn.weight.detach(),
            **named("mlstm_layer", _mixer(block.mlstm_layer, H)),
            **named("swiglu", _channels(block.ffn)),
        }
        made |= named(f"layers.{index}.xlstm_block", own)
    return made


def _mixer(layer: nn.Module, H: int) -> dict[str, Tensor]:
    return {
        "W_q": into(layer.q, H, -1),
        "W_k": into(layer.k, H, -1),
        "W_v": into(layer.v, H, -1),
        "W_og": into(layer.ogate_preact, H, -1),
        "w_i": into(layer.igate_preact, H),
        "w_f": into(layer.fgate_preact, H),
        "b_i": layer.igate_preact.bias.detach(),
        "b_f": layer.fgate_preact.bias.detach(),
        "gain": layer.multihead_norm.weight.detach().reshape(H, -1),
        "W_o": out_of(layer.out_proj, H, -1),
    }


def _channels(ffn: nn.Module) -> dict[str, Tensor]:
    return {
        "W_gate": into(ffn.proj_up_gate, -1),
        "W_in": into(ffn.proj_up, -1),
        "W_out": into(ffn.proj_down, -1),
    }


if __name__ == "__main__":
    torch.save(run(**torch.load(sys.argv[1])), sys.argv[1])
