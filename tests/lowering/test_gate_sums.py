"""Running sums of gates in kernels: by scans that are made once, or by products, where memory has
the gates in bfloat16."""

from __future__ import annotations

import pytest
import torch
from archc.backends.triton.printer import to_triton

from archc.ir import chunk as ck
from archc.ir.kernel import Kernel
from archc.lowering.kernels import Lowered
from archc.tile.interpreter import run
from tests.lowering.launches import Planned, constants, lowered_kernels, plans


def storing_sums(spec: str) -> tuple[Planned, Kernel, Lowered]:
    """The first kernel of a recurrence, or of its gradient, that leaves running sums in memory."""
    for found in plans(spec, fused=False):
        for kernel, made in lowered_kernels(found):
            nodes = made.nodes.values() if isinstance(made, Lowered) else []
            if any(isinstance(kernel.graph[id].op, ck.Sums) for id in nodes):
                assert isinstance(made, Lowered)
                return found, kernel, made
    raise AssertionError(f"no kernel of {spec} leaves running sums in memory")


@pytest.mark.default("kda-log_alpha-gates1")
@pytest.mark.parametrize(
    ("spec", "gate", "gates", "product"),
    [
        ("kda", "log_alpha", torch.bfloat16, False),
        ("kda", "log_alpha", torch.float32, False),
        ("rwkv7", "log_w", torch.bfloat16, True),
    ],
)
def test_sums_of_gates_in_bfloat16_are_exact(
    monkeypatch: pytest.MonkeyPatch, spec: str, gate: str, gates: torch.dtype, product: bool
) -> None:
    found, kernel, made = storing_sums(spec)
    text = to_triton(made.program)
    assert f"{gate}_p.dtype.element_ty == tl.bfloat16" in text
    assert ("[:, :, None], (CHUNK, " in text) != (spec == "rwkv7")
    tensors, stored = {}, {*kernel.stores}
    for title, name in made.names.items():
        value = found.values[made.nodes[title]].float()
        tensors[title] = torch.zeros_like(value) if name in stored else value.to(gates)
    fixed = constants(found, kernel, made)
    usual = {"DOT": "bf16", "SUMS": "f32", "PRECISION": "tf32x3"}
    fixed |= {name: dtype for name, dtype in usual.items() if name in fixed}
    B, T, C = (found.sizes[name] for name in ("batch", "T#", "chunk"))
    sizes = {"BATCH": B, "SEQUENCES": B, "T": T, "CHUNKS": -(-T // C)}
    sizes = {s.name: sizes[s.name] for s in made.program.sizes}
    dots, real = list[torch.Size](), torch.Tensor.__matmul__

    def noted(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        dots.append(a.shape)
        return real(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", noted)
    run(made.program, tensors, sizes, fixed, exact=False)
    (sums,) = (t for t, id in made.nodes.items() if isinstance(kernel.graph[id].op, ck.Sums))
    log_alpha = torch.zeros(B, -(-T // C) * C, *tensors[gate].shape[2:]).double()
    log_alpha[:, :T] = tensors[gate].double()
    wanted = log_alpha.unflatten(1, (-1, C)).transpose(2, 3).cumsum(3)
    torch.testing.assert_close(tensors[sums].double(), wanted, rtol=1e-6, atol=1e-6)
    assert bool(dots) == product
