"""Spelling: ASCII names for the Unicode that papers use, and names that a spec may not take."""

from __future__ import annotations

import keyword

GREEK = dict(
    zip(
        "αβγδεζηθικλμνξοπρστυφχψω",
        (
            *("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota"),
            *("kappa", "lam", "mu", "nu", "xi", "omicron", "pi", "rho"),
            *("sigma", "tau", "upsilon", "phi", "chi", "psi", "omega"),
        ),
        strict=True,
    )
)
GREEK |= {letter.upper(): name.capitalize() for letter, name in GREEK.items()}
WORDS = {"σ": "sigmoid", "∑": "sum", "∏": "product", "√": "sqrt", "∞": "inf"}
OPERATORS = {"≤": "<=", "≥": ">=", "≠": "!=", "∈": "in", "−": "-", "⊙": "*"}

FIXED = frozenset(
    ("torch", "tl", "triton", "math", "nn", "Tensor", "NamedTuple", "self", "archc", "batch")
) | {"chunk"}  # the number of tokens that are done at once


def canonical(name: str) -> str:
    """The ASCII spelling of a name: `β` is `beta`, `W_β` is `W_beta`, a lone `σ` is `sigmoid`."""
    name = name.replace("′", "'")
    if name.rstrip("'") in WORDS:
        return WORDS[name.rstrip("'")]
    return "".join(GREEK.get(char, char) for char in name)


def operator(text: str) -> str:
    """The ASCII spelling of an operator."""
    return OPERATORS.get(text, text)


def reserved(name: str) -> bool:
    """Whether a name is Python's or generated code's: keywords, dunders, `torch`, `self`, ..."""
    return keyword.iskeyword(name) or name.startswith("__") or name in FIXED or not name.isascii()
