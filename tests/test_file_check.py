"""The self-check of written files: wrong passes are refused, choices are exercised."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import sympy
import torch
from archc.backends.eager.file import top_level

import archc
from archc import compile as pipeline
from archc.diagnostics import ArchError, InternalError
from archc.file_check import distance
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.choices import leaving_out
from archc.ir.graph import Graph, Node
from archc.ir.plan import examples
from archc.runtime.selfcheck import worst
from tests.console import run

Made = Callable[[Graph, Node], int | None]

INVERSE = """layer Inverse(d, K = 3):
    input x[d]
    param W_q, W_k, W_v[d, K]; tau[] = 1
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    attend s <= t:
        o = softmax(tau / (q[t].T @ k[s])) @ v[s]
    output y[K] = o
"""
CHANNELS = "layer Channels(d):\n    input x[d]\n    output y[d] = tanh(x)\n"
DEEP = """layer Deep(d, f):
    input x[d]
    param W[d, f]; U[f, d]
    h = x
    repeat {layers} as l:
        h = h + 4 * sin(3 * h @ W) @ U
    output y[d] = h
"""
ROUTED = """layer Routed(d, N):
    input x[d]
    param W[d, N]
    route e in top(3000, x @ W):
        made = x
    output y[d] = made
"""
NORMED = """layer Normed(d, eps = 1e-7):
    input x[d]
    output y[d] = rmsnorm[d](x, eps)
"""
SUM = """layer Sum(d):
    input x[d]
    recurrence S[d]:
        S[t] = S[t-1] / 2 + x
    output y[d] = tanh(S)
"""
LATER = """layer Later(d):
    input x[d], a[d]
    recurrence S[d]:
        S[t] = sigmoid(a) * S[t-1] + x
    attend all s:
        o = softmax(x[t].T @ x[s]) @ S[s]
    output y[d] = o
