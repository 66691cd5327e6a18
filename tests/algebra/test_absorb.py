"""Latents in place of keys and values: which attentions keep one, and that nothing else changes."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import sympy
import torch

import archc
from archc.algebra import absorb as absorption
from archc.algebra.absorb import absorb
from archc.algebra.simplify import simplify
from archc.dims import in_words
from archc.ir import layer as ir
from archc.ir.count import cost
from archc.ir.decode import decode_pays
from archc.ir.initial import sample_layer
from archc.ir.meaning import evaluate
from archc.ir.rewrite import rewrite
from archc.ir.sizes import resolve_sizes
from archc.specfile import bundled

SMALL = {"d": 12, "H": 4, "K": 6, "V": 5, "C": 7, "R": 4, "Q": 8, "G": 2}

PARAMS = {
    "A": "d, C", "P": "C, H, K", "N": "C, H, K", "PG": "C, G, K", "NG": "C, G, K",
    "W": "d, H, K", "O": "H, K, d", "b": "H, K", "f": "H, K",
}  # fmt: skip
SIZES = {"d": None, "H": None, "K": 128, "C": 512, "G": 2}


def made(
    keys: str,
    values: str = "u @ N",
    *,
    score: str = "softmax(w[t].T @ m[s])",
    over: str = "s <= t over H",
    **defaults: int,
) -> ir.Layer:
    """An attention of keys m and values n that are made of a latent u, or so. Only the parameters
    and sizes that it has a use for are declared."""
    body = f"""
    w = x @ W
    u = rmsnorm[C](x @ A)
    m = {keys}
    n = {values}
    attend {over}:
        z = {score} @ n[s]
    output y[d] = z @ O"""
    params = {n: axes for n, axes in PARAMS.items() if re.search(rf"\b{n}\b", body)}
    used = {name for axes in params.values() for name in axes.split(", ")}
    sizes = {name: value for name, value in (SIZES | defaults).items() if name in used}
    free = [name for name, value in sizes.items() if value is None]
    given = [f"{name} = {value}" for name, value in sizes.items() if value is not None]
    declared = "; ".join(f"{name}[{axes}]" for name, axes in params.items())
    head = f"layer Made({', '.join(free + given)}):\n    input x[d]\n    param {declared}"
    return simplify(archc.parse(head + body).layer)


def layer_of_spec(name: str) -> ir.Layer:
    return simplify(archc.load(name).layer)


def pairs(layer: ir.Layer) -> list[ir.Node]:
    return [node for node in layer.graph if isinstance(node.op, ir.Attend)]


def kept(layer: ir.Layer) -> list[str]:
    """Names of what an attention reads of earlier tokens."""
    (node,) = pairs(layer)
    roles = zip(node.op.captures, node.operands, strict=True)
    return [name for (name, role), id in roles if role == "read"]


def decoding(layer: ir.Layer) -> ir.Layer:
    """The layer with the second form of each attention alone."""

    def second(graph: ir.Graph, node: ir.Node) -> int | None:
        if not isinstance(node.op, ir.Attend) or node.op.decode is None:
            return None
        op = replace(node.op, body=node.op.decode, decode=None)
        return graph.add(op, *node.operands)

    return rewrite(layer, [second])


def agree(one: ir.Layer, *others: ir.Layer) -> None:
    """Equal outputs on random numbers, in float64."""
    known = {a.name: SMALL[a.name] for a in one.args if a.name in SMALL}
    sizes = resolve_sizes(one, known)
    params = sample_layer(one, sizes)
    inputs = {"x": torch.randn(2, 6, sizes["d"], dtype=torch.float64)}
    expected = evaluate(one, inputs, params, sizes).outputs["y"]
    for other in others:
        found = evaluate(other, inputs, params, sizes).outputs["y"]
        assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)


def per_token_products(op: ir.Attend) -> list[ir.Node]:
    """Products for each token read, whoever reads it: the expansions of a latent."""
    body = op.decode or op.body
    wide = [n for n in body if isinstance(n.op, ir.Contract) and op.read.name in n.type.names]
    return [n for n in wide if op.reader.name not in n.type.names]


@pytest.mark.parametrize("name", ["mla", "dsa"])
def test_latent_attention_keeps_its_latent(name: str) -> None:
    before = layer_of_spec(name)
    after = absorb(before)
    node, *losses = [n for n in pairs(after) if n.op.decode is not None]
    for each in (node, *losses):
        reads = {name for name, role in each.op.captures if role == "read"}
        assert reads == {"c", "k_r"} | ({"ki"} if each is not node else set())
        assert not per_token_products(each.op)
    assert len(losses) == (name == "dsa")
    agree(before, after, decoding(after))


def test_576_values_a_token_are_kept_of_latent_attention() -> None:
    layer = layer_of_spec("mla")
    C, R, H, K, V = (a.symbol for n in "CRHKV" for a in layer.args if a.name == n)
    assert cost(absorb(layer)).cache == C + R
    assert sympy.simplify(cost(layer).cache - (H * (K + V) + R)) == 0
    sizes = {C: 512, R: 64, H: 128, K: 128, V: 128}
    assert cost(absorb(layer)).cache.subs(sizes) == 576
    assert cost(layer).cache.subs(sizes) == 32768 + 64


def test_the_whole_sequence_takes_as_many_operations_as_before() -> None:
    layer = layer_of_spec("mla")
    before, after = (cost(each).flops for each in (layer, absorb(layer)))
    same = {symbol: sympy.Symbol("T") for symbol in after.free_symbols if str(symbol)[0] == "T"}
    same |= {symbol: sympy.Symbol("T") for symbol in before.free_symbols if str(symbol)[0] == "T"}
    assert sympy.simplify((before - after).subs(same)) == 0


def test_when_the_second_form_takes_fewer_operations() -> None:
    (node,) = pairs(absorb(layer_of_spec("mla")))
    left, right = decode_pays(node.op)
    sizes = {"C": 512, "K": 128, "V": 128}

    def pays(T: int, T_seen: int) -> bool:
        point = sizes | {"T#": T, "T_seen#": T_seen}
        values = [
            side.subs({s: point[str(s)] for s in side.free_symbols}) for side in (left, right)
        ]
        return bool(values[0] < values[1])

    assert pays(1, 1000) and pays(100, 100_000)  # a token, or a few of many
    assert not pays(1, 1) and not pays(1000, 1000)  # a prompt
    assert not pays(200, 100_000)  # enough readers that expanding once is less


LATENT = ("deepseek_v3", "dsa", "kimi_linear", "mla")
"""Specs whose keys are a product of fewer numbers, which is absorbed."""


@pytest.mark.parametrize("name", [n for n in bundled() if n not in LATENT])
def test_other_specs_stay_as_they_are(name: str) -> None:
    layer = layer_of_spec(name)
    assert absorb(layer) is layer


FORMS = {
    "other names": "u @ P",
    "a bias on keys": "u @ P + b",
    "a scale on keys": "(u @ P) * f",
    "a difference": "b - u @ P / 3",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_layer_is_recognised_by_its_algebra(form: str) -> None:
    before = made(FORMS[form])
    after = absorb(before)
    assert kept(after) == ["u"]
    assert not per_token_products(pairs(after)[0].op)
    agree(before, after, decoding(after))


def test_heads_that_share_keys_read_weights_by_group() -> None:
    before = made("u @ PG", "u @ NG", over="s <= t over H grouped G", C=64, G=8)
    after = absorb(before)
    assert kept(after) == ["u"]
    assert not per_token_products(pairs(after)[0].op)
    agree(before, after, decoding(after))


def test_a_memory_without_softmax() -> None:
    before = made("u @ P", score="(w[t].T @ m[s])")
    after = absorb(before)
    assert kept(after) == ["u"]
    agree(before, after, decoding(after))


def test_what_is_not_linear_in_the_latent_stops_it() -> None:
    before = made("tanh(u @ P)", C=64)
    after = absorb(before)
    assert kept(after) == ["m", "u"]  # the latent serves the values alone
    agree(before, after, decoding(after))


def test_what_depends_on_another_value_of_the_token_stops_it() -> None:
    layer = made("(u @ P) * w", "tanh(u @ N)")
    assert absorb(layer) is layer


def test_a_latent_larger_than_keys_and_values_is_not_kept() -> None:
    layer = made("u @ P", H=2, K=16)
    assert absorb(layer) is layer


def test_all_tokens_are_not_read_token_by_token() -> None:
    layer = made("u @ P", over="all s over H")
    assert absorb(layer) is layer


def test_the_decision_as_text() -> None:
    (decision,) = absorption.decisions(layer_of_spec("mla"))
    before, expanded, absorbed = decision.options
    assert [o.name for o in decision.options] == [
        "keep k_c, k_r, v",
        "keep c, k_r; expand",
        "keep c, k_r; absorb",
    ]
    assert str(expanded.cache) == str(absorbed.cache) == "C + R"
    assert str(before.cache) == "H*K + H*V + R"
    condition = "T*(C*(K + V) + T_seen*(2*C - K - V)) < C*T_seen*(K + V)"
    assert condition in in_words(decision.condition)


def state_of(layer: str, **sizes: int) -> tuple[torch.nn.Module, object]:
    module = archc.load(layer).module(**sizes, dtype=torch.float64)
    x = torch.randn(2, 9, sizes["d"], dtype=torch.float64)
    return module, x


def test_tokens_after_a_prompt_equal_the_whole_sequence() -> None:
    """The prompt is expanded and the tokens after it are absorbed, from the same state."""
    module, x = state_of("mla", d=12, H=3, K=4, V=4, C=16, R=4, Q=8)
    whole = module(x)
    y, state = module(x[:, :5], return_state=True)
    assert state._fields == ("c", "k_r", "pos")
    assert (state.c.shape, state.k_r.shape) == ((2, 5, 16), (2, 5, 4))
    parts = [y]
    for t in range(5, 9):
        y, state = module(x[:, t : t + 1], state=state, return_state=True)
        parts.append(y)
    assert torch.allclose(torch.cat(parts, 1), whole, rtol=1e-10, atol=1e-12)


def test_both_forms_are_taken_where_they_are_less(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = state_of("mla", d=12, H=3, K=4, V=4, C=16, R=4, Q=8)
    taken: list[str] = []
    space = type(module).forward.__globals__
    for name in ("mla_memory", "mla_memory_decode"):
        form = space[name]
        monkeypatch.setitem(
            space, name, lambda *a, name=name, form=form: (taken.append(name), form(*a))[1]
        )
    _, state = module(x[:, :8], return_state=True)
    module(x[:, 8:], state=state)
    assert taken == ["mla_memory", "mla_memory_decode"]
