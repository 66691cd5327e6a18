"""The types that the ops of a tile program want, and those that they make: the part of `verify`
that looks at one statement at a time.

Every rule is there as an interpreter, Triton and a reader would otherwise take the statement for
different things: a sum of truth values, a quotient of integers, a mask with its dims turned around.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import sympy

from archc.functions.definitions import FUNCTIONS, Kind
from archc.tile import language as lang

NARROW = ("f16", "bf16")
RANKS = {"bool": 0, "i32": 1, "i64": 2, "f16": 3, "bf16": 3, "f32": 5, "f64": 6}
COMPARED = tuple(name for name, fn in FUNCTIONS.items() if fn.kind == Kind.TRUTH)
LOGICAL = ("and", "or", "not")
OF_SINGLES = ("sign", "pow")
"""Functions that are in f32 alone."""

OF_REALS = (
    *(name for name, fn in FUNCTIONS.items() if fn.kind == Kind.REAL and name != "real"),
    *OF_SINGLES,
)
"""Functions that integers must be cast for."""

REDUCING = ("sum", "product", "max", "min", "argmax", "argmin")
SCANNING = ("sum", "product", "max", "min")
LARGEST = {"i32": 2**31 - 1, "i64": 2**63 - 1, "bool": 1}


def common(dtypes: Collection[str]) -> str:
    """The dtype of what is made of several: real before integer before truth, the wider of two."""
    return max(dtypes, key=lambda dtype: RANKS.get(dtype, 4))


def wrong(program: lang.Program, s: lang.Statement) -> str:
    """The reason why a statement is not well-typed; empty if it is."""
    buffer = lang.memory(s.op)
    if buffer is not None and buffer not in program.buffers:
        return f"`{buffer.name}` is no buffer of the program"
    for value in s.results:
        dtype, names = value.type.dtype, value.type.names
        buffer = dtype.removeprefix(lang.OF_BUFFER)
        given = buffer != dtype and any(buffer == each.name for each in program.buffers)
        if dtype not in lang.DTYPES and dtype not in program.constants and not given:
            return f"`{dtype}` is no dtype, and no constant of the program"
        if len({*names}) < len(names):
            return f"{shown(value.type)} has a dim twice"
    rule = RULES.get(type(s.op))
    return rule(program, s) if rule else ""


def shown(type: lang.Type) -> str:
    """The dims of a type, for messages."""
    return f"[{', '.join(type.names)}]"


def _made(s: lang.Statement, type: lang.Type) -> str:
    """Whether a statement makes a value of that type."""
    found = s.results[0].type
    if found.dims != type.dims:
        return f"its dims are {shown(type)}, not {shown(found)}"
    return "" if found.dtype == type.dtype else f"it is {type.dtype}, not {found.dtype}"


def _aligned(value: lang.Value, type: lang.Type) -> str:
    """Whether the dims of a value are some of a type's, in their order and of their lengths."""
    names = [name for name in type.names if name in value.type.names]
    if names != [*value.type.names]:
        return f"`{value.name}` {shown(value.type)} does not line up with {shown(type)}"
    if any(dim not in type.dims for dim in value.type.dims):
        return f"a dim of `{value.name}` has another length there"
    return ""


def _first(reasons: Sequence[str]) -> str:
    return next(filter(None, reasons), "")


# --- values -------------------------------------------------------------------------------------


def _program_id(program: lang.Program, s: lang.Statement) -> str:
    known = s.op.axis in (axis for axis, _ in program.grid)
    return _made(s, lang.Type("i32")) if known else f"the grid has no axis {s.op.axis}"


def _iota(program: lang.Program, s: lang.Statement) -> str:
    return _made(s, lang.Type("i32", (s.op.dim,)))


def _full(program: lang.Program, s: lang.Statement) -> str:
    number, dtype = s.op.number, s.op.type.dtype
    largest = LARGEST.get(dtype)
    if largest is not None and not (abs(number) <= largest and float(number).is_integer()):
        return f"{number:g} is no {dtype}"
    return _made(s, s.op.type)


def _given(program: lang.Program, s: lang.Statement) -> str:
    if not s.op.buffer.optional:
        return f"`{s.op.buffer.name}` is always there"
    return _made(s, lang.Type("bool"))


def _chosen(program: lang.Program, s: lang.Statement) -> str:
    buffers = {f"{lang.OF_BUFFER}{buffer.name}" for buffer in program.buffers}
    if s.op.constant not in {*program.constants, *buffers}:
        return f"`{s.op.constant}` is no constant of the program"
    return _made(s, lang.Type("bool"))


def _at_most(program: lang.Program, s: lang.Statement) -> str:
    for symbol in s.op.size.free_symbols | s.op.most.free_symbols:
        if str(symbol) not in program.constants:
            return f"`{symbol}` is no constant of the program"
    return _made(s, lang.Type("bool"))


