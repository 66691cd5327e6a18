"""Op -> emission: exactly one entry for each op of the layer IR, and for each chunk op."""

from __future__ import annotations

from collections.abc import Callable

from archc.backends.eager import ops, rearrange
from archc.backends.eager.attend import attend
from archc.backends.eager.calls import callee
from archc.backends.eager.chunk_ops import CHUNK_EMITTERS
from archc.backends.eager.chunked import recurrence
from archc.backends.eager.elementwise import elementwise
from archc.backends.eager.scope import Scope
from archc.backends.eager.systems import conjugate, substitute
from archc.backends.eager.value import Value

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.tables import complete

EMITTERS: dict[type, Callable[[Scope, Node], Value]] = {
    ir.Input: ops.given,
    ir.Param: ops.given,
    ir.Constant: ops.constant,
    ir.Position: ops.position,
    ir.Delta: ops.delta,
    ir.Noise: ops.noise,
    ir.Elementwise: elementwise,
    ir.Reduce: ops.reduce,
    ir.Contract: ops.contract,
    ir.Gather: ops.gather,
    ir.Scatter: ops.scatter,
    ir.Join: rearrange.join,
    ir.Reshape: rearrange.reshape,
    ir.Top: ops.top,
    ir.Solve: ops.solve,
    ir.Shift: ops.shift,
    ir.Window: ops.window,
    ir.Softmax: ops.softmax,
    ir.Segment: ops.segment,
    ir.Substitute: substitute,
    ir.Recurrence: recurrence,
    ir.Attend: attend,
    ir.Result: ops.result,
    ir.Call: callee,
    ck.Conjugate: conjugate,
    **CHUNK_EMITTERS,
}
complete("`EMITTERS` of backends/eager/table.py", EMITTERS, (*ir.OPS, *ck.CHUNK_OPS))
