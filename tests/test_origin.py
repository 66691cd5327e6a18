"""What a module keeps of its making: pickles that other processes load, and what it prints."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import archc
from archc.diagnostics import ArchError, ArchWarning
from archc.origin import origin_of

torch.set_num_threads(1)

LOADS = """
import sys, torch
x, y, state = torch.load(sys.argv[1] + "/values.pt", weights_only=False)
for name in ("whole.pt", "inner.pt"):
    module = torch.load(sys.argv[1] + "/" + name, weights_only=False)
    made = module(*x[name])
    print(name, type(module).__name__, float((made - y[name]).abs().max()))
print(type(state).__name__, [float(each.sum()) for each in state])
"""
MIXED = """import Half from "half.arch"

layer Whole(d, kind = "soft"):
    input x[d]
    param a[d]
    S0 = x * a
    recurrence S[d]:
        S[t] = sigmoid(x) * S[t-1] + S0
    gated = sigmoid(x) if kind == "soft" else x
    output y[d] = Half(d)(S * gated)
"""
HALF = "layer Half(d):\n    input x[d]\n    param W[d, d'] = normal(0, 1)\n    output y = x @ W\n"


@pytest.mark.slow
def test_another_process_loads_what_was_pickled(tmp_path: Path):
    """Of a spec in two files that are gone by then, with an option, a layer of it by itself, and a
    state to continue from."""
    (tmp_path / "half.arch").write_text(HALF)
    (tmp_path / "whole.arch").write_text(MIXED)
    module = archc.load(tmp_path / "whole.arch").module(d=3, kind="hard")
    x = torch.randn(2, 20, 3)
    y, state = module(x, return_state=True)
    inner = next(each for each in module.children())
    for name in ("half.arch", "whole.arch"):
        (tmp_path / name).unlink()
    torch.save(module, tmp_path / "whole.pt")
    torch.save(inner, tmp_path / "inner.pt")
    given, made = {"whole.pt": (x,), "inner.pt": (x,)}, {"whole.pt": y, "inner.pt": inner(x)}
    torch.save((given, made, state), tmp_path / "values.pt")
    done = subprocess.run(
        [sys.executable, "-c", LOADS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    whole, half, continued = done.stdout.strip().split("\n")
    assert whole == "whole.pt Whole 0.0" and half == "inner.pt Half 0.0"
    assert continued.startswith(f"{type(state).__name__} [")


def test_a_pickle_has_the_spec_and_no_code():
    module = archc.load("gla").module(d=8, H=2, r=2)
    text = pickle.dumps(module)
    assert b"Gated linear attention" in text and b"S[t] = " in text
    assert b"def forward" not in text and b"archc_generated" not in text
    again = pickle.loads(text)
    assert type(again) is type(module) and origin_of(again).layer is origin_of(module).layer
    assert copy.deepcopy(module).W_q is not module.W_q


def test_a_spec_in_a_pickle_is_compiled_as_any_other():
    module = archc.load("gla").module(d=8, H=2, r=2)
    origin = origin_of(module)
    wrong = replace(origin.recipe, spec=("gla.arch", "layer GLA(d):\n    input x[e]\n"))
    vars(module)["_archc"] = replace(origin, recipe=wrong)
    with pytest.raises(ArchError):
        pickle.loads(pickle.dumps(module))
    other = replace(origin.recipe, spec=("o.arch", "layer O(d):\n    input x[d]\n    output x\n"))
    vars(module)["_archc"] = replace(origin, recipe=other)
    with pytest.raises(ValueError, match="defines no Module `GLA`"):
        pickle.loads(pickle.dumps(module))


def test_another_version_is_told():
    module = archc.load("swiglu").module(d=8, f=4)
    origin = origin_of(module)
    vars(module)["_archc"] = replace(origin, recipe=replace(origin.recipe, version="0.0.1"))
    with pytest.warns(ArchWarning, match=r"archc 0\.0\.1"):
        other = pickle.loads(pickle.dumps(module))
    x = torch.randn(1, 3, 8)
    assert torch.equal(other(x), module(x))


@pytest.mark.parametrize("seen", [False, True])
def test_a_module_takes_kernels_where_torch_sees_a_gpu(monkeypatch: pytest.MonkeyPatch, seen: bool):
    """Tensors that are not on one are done in PyTorch all the same."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: seen)
    monkeypatch.setattr("archc.backends.measured.tables", dict)  # of GPUs by their names
    sizes = {"d": 8, "H": 2, "K": 4, "V": 4, "r": 2}
    module = archc.load("gla").module(**sizes)
    eager = archc.load("gla").module(**sizes, backend="eager")
    eager.load_state_dict(module.state_dict())
    code = vars(sys.modules[type(module).__module__])
    assert ("by_kernels" in code) == seen
    x = torch.randn(2, 40, 8)
    torch.testing.assert_close(module(x), eager(x))
    assert ("# on a GPU, by kernels:\n#     gla_memory" in repr(module)) == seen
    assert ("torch saw no GPU" in repr(module)) == (not seen)
    assert 'by backend="eager"' in repr(eager) and repr(module).startswith("GLA(d=8, H=2")


