"""The T x T matrix of a layer is what the formulas of its memory say."""

from __future__ import annotations

import copy
import io
import math

import pytest
import torch
from torch import Tensor, nn

import archc
from archc.algebra.simplify import simplify
from archc.ir.meaning import Evaluation, evaluate
from archc.origin import origin_of
from tests.few import but
from tests.specs.cases import SMALL, inputs
from tests.specs.references.weights import randomise

torch.set_num_threads(1)

T = 9
EXACT = 1e-12


def built(name: str, **sizes: object) -> tuple[nn.Module, dict[str, Tensor]]:
    """A bundled layer in float64 with random weights, and inputs for it."""
    given = {**SMALL[name], **sizes}
    spec = archc.load(name, **given)
    layer = randomise(spec.module(dtype=torch.float64), seed=0)
    return layer, inputs(spec.layer, given, B=2, T=T, seed=1)


def parsed(text: str, **sizes: int) -> tuple[nn.Module, Tensor]:
    layer = randomise(archc.parse(text).module(dtype=torch.float64, **sizes), seed=0)
    generator = torch.Generator().manual_seed(1)
    return layer, torch.randn(2, T, sizes["d"], dtype=torch.float64, generator=generator)


def meaning(layer: nn.Module, values: dict[str, Tensor]) -> Evaluation:
    """Every named value of the layer."""
    origin = origin_of(layer)
    return evaluate(simplify(origin.layer), values, layer.state_dict(), origin.sizes)


def causal(scores: Tensor) -> Tensor:
    return scores * torch.ones(T, T).tril()


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, atol=EXACT, rtol=1e-10)


def test_softmax_attention_gives_its_weights() -> None:
    layer, values = built("attention", G=4)
    found = archc.mixer_matrix(layer, **values)
    now = meaning(layer, values).values
    scores = torch.einsum("bthk,bshk->bhts", now["q"], now["k"]) / math.sqrt(now["q"].shape[-1])
    masked = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    assert found.exact and found.axes == ("batch", "H", "t", "s")
    assert close(found.data, masked.softmax(-1))


def test_linear_attention_is_masked_scores() -> None:
    layer, values = built("linear_attention_simple")
    now = meaning(layer, values).values
    scores = torch.einsum("bthk,bshk->bhts", now["q"], now["k"])
    assert close(archc.mixer_matrix(layer, values["x"]).data, causal(scores))


def test_a_normaliser_makes_rows_of_one() -> None:
    layer, values = built("linear_attention")
    rows = archc.mixer_matrix(layer, **values).data.sum(-1)
    assert close(rows, torch.ones_like(rows))


def test_decays_multiply_along_the_way() -> None:
    layer, values = built("gla")
    now = meaning(layer, values).values
    total = now["alpha"].log().cumsum(1)
    way = (total[:, :, None] - total[:, None]).exp()  # alpha[s+1] ... alpha[t]
    scores = torch.einsum("bthk,bshk,btshk->bhts", now["q"], now["k"], way)
    assert close(archc.mixer_matrix(layer, **values).data, causal(scores))


def test_delta_rule_solves_a_triangular_system() -> None:
    """u = v - (what the keys read of earlier writes), so (1 + tril(beta k k', -1)) u = v."""
    layer, values = built("delta")
    now = meaning(layer, values).values
    q, k = (now[name].transpose(1, 2) for name in "qk")
    beta = now["beta"].transpose(1, 2)[..., None]
    system = torch.eye(T, dtype=torch.float64) + (beta * (k @ k.mT)).tril(-1)
    expected = (q @ k.mT).tril() @ torch.linalg.solve(system, torch.diag_embed(beta[..., 0]))
    assert close(archc.mixer_matrix(layer, **values).data, expected / math.sqrt(q.shape[-1]))


LINEAR = {
    "attention": "v", "cross_attention": "v", "delta": "v", "dsa": "v", "fox": "v",
    "gated_delta": "v", "gla": "v", "kda": "v", "linear_attention": "v",
    "linear_attention_full": "v", "mesa": "v", "mla": "v", "mlstm": "v", "path": "v",
    "path_fox": "v", "mamba": "u", "ssm_selective": "u",
}  # fmt: skip


