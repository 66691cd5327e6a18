"""Names that nothing has yet: what graphs, layers and files call a further value, axis or function.

Numbers are counted from 2, so that the same graph gets the same names.
"""

from __future__ import annotations

from collections.abc import Container
from itertools import count


def numbered(name: str, taken: Container[str], sign: str = "_") -> str:
    """`q`, or else the first of `q_2`, `q_3` ... that is not taken."""
    if name not in taken:
        return name
    return next(each for n in count(2) if (each := f"{name}{sign}{n}") not in taken)


def marked(name: str, taken: Container[str], mark: str = "'") -> str:
    """`K`, or else the first of `K'`, `K''` ... that is not taken."""
    while name in taken:
        name += mark
    return name
