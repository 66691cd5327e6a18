"""Layer IR as text and JSON."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from textwrap import dedent

import pytest
import sympy

import archc
from archc.dims import TIME
from archc.elaborate.elaborate import elaborate
from archc.ir import layer as ir
from archc.ir.text import as_json, as_text, number_text, option_text
from archc.ir.typing import layer_graph
from archc.specfile import bundled, import_source, read
from archc.syntax.parse import parse
from tests.graphs import Sketch, axis, layer


@lru_cache
def spec(name: str) -> ir.Layer:
    return elaborate(parse(read(name)), None, {}, import_source)


def memory() -> ir.Layer:
    """S[t] = S[t-1] + k v^T, o = S[t]^T k."""
    inner = Sketch()
    k, v, before = inner.input("k", "batch K"), inner.input("v", "batch V"), None
    before = inner.input("S[t-1]", "batch K V")
    outer = inner.einsum("batch K, batch V -> batch K V", k, v)
    after = inner.fn("add", before, outer)
    inner.outputs(S=after, o=inner.einsum("batch K V, batch K -> batch V", after, k))
    sketch = Sketch()
    x, w = sketch.input("x", "batch t d"), sketch.param("W", "d K")
    k = sketch.einsum("batch t d, d K' -> batch t K':K", x, w)
    sketch.graph.rename(k, "k")
    state = ir.State("S", tuple(axis(name) for name in ("batch", "K", "V")))
    recurrence = ir.Recurrence(TIME, ("k", "v"), (state,), inner.graph)
    made = sketch.add(recurrence, k, sketch.input("v", "batch t V"), sketch.number(0))
    sketch.outputs(o=sketch.add(ir.Result("o"), made, name="o"))
    return layer(sketch, "d K V")


def test_text_of_a_small_layer():
    assert as_text(memory()) == dedent("""\
        layer Test(d, K, V)
        x = input : [batch, t, d]
        W = param normal(0, 1) : [d, K]
        k = contract[batch t d, d K -> batch t K](x, W) : [batch, t, K]
        v = input : [batch, t, V]
        %0 = 0 : int[]
        %1 = recurrence[t](k = k, v = v, S[start] = %0)
            k = input : [batch, K]
            v = input : [batch, V]
            S[t-1] = input : [batch, K, V]
            %0 = contract[batch K, batch V -> batch K V](k, v) : [batch, K, V]
            %1 = add(S[t-1], %0) : [batch, K, V]
            %2 = contract[batch K V, batch K -> batch V](%1, k) : [batch, V]
            -> S = %1, o = %2
        o = %1.o : [batch, t, V]
        -> o
    """)


def test_labels_that_would_clash_are_kept():
    """Axes that change their names with one another must not print as the identity."""
    sketch = Sketch()
    x, y = sketch.input("x", "batch t K"), sketch.input("y", "batch t K'")
    sketch.outputs(z=sketch.einsum("batch t K, batch t K' -> batch t K:K' K':K", x, y))
    assert "contract[batch t K, batch t K' -> batch t K:K' K':K](x, y)" in as_text(layer(sketch))


@pytest.mark.parametrize("name", bundled())
def test_every_value_is_defined_once_and_before_it_is_read(name: str):
    for text in as_text(spec(name)).split("\n\n"):
        scopes: list[set[str]] = []
        for line in text.split("\n")[1:]:
            found = re.match(r"( *)(\S+(?: \S+)*?) = (.*?)(?: : \S.*)?$", line.split("  #")[0])
            if not found or line.startswith(("require ", "axis ", "chunk ")):
                continue
            depth = len(found[1]) // 4
            del scopes[depth + 1 :]
            scopes += [set()] * (depth + 1 - len(scopes))
            assert found[2] not in scopes[depth], line
            for used in re.findall(r"%\d+", re.sub(r"^.*?\(", "(", found[3])):
                assert used in scopes[depth], line
            scopes[depth] = scopes[depth] | {found[2]}


@pytest.mark.parametrize("name", ["gla", "mla"])
def test_text_depends_on_the_spec_alone(name: str):
    again = elaborate(parse(read(name)), None, {}, import_source)
    assert as_text(again) == as_text(spec(name))


def test_called_layers_follow_once():
    text = as_text(spec("transformer"))
    assert len(re.findall(r"^layer \w+\(", text, re.MULTILINE)) == 2
    assert text.startswith("block Transformer(")


def test_spans_can_be_left_out():
    assert "# gla.arch:" in as_text(spec("gla"))
    assert "#" not in as_text(spec("gla"), spans=False)


@pytest.mark.parametrize("name", bundled())
def test_json_is_plain_and_whole(name: str):
    data = json.loads(json.dumps(as_json(spec(name))))
    first = data["layers"][0]
    assert first["name"] == spec(name).name
    assert len(first["nodes"]) == len(spec(name).graph)
    for number, node in enumerate(first["nodes"]):
        assert node["id"] == number
        assert all(operand < number for operand in node["operands"])
    assert set(first["outputs"]) == set(spec(name).graph.outputs)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("1/100000", "1e-5"), ("1223/500", "2.446"), ("1/3", "1/3"), ("-7", "-7"), ("1/2", "0.5"),
        ("123456789123456789/10", "123456789123456789/10"),
    ],
)  # fmt: skip
def test_numbers_are_shown_exactly(value: str, shown: str):
    assert number_text(sympy.Rational(value)) == shown
    assert sympy.Rational(shown) == sympy.Rational(value)


def test_options_are_shown_as_a_spec_writes_them():
    values = (None, True, 1, "exp", (3, 7), [sympy.Rational(1, 2)])
    shown = ["none", "true", "1", '"exp"', "[3, 7]", "[0.5]"]
    assert [option_text(value) for value in values] == shown


def test_an_empty_graph_has_a_text():
    sketch = Sketch()
    sketch.graph = layer_graph()
    assert as_text(layer(sketch)) == "layer Test()\n-> \n"


def test_a_layer_that_is_given_is_shown_by_its_name():
    text = (
        "layer Part(p):\n    input x[p]\n    output y[p] = tanh(x)\n\n"
        "block Around(p, inside):\n    input x[p]\n    output y[p] = x + inside(x)\n\n"
        "layer L(d):\n    input x[d]\n    output y[d] = Around(d, inside = Part(d))(x)\n"
    )
    assert "block Around(p, inside = Part, " in as_text(archc.parse(text).layer, spans=False)
