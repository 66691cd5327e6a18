"""The Python face: load, parse, modules, the memory as a function, source, pictures."""

from __future__ import annotations

import copy
import inspect
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import archc
from archc.diagnostics import ArchError

SPEC = """
layer First(d, K = 3):
    input x[d]
    param W[d, K] = 1
    output y[K] = x @ W

layer Last(d, kind = "soft"):
    input x[d]
    output y[d] = sigmoid(x) if kind == "soft" else x
"""


def codes(error: pytest.ExceptionInfo[ArchError]) -> list[str]:
    return [finding.code for finding in error.value.diagnostics]


def test_import_costs_nothing():
    text = "import sys, archc; print([n for n in ('torch', 'sympy', 'lark') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert {"load", "parse", "Spec", "ArchError"} <= set(dir(archc))
    with pytest.raises(AttributeError, match="nothing"):
        _ = archc.nothing


def test_load_by_name_path_and_layer(tmp_path: Path):
    path = tmp_path / "two.arch"
    path.write_text(SPEC, encoding="utf-8")
    assert archc.load("kda").name == "KDA"
    assert archc.load(str(path)).name == archc.load(path).name == "Last"
    assert archc.load(f"{path}:First").name == archc.load(str(path), "First").name == "First"
    with pytest.raises(ArchError) as error:
        archc.load("kdaa")
    assert codes(error) == ["E0001"] and "did you mean `kda`" in str(error.value)


def test_mistakes_are_found_when_loading():
    with pytest.raises(ArchError) as error:
        archc.parse("layer A(d):\n    input x[d]\n    output y = x + z\n")
    assert codes(error) == ["E0201"]


def test_given_sizes_become_defaults():
    module = archc.parse(SPEC, "First", K=5).module(d=2)
    assert module.W.shape == (2, 5)
    assert archc.parse(SPEC, "First").module(d=2, K=4).W.shape == (2, 4)


def test_options_and_branches_may_be_given_to_module():
    spec = archc.parse(SPEC)
    x = torch.randn(1, 2, 3)
    torch.testing.assert_close(spec.module(d=3)(x), x.sigmoid())
    torch.testing.assert_close(spec.module(d=3, kind="hard")(x), x)
    sizes = {"d": 8, "H": 2, "K": 4, "R": 2, "V": 3, "C": 5}
    direct = archc.load("mla").module(**sizes, Q=0)
    latent = archc.load("mla").module(**sizes, Q=6)
    assert hasattr(latent, "W_DQ") and not hasattr(direct, "W_DQ")


@pytest.mark.parametrize(
    ("sizes", "code"),
    [({}, "E0502"), ({"d": 2, "k": 1}, "E0501"), ({"d": 2.5}, "E0503"), ({"d": -1}, "E0503")],
)
def test_wrong_sizes(sizes: dict[str, float], code: str):
    with pytest.raises(ArchError) as error:
        archc.parse(SPEC, "First").module(**sizes)
    assert code in codes(error)


def test_device_and_dtype():
    module = archc.load("gla").module(d=8, H=2, r=2, device="meta", dtype=torch.bfloat16)
    assert {p.device.type for p in module.parameters()} == {"meta"}
    assert {p.dtype for p in module.parameters()} == {torch.bfloat16}


def test_parameters_are_drawn_as_the_spec_says():
    torch.manual_seed(0)
    module = archc.load("kda").module(d=400, H=8, K=16, V=16)
    assert module.A_log.min() >= 0 and module.A_log.max() <= torch.tensor(16.0).log()
    dt = torch.nn.functional.softplus(module.dt_bias)
    assert dt.min() >= 0.001 and dt.max() <= 0.1
    assert torch.equal(module.gain, torch.ones(16))
    assert module.W_q.std().item() == pytest.approx(400**-0.5, rel=0.05)
    assert module.c_q.std().item() == pytest.approx(0.5, rel=0.1)


def test_state_dict_names_are_the_spec_s():
    names = set(archc.load("transformer").module(d=8, H=2).state_dict())
    assert {"n1", "n2", "attention.W_q", "swiglu.W_gate"} <= names
    names = set(archc.load("lm", L=2).module(vocab=5, d=8, H=2).state_dict())
    assert "layers.1.transformer.attention.W_o" in names


def test_a_layer_as_an_argument():
    inner = torch.nn.Linear(4, 4)
    module = archc.load("hyper_connected").module(d=4, n=2, inner=inner)
    assert module(torch.randn(1, 3, 2, 4)).shape == (1, 3, 2, 4)
    assert "inner.weight" in module.state_dict()


def test_modules_can_be_copied_pickled_and_shown():
    module = archc.load("gla").module(d=8, H=2, r=2)
    x = torch.randn(1, 3, 8)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        torch.testing.assert_close(other(x), module(x))
    assert "d=8, H=2" in repr(module)


