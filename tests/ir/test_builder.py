"""Nodes by the builder: numbers and functions, and those that a graph has already."""

from __future__ import annotations

import re
from pathlib import Path

import sympy

from archc.ir import layer as ir
from archc.ir.builder import Builder, Sharing
from tests.graphs import Sketch

ARCHC = Path(__file__).parents[2] / "archc"


def test_a_chain_is_joined_from_the_first_on() -> None:
    s = Sketch()
    ids = [s.input(name, "K") for name in "abc"]
    total = s.graph[Builder(s.graph).chain("sub", ids)]
    assert s.graph[total.operands[0]].operands == (ids[0], ids[1])
    assert total.operands[1] == ids[2]
    assert Builder(s.graph).chain("sub", ids[:1]) == ids[0]


def test_what_a_graph_has_is_not_added_again() -> None:
    s = Sketch()
    x, y = s.input("x", "K"), s.input("y", "K")
    one = Sharing(s.graph).fn("sub", x, y)
    assert Sharing(s.graph).fn("sub", x, y) == one != Builder(s.graph).fn("sub", x, y)
    assert Sharing(s.graph).fn("sub", y, x) != one


def test_reals_stay_and_numbers_become_them() -> None:
    s = Sketch()
    x, b = s.input("x", "K"), Builder(s.graph)
    assert b.real(x) == x
    assert s.graph[b.real(b.number(2))].op == ir.Elementwise("real")
    assert s.graph[b.number(2)].op == ir.Constant(sympy.Integer(2))


def test_passes_have_no_builder_of_their_own() -> None:
    """The front end has frames in place of graphs (`archc/elaborate/ops.py`)."""
    own = re.compile(r"\.add\(\s*ir\.Elementwise\(")
    others = [p for p in ARCHC.rglob("*.py") if p.parent.name != "elaborate"]
    found = [p.name for p in others if own.search(p.read_text(encoding="utf-8"))]
    assert found == ["builder.py"]
