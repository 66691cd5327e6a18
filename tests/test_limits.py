"""Short specs that stand for something huge: compiled within the budget, or refused, and why."""

from __future__ import annotations

import subprocess
import sys

import pytest

import archc
from archc.diagnostics import ArchError
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.limits import AXES, LAYERS, NODES, STATES
from archc.specfile import bundled

SECONDS, BYTES = 10, 1 << 30


def nested(depth: int) -> str:
    text = "block L0(d):\n    input x[d]\n    param w[d]\n    output y[d] = x * w\n"
    for i in range(depth):
        text += f"block L{i + 1}(d):\n    input x[d]\n    repeat 8 as l:\n"
        text += f"        x = L{i}(d)(x)\n    output y[d] = x\n"
    return text


def squared(count: int) -> str:
    """A gate squared so often that it is a product of 2**count."""
    lines = [f"        n{i + 1} = n{i} * n{i}" for i in range(count)]
    return "\n".join(
        ["layer L(H):", "    input a[H], g[H]", "    recurrence s[] over H:", "        n0 = g",
         *lines, f"        s[t] = n{count} * s[t-1] + a", "        o = s[t]", "    output o", ""]
    )  # fmt: skip


def householder(count: int) -> str:
    names = ", ".join(f"W{i}" for i in range(count))
    factors = " @ ".join(f"(I - k{i} @ k{i}.T)" for i in range(count))
    return "\n".join(
        ["layer L(d, H, K, V):", "    input x[d]", f"    param {names}[d, H, K]; Wv[d, H, V]",
         *(f"    k{i} = x @ W{i}" for i in range(count)), "    v = x @ Wv",
         "    recurrence S[K, V] over H:", f"        S[t] = {factors} @ S[t-1] + k0 @ v.T",
         "        o = S[t].T @ k1", "    output o", ""]
    )  # fmt: skip


def wide(count: int) -> str:
    dims = ", ".join(f"d{i}" for i in range(count))
    return f"layer L({dims}):\n    input x[d0]\n    param W[{dims}]\n    output y = x @ W\n"


def chained(count: int) -> str:
    lines = [f"        s{i}[t] = g * s{i}[t-1] + s{i - 1}[t-1]" for i in range(1, count)]
    return "\n".join(
        ["layer L(H):", "    input a[H], g[H]",
         f"    recurrence {', '.join(f's{i}[]' for i in range(count))} over H:",
         "        s0[t] = g * s0[t-1] + a", *lines, f"        o = s{count - 1}[t]", "    output o",
         ""]
    )  # fmt: skip


def added(count: int) -> str:
    """A chain of values that have no line of their own in the file."""
    lines = [f"        n{i + 1} = n{i} + g * n{i}" for i in range(count)]
    return "\n".join(
        ["layer L(H):", "    input a[H], g[H]", "    recurrence s[] over H:",
         "        n0 = s[t-1] + a", *lines, f"        s[t] = n{count}", "        o = s[t]",
         "    output o", ""]
    )  # fmt: skip


def roots(depth: int) -> str:
    left, right = (f"{f'sqrt({n} + ' * depth}d{')' * depth}" for n in (2, 3))
    return f"layer L(d):\n    input x[d]\n    require {left} > {right}\n    output y[d] = x\n"


REFUSED = {
    "nested": (nested(7), "`L4` comes to more than 4096 layers"),
    "dims": (wide(19), "19 dims"),
    "chained": (chained(30), "a recurrence of 30 states"),
}
DONE = {
    "squared": squared(60), "householder": householder(12), "roots": roots(5),
    "added": added(20), "chained": chained(8), "dims": wide(8), "nested": nested(3),
}  # fmt: skip

MEASURED = """
import resource, sys, warnings
warnings.simplefilter("ignore")
import archc
from archc.compile import text_of
try:
    text_of(archc.parse(sys.argv[1]).layer, sys.argv[2])
except archc.ArchError as refused:
    print(refused)
used = resource.getrusage(resource.RUSAGE_SELF)
peak = used.ru_maxrss << 10
if sys.platform == "linux":  # where ru_maxrss begins with what the parent had
    with open("/proc/self/status") as status:
        (line,) = (line for line in status if line.startswith("VmHWM:"))
    peak = int(line.split()[1]) << 10
print(used.ru_utime + used.ru_stime, peak)
"""


def measured(text: str, backend: str) -> str:
    """What compiling prints; it takes little time and memory."""
    command = [sys.executable, "-c", MEASURED, text, backend]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    *said, numbers = done.stdout.splitlines()
    seconds, size = map(float, numbers.split())
    assert seconds < SECONDS and size < BYTES
    return "\n".join(said)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    text, words = REFUSED[name]
    with pytest.raises(ArchError, match="E0009") as refused:
        archc.parse(text)
    assert words in str(refused.value) and "-->" in str(refused.value)


def test_what_is_done_in_time() -> None:
    measured(DONE["squared"], "eager")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "triton"])
@pytest.mark.parametrize("name", [*DONE, *(f"{name}, too large" for name in REFUSED)])
def test_all_in_time(name: str, backend: str) -> None:
    said = measured(DONE.get(name) or REFUSED[name.split(",", maxsplit=1)[0]][0], backend)
    assert ("E0009" in said) == (name not in DONE)


def test_too_many_values_name_the_place_where_they_are_made() -> None:
    text = "function F(x):\n    repeat 500 as i:\n        x = sin(x) + cos(x) * exp(x + i)\n"
    text += "    return x\nlayer L(d):\n    input x[d]\n    output y[d] = F(x)\n"
    with pytest.raises(ArchError) as refused:
        archc.parse(text)
    assert {finding.code for finding in refused.value.diagnostics} == {"E0009"}
    assert f"more than {NODES} values" in str(refused.value) and "-->" in str(refused.value)


@pytest.mark.parametrize("name", ["xlstm", "kimi_linear", "mom"])
def test_bundled_specs_are_far_inside(name: str) -> None:
    seen: dict[int, int] = {}
    assert name in bundled()
    assert layers(archc.load(name).layer, seen) < LAYERS // 4


def layers(layer: ir.Layer, seen: dict[int, int]) -> int:
    if id(layer) not in seen:
        inside(layer.graph)
        seen[id(layer)] = 1 + sum(layers(call.callee, seen) for _, call in layer.calls)
    return seen[id(layer)]


def inside(graph: Graph) -> None:
    assert len(graph) < NODES // 4
    for node in graph:
        assert len(node.type.axes) <= AXES // 2
        if isinstance(node.op, ir.Recurrence):
            assert len(node.op.states) <= STATES // 4
            inside(node.op.body)


def test_a_large_model() -> None:
    """64 layers of 8192 are few values: sizes cost nothing."""
    spec = archc.load("gpt", L=64, d=8192, H=64)
    assert 64 < layers(spec.layer, {}) < LAYERS // 4
