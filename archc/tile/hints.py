"""Names for values of a program that nobody named."""

from __future__ import annotations

from archc.tile.language import Apply, Dot, Full, Op, Push, Reduce, Scan

WORDS = {
    "add": "plus", "sub": "minus", "mul": "times", "div": "ratio", "neg": "negative", "eq": "equal",
    "ne": "unequal", "lt": "below", "le": "at_most", "gt": "above", "ge": "at_least", "and": "both",
    "or": "either", "not": "otherwise", "where": "chosen", "max": "larger", "min": "smaller",
    "floordiv": "quotient", "mod": "rest", "sum": "total", "abs": "size", "real": "number",
}  # fmt: skip
"""Names of values that nobody named, by the function that makes them."""


def hint(op: Op) -> str:
    """The name of a value that has none of its own."""
    match op:
        case Reduce(function):
            return f"{WORDS.get(function, function)}_{op.dim}"
        case Scan(function):
            return f"running_{WORDS.get(function, function)}"
        case Apply(function):
            return WORDS.get(function, function)
        case Push():
            return "run"
        case Dot():
            return "product"
        case Full():
            return "number"
        case _:
            return type(op).__name__.lower()
