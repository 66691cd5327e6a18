"""How peers are called for the bundled specs: `archc bench kda --against fla`.

Conventions of fla-core: [B, T, H, D], gates in natural logarithm, states [N, H, K, V] in float32.
`fla-unguarded` is fla with its refusal of some gradients on Hopper with Triton before 3.7.1 taken
off (fla-org/flash-linear-attention issue 640: wrong numbers); what it then gives stands beside its
time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from archc.bench.contenders import Inputs, Made, Peer, Row

PACKAGES = ("fla-core", "flash-linear-attention", "flash-qla")
"""Distributions whose versions belong to a record."""

os.environ.setdefault("FLA_FLASH_QLA", "0")  # fla would call it: it has a column of its own

MODULES = {"fla": ("fla.ops",), "flash_qla": ("flash_qla",)}
"""By peer, what a process may import before it measures."""

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

    def sequence(inputs: Inputs, final: bool, borders: Tensor | None = None) -> Made:
        run = function(chunk)
        guard = import_module("fla.ops.common.chunk_o")
        hopper = import_module("fla.utils").IS_NVIDIA_HOPPER
        guard.IS_NVIDIA_HOPPER = hopper and guarded
        given = options(inputs, GATES) | ({} if borders is None else {"cu_seqlens": borders})
        o, state = run(**given, output_final_state=final)
        return (o,), (state,) if final else ()

    def step(inputs: Inputs, states: Sequence[Tensor]) -> Made:
        given = options(inputs, recurrent_names)
        o, state = function(recurrent)(**given, initial_state=states[0], output_final_state=True)
        return (o,), (state,)

    return Peer(sequence, step if recurrent else None)


def unguarded(place: Place) -> Callable[..., Any]:
    """A function of fla that may refuse no gradient."""
    import_module("fla.ops.common.chunk_o").IS_NVIDIA_HOPPER = False
    return function(place)


def kda_from_layer(inputs: Inputs, final: bool, borders: Tensor | None = None) -> Made:
    """fla's as its layer calls it: norms of keys and queries, gates and rates are made inside. The
    silu before them is its convolutions' there, and PyTorch's here."""
    o, state = function("fla.ops.kda:chunk_kda")(
        *(F.silu(inputs[name]) for name in ("q", "k", "v")),
        inputs["log_alpha"], inputs["beta"],
        A_log=inputs["A_log"], dt_bias=inputs["dt_bias"].flatten(), use_gate_in_kernel=True,
        use_qk_l2norm_in_kernel=True, use_beta_sigmoid_in_kernel=True, output_final_state=final,
        cu_seqlens=borders,
    )  # fmt: skip
    return (o,), (state,) if final else ()


def delta_product(inputs: Inputs, final: bool) -> Made:
    """fla's: the n steps of a token stand one after the other along its tokens."""
    q, log_alpha = inputs["q"], inputs["log_alpha"]
    k, v, beta = (inputs[name].flatten(1, 2) for name in ("k", "v", "beta"))
    o, state = unguarded("fla.ops.gated_delta_product:chunk_gated_delta_product")(
        q, k, v, log_alpha, beta, inputs["k"].shape[2], scale=k.shape[-1] ** -0.5,
        output_final_state=final,
    )  # fmt: skip
    return (o,), (state,) if final else ()


def mamba2(inputs: Inputs, final: bool) -> Made:
    """fla's linear attention with a decay a head, for which each head has a copy of b and c."""
    u, dt, gate = (inputs[name] for name in ("u", "dt", "log_a"))
    b, c = (inputs[name].unsqueeze(2).expand(-1, -1, u.shape[2], -1) for name in ("b", "c"))
    o, state = unguarded("fla.ops.simple_gla:chunk_simple_gla")(
        c, b, dt.unsqueeze(-1) * u, gate, scale=1.0, output_final_state=final
    )
    return (o,), (state,) if final else ()


def rwkv7(inputs: Inputs, final: bool) -> Made:
    """fla's: its low-rank update is a b^T with a = -kappa and b = kappa * a, and its state is
    [K, V], ours [V, K]."""
    kappa = inputs["kappa"]
    o, state = function("fla.ops.rwkv7:chunk_rwkv7")(
        inputs["r"], inputs["log_w"], inputs["k"], inputs["v"], -kappa, kappa * inputs["a"],
        scale=1.0, output_final_state=final,
    )  # fmt: skip
    return (o,), (state.transpose(-1, -2),) if final else ()


