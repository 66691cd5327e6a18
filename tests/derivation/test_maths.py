"""Formulas as trees: how names of a spec are read, and what a browser is given of each part."""

from __future__ import annotations

import pytest

from archc.derivation.mathml import as_mathml
from archc.derivation.maths import (
    EQUALS,
    MINUS,
    Fence,
    Fraction,
    Math,
    Name,
    Number,
    Power,
    Row,
    Sign,
    Sum,
    Words,
    function,
    inverse,
    named,
    row,
    slope,
    transposed,
)

x, y, n = Name("x"), Name("y"), Number("2")
X, TWO = "<mi>x</mi>", "<mn>2</mn>"
THIN = '<mspace width="0.16em"/>'


@pytest.mark.parametrize(
    ("text", "subs", "wanted"),
    [
        ("q", ("t",), Name("q", ("t",))),
        ("W_q", (), Name("W", ("q",))),
        ("W_alpha_x", (), Name("W", ("α", "x"))),
        ("beta", ("t",), Name("β", ("t",))),
        ("lam", (), Name("λ")),
        ("k2", ("t",), Name("k", ("2", "t"))),
        ("u[2]", (), Name("u", ("2",))),
        ("h[i=3]", ("t",), Name("h", ("3", "t"))),
        ("S'", (), Name("S′")),
        ("S''", ("t",), Name("S′′", ("t",))),
        ("q_", (), Name("q")),
        ("%7", ("t",), Name("x", ("7", "t"))),
        ("log_f", ("t",), Row((Words("log "), Name("f", ("t",))))),
    ],
)  # fmt: skip
def test_names_of_a_spec(text: str, subs: tuple[str, ...], wanted: Math) -> None:
    assert named(text, *subs) == wanted


def test_names_keep_how_they_are_set() -> None:
    assert named("log_S", bold=True, prime=True) == Row((Words("log "), Name("S", (), True, True)))
    assert named("%1", prime=True) == Name("x", ("1",), False, True)
    assert slope(x) == Name("x", slope=True)


def test_parts_side_by_side() -> None:
    """Rows are taken apart, nothing is left out but None, and one alone is itself."""
    assert row(x, None, Row((n, y)), EQUALS) == Row((x, n, y, EQUALS))
    assert row(None, x) is x and row(Row((x,))) is x and row() == Row(())
    comma = Sign(",", tight=True)
    assert function("f", x, y) == Row((Words("f"), Fence(Row((x, comma, Words(" "), y)))))
    assert function("f", x) == Row((Words("f"), Fence(x)))
    assert inverse(x) == Power(x, Row((Sign("−", tight=True), Number("1"))))


@pytest.mark.parametrize(
    ("math", "wanted"),
    [
        (n, TWO),
        (Number("<"), "<mn>&lt;</mn>"),
        (MINUS, "<mo>−</mo>"),
        (Sign("−", tight=True), '<mo lspace="0" rspace="0">−</mo>'),
        (Words("if any"), "<mtext>if\u00a0any</mtext>"),
        (Fence(x), f"<mrow><mo>(</mo>{X}<mo>)</mo></mrow>"),
        (Fence(x, "[", "]"), f"<mrow><mo>[</mo>{X}<mo>]</mo></mrow>"),
        (Fraction(x, n), f"<mfrac>{X}{TWO}</mfrac>"),
        (Power(n, x), f"<msup>{TWO}{X}</msup>"),
        (Power(x, n), f"<msup>{X}{TWO}</msup>"),
        (transposed(x), f"<msup>{X}<mtext>⊤</mtext></msup>"),
        (
            Power(Name("x", ("t",)), n),
            f"<msubsup>{X}<mrow><mi>t</mi></mrow><mrow>{TWO}</mrow></msubsup>",
        ),
        (Sum("∑", x), f"<munder><mo>∑</mo>{X}</munder>"),
        (Sum("∑", x, n), f"<munderover><mo>∑</mo>{X}{TWO}</munderover>"),
    ],
)  # fmt: skip
def test_parts_for_a_browser(math: Math, wanted: str) -> None:
    assert as_mathml(math) == f"<math>{wanted}</math>"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (Name("β"), "<mi>β</mi>"),
        (Name("Γ"), '<mi mathvariant="normal">Γ</mi>'),
        (Name("gain"), '<mi mathvariant="normal">gain</mi>'),
        (Name("S′"), "<msup><mi>S</mi><mrow><mo>′</mo></mrow></msup>"),
        (Name("Ka1", bold=True), '<mi mathvariant="normal">𝐊𝐚1</mi>'),
        (Name("Zz", bold=True), '<mi mathvariant="normal">𝐙𝐳</mi>'),
        (Name("x", local=True), f"<mover>{X}<mo>~</mo></mover>"),
        (Name("x", prime=True), f"<msup>{X}<mrow><mo>′</mo></mrow></msup>"),
        (Name("x", ("2",)), f"<msub>{X}<mrow>{TWO}</mrow></msub>"),
        (Name("x", ("in",)), f'<msub>{X}<mrow><mi mathvariant="normal">in</mi></mrow></msub>'),
        (Name("x", ("t-1", "y")), f"<msub>{X}<mrow><mi>t</mi><mo>−</mo><mn>1</mn><mo>,</mo>"
                                  "<mi>y</mi></mrow></msub>"),
        (Name("x", ("t+1",)), f"<msub>{X}<mrow><mi>t</mi><mo>+</mo><mn>1</mn></mrow></msub>"),
        (Name("x", slope=True), f'<mrow><mi mathvariant="normal">d</mi>{X}</mrow>'),
    ],
)  # fmt: skip
def test_names_for_a_browser(name: Name, wanted: str) -> None:
    assert as_mathml(name) == f"<math>{wanted}</math>"


def test_a_thin_space_stands_between_factors_alone() -> None:
    """Not beside signs and brackets, nor after words or a sum."""
    parts = Row((x, n, EQUALS, x, Fence(x), x, Words("of"), x, Sum("∑", x), x))
    inner = f"<mrow><mo>(</mo>{X}<mo>)</mo></mrow>"
    wanted = (f"{X}{THIN}{TWO}<mo>=</mo>{X}{inner}{THIN}{X}{THIN}<mtext>of</mtext>{X}{THIN}"
              f"<munder><mo>∑</mo>{X}</munder>{X}")  # fmt: skip
    assert as_mathml(parts) == f"<math><mrow>{wanted}</mrow></math>"


def test_how_large_a_formula_is() -> None:
    assert as_mathml(x, block=True, large=True) == f'<math display="block">{X}</math>'
    assert as_mathml(x, large=True) == f'<math displaystyle="true">{X}</math>'
