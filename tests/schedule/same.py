"""Whether two layers compute the same."""

from __future__ import annotations

import torch

from archc.ir import layer as ir
from archc.ir.meaning import evaluate
from archc.ir.plan import examples


def check_same(layer: ir.Layer, moved: ir.Layer) -> None:
    """Two layers with the same parameters and inputs, in float64."""
    torch.manual_seed(0)
    sizes = next(examples(layer, 4))
    x = torch.randn(2, 9, sizes["d"], dtype=torch.float64)
    params = {
        op.name: torch.randn([sizes.get(str(a.size), 4) for a in op.axes], dtype=torch.float64)
        for op in (n.op for n in layer.graph)
        if isinstance(op, ir.Param)
    }
    before, after = (evaluate(each, {"x": x}, params, sizes).outputs for each in (layer, moved))
    assert [*before] == [*after]
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-12, atol=1e-12)
