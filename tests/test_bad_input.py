"""Bad input of every kind: a clear error with its code and exit status, at once."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import archc
from archc.diagnostics import ArchError
from tests.console import process
from tests.elaborate.specs import codes

HEAD = "layer L(d):\n    input x[d]\n"


@contextmanager
def at_once(limit: float = 1.0) -> Iterator[None]:
    """Processor time, which other programs on the machine hardly change."""
    start = time.process_time()
    yield
    assert time.process_time() - start < limit


HOSTILE = {
    "empty": ("", {"E0010"}),
    "blank": ("\n\n   \n", {"E0010"}),
    "truncated": ("layer L(d):\n    input x[d", {"E0018", "E0014"}),
    "prose": ("Dear compiler, please write a layer.\n", {"E0011"}),
    "ten megabytes": ("#" * 10_000_000, {"E0005"}),
    "many lines": (HEAD + "    a = x\n" * 20_000, {"E0005", "E0210"}),
    "brackets": (f"{HEAD}    output y[d] = {'(' * 10_000}x{')' * 10_000}\n", {"E0007"}),
    "open brackets": (f"{HEAD}    output y[d] = {'(' * 10_000}\n", {"E0007"}),
    "indentation": (
        "layer L(d):\n" + "".join(f"{' ' * i}a:\n" for i in range(300)),
        {"E0005", "E0007"},
    ),
    "a sum of 10,000": (
        f"{HEAD}    output y[d] = {' + '.join(['x'] * 10_000)}\n",
        {"E0005", "E0007"},
    ),
    "minus signs": (f"{HEAD}    output y[d] = {'-' * 10_000}x\n", {"E0007"}),
    "a large number": (f"{HEAD}    output y[d] = x * {'9' * 10_000}\n", {"E0016"}),
    "a large power": (f"{HEAD}    output y[d] = x * 9 ** 9 ** 9 ** 9\n", {"E0404"}),
    "control characters": (f"{HEAD}    output y[d] = x\x07\n", {"E0006"}),
    "tabs": ("layer L(d):\n\tinput x[d]\n\toutput y[d] = x\n", {"E0006"}),
    "undeclared": (f"{HEAD}    output y[d] = x @ W\n", {"E0201"}),
    "twice": (f"{HEAD}    a = x\n    a = x + 1\n    output y[d] = a\n", {"E0210"}),
    "a cycle": (f"{HEAD}    a = b\n    b = a\n    output y[d] = a\n", {"E0203"}),
    "a wrong dim": (f"{HEAD}    param W[e, d]\n    output y[d] = x @ W\n", {"E0202"}),
    "dims that differ": (
        "layer L(d, e):\n    input x[d]\n    param W[e, d]\n    output y[d] = x @ W\n",
        {"E0301"},
    ),
    "attributes": (f"{HEAD}    output y[d] = x.__class__\n", {"E0012"}),
    "a call of Python": (f"{HEAD}    output y[d] = __import__(x)\n", {"E0015"}),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_specs(kind: str) -> None:
    text, expected = HOSTILE[kind]
    with at_once():
        found = codes(text)
    assert found and set(found) <= expected


@pytest.mark.parametrize("backwards", [False, True])
def test_long_chains_of_names(backwards: bool) -> None:
    """In order they are just long; backwards each waits for the next, and that has a bound."""
    lines = [f"    a{i} = {f'a{i - 1}' if i else 'x'} + 1" for i in range(1000)]
    lines = lines[::-1] if backwards else lines
    text = f"{HEAD}{chr(10).join(lines)}\n    output y[d] = a999\n"
    with at_once(8.0):
        found = codes(text)
    assert set(found) <= ({"E0208"} if backwards else set())


def test_imports_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a.arch").write_text('import B from "b.arch"\n' + HEAD + "    output y[d] = x\n")
    (tmp_path / "b.arch").write_text(
        'import L from "a.arch"\n' + HEAD.replace("L", "B") + "    output y[d] = x\n"
    )
    with pytest.raises(ArchError, match="E0219"):
        archc.load(str(tmp_path / "a.arch"))


def test_files_that_are_no_specs(tmp_path: Path) -> None:
    (tmp_path / "binary.arch").write_bytes(bytes(range(256)))
    (tmp_path / "huge.arch").write_bytes(b"#" * 10_000_000)
    for name, code in (
        ("none.arch", "E0001"),
        (".", "E0002"),
        ("binary.arch", "E0004"),
        ("huge.arch", "E0005"),
    ):
        with at_once(), pytest.raises(ArchError, match=code):
            archc.load(str(tmp_path / name))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_no_permission(tmp_path: Path) -> None:
    path = tmp_path / "closed.arch"
    path.write_text(HEAD)
    path.chmod(0)
    with pytest.raises(ArchError, match="E0003"):
        archc.load(str(path))


def test_sizes_that_are_none() -> None:
    for sizes in ({"H": -1}, {"H": 2.5}, {"H": "x"}, {"H": [2]}, {"h": 2}, {}):
        with pytest.raises(ArchError):
            archc.load("kda").module(**{"d": 8, **sizes})


def test_sizes_that_break_a_condition() -> None:
    with pytest.raises(ArchError, match="H % G == 0"):
        archc.load("attention").module(d=24, H=6, G=4)
    with pytest.raises(ArchError, match="R % 2 == 0"):
        archc.load("mla").module(d=8, H=2, K=4, R=3, V=4, C=4, Q=4)
    with pytest.raises(ArchError):
        archc.load("attention").module(d=7, H=2)


def test_tensors_of_another_shape_type_or_device() -> None:
    layer = archc.load("linear_attention_simple").module(d=8, H=2)
    wrong = [
        (torch.randn(2, 3, 7), ValueError, "d = 8"),
        (torch.randn(3, 8), ValueError, r"\[B, T, d\]"),
        (torch.randn(2, 3, 8, dtype=torch.float64), TypeError, "float64"),
        (torch.zeros(2, 3, 8, dtype=torch.int64), TypeError, "real numbers"),
        (torch.randn(2, 3, 8, device="meta"), ValueError, "meta"),
        ("x", TypeError, "must be a tensor"),
    ]
    for value, error, says in wrong:
        with pytest.raises(error, match=says):
            layer(value)
    _, state = layer(torch.randn(2, 3, 8), return_state=True)
    with pytest.raises(ValueError, match="batch"):
        layer(torch.randn(3, 1, 8), state=state)


def test_a_command_that_fails_writes_nothing(tmp_path: Path) -> None:
    spec, out = tmp_path / "bad.arch", tmp_path / "out.py"
    spec.write_text(f"{HEAD}    output y[d] = x @ W\n")
    done = process("compile", str(spec), "-o", str(out))
    assert done.returncode == 1 and "E0201" in done.stderr
    assert "Traceback" not in done.stderr and not done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.arch"]
    done = process("compile", "kda", "-o", str(tmp_path / "no" / "such" / "folder.py"))
    assert done.returncode in (1, 2) and "Traceback" not in done.stderr
