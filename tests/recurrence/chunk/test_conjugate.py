"""Systems with a state in their matrix, for all tokens at once: the solutions token by token."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.lowering.systems import scaled_last
from archc.recurrence.chunk.conjugate import conjugate, turned
from archc.recurrence.chunk.frame import Frame
from archc.recurrence.chunk.implicit import Diagonal, Scale, Share, System
from archc.recurrence.chunk.matrix import MatrixForm, TokenStep, TokenTerm
from tests.graphs import Sketch, axes, axis
from tests.recurrence.hand_made import (
    LENGTHS,
    Ids,
    frame,
    gradients,
    numbers,
    recurrence,
    run,
    same,
    states,
    stepped,
)
from tests.schedule.test_partition import recurrence_of

INPUTS = {
    "k": "batch t H K", "g": "batch t H", "lam": "H K", "q": "batch t H K", "c": "batch t H",
    "A[0]": "batch H K K'",
}  # fmt: skip
SIDES = (axis("K"), axis("K'"))


def update(sketch: Sketch, ids: Ids) -> int:
    """exp(g) * A[t-1] + k k^T."""
    kept = sketch.fn("mul", sketch.fn("exp", ids["g"]), ids["A[t-1]"])
    outer = sketch.einsum("batch H K, batch H L -> batch H K L:K'", ids["k"], ids["k"])
    return sketch.fn("add", kept, outer)


def body(when: str, scaled: bool) -> Callable[[Sketch, Ids], dict[str, int]]:
    """z = solve(c * A + diag(lam), q)."""

    def make(sketch: Sketch, ids: Ids) -> dict[str, int]:
        new = update(sketch, ids)
        matrix = new if when == "written" else ids["A[t-1]"]
        matrix = sketch.fn("mul", ids["c"], matrix) if scaled else matrix
        identity = sketch.add(ir.Delta(*SIDES))
        matrix = sketch.fn("add", matrix, sketch.fn("mul", ids["lam"], identity))
        return {"A": new, "z": sketch.add(ir.Solve("K", "K'", None), matrix, ids["q"])}

    return make


def system(op: ir.Recurrence, when: str, scaled: bool) -> System:
    """The system of the body above."""
    ids = {node.op.name: node.id for node in op.body if isinstance(node.op, ir.Input)}
    factors = (("mul", ids["c"]),) if scaled else ()
    shares = (Share("A", when, Scale(1, factors)),)
    diagonals = (Diagonal(ids["lam"], Scale()),)
    return System(op.body.outputs["z"], ids["q"], "K", "K'", shares, diagonals, None)


def form(inputs: Mapping[str, str], when: str, scaled: bool) -> Graph:
    """The solutions in chunks, and the final state."""
    sketch, op = Sketch(), recurrence(inputs, body(when, scaled))
    given = {name: sketch.input(name, dims) for name, dims in inputs.items()}
    place: Frame = frame(sketch, "H")
    value = place.renamed(given["k"], {"K": SIDES[1]})
    step = TokenStep(given["g"], None, (TokenTerm(given["k"], (value,), None, True),))
    start = turned(place, given["A[0]"], SIDES)
    made = MatrixForm(place, SIDES[:1], states(inputs), [step], [start])
    lifted = {
        node.id: given[node.op.name]
        for node in op.body
        if isinstance(node.op, ir.Input) and node.op.name in given
    }
    one, type = system(op, when, scaled), op.body[op.body.outputs["z"]].type
    z = conjugate(place, one, SIDES, type, lifted, lambda _, query, at: made.read(0, query, at))
    final = turned(place, made.final[0], SIDES)
    sketch.outputs(z=z, final=final).graph.prune()
    return sketch.graph


def well_posed(inputs: Mapping[str, str], length: int) -> dict[str, Tensor]:
    """Numbers for which every matrix is far from singular; A[0] is not quite symmetric."""
    given = numbers(inputs, length)
    given["lam"], given["c"], given["g"] = (
        given["lam"] ** 2 + 2,
        given["c"] ** 2,
        -(given["g"] ** 2),
    )
    a = given["A[0]"]
    given["A[0]"] = a @ a.mT + 0.1 * a
    return given


@pytest.mark.parametrize(
    ("when", "scaled", "other"),
    [
        ("written", False, {}),
        ("before", False, {"q": "K"}),
        ("written", True, {"lam": "batch t H K"}),
        ("before", True, {"lam": "K'"}),
        ("written", False, {"lam": "batch t H K'"}),
    ],
)
def test_solutions_and_gradients(when: str, scaled: bool, other: dict[str, str]) -> None:
    inputs = {**INPUTS, **other}
    chunked, plain = form(inputs, when, scaled), stepped(inputs, body(when, scaled))
    for length, chunk in LENGTHS[::2]:
        given = {n: x.requires_grad_() for n, x in well_posed(inputs, length).items()}
        found, steps = run(chunked, given, length, chunk), run(plain, given, length, chunk)
        final = steps["A"][:, -1] if length else given["A[0]"]
        wanted = {"z": steps["z"], "final": final}
        same(found, wanted)
        same(gradients(found, given), gradients(wanted, given))


def test_what_does_not_depend_on_the_vector_is_computed_once() -> None:
    graph = form(INPUTS, "written", False)
    (node,) = [node for node in graph if isinstance(node.op, ck.Conjugate)]
    inner = node.op.body
    assert not any(isinstance(n.op, ck.Sums | ck.Chunks | ir.Recurrence | ir.Result) for n in inner)
    inputs = {n.op.name for n in inner if isinstance(n.op, ir.Input)}
    assert inputs == {"p", *node.op.captures}
    assert inner[inner.outputs["product"]].type == graph[node.operands[0]].type
    assert not any(isinstance(n.op, ir.Input) and n.op.name == "p" for n in graph)


@pytest.mark.parametrize(("when", "scaled"), [("written", False), ("before", True)])
def test_products_take_the_vector_as_it_is(when: str, scaled: bool) -> None:
    """Decays scale what comes out: all products of matrices have one operand in common."""
    graph = form(INPUTS, when, scaled)
    (solve,) = (node for node in graph if isinstance(node.op, ck.Conjugate))
    body = scaled_last(solve.op.body)
    (p,) = (n.id for n in body if isinstance(n.op, ir.Input) and n.op.name == "p")
    products = [n for n in body if isinstance(n.op, ir.Contract) and len(n.operands) == 2]
    made_of_p = [n for n in products if p in body.ancestors(n.id)]
    first = [n for n in made_of_p if not any(n.id in body.descendants(o.id) for o in made_of_p)]
    assert first and all(any(source(body, o) == p for o in n.operands) for n in first)


def source(body: Graph, id: int) -> int:
    """The value that one is under other names of axes."""
    op = body[id].op
    renamed = isinstance(op, ir.Contract) and len(op.ins) == 1
    return source(body, body[id].operands[0]) if renamed else id


def test_against_a_plain_solve() -> None:
    given = well_posed(INPUTS, 5)
    found = run(form(INPUTS, "written", False), given, 5, 3)["z"]
    state = given["A[0]"]
    for t in range(5):
        k, g = given["k"][:, t], given["g"][:, t]
        state = g.exp()[..., None, None] * state + k[..., :, None] * k[..., None, :]
        z = torch.linalg.solve(state + torch.diag_embed(given["lam"]), given["q"][:, t])
        assert torch.allclose(found[:, t], z)


def test_the_axes_of_a_vector() -> None:
    graph = form({**INPUTS, "q": "K"}, "written", False)
    assert graph[graph.outputs["z"]].type.names == tuple(a.name for a in axes("batch t H K"))


def test_a_solution_is_read_in_the_chunks_that_it_was_made_in() -> None:
    """Mesa keeps one product of it with the keys of a chunk, and not one for each use."""
    chunked = recurrence_of("mesa").chunked
    saved = ("saved.A@start", "saved.G@start", "saved.solution", "saved.product")
    assert chunked is not None and chunked.saved == saved
