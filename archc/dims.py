"""Symbolic sizes: an axis has a name and a size, and the size is a sympy expression.

Names decide whether two axes are the same, sizes only how long they are: two axes of equal size and
different names are never joined by accident. `K'` is another axis of the size of `K`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any, Literal

import sympy

Kind = Literal["batch", "stream", "dim"]

MAX_SIZE = 1 << 40
"""The largest size of an axis."""

MAX_DIGITS = 400
"""Longer numbers are refused, so that no power takes forever."""

LARGEST = sympy.Integer(int(sys.float_info.max))

MAX_PARTS = 60
MAX_DEGREE = 8
"""Longer expressions in sizes, and of a higher degree, are refused: sympy would take forever to
find their sign."""


@dataclass(frozen=True)
class Axis:
    """One named axis. `kind` is "batch" (implicit), "stream" (positions of a sequence) or "dim"."""

    name: str
    size: sympy.Expr
    kind: Kind = "dim"

    @property
    def base(self) -> str:
        """The name without primes: `K` of `K'`."""
        return self.name.rstrip("'")

    def renamed(self, name: str) -> Axis:
        """An axis of the same size and kind under another name."""
        return Axis(name, self.size, self.kind)

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        """That of the name: those of sizes take long, and few axes of a name have several."""
        return hash(self.name)


def size_symbol(name: str) -> sympy.Symbol:
    """The symbol of a size: an integer that is not negative (`Q = 0` switches a part off)."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


def number_symbol(name: str) -> sympy.Symbol:
    """The symbol of a real-valued option such as `eps` or `base`."""
    return sympy.Symbol(name, real=True)


def free_symbols(expr: sympy.Basic) -> frozenset[sympy.Symbol]:
    """The sizes and options that an expression or a condition names."""
    if isinstance(expr, sympy.Symbol):
        return frozenset((expr,))
    return frozenset(each for each in expr.free_symbols if isinstance(each, sympy.Symbol))


OWN = "#"
"""Ends the name of a size that is the compiler's own: no spec can write it, so that a size of a
spec may have any name. `T#` sorts as `T` does."""


def own_size(name: str) -> sympy.Symbol:
    """The symbol of a size that no spec gives, such as the length of a sequence."""
    return size_symbol(name + OWN)


def in_words(size: object) -> str:
    """A size, or its name, as people read it: `T`, where the symbol is `T#`."""
    return (size.name if isinstance(size, sympy.Symbol) else str(size)).replace(OWN, "")


BATCH = Axis("batch", size_symbol("batch"), "batch")
TIME = Axis("t", own_size("T"), "stream")


T_SEEN = own_size("T_seen")
"""How many tokens there have been in all: T, and those before it when a sequence is continued."""


def counts_tokens(name: str) -> bool:
    """Whether a size of this name is the length of a sequence: `T#`, `T_seen#`, `T_m#`. No spec
    gives one of these: what is called with says how long sequences are."""
    return name.endswith(OWN)


def stream(name: str, size: sympy.Expr | None = None) -> Axis:
    """A sequence axis other than the layer's own time, e.g. `m` of another sequence."""
    return Axis(name, own_size(f"T_{name}") if size is None else size, "stream")


def exact(text: str) -> sympy.Expr:
    """The exact value of a number as written: `1e-6` is 1/1000000, never a binary fraction.

    Raises Undefined for one that is larger than any number of 64 bits.
    """
    value = sympy.Rational(text)
    _check_real(value)
    return value


UNSOLVED = (sympy.Mod, sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)
"""Expressions that stay as written until sizes are numbers: sympy would factor polynomials."""


class Undefined(Exception):
    """A number that has no exact real value of bounded length, and why."""


