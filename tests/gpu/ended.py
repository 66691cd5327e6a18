"""Whole layers whose kernels end with what follows a recurrence, on a GPU: right, and how long they
take beside the same where PyTorch does that.

    python -m tests.gpu.ended
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import torch
from archc.backends.eager.emit import Code
from archc.backends.load import load
from torch import Tensor, nn

import archc
from archc.compile import in_kernels, lowered, whole_in_kernels, with_prologues
from archc.ir.plan import Plan

OWN = Path(__file__).parents[1] / "backends" / "triton" / "recurrences" / "ended.arch"

LAYERS = {
    "ssm_selective": {"d": 256, "D": 512, "N": 16},
    str(OWN): {"d": 512, "H": 8, "K": 64, "V": 64},
}
"""Specs, and sizes for them."""

LIMITS = {torch.float32: 1e-3, torch.bfloat16: 2e-2}


def without(plan: Plan) -> Code:
    """The code of kernels that end with a recurrence's own outputs."""
    return in_kernels(replace(plan, layer=with_prologues(plan.layer)))


def both(spec: str) -> dict[str, tuple[ModuleType, str]]:
    """A layer's file with ends in its kernels, and without them; and the layer's name."""
    layer = lowered(archc.load(spec).layer)
    makes: dict[str, Callable[[Plan], Code]] = {"ended": whole_in_kernels, "apart": without}
    stem, plan = Path(spec).stem, Plan(layer)
    texts = {name: make(plan).text(plan) for name, make in makes.items()}
    return {name: (load(text, f"{stem}_{name}"), layer.name) for name, text in texts.items()}


def run(layer: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Its output, and the gradients of one sum of it."""
    x = x.detach().requires_grad_()
    y = layer(x)
    (y * torch.linspace(-1, 1, y.shape[1], device=y.device).to(y)[:, None]).sum().backward()
    gradients = {f"d {n}": p.grad for n, p in layer.named_parameters()}
    return {"y": y.detach(), "d x": x.grad, **gradients}


def errors(made: nn.Module, exact: nn.Module, x: Tensor) -> Iterator[tuple[str, float]]:
    """How far each value is off, relative, by root mean squares."""
    wanted, found = run(exact, x.double()), run(made, x)
    for name, value in wanted.items():
        off = (found[name].double() - value).square().mean().sqrt()
        yield name, float(off / value.square().mean().sqrt())


def milliseconds(call: Callable[[], object]) -> float:
    """The median of some runs."""
    times = []
    for _ in range(13):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times[3:])[5]


def check(spec: str, dtype: torch.dtype) -> int:
    """One spec in one dtype; how many values are wrong."""
    sizes, wrong = LAYERS[spec], 0
    for name, (module, title) in both(spec).items():
        torch.manual_seed(0)
        layer = getattr(module, title)(**sizes).cuda().to(dtype)
        exact = getattr(module, title)(**sizes).cuda().double()
        exact.load_state_dict({n: p.double() for n, p in layer.state_dict().items()})
        x = torch.randn(2, 333, sizes["d"], device="cuda").to(dtype)
        found = dict(errors(layer, exact, x))
        wrong += sum(not error < LIMITS[dtype] for error in found.values())
        worst = max(found, key=lambda n: found[n])
        x = torch.randn(2, 4096, sizes["d"], device="cuda").to(dtype)
        with torch.no_grad():
            inference = milliseconds(lambda layer=layer, x=x: layer(x))
        training = milliseconds(lambda layer=layer, x=x: run(layer, x))
        print(
            f"{Path(spec).stem:14} {name:6} {str(dtype)[6:]:9} worst {worst} {found[worst]:.1e}"
            f"  inference {inference:.3f} ms  training {training:.3f} ms", flush=True,
        )  # fmt: skip
    return wrong


def main() -> None:
    """Every spec in every dtype."""
    wrong = sum(check(spec, dtype) for spec in LAYERS for dtype in LIMITS)
    print("nothing is wrong" if not wrong else f"{wrong} values are WRONG")


if __name__ == "__main__":
    main()