def test_op_is_the_memory_alone():
    q, k = torch.randn(2, 2, 7, 3, 4).unbind(0)
    v, log_alpha, beta = torch.randn(2, 7, 3, 5), -torch.rand(2, 7, 3, 4), torch.rand(2, 7, 3)
    op = archc.load("kda").op
    names = ["q", "k", "v", "log_alpha", "beta", "state", "chunk", "cu_seqlens"]
    assert list(inspect.signature(op).parameters) == names
    o, state = op(q, k, v, log_alpha, beta)
    assert state._fields == ("S",) and state.S.shape == (2, 3, 4, 5)
    S, expected = torch.zeros(2, 3, 4, 5), []
    for t in range(7):
        S = log_alpha[:, t, :, :, None].exp() * S
        error = v[:, t] - torch.einsum("bhk,bhkv->bhv", k[:, t], S)
        S = S + beta[:, t, :, None, None] * k[:, t, :, :, None] * error[:, :, None]
        expected.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]) / 2)
    torch.testing.assert_close(o, torch.stack(expected, 1))
    torch.testing.assert_close(state.S, S)
    parts = (
        [x[:, :3] for x in (q, k, v, log_alpha, beta)],
        [x[:, 3:] for x in (q, k, v, log_alpha, beta)],
    )
    first, state = op(*parts[0])
    second, state = op(*parts[1], state=state)
    torch.testing.assert_close(torch.cat([first, second], 1), o)


def test_op_keeps_states_in_float32():
    args = [torch.rand(1, 4, 2, 3, dtype=torch.bfloat16) for _ in range(4)]
    o, state = archc.load("gla").op(*args)
    assert o.dtype == torch.bfloat16 and state.S.dtype == torch.float32


def test_autocast_does_not_reach_the_states():
    args = [torch.rand(1, 20, 2, 3) for _ in range(4)]
    o, state = archc.load("gla").op(*args)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        same, kept = archc.load("gla").op(*args)
    assert torch.equal(o, same) and torch.equal(state.S, kept.S)


def test_op_of_an_attention_carries_its_cache():
    q, k, v = torch.randn(3, 2, 6, 4, 8).unbind(0)
    op = archc.load("attention").op
    o, state = op(q, k, v)
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), is_causal=True
    )
    torch.testing.assert_close(o, expected.transpose(1, 2))
    first, state = op(q[:, :5], k[:, :5], v[:, :5])
    second, state = op(q[:, 5:], k[:, 5:], v[:, 5:], state=state)
    torch.testing.assert_close(torch.cat([first, second], 1), o)
    assert state.k.shape == (2, 6, 4, 8) and state.pos == 6


def test_fused_op_and_its_options():
    op = archc.load("gla").fused_op
    parameters = inspect.signature(op).parameters
    names = ["q", "k", "v", "log_alpha", "b_a", "state", "chunk", "cu_seqlens", "tau"]
    assert list(parameters) == names and parameters["tau"].kind.name == "KEYWORD_ONLY"
    q, k, alpha = torch.randn(3, 1, 4, 2, 3).unbind(0)
    o, _ = op(q, k, torch.randn(1, 4, 2, 5), alpha, torch.zeros(2, 3), tau=16)
    assert o.shape == (1, 4, 2, 5)


def test_op_is_refused_without_a_memory():
    with pytest.raises(ValueError, match="SwiGLU has no recurrence or attention"):
        _ = archc.load("swiglu").op


def test_op_names_what_does_not_fit():
    q = torch.randn(1, 4, 2, 3)
    with pytest.raises(ValueError, match=r"`log_alpha` must be \[B, T, H, K\] with H = 2"):
        archc.load("gla").op(q, q, q, torch.rand(1, 4, 3, 3))


def test_source_picture_and_repr():
    spec = archc.load("swiglu")
    compile(spec.source(), "swiglu.py", "exec")
    assert spec._repr_html_().startswith("<svg")
    assert repr(spec).startswith("<archc layer SwiGLU(d, f) of swiglu.arch\n")
    assert spec.layer.name == spec.name == "SwiGLU"


def test_classes_are_those_of_the_command_line():
    """Of the graph after algebra, in which the product of a delta rule is a correction."""
    from archc.commands.profile import profile

    for name in ("delta", "gla", "mom"):
        texts = [found.text for found in archc.load(name).classify()]
        assert "; ".join(dict.fromkeys(texts)) == profile(name).memory


@pytest.mark.default("gla", "lstm", "attention", "linear_attention_full")
@pytest.mark.parametrize(
    "spec", ["gla", "lstm", "attention", "mesa", "nsa", "linear_attention_full"]
)
def test_one_signature_of_every_memory(spec: str) -> None:
    """Values, then what every memory takes, then options that have the spec's defaults."""
    spec_of = archc.load(spec)
    for run in (spec_of.op, spec_of.fused_op):
        parameters = inspect.signature(run).parameters
        positional = [name for name, p in parameters.items() if p.kind is not p.KEYWORD_ONLY]
        assert positional[-3:] == ["state", "chunk", "cu_seqlens"]
        found = [parameters[name].default for name in positional[-3:]]
        assert found == [None, 64, None]
        given = {arg.name: arg.default for arg in spec_of.layer.args}
        for name in parameters.keys() - {*positional}:
            assert parameters[name].default == given[name]


def test_a_chunk_is_looked_at_where_there_is_none() -> None:
    op = archc.load("attention").op
    q = torch.randn(1, 5, 2, 4)
    assert torch.equal(op(q, q, q, chunk=None)[0], op(q, q, q)[0])
    with pytest.raises(ValueError, match="`chunk` must be a number of tokens, at least 1, or None"):
        op(q, q, q, chunk=0)