def apply(fn: Callable[..., Any], *args: Any) -> Any:
    """`fn` of exact numbers, expressions or conditions.

    Raises Undefined for a division by zero, a number that is not real or has more than MAX_DIGITS
    digits, and an expression of more than MAX_PARTS parts or of more than MAX_DEGREE.
    """
    if fn is sympy.Pow and not _small_power(*args):
        raise Undefined("this power is too large to compute exactly")
    if fn is sympy.exp and not _small_power(sympy.E, *args):
        raise Undefined("this exponential is too large to compute exactly")
    kept = fn in UNSOLVED and args[0] != args[1] and not all(arg.is_number for arg in args)
    try:
        value = fn(*args, evaluate=False) if kept else fn(*args)
    except ZeroDivisionError:
        value = sympy.zoo
    if value == sympy.zoo and args[-1] in (0, -1):
        raise Undefined("division by zero")
    if value.has(sympy.zoo, sympy.nan):
        raise Undefined("this has no value")
    if isinstance(value, sympy.Expr):
        _check_bounds(value)
    return value


def _check_bounds(value: sympy.Expr) -> None:
    """Refuse what is not real, and what would take too long to compute with."""
    if sum(1 for _ in islice(sympy.preorder_traversal(value), MAX_PARTS + 1)) > MAX_PARTS:
        raise Undefined("this expression in sizes is too long")
    if _degree(value) > MAX_DEGREE:
        raise Undefined(f"this expression in sizes is of a degree above {MAX_DEGREE}")
    if value.is_number and value.is_extended_real is False:
        raise Undefined("this is not a real number")
    _check_real(value)
    if isinstance(value, sympy.Rational) and max(abs(value.p), value.q) > 10**MAX_DIGITS:
        raise Undefined(f"this number has more than {MAX_DIGITS} digits")


def _check_real(value: sympy.Expr) -> None:
    """Refuse a number that is beyond the reals of a computer, by far or not."""
    if isinstance(value, sympy.Rational) and abs(value) > LARGEST:
        raise Undefined("this number is larger than any real number of 64 bits (1.8e308)")


def _degree(value: sympy.Basic) -> float:
    """A bound on the degree in the sizes."""
    if isinstance(value, sympy.Symbol):
        return 1
    inner = [_degree(arg) for arg in value.args]
    if isinstance(value, sympy.Mul):
        return sum(inner)
    if isinstance(value, sympy.Pow) and value.exp.is_number:
        return inner[0] * max(1, abs(float(value.exp)))
    return max(inner, default=0)


@lru_cache(maxsize=1024)
def _small_power(base: sympy.Expr, exponent: sympy.Expr) -> bool:
    """Whether base ** exponent stays below MAX_DIGITS digits."""
    if not base.is_number or not exponent.is_number:
        return True
    if not (base.is_finite and exponent.is_finite):
        return False
    size = abs(float(sympy.log(abs(base) + 2, 10).evalf(5)) * float(exponent.evalf(5)))
    return size <= MAX_DIGITS


def at(expr: Any, sizes: Mapping[str, Any]) -> Any:
    """An expression or condition with exact numbers or expressions put in for its symbols, by name.

    Raises Undefined where that has no value.
    """
    if isinstance(expr, sympy.Symbol):
        return sizes.get(expr.name, expr)
    if not any(symbol.name in sizes for symbol in free_symbols(expr)):
        return expr
    return apply(expr.func, *(at(arg, sizes) for arg in expr.args))


def substituted(expr: Any, known: Mapping[Any, Any]) -> Any:
    """`expr.subs(known)`; without a search where it names none of these symbols, or is one."""
    if isinstance(expr, sympy.Symbol):
        value = known.get(expr, expr)
        if all(known.get(each, each) == each for each in value.free_symbols):
            return value
    return expr if known.keys().isdisjoint(expr.free_symbols) else expr.subs(known)


def axes_text(axes: tuple[Axis, ...]) -> str:
    """`[H, K]`: the dims as a spec writes them, batch and time left out."""
    return "[" + ", ".join(axis.name for axis in axes if axis.kind == "dim") + "]"