def _apply(program: lang.Program, s: lang.Statement) -> str:
    function, (result,) = s.op.function, s.results
    if function not in FUNCTIONS or FUNCTIONS[function].arity != len(s.operands):
        return f"no function `{function}` of {len(s.operands)} operands"
    reason = _first([_operand(function, i, value) for i, value in enumerate(s.operands)])
    if reason:
        return reason
    reason = _first([_aligned(value, result.type) for value in s.operands])
    chosen = s.operands[1:] if function == "where" else s.operands
    dtype = "bool" if function in COMPARED else common([v.type.dtype for v in chosen])
    return reason or _made(s, lang.Type(dtype, result.type.dims))


def _operand(function: str, place: int, value: lang.Value) -> str:
    """The reason why a function does not take an operand; empty if it does."""
    dtype = value.type.dtype
    if function in LOGICAL or (function == "where" and place == 0):
        return "" if dtype == "bool" else f"`{value.name}` is {dtype}, no truth value"
    if dtype in NARROW and function != "where":
        return f"arithmetic in {dtype}: `{value.name}` must be cast to f32"
    if function in OF_REALS and lang.kind(dtype) != "real":
        return f"`{function}` of {dtype}: `{value.name}` must be cast to f32"
    if function in OF_SINGLES and dtype == "f64":
        return f"`{function}` of f64: `{value.name}` must be cast to f32"
    if dtype == "bool" and function not in ("where", "eq", "ne"):
        return f"`{function}` of truth values: `{value.name}` must be cast"
    return ""


def _cast(program: lang.Program, s: lang.Statement) -> str:
    (x,) = s.operands
    if s.op.bits and {x.type.dtype, s.op.dtype} != {"i32", "f32"}:
        return f"the bits of {x.type.dtype} as {s.op.dtype}: they are of i32 and f32"
    return _made(s, lang.Type(s.op.dtype, x.type.dims))


def _random(program: lang.Program, s: lang.Statement) -> str:
    seed, counter = s.operands
    if seed.type.dims or any(lang.kind(value.type.dtype) != "int" for value in s.operands):
        return "random numbers are of a seed and integers"
    if s.op.dim is None:
        return _made(s, lang.Type("i32", counter.type.dims))
    if not counter.type.dims or counter.type.dims[-1].length != sympy.floor(s.op.dim.length / 8):
        return f"{shown(counter.type)} has no eighth of {s.op.dim.name} as its last dim"
    return _made(s, lang.Type("i32", (*counter.type.dims[:-1], s.op.dim)))


def _reduce(program: lang.Program, s: lang.Statement) -> str:
    (x,) = s.operands
    reason = _along(s.op.function, REDUCING, s.op.dim, x)
    dtype = "i32" if s.op.function.startswith("arg") else x.type.dtype
    rest = tuple(dim for dim in x.type.dims if dim.name != s.op.dim)
    return reason or _made(s, lang.Type(dtype, rest))


def _along(function: str, known: Sequence[str], dim: str, x: lang.Value) -> str:
    """The reason why nothing can be reduced or scanned along a dim; empty if it can."""
    if function not in known:
        return f"no function `{function}` along a dim"
    if dim not in x.type.names:
        return f"{shown(x.type)} has no dim {dim}"
    if x.type.dtype in NARROW or x.type.dtype == "bool":
        return f"a {function} in {x.type.dtype}: `{x.name}` must be cast"
    return ""


def _scan(program: lang.Program, s: lang.Statement) -> str:
    given = [value.type for value in s.operands]
    if s.op.function:
        return _along(s.op.function, SCANNING, s.op.dim, s.operands[0]) or _made(s, given[0])
    elements = [lang.Type(type.dtype) for type in given]
    (join,) = s.blocks
    taken = [v.type for v in join.arguments], [v.type for v in join.yields]
    if len({type.dims for type in given}) != 1 or [v.type for v in s.results] != given:
        return "tiles that are scanned together have the same dims"
    if s.op.dim not in given[0].names:
        return f"{shown(given[0])} has no dim {s.op.dim}"
    if taken != (elements * 2, elements):
        return "a join takes two elements of each tile, and gives one"
    if any(not isinstance(each.op, lang.Apply | lang.Cast | lang.Full) for each in join.statements):
        return "a join is elementwise"
    return ""