def test_a_module_that_has_kernels_of_tokens_alone_says_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("archc.backends.measured.tables", dict)
    assert "# on a GPU, by kernels:" in repr(archc.load("swiglu").module(d=8))


PLAIN = "layer Plain(d, e):\n    input x[d]\n    param W[d, e]\n    output y[e] = x @ W\n"


def test_where_no_kernel_is():
    plain = archc.parse(PLAIN)
    with pytest.warns(ArchWarning, match="no kernel is in the code of `Plain`.*nothing in it"):
        module = plain.module(d=8, e=4, backend="triton")
    assert repr(module).endswith("# in PyTorch on every device: nothing in it is worth a kernel")
    with pytest.raises(ValueError, match='no backend \'cuda\': known are "auto", "eager"'):
        archc.load("swiglu").module(d=8, f=4, backend="cuda")


def test_a_spec_says_what_it_can_do():
    assert "on a GPU, by kernels:\n      gla_memory_decode: 1 kernel" in repr(archc.load("gla"))
    assert "swiglu_y_in: a kernel, and one for its gradient" in repr(archc.load("swiglu"))
    shown = repr(archc.parse(PLAIN))
    assert shown.startswith("<archc layer Plain(d, e) of <text>\n  in PyTorch on every")


def test_compile_says_that_there_is_no_kernel(tmp_path: Path):
    from tests.console import run

    (tmp_path / "plain.arch").write_text(PLAIN, encoding="utf-8")
    plain = str(tmp_path / "plain.arch")
    done = run("compile", plain, "--backend", "triton", "-o", str(tmp_path / "s.py"))
    assert done.exit_code == 0
    assert "no kernel is in this file: in PyTorch on every device: nothing in it" in done.stderr
    done = run("compile", "swiglu", "-o", str(tmp_path / "s.py"))
    assert "kernel" not in done.stderr


WITHOUT = """
import sys, warnings
sys.modules["triton"] = None  # as where it is not installed
import torch
import archc
torch.cuda.is_available = lambda: True
text = sys.stdin.read()
module = archc.parse(text).module(d=3, e=2)
eager = archc.parse(text).module(d=3, e=2, backend="eager")
eager.load_state_dict(module.state_dict())
file = {}
exec(compile(archc.parse(text).source("triton"), "alone.py", "exec"), file)
alone = file["Alone"](d=3, e=2)
alone.load_state_dict(module.state_dict())
x = torch.randn(1, 30, 3)
for made in (module, alone):
    torch.testing.assert_close(made(x), eager(x))
from archc.runtime.kernels import has_triton
for told in (has_triton, file["has_triton"]):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("default")
        assert not any(told() for _ in range(3))
    print(["Triton is not installed" in str(each.message) for each in said])
"""
ALONE = """layer Alone(d, e):
    input x[d]
    param W[d, e]
    recurrence S[d]:
        S[t] = S[t-1] / 3 + x
    output y[e] = silu(S @ W) * sigmoid(x @ W)
"""


def test_without_triton():
    """Everything is done in PyTorch, which is said once where a GPU is; in a process of its own, as
    functions become kernels where they are imported first."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], input=ALONE, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["[True]", "[True]", ""]
