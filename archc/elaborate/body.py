"""Bodies of layers and functions: what they define, and what they give.

Definitions are lazy: their order in the text is free.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from archc.diagnostics import Refused
from archc.dims import TIME
from archc.elaborate import ops, tied
from archc.elaborate.arguments import declare_arguments
from archc.elaborate.binding import force
from archc.elaborate.chunk_rules import chunk_order
from archc.elaborate.clashes import check_inputs, check_names
from archc.elaborate.finish import check_outputs, finish
from archc.elaborate.law_rule import check_laws
from archc.elaborate.mentions import exported_by, names_bound, names_defined, unused_params
from archc.elaborate.scope import Along, Context, Module, Scope, Session
from archc.elaborate.values import Frame, Lazy, Tensor, Value
from archc.ir import layer as ir
from archc.ir.typing import layer_graph
from archc.syntax import tree


def elaborate_layer(
    session: Session,
    module: Module,
    decl: tree.Decl,
    given: Mapping[str, Value],
    symbolic: set[str],
) -> ir.Layer:
    """The layer IR of a declaration. `given` are settled options and values for decisions;
    `symbolic` are the sizes a caller binds, which stay symbols whatever their value."""
    context = Context(decl.name, Frame(layer_graph()))
    scope = Scope(session, context, module, context.frame, indices={"t": Along("reader", TIME)})
    check_names(scope, decl)
    check_inputs(scope, decl)
    declare_arguments(scope, decl, given, symbolic)
    outputs = run(scope, decl)
    check_outputs(scope, decl, outputs)
    return finish(context, decl, outputs)


def run(scope: Scope, decl: tree.Decl) -> dict[str, Tensor]:
    """Elaborate a layer's body in its own frame; the outputs by name."""
    check_placement(scope, decl)
    found = len(scope.session.report.diagnostics)
    scope = define(scope, decl.body, exported_by(decl.body))
    force(scope, decl.body)
    check_laws(scope)
    outputs: dict[str, Tensor] = {}
    refused = False
    for stmt in decl.body:
        if isinstance(stmt, tree.Output):
            try:
                _output(scope, stmt, outputs)
            except Refused:
                refused = True
    if not refused and len(scope.session.report.diagnostics) == found:
        _check_use(scope, decl, outputs)
    if refused or len(scope.session.report.diagnostics) > found:
        raise Refused(decl.name)
    return outputs


def _check_use(scope: Scope, decl: tree.Decl, outputs: Mapping[str, Tensor]) -> None:
    """A layer gives something, and uses what it trains."""
    if not outputs:
        raise scope.error(
            "E0211",
            f"`{decl.name}` has no output",
            decl.header,
            helps=["end the layer with `output y[d] = ...`"],
        )
    if not any(isinstance(stmt, tree.Input) for stmt in decl.body) and not scope.site:
        scope.error(
            "E0222",
            f"`{decl.name}` has no input",
            decl.header,
            helps=["start the layer with `input x[d]`"],
        )
    for item in unused_params(decl.body):
        scope.error(
            "E0220",
            f"parameter `{item.name}` is never used",
            item.span,
            helps=["remove it: it would be saved, and never trained"],
        )


def _output(scope: Scope, stmt: tree.Output, outputs: dict[str, Tensor]) -> None:
    """One `output` statement."""
    name = stmt.target.name
    if name in outputs:
        raise scope.error("E0210", f"output `{name}` is given twice", stmt.span)
    if stmt.value is None:
        value = scope.lookup(name, stmt.target.span)
        tensor = ops.tensor(scope, value, stmt.target.span)
        tensor = annotated(scope, tensor, stmt.target)
    else:
        value = scope.lookup(name, stmt.target.span)
        tensor = ops.tensor(scope, value, stmt.value.span)
    if stmt.target.items is not None:
        _check_no_pairs(scope, tensor, stmt)
    outputs[name] = ops.batched(scope.frame.bring(tensor))


def _check_no_pairs(scope: Scope, tensor: Tensor, stmt: tree.Output) -> None:
    """An output whose dims are said is a value of each token: one of each pair of tokens has a
    second sequence that its dims do not show. `output y = p`, without dims, gives one."""
    streams = {axis.name for axis in tensor.axes if axis.kind == "stream"}
    given = [n.type.axes for n in scope.frame.graph if isinstance(n.op, ir.Input)]
    if len(streams) < 2 or any(streams <= {axis.name for axis in axes} for axes in given):
        return
    read = " and ".join(f"`{name}`" for name in sorted(streams))
    raise scope.error(
        "E0301",
        f"`{stmt.target.name}` is a value of each pair of tokens, {read}",
        stmt.target.span,
        helps=ops.outer_scores(scope.frame.graph)
        or [
            "weights are summed by a product, `softmax(...) @ v[s]`; `*` keeps every pair",
            f"without dims, `output {stmt.target.name} = ...` gives all pairs",
        ],
    )


