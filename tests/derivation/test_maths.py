"""Formulas as trees: how names of a spec are read, and what a browser is given of each part."""

from __future__ import annotations

import pytest

from archc.derivation import maths
from archc.derivation.mathml import as_mathml

x, y, n = maths.Name("x"), maths.Name("y"), maths.Number("2")
X, TWO = "<mi>x</mi>", "<mn>2</mn>"
THIN = '<mspace width="0.16em"/>'


@pytest.mark.parametrize(
    ("text", "subs", "wanted"),
    [
        ("q", ("t",), maths.Name("q", ("t",))),
        ("W_q", (), maths.Name("W", ("q",))),
        ("W_alpha_x", (), maths.Name("W", ("α", "x"))),
        ("beta", ("t",), maths.Name("β", ("t",))),
        ("lam", (), maths.Name("λ")),
        ("k2", ("t",), maths.Name("k", ("2", "t"))),
        ("u[2]", (), maths.Name("u", ("2",))),
        ("h[i=3]", ("t",), maths.Name("h", ("3", "t"))),
        ("S'", (), maths.Name("S′")),
        ("S''", ("t",), maths.Name("S′′", ("t",))),
        ("q_", (), maths.Name("q")),
        ("%7", ("t",), maths.Name("x", ("7", "t"))),
        ("log_f", ("t",), maths.Row((maths.Words("log "), maths.Name("f", ("t",))))),
    ],
)  # fmt: skip
def test_names_of_a_spec(text: str, subs: tuple[str, ...], wanted: maths.Math) -> None:
    assert maths.named(text, *subs) == wanted


def test_names_keep_how_they_are_set() -> None:
    assert maths.named("log_S", bold=True, prime=True) == maths.Row(
        (maths.Words("log "), maths.Name("S", (), True, True))
    )
    assert maths.named("%1", prime=True) == maths.Name("x", ("1",), False, True)
    assert maths.slope(x) == maths.Name("x", slope=True)


def test_parts_side_by_side() -> None:
    """Rows are taken apart, nothing is left out but None, and one alone is itself."""
    assert maths.row(x, None, maths.Row((n, y)), maths.EQUALS) == maths.Row((x, n, y, maths.EQUALS))
    assert (
        maths.row(None, x) is x and maths.row(maths.Row((x,))) is x and maths.row() == maths.Row(())
    )
    comma = maths.Sign(",", tight=True)
    assert maths.function("f", x, y) == maths.Row(
        (maths.Words("f"), maths.Fence(maths.Row((x, comma, maths.Words(" "), y))))
    )
    assert maths.function("f", x) == maths.Row((maths.Words("f"), maths.Fence(x)))
    assert maths.inverse(x) == maths.Power(
        x, maths.Row((maths.Sign("−", tight=True), maths.Number("1")))
    )


@pytest.mark.parametrize(
    ("math", "wanted"),
    [
        (n, TWO),
        (maths.Number("<"), "<mn>&lt;</mn>"),
        (maths.MINUS, "<mo>−</mo>"),
        (maths.Sign("−", tight=True), '<mo lspace="0" rspace="0">−</mo>'),
        (maths.Words("if any"), "<mtext>if\u00a0any</mtext>"),
        (maths.Fence(x), f"<mrow><mo>(</mo>{X}<mo>)</mo></mrow>"),
        (maths.Fence(x, "[", "]"), f"<mrow><mo>[</mo>{X}<mo>]</mo></mrow>"),
        (maths.Fraction(x, n), f"<mfrac>{X}{TWO}</mfrac>"),
        (maths.Power(n, x), f"<msup>{TWO}{X}</msup>"),
        (maths.Power(x, n), f"<msup>{X}{TWO}</msup>"),
        (maths.transposed(x), f"<msup>{X}<mtext>⊤</mtext></msup>"),
        (
            maths.Power(maths.Name("x", ("t",)), n),
            f"<msubsup>{X}<mrow><mi>t</mi></mrow><mrow>{TWO}</mrow></msubsup>",
        ),
        (maths.Sum("∑", x), f"<munder><mo>∑</mo>{X}</munder>"),
        (maths.Sum("∑", x, n), f"<munderover><mo>∑</mo>{X}{TWO}</munderover>"),
    ],
)  # fmt: skip
def test_parts_for_a_browser(math: maths.Math, wanted: str) -> None:
    assert as_mathml(math) == f"<math>{wanted}</math>"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        (maths.Name("β"), "<mi>β</mi>"),
        (maths.Name("Γ"), '<mi mathvariant="normal">Γ</mi>'),
        (maths.Name("gain"), '<mi mathvariant="normal">gain</mi>'),
        (maths.Name("S′"), "<msup><mi>S</mi><mrow><mo>′</mo></mrow></msup>"),
        (maths.Name("Ka1", bold=True), '<mi mathvariant="normal">𝐊𝐚1</mi>'),
        (maths.Name("Zz", bold=True), '<mi mathvariant="normal">𝐙𝐳</mi>'),
        (maths.Name("x", local=True), f"<mover>{X}<mo>~</mo></mover>"),
        (maths.Name("x", prime=True), f"<msup>{X}<mrow><mo>′</mo></mrow></msup>"),
        (maths.Name("x", ("2",)), f"<msub>{X}<mrow>{TWO}</mrow></msub>"),
        (maths.Name("x", ("in",)),
         f'<msub>{X}<mrow><mi mathvariant="normal">in</mi></mrow></msub>'),
        (maths.Name("x", ("t-1", "y")), f"<msub>{X}<mrow><mi>t</mi><mo>−</mo><mn>1</mn><mo>,</mo>"
                                  "<mi>y</mi></mrow></msub>"),
        (maths.Name("x", ("t+1",)), f"<msub>{X}<mrow><mi>t</mi><mo>+</mo><mn>1</mn></mrow></msub>"),
        (maths.Name("x", slope=True), f'<mrow><mi mathvariant="normal">d</mi>{X}</mrow>'),
    ],
)  # fmt: skip
def test_names_for_a_browser(name: maths.Name, wanted: str) -> None:
    assert as_mathml(name) == f"<math>{wanted}</math>"


def test_a_thin_space_stands_between_factors_alone() -> None:
    """Not beside signs and brackets, nor after words or a sum."""
    parts = maths.Row(
        (x, n, maths.EQUALS, x, maths.Fence(x), x, maths.Words("of"), x, maths.Sum("∑", x), x)
    )
    inner = f"<mrow><mo>(</mo>{X}<mo>)</mo></mrow>"
    wanted = (f"{X}{THIN}{TWO}<mo>=</mo>{X}{inner}{THIN}{X}{THIN}<mtext>of</mtext>{X}{THIN}"
              f"<munder><mo>∑</mo>{X}</munder>{X}")  # fmt: skip
    assert as_mathml(parts) == f"<math><mrow>{wanted}</mrow></math>"


def test_how_large_a_formula_is() -> None:
    assert as_mathml(x, block=True, large=True) == f'<math display="block">{X}</math>'
    assert as_mathml(x, large=True) == f'<math displaystyle="true">{X}</math>'
