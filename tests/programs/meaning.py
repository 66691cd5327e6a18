"""What a drawn program means, computed from its terms in plain torch.

Nothing of archc is used: a mistake that the compiler and its oracle share shows here. A value is a
tensor whose dims have names: `B`, the tokens `t`, those read `s`, and the dims of the spec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

import torch
from torch import Tensor

from tests.programs.meaning_ops import MEANING, elementwise
from tests.programs.named import BATCH, TIME, Named, aligned, joined, real, renamed, spread
from tests.programs.terms import Block, Decl, Let, Line, Program, Statement, Term

# --- the world of a program ----------------------------------------------------------------------


@dataclass
class World:
    """What is known at one place of a program."""

    program: Program
    decl: Decl
    sizes: Mapping[str, int]
    params: Mapping[str, Tensor]
    env: dict[str, Named] = field(default_factory=dict)
    axes: Mapping[str, str] = field(default_factory=dict)
    path: tuple[int, ...] = ()
    home: tuple[int, ...] = ()
    tokens: int = 0
    now: int | None = None
    read: str = ""
    allowed: Named | None = None
    grouped: tuple[str, str] | None = None
    chosen: Named | None = None
    expert: str = ""
    shared_name: str = ""

    def value(self, term: Term) -> Named:
        """The value of a term."""
        return {**MEANING, **CALLS}.get(term.op, elementwise)(self, term)

    def dim(self, name: str) -> str:
        """The dim that an axis of a function stands for."""
        return self.axes.get(name, BATCH if name == "batch" else name)

    def size(self, name: str) -> int:
        dim = self.dim(name).rstrip("'")
        return int(dim) if dim.isdigit() else self.sizes[dim]

    def find(self, name: str) -> Named:
        """What a name means here: at the token at hand, in the group of each head."""
        if name not in self.env:
            return self.shared(self.param(name))
        value = self.env[name]
        if self.now is not None and TIME in value.names:
            place = value.names.index(TIME)
            rest = (*value.names[:place], *value.names[place + 1 :])
            value = Named(value.data.select(place, self.now), rest)
        return self.shared(value)

    def shared(self, value: Named) -> Named:
        """A value with a dim of groups as each of the heads sees it."""
        if self.grouped is None or self.grouped[1] not in value.names:
            return value
        heads, groups = self.grouped
        share = self.size(heads) // self.size(groups)
        dim = value.names.index(groups)
        return renamed(
            Named(value.data.repeat_interleave(share, dim), value.names), {groups: heads}
        )

    def param(self, name: str) -> Named:
        """A parameter of the layer at hand: by its name, and the passes of `repeat` it is in."""
        declared = next(each for each in self.decl.params if each.name == name)
        path = self.path if declared.inside else self.home
        full = f"{self.shared_name}_{name}" if self.shared_name else name
        owners = [key.split(".")[:-1] for key in self.params if key.split(".")[-1] == full]
        for each in owners:
            if tuple(int(part) for part in each if part.isdigit()) == path:
                return Named(self.params[".".join([*each, full])], declared.dims)
        if owners:
            raise KeyError(f"{name} of pass {path}, among {owners}")
        shape = [self.size(dim) for dim in declared.dims]  # no output needs it
        return Named(torch.zeros(shape, dtype=torch.float64), declared.dims)

    def extent(self, name: str) -> int:
        """How long a dim is, of the spec or the batch."""
        return self.env["@batch"].data.shape[0] if name == BATCH else self.size(name)

    def number(self, text: str) -> int:
        """A count: a number, or a size."""
        return int(text) if text.isdigit() else self.size(text)


def run(world: World, statements: Iterable[Statement]) -> None:
    """Compute what statements define, in order."""
    for each in statements:
        if isinstance(each, Line):
            continue
        if isinstance(each, Block):
            BLOCKS[each.kind](world, each)
        else:
            let(world, each)


def let(world: World, each: Let) -> None:
    if each.term.op == "solved":
        world.env[each.names[0]] = solved(world, each.term)
        return
    value = world.value(each.term)
    if each.parts:
        divided(world, each, value)
        return
    if len(each.names) > 1:
        last = each.term.dims[-1]
        dim = value.names.index(world.dim(last))
        names = tuple(name for name in value.names if name != world.dim(last))
        for place, name in enumerate(each.names):
            world.env[name] = Named(value.data.select(dim, place), names)
        return
    lone = {n: n.rstrip("'") for n in value.names if n.endswith("'") and n[:-1] not in value.names}
    world.env[each.names[0]] = renamed(value, lone)


def divided(world: World, each: Let, value: Named) -> None:
    """`a, b = x by [H, K], [V]`: entries of the last dim, counted by the dims of each part."""
    at = value.names.index(each.term.dims[-1])
    shapes = [[world.size(dim) for dim in dims] for dims in each.parts]
    pieces = value.data.split([prod(shape) for shape in shapes], at)
    for name, dims, shape, piece in zip(each.names, each.parts, shapes, pieces, strict=True):
        names = (*value.names[:at], *dims, *value.names[at + 1 :])
        world.env[name] = Named(piece.unflatten(at, shape), names)


def solved(world: World, term: Term) -> Named:
    """u with u[t] = v[t] - b[t] * sum over the tokens s that t reads of w[t, s] u[s]."""
    v, b, w = (world.value(arg) for arg in term.args)
    w = masked(world, w, 0.0)
    value, factor = (Named(real(x.data), x.names) for x in (v, b))
    rows: list[Named] = []
    for t in range(world.tokens):
        before = row_of(w, t)
        new = row_of(value, t)
        for s, u in enumerate(rows):
            share = joined(row_of(factor, t), joined(Named(before.data.select(
                before.names.index(world.read), s), tuple(
                n for n in before.names if n != world.read)), u, []), [])  # fmt: skip
            (x, y), names = aligned([new, share])
            new = Named(x - y, names)
        rows.append(new)
    names = rows[-1].names
    shape = [max(n) for n in zip(*(spread(row, names).shape for row in rows), strict=True)]
    data = torch.stack([spread(row, names).expand(shape) for row in rows])
    return Named(data, (TIME, *names))


def row_of(value: Named, t: int) -> Named:
    """A value at a token."""
    if TIME not in value.names:
        return value
    at = value.names.index(TIME)
    return Named(value.data.select(at, t), (*value.names[:at], *value.names[at + 1 :]))


# --- blocks --------------------------------------------------------------------------------------


def recurrence(world: World, block: Block) -> None:
    """The body token by token."""
    states, heads, grouped = block.data
    before: dict[str, Named] = {}
    own = (world.expert,) if world.expert else ()
    for name, dims, start in states:
        names = (*own, *heads, *dims)
        data = real(spread(world.value(start), names)).expand([world.size(dim) for dim in names])
        before[name] = Named(data, names)
    made: dict[str, list[Named]] = {}
    for t in range(world.tokens):
        env = {**world.env, **{f"{name}[t-1]": value for name, value in before.items()}}
        inner = replace(world, env=env, now=t, grouped=grouped)
        given = set(env)
        run(inner, block.body)
        for name, _, _ in states:
            before[name] = sent(world, t, inner.env[name], before[name])
        for name in set(inner.env) - given | {name for name, _, _ in states}:
            made.setdefault(name, []).append(inner.env[name])
    for name, values in made.items():
        names = tuple(dict.fromkeys(n for value in values for n in value.names))
        shape = [world.extent(n) for n in names]
        rows = [spread(value, names).expand(shape) for value in values]
        world.env[name] = Named(torch.stack(rows), (TIME, *names))


def sent(world: World, t: int, new: Named, old: Named) -> Named:
    """A state after a token: of an expert, as it was where the token is not sent there."""
    if not world.expert:
        return Named(real(new.data), new.names)
    assert world.chosen is not None
    place = world.chosen.names.index(TIME)
    names = tuple(name for name in world.chosen.names if name != TIME)
    here = Named(world.chosen.data.select(place, t), names)
    (c, x, y), names = aligned([here, new, old])
    return Named(torch.where(c, real(x), real(y)), names)


def attend(world: World, block: Block) -> None:
    """The body for all pairs of tokens."""
    variable, range_, grouped, chosen = block.data
    inner = replace(world, env=dict(world.env), read=variable, grouped=grouped)
    inner.allowed = allowed(inner, variable, range_)
    if chosen:
        choice = inner.shared(world.env[chosen])
        (x, y), names = aligned([inner.allowed, choice])
        inner.allowed = Named(x & y, names)
    given = set(inner.env)
    run(inner, block.body)
    for name in set(inner.env) - given:
        value = inner.env[name]
        if block.head.startswith("index") and variable in value.names:
            value = masked(inner, value, -torch.inf)
        world.env[name] = value


def masked(world: World, value: Named, fill: float) -> Named:
    """The value of the tokens that may be read, and `fill` of the others."""
    assert world.allowed is not None
    (data, mask), names = aligned([value, world.allowed])
    return Named(torch.where(mask, real(data), fill), names)


def allowed(world: World, variable: str, range_: tuple) -> Named:
    """Which tokens each token reads."""
    kind, *more = range_
    t = torch.arange(world.tokens)
    if kind == "all":
        count = world.env[f"@{variable}"].data.shape[0] if f"@{variable}" in world.env else len(t)
        return Named(torch.ones(count, dtype=torch.bool), (variable,))
    if kind == "ending":
        size, stride = (world.number(each) for each in more)
        count = max(0, (world.tokens - size) // stride + 1)
        ends = torch.arange(count) * stride + size - 1
        return Named(ends[None] <= t[:, None], (TIME, variable))
    ahead = t[None] - t[:, None]  # [t, s]
    if kind == "le":
        return Named(ahead <= 0, (TIME, variable))
    if kind == "lt":
        return Named(ahead < 0, (TIME, variable))
    width = world.number(more[0])
    later = width if kind == "both" else 1
    return Named((ahead < later) & (ahead > -width), (TIME, variable))


def route(world: World, block: Block) -> None:
    """The body for all experts, summed with the weights of those chosen."""
    axis, count = block.data
    score = world.value(block.terms[0])
    inner = replace(world, env=dict(world.env))
    inner.chosen, inner.expert = best(score, axis, world.number(count)), axis
    weight = inner.value(block.terms[1]) if len(block.terms) > 1 else score
    (x, y), names = aligned([inner.chosen, weight])
    weight = Named(torch.where(x, real(y), 0.0), names)
    given = set(inner.env)
    run(inner, block.body)
    for name in set(inner.env) - given:
        world.env[name] = joined(weight, inner.env[name], [axis])


def best(score: Named, axis: str, count: int) -> Named:
    """The `count` largest along an axis; of equal ones the first, and none of -inf."""
    dim = score.names.index(axis)
    moved = score.data.detach().movedim(dim, -1)
    places = torch.arange(moved.shape[-1])
    larger = moved[..., None, :] > moved[..., :, None]
    equal = (moved[..., None, :] == moved[..., :, None]) & (places[None, :] < places[:, None])
    rank = (larger | equal).sum(-1)
    chosen = (rank < count) & (moved != -torch.inf)
    return Named(chosen.movedim(-1, dim), score.names)


def repeated(world: World, block: Block) -> None:
    """The body again and again, its own parameters those of each pass."""
    index, count, own, carried = block.data
    for place in range(world.number(count)):
        path = (*world.path, place) if own else world.path
        env = {**world.env, index: Named(torch.tensor(place), ())}
        inner = replace(world, env=env, path=path)
        run(inner, block.body)
        for name in carried:
            world.env[name] = inner.env[name]


def blocks(world: World, block: Block) -> None:
    """The body for all blocks of tokens."""
    variable, size, stride, width = block.data
    inner = replace(world, env=dict(world.env))
    inner.env[f"@blocks {variable}"] = Named(
        torch.tensor([world.number(size), world.number(stride)]), (width,)
    )
    given = set(inner.env)
    run(inner, block.body)
    for name in set(inner.env) - given:
        world.env[name] = inner.env[name]


BLOCKS: dict[str, Callable[[World, Block], None]] = {
    "recurrence": recurrence, "attend": attend, "route": route, "repeat": repeated,
    "blocks": blocks,
}  # fmt: skip


def function(world: World, term: Term) -> Named:
    """A function of the spec, on values and numbers by name."""
    written, name, *extra = term.data
    decl = world.program.decl(name)
    inside = written.partition("[")[2].rstrip("]")
    axes = dict(zip(decl.axes, (world.dim(a) for a in inside.split(", ")), strict=False))
    given = {**dict(decl.sizes), **dict(each.split(" = ") for each in extra)}
    env = {n: world.value(Term("number", (), (text,))) for n, text in given.items()}
    for each, arg in zip(decl.inputs, term.args, strict=True):
        env[each.name] = world.value(arg)
    inner = replace(world, env=env, axes=axes, now=world.now)
    run(inner, decl.body)
    assert decl.result is not None
    return inner.value(decl.result)


def layer(world: World, term: Term) -> Named:
    """Another layer, with its own names of the dims."""
    decl = world.program.decl(term.data[1])
    dims: dict[str, str] = {}
    env = {name: value for name, value in world.env.items() if name == "@batch"}
    for each, arg in zip(decl.inputs, term.args, strict=True):
        dims |= dict(zip(arg.dims, each.dims, strict=True))
        env[each.name] = renamed(world.value(arg), dims)
    sizes = {name: int(default) for name, default in decl.sizes if default.isdigit()}
    sizes |= {inner: world.size(outer) for outer, inner in dims.items()}
    inner = replace(world, decl=decl, env=env, sizes=sizes, axes={}, home=world.path)
    run(inner, decl.body)
    ((name, _),) = outputs_of(decl)
    back = {inside: outer for outer, inside in dims.items()}
    return renamed(inner.env[name], back)


def tied(world: World, term: Term) -> Named:
    """A layer that has a name: one set of weights, in whatever pass it is applied."""
    name = term.data[0] if term.data[0].startswith("shared") else ""
    return layer(replace(world, path=world.home, shared_name=name), term)


CALLS: dict[str, Callable[[World, Term], Named]] = {
    "function": function, "layer": layer, "tied": tied,
}  # fmt: skip


# --- the whole -----------------------------------------------------------------------------------


def outputs(
    program: Program, inputs: Mapping[str, Tensor], params: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What a program's last layer computes: [B, T, ...], as far as a value has such dims."""
    decl = program.main
    env: dict[str, Named] = {}
    for each in decl.inputs:
        dims = () if each.whole else each.dims
        env[each.name] = Named(inputs[each.name], (BATCH, each.along, *dims))
        if each.along != TIME:
            env[f"@{each.along}"] = Named(torch.zeros(inputs[each.name].shape[1]), (each.along,))
    first = inputs[decl.inputs[0].name]
    env["@batch"] = Named(torch.zeros(first.shape[0]), (BATCH,))
    world = World(program, decl, program.sizes, params, env, tokens=first.shape[1])
    run(world, decl.body)
    return {name: output(world, name, dims) for name, dims in outputs_of(decl)}


def outputs_of(decl: Decl) -> list[tuple[str, tuple[str, ...]]]:
    """The outputs of a layer and their dims."""
    found = [each for each in decl.body if isinstance(each, Let) and each.kind == "output"]
    return [(each.names[0], each.dims or ()) for each in found]


def output(world: World, name: str, dims: tuple[str, ...]) -> Tensor:
    """An output with its dims in order; a loss has none."""
    value = world.env[name]
    if TIME not in value.names and not dims and BATCH not in value.names:
        return value.data
    names = (BATCH, TIME, *dims)
    lengths = (world.env["@batch"].data.shape[0], world.tokens, *(world.size(d) for d in dims))
    return spread(value, names).expand(lengths)
