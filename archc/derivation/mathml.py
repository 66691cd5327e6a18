"""Formulas -> MathML, which browsers typeset themselves."""

from __future__ import annotations

from dataclasses import replace
from html import escape

from archc.derivation import maths


def as_mathml(math: maths.Math, block: bool = False, large: bool = False) -> str:
    """A formula as a `math` element; `block`: on a line of its own; `large`: as large as there."""
    display = ' display="block"' if block else ' displaystyle="true"' if large else ""
    return f"<math{display}>{_element(math)}</math>"


def _element(math: maths.Math) -> str:
    match math:
        case maths.Name():
            return _name(math)
        case maths.Number(text):
            return f"<mn>{escape(text)}</mn>"
        case maths.Sign(text, tight):
            space = ' lspace="0" rspace="0"' if tight else ""
            return f"<mo{space}>{escape(text)}</mo>"
        case maths.Words(text):
            return f"<mtext>{escape(text).replace(' ', chr(0xA0))}</mtext>"
        case maths.Row(parts):
            return f"<mrow>{''.join(_spaced(parts))}</mrow>"
        case maths.Fence(inner, left, right):
            body = _element(inner)
            return f"<mrow><mo>{escape(left)}</mo>{body}<mo>{escape(right)}</mo></mrow>"
        case maths.Fraction(above, below):
            return f"<mfrac>{_element(above)}{_element(below)}</mfrac>"
        case maths.Root(inner):
            return f"<msqrt>{_element(inner)}</msqrt>"
        case maths.Power(maths.Name() as base, exponent) if base.subs:
            return _name(base, exponent)
        case maths.Power(base, exponent):
            return f"<msup>{_element(base)}{_element(exponent)}</msup>"
        case maths.Sum(sign, below, None):
            return f"<munder><mo>{sign}</mo>{_element(below)}</munder>"
        case maths.Sum(sign, below, above):
            assert above is not None
            return f"<munderover><mo>{sign}</mo>{_element(below)}{_element(above)}</munderover>"


def _spaced(parts: tuple[maths.Math, ...]) -> list[str]:
    """Factors side by side with a thin space between them, so that they do not read as a word."""
    found: list[str] = []
    for number, part in enumerate(parts):
        before = parts[number - 1] if number else None
        thin = not isinstance(part, maths.Sign | maths.Fence) and not isinstance(
            before, maths.Sign | maths.Words | maths.Sum
        )
        if before is not None and thin:
            found.append('<mspace width="0.16em"/>')
        found.append(_element(part))
    return found


def _name(name: maths.Name, exponent: maths.Math | None = None) -> str:
    """A letter in italics, a word or a capital Greek letter upright, a stack of rows bold, with
    what stands below and above."""
    letter = name.text.rstrip("′")
    upright = name.bold or len(letter) > 1 or "Α" <= letter <= "Ω"
    style = ' mathvariant="normal"' if upright else ""
    text = "".join(map(_bold, letter)) if name.bold else letter
    base = f"<mi{style}>{escape(text)}</mi>"
    base = f"<mover>{base}<mo>~</mo></mover>" if name.local else base
    primes = len(name.text) - len(letter) + name.prime
    above = "<mo>′</mo>" * primes + (_element(exponent) if exponent is not None else "")
    below = "<mo>,</mo>".join(_sub(sub) for sub in name.subs)
    if name.slope:
        whole = _name(replace(name, slope=False), exponent)
        return f'<mrow><mi mathvariant="normal">d</mi>{whole}</mrow>'
    if below and above:
        return f"<msubsup>{base}<mrow>{below}</mrow><mrow>{above}</mrow></msubsup>"
    if below:
        return f"<msub>{base}<mrow>{below}</mrow></msub>"
    return f"<msup>{base}<mrow>{above}</mrow></msup>" if above else base


def _bold(char: str) -> str:
    """A Latin letter as the bold letter of mathematics."""
    if not char.isascii() or not char.isalpha():
        return char
    return chr(0x1D400 + ord(char) - ord("A") if char.isupper() else 0x1D41A + ord(char) - ord("a"))


def _sub(text: str) -> str:
    """A subscript: `t-1`, a number or a letter."""
    first, minus, rest = text.partition("-")
    if minus:
        return f"{_sub(first)}<mo>−</mo>{_sub(rest)}"
    first, plus, rest = text.partition("+")
    if plus:
        return f"{_sub(first)}<mo>+</mo>{_sub(rest)}"
    if text.isdigit():
        return f"<mn>{text}</mn>"
    upright = ' mathvariant="normal"' if len(text) > 1 else ""
    return f"<mi{upright}>{escape(text)}</mi>"
