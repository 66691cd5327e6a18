"""Bad input of every sort is a clear error with its code: at once, and with nothing left behind."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import archc
from archc.diagnostics import ArchError
from tests.console import run

HEAD = "layer L(d):\n    input x[d]\n"
MANY = 10_000
LIMIT = 4.0
"""Seconds of processor time that any refusal may take: one on a quick core of its own, two on a
slow one, and cores that are shared take longer."""


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """The parser's tables and the library are made once, by the first spec of a process."""
    archc.load("kda")


@pytest.fixture(autouse=True)
def quick(warm: None, no_collections: None) -> Iterator[None]:
    start = time.process_time()
    yield
    assert time.process_time() - start < LIMIT


def codes(make: Callable[[], object]) -> list[str]:
    """The codes that something is refused with; each finding can be shown."""
    with pytest.raises(ArchError) as refused:
        make()
    found = refused.value.diagnostics
    assert all(finding.code in finding.render() for finding in found)
    return [finding.code for finding in found]


def spec(text: str, **given: object) -> Callable[[], object]:
    return lambda: archc.parse(text, **given)


def body(*lines: str) -> str:
    return HEAD + "".join(f"    {line}\n" for line in lines)


def chain(*, forward: bool, length: int = MANY) -> str:
    """Assignments that each need the next one, written after or before it."""
    lines = [f"a{n} = a{n + 1} + x" for n in range(length)] + [f"a{length} = x"]
    return body(*(lines if forward else reversed(lines)), "output y[d] = a0")


SPECS = {
    "nothing": ("", "E0010"),
    "no layer": ("# only a remark\n", "E0010"),
    "prose": ("Let q be a query.\n", "E0011"),
    "malformed": (body("output y[d] = x +* x"), "E0012"),
    "truncated": (body("output y[d] = x +"), "E0012"),
    "ends in a header": ("layer L(d):\n", "E0014"),
    "never closed": (body("output y[d] = (x"), "E0018"),
    "a tab": ("layer L(d):\n\tinput x[d]\n", "E0006"),
    "control characters": (body("output y[d] = x\x07"), "E0006"),
    "large": (body("output y[d] = x") + "# remark\n" * MANY, "E0005"),
    "deep brackets": (body("output y[d] = " + "(" * MANY + "x" + ")" * MANY), "E0007"),
    "deep lists": (body("output y[d] = " + "[" * MANY + "x" + "]" * MANY), "E0007"),
    "deep signs": (body("output y[d] = " + "-" * MANY + "x"), "E0007"),
    "deep indentation": ("layer L(d):\n" + " " * MANY + "input x[d]\n", "E0007"),
    "deep blocks": (HEAD + "".join(f"{' ' * n}repeat 2 as l:\n" for n in range(4, 150)), "E0014"),
    "a long sum": (body("output y[d] = " + "+".join(["x"] * MANY)), "E0007"),
    "a long comparison": (body("output y[d] = " + "<".join(["x"] * MANY)), "E0007"),
    "chain forward": (chain(forward=True), "E0005"),
    "chain backward": (chain(forward=False), "E0005"),
    "shorter chain forward": (chain(forward=True, length=1500), "E0208"),
    "a name in a circle": (body("a = b", "b = a", "output y[d] = a"), "E0203"),
    "a layer in itself": (HEAD + "    output y[d] = L(x)\n", "E0208"),
    "wrong dim": (body("param W[e, d]", "output y[d] = x @ W"), "E0202"),
    "wrong shape": (body("param w[3]", "output y[d] = x * w"), "E0301"),
    "undeclared": (body("output y[d] = x * w"), "E0201"),
    "declared twice": (body("a = x", "a = 2 * x", "output y[d] = a"), "E0210"),
    "undeclared, often": (body(*(f"a{n} = b{n}" for n in range(1000))), "E0201"),
    "a tower of powers": (body("output y[d] = x * 9 ** 9 ** 9 ** 9"), "E0404"),
    "exponentials": (body("output y[d] = x * exp(exp(exp(9)))"), "E0404"),
    "many digits": (body(f"output y[d] = x * {'9' * 1000}"), "E0016"),
    "a long name": (body(f"output {'y' * 1000} = x"), "E0016"),
    "a polynomial": (body("require d ** 99 - d ** 98 > 7", "output y[d] = x"), "E0404"),
    "doubling layers": (
        "".join(
            f"layer L{n}(d):\n    input x[d]\n    output y[d] = L{n - 1}(x) + L{n - 1}(x)\n"
            for n in range(1, 25)
        )
        + "layer L0(d):\n    input x[d]\n    output y[d] = x\n"
        + "layer L(d):\n    input x[d]\n    output y[d] = L24(x)\n",
        "E0208",
    ),
}