"""


def changed(graph: Graph, make: Made) -> Graph:
    """A graph in which other nodes stand for some, in bodies too."""
    graph = graph.copy()
    for id in [node.id for node in graph]:
        node = graph[id]
        new = make(graph, node)
        if isinstance(node.op, ir.Attend):
            op = replace(node.op, body=changed(node.op.body, make))
            new = graph.add(op, *node.operands)
        if new is not None:
            graph.substitute(node.id, new)
    graph.prune([node.id for node in graph if isinstance(node.op, ir.Input | ir.Param)])
    return graph


def plant(monkeypatch: pytest.MonkeyPatch, after: str, make: Made) -> None:
    """A wrong pass after another one; nothing that was kept of the layer before is taken."""
    at = [name for name, _ in pipeline.PASSES].index(after) + 1
    wrong = ("wrong", lambda layer: replace(layer, graph=changed(layer.graph, make)))
    passes = (*pipeline.PASSES[:at], wrong, *pipeline.PASSES[at:])
    monkeypatch.setattr(pipeline, "PASSES", passes)
    for kept in ("before_chunks", "with_chunked_forms"):
        monkeypatch.setattr(pipeline, kept, getattr(pipeline, kept).__wrapped__)
    monkeypatch.setattr(pipeline, "DERIVING", [name for name, _ in passes].index("chunk"))


def numerator_in_query(graph: Graph, node: Node) -> int | None:
    """`tau / scores` -> `tau * scores`, as a fold would have it that takes it for a scale."""
    if node.op != ir.Elementwise("div") or not {"t", "s"} <= {*node.type.names}:
        return None
    return graph.add(ir.Elementwise("mul"), *node.operands)


def one_channel(graph: Graph, node: Node) -> int | None:
    """The second channel of a tanh is larger."""
    if node.op != ir.Elementwise("tanh"):
        return None
    one, more = (graph.add(ir.Constant(sympy.Rational(n, 100))) for n in (100, 101))
    place = graph.add(ir.Position(node.type.axes[-1]))
    second = graph.add(ir.Elementwise("eq"), place, graph.add(ir.Constant(sympy.Integer(1))))
    factor = graph.add(ir.Elementwise("where"), second, more, one)
    return graph.add(ir.Elementwise("mul"), graph.add(node.op, *node.operands), factor)


def one_more(graph: Graph, node: Node) -> int | None:
    """One more than the best n are chosen."""
    if not isinstance(node.op, ir.Top):
        return None
    return graph.add(replace(node.op, count=node.op.count + 1), *node.operands)


def longer_window(graph: Graph, node: Node) -> int | None:
    """Attention sees one token more."""
    if node.op not in (ir.Elementwise("lt"), ir.Elementwise("gt")):
        return None
    late = ir.Elementwise({"lt": "le", "gt": "ge"}[node.op.fn])
    return graph.add(late, *node.operands)


def without_a_cap(graph: Graph, node: Node) -> int | None:
    """tanh(x) -> x, which is much the same for a score far below its cap."""
    return node.operands[0] if node.op == ir.Elementwise("tanh") else None


def another_eps(graph: Graph, node: Node) -> int | None:
    """Twice the smallest constant."""
    if not isinstance(node.op, ir.Constant) or "eps" not in map(str, node.op.value.free_symbols):
        return None
    return graph.add(ir.Constant(2 * node.op.value))


def wrong_chunks(graph: Graph, node: Node) -> int | None:
    """The chunked form of a recurrence gives twice its result, its loop what it should."""
    if not isinstance(node.op, ir.Recurrence) or node.op.chunked is None:
        return None
    form: ck.ChunkForm = node.op.chunked
    forward = form.forward.copy()
    two = forward.add(ir.Constant(sympy.Integer(2)))
    name = next(name for name in forward.outputs if name not in form.saved)
    made = forward.add(ir.Elementwise("mul"), forward.outputs[name], two)
    forward.outputs[name] = made
    return graph.add(replace(node.op, chunked=replace(form, forward=forward)), *node.operands)


@pytest.mark.parametrize("after", ["simplify", "scales", "absorb", "gates", "chunk"])
@pytest.mark.parametrize(("text", "make"), [(INVERSE, numerator_in_query), (CHANNELS, one_channel)])
def test_a_wrong_pass_is_refused_wherever_it_stands(
    monkeypatch: pytest.MonkeyPatch, after: str, text: str, make: Made
):
    """What is held against it is the layer as it was elaborated, every number of it."""
    assert archc.parse(text).source()
    plant(monkeypatch, after, make)
    with pytest.raises(InternalError, match="against the meaning"):
        archc.parse(text).source()


def test_a_wrong_chunked_form_that_no_pieces_are_held_against(monkeypatch: pytest.MonkeyPatch):
    """A layer that looks at all tokens has no pieces: the file cannot compare chunks with them."""
    text = archc.parse(LATER).source()
    assert "def check_chunks" not in text and "CHUNK = " in text
    plant(monkeypatch, "chunk", wrong_chunks)
    with pytest.raises(InternalError, match="of 69 tokens"):
        archc.parse(LATER).source()


@pytest.mark.default("moe", "window_attention")
@pytest.mark.parametrize(
    ("name", "make"),
    [("moe", one_more), ("nsa", one_more), ("window_attention", longer_window)],
)
def test_a_wrong_choice_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, make: Made):
    """The drawn sizes leave out some of what there is to choose from."""
    plant(monkeypatch, "simplify", make)
    with pytest.raises(InternalError, match="against the meaning"):
        archc.load(name).source()


@pytest.mark.parametrize(
    ("text", "make"), [("capped_attention", without_a_cap), (NORMED, another_eps)]
)
def test_a_wrong_option_that_hardly_shows_is_refused(
    monkeypatch: pytest.MonkeyPatch, text: str, make: Made
):
    spec = archc.load(text) if text.isidentifier() else archc.parse(text)
    plant(monkeypatch, "simplify", make)
    with pytest.raises(InternalError, match="an error of"):
        spec.source()


def test_verify_and_derive_look_at_the_graph_after_algebra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """What is derived is held against that graph, so that is held against the spec."""
    path = tmp_path / "sum.arch"
    path.write_text(SUM)
    assert run("verify", str(path), "--tokens", "5").exit_code == 0
    plant(monkeypatch, "simplify", one_channel)
    done = run("verify", str(path), "--tokens", "5", "--json")
    wrong = [each["form"] for each in json.loads(done.stdout)["forms"] if not each["right"]]
    assert done.exit_code == 3 and "the graph after algebra" in wrong
    done = run("derive", str(path), "--as", "text")
    assert done.exit_code == 3 and "WRONG: the layer after algebra" in done.stderr


def test_sizes_are_drawn_so_that_choices_leave_something_out():
    for name in ("moe", "nsa"):
        layer = archc.load(name).layer
        found = [(tokens, next(examples(layer, 4, tokens), None)) for tokens in (9, 24)]
        tokens, sizes = next((t, sizes) for t, sizes in found if sizes is not None)
        symbols = {a.symbol: sizes[a.name] for a in layer.args if a.symbol is not None}
        assert all(c.subs(symbols) == sympy.true for c in leaving_out(layer, {}, tokens))


def test_a_dim_may_be_one_long():
    one = archc.parse("layer L(d):\n    input x[d]\n    param W[d, 1]\n    output y = x @ W\n")
    assert next(examples(one.layer, 4))["d"] > 1


def test_a_long_window_gets_a_long_sequence():
    text = archc.load("window_attention").source_file.text
    literal = re.sub(r"t - w\b", "t - 32", text).replace("w = 128, ", "")
    assert "\n    tokens=80,\n" in archc.parse(literal).source()
    assert "\n    tokens=9,\n" in archc.parse(text).source()


def test_what_no_instance_exercises_is_said():
    head = archc.parse(ROUTED).source().split('"""')[1]
    assert "anything to choose:\n    <text>:4: " in head and "top(3000, x @ W)" in head
    fewer = archc.parse(ROUTED.replace("3000", "2")).source().split('"""')[1]
    assert "to choose" not in fewer


