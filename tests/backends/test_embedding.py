"""What generated files take from the runtime: found from the names and the imports of modules."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter

import pytest
import torch
from archc.backends.assembly import assembled
from archc.backends.eager.file import File
from archc.backends.embedding import (
    OPTIONAL,
    exported,
    imported,
    imports_of,
    modules,
    names_read,
    needs_of,
)
from archc.backends.load import load
from archc.backends.writer import identifier, reserved

import archc
from archc.compile import text_of
from archc.diagnostics import InternalError


def file_of(*sections: str) -> File:
    """A file of these sections."""
    return File(sections=[*sections])


def test_every_module_stands_after_those_that_it_imports():
    seen: set[str] = set()
    for name, module in modules().items():
        own = {each.module for each in module.imports.values() if each.module in modules()}
        assert own <= seen, name
        seen.add(name)


def test_a_file_may_hold_every_definition():
    for name in exported():
        assert name in {each.name for each in needs_of([name], embedded=True).definitions}


def test_definitions_have_one_name_each_and_modules_hold_nothing_else():
    names = Counter(each.name for module in modules().values() for each in module.definitions)
    assert {*names.values()} == {1} and {*names} == {*exported()}
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign)
    for module in modules().values():
        text = "\n".join(each.text for each in module.definitions)
        assert all(isinstance(node, kinds) for node in ast.parse(text).body)
        missing = names_read(text) - {*imported(), *exported(), *OPTIONAL}
        assert not missing, module.name


def test_the_names_that_a_text_reads():
    text = """
import math
LIMIT = other(3)
@decorated
def f(x, few=default):
    flat = [y for y in x if y > bound]
    def inner(z):
        return flat, z, joined(z)
    return inner(len(x)) + LIMIT + math.pi
class C(Base):
    settled: Kind = few(2)
"""
    assert names_read(text) == {
        "other", "decorated", "default", "bound", "joined", "Base", "Kind", "few",
    }  # fmt: skip


def test_a_local_of_the_name_of_a_function_of_the_runtime_asks_for_none():
    assert needs_of(["def f(flat):\n    return flat\n"], True).definitions == ()
    (found,) = needs_of(["def f(x):\n    return flat(0, x)\n"], True).definitions
    assert found.name == "flat"


def test_what_a_function_calls_comes_with_it_where_it_is_embedded():
    text = ["def f(x):\n    return in_runs([x], 4)\n"]
    assert [d.name for d in needs_of(text, True).definitions] == ["runs_of_chunks", "in_runs"]
    assert [d.name for d in needs_of(text, False).definitions] == ["in_runs"]
    assert imports_of(needs_of(text, False), False) == [
        "import torch",
        "",
        "from archc.runtime.ops import in_runs",
    ]


def test_a_file_has_what_long_ops_need_if_one_is_long():
    own = {each.name for each in needs_of(["new_op"], embedded=True).definitions}
    assert "learning_of" in own and "in_a_list" not in own


def test_both_ways_give_the_same_numbers():
    text = "def f(x):\n    return in_runs([x], 4)[0][0], masked_softmax(x, x > 0, 1)\n"
    x = torch.randn(2, 9)
    one, other = (load(assembled(file_of(text), way), "f").f(x) for way in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_what_nothing_defines_is_a_bug_of_archc():
    with pytest.raises(InternalError, match="no_such_function"):
        assembled(file_of("def f(x):\n    return no_such_function(x)\n"))


def test_names_of_the_runtime_are_reserved():
    """A value of a spec has another name in a file than what the file calls."""
    checks = {each.name for each in modules()["archc.runtime.selfcheck"].definitions}
    assert {*exported()} - checks <= reserved()
    assert {*imported(), "tl", "triton"} <= reserved()
    for name in ("settled", "flat", "tl", "F", "math", "kernel", "Tensor"):
        assert identifier(name) == f"{name}_"
    assert identifier("speed") == "speed"


def test_the_runtime_is_loaded_without_triton():
    names = ", ".join(name.rpartition(".")[2] for name in modules())
    text = f"import sys\nsys.modules['triton'] = None\nfrom archc.runtime import {names}\n"
    text += "assert kernels.triton is None and tiles.join_max.__name__ == 'join_max'\n"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.default("eager")
@pytest.mark.parametrize("backend", ["eager", "triton"])
def test_inputs_may_have_the_names_of_the_runtime(backend: str):
    """Each is what a file of a recurrence calls or imports."""
    spec = """layer Named(d, H, K, V):
    input settled[d]
    param flat, F[d, H, K]; math[d, H, V]; tl[d, H]; kernel[H, V, d]
    few = settled @ flat
    torch = settled @ F
    joined = settled @ math
    new_op = sigmoid(settled @ tl)
    recurrence launch_kernel[K, V] over H:
        launch_kernel[t] = new_op * launch_kernel[t-1] + few @ joined.T
        self = launch_kernel[t].T @ torch
    output Tensor[d] = self @ kernel
"""
    layer = archc.parse(spec).layer
    made = load(text_of(layer, backend), "named").Named(d=4, H=2, K=3, V=2)
    x = torch.randn(2, 40, 4)
    whole, (first, state) = made(x), made(x[:, :9], return_state=True)
    last = made(x[:, 9:], state=state)
    assert torch.allclose(whole, torch.cat([first, last], 1), atol=1e-5)
    if backend == "eager":
        assert archc.parse(spec).source()
