"""Numbers for a memory, by what they mean to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.gpu.cases import Case
from tests.gpu.memories import PACKED, Memory

STEPS, EPS = 30, 1e-6
"""Iterations of a solve; what keeps a quotient finite."""

DECAYS = {"log_alpha", "log_gamma", "log_w", "lf", "log_a", "log_b"}
"""Logarithms of decays; names mean what they mean in the specs."""

ROLES: dict[str, Mapping[str, str]] = {
    "linear_attention": {"q": "positive", "k": "positive", "S": "sum", "z": "sum"},
    "linear_attention_simple": {"q": "scaled", "k": "scaled"},
    "gla": {"q": "scaled", "k": "scaled"},
    "mlstm": {"q": "query", "k": "key", "C": "sum", "n": "sum", "m": "maximum"},
    "xlstm": {"q": "query", "k": "key", "C": "sum", "n": "sum", "m": "maximum"},
    "mamba": {"a": "decay", "dt": "step"},
    "mamba2": {"dt": "step", "b": "scaled", "c": "scaled"},
    "ssm_selective": {"a": "decay", "dt": "step"},
    "mom": {"u": "log decay", "u_2": "beta", "u_3": "chosen", "k0": "unit"},
    "rwkv7": {"r": "scaled", "k": "scaled", "a": "beta", "kappa": "unit"},
    "ssm": {"A": "matrix"},
    "lstm": dict.fromkeys(("R_i", "R_f", "R_g", "R_o"), "matrix"),
    "slstm": dict.fromkeys(("R_i", "R_f", "R_z", "R_o"), "matrix") | {"n": "sum", "m": "maximum"},
    "mesa": {"lam": "rand", "A": "square"},
    "momentum": dict.fromkeys(("alpha", "eta", "theta"), "beta"),
    "channels": {"a": "decay"},
    "turning": {"r": "decay"},
    "two_deltas": {"e": "unit", "b": "beta", "c": "beta"},
}
ALIKE = {"q": "unit", "k": "unit", "beta": "beta", "li": "input gate"}


def role(spec: str, name: str) -> str:
    """What a tensor is: `unit` vectors, a `log decay`, ..."""
    if name in DECAYS:
        return "log decay"
    return ROLES.get(spec, {}).get(name) or ALIKE.get(name, "normal")


def is_gate(spec: str, name: str) -> bool:
    """Whether its gradient is a gate's, a sum over many rounded numbers."""
    return role(spec, name) in ("log decay", "decay", "beta", "input gate", "step")


def shape_of(case: Case, axes: tuple[str, ...]) -> list[int]:
    """Lengths of axes by their letters."""
    known = {"B": case.B, "T": case.T, "H": case.H, "K": case.K, "V": case.V, "n": 2, "N": 4}
    known |= {"R": 3}
    if case.spec in ("mamba", "ssm_selective"):
        known |= {"D": case.K, "N": 16}
    if case.spec == "mamba2":
        known |= {"N": case.K, "P": case.V}
    if case.spec == "channels":
        known |= {"N": case.V}
    if case.spec == "turning":
        known |= {"N": case.K}
    known |= {"D": case.K}
    return [known[axis.rstrip("'")] for axis in axes]


