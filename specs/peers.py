"""How peers are called for the bundled specs: `archc bench kda --against fla`.

Conventions of fla-core: [B, T, H, D], gates in natural logarithm, states [N, H, K, V] in float32.
`fla-unguarded` is fla with its refusal of some gradients on Hopper with Triton before 3.7.1 taken
off (fla-org/flash-linear-attention issue 640: wrong numbers); what it then gives stands beside its
time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from archc.bench.contenders import Inputs, Made, Peer

PACKAGES = ("fla-core",)
"""Distributions whose versions belong to a record."""

Place = str
"""`fla.ops.kda:chunk_kda`: a module and a function in it."""


def function(place: Place) -> Callable[..., Any]:
    """The function at a place, imported now."""
    module, name = place.split(":")
    return getattr(import_module(module), name)


GATES = {"log_alpha": "g"}
"""Names that differ: those of the specs, those of fla."""


def fla(
    chunk: Place, recurrent: Place = "", *, scaled: bool = True, guarded: bool = True,
    recurrent_names: Mapping[str, str] = GATES, **rest: Any,
) -> Peer:  # fmt: skip
    """A family of fla: a function for sequences and one for decoding. `scaled`: whether the spec
    divides by sqrt(K); `guarded`: whether fla may refuse a gradient; `rest`: further options."""

    def options(inputs: Inputs, names: Mapping[str, str]) -> dict[str, Any]:
        given = {names.get(name, name): x for name, x in inputs.items()}
        return {**given, "scale": inputs["k"].shape[-1] ** -0.5 if scaled else 1.0, **rest}

    def sequence(inputs: Inputs, final: bool) -> Made:
        run = function(chunk)
        guard = import_module("fla.ops.common.chunk_o")
        hopper = import_module("fla.utils").IS_NVIDIA_HOPPER
        guard.IS_NVIDIA_HOPPER = hopper and guarded
        o, state = run(**options(inputs, GATES), output_final_state=final)
        return (o,), (state,) if final else ()

    def step(inputs: Inputs, states: Sequence[Tensor]) -> Made:
        given = options(inputs, recurrent_names)
        o, state = function(recurrent)(
            **given, initial_state=states[0], output_final_state=True
        )
        return (o,), (state,)

    return Peer(sequence, step if recurrent else None)


def attention(inputs: Inputs, final: bool) -> Made:
    """Softmax attention of torch, causal; q, k, v [B, T, H, D]."""
    q, k, v = (inputs[name].transpose(1, 2) for name in ("q", "k", "v"))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return (o.transpose(1, 2),), ()


GATED_DELTA = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"

PEERS: dict[str, dict[str, Peer]] = {
    "fla": {
        "kda": fla("fla.ops.kda:chunk_kda", "fla.ops.kda:fused_recurrent_kda"),
        "gla": fla(
            "fla.ops.gla:chunk_gla", "fla.ops.gla:fused_recurrent_gla", scaled=False,
            recurrent_names={"log_alpha": "gk"},
        ),
        "delta": fla(
            "fla.ops.delta_rule:chunk_delta_rule",
            "fla.ops.delta_rule:fused_recurrent_delta_rule",
        ),
        "gated_delta": fla(
            GATED_DELTA, "fla.ops.gated_delta_rule:fused_recurrent_gated_delta_rule"
        ),
        "linear_attention_simple": fla(
            "fla.ops.linear_attn:chunk_linear_attn",
            "fla.ops.linear_attn:fused_recurrent_linear_attn",
            scaled=False, normalize=False,
        ),
    },
    "fla-unguarded": {"gated_delta": fla(GATED_DELTA, guarded=False)},
    "sdpa": {
        "attention": Peer(attention, note="torch's softmax attention"),
        "*": Peer(attention, same=False, note="softmax attention: another function"),
    },
}  # fmt: skip
"""By peer and spec; what each must compute is what the spec's memory does."""
