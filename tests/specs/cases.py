"""Small sizes for every bundled spec that runs by itself, and random inputs for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from archc.ir.layer import Layer

SMALL: dict[str, dict[str, Any]] = {
    "alibi": {"d": 12, "H": 2},
    "attention": {"d": 12, "H": 4, "G": 2, "K": 6},
    "capped_attention": {"d": 12, "H": 2, "G": 1},
    "cross_attention": {"d": 12, "e": 10, "H": 3},
    "deepseek_v3": {
        "vocab": 11, "d": 12, "H": 2, "L": 2, "K": 4, "R": 2, "V": 5, "C": 6, "Q": 7, "dense": 8,
        "first": 1, "experts": 6, "active": 2, "groups": 3, "kept": 2, "f": 6,
    },
    "delta": {"d": 12, "H": 2, "K": 5, "V": 4, "width": 3},
    "dsa": {"d": 12, "H": 2, "K": 4, "R": 2, "V": 5, "C": 6, "Q": 7, "HI": 3, "KI": 4, "n": 5},
    "fox": {"d": 12, "H": 2},
    "gated_delta": {"d": 12, "H": 2, "K": 5, "V": 4, "width": 3},
    "gated_delta_product": {"d": 12, "H": 2, "K": 5, "V": 4, "n": 2, "width": 3},
    "gla": {"d": 12, "H": 2, "K": 5, "V": 4, "r": 3},
    "gla_block": {"d": 12, "H": 2, "K": 5, "V": 4, "f": 8},
    "gemma3": {
        "vocab": 11, "d": 12, "H": 4, "G": 2, "K": 6, "L": 3, "f": 8, "full": [1], "window": 3,
    },
    "gpt": {"vocab": 11, "d": 12, "H": 2, "L": 2, "length": 16},
    "gpt_block": {"d": 12, "H": 2},
    "gpt_oss": {
        "vocab": 11, "d": 12, "H": 4, "G": 2, "K": 6, "L": 2, "window": 3, "full": [1],
        "experts": 5, "active": 2, "f": 6,
    },
    "kda": {"d": 12, "H": 2, "K": 5, "V": 4, "r": 3, "width": 3},
    "kimi_linear": {
        "vocab": 11, "d": 12, "L": 3, "H": 2, "experts": 5, "active": 2, "f": 6, "dense": 8,
        "full": [1],
    },
    "lfm2": {"vocab": 11, "d": 12, "H": 2, "G": 1, "f": 8, "L": 3, "attention": [1], "width": 3},
    "linear_attention": {"d": 12, "H": 2, "K": 5, "V": 4},
    "linear_attention_full": {"d": 12, "H": 2, "K": 5, "V": 4},
    "linear_attention_simple": {"d": 12, "H": 2, "K": 5, "V": 4},
    "lm": {"vocab": 11, "d": 12, "H": 2, "L": 2, "G": 1, "K": 4, "f": 8},
    "lstm": {"d": 12, "D": 7},
    "mamba": {"d": 12, "D": 16, "N": 3, "r": 3, "width": 3},
    "mamba2": {"d": 12, "H": 2, "P": 5, "N": 3, "width": 3},
    "mamba2_lm": {"vocab": 11, "d": 12, "L": 2, "P": 6, "N": 3, "G": 2, "width": 3},
    "mesa": {"d": 12, "H": 2, "K": 5, "width": 3},
    "mhc": {"d": 12, "H": 2, "L": 2, "n": 3, "f": 8},
    "mla": {"d": 12, "H": 2, "K": 4, "R": 2, "V": 5, "C": 6, "Q": 7},
    "mlstm": {"d": 12, "H": 2, "K": 5, "V": 4},
    "moe": {"d": 12, "f": 6, "N": 5, "n": 2, "shared": 1},
    "mom": {"d": 12, "H": 2, "N": 3, "n": 2, "K": 5, "V": 4},
    "nsa": {
        "d": 12, "H": 4, "G": 2, "K": 5, "V": 4,
        "size": 4, "stride": 2, "pick": 4, "n": 3, "w": 3,
    },
    "path": {"d": 12, "H": 2, "r": 4, "width": 3},
    "path_fox": {"d": 12, "H": 2, "r": 4, "width": 3},
    "qwen3_next": {
        "vocab": 11, "d": 12, "L": 2, "full": [1], "H": 4, "G": 2, "K": 8, "heads": 4,
        "key_heads": 2, "key": 5, "value": 4, "experts": 5, "active": 2, "f": 6, "shared": 7,
    },
    "retention": {"d": 12, "H": 2, "K": 4, "V": 5},
    "rwkv7": {"d": 12, "H": 2, "r_w": 3, "r_a": 3, "r_g": 4},
    "slstm": {"d": 12, "H": 2, "D": 5},
    "ssm": {"d": 12, "D": 7},
    "ssm_selective": {"d": 12, "D": 7, "N": 3},
    "swiglu": {"d": 12, "f": 8},
    "transformer": {"d": 12, "H": 4, "G": 2, "K": 6, "f": 8},
    "window_attention": {"d": 12, "H": 4, "G": 2, "K": 6, "w": 3},
    "xlstm": {"vocab": 11, "d": 12, "H": 2, "L": 2, "f": 8},
}  # fmt: skip


def inputs(layer: Layer, sizes: dict[str, Any], B: int, T: int, seed: int) -> dict[str, Tensor]:
    """A value for each input of a layer; a stream other than the layer's own has 7 tokens."""
    generator = torch.Generator().manual_seed(seed)
    values = {}
    for _, op in layer.inputs:
        shape = [B]
        for axis in op.type.axes[1:]:
            if axis.kind == "stream":
                shape.append(T if axis.name == "t" else 7)
            else:
                shape.append(sizes[axis.name])
        if op.type.dtype == "int":
            values[op.name] = torch.randint(0, sizes["vocab"], shape, generator=generator)
        else:
            values[op.name] = torch.randn(shape, generator=generator, dtype=torch.float64)
    return values