class Values:
    """Draws tensors in float64 on the device, in the order they are asked for."""

    def __init__(self, case: Case, device: str):
        self.case, self.device = case, device
        self.random = torch.Generator(device).manual_seed(case.seed)

    def draw(self, shape: list[int], flat: bool = False) -> Tensor:
        """Normal, or even between 0 and 1."""
        make = torch.rand if flat else torch.randn
        return make(shape, generator=self.random, device=self.device, dtype=torch.float64)

    def made(self, role: str, shape: list[int]) -> Tensor:
        """A tensor of a role."""
        flat = self.case.values == "positive"
        match role:
            case "unit":
                return F.normalize(self.draw(shape, flat), dim=-1)
            case "positive":
                return F.elu(self.draw(shape)) + 1
            case "scaled":
                return self.draw(shape, flat) / shape[-1] ** 0.5
            case "rand":
                return self.draw(shape, flat=True)
            case "query":
                return self.draw(shape, self._divided)
            case "key":
                return self.draw(shape, self._divided) / shape[-1] ** 0.5
            case "beta":
                return self.draw(shape).sigmoid()
            case "step":
                return F.softplus(self.draw(shape) - 2)
            case "input gate":
                return self.draw(shape) + (3 if self._divided else -5)
            case "log decay":
                return self._log_decay(shape)
            case "decay":
                return self._log_decay(shape).exp()
            case "chosen":
                best = self.draw(shape)
                return best >= best.topk(2, -1).values[..., -1:]
            case "matrix":
                return self.draw(shape) * 0.5 / shape[-1] ** 0.5
        return self.draw(shape, flat)

    @property
    def _divided(self) -> bool:
        """Whether exponential gates make sums that are divided by their weights, and not by what
        keeps small weights from being divided by. Then what weights have in common cancels in
        gradients; all of it, where nothing is remembered: a mean of one value is that value. With
        decays of e^-8 a token, what is left for an input gate is 0.03 off in bfloat16, so only
        float32 is held to those."""
        remembers = self.case.gate >= 1 and self.case.holes < 1
        return self.case.values == "positive" and (remembers or self.case.dtype == "float32")

    def _log_decay(self, shape: list[int]) -> Tensor:
        case, each = self.case, [*shape[:2], *[1] * (len(shape) - 2)]
        found = F.logsigmoid(self.draw(shape)) / case.gate
        chance, tokens = self.draw(shape, flat=True), self.draw(each, flat=True)
        found = torch.where(tokens < case.kept, 0.0, found)
        found = torch.where(chance < case.holes, -1000.0, found)
        return torch.where(chance < case.holes / 2, -torch.inf, found)

    def start(self, role: str, shape: list[int]) -> Tensor:
        """A state before the first token."""
        if not self.case.state:
            nothing = -torch.inf if role == "maximum" else 0.0
            return torch.full(shape, nothing, device=self.device, dtype=torch.float64)
        match role:
            case "square":
                k = F.normalize(self.draw(shape[:-1]), dim=-1)
                return k[..., None] * k[..., None, :]
            case "sum":
                return self.draw(shape, flat=True)
        return self.draw(shape)


def laid(x: Tensor, layout: str, axes: tuple[str, ...]) -> Tensor:
    """The same numbers, elsewhere in memory."""
    if layout == "turned" and x.dim() > 2:
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "sliced":
        return torch.cat([x, torch.full_like(x, torch.nan)], -1)[..., : x.shape[-1]]
    if layout == "shared heads" and "T" in axes and "H" in axes and axes[-1] == "K":
        at = axes.index("H")
        return x.narrow(at, 0, 1).expand(x.shape)
    return x


def values_for(memory: Memory, case: Case, device: str) -> dict[str, Any]:
    """Every argument of a memory: values in the dtype of the case, states in float32, numbers."""
    draw, dtype = Values(case, device), getattr(torch, case.dtype)
    found: dict[str, Any] = {}
    rows = replace(case, B=case.packed or case.B)
    for name, axes in memory.axes.items():
        kind, shape = role(case.spec, name), shape_of(case, axes)
        if name in memory.states:
            shape = shape_of(rows, axes)
            found[name] = laid(draw.start(kind, shape).float(), case.layout, axes)
            continue
        made = draw.made(kind, shape)
        wide = case.wide_gates and kind in ("log decay", "decay", "input gate")
        made = made if made.dtype == torch.bool else made.to(torch.float32 if wide else dtype)
        found[name] = laid(made, case.layout, axes)
    found |= {name: {"steps": STEPS, "eps": EPS}[name] for name in memory.numbers}
    return found | ({PACKED: bounds_of(case, device)} if case.packed else {})


def bounds_of(case: Case, device: str) -> Tensor:
    """Where packed sequences begin, and the last ends; the second has no token."""
    draw = torch.Generator().manual_seed(case.seed)
    inner = torch.randint(1, case.T, [case.packed - 2], generator=draw).sort().values
    first = inner[:1] if len(inner) else torch.tensor([case.T])
    bounds = torch.cat([torch.tensor([0]), first, inner, torch.tensor([case.T])])
    return bounds.to(device=device, dtype=torch.int32)
