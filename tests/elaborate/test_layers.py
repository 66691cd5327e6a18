"""Layers that call layers, arguments, decisions, and what is said about mistakes."""

from __future__ import annotations

import pytest
import sympy

from archc.diagnostics import ArchError
from archc.ir import layer as ir
from tests.elaborate.specs import codes, layer, refusal

MLP = """
layer MLP(d, f = 4 * d):
    input x[d]
    param W_in[d, f]; W_out[f, d]
    output y[d] = relu(x @ W_in) @ W_out
"""


def test_sizes_are_named_given_or_inferred() -> None:
    text = MLP + "\nblock B(d, f = 3 * d):\n    input x[d]\n    output y[d] = x + MLP(d, f)(x)\n"
    made = layer(text)
    ((_, call),) = made.calls
    d = made.args[0].symbol
    assert call.path == "mlp" and dict(call.sizes) == {"d": d, "f": made.args[1].symbol}
    assert made.args[1].default == 3 * d


def test_two_uses_share_one_layer_and_have_parameters_of_their_own() -> None:
    text = MLP + "\nblock B(d):\n    input x[d]\n    output y[d] = MLP(d, 8)(MLP(d)(x))\n"
    first, second = (call for _, call in layer(text).calls)
    assert first.callee is second.callee
    assert [first.path, second.path] == ["mlp", "mlp_2"]


def test_a_stack_shares_layers_that_take_the_same_branch() -> None:
    text = MLP + (
        "\nmodel M(d, L = 4, wide = [1, 2]):\n    input x[d]\n    repeat L as l:\n"
        "        param n[d] = 1\n"
        "        x = x + MLP(d, 8 * d if l in wide else d)(x * n)\n    output y[d] = x\n"
    )
    calls = [call for _, call in layer(text).calls]
    assert [call.path for call in calls] == ["layers.0", "layers.1", "layers.2", "layers.3"]
    assert calls[0].callee is calls[3].callee and calls[1].callee is calls[2].callee
    assert calls[0].callee is not calls[1].callee
    assert [dict(call.sizes)["l"] for call in calls] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("given", "odd"),
    [("l % 2 == 1", [0, 1, 0, 1]), ("l != 0 and wide", [0, 1, 1, 1]), ("L == 4", [1, 1, 1, 1])],
)
def test_a_condition_as_an_argument_is_settled_by_the_caller(given: str, odd: list[int]) -> None:
    text = (
        "layer A(d, odd, r = 2):\n    input x[d]\n    param W[d, d']\n"
        "    output y[d] = r * (x @ W) if odd else x @ W\n\n"
        "model M(d = 8, L = 4, wide = d > 4):\n    input x[d]\n    repeat L as l:\n"
        f"        x = x + A(d, {given})(x)\n    output x\n"
    )
    stack = layer(text).calls
    inner = [next(iter(call.callee.calls))[1].callee for _, call in stack]
    found = [{a.name: a.default for a in each.args}["odd"] for each in inner]
    assert found == [bool(each) for each in odd]
    unknown = text.replace(given, "d > 4").replace("M(d = 8", "M(d").replace(", wide = d > 4", "")
    assert "`d` has no value" in refusal(unknown)


def test_a_layer_as_an_argument() -> None:
    text = MLP + (
        "\nblock Twice(d, inner):\n    input x[d]\n    output y[d] = inner(inner(x))\n"
        "\nblock B(d, f):\n    input x[d]\n    output y[d] = Twice(d, MLP(d, f))(x)\n"
    )
    ((_, outer),) = layer(text).calls
    assert [call.callee.name for _, call in outer.callee.calls] == ["MLP", "MLP"]
    assert dict(outer.sizes)["inner_f"] == layer(text).args[1].symbol
    unknown = layer(text, name="Twice")
    assert {call.callee.kind for _, call in unknown.calls} == {"argument"}


def test_a_dim_of_a_layer_is_one_dim_of_its_caller() -> None:
    """Dims come in by their places: `h + u` has d before H."""
    text = (
        "layer Gated(d, H):\n    input a[H], b[H, d]\n    output y[H, d] = a * b\n"
        "\nblock B(d, H):\n    input x[d]\n    param W[d, H]; U[H]\n"
        "    output y[H, d] = Gated(d, H)(x @ W, {})\n"
    )
    turned = text.format("x + U")
    assert codes(turned) == ["E0311"]
    assert "is `H` of one value and `d` of another" in refusal(turned)
    layer(text.format("U + x"))


