"""Formulas as trees: what is typeset in a page of a derivation, as MathML, LaTeX or plain text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from archc.ir.value_names import gate_of

GREEK = {
    "alpha": "α", "beta": "β", "gamma": "γ", "delta": "δ", "epsilon": "ε", "zeta": "ζ", "eta": "η",
    "theta": "θ", "kappa": "κ", "lam": "λ", "lambda": "λ", "mu": "μ", "nu": "ν", "xi": "ξ",
    "rho": "ρ", "sigma": "σ", "tau": "τ", "phi": "φ", "chi": "χ", "psi": "ψ", "omega": "ω",
    "Gamma": "Γ", "Delta": "Δ", "Sigma": "Σ",
}  # fmt: skip
LATEX_GREEK = {letter: f"\\{name}" for name, letter in GREEK.items() if name not in ("lam",)}
PARTS = re.compile(r"^(?P<name>[^\[\d]+?)(?P<digits>\d+)?(?:\[(?P<index>.*)\])?$")


@dataclass(frozen=True)
class Name:
    """A letter or a word with subscripts; `bold`: a stack of rows; `prime`: after the decay;
    `slope`: the gradient with respect to it; `local`: of a chunk that starts from nothing."""

    text: str
    subs: tuple[str, ...] = ()
    bold: bool = False
    prime: bool = False
    slope: bool = False
    local: bool = False


@dataclass(frozen=True)
class Number:
    """A number."""

    text: str


@dataclass(frozen=True)
class Sign:
    """An operator or a relation, with space around it; `tight`: without."""

    text: str
    tight: bool = False


@dataclass(frozen=True)
class Words:
    """Upright words in a formula."""

    text: str


@dataclass(frozen=True)
class Row:
    """Parts side by side."""

    parts: tuple[Math, ...]


@dataclass(frozen=True)
class Fence:
    """A part in brackets."""

    inner: Math
    left: str = "("
    right: str = ")"


@dataclass(frozen=True)
class Fraction:
    """One over another."""

    above: Math
    below: Math


@dataclass(frozen=True)
class Root:
    """A square root."""

    inner: Math


@dataclass(frozen=True)
class Power:
    """A base and its exponent, such as a transpose."""

    base: Math
    exponent: Math


@dataclass(frozen=True)
class Sum:
    """A big sign with its range below and above."""

    sign: str
    below: Math
    above: Math | None = None


Math = Name | Number | Sign | Words | Row | Fence | Fraction | Root | Power | Sum

EQUALS, PLUS, MINUS, TIMES = Sign("="), Sign("+"), Sign("−"), Sign("⊙")
NEGATIVE = Sign("−", tight=True)
T = Words("⊤")


def row(*parts: Math | None) -> Math:
    """Parts side by side, those of rows too; None is left out."""
    found: list[Math] = []
    for part in parts:
        found += part.parts if isinstance(part, Row) else [] if part is None else [part]
    return found[0] if len(found) == 1 else Row(tuple(found))


def transposed(part: Math) -> Math:
    """A matrix or vector, transposed."""
    return Power(part, T)


def slope(name: Math) -> Math:
    """The gradient of the loss with respect to a value."""
    assert isinstance(name, Name), "a value has a name"
    return replace(name, slope=True)


def inverse(part: Math) -> Math:
    """The inverse of a matrix."""
    return Power(part, Row((NEGATIVE, Number("1"))))


def listed(parts: Iterable[Math]) -> Math:
    """Parts with commas between them."""
    found: list[Math] = []
    for part in parts:
        found += [Sign(",", tight=True), Words(" "), part] if found else [part]
    return row(*found)


def function(name: str, *args: Math) -> Math:
    """`name(a, b)`."""
    return row(Words(name), Fence(listed(args)))


def named(text: str, *subs: str, bold: bool = False, prime: bool = False) -> Math:
    """A name of the spec: `W_q` is W with a subscript, `beta` a Greek letter, `log_f` a log."""
    if text.startswith("%"):  # a value that the spec gives no name
        return Name("x", (text[1:], *subs), bold, prime)
    gate = gate_of(text)
    if gate is not None:
        return row(Words("log "), named(gate, *subs, bold=bold, prime=prime))
    primes = len(text) - len(text.rstrip("'"))
    match = PARTS.match(text.rstrip("'"))
    index = match["index"] if match and match["index"] else None
    plain = (match["name"] if match else text).rstrip("_")
    base, *rest = plain.split("_")
    digits = [match["digits"]] if match and match["digits"] else []
    own = [GREEK.get(part, part) for part in rest if part] + digits
    own += [index.partition("=")[2] or index] if index else []
    return Name(GREEK.get(base, base) + "′" * primes, (*own, *subs), bold, prime)
