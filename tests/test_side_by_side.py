"""Copies of parameters side by side, against products with each parameter."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import archc
from archc import side_by_side
from archc.serving import Pool
from archc.side_by_side import SideBySide
from tests.few import few


class Products(TorchDispatchMode):
    """How many matrix products are made inside."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        self.count += name in ("mm", "bmm", "addmm")
        return func(*args, **(kwargs or {}))


@pytest.fixture
def paying(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies are used on a CPU, too."""
    monkeypatch.setattr(side_by_side, "pays", lambda model: True)


def module(dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(0)
    return archc.load("gated_delta").module(
        d=8, H=2, K=4, V=4, dtype=dtype, backend="triton"
    )  # fmt: skip


def token(model: nn.Module, copies: SideBySide | None = None, rows: int = 2) -> Tensor:
    """The result for one token of each of some sequences."""
    first = next(model.parameters())
    x = torch.linspace(-1, 1, 8 * rows, dtype=first.dtype).view(rows, 1, 8)
    with torch.no_grad():
        if copies is None:
            return model(x)
        with copies.used():
            return model(x)


@pytest.mark.parametrize("rows", [1, 3])
def test_one_product_for_all(rows: int, paying: None) -> None:
    """Of one sequence all are one; of several those of equal widths."""
    model = module()
    copies = SideBySide(model)
    with Products() as alone:
        wanted = token(model, rows=rows)
    token(model, copies, rows)
    with Products() as together:
        found = token(model, copies, rows)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    (made,) = copies.known.values()
    widths = len({*made.sizes}) if rows > 1 else 1
    assert len(made.weights) > widths and together.count == alone.count - len(made.weights) + widths
    with Products() as after:
        token(model, rows=rows)
    assert after.count == alone.count


def moved(model: nn.Module) -> None:
    """The parameters in other memory."""
    for p in model.parameters():
        p.data = p.data.clone() * 0.5


def replaced(model: nn.Module) -> None:
    """Other parameters of the same names."""
    for name, p in [*model.named_parameters()]:
        setattr(model, name, nn.Parameter(p.detach() * 0.5))


def written(model: nn.Module) -> None:
    """What an optimizer does."""
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5)


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "written": written,
    "loaded": lambda m: m.load_state_dict({k: 0.5 * v for k, v in m.state_dict().items()}),
    "moved": moved,
    "replaced": replaced,
    "another dtype": lambda m: m.to(torch.float32),
}


@pytest.mark.parametrize("change", CHANGES)
def test_parameters_that_change(change: str, paying: None) -> None:
    """Each is seen in the next token, and when copies are renewed where they stand."""
    model = module()
    copies = SideBySide(model)
    before = token(model, copies)
    CHANGES[change](model)
    exact: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6} if change == "another dtype" else {}
    torch.testing.assert_close(token(model, copies), token(model), **exact)
    if change != "another dtype":
        assert not torch.allclose(before, token(model))
    for again in ("written", "loaded", "moved"):
        CHANGES[again](model)
        places = {k: c.matrix.data_ptr() for k, c in copies.known.items()}
        assert not copies.renew()
        assert places == {k: c.matrix.data_ptr() for k, c in copies.known.items()}
        torch.testing.assert_close(token(model, copies), token(model), **exact)


def test_what_is_renewed(paying: None) -> None:
    """Writing through `.data` changes no version: all are written anew where that is asked for; a
    copy of another dtype is elsewhere."""
    model = module()
    copies = SideBySide(model)
    token(model, copies)
    for p in model.parameters():
        p.data.mul_(0.5)
    assert not copies.renew(every=True)
    torch.testing.assert_close(token(model, copies), token(model))
    model.to(torch.float32)
    assert copies.renew()


def test_nothing_that_learns_or_has_several_tokens(paying: None) -> None:
    model = module(torch.float32)
    copies, x = SideBySide(model), torch.randn(2, 1, 8)
    with copies.used():
        model(x).sum().backward()
        assert all(p.grad is not None for p in model.parameters())
        with torch.no_grad():
            model(x.expand(2, 3, 8))
            with torch.autocast("cpu"):
                model(x)
        with torch.inference_mode():
            model(x)
        assert len(copies.known) == 1
    assert not SideBySide(model).known


def test_a_module_is_as_it_was(paying: None) -> None:
    """Copies are in no state dict, no copy of a module, and no pickle."""
    model = module()
    keys, size = [*model.state_dict()], len(pickle.dumps(model))
    copies = SideBySide(model)
    token(model, copies)
    other, read = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    assert [*model.state_dict()] == keys and len(pickle.dumps(model)) == size
    for each in (other, read):
        written(each)
        torch.testing.assert_close(token(each, copies), token(each))
    assert not torch.allclose(token(model, copies), token(other, copies))


def test_only_on_a_gpu() -> None:
    model = module()
    copies = SideBySide(model)
    token(model, copies)
    assert not copies.known


@pytest.mark.parametrize("name", few(["lm", "kimi_linear"], ["lm"]))
def test_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`generate` and a pool draw the same tokens with copies, also of parameters that change while
    sequences go on."""
    sizes: dict[str, Any] = {"vocab": 11, "d": 8, "H": 2, "L": 2}
    told = []
    for wanted in (False, True):
        monkeypatch.setattr(side_by_side, "pays", lambda model, wanted=wanted: wanted)
        torch.manual_seed(0)
        model = archc.load(name).module(backend="triton", dtype=torch.float64, **sizes)
        prompt = torch.arange(5)
        found = archc.generate(model, prompt[None], 5, temperature=0).flatten().tolist()
        pool = Pool(model, 3)
        numbers = [pool.add(prompt, 8, temperature=0), pool.add(prompt[:3], 8, temperature=0)]
        for step in range(8):
            pool.step()
            if step == 2:
                written(model)
            if step == 4:
                for p in model.parameters():
                    p.data.mul_(-2)
                numbers.append(pool.add(prompt[:4], 3, temperature=0))
        found += [pool.tokens(n).tolist() for n in numbers]
        told.append(found)
        lanes: Any = pool.lanes
        assert bool(lanes.copies.known) == wanted
    assert told[0] == told[1]