@pytest.mark.parametrize("layers", [32, 48])
def test_deep_layers_that_bend_are_right(layers: int):
    """Differences lose their digits there, and rounding alone changes the outputs unless parameters
    are drawn nearer to 0."""
    assert "fill(layer, ranges, 0.5)" in archc.parse(DEEP.format(layers=layers)).source()


def test_a_gradient_that_is_0_but_for_rounding_is_right():
    """It has no size of its own that an error could be measured against."""
    archc.parse("""
layer L(d, K, V):
    input x[d]
    param W_k[d, K]; W_v[d, V]
    k = x @ W_k
    v = softmax[V](x @ W_v)
    a = mean[d](x)
    recurrence S[K, V]:
        S[t] = exp(-softplus(a)) * S[t-1] + k @ v.T
        o = S[t].T @ k
    output y[] = 100 * sum[V](o)
""").source()


def test_a_layer_that_rounding_alone_changes():
    text = DEEP.format(layers=4).replace("sin(3", "sin(100000")
    with pytest.raises(ArchError, match=r"E0507.*rounding alone"):
        archc.parse(text).source()


@pytest.mark.parametrize(
    ("value", "shown"),
    [("sqrt(x)", "nan"), ("1 + log(x) * 2", "nan"), ("exp(1000 + x)", "inf")],
)
def test_a_meaning_that_is_no_number(value: str, shown: str, tmp_path: Path):
    text = f"layer Root(d):\n    input x[d]\n    output y[d] = {value}\n"
    with pytest.raises(ArchError) as error:
        archc.parse(text).source()
    (found,) = error.value.diagnostics
    assert found.code == "E0507" and f" is {shown} in a small instance" in found.message
    assert found.label is not None and found.label.span.line == 3
    path = tmp_path / "root.arch"
    path.write_text(text)
    done = run("verify", str(path))
    assert done.exit_code == 1 and "E0507" in done.stderr
    assert archc.parse(text).module(d=2) is not None  # only the check has no numbers


def test_a_promise_keeps_it_a_number():
    text = "layer Root(d):\n    input x[d]\n    output y[d] = sqrt(x)\n    chunk: bound x >= 0\n"
    assert "sqrt" in archc.parse(text).source()


@pytest.mark.parametrize("name", ["CASE", "FORMS", "Case", "gradients_of", "in_pieces"])
def test_layers_may_have_the_names_of_the_check(name: str):
    assert archc.parse(CHANNELS.replace("layer Channels", f"layer {name}")).source()


def test_names_of_the_check_are_taken():
    """What a file defines beside its layers no layer is called by."""
    assert {"check_pieces", "wave", "Case"} <= top_level()
    assigned = re.findall(r"^([A-Z_]+) = ", archc.parse(CHANNELS).source(), re.M)
    assert {*assigned} == {"CASE", "FORMS"} <= top_level()


def test_slopes_at_corners_do_not_fail_forms_that_take_tokens_together() -> None:
    """A chunk that has a token without a slope has others without; wrong finite ones still show."""
    nan, right = float("nan"), torch.tensor([1.0, 2.0, 3.0])
    corner, chunk = torch.tensor([nan, 2.0, 3.0]), torch.tensor([nan, nan, 3.0])
    for measure in (distance, lambda x, y: worst([*x], [*y])):
        assert measure((chunk, right), (corner, right)) == 0
        assert measure((chunk + 1, right), (corner, right)) > 0.1
        assert measure((chunk, right), (right, right)) == math.inf
