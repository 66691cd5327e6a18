"""Composition laws of a spec against numbers: examples against wrong ones, and laws at work."""

from __future__ import annotations

import warnings

import pytest
import torch
from click.testing import CliRunner

import archc
from archc.algebra.cut import op
from archc.cli import archc as command
from archc.compile import before_chunks
from archc.diagnostics import ArchError, ArchWarning
from archc.recurrence.chunk.loops import loops
from archc.recurrence.law.numbers import DRAWS, with_laws
from tests.elaborate.specs import layer
from tests.recurrence.law.user_laws import AFFINE, LOG_SPACE, PHASE, PRODUCTS, ROTATION

SUM = """
layer Token(D):
    input x[D]
    output p[D] = x

layer Merge(D):
    input p[D], p'[D]
    output q[D] = {merge}

layer Apply(D):
    input p[D], s[D]
    output after[D] = {apply}

layer Total(D):
    input a[D]
    chunk: law(Token, Merge, Apply){bound}
    x = {x}
    recurrence s[D]:
        s[t] = {update}
    output s
"""
RIGHT = {"merge": "p + p'", "apply": "s + p", "x": "a", "update": "s[t-1] + x", "bound": ""}


def refused(**parts: str) -> str:
    with pytest.raises(ArchError) as found:
        with_laws(layer(SUM.format(**{**RIGHT, **parts})))
    assert [finding.code for finding in found.value.diagnostics] == ["E0608"]
    return str(found.value)


def test_a_subtraction_is_not_associative() -> None:
    text = refused(merge="p - p'")
    assert "`Merge` is not associative" in text
    assert "^^^^^ by an example" in text
    assert "= note: `Merge(Merge(x, y), z)` has p = " in text
    assert "= note: for p of x = " in text


def test_an_associative_merge_must_do_what_its_runs_do() -> None:
    assert "`Merge` does not do what its runs do" in refused(merge="max(p, p')")


def test_a_token_must_do_what_the_recurrence_does() -> None:
    assert "`Token` and `Apply` are not the update" in refused(update="s[t-1] + 2 * x")


def test_right_for_one_token_is_not_enough() -> None:
    """A merge that is nearly a sum: the token's rule holds, and the others do not."""
    text = refused(merge="(p + p') * (1 + 0.001 * p * p')")
    assert "not associative" in text


def test_draws_lie_where_the_layer_says() -> None:
    """sqrt(x * x) is x for what is not negative only."""
    given = {"merge": "sqrt((p + p') * (p + p'))", "apply": "s + sqrt(p * p)"}
    with_laws(layer(SUM.format(**{**RIGHT, **given, "x": "exp(a)"})))
    with_laws(layer(SUM.format(**{**RIGHT, **given, "bound": ", bound a >= 0"})))
    assert "are not the update of a token" in refused(**given)


def test_a_law_without_finite_numbers_is_refused() -> None:
    nowhere = "log(-1 - exp(p)) + s"
    assert "gives no finite number" in refused(apply=nowhere, update="log(-1 - exp(x)) + s[t-1]")


def test_a_law_that_is_not_proved_is_told_of() -> None:
    made = with_laws(layer(PHASE))
    (found,) = loops(before_chunks(made))
    assert (found.code, found.severity) == ("E0609", "warning")
    assert f"{DRAWS} random draws" in found.notes[0]
    with pytest.warns(ArchWarning, match="is not proved"):
        archc.parse(PHASE).module(D=3)


def test_a_law_that_is_proved_needs_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        archc.parse(LOG_SPACE).module(D=3)


def test_a_law_is_a_class_of_its_own() -> None:
    (found,) = archc.parse(LOG_SPACE).classify()
    assert (found.kind, str(found)) == ("law", "m: recurrence with a composition law of its own")


def test_show_tells_what_is_known_of_a_law(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for text, known in ((LOG_SPACE, "proved"), (PHASE, "not proved, nor refuted")):
        (tmp_path / "law.arch").write_text(text)
        shown = CliRunner().invoke(command, ["show", "law.arch", "--stage", "normal"]).stdout
        assert "by the composition law `law(Token, Merge, Apply)`, " + known in shown


@pytest.mark.parametrize("text", [LOG_SPACE, ROTATION, AFFINE], ids=["log", "rotation", "affine"])
def test_the_law_as_functions_is_that_of_the_spec(text: str) -> None:
    spec = archc.parse(text)
    law, generator = spec.law, torch.Generator().manual_seed(0)
    sizes = {"batch": 2, "t": 37, "D": 3, "H": 2, "K": 4, "K'": 4}
    inputs = [
        torch.randn([sizes[a.name] for a in given.type.axes], generator=generator).double().tanh()
        for _, given in op(before_chunks(spec.layer)).inputs
    ]
    assert law.Summary._fields == spec.layer.graph[_recurrence(spec)].op.laws[0].parts
    whole, end = spec.op(*inputs)
    found, last = archc.law.split(spec.op, law, inputs, parts=4, chunk=8)
    outputs = (whole, found) if isinstance(whole, tuple) else ((whole,), (found,))
    for one, other in zip((*outputs[0], *end), (*outputs[1], *last), strict=True):
        assert torch.allclose(one, other, 1e-8, 1e-8)
    with pytest.raises(ValueError, match="no summary of no tokens"):
        law.summary(*(x[:, :0] for x in inputs))


def _recurrence(spec: archc.Spec) -> int:
    return next(node.id for node in spec.layer.graph if hasattr(node.op, "laws"))


def test_states_without_a_law_of_the_spec_beside_others() -> None:
    with pytest.raises(ValueError, match=r"one recurrence|and not of these"):
        _ = archc.parse(PRODUCTS).law