def mesa(inputs: Inputs, final: bool) -> Made:
    """fla's, with as many steps of conjugate gradients."""
    q, k, v, gate, beta = (inputs[name] for name in ("q", "k", "v", "log_gamma", "beta"))
    o, *states = unguarded("fla.ops.mesa_net:chunk_mesa_net")(
        q, k, v, gate, beta, F.softplus(inputs["lam"]), output_final_state=final,
        max_CG_iteration=30,
    )  # fmt: skip
    return (o,), tuple(states) if final else ()


def forgetting(inputs: Inputs, final: bool) -> Made:
    """fla's attention with forget gates."""
    q, k, v, gate = (inputs[name] for name in ("q", "k", "v", "log_f"))
    return (function("fla.ops.forgetting_attn:parallel_forgetting_attn")(q, k, v, gate),), ()


def path(inputs: Inputs, final: bool) -> Made:
    """fla's attention along a path of Householder products, with forget gates where there are."""
    q, k, v, w, beta = (inputs[name] for name in ("q", "k", "v", "w", "beta"))
    o, _ = function("fla.ops.path_attn:parallel_path_attn")(q, k, v, w, beta, inputs.get("log_f"))
    return (o,), ()


def flash_qla(inputs: Inputs, final: bool) -> Made:
    """The gated delta rule in TileLang, bfloat16, heads of 128."""
    q, k, v, gate, beta = (inputs[name] for name in ("q", "k", "v", "log_alpha", "beta"))
    o, state = function("flash_qla:chunk_gated_delta_rule")(
        q, k, v, gate, beta, output_final_state=True
    )
    return (o,), (state,) if final else ()


def cudnn_lstm(inputs: Inputs, final: bool) -> Made:
    """torch's LSTM. It multiplies its inputs by weights of its own: here those of identity, one
    product more than the recurrence needs."""
    entering = torch.cat([inputs[f"a_{gate}"] for gate in "ifgo"], -1)
    recurrent = torch.cat([inputs[f"R_{gate}"] for gate in "ifgo"]).to(entering.dtype)
    eye = torch.eye(entering.shape[-1], device=entering.device, dtype=entering.dtype)
    zero = entering.new_zeros(1, entering.shape[0], recurrent.shape[-1])
    h, *states = torch.lstm(
        entering, (zero, zero), (eye, recurrent), has_biases=False, num_layers=1, dropout=0.0,
        train=True, bidirectional=False, batch_first=True,
    )  # fmt: skip
    return (h,), tuple(state[0] for state in states) if final else ()


def attention(inputs: Inputs, final: bool) -> Made:
    """Softmax attention of torch, causal; q, k, v [B, T, H, D]."""
    q, k, v = (inputs[name].transpose(1, 2) for name in ("q", "k", "v"))
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return (o.transpose(1, 2),), ()


GATED_DELTA = "fla.ops.gated_delta_rule:chunk_gated_delta_rule"

PEERS: dict[str, dict[str, Peer]] = {
    "fla": {
        "kda": fla("fla.ops.kda:chunk_kda", "fla.ops.kda:fused_recurrent_kda"),
        "kda fused": Peer(kda_from_layer),
        "kda_bounded": fla("fla.ops.kda:chunk_kda", safe_gate=True, lower_bound=-5.0),
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
        "retention": fla(
            "fla.ops.simple_gla:chunk_simple_gla", "fla.ops.simple_gla:fused_recurrent_simple_gla"
        ),
        "gated_delta_product": Peer(delta_product),
        "mamba2": Peer(mamba2, note="with its copies of b and c"),
        "rwkv7": Peer(rwkv7),
        "mesa": Peer(mesa),
        "fox": Peer(forgetting),
        "path": Peer(path),
        "path_fox": Peer(path),
    },
    "fla-unguarded": {
        "gated_delta": fla(GATED_DELTA, guarded=False),
        "retention": fla("fla.ops.simple_gla:chunk_simple_gla", guarded=False),
    },
    "flash_qla": {"gated_delta": Peer(flash_qla)},
    "cudnn": {"lstm": Peer(cudnn_lstm, note="with a product of its inputs by identity")},
    "sdpa": {
        "attention": Peer(attention, note="torch's softmax attention"),
        "*": Peer(attention, same=False, note="softmax attention: another function"),
    },
}  # fmt: skip
"""By peer and spec; what each must compute is what the spec's memory does."""


