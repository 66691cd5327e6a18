"""A value in the hands of the one who writes a tile program: Python's operators apply to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from archc.tile import language as lang

if TYPE_CHECKING:
    from archc.tile.compose import Composer


Operator = Callable[["Tile", Any], "Tile"]
"""A method of a tile and another operand: a tile or a number."""


def _operator(function: str) -> tuple[Operator, Operator]:
    """The operator of a function of two numbers, and that with the tile behind."""
    return (
        lambda tile, other: tile.composer.apply(function, tile, other),
        lambda tile, other: tile.composer.apply(function, other, tile),
    )


@dataclass(frozen=True, eq=False)
class Tile:
    """A value in the hands of the one who writes a program: Python's operators apply."""

    composer: Composer
    value: lang.Value

    @property
    def dims(self) -> tuple[lang.Dim, ...]:
        """The dims of the value."""
        return self.value.type.dims

    @property
    def dtype(self) -> str:
        """The dtype of the value."""
        return self.value.type.dtype

    def dim(self, name: str) -> lang.Dim:
        """The dim of that name; ValueError if there is none."""
        return self.dims[self.value.type.place(name)]

    def named(self, name: str, note: str = "") -> Tile:
        """The value under a name for readers, with the equation that it stands for."""
        return self.composer.named(self, name, note)

    def hinted(self, name: str) -> Tile:
        """The value under a name for readers if it is not a part of a formula."""
        if not self.value.hint:
            object.__setattr__(self.value, "hint", name)
        return self

    def to(self, dtype: str, bits: bool = False) -> Tile:
        """The numbers of the tile in another dtype."""
        if dtype == self.dtype:
            return self
        return self.composer.put(lang.Cast(dtype, bits), self, type=lang.Type(dtype, self.dims))

    def along(self, /, **names: str) -> Tile:
        """Dims under other names: `k.along(t="s")`."""
        return self.composer.along(self, tuple(names.get(dim.name, dim.name) for dim in self.dims))

    def ordered(self, *names: str) -> Tile:
        """Dims in this order."""
        if names == self.value.type.names:
            return self
        dims = tuple(self.dim(name) for name in names)
        return self.composer.put(lang.Transpose(names), self, type=lang.Type(self.dtype, dims))

    def over(self, *dims: lang.Dim, held: bool = False) -> Tile:
        """The tile along further dims, in this order; `held`: each thread has all of the further
        ones, which stand last."""
        if dims == self.dims:
            return self
        seen = self.ordered(*(dim.name for dim in dims if dim.name in self.value.type.names))
        return self.composer.put(lang.Broadcast(dims, held), seen, type=lang.Type(self.dtype, dims))

    def shaped(self, *dims: lang.Dim) -> Tile:
        """One dim as several, or several as one; the number of elements stays."""
        return self.composer.put(lang.Reshape(dims), self, type=lang.Type(self.dtype, dims))

    def reduce(self, function: str, dim: str) -> Tile:
        """`sum`, `product`, `max`, `min`, `argmax` or `argmin` along a dim."""
        rest = tuple(each for each in self.dims if each.name != dim)
        dtype = "i32" if function.startswith("arg") else self.dtype
        self.value.type.place(dim)
        return self.composer.put(lang.Reduce(function, dim), self, type=lang.Type(dtype, rest))

    def sum(self, dim: str) -> Tile:
        """The sum along a dim."""
        return self.reduce("sum", dim)

    def max(self, dim: str) -> Tile:
        """The largest along a dim."""
        return self.reduce("max", dim)

    def scan(self, function: str, dim: str, reverse: bool = False) -> Tile:
        """The running sum, product, max or min along a dim."""
        return self.composer.put(lang.Scan(function, dim, reverse), self, type=self.value.type)

    def sort(self, descending: bool = False, most: lang.Dim | None = None) -> Tile:
        """Sorted along the last dim; `most`: only the largest so many."""
        dims = self.dims if most is None else (*self.dims[:-1], most)
        return self.composer.put(
            lang.Sort(descending, most), self, type=lang.Type(self.dtype, dims)
        )

    def flip(self, dim: str) -> Tile:
        """From the end of a dim to its begin."""
        return self.composer.put(lang.Flip(dim), self, type=self.value.type)

    def pick(self, index: Tile, dim: str) -> Tile:
        """Elements along a dim at the indices of a tile."""
        return self.composer.put(
            lang.Pick(dim), self, index, type=lang.Type(self.dtype, index.dims)
        )

    def push(self, newest: Tile, count: Any) -> Tile:
        """The first `count` elements along the last dim moved down by one, and `newest` last."""
        seen = newest.over(*self.dims[:-1])
        return self.composer.put(lang.Push(count), self, seen, type=self.value.type)

    def dot(self, other: Tile, add: Tile | None = None, precision: str = "ieee") -> Tile:
        """The product of two matrices over the dim that both have, in float32."""
        return self.composer.dot(self, other, add, precision)

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("sub")
    __mul__, __rmul__ = _operator("mul")
    __truediv__, __rtruediv__ = _operator("div")
    __floordiv__ = _operator("floordiv")[0]
    __mod__ = _operator("mod")[0]
    __lt__ = _operator("lt")[0]
    __le__ = _operator("le")[0]
    __gt__ = _operator("gt")[0]
    __ge__ = _operator("ge")[0]
    __and__ = _operator("and")[0]
    __or__ = _operator("or")[0]

    def __neg__(self) -> Tile:
        return self.composer.apply("neg", self)

    def __invert__(self) -> Tile:
        return self.composer.apply("not", self)

    def equals(self, other: Any) -> Tile:
        """Whether elements are equal (`==` compares values of the program as objects)."""
        return self.composer.apply("eq", self, other)
