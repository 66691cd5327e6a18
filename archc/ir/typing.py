"""Layer IR: the type of each op's result from its operands' types. `RULES` has one entry an op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy

from archc.dims import BATCH
from archc.functions.definitions import FUNCTIONS, Kind
from archc.ir import layer as ir
from archc.ir.chunk import CHUNK_OPS
from archc.ir.graph import Graph, Node, Type
from archc.ir.shapes import Types, arrange, join, require
from archc.tables import complete

MOST = 2**63 - 1
"""The largest whole number that a tensor of integers holds."""


def is_whole(value: sympy.Expr) -> bool:
    """Whether a number is an integer whatever the sizes (a rounded quotient counts as one); one of
    more than 64 bits is a real, as tensors of integers do not hold it."""
    if isinstance(value, sympy.Integer) and abs(value) > MOST:
        return False
    if any(not power.exp.is_Integer for power in value.atoms(sympy.Pow)):
        return False  # asking sympy whether sqrt(K) is an integer costs more than all the rest
    mods: Any = value.atoms(sympy.Mod)
    rests = {rest for rest in mods if all(map(is_whole, rest.args))}
    plain: Any = value.xreplace({rest: sympy.Dummy(integer=True) for rest in rests})
    return bool(plain.is_integer) or isinstance(plain, sympy.floor | sympy.ceiling)


def elementwise(op: ir.Elementwise, types: Types) -> Type:
    require(op.fn in FUNCTIONS, f"no elementwise function {op.fn}")
    fn = FUNCTIONS[op.fn]
    require(len(types) == fn.arity, f"{op.fn} takes {fn.arity} operands")
    kinds = {t.dtype for t in (types[1:] if op.fn == "where" else types)}
    if fn.kind == Kind.TRUTH or (op.fn == "where" and kinds == {"bool"}):
        dtype = "bool"
    else:
        dtype = "int" if kinds == {"int"} and fn.kind == Kind.WHOLE else "real"
    return Type(join(types), dtype)


def reduce(op: ir.Reduce, types: Types) -> Type:
    require(set(op.axes) <= set(types[0].names), f"reduce over {op.axes} of {types[0].names}")
    dtype = "real" if op.fn == "mean" else types[0].dtype
    return Type(tuple(a for a in types[0].axes if a.name not in op.axes), dtype)


def contract(op: ir.Contract, types: Types) -> Type:
    require(len(op.ins) == len(types) in (1, 2), "contract takes one or two operands")
    for labels, type in zip(op.ins, types, strict=True):
        require(len(labels) == len(type.axes), f"labels {labels} for axes {type.names}")
    seen = {label for labels in op.ins for label in labels}
    require({label for label, _ in op.out} <= seen, "an output label that no operand has")
    out = tuple(axis for _, axis in op.out)
    made = Type(out, types[0].dtype if len(types) == 1 else "real")
    require(len({*made.names}) == len(out), f"repeated axis in {made.names}")
    return made


def gather(op: ir.Gather, types: Types) -> Type:
    value, index = types
    require(op.axis in value.names and index.dtype == "int", f"gather along {op.axis}")
    at = value.names.index(op.axis)
    others = [a for a in value.axes if a.name != op.axis]
    new = [a for a in index.axes if a.name not in {o.name for o in others}]
    return Type(arrange((*others[:at], *new, *others[at:])), value.dtype)


def scatter(op: ir.Scatter, types: Types) -> Type:
    require(types[1].names == (op.axis,), "scatter's index has the axis alone")
    return Type(tuple(op.into if a.name == op.axis else a for a in types[0].axes), types[0].dtype)


def join_axes(op: ir.Join, types: Types) -> Type:
    require(len(op.axes) == len(types) > 0, "join has an axis for each operand")
    made = []
    for name, type in zip(op.axes, types, strict=True):
        require(name in type.names, f"join along {name} of {type.names}")
        others = {a.name for a in type.axes if a.name != name}
        require(op.into.name not in others, f"join into {op.into} of {type.names}")
        axes = tuple(op.into if a.name == name else a for a in type.axes)
        made.append(Type(axes, type.dtype))
    dtypes = {type.dtype for type in types}
    return Type(join(made), dtypes.pop() if len(dtypes) == 1 else "real")


def reshape(op: ir.Reshape, types: Types) -> Type:
    (type,) = types
    require(set(op.axes) <= set(type.names), f"reshape of {op.axes} in {type.names}")
    first = min(type.names.index(name) for name in op.axes)
    kept = [a for a in type.axes if a.name not in op.axes]
    place = sum(a.name not in op.axes for a in type.axes[:first])
    return Type((*kept[:place], *op.into, *kept[place:]), type.dtype)


def solve(op: ir.Solve, types: Types) -> Type:
    matrix, vector = types
    require({op.row, op.col} <= set(matrix.names) and op.row in vector.names, "solve")
    return Type(join([Type(tuple(a for a in matrix.axes if a.name != op.col)), vector]))


def window(op: ir.Window, types: Types) -> Type:
    axes = [a for a in types[0].axes if a.kind != "dim"]
    if op.blocks is not None:
        axes = [op.blocks if a.name == op.stream else a for a in axes]
    dims = (a for a in types[0].axes if a.kind == "dim")
    return Type((*arrange(tuple(axes)), op.width, *dims), types[0].dtype)


def softmax(op: ir.Softmax, types: Types) -> Type:
    require(op.over in types[0].names, f"softmax over {op.over} of {types[0].names}")
    require(types[1].dtype == "bool", "softmax's mask is a bool")
    return Type(join(types[:2]))


def segment(op: ir.Segment, types: Types) -> Type:
    require(op.path in types[0].names, "segment needs its path")
    gone = {op.path, op.reader.name}
    return Type(arrange((op.reader, op.read, *(a for a in types[0].axes if a.name not in gone))))


def substitute(op: ir.Substitute, types: Types) -> Type:
    weights, right = types
    require(op.read in weights.names and op.read not in right.names, f"system over {op.read}")
    return Type(join([Type(tuple(a for a in weights.axes if a.name != op.read)), right]))


def region(op: ir.Recurrence | ir.Attend, types: Types) -> Type:
    """A Recurrence or an Attend has several results; its own type is empty."""
    require(len(types) >= len(op.captures), "a capture without an operand")
    return Type(())


RULES: dict[type, Callable[[Any, Types], Type]] = {
    ir.Input: lambda op, _: op.type,
    ir.Param: lambda op, _: Type(op.axes),
    ir.Constant: lambda op, _: Type((), "int" if is_whole(op.value) else "real"),
    ir.Position: lambda op, _: Type((BATCH, op.axis) if op.own else (op.axis,), "int"),
    ir.Delta: lambda op, _: Type((op.row, op.col)),
    ir.Noise: lambda op, types: Type(types[0].axes),
    ir.Elementwise: elementwise,
    ir.Reduce: reduce,
    ir.Contract: contract,
    ir.Gather: gather,
    ir.Scatter: scatter,
    ir.Join: join_axes,
    ir.Reshape: reshape,
    ir.Top: lambda op, types: Type(types[0].axes, "bool"),
    ir.Solve: solve,
    ir.Shift: lambda op, types: types[0],
    ir.Window: window,
    ir.Softmax: softmax,
    ir.Segment: segment,
    ir.Substitute: substitute,
    ir.Recurrence: region,
    ir.Attend: region,
    ir.Call: lambda op, types: Type(()),
    **{op: op.typed for op in CHUNK_OPS},
}
TYPED = [op for op in (*ir.OPS, *CHUNK_OPS) if op is not ir.Result]
complete("`RULES` of archc/ir/typing.py", RULES, TYPED)


def infer(op: Any, operands: Sequence[Node]) -> Type:
    """Type of a new node; raises TypeMismatch if it is ill-typed."""
    if isinstance(op, ir.Result):
        return result(operands[0].op, op.name)
    return RULES[type(op)](op, [node.type for node in operands])


def layer_graph() -> Graph:
    """An empty graph of layer ops."""
    return Graph(infer)


def result(owner: Any, name: str) -> Type:
    """Type of the result `name` of a Recurrence (its stream put back), an Attend or a Call."""
    if isinstance(owner, ir.Call):
        inner = owner.callee.graph
        renamed = dict(owner.axes)
        type = inner[inner.outputs[name]].type
        return Type(tuple(renamed.get(a.name, a) for a in type.axes), type.dtype)
    type = owner.body[owner.body.outputs[name]].type
    if isinstance(owner, ir.Attend):
        return type
    return Type(arrange((owner.stream, *type.axes)), type.dtype)
