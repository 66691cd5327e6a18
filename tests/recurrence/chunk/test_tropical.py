"""A running maximum, in chunks and token by token."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

import archc
from archc.compile import before_chunks
from archc.dims import TIME
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.meaning import evaluate_graph
from archc.recurrence.analysis.classify import recurrence_classes
from archc.recurrence.analysis.gauge import SCALE, weight
from archc.recurrence.analysis.semirings import LOG, MAX, MIN, SEMIRINGS
from archc.recurrence.chunk.frame import Frame
from archc.recurrence.chunk.scan import Carried, diagonal
from archc.recurrence.chunk.tropical import (
    RUNNING,
    differences_first,
    risen,
    running_gauge,
    running_max,
)
from tests.graphs import Sketch
from tests.recurrence.hand_made import (
    LENGTHS,
    Ids,
    agree,
    ends,
    frame,
    gradients,
    numbers,
    run,
    same,
    states,
    stepped,
)

START = {"m[0]": "batch H D"}


def update(sketch: Sketch, ids: Ids, sums: str = MAX) -> dict[str, int]:
    """max(a + m[t-1], b), or the sum over another semiring."""
    moved = sketch.fn("add", ids["a"], ids["m[t-1]"]) if "a" in ids else ids["m[t-1]"]
    if sums != LOG:
        return {"m": sketch.fn(sums, moved, ids["b"])}
    parts = (sketch.fn("exp", each) for each in (moved, ids["b"]))
    return {"m": sketch.fn("log", sketch.fn("add", *parts))}


@pytest.mark.default("logaddexp", "given0-max")
@pytest.mark.parametrize("sums", [MAX, MIN, LOG])
@pytest.mark.parametrize(
    "given",
    [
        {"a": "batch t H D", "b": "batch t H D"},
        {"a": "batch t H", "b": "H D"},
        {"a": "D", "b": "batch t D"},
        {"a": "D", "b": "H"},
        {"b": "batch t H D"},
        {"b": "D"},
    ],
)
def test_the_form_is_the_recurrence(given: dict[str, str], sums: str) -> None:
    inputs = {**given, **START}

    def build(frame: Frame, ids: Ids) -> list[Carried]:
        (state,) = states(inputs)
        running = RUNNING.get(sums, running_max)
        return [running(frame, state, ids.get("a"), ids["b"], ids["m[0]"])]

    agree(inputs, partial(update, sums=sums), build)


SPELLINGS = {
    "min(m[t-1] + a, b)": MIN,
    "max(m[t-1] + a, m[t-1] + 0.1)": MAX,
    "log(exp(m[t-1] - softplus(a)) + exp(b))": LOG,
    "log(exp(log(exp(m[t-1]) + exp(a))) + exp(b))": LOG,
    "z + log(exp(m[t-1] + a - z) + exp(b - z))": LOG,
    "b + softplus(m[t-1] + a - b)": LOG,
    "max(m[t-1] - a, b) + softplus(-abs(m[t-1] - a - b))": LOG,
    "max(where(a > 0, -inf, m[t-1]), b)": MAX,
    "where(a > 0, b, min(m[t-1] + a, b))": MIN,
    "log(exp(where(a > 0, -inf, m[t-1] + a)) + exp(b))": LOG,
    "max(where(m[t-1] > 0, a, m[t-1]), b)": "",
    "max(m[t-1], a) + softplus(-abs(m[t-1] - b))": "",
    "log(exp(m[t-1]) - exp(b))": "",
    "min(max(m[t-1], a), m[t-1] * b)": "",
}


@pytest.mark.parametrize("update", SPELLINGS)
def test_every_spelling_of_an_update_is_known_and_no_other(update: str) -> None:
    head = "layer L(K):\n    input a[K], b[K]\n    recurrence m[K]:\n"
    text = head + f"        z = max(m[t-1] + a, b)\n        m[t] = {update}\n    output m\n"
    made = before_chunks(archc.parse(text).layer)
    (found,) = recurrence_classes(next(n.op for n in made.graph if isinstance(n.op, ir.Recurrence)))
    assert found.text == SEMIRINGS.get(SPELLINGS[update], "sequential cell")


INPUTS = {"a": "batch t H D", "b": "batch t H D", **START}


def plain(frame: Frame, ids: Ids) -> list[Carried]:
    (state,) = states(INPUTS)
    return [running_max(frame, state, ids["a"], ids["b"], ids["m[0]"])]


def logs(frame: Frame, ids: Ids) -> list[Carried]:
    (state,) = states(INPUTS)
    return [RUNNING[LOG](frame, state, ids["a"], ids["b"], ids["m[0]"])]


@pytest.mark.parametrize("sums", [MAX, LOG])
@pytest.mark.parametrize("what", ["start", "values", "shifts", "all"])
def test_minus_infinity_stays_and_is_no_nan(what: str, sums: str) -> None:
    def given(length: int) -> dict[str, Tensor]:
        values = numbers(INPUTS, length)
        if what in ("start", "all"):
            values["m[0]"][:] = -torch.inf
        if what in ("values", "all"):
            values["b"][:] = -torch.inf
        if what in ("shifts", "all"):
            values["a"][:, 1::2] = -torch.inf
        return values

    build = logs if sums == LOG else plain
    agree(INPUTS, partial(update, sums=sums), build, given, grads=False)


GAUGED = {
    "a": "batch t D", "b": "batch t D", "v": "batch t D",
    "c[0]": "batch D", "n[0]": "batch D", "m[0]": "batch D",
}  # fmt: skip


def normalised(sketch: Sketch, c: int, n: int, m: int) -> int:
    """c / max(|n|, exp(-m))."""
    least = sketch.fn("exp", sketch.fn("neg", m))
    return sketch.fn("div", c, sketch.fn("max", sketch.fn("abs", n), least))


def gates(sketch: Sketch, ids: Ids, before: int, after: int) -> tuple[int, int]:
    """exp(a + m[t-1] - m[t]) and exp(b - m[t])."""
    moved = sketch.fn("add", ids["a"], before)
    parts = (sketch.fn("sub", x, after) for x in (moved, ids["b"]))
    forget, enter = (sketch.fn("exp", part) for part in parts)
    return forget, enter


def stabilised(sketch: Sketch, ids: Ids) -> dict[str, int]:
    """Two states that a running maximum keeps in range, token by token."""
    old = ids["m[t-1]"]
    new = sketch.fn("max", sketch.fn("add", ids["a"], old), ids["b"])
    forget, enter = gates(sketch, ids, old, new)
    c, n = (sketch.fn("mul", forget, ids[f"{name}[t-1]"]) for name in "cn")
    c = sketch.fn("add", c, sketch.fn("mul", enter, ids["v"]))
    n = sketch.fn("add", n, enter)
    return {"c": c, "n": n, "m": new, "o": normalised(sketch, c, n, new)}


def in_chunks() -> Graph:
    """The same in chunks: m without gradients between the first and the last."""
    sketch = Sketch()
    given = {name: sketch.input(name, dims) for name, dims in GAUGED.items()}
    place, (c, n, m) = frame(sketch), states(GAUGED)
    top, rise = running_gauge(place, m, given["a"], given["b"], given["m[0]"])
    forget, enter = gates(sketch, given, top.before, top.after)
    write = sketch.fn("mul", enter, given["v"])
    cs = diagonal(place, c, forget, write, given["c[0]"])
    ns = diagonal(place, n, forget, enter, given["n[0]"])
    o = normalised(sketch, cs.after, ns.after, top.after)
    ends = (risen(place, each.final, weight(SCALE, -1, 0), rise) for each in (cs, ns))
    sketch.graph.outputs = {"o": o, **dict(zip("cn", ends, strict=True)), "m": top.final}
    sketch.graph.prune()
    return sketch.graph


def test_a_gauge_has_the_gradient_of_the_loop_from_results_and_from_final_states() -> None:
    form, loop = in_chunks(), stepped(GAUGED, stabilised)
    for length, chunk in LENGTHS:
        given = {n: x.requires_grad_() for n, x in numbers(GAUGED, length).items()}
        found, steps = run(form, given, length, chunk), run(loop, given, length, chunk)
        wanted = {name: ends(steps, given, name)["final"] for name in "cnm"}
        wanted["o"] = steps["o"]
        same(found, wanted)
        same(gradients(found, given), gradients(wanted, given))


def test_ties_divide_the_gradient_as_in_the_loop() -> None:
    def given(length: int) -> dict[str, Tensor]:
        values = numbers(INPUTS, length)
        return {name: (x > 0).to(x) for name, x in values.items()}

    agree(INPUTS, update, plain, given)


def test_ties_under_a_gauge_are_no_matter() -> None:
    form, loop = in_chunks(), stepped(GAUGED, stabilised)
    given = numbers(GAUGED, 7)
    given["a"], given["b"] = torch.zeros_like(given["a"]), torch.ones_like(given["b"])
    given["m[0]"][:] = 1
    given = {name: x.requires_grad_() for name, x in given.items()}
    found, steps = run(form, given, 7, 3), run(loop, given, 7, 3)
    same(gradients({"o": found["o"]}, given), gradients({"o": steps["o"]}, given))


def test_the_difference_of_two_near_numbers_comes_first() -> None:
    """g + m[t-1] - m[t] -> (m[t-1] - m[t]) + g: the first sum would be rounded, and m[t] is it."""
    sketch = Sketch()
    g, before, after = (sketch.input(name, "batch t") for name in ("g", "before", "after"))
    log = sketch.fn("sub", sketch.fn("add", g, before), after)
    found = differences_first(frame(sketch), log, [(before, after)])
    graph = sketch.outputs(o=found).graph
    given = {name: torch.tensor([[x]]) for name, x in (("g", -1e-3), ("before", 15.7))}
    given["after"] = given["before"] + given["g"]
    rounded = given["after"].double() - given["before"].double()
    made = evaluate_graph(graph, given, {"batch": 1, TIME.size.name: 1})["o"]
    assert float(made) == float((given["g"].double() - rounded).float()) != 0
    assert differences_first(frame(sketch), g, [(before, after)]) == g


def test_what_begins_anew_is_the_loop() -> None:
    """Patches of tokens, each with its largest entry and its logsumexp, in chunks of 64."""
    text = (
        "layer Patches(d):\n    input x[d], new[]\n"
        "    recurrence m[d] = -inf:\n        m[t] = where(new > 0, x, max(m[t-1], x))\n"
        "    recurrence l[d] = -inf:\n"
        "        l[t] = log(exp(where(new > 0, -inf, l[t-1])) + exp(x))\n"
        "    output m\n    output l\n"
    )
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 150, 3, generator=generator, dtype=torch.float64).requires_grad_()
    new = torch.randn(2, 150, generator=generator, dtype=torch.float64) - 1
    new[:, 64], new[1, 100:] = 1, -1
    rows = []
    for b in range(2):
        for t in range(150):
            first = max([s for s in range(t + 1) if new[b, s] > 0], default=0)
            patch = x[b, first : t + 1]
            rows.append(torch.stack([patch.amax(0), patch.logsumexp(0)]))
    wanted = torch.stack(rows).unflatten(0, (2, 150))
    found = torch.stack(archc.parse(text).module(d=3, backend="eager")(x, new), 2)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    along = torch.randn(found.shape, generator=generator, dtype=torch.float64)
    made, true = (torch.autograd.grad((y * along).sum(), x)[0] for y in (found, wanted))
    torch.testing.assert_close(made, true, rtol=0, atol=1e-12)