def annotated(scope: Scope, value: Tensor, target: tree.Target) -> Tensor:
    """The value with its axes in the order written; another set of axes is an error."""
    if target.items is None:
        return value
    wanted, got = scope.axes(target.items), scope.visible(value)
    if sorted(a.name for a in wanted) != sorted(a.name for a in got):
        raise scope.error(
            "E0301",
            f"`{target.span.text}` is said to be [{', '.join(map(str, wanted))}], and is "
            f"{ops.shape(scope, value)}",
            target.span,
            others=[(value.origin, f"{ops.shape(scope, value)} from here")],
        )
    return ops.relabel(scope, value, [(axis, axis) for axis in wanted], target.span)


def run_function(body: Scope, decl: tree.Decl) -> Value:
    """The value of a library function's `return`."""
    check_placement(body, decl)
    check_names(body, decl)
    stmts = tuple(stmt for stmt in decl.body if not isinstance(stmt, tree.Return))
    scope = define(body, stmts, set())
    returned = [stmt for stmt in decl.body if isinstance(stmt, tree.Return)]
    if len(returned) != 1:
        raise scope.error("E0212", f"function `{decl.name}` needs one `return`", decl.header)
    return scope.evaluate(returned[0].value)


def define(scope: Scope, stmts: Sequence[tree.Stmt], exported: set[str]) -> Scope:
    """Bind what the statements define; returns the scope in which all of it is visible."""
    scope = replace(scope, several=tied.mentioned_often(stmts))
    for stmt in sorted(stmts, key=chunk_order):
        try:
            scope = scope.session.definitions[type(stmt)](scope, stmt, exported) or scope
        except Refused:
            for name in names_bound(stmt):
                if name not in scope.names:
                    scope.names[name] = Lazy(name, stmt.span, refused)
    return scope


def refused() -> Value:
    """The value of a name whose statement was refused: to use it is no further mistake."""
    raise Refused


def region_body(inner: Scope, body: Sequence[tree.Stmt]) -> tuple[list[str], Scope]:
    """Define and compute a block's body; returns the names it gives and where they are visible."""
    inner = define(inner, body, set())
    force(inner, body)
    names = [name for name in names_defined(body) if inner.find(name) is not None]
    refused = [name for name in names if getattr(inner.find(name), "state", "") == "refused"]
    if refused:
        raise Refused(refused[0])
    return names, inner


OF_A_LAYER = (tree.Input, tree.Output, tree.Chunk)
BLOCKS = (tree.Recurrence, tree.Attend)
FORBIDDEN: tuple[tuple[tuple[type, ...], tuple[type, ...]], ...] = (
    (BLOCKS, (*OF_A_LAYER, tree.Param, tree.Return)),
    ((tree.Blocks, tree.Route, tree.Repeat), (*OF_A_LAYER, tree.Return)),
)
"""For each kind of block, the statements that may not stand in it."""


def check_placement(scope: Scope, decl: tree.Decl) -> None:
    """Refuse statements that stand where they mean nothing."""
    function = decl.kind == "function"
    forbidden = (*OF_A_LAYER, tree.Param) if function else (tree.Return,)
    found = list(_misplaced(decl.body, forbidden, f"`{decl.name}`, a {decl.kind}"))
    for stmt, place in found:
        word = stmt.span.text.split()[0].rstrip(":")
        message = f"`{word}` does not belong into {place}"
        scope.error("E0221", message, stmt.span, "misplaced", helps=_instead(stmt, function))
    if found:
        raise Refused(decl.name)


def _instead(stmt: tree.Stmt, function: bool) -> list[str]:
    """The help for a misplaced statement: what to write, and where."""
    if isinstance(stmt, tree.Return) and not function:
        named = isinstance(stmt.value, tree.Name)
        given = stmt.value.span.text if named else f"y = {stmt.value.span.text}"
        return [f"write `output {given}`: a layer has outputs"]
    if isinstance(stmt, tree.Output) and function:
        return ["write `return`: a function has one value"]
    if function:
        return ["make it an argument of the function"]
    return ["write it in front of the block, or behind it"]


def _misplaced(
    stmts: Sequence[tree.Stmt], forbidden: tuple[type, ...], place: str
) -> Iterator[tuple[tree.Stmt, str]]:
    """Each misplaced statement, and what it stands in."""
    for stmt in stmts:
        if isinstance(stmt, forbidden):
            yield stmt, place
        for kinds, inside in FORBIDDEN:
            if isinstance(stmt, kinds):
                word = stmt.span.text.split()[0]
                body: Sequence[tree.Stmt] = getattr(stmt, "body", ())
                yield from _misplaced(body, (*forbidden, *inside), f"a `{word}`")
