"""Named axes -> torch indexing: where a tensor needs a permutation, a new axis or an einsum.

A tensor's layout is the tuple of its axes' names, in the order of its torch dimensions.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence

from archc.backends.expression import ATOM, Text, call, prefixed

Layout = Sequence[str]


def aligned(value: Text, have: Layout, want: Layout) -> Text:
    """`value` indexed to broadcast against a tensor of layout `want`: `beta[..., None]`."""
    if value.inner is not None:
        return prefixed(value.text[0], aligned(value.inner, have, want))
    order = [axis for axis in want if axis in have]
    index = _new_axes(order, want)
    moved = permuted(value, have, order)
    return Text(f"{moved.at(ATOM)}[{index}]") if index else moved


def permuted(value: Text, have: Layout, want: Layout) -> Text:
    """`value` with the same axes in another order."""
    have, want = list(have), list(want)
    if have == want:
        return value
    differ = [i for i in range(len(have)) if have[i] != want[i]]
    text = value.at(ATOM)
    if len(differ) == 2:
        last = differ == [len(have) - 2, len(have) - 1]
        return Text(f"{text}.mT" if last else f"{text}.transpose({differ[0]}, {differ[1]})")
    for i in range(len(have)):
        for j in range(len(have)):
            rest = have[:i] + have[i + 1 :]
            if [*rest[:j], have[i], *rest[j:]] == want:
                return Text(f"{text}.movedim({i}, {j})")
    return Text(f"{text}.permute({', '.join(str(have.index(axis)) for axis in want)})")


def _new_axes(have: Layout, want: Layout) -> str:
    """The index with a new axis where `have` lacks one of `want`; "" if broadcasting does it."""
    marks = [":" if axis in have else "None" for axis in want]
    while marks and marks[0] == "None":
        marks.pop(0)
    if "None" not in marks:
        return ""
    while marks[-1] == ":":
        marks.pop()
    leading = marks.index("None")
    tail = want[len(want) - 1] not in have and marks.count("None") == len(marks) - leading
    if leading > 1 and tail:
        marks = ["...", *marks[leading:]]
    return ", ".join(marks)


def dims(layout: Layout, axes: Iterable[str]) -> str:
    """Axes as the `dim` argument of a reduction: `-1`, `2`, `(1, 2)`."""
    found = sorted(layout.index(axis) for axis in axes)
    shown = [str(i - len(layout) if i == len(layout) - 1 else i) for i in found]
    return shown[0] if len(shown) == 1 else f"({', '.join(shown)})"


def letters(names: Iterable[str]) -> dict[str, str]:
    """One letter for each axis: its own initial where that is free."""
    chosen: dict[str, str] = {}
    for name in dict.fromkeys(names):
        initial = name[0] if name[0].isascii() and name[0].isalpha() else "n"
        wishes = [initial.lower(), initial.upper(), *string.ascii_letters]
        chosen[name] = next(letter for letter in wishes if letter not in chosen.values())
    return chosen


def einsum(values: Sequence[Text], ins: Sequence[Layout], out: Layout) -> Text:
    """`torch.einsum("btd,dhk->bthk", x, W)`."""
    names = letters(label for labels in ins for label in labels)
    terms = ",".join("".join(names[label] for label in labels) for labels in ins)
    result = "".join(names[label] for label in out)
    return call("torch.einsum", f'"{terms}->{result}"', *values)
