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

FIXED = frozenset(("batch", "chunk"))
"""Names that every function of a spec has: the number of sequences, and that of the tokens that are
done at once. What generated files call and import is in nobody's way: a spec's own is written with
an underscore there (`archc.backends.writer.reserved`)."""


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
    """Whether a name is Python's or every function's: keywords, dunders, `batch` and `chunk`."""
    return keyword.iskeyword(name) or name.startswith("__") or name in FIXED or not name.isascii()
