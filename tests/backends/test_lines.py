"""Long lines of generated code are broken where a person would break them."""

from __future__ import annotations

import ast

import pytest
from archc.backends.lines import broken


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("x = f(a, b)", ["x = f(a, b)"]),
        ("name = function(first, second)", ["name = function(", "    first, second", ")"]),
        (
            "    x = f(a) + longer(b, 'c, )')",
            ["    x = f(a) + longer(", "        b, 'c, )'", "    )"],
        ),
        (
            "x = first if first else other(b)",
            ["x = (", "    first if first else other(", "        b", "    )", ")"],
        ),
        (
            "y = g(aaaaaaaaaaaaaaaaa, bbbbbbbbbbbbbbbbbbb)",
            ["y = g(", "    aaaaaaaaaaaaaaaaa,", "    bbbbbbbbbbbbbbbbbbb,", ")"],
        ),
        ("aaaaaaaa, bbbbbbbbb, cccccccc = saved.tensors",
         ["(", "    aaaaaaaa, bbbbbbbbb,", "    cccccccc,", ") = saved.tensors"]),
        ("for one, two, three, four in zip(xs):",
         ["for (", "    one, two, three, four", ") in zip(xs):"]),
        ("    return (first, second, third_one)",
         ["    return (", "        first, second,", "        third_one,", "    )"]),
        ("a = take(x) if x else none(y)",
         ["a = (", "    take(x) if x else none(", "        y", "    )", ")"]),
        ("x = f(aa, b)[:, None] / g(cc)[:, None]",
         ["x = f(aa, b)[:, None] / g(", "    cc", ")[:, None]"]),
        ("# a comment that is (far) too long", ["# a comment that is (far) too long"]),
    ],
)  # fmt: skip
def test_broken(line: str, wanted: list[str]) -> None:
    assert broken(line, 28) == wanted


def test_a_comprehension_stays_one_item() -> None:
    lines = broken("x = tuple(value.to(dtype) for value in (first, second, third, fourth))", 40)
    assert ast.dump(ast.parse("\n".join(lines))) == ast.dump(
        ast.parse("x = tuple(value.to(dtype) for value in (first, second, third, fourth))")
    )
    assert max(map(len, lines)) <= 42
