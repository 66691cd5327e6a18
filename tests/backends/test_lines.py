"""Long lines of generated code are broken where a person would break them."""

from __future__ import annotations

import ast

import pytest
from archc.backends.lines import broken, unbracketed


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("x = f(a, b)", ["x = f(a, b)"]),
        ("name = function(first, second)", ["name = function(first,", "                second)"]),
        ("    name = functions(a, b, c, d, e, f, g)",
         ["    name = functions(", "        a, b, c, d, e, f, g)"]),
        ("    x = f(a) + longer(b, 'c, )')",
         ["    x = (f(a)", "         + longer(b,", "                  'c, )'))"]),
        ("x = first if first else other(b)", ["x = (first if first", "     else other(b))"]),
        ("y = g(aaaaaaaaaaaaa, bbbbbbbbbbb, ccc)",
         ["y = g(aaaaaaaaaaaaa,", "      bbbbbbbbbbb, ccc)"]),
        ("aaaaaaaa, bbbbbbbbb, cccccccc = saved.tensors",
         ["(aaaaaaaa, bbbbbbbbb,", " cccccccc) = saved.tensors"]),
        ("for one, two, three, four in zip(xs):",
         ["for (", "    one, two, three, four", ") in zip(xs):"]),
        ("    return (first, second, third_one)",
         ["    return (first, second,", "            third_one)"]),
        ("    return (first_and_longer,)", ["    return (", "        first_and_longer,)"]),
        ("x = f(aa, b)[:, None] / g(cc)[:, None]",
         ["x = (f(aa, b)[:, None]", "     / g(cc)[:, None])"]),
        ("total += first * second + third", ["total += (first * second", "          + third)"]),
        ("check(aaaaaaaaaaaa), raised(bbbb)", ["check(aaaaaaaaaaaa), raised(", "    bbbb)"]),
        ("if first(a) and of_the_second and of_the_third:",
         ["if (", "    first(a)", "    and of_the_second", "    and of_the_third", "):"]),
        ("first_one, second, third = long_function(x)",
         ["(first_one, second,", " third) = long_function(x)"]),
        ("# a comment that is (far) too long", ["# a comment that is (far) too long"]),
    ],
)  # fmt: skip
def test_broken(line: str, wanted: list[str]) -> None:
    assert broken(line, 28) == wanted


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("f(x, (a + b), step=(a * b))", "f(x, a + b, step=a * b)"),
        ("    if (x_p is not None):", "    if x_p is not None:"),
        ("x = tl.cdiv(n, (a * b)) + (c - d)", "x = tl.cdiv(n, a * b) + (c - d)"),
        ("x = (a + b) * (c)", "x = (a + b) * (c)"),
        ("x = f((a, b), (c,), ())", "x = f((a, b), (c,), ())"),
        ("x = f((a ** 2,)[(a + b)], '(a)')", "x = f((a ** 2,)[a + b], '(a)')"),
        ("# a comment (as it is)", "# a comment (as it is)"),
    ],
)
def test_brackets_that_hold_nothing_together_are_left_out(line: str, wanted: str) -> None:
    assert unbracketed(line) == wanted


def test_a_comprehension_stays_one_item() -> None:
    lines = broken("x = tuple(value.to(dtype) for value in (first, second, third, fourth))", 40)
    assert ast.dump(ast.parse("\n".join(lines))) == ast.dump(
        ast.parse("x = tuple(value.to(dtype) for value in (first, second, third, fourth))")
    )
    assert max(map(len, lines)) <= 42


@pytest.mark.parametrize(
    "text",
    [
        "made = each(lambda a, b: a + b, [one, two, three], {'key, ': four, 'other': five})",
        "x = first * (second + third) - fourth if fifth and not sixth else seventh[:, None]",
        "assert first(second, third) == fourth, 'what, is (wrong'",
        "x[first, second] += third(fourth)[:, None] * fifth(sixth) / (seventh + eighth)",
    ],
)
@pytest.mark.parametrize("columns", [24, 40, 50])
def test_broken_lines_mean_the_same(text: str, columns: int) -> None:
    lines = broken(text, columns)
    assert ast.dump(ast.parse("\n".join(lines))) == ast.dump(ast.parse(text))
    assert len(lines) > 1