@pytest.mark.parametrize("name", SPECS)
def test_specs(name: str) -> None:
    text, code = SPECS[name]
    assert set(codes(spec(text))) == {code}


@pytest.mark.parametrize("name", ["__import__", "class", "batch", "chunk", "eval\u00b2", "π́"])
@pytest.mark.parametrize(
    "text",
    [
        "layer L(d):\n    input {n}[d]\n    output y[d] = {n}\n",
        "layer L(d):\n    input x[d]\n    param {n}[d]\n    output y[d] = x * {n}\n",
        "layer L({n}):\n    input x[{n}]\n    output y[{n}] = x\n",
        "layer {n}(d):\n    input x[d]\n    output y[d] = x\n",
        "layer L(d):\n    input x[d]\n    output {n}[d] = x\n",
    ],
)
def test_names_that_are_python_s(text: str, name: str) -> None:
    assert set(codes(spec(text.format(n=name)))) <= {"E0012", "E0015"}


@pytest.mark.parametrize("name", ["torch", "tl", "self", "F", "math", "settled", "flat", "nn"])
def test_names_of_the_files_themselves_are_free(name: str) -> None:
    """What generated files import and call does not reserve a word, for an input, a parameter, a
    size or a layer."""
    x = torch.randn(1, 3, 2)
    for head, lines, options in [
        ("L(d)", f"    input {name}[d]\n    output y[d] = 2 * {name}\n", {"d": 2}),
        (
            "L(d)",
            f"    input x[d]\n    param {name}[d] = 2\n    output y[d] = x * {name}\n",
            {"d": 2},
        ),
        (f"L({name})", f"    input x[{name}]\n    output y[{name}] = 2 * x\n", {name: 2}),
        (f"{name}(d)", "    input x[d]\n    output y[d] = 2 * x\n", {"d": 2}),
    ]:
        module = archc.parse(f"layer {head}:\n{lines}").module(**options)
        torch.testing.assert_close(module(x), 2 * x)


def test_code_in_a_spec_stays_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in docstrings and quotes is never run."""
    monkeypatch.chdir(tmp_path)
    evil = "\\'); open('taken', 'w'); ('\\"
    text = f'layer L(d):\n    """{evil} """\n    input x[d]\n    output y[d] = x\n'
    archc.parse(text).module(d=2)(torch.ones(1, 1, 2))
    codes(spec(body(f'output y[d] = __import__("os").system("{evil}")')))
    assert not (tmp_path / "taken").exists()


def test_imports_in_a_circle(tmp_path: Path) -> None:
    layer = "layer {n}(d):\n    input x[d]\n    output y[d] = x\n"
    (tmp_path / "a.arch").write_text('import B from "b.arch"\n' + layer.format(n="A"))
    (tmp_path / "b.arch").write_text('import A from "a.arch"\n' + layer.format(n="B"))
    assert codes(lambda: archc.load(str(tmp_path / "a.arch"))) == ["E0219"]


def test_files_that_import_each_other_twice_are_read_once(tmp_path: Path) -> None:
    """Twenty files of two imports each would be read a million times."""
    layers = "".join(f"layer {n}(d):\n    input x[d]\n    output y[d] = x\n" for n in "AB")
    for n in range(18):
        text = f'import A from "f{n + 1}.arch"\nimport B from "f{n + 1}.arch"\n' if n < 17 else ""
        text = text + (layers if n == 17 else layers.split("layer B")[0].replace("A(", f"C{n}("))
        (tmp_path / f"f{n}.arch").write_text(text)
    assert archc.load(str(tmp_path / "f0.arch")).name == "C0"


# --- files and the command line -----------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "binary.arch").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "null.arch").write_bytes(b"layer L(d):\0\n")
    (tmp_path / "huge.arch").write_bytes(b"# remark\n" * (10 << 20) + b"\n")
    (tmp_path / "wrong.arch").write_text(body("output y[d] = z"))
    (tmp_path / "secret.arch").write_text(body("output y[d] = x"))
    (tmp_path / "secret.arch").chmod(0)
    return tmp_path


FILES = {
    "missing.arch": "E0001",
    "folder": "E0002",
    "secret.arch": "E0003",
    "binary.arch": "E0004",
    "null.arch": "E0004",
    "huge.arch": "E0005",
    "wrong.arch": "E0201",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("verb", ["compile", "show"])
def test_the_command_line(folder: Path, verb: str, name: str) -> None:
    """A status, a code, no traceback, and no output: neither a part of one nor an empty one."""
    if name == "secret.arch" and os.geteuid() == 0:
        pytest.skip("root may read everything")
    (folder / "old.py").write_text("kept")
    before = sorted(path.name for path in folder.iterdir())
    for target in ("new.py", "old.py"):
        done = run(verb, name, "-o", target)
        assert done.exit_code == 1
        assert f"error[{FILES[name]}]" in done.stderr
        assert "Traceback" not in done.stderr and done.stdout == ""
    assert sorted(path.name for path in folder.iterdir()) == before
    assert (folder / "old.py").read_text() == "kept"


def test_an_output_that_cannot_be_written(folder: Path) -> None:
    mode = stat.S_IMODE(folder.stat().st_mode)
    for target in ("folder", "none/new.py"):
        done = run("show", "kda", "-o", target)
        assert done.exit_code == 1 and "error[E0030]" in done.stderr
    assert stat.S_IMODE(folder.stat().st_mode) == mode and not list((folder / "folder").iterdir())


# --- sizes --------------------------------------------------------------------------------------

HEADS = """layer L(d, H, K = d / H, eps = 1e-6):
    input x[d]
    param W[d, H, K]; V[H, K, d]
    require H * K == d
    output y[d] = (x @ W) @ V / sqrt(K) + eps
