"""What is blamed: the call that gives wrong values, the body that is wrong by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from archc.diagnostics import ArchError, Diagnostic
from archc.elaborate.elaborate import elaborate
from archc.source import Source
from archc.specfile import import_source
from archc.syntax.parse import parse

LAYER = "layer L(d, H, K):\n    input x[d], q[H, K]\n"


def findings(text: str, given: Mapping[str, Any] | None = None) -> tuple[Diagnostic, ...]:
    with pytest.raises(ArchError) as refused:
        elaborate(parse(Source("mine.arch", text)), None, given or {}, import_source)
    return refused.value.diagnostics


def only(text: str, given: Mapping[str, Any] | None = None) -> Diagnostic:
    (finding,) = findings(text, given)
    assert finding.label is not None
    return finding


def marked(finding: Diagnostic) -> tuple[str, list[str]]:
    """The text under the first mark, and under the others."""
    assert finding.label is not None
    return finding.label.span.text, [label.span.text for label in finding.others]


@pytest.mark.parametrize(
    ("call", "code", "file", "inside"),
    [
        ("cross_entropy[d](x, x)", "E0310", "library/norms.arch", "targets"),
        ("rmsnorm[K](x)", "E0301", "library/norms.arch", "D"),
        ("l2norm[K](x)", "E0301", "library/norms.arch", "D"),
        ("rope[K](x, 10000)", "E0301", "library/positions.arch", "D"),
    ],
)
def test_the_call_of_a_library_function(call: str, code: str, file: str, inside: str) -> None:
    found = only(LAYER + f"    output {call.partition('[')[0]}_ = {call}\n")
    first, others = marked(found)
    assert (found.code, first) == (code, call)
    assert any(label.span.source.name == file for label in found.others)
    assert inside in others


def test_the_outermost_call_of_a_chain_of_functions() -> None:
    text = "function twice(u):\n    return rmsnorm[K](u)\n" + LAYER + "    output y = twice(x)\n"
    assert findings(text)[0].code == "E0202"  # K is no dim of the function
    twice = "function twice[D](u):\n    return rmsnorm[D](u)\n"
    text = twice + LAYER + "    output y = twice[K](x)\n"
    found = only(text)
    first, others = marked(found)
    assert (found.code, first) == ("E0301", "twice[K](x)") and "D" in others


def test_a_body_that_is_wrong_by_itself_is_blamed_and_its_call_shown() -> None:
    text = "function f(u):\n    return u + w\n" + LAYER + "    output y = f(x)\n"
    found = only(text)
    assert found.code == "E0201" and marked(found) == ("w", ["f(x)"])
    assert found.others[0].text == "called here"


def test_a_called_layer_is_blamed_for_its_own_shapes() -> None:
    inner = "layer A(d, e):\n    input x[d]\n    param W[e, d]\n    output y[e] = x @ W\n"
    text = inner + LAYER + "    output y = A(d, K)(x)\n"
    found = only(text)
    first, others = marked(found)
    assert (found.code, first) == ("E0301", "x @ W") and others[-1] == "A(d, K)(x)"


def test_a_call_is_blamed_for_sizes_and_options_that_it_gives() -> None:
    head = "    input x[d]\n    param w[d]\n    output y[d] = x * w"
    inner = f"layer A(d, n):\n{head} if n == 1 else x\n"
    found = only(inner + LAYER + "    output y = A(d, H)(x)\n")
    first, others = marked(found)
    assert (found.code, first) == ("E0402", "A(d, H)(x)") and "n == 1" in others
    inner = f'layer A(d, n = "a"):\n{head} + n\n'
    found = only(inner + LAYER + '    output y = A(d, n = "b")(x)\n')
    assert (found.code, marked(found)[0]) == ("E0207", 'A(d, n = "b")(x)')


def test_the_nearest_call_is_shown_and_no_other() -> None:
    text = (
        "layer A(d):\n    input x[d]\n    param w[d]\n    output y[d] = x * v\n"
        "layer B(d):\n    input x[d]\n    param w[d]\n    output y[d] = A(d)(x) * w\n"
        + LAYER + "    output y = B(d)(x)\n"
    )  # fmt: skip
    assert marked(findings(text)[0]) == ("v", ["A(d)(x)"])


@pytest.mark.parametrize(
    ("text", "says", "call"),
    [
        ("layer A(d):\n    input x[d]\n    output y[d] = A(x)\n", "`A` calls itself", "A(x)"),
        (
            "layer A(d):\n    input x[d]\n    param w[d]\n    output y[d] = A(d)(x) * w\n",
            "`A` calls itself", "A(d)(x)",
        ),
        ("function f(u):\n    return 2 * f(u)\nlayer A(d):\n    input x[d]\n    output y = f(x)\n",
         "`f` calls itself", "f(u)"),
    ],
)  # fmt: skip
def test_a_layer_in_itself_is_named(text: str, says: str, call: str) -> None:
    found = only(text)
    assert found.code == "E0208" and says in found.message and marked(found)[0] == call


def test_layers_in_a_circle_are_named_in_their_order() -> None:
    text = "".join(
        f"layer {a}(d):\n    input x[d]\n    output y[d] = {b}(x)\n" for a, b in ("AB", "BC", "CA")
    )
    found = only(text)
    names = re.findall(r"`(\w)`", found.message)
    assert sorted(set(names)) == ["A", "B", "C"] and names[0] == names[3]
    order = {"A": "B", "B": "C", "C": "A"}
    assert [order[name] for name in names[:3]] == names[1:]


def test_a_layer_in_a_layer_of_its_own_kind_is_no_circle() -> None:
    text = (
        "layer Twice(d, inner):\n    input x[d]\n    param w[d]\n"
        "    output y[d] = inner(inner(x)) * w\n"
        "layer Scale(d):\n    input x[d]\n    param w[d]\n    output y[d] = x * w\n"
        "layer L(d):\n    input x[d]\n    output y[d] = Twice(d, Twice(d, Twice(d, Scale(d))))(x)\n"
    )
    elaborate(parse(Source("mine.arch", text)), None, {}, import_source)


@pytest.mark.parametrize(("given", "shown"), [("foo", "'foo'"), (-1, "-1"), (2.5, "5/2")])
def test_what_is_no_size_is_one_finding_that_says_so(given: Any, shown: str) -> None:
    text = (
        "layer L(d, H, K = 4):\n    input x[d]\n    param W, V, U[d, H, K]; W_o[H, K, d]\n"
        "    output y[d] = ((x @ W) * (x @ V) + x @ U) @ W_o\n"
    )
    found = only(text, {"K": given})
    assert found.code == "E0503" and found.message.endswith(f"it is {shown}")
    assert marked(found)[0] == "K = 4" and not found.helps


def test_a_share_that_sizes_are_made_of() -> None:
    """A layer that takes one without a default takes a size; with one, it takes a number."""
    inner = (
        "layer Inner(K{default}, R = part * K, N = K - R):\n    input x[K]\n"
        "    a, b = x by R, N\n    output y[K] = join[R, N as K](2 * a, b)\n"
    )
    outer = "layer Outer(K, part = 1 / 2):\n    input x[K]\n    output y[K] = {}(x)\n"
    found = only(inner.format(default=", part") + outer.format("Inner(K, part)"))
    assert found.code == "E0503" and "says so by its default: `part = 1 / 2`" in found.helps[0]
    text = inner.format(default=", part = 1") + outer.format("Inner(K, part)")
    elaborate(parse(Source("mine.arch", text)), None, {}, import_source)


@pytest.mark.parametrize(
    ("body", "code", "part", "says"),
    [
        ("S[t+1] = S[t] + k @ k.T", "E0216", "S[t+1]", "`S[t] = ...`"),
        ("S[t-1] = S[t] + k @ k.T", "E0216", "S[t-1]", "`S[t] = ...`"),
        ("S_new = S[t-1] + k @ k.T", "E0313", "S[K, K']", "`S_new` is another name"),
        ("S_t = S[t-1] + k @ k.T", "E0313", "S[K, K']", "`S_t` is another name"),
        ("r = S[t] @ k", "E0313", "S[K, K']", "`S[t] = ...`"),
    ],
)
def test_a_state_without_its_new_value(body: str, code: str, part: str, says: str) -> None:
    """The token that a recurrence defines is [t]: nothing else is taken for it."""
    text = (
        "layer L(H, K):\n    input k[H, K]\n    recurrence S[K, K'] over H:\n"
        f"        {body}\n        o = S[t] @ k\n    output o\n"
    )
    found = findings(text)
    assert found[0].code == code and found[0].label and found[0].label.span.text == part
    assert any(says in help for help in found[0].helps)


def test_a_layer_without_output_is_one_finding() -> None:
    text = "layer L(d):\n    input x[d]\n    param w[d]; v[d]\n    z = x * w\n"
    assert only(text).code == "E0211"