@pytest.mark.parametrize("by", ["0.5", "f / 4"])
def test_numbers_of_a_layer_that_is_an_argument(by: str) -> None:
    """What is whole as it is given is a size, and anything else a number."""
    text = "layer Scaled(d, by = 1):\n    input x[d]\n    output y[d] = by * x\n" + (
        "\nblock Twice(d, inner):\n    input x[d]\n    output y[d] = inner(inner(x))\n"
        f"\nblock B(d, f = 2):\n    input x[d]\n    output y[d] = Twice(d, Scaled(d, {by}))(x)\n"
    )
    ((_, outer),) = layer(text).calls
    known = {arg.name: arg.symbol for arg in outer.callee.args}
    assert known["inner_d"].is_integer and not known["inner_by"].is_integer


def test_a_branch_on_sizes_is_recorded() -> None:
    text = (
        "layer L(d, r = 0):\n    input x[d]\n    param W[d, r]; V[r, d]\n"
        "    output y[d] = x @ W @ V if r > 0 else x\n"
    )
    off, on = layer(text), layer(text, r=2)
    r = off.args[1].symbol
    assert [q.condition for q in off.requirements if q.settled] == [sympy.Le(r, 0)]
    assert [q.condition for q in on.requirements if q.settled] == [sympy.Gt(r, 0)]
    assert len(on.graph) > len(off.graph)


def test_groups_must_divide_heads() -> None:
    text = (
        "layer L(H, G, K):\n    input q[H, K], k[G, K]\n    attend s <= t over H grouped G:\n"
        "        o = softmax(q.T @ k[s]) @ k[s]\n    output o\n"
    )
    assert [q.text for q in layer(text).requirements] == ["H % G == 0"]


def test_order_of_lines_does_not_matter() -> None:
    text = "layer L(d):\n    input x[d]\n    output y[d] = b\n    b = a + 1\n    a = x * 2\n"
    assert codes(text) == []


def test_default_initial_value_knows_what_is_summed() -> None:
    made = layer(MLP)
    sizes = {op.name: op.init for _, op in made.params}
    d, f = (arg.symbol for arg in made.args)
    assert sizes["W_in"] == ir.Init("default", (d,)) and sizes["W_out"] == ir.Init("default", (f,))


def test_several_mistakes_are_found_in_one_run() -> None:
    text = (
        "layer L(d):\n    input x[d]\n    a = x @ V\n    b = sigmiod(x)\n"
        "    c = a + b\n    output y[e] = c + x\n"
    )
    assert codes(text) == ["E0201", "E0204", "E0202"]


def test_a_parameter_that_nothing_reads_is_a_mistake() -> None:
    text = "layer L(d):\n    input x[d]\n    param W[d, d']\n    output y[d] = x\n"
    assert codes(text) == ["E0220"]


def test_parameters_of_a_branch_not_taken_are_not_there() -> None:
    text = (
        "layer L(d, r = 0):\n    input x[d]\n    param W[d, r]; U[r, d]; A[d, d']\n"
        "    output y[d] = x @ W @ U if r > 0 else x @ A\n"
    )
    assert [op.name for _, op in layer(text).params] == ["A"]
    assert [op.name for _, op in layer(text, r=2).params] == ["W", "U"]


def test_one_mistake_does_not_cascade() -> None:
    text = (
        "layer L(d):\n    input x[d]\n    a = x + nothing\n    b = a * 2\n    output y[d] = a + b\n"
    )
    assert codes(text) == ["E0201"]


def test_a_shape_error_names_both_sides_and_where_they_come_from() -> None:
    text = (
        "layer L(d, K, V):\n    input x[d]\n    param A[d, K]; B[V, d]\n"
        "    q = x @ A\n    output y[d] = q @ B\n"
    )
    said = refusal(text)
    assert "`@` cannot join `K` with `V`" in said
    assert "`q` is [K]; `B` is [V, d]" in said
    assert "[K] from here" in said and "[V, d] from here" in said


def test_names_are_suggested() -> None:
    text = "layer L(d):\n    input x[d]\n    param W_gate[d, d']\n    output y[d] = x @ W_gat\n"
    assert "did you mean `W_gate`?" in refusal(text)


NAMES = ["__import__", "class", "batch", "chunk", "lambda", "None"]


@pytest.mark.parametrize("name", NAMES)
def test_names_of_python_and_of_every_function_are_refused(name: str) -> None:
    assert codes(f"layer L(d):\n    input {name}[d]\n    output y[d] = {name}\n") == ["E0015"]


def test_an_argument_nobody_has_is_refused() -> None:
    with pytest.raises(ArchError, match="E0405"):
        layer(MLP, g=3)


LOOPS = [
    MLP.replace("relu(x @ W_in) @ W_out", "MLP(d)(x @ W_in @ W_out)"),
    "function f(x):\n    return f(x)\n\nlayer L(d):\n    input x[d]\n    output y[d] = f(x)\n",
]


@pytest.mark.parametrize("text", LOOPS)
def test_what_calls_itself_is_refused(text: str) -> None:
    assert codes(text) == ["E0208"]