def fla_layer(
    name: str, *, dim: str | None = "head_dim", **rest: Any
) -> Callable[[Mapping[str, Any]], nn.Module]:
    """A layer class of flash-linear-attention, of the sizes of a spec: `dim` is what it calls the
    dim of a head, `rest` what the spec has in other ways than its defaults."""

    def make(sizes: Mapping[str, Any]) -> nn.Module:
        given = {"hidden_size": sizes["d"], "num_heads": sizes["H"], "layer_idx": 0, **rest}
        given |= {} if dim is None else {dim: sizes["K"]}
        import_module("fla.ops.common.chunk_o").IS_NVIDIA_HOPPER = False
        return function(f"fla.layers:{name}")(**given)

    return make


def torch_lstm(sizes: Mapping[str, Any]) -> nn.Module:
    """cuDNN's, on a GPU."""
    return nn.LSTM(sizes["d"], sizes["D"], batch_first=True)


def fla_rwkv7(sizes: Mapping[str, Any]) -> nn.Module:
    """fla's first layer of a model, which hands its values on to the others."""
    made = function("fla.layers:RWKV7Attention")
    return made(
        hidden_size=sizes["d"], head_dim=sizes["d"] // sizes["H"], layer_idx=0,
        num_hidden_layers=24,
    )  # fmt: skip


def fla_token(layer: nn.Module, before: Tensor) -> Callable[[Tensor], Tensor]:
    """A token after others, by fla's cache. A layer puts new states into it and lets go of those
    it read, which a CUDA graph reads again: they are kept, and every call begins with them."""
    cache = function("fla.models.utils:Cache")()
    layer(before, past_key_values=cache, use_cache=True)
    kept = dict(cache[0])

    def token(x: Tensor) -> Tensor:
        cache[0].update(kept)
        return layer(x, past_key_values=cache, use_cache=True)[0]

    return token


def torch_lstm_token(layer: nn.Module, before: Tensor) -> Callable[[Tensor], Tensor]:
    """A token after others by cuDNN."""
    _, state = layer(before)
    return lambda x: layer(x, state)[0]


TOKENS = {"fla": fla_token, "cudnn": torch_lstm_token}
"""By peer, how a layer takes one token after others."""

LAYERS: dict[str, dict[str, Callable[[Mapping[str, Any]], nn.Module]]] = {
    "fla": {
        "kda": fla_layer("KimiDeltaAttention"),
        "gated_delta": fla_layer("GatedDeltaNet", expand_v=1.0),
        "gla": fla_layer("GatedLinearAttention", dim=None, expand_k=1.0),
        "delta": fla_layer("DeltaNet", dim=None),
        "gated_delta_product": fla_layer("GatedDeltaProduct", expand_v=1.0),
        "rwkv7": fla_rwkv7,
        "mesa": fla_layer("MesaNet"),
        "mom": fla_layer("MomAttention", expand_v=1, num_memories=4, topk=2, shared_mem=True),
        "fox": fla_layer("ForgettingAttention", dim=None),
        "path": fla_layer("PaTHAttention", dim=None),
        "path_fox": fla_layer("PaTHAttention", dim=None, use_forget_gate=True),
    },
    "cudnn": {"lstm": torch_lstm},
}
"""By peer and spec: whole layers, whose weights are their own."""

SHAPES = {"lstm": (16, 1024, 1, 1024), "slstm": (16, 1024, 4, 512)}
"""Batch, tokens, heads and dim on a GPU, where 2, 8192, 32, 128 is not how a spec is used."""