"""


@pytest.mark.parametrize(
    ("sizes", "code"),
    [
        ({"d": -8, "H": 2}, "E0503"),
        ({"d": 8.5, "H": 2}, "E0503"),
        ({"d": "8", "H": 2}, "E0503"),
        ({"d": True, "H": 1}, "E0503"),
        ({"d": float("nan"), "H": 2}, "E0503"),
        ({"d": 10**5000, "H": 2}, "E0503"),
        ({"d": 8, "H": 0}, "E0503"),
        ({"d": 9, "H": 2}, "E0503"),
        ({"d": 8, "H": 2, "K": 3}, "E0504"),
        ({"d": 8}, "E0502"),
        ({"d": 8, "H": 2, "Q": 1}, "E0501"),
        ({"d": 8, "H": 2, "eps": "small"}, "E0207"),
    ],
)
def test_sizes(sizes: dict[str, object], code: str) -> None:
    made = archc.parse(HEADS)
    assert code in codes(lambda: made.module(**sizes))


# --- tensors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "error"),
    [
        (torch.ones(2, 3, 9), ValueError),
        (torch.ones(3, 8), ValueError),
        (torch.ones(2, 3, 4, 8), ValueError),
        (torch.ones(2, 3, 8, dtype=torch.int64), (TypeError, ValueError)),
        (torch.ones(2, 3, 8, dtype=torch.float64), (TypeError, ValueError)),
        (torch.ones(2, 3, 8, device="meta"), ValueError),
        ([[1.0]], (TypeError, ValueError)),
        (None, (TypeError, ValueError)),
    ],
    ids=["dim", "rank 2", "rank 4", "whole numbers", "double", "device", "list", "none"],
)
def test_tensors(x: object, error: type[Exception]) -> None:
    module = archc.parse(HEADS).module(d=8, H=2)
    with pytest.raises(error, match="x"):
        module(x)


MEMORY = """layer L(d, H, K, V):
    input x[d]
    param W_q[d, H, K]; W_k[d, H, K]; W_v[d, H, V]
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    recurrence S[K, V] over H:
        S[t] = S[t-1] + k @ v.T
        o    = S[t].T @ q
    output o
"""


@pytest.fixture(scope="module")
def with_kernels() -> torch.nn.Module:
    return archc.parse(MEMORY).module(d=4, H=2, K=4, V=4, backend="triton")


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"x": torch.ones(1, 20, 5)}, ValueError, "`x`"),
        ({"x": torch.ones(1, 20, 4).double()}, TypeError, "`x`"),
        ({"x": torch.ones(1, 20, 4, device="meta")}, ValueError, "`x` is on meta"),
        ({"cu_seqlens": torch.tensor([0, 12, 7, 20])}, ValueError, "ascend from 0"),
        ({"cu_seqlens": torch.tensor([0, 7, 19])}, ValueError, "ascend from 0"),
        ({"cu_seqlens": torch.tensor([0.0, 20.0])}, TypeError, "integers"),
        ({"cu_seqlens": torch.tensor([[0, 20]])}, ValueError, "N >= 1 sequences"),
        ({"S": torch.ones(1, 3, 4, 4)}, ValueError, r"must be \[1, 2, 4, 4\], got .*1, 3, 4, 4"),
        ({"S": torch.ones(2, 2, 4, 4)}, ValueError, "a batch of 2"),
        ({"S": torch.ones(1, 2, 4, 4, dtype=torch.int64)}, TypeError, "real numbers"),
    ],
)
def test_tensors_of_layers_with_kernels(
    given: dict, error: type[Exception], words: str, with_kernels: torch.nn.Module
) -> None:
    """Refused before anything is launched: sizes, dtypes, devices, borders, heads of a state."""
    state = with_kernels.initial_state(1)
    given = {"x": torch.ones(1, 20, 4), **given}
    state = state._replace(S=given.pop("S")) if "S" in given else state
    with pytest.raises(error, match=words):
        with_kernels(**given, state=state)
