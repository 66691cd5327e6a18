"""States that a matrix mixes, in chunks and token by token."""

from __future__ import annotations

import pytest

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.recurrence.chunk.coupled import coupled, dense
from archc.recurrence.chunk.frame import Frame
from archc.recurrence.chunk.scan import Carried
from tests.graphs import Sketch, axis
from tests.recurrence.hand_made import Ids, agree, chunked, states

START = {"S[0]": "batch H K V"}


def mixed(sketch: Sketch, ids: Ids) -> dict[str, int]:
    """decay * S + A @ S + write, each if it is there."""
    old = ids["S[t-1]"]
    names = [a.name for a in sketch.graph[ids["A"]].type.axes]
    labels = ["L" if name == "K'" else name for name in names]
    ins = (tuple(labels), ("batch", "H", "L", "V"))
    out = tuple((name, axis(name)) for name in ("batch", "H", "K", "V"))
    new = sketch.add(ir.Contract(ins, out), ids["A"], old)
    if "zero" not in ids:
        scaled = sketch.fn("mul", ids["a"], old) if "a" in ids else old
        new = sketch.fn("add", new, scaled)
    return {"S": sketch.fn("add", new, ids["b"]) if "b" in ids else new}


@pytest.mark.parametrize(
    "given",
    [
        {"A": "H K K'", "b": "batch t H K V", "a": "batch t H"},
        {"A": "K' K", "b": "batch t H K V"},
        {"A": "batch t H K K'", "b": "batch t H K V", "a": "K"},
        {"A": "batch t H K K'", "b": "V"},
        {"A": "K K'"},
        {"A": "batch t K K'", "a": "batch t K V", "b": "batch t K"},
    ],
)
def test_a_matrix_along_an_axis(given: dict[str, str]) -> None:
    inputs = {**given, **START}

    def build(frame: Frame, ids: Ids) -> list[Carried]:
        (state,) = states(inputs)
        a, b = ids.get("a"), ids.get("b")
        return [dense(frame, state, ids["A"], "K", axis("K'"), a, b, ids["S[0]"])]

    agree(inputs, mixed, build)


def test_nothing_may_stay_of_the_state_itself() -> None:
    inputs = {"A": "K K'", "b": "batch t H K V", **START}

    def build(frame: Frame, ids: Ids) -> list[Carried]:
        (state,) = states(inputs)
        zero = frame.number(0)
        return [dense(frame, state, ids["A"], "K", axis("K'"), zero, ids["b"], ids["S[0]"])]

    agree(inputs, lambda sketch, ids: mixed(sketch, {**ids, "zero": 0}), build)


def test_powers_of_a_constant_matrix_are_computed_once() -> None:
    inputs = {"A": "K K'", "b": "batch t H K V", **START}

    def build(frame: Frame, ids: Ids) -> list[Carried]:
        (state,) = states(inputs)
        return [dense(frame, state, ids["A"], "K", axis("K'"), None, ids["b"], ids["S[0]"])]

    form = chunked(inputs, build)
    powers = [n for n in form if isinstance(n.op, ck.Scan) and "V" not in n.type.names]
    assert [sorted(n.type.names) for n in powers] == [["K", "from", "i"]]


def test_states_that_feed_one_another() -> None:
    inputs = {
        "a": "batch t D", "b": "D", "c": "batch t N", "u": "batch t D N", "v": "N",
        "S[0]": "batch D N", "Z[0]": "batch D N", "R[0]": "batch D N",
    }  # fmt: skip

    def body(sketch: Sketch, ids: Ids) -> dict[str, int]:
        s, z, r = (ids[f"{name}[t-1]"] for name in "SZR")

        def sum_of(*pairs: tuple[str, int]) -> int:
            found = [sketch.fn("mul", ids[name], value) for name, value in pairs]
            total = found[0]
            for id in found[1:]:
                total = sketch.fn("add", total, id)
            return total

        first = sketch.fn("add", sum_of(("a", s), ("b", z)), ids["u"])
        second = sketch.fn("add", sum_of(("c", s), ("a", r)), ids["v"])
        return {"S": first, "Z": second, "R": sum_of(("c", z))}

    def build(frame: Frame, ids: Ids) -> list[Carried]:
        a, b, c = ids["a"], ids["b"], ids["c"]
        blocks = [[a, b, None], [c, None, a], [None, c, None]]
        firsts = [ids[f"{name}[0]"] for name in "SZR"]
        return list(coupled(frame, states(inputs), blocks, [ids["u"], ids["v"], None], firsts))

    agree(inputs, body, build)


def test_coupled_states_have_the_same_axes() -> None:
    def build(frame: Frame, ids: Ids) -> list[Carried]:
        blocks = [[ids["a"], ids["a"]], [ids["a"], ids["a"]]]
        firsts = [ids["S[0]"], ids["Z[0]"]]
        return list(coupled(frame, states(inputs), blocks, [None, None], firsts))

    inputs = {"a": "D", "S[0]": "batch D", "Z[0]": "batch D N"}
    with pytest.raises(ValueError, match="same axes"):
        chunked(inputs, build)
