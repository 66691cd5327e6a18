"""Pasts of the next call, written by the kernel of a region's values: the last tokens of each
sequence, with those of the past where there are fewer.

A walk carries the places of each run, so that at the last token of a sequence they are the tokens
that the next call looks back on, and one more in front. A launch that wants none gives no memory.
So it is with the value of a region, which the kernel of the gradient makes a second time if asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from archc.ir import layer as ir
from archc.ir.refusal import Refusal
from archc.ir.value_names import primal
from archc.lowering.token_walk import Carried
from archc.tile.handle import Tile
from archc.tile.language import Buffer

if TYPE_CHECKING:
    from archc.lowering.token import TokenProgram


def is_again(v: TokenProgram, name: str) -> bool:
    """Whether an output of a gradient is the value that it is the gradient of."""
    return v.region.again and v.graph is not v.region.graph and name in v.region.makes


@contextmanager
def if_wanted(v: TokenProgram, name: str) -> Iterator[None]:
    """The statements that write an output: of a value made again, where it has memory."""
    if not is_again(v, name):
        yield
        return
    with v.k.branch(v.k.given(v.made[name])), v.inner():
        yield


def let_in_place(v: TokenProgram, read: str) -> None:
    """All threads wait until each has read an input, if a value made again may be written there."""
    value = primal(read)
    if value is not None and is_again(v, value):
        with v.k.branch(v.k.given(v.made[value])):
            v.k.sync()


def nexts_of(v: TokenProgram) -> dict[str, Buffer]:
    """The memory for them, where a program makes the values of a region; of what is looked at from
    a later token nothing is carried that ends at the last one."""
    found = dict[str, Buffer]()
    if v.walk is not None and v.graph is v.region.graph:
        for name, past in v.region.nexts.items():
            if _carried(v, name) in v.walk.looks.carried:
                (node,) = (n for n in v.graph if isinstance(n.op, ir.Input) and n.op.name == past)
                found[name] = v.buffer(name, node)
    return found


def store_nexts(v: TokenProgram, buffers: Mapping[str, Buffer]) -> Refusal | None:
    """Write them at the last token of each sequence."""
    for name, buffer in buffers.items():
        assert v.walk is not None
        key = _carried(v, name)
        run = v.walk.run(key)
        if isinstance(run, Refusal):
            return run
        with v.k.branch(v.k.given(buffer)), v.inner():
            _store(v, buffer, key, run.tile)
    return None


def _carried(v: TokenProgram, name: str) -> Carried:
    """What is carried of the run that ends at a token of the outputs."""
    assert v.walk is not None
    return v.walk.looks.key(v.region.reader(v.region.nexts[name]), v.walk.looks.lag)


def _store(v: TokenProgram, buffer: Buffer, key: Carried, run: Tile) -> None:
    """Write one of them: what is stored over may be what was read, once all threads have read."""
    token = v.shifted(key.shift)
    look = v.seen.get(token)
    at, end = (token.at, v.tokens_in_all) if look is None else (look.token, look.end)
    last = end - 1
    place = at - last + (v.k.iota(key.width.name, v.length(key.width)) - 1)
    masks, index = [at.equals(last), place >= 0, place < v.whole_number(key.width.size - 1)], []
    for axis in v.graph[key.node].type.axes:
        own = v.indices.get(axis.name) or v.whole(axis)
        if axis.name == v.stream:
            index.append(place)
        elif axis.kind == "batch":
            index.append(own.at if look is None else look.sequence)
        else:
            index.append(own.at)
            masks += [own.mask] if own.mask is not None else []
    v.k.sync()
    v.k.store(buffer, *index, value=run, where=tuple(masks), exclusive=look is not None)