BOUNDED = """layer Bounded(d, H, K = 128, V = 128):
    input x[d]
    param W_q, W_k[d, H, K]; W_v[d, H, V]; W_o[H, V, d]; W_beta[d, H]; W_f[d, H, K]
    param A_log[H] = log(uniform(1, 16))
    param dt_bias[H, K] = inverse_softplus(loguniform(0.001, 0.1))
    chunk: bound log(alpha) >= -5
    q = l2norm[K](x @ W_q)
    k = l2norm[K](x @ W_k)
    v = x @ W_v
    alpha = exp(-5 * sigmoid(exp(A_log) * (x @ W_f + dt_bias)))
    beta  = sigmoid(x @ W_beta)
    recurrence S[K, V] over H:
        S[t] = (I - beta * k @ k.T) @ diag(alpha) @ S[t-1] + beta * k @ v.T
        o    = S[t].T @ q / sqrt(K)
    output y[d] = o @ W_o
"""

LAYER = ("layer",)
MESA = {"steps": 30}
NARROW = (2, 8192, 16, 128)


def chunked(dim: int) -> list[Row]:
    """The recurrences that peers have, the best known first."""
    mamba = {"P": dim, "N": dim}
    return [
        Row("kda"), Row("gla"), Row("gated_delta", beside=("fla-unguarded",)), Row("delta"),
        Row("linear_attention_simple"), Row("retention", beside=("fla-unguarded",)),
        Row("mamba2", given=mamba), Row("rwkv7"), Row("gated_delta_product", given={"n": 2}),
    ]  # fmt: skip


def at(shape: tuple[int, int, int, int]) -> list[Row]:
    """The same at another shape."""
    return [replace(row, shape=shape) for row in chunked(shape[-1])]


ROWS: list[Row] = [
    *chunked(128),
    Row("gated_delta_product", given={"n": 3}),
    Row("kda", fused=True),
    Row("kda_bounded", text=BOUNDED),
    Row("mesa", given=MESA),
    Row("mlstm"),
    Row("lstm", beside=("cudnn",)),
    Row("slstm", beside=("eager",)),
    *(
        Row(spec, what=("decode",), batches=(64, 256))
        for spec in ("kda", "gla", "gated_delta", "rwkv7", "mlstm", "mesa")
    ),
    *at((8, 1024, 8, 64)),
    *at((1, 32768, 4, 128)),
    *at((3, 5000, 24, 96)),
    *at((1, 131072, 8, 128)),
    *(replace(row, shape=(1, 16384, 32, 128), packed=8) for row in chunked(128)[:4]),
    # whole layers
    *(Row(spec, what=LAYER) for spec in ("kda", "gated_delta", "gla", "delta")),
    Row("gated_delta_product", what=LAYER, given={"n": 2}),
    Row("transformer", (2, 4096, 32, 128), LAYER, beside=("compile",)),
    Row("rwkv7", (2, 8192, 64, 64), LAYER),
    Row("mesa", what=LAYER),
    Row("mlstm", what=LAYER),
    Row("mamba", NARROW, LAYER, {"D": 4096}),
    Row("swiglu", what=LAYER, beside=("compile",)),
    Row("lfm2:GatedShortConv", NARROW, LAYER, beside=("compile",)),
    Row("fox", (2, 4096, 32, 128), LAYER),
    Row("mom", NARROW, LAYER),
    Row("moe", NARROW, LAYER, {"f": 1408, "N": 64, "n": 6, "shared": 2}),
    Row("mhc", NARROW, LAYER, {"L": 1}, beside=("compile",)),
    Row("mhc", (2, 2048, 16, 128), LAYER, {"L": 1}, beside=("compile",)),
    Row("path", (2, 4096, 32, 128), LAYER),
    Row("path_fox", (2, 4096, 32, 128), LAYER),
    Row("lstm", what=LAYER, beside=("cudnn",)),
    Row("slstm", what=LAYER),
    # a token through them
    *(
        Row(spec, what=("token",), batches=(1, 64))
        for spec in ("kda", "gated_delta", "gla", "delta", "mesa", "mlstm")
    ),
    Row("rwkv7", (2, 8192, 64, 64), ("token",), batches=(1, 64)),
    Row("lstm", what=("token",), batches=(1, 64), beside=("cudnn",)),
]
"""What `archc bench --all` measures, most important first: the shape where none is said is 2, 8192,
32, 128, or that of `SHAPES`."""