def _dot(program: lang.Program, s: lang.Statement) -> str:
    a, b, *added = (value.type for value in s.operands)
    batch, alike = a.dims[:-2], len(a.dims) == len(b.dims) in (2, 3)
    if not alike or a.dims[-1] != b.dims[-2] or b.dims[:-2] != batch:
        return f"no product of {shown(a)} and {shown(b)}"
    if a.dtype != b.dtype:
        return f"a product of {a.dtype} and {b.dtype}"
    if any(lang.kind(t.dtype) != "real" or t.dtype == "f64" for t in (a, b)):
        return f"a product of numbers of {a.dtype}: it is summed in f32"
    made = lang.Type("f32", (*batch, a.dims[-2], b.dims[-1]))
    if any(type != made for type in added):
        return f"a product {shown(made)} in f32, added to {shown(added[0])} in {added[0].dtype}"
    precision = s.op.precision
    if precision not in ("ieee", "tf32", "tf32x3") and precision not in program.constants:
        return f"no precision `{precision}`"
    return _made(s, made)


# --- arrangement --------------------------------------------------------------------------------


def _sort(program: lang.Program, s: lang.Statement) -> str:
    (x,) = s.operands
    if not x.type.dims or x.type.dtype == "bool":
        return "numbers along a dim are sorted"
    most = s.op.most
    dims = x.type.dims if most is None else (*x.type.dims[:-1], most)
    return _made(s, lang.Type(x.type.dtype, dims))


def _flip(program: lang.Program, s: lang.Statement) -> str:
    (x,) = s.operands
    if s.op.dim not in x.type.names:
        return f"{shown(x.type)} has no dim {s.op.dim}"
    return _made(s, x.type)


def _transpose(program: lang.Program, s: lang.Statement) -> str:
    (x,) = s.operands
    if sorted(s.op.order) != sorted(x.type.names):
        return f"{shown(x.type)} has no dims {', '.join(s.op.order)}"
    dims = tuple(x.type.dims[x.type.place(name)] for name in s.op.order)
    return _made(s, lang.Type(x.type.dtype, dims))


def _relabel(program: lang.Program, s: lang.Statement) -> str:
    (x,), (result,) = s.operands, s.results
    lengths = [dim.length for dim in x.type.dims], [dim.length for dim in result.type.dims]
    same = lengths[0] == lengths[1] and result.type.names == s.op.names
    return "" if same and result.type.dtype == x.type.dtype else "other names, and nothing else"


def _broadcast(program: lang.Program, s: lang.Statement) -> str:
    (x,) = s.operands
    type = lang.Type(x.type.dtype, s.op.dims)
    if s.op.held and type.dims[: len(x.type.dims)] != x.type.dims:
        return f"the further dims of a held tile stand last, not as in {type}"
    return _aligned(x, type) or _made(s, type)


def _reshape(program: lang.Program, s: lang.Statement) -> str:
    return _made(s, lang.Type(s.operands[0].type.dtype, s.op.dims))


def _pick(program: lang.Program, s: lang.Statement) -> str:
    x, index = s.operands
    if lang.kind(index.type.dtype) != "int" or index.type.names != x.type.names:
        return f"elements of {shown(x.type)} at {shown(index.type)}: an integer for each place"
    others = [
        pair for pair in zip(x.type.dims, index.type.dims, strict=True) if pair[0].name != s.op.dim
    ]
    if s.op.dim not in x.type.names or any(a != b for a, b in others):
        return f"elements along {s.op.dim} of dims with other lengths"
    return _made(s, lang.Type(x.type.dtype, index.type.dims))


def _push(program: lang.Program, s: lang.Statement) -> str:
    x, newest = (value.type for value in s.operands)
    if not x.dims or lang.Type(x.dtype, x.dims[:-1]) != newest:
        return f"{shown(newest)} pushed into {shown(x)}: the same but for the last dim"
    return _made(s, x)


def _sequence_rows(program: lang.Program, s: lang.Statement) -> str:
    first, step, *rest = (value.type for value in s.operands)
    base, *found = (value.type for value in s.results)
    whole, truth = lang.Type("i64", step.dims), lang.Type("bool", step.dims)
    if any(type != lang.Type("i32") for type in (first, base, *rest)) or step.dtype != "i32":
        return "rows, tokens and what is added to a first row are i32"
    if not s.op.buffer.optional or found != [whole, whole, whole, truth, whole]:
        return "numbers in i64 and a truth value of each row of a table that may be missing"
    return ""


# --- memory -------------------------------------------------------------------------------------


