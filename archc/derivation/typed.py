"""Formulas -> LaTeX, and -> plain text."""

from __future__ import annotations

from collections.abc import Iterator

from archc.derivation import maths

SIGNS = {
    "⊙": r"\odot", "−": "-", "≤": r"\le", "⊤": r"\top", "∏": r"\prod", "Σ": r"\sum", "∑": r"\sum",
    "…": r"\dots", "∞": r"\infty", "→": r"\to", "∂": r"\partial", "≥": r"\ge", "·": r"\cdot",
    "∈": r"\in", "←": r"\leftarrow", "≠": r"\ne",
}  # fmt: skip


RAISED = {"⊤": "ᵀ", "−1": "⁻¹", "−⊤": "⁻ᵀ", "2": "²", "3": "³"}


def as_latex(math: maths.Math) -> str:
    """A formula as LaTeX."""
    match math:
        case maths.Name():
            return _latex_name(math)
        case maths.Number(text):
            return text
        case maths.Sign(text):
            return f" {SIGNS.get(text, text)} "
        case maths.Words(text):
            word = text.strip().replace("_", r"\_")
            return SIGNS.get(text, rf"\operatorname{{{word}}}" if word else r"\,")
        case maths.Row(parts):
            return "".join(_spaced(parts))
        case maths.Fence(inner, left, right):
            return rf"\left{left} {as_latex(inner)} \right{right}"
        case maths.Fraction(above, below):
            return rf"\frac{{{as_latex(above)}}}{{{as_latex(below)}}}"
        case maths.Root(inner):
            return rf"\sqrt{{{as_latex(inner)}}}"
        case maths.Power(base, exponent):
            return rf"{{{as_latex(base)}}}^{{{as_latex(exponent).strip()}}}"
        case maths.Sum(sign, below, above):
            upper = f"^{{{as_latex(above)}}}" if above is not None else ""
            return f"{SIGNS.get(sign, sign)}_{{{as_latex(below)}}}{upper}"


def _spaced(parts: tuple[maths.Math, ...]) -> Iterator[str]:
    """Factors side by side with a thin space between them."""
    for number, part in enumerate(parts):
        before = parts[number - 1] if number else None
        if before is not None and not isinstance(part, maths.Sign | maths.Fence):
            yield "" if isinstance(before, maths.Sign | maths.Words) else r"\,"
        yield as_latex(part)


def _latex_name(name: maths.Name) -> str:
    letter = name.text.rstrip("′")
    primes = "'" * (len(name.text) - len(letter) + name.prime)
    base = maths.LATEX_GREEK.get(letter, letter if len(letter) == 1 else rf"\mathrm{{{letter}}}")
    base = rf"\mathbf{{{base}}}" if name.bold else base
    base = rf"\tilde{{{base}}}" if name.local else base
    subs = (
        maths.LATEX_GREEK.get(s, s if len(s) == 1 or {"-", "+"} & {*s} else rf"\mathrm{{{s}}}")
        for s in name.subs
    )
    below = ",".join(subs)
    base = rf"\mathrm{{d}}{base}" if name.slope else base
    return f"{base}{primes}" + (f"_{{{below}}}" if below else "")


def as_plain(math: maths.Math) -> str:
    """A formula as one line of text."""
    match math:
        case maths.Name(text, subs, _, prime, slope, local):
            below = ",".join(subs)
            below = f"[{below}]" if below and not below.isalnum() else below
            return f"{'d' * slope}{text}{'~' * local}{'′' * prime}" + (f"_{below}" if below else "")
        case maths.Number(text):
            return text
        case maths.Sign(text, tight):
            return text if tight else f" {text} "
        case maths.Words(text):
            return text
        case maths.Row(parts):
            return _joined(list(_in_row(parts)))
        case maths.Fence(inner, left, right):
            return f"{left}{as_plain(inner)}{right}"
        case maths.Fraction(above, below):
            signs = isinstance(above, maths.Row) and any(
                isinstance(p, maths.Sign) for p in above.parts
            )
            return f"{_closed(above) if signs else as_plain(above)} / {_closed(below)}"
        case maths.Root(inner):
            return f"√{_closed(inner)}"
        case maths.Power(base, exponent):
            above = as_plain(exponent)
            return _closed(base) + RAISED.get(above, f"^{above}")
        case maths.Sum(sign, below, above):
            upper = f"..{as_plain(above)}" if above is not None else ""
            return f"{sign}[{as_plain(below)}{upper}] "


def _joined(parts: list[str]) -> str:
    """Factors with a space between them, signs as they are."""
    text = ""
    for part in parts:
        apart = text and not text[-1].isspace() and text[-1] not in "(−" and part[:1] not in " (,)"
        text += (" " if apart else "") + part
    return text


def _in_row(parts: tuple[maths.Math, ...]) -> Iterator[str]:
    """Parts side by side; a fraction as a factor, or after a minus, has brackets."""
    for number, part in enumerate(parts):
        before, after = parts[:number][-1:], parts[number + 1 :][:1]
        term = all(isinstance(p, maths.Sign) and p.text in "=←+" for p in (*before, *after))
        yield _closed(part) if isinstance(part, maths.Fraction) and not term else as_plain(part)


def _closed(math: maths.Math) -> str:
    """A part as one factor; `f(x)` is one."""
    text = as_plain(math)
    called = isinstance(math, maths.Row) and [*map(type, math.parts)] == [maths.Words, maths.Fence]
    return f"({text})" if isinstance(math, maths.Row | maths.Fraction) and not called else text
