"""What a region's next call looks back on, in a generated file: the lines that let the kernel of
its values write it where few tokens follow, in place of a join of tensors.

    if ends_by_kernel(T, None, (x_past,), (x.dtype,), x, taps, x_past):
        y = x.new_empty(x.shape, dtype=y_kind)
        x_past_after = x_past.new_empty(x_past.shape)
        layer_y_values(x, taps, x_past, y, x_past_after)
        return y, x_past_after

In slots one token follows, and its past is written over, if one program alone reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from archc.backends.eager.scope import Scope
from archc.backends.writer import Writer, in_tuple

if TYPE_CHECKING:
    from archc.backends.triton.region import RegionFunction


def write_nexts(made: RegionFunction, body: Scope, lines: Writer, given: list[str]) -> None:
    """`if ...: return ...`; `given` are the arguments of the region's functions but the last."""
    kernels, title = made.kernels, made.title
    nexts = {kernels.made.region.nexts[name]: after for name, after in kernels.nexts.items()}
    before = [made.arguments[past] for past in nexts]
    alone = [made.arguments[past] for past in nexts if made.file.slots and _has_one(made, past)]
    kinds = [_kind_of(made, past) for past in nexts]
    tokens, borders = body.ask(body.lengths["t"]), "cu_seqlens" if made.packed else "None"
    given_by = [in_tuple(before), in_tuple(kinds)]
    asked = ", ".join([tokens, borders, *given_by, *made.arguments.values()])
    with lines.block(f"if ends_by_kernel({asked}):"):
        results = ", ".join(kernels.outputs.values())
        for x, y, kind in zip(made.alike, kernels.outputs.values(), made.dtypes(), strict=False):
            lines.line(f"{y} = {x}.new_empty({x}.shape, dtype={kind})")
        if not made.alike:
            lines.call(f"{results} = {title}_room(", [*given, *made.dtypes()], ")")
        for past, after in zip(before, nexts.values(), strict=True):
            over = f"{past} if {tokens} == 1 else " if past in alone else ""
            lines.line(f"{after} = {over}{past}.new_empty({past}.shape)")
        every = [*given, *kernels.outputs.values(), *nexts.values()]
        lines.call(f"{title}_values(", every, ")")
        kept = {**dict(zip(made.region.pasts, made.kept(body), strict=True)), **nexts}
        lines.returns([*made.outputs.values(), *kept.values()])


def _has_one(made: RegionFunction, past: str) -> bool:
    """Whether no two programs read the same numbers of a past, in this region or behind it: one
    would write over them before the other has read them."""
    space, looks = made.kernels.made.values.space, made.region.pasts[past].looks
    dims = {axis.name for axis in (*space.grid, space.split) if axis is not None}
    alone = {*made.scope.graph.users(looks)} <= {*made.region.members}
    return alone and dims <= {*made.nodes[past].type.names}


def _kind_of(made: RegionFunction, past: str) -> str:
    """The dtype of what follows a past."""
    for name, own in made.kernels.made.region.tails.items():
        if own == past:
            return made.kinds[name]
    looked = made.scope.graph[made.region.pasts[past].looks].operands[0]
    (read,) = (name for name, id in made.region.reads.items() if id == looked)
    return f"{made.arguments[read]}.dtype"