@pytest.mark.default(
    "attention",
    "cross_attention",
    "fox",
    "gla",
    "kda",
    "linear_attention_full",
    "mamba",
    "mlstm",
    "mla",
)
@pytest.mark.parametrize("name", LINEAR)
def test_the_matrix_applied_to_the_values_is_the_result(name: str) -> None:
    layer, values = built(name)
    found = archc.mixer_matrix(layer, **values)
    assert (found.exact, found.output, found.value) == (True, "o", LINEAR[name])
    now = meaning(layer, values).values
    v, o = (now[name] for name in (found.value, "o"))
    if found.axes[1] == "D":
        assert close(torch.einsum("bdts,bsd->btd", found.data, v), o)
    else:
        v = v.repeat_interleave(o.shape[2] // v.shape[2], 2)
        assert close(torch.einsum("bhts,bshv->bthv", found.data, v), o)


def test_several_values_a_token_have_a_matrix_each() -> None:
    layer, values = built("gated_delta_product")
    found = archc.mixer_matrix(layer, **values)
    now = meaning(layer, values).values
    assert found.axes == ("batch", "H", "n", "t", "s") and found.summed == ("n",)
    assert close(torch.einsum("bhnts,bsnhv->bthv", found.data, now["v"]), now["o"])


def test_all_tokens_may_be_read() -> None:
    layer, values = built("linear_attention_full")
    assert (archc.mixer_matrix(layer, **values).data != 0).all()


@pytest.mark.parametrize("name", but(["lstm", "slstm", "ssm", "gla_block", "mom"], ["mom"]))
def test_others_have_norms_of_derivatives(name: str) -> None:
    layer, values = built(name)
    x = values["x"][:, :5]
    found = archc.mixer_matrix(layer, x)
    slopes = torch.autograd.functional.jacobian(lambda x: layer(x).flatten(2)[0], x[:1])[:, :, 0]
    assert not found.exact and found.axes == ("batch", "t", "s") and found.output in ("y", "h")
    assert close(found.data[0], slopes.square().sum((1, 3)).sqrt())
    assert torch.equal(found.data != 0, torch.ones(2, 5, 5).tril().bool())


GATED = """
layer Gated(d):
    input x[d]
    param W_f, W_i, W_z[d, d']
    f = sigmoid(x @ W_f)
    z = {z}
    i = {i}
    recurrence c[d]:
        c[t] = f * c[t-1] + i * z
    output c
"""


@pytest.mark.parametrize(
    ("z", "i", "value"),
    [
        ("tanh(x @ W_z)", "sigmoid(x @ W_i)", "z"),
        ("exp(x @ W_z)", "tanh(x @ W_i)", "i"),
        ("x @ W_z", "x @ W_i", "i"),
    ],
)
def test_gates_are_no_values(z: str, i: str, value: str) -> None:
    layer, x = parsed(GATED.format(z=z, i=i), d=3)
    found = archc.mixer_matrix(layer, x)
    assert found.exact and found.value == value
    assert "c[t] = sum over s" in str(found)


MEMORY = """
layer Mixed(d, H, K):
    input x[d]
    param W_q, W_k, W_v[d, H, K]
    q = x @ W_q; k = x @ W_k; v = x @ W_v
    recurrence S[K, K']{start} over H:
        S[t] = {update}
        o    = {read}
    output o
"""
PLAIN = {"start": "", "update": "S[t-1] + k @ v.T", "read": "S[t].T @ q"}


@pytest.mark.parametrize(
    ("change", "exact"),
    [
        ({}, True),
        ({"read": "S[t].T @ q + v"}, True),
        ({"update": "S[t-1] + v @ k.T", "read": "S[t] @ q"}, True),
        ({"update": "S[t-1] - k @ (S[t-1].T @ k - v).T"}, True),
        ({"start": " = 1"}, False),  # o is not zero for values of zero
        ({"read": "S[t].T @ q + 1"}, False),
        ({"update": "S[t-1] + k @ tanh(v).T"}, False),
        ({"update": "S[t-1] @ (k @ k.T) + k @ v.T"}, False),  # a channel enters the others
        ({"update": "S[t-1] + v @ v.T"}, False),
        ({"read": "tanh(S[t].T @ q)"}, False),
        ({"read": "S[t].T @ q * v"}, False),
        ({"read": "S[t].T @ q + sum[K](S[t].T @ q)"}, False),  # that channel and every other
    ],
)
def test_exact_only_where_it_is_true(change: dict[str, str], exact: bool) -> None:
    layer, x = parsed(MEMORY.format(**{**PLAIN, **change}), d=4, H=2, K=3)
    found = archc.mixer_matrix(layer, x)
    assert found.exact == exact
    if exact:
        now = meaning(layer, {"x": x}).values
        assert close(torch.einsum("bhts,bshv->bthv", found.data, now["v"]), now["o"])


@pytest.mark.parametrize("name", ["attention", "gla", "lstm", "ssm_selective"])
@pytest.mark.parametrize("length", [0, 1])
def test_few_tokens(name: str, length: int) -> None:
    layer, values = built(name)
    found = archc.mixer_matrix(layer, values["x"][:, :length])
    assert found.data.shape[-2:] == (length, length) and len(found.data) == 2


def test_layers_in_a_model_and_copies_of_a_layer() -> None:
    spec = archc.load("kimi_linear", **SMALL["kimi_linear"])
    model = randomise(spec.module(dtype=torch.float64), seed=0)
    seen: list[Tensor] = []
    mixer = model.layers[1].mla
    hook = mixer.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(torch.arange(T)[None] % 11)
    hook.remove()
    found = archc.mixer_matrix(mixer, seen[0])
    assert found.exact
    assert close(found.data.sum(-1), torch.ones(1, 2, T, dtype=torch.float64))
    assert torch.equal(archc.mixer_matrix(copy.deepcopy(mixer), seen[0]).data, found.data)
    file = io.BytesIO()
    torch.save(mixer, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    assert torch.equal(archc.mixer_matrix(again, seen[0]).data, found.data)


def test_refusals() -> None:
    model = archc.load("lm").module(**SMALL["lm"])
    with pytest.raises(ValueError, match="`tokens` are integers"):
        archc.mixer_matrix(model, torch.zeros(1, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match="not made by"):
        archc.mixer_matrix(nn.Linear(2, 2), torch.zeros(1, 2, 2))
    layer, values = built("gla")
    with pytest.raises(TypeError, match="GLA takes x"):
        archc.mixer_matrix(layer)
    with pytest.raises(TypeError, match="GLA takes x"):
        archc.mixer_matrix(layer, values["x"], values["x"])


class Doubled(nn.Module):
    """A parametrization: twice the weight."""

    def forward(self, weight: Tensor) -> Tensor:
        return 2 * weight


@pytest.mark.parametrize("name", ["gla", "transformer"])
def test_modules_that_are_compiled_or_parametrised(name: str) -> None:
    """The weights are what a module computes with, wherever PyTorch keeps them."""
    layer, values = built(name)
    wanted = archc.mixer_matrix(layer, **values).data
    compiled = torch.compile(layer, backend="eager")
    assert torch.equal(archc.mixer_matrix(compiled, **values).data, wanted)

    path = next(path for path, _ in layer.named_parameters())
    owner, _, weight = path.rpartition(".")
    doubled = copy.deepcopy(layer)
    dict(doubled.named_parameters())[path].data.mul_(2)
    wanted = archc.mixer_matrix(doubled, **values).data
    torch.nn.utils.parametrize.register_parametrization(
        layer.get_submodule(owner), weight, Doubled()
    )
    assert torch.equal(archc.mixer_matrix(layer, **values).data, wanted)


def test_a_matrix_with_a_gradient():
    """For weights and inputs, as finite differences have it; norms have none."""
    layer = archc.load("linear_attention_simple").module(d=4, H=2)
    x = torch.randn(1, 5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def total(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            layer.W_k.copy_(w)
        found = archc.mixer_matrix(layer, x, with_grad=True)
        assert found.exact and torch.equal(found.data.detach(), archc.mixer_matrix(layer, x).data)
        return found.data.square().sum()

    w = layer.W_k.detach().clone()
    x.requires_grad_()
    grads = torch.autograd.grad(total(w, x), (layer.W_k, x))
    step = 2.0**-7
    for at, which in ((1, layer.W_k), (7, x)):
        shift = torch.zeros(which.numel(), dtype=which.dtype)
        shift[at] = step
        shift = shift.view(which.shape)
        ends = [
            total(w + s * shift, x) if which is not x else total(w, x + s * shift) for s in (1, -1)
        ]
        slope = float((ends[0] - ends[1]) / (2 * step))
        found = float(grads[0 if which is not x else 1].flatten()[at])
        assert slope == pytest.approx(found, rel=1e-2)
    with pytest.raises(ValueError, match="has no gradient"):
        archc.mixer_matrix(archc.load("lstm").module(d=3, D=3), x[..., :3], with_grad=True)
