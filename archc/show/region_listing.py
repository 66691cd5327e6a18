"""Token regions as a table to read: what each reads and makes, and why others have no kernel."""

from __future__ import annotations

from collections.abc import Iterator

from archc.backends.eager.emit import called_first
from archc.backends.eager.packed import in_one_run
from archc.compile import (
    for_kernels,
    lowered,
    packed_kernels,
    token_regions,
    with_epilogues,
    with_prologues,
)  # fmt: skip
from archc.ir import layer as ir
from archc.ir.routes import listing
from archc.ir.token_region import Left, TokenRegion
from archc.lowering.token import RegionKernels

ALONE = {
    ir.Reshape: "a dim counted otherwise, a view where memory allows it",
    ir.Substitute: "a triangular system along the tokens, which torch solves",
}
"""The reason why an op stands between kernels, by op."""


def as_text(layer: ir.Layer) -> str:
    """The token regions of a layer and of those that it calls; empty if there are none."""
    ready = for_kernels(with_prologues(with_epilogues(lowered(layer))))
    texts = ["\n".join(_lines(each)) for each in called_first(ready)]
    return "\n\n".join(text for text in texts if text)


def _lines(layer: ir.Layer) -> Iterator[str]:
    """One region a line."""
    found = token_regions(layer)
    kernels = [each for each in found if isinstance(each, RegionKernels)]
    if kernels:
        yield f"{layer.name}: around recurrences and products with parameters, by a kernel each"
    width = max((len(each.region.name) for each in kernels), default=0)
    for each in kernels:
        yield f"  {each.region.name:<{width}}  {_told(layer, each)}"
    left = [f"{each.name}: {each.reason}" for each in found if isinstance(each, Left)]
    left += dict.fromkeys(_alone(layer))
    chosen = [*listing(layer.graph)]
    if chosen:
        yield f"{layer.name}: for the places that each token has chosen, and no others"
    for line in chosen:
        yield f"  {line}"
    if left:
        yield f"{layer.name}: in PyTorch"
    for line in left:
        yield f"  {line}"


def _alone(layer: ir.Layer) -> Iterator[str]:
    """Values of ops that are in no region and that kernels have none for."""
    for node in layer.graph:
        if type(node.op) in ALONE and node.span is not None:
            yield f"{node.name or ' '.join(node.span.text.split())}: {ALONE[type(node.op)]}"


def _told(layer: ir.Layer, made: RegionKernels) -> str:
    """`q_raw, c_q -> q`, the tokens that it looks back on and who does packed sequences, and what
    PyTorch would move."""
    region: TokenRegion = made.region
    flow = f"{', '.join(region.reads)} -> {', '.join(region.makes)}"
    back = ", ".join(dict.fromkeys(str(past.count) for past in region.pasts.values()))
    looks = f"; looks {back} tokens back" if back else ""
    if region.pasts and in_one_run(layer):
        problem = packed_kernels(region, packed=True)
        why = f"in PyTorch: {problem}" if isinstance(problem, str) else "by the same kernels"
        looks += f", packed sequences {why}"
    return f"{flow}{looks}; {region.passes / region.least:.1f} times the bytes in PyTorch"