def _access(program: lang.Program, s: lang.Statement) -> str:
    """A load, a store or an atomic: an integer for each axis, then what is stored, then masks."""
    buffer: lang.Buffer = s.op.buffer
    count = len(buffer.axes)
    index, rest = s.operands[:count], s.operands[count:]
    if len(index) < count or any(lang.kind(v.type.dtype) != "int" for v in index):
        return f"`{buffer.name}` is read with {count} integers"
    dims = {dim.name: dim for value in index for dim in value.type.dims}
    type = lang.Type(buffer.dtype, tuple(dims.values()))
    reason = _first([_aligned(value, type) for value in s.operands])
    masks = rest if isinstance(s.op, lang.Load) else rest[1:]
    if any(v.type.dtype != "bool" for v in masks):
        return "a mask is a truth value"
    if not isinstance(s.op, lang.Load):
        (value, *_) = rest
        if lang.kind(value.type.dtype) != lang.kind(buffer.dtype):
            return f"`{value.name}` is {value.type.dtype}, and `{buffer.name}` has {buffer.dtype}"
    if isinstance(s.op, lang.Atomic):
        if s.op.function not in ("add", "max", "min"):
            return f"no atomic `{s.op.function}`"
        if s.op.function == "add" and lang.kind(buffer.dtype) != "int":
            return "sums of real numbers would change from run to run"
    return reason or ("" if isinstance(s.op, lang.Store) else _made(s, type))


def _load_block(program: lang.Program, s: lang.Statement) -> str:
    axes, blocked = [axis for axis, _ in s.op.buffer.axes], [axis for axis, _ in s.op.dims]
    if s.op.buffer.optional:
        return f"`{s.op.buffer.name}` may be missing: it is read by loads alone"
    if len(s.operands) != len(axes) or any(v.type.dims for v in s.operands):
        return "a block begins at scalars"
    if axes[-1] not in blocked or blocked != [axis for axis in axes if axis in blocked]:
        return f"a block has the last axis of `{s.op.buffer.name}`, and axes in their order"
    return _made(s, lang.Type(s.op.buffer.dtype, tuple(dim for _, dim in s.op.dims)))


def _barrier(program: lang.Program, s: lang.Statement) -> str:
    if s.op.counter is None:
        return ""
    if not program.cooperative:
        return "a barrier needs all programs of a launch at once: it is not cooperative"
    if (
        len(s.operands) != 1
        or s.operands[0].type != lang.Type("i32")
        or s.op.counter.dtype != "i32"
    ):
        return "barriers are counted by i32"
    return ""


# --- control ------------------------------------------------------------------------------------


def _types(values: Sequence[lang.Value]) -> list[lang.Type]:
    return [value.type for value in values]


def _for(program: lang.Program, s: lang.Statement) -> str:
    (body,) = s.blocks
    bounds, index = _types(s.operands[:2]), body.arguments[0].type
    if any(type.dims or lang.kind(type.dtype) != "int" for type in bounds):
        return "a loop goes from one integer to another"
    if index != lang.Type(common([type.dtype for type in bounds])):
        return f"the index of a loop from {bounds[0].dtype} to {bounds[1].dtype} is {index.dtype}"
    return _turns(_types(s.operands[2:]), _types(body.arguments[1:]), _types(body.yields), s)


def _while(program: lang.Program, s: lang.Statement) -> str:
    (body,) = s.blocks
    given = _types(s.operands)
    if given[0] != lang.Type("bool") or len(s.results) != len(given) - 1:
        return "a loop goes on while one truth value holds"
    return _turns(given, _types(body.arguments), _types(body.yields), s)


def _turns(
    given: list[lang.Type], taken: list[lang.Type], made: list[lang.Type], s: lang.Statement
) -> str:
    results = _types(s.results)
    if given == taken == made and results == given[len(given) - len(results) :]:
        return ""
    return "what a turn hands on is not of the type that the next one takes"


def _if(program: lang.Program, s: lang.Statement) -> str:
    if s.operands[0].type != lang.Type("bool"):
        return "a branch needs a scalar that is a truth value"
    for block in s.blocks:
        if _types(block.yields) != _types(s.results):
            return "both blocks of a branch give the same types"
        if any(isinstance(each.op, lang.Barrier) and each.op.counter for each in _all(block)):
            return "a barrier that not every program comes to"
    return ""


def _all(block: lang.Block) -> list[lang.Statement]:
    inner = [s for each in block.statements for b in each.blocks for s in _all(b)]
    return [*block.statements, *inner]


RULES: dict[type, Callable[[lang.Program, lang.Statement], str]] = {
    lang.ProgramId: _program_id, lang.Iota: _iota, lang.Full: _full, lang.Given: _given,
    lang.Chosen: _chosen, lang.AtMost: _at_most, lang.Apply: _apply, lang.Cast: _cast,
    lang.Random: _random, lang.Reduce: _reduce, lang.Scan: _scan, lang.Sort: _sort,
    lang.Flip: _flip, lang.Dot: _dot, lang.Transpose: _transpose, lang.Relabel: _relabel,
    lang.Broadcast: _broadcast, lang.Reshape: _reshape, lang.Pick: _pick, lang.Push: _push,
    lang.SequenceRows: _sequence_rows,
    lang.Load: _access, lang.Store: _access, lang.Atomic: _access, lang.LoadBlock: _load_block,
    lang.Barrier: _barrier, lang.For: _for, lang.While: _while, lang.If: _if,
}  # fmt: skip
