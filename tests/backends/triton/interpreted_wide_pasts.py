"""A short convolution whose past several programs read, token by token in slots, under Triton's
interpreter, which runs one program after the other: prints how far it is off, in float32 against
the whole sequences in float64 without kernels.

    TRITON_INTERPRET=1 python -m tests.backends.triton.interpreted_wide_pasts
"""

from __future__ import annotations

import torch

import archc
from tests.backends.triton.interpreted_in_pieces import FEW, in_slots
from tests.specs.references.weights import randomise

WIDE = """layer Wide(d, H):
    input x[d]
    param c[d, 4]; g[H, d]
    u = silu(shortconv(x, c)) * g
    output y[H, d] = u * (sum[d](u * u))
"""


def main() -> None:
    """The difference, of the largest number."""
    spec, x = archc.parse(WIDE), torch.randn(2, FEW, 8, dtype=torch.float64)
    exact, layer = (
        randomise(spec.module(d=8, H=3, dtype=torch.float64, backend="triton"), seed=0).eval()
        for _ in range(2)
    )
    wanted = exact(x).detach()
    found = in_slots(layer.float(), {"x": x.float()})
    print(float((found - wanted).abs().max() / wanted.abs().max()))


if __name__ == "__main__":
    main()
