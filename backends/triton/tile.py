"""Tiles: what a kernel has in registers, and where on its axes a value is wanted."""

from __future__ import annotations

from dataclasses import dataclass, replace

REAL, INT, BOOL = "real", "int", "bool"


@dataclass(frozen=True)
class Index:
    """Where a value is wanted along one of its axes.

    `text` is the index: a number for each program, or with a `label` a vector along that axis of
    the tile. `whole`: it is 0, 1, 2, ... over all of the axis, or over the program's block of it.
    `mask` is true where it lies on the axis. `row` is the index of the same places along the rows
    of a chunk, if this one is along the tokens and they are not all rows in order.
    """

    text: str
    label: str | None = None
    whole: bool = False
    mask: str = ""
    row: Index | None = None


@dataclass(frozen=True)
class Tile:
    """A value in registers: the text of it, and the labels of its dims in order.

    Off an axis it is 0 along the labels of `clean`, and neither infinite nor undefined along those
    of `finite`.
    """

    text: str
    labels: tuple[str, ...] = ()
    kind: str = REAL
    clean: frozenset[str] = frozenset()
    finite: frozenset[str] = frozenset()
    dot: bool = False
    """Whether it is a product of matrices, or made from one element by element."""
    turned: bool = False
    """Whether that product is turned around in it."""
    stored: bool = False
    """Whether it is as wide as in memory: products of matrices read it so, all else widens it."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "finite", self.finite | self.clean)

    def renamed(self, names: dict[str, str]) -> Tile:
        """The tile with other labels."""
        labels = tuple(names.get(label, label) for label in self.labels)
        clean, finite = (frozenset(names.get(c, c) for c in s) for s in (self.clean, self.finite))
        return replace(self, labels=labels, clean=clean, finite=finite)


def spread(tile: Tile, labels: tuple[str, ...]) -> str:
    """The text of a tile as an operand whose dims are `labels`: missing ones are of length 1."""
    own = [label for label in labels if label in tile.labels]
    assert own == list(tile.labels), f"{tile.labels} in another order than {labels}"
    if not tile.labels or tile.labels == labels:
        return tile.text
    return f"{tile.text}[{', '.join(':' if label in own else 'None' for label in labels)}]"


def along(text: str, label: str, labels: tuple[str, ...]) -> str:
    """A vector along one dim as an operand whose dims are `labels`."""
    return spread(Tile(text, (label,)), labels)


def joined(order: tuple[str, ...], *tiles: Tile) -> tuple[str, ...]:
    """The labels of several tiles together: as in the widest of them, else in a given order."""
    widest = max(tiles, key=lambda tile: len(tile.labels))
    if all(set(tile.labels) <= set(widest.labels) for tile in tiles):
        return widest.labels
    found = {label for tile in tiles for label in tile.labels}
    return tuple(label for label in order if label in found)
