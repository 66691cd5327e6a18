"""`archc compile` and `archc verify`."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import archc
from archc import compile as pipeline
from archc.diagnostics import InternalError
from archc.ir import layer as ir
from archc.verify import measures as forms
from tests.console import BAD, run

pytestmark = pytest.mark.usefixtures("empty_folder")


def test_compile_writes_a_file_that_runs(tmp_path: Path):
    done = run("compile", "gla", "--set", "r=8", "-o", "gla kernel.py")
    assert (done.exit_code, done.stdout) == (0, "")
    text = (tmp_path / "gla kernel.py").read_text("utf-8")
    assert "archc compile gla -o 'gla kernel.py' --set r=8" in text
    ran = subprocess.run(
        [sys.executable, "gla kernel.py"], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "WRONG" not in ran.stdout and ran.stdout.count("ok") >= 3
    assert run("show", "gla", "--stage", "source").stdout.startswith('"""GLA')


def test_compile_check_tells_a_stale_file(tmp_path: Path):
    args = ("compile", "swiglu", "-o", "swiglu.py")
    assert run(*args, "--check").exit_code == 1
    assert list(tmp_path.iterdir()) == []
    assert run(*args).exit_code == 0
    assert run(*args, "--check").exit_code == 0
    (tmp_path / "swiglu.py").write_text("edited")
    assert run(*args, "--check").exit_code == 1
    assert (tmp_path / "swiglu.py").read_text() == "edited"
    assert run("compile", "swiglu", "-o", "-", "--check").exit_code == 2


def test_compile_can_stop_early():
    assert run("compile", "gla", "-o", "-", "--emit", "tree").stdout.startswith("File")
    layer = run("compile", "gla", "-o", "-", "--emit", "layer").stdout
    assert layer == run("show", "gla").stdout


def test_compile_of_a_wrong_spec_writes_nothing(tmp_path: Path):
    done = run("compile", "-", "-o", "out.py", stdin=BAD)
    assert done.exit_code == 1 and "error[E0201]" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_verify_holds_every_form_against_the_meaning():
    done = run("verify", "gla", "--set", "K=3")
    assert done.exit_code == 0
    assert "K = 3" in done.stdout and "WRONG" not in done.stdout
    names = ["whole sequence", "prompt, then the rest", "one token at a time", "gradients"]
    assert all(name in done.stdout for name in names)
    data = json.loads(run("verify", "gla", "--json", "--tokens", "5").stdout)
    assert data["tokens"] == 5
    forms = {form["form"]: form for form in data["forms"]}
    assert {*names, "packed sequences", "whole sequence, chunks of 1", "S: normal form"} <= {*forms}
    assert all(form["right"] for form in forms.values())
    assert all(forms[name]["error"] < 1e-12 for name in names)


def test_verify_finds_a_wrong_number(monkeypatch: pytest.MonkeyPatch):
    """The code computes a relu where the spec has a silu; what is derived of `S` is still right."""
    right = forms.emit
    monkeypatch.setattr(forms, "emit", lambda *told: right(*told).replace("F.silu", "F.relu"))
    done = run("verify", "gla")
    assert done.exit_code == 3
    assert done.stdout.count("WRONG") >= 4
    assert all("ok" in line for line in done.stdout.split("\n") if line.startswith("  S: "))


def test_verify_leaves_out_what_a_layer_cannot_do():
    done = run("verify", "linear_attention_full")
    assert done.exit_code == 0
    assert "token" not in done.stdout.split("float64")[1]


def test_compile_dumps_every_stage(tmp_path: Path):
    done = run("compile", "gla", "-o", "gla.py", "--dump", "stages/gla")
    assert done.exit_code == 0 and "stages/gla: 17 stages written" in done.stderr
    found = {path.name: path.read_text("utf-8") for path in (tmp_path / "stages/gla").iterdir()}
    assert sorted(name.partition("-")[2] for name in found) == sorted([
        "tree.txt", "layer.txt", "simplify.txt", "recurrent.txt", "before_loops.txt",
        "separate.txt", "scales.txt", "absorb.txt", "factors.txt", "vectors.txt", "gates.txt",
        "normal.txt", "chunk.txt", "grad.txt", "plan.txt", "kernels.txt", "source.py",
    ])  # fmt: skip
    for stage in ("tree", "layer", "normal", "chunk", "grad", "plan", "kernels"):
        (name,) = (name for name in found if name.endswith(f"-{stage}.txt"))
        assert found[name] == run("show", "gla", "--stage", stage).stdout, stage
    assert found["17-source.py"] == (tmp_path / "gla.py").read_text("utf-8")


@pytest.mark.slow
def test_a_dump_has_every_pass_for_kernels(tmp_path: Path):
    """In their order, with the chunked forms that they change: the inverse of a chunk goes where
    the state is read."""
    done = run("compile", "delta", "-o", "delta.py", "--backend", "triton", "--dump", "stages")
    assert done.exit_code == 0
    found = sorted(path.name for path in (tmp_path / "stages").iterdir())
    names = [name for name, _ in pipeline.KERNEL_PASSES]
    stages = [name.partition("-")[2].removesuffix(".txt") for name in found]
    assert [stage for stage in stages if stage in names] == names
    texts = {s: (tmp_path / "stages" / n).read_text() for s, n in zip(stages, found, strict=True)}
    for stage in names:
        assert "chunked form of S in Delta" in texts[stage] and "its gradient" in texts[stage]
    assert "recurrence[n](inverse = " not in texts["wide_scans"]
    assert "recurrence[n](inverse = " in texts["inverses"]


def test_every_pass_for_kernels_is_verified(monkeypatch: pytest.MonkeyPatch):
    """A pass that leaves a function of one number with two of them."""

    def wrong(layer: ir.Layer) -> ir.Layer:
        graph = layer.graph.copy()
        id = next(node.id for node in graph if len(node.operands) == 2)
        graph.replace_op(id, ir.Elementwise("neg"))
        return replace(layer, graph=graph)

    passes = (*pipeline.FOR_KERNELS, ("wrong", wrong))
    monkeypatch.setattr(pipeline, "FOR_KERNELS", passes)
    with pytest.raises(InternalError):
        pipeline.for_kernels(pipeline.lowered(archc.load("delta").layer))


@pytest.mark.parametrize(
    ("folder", "says"),
    [
        ("there", "file exists"),
        ("there/below", "there is no folder `there`"),
        ("/proc/stages", "the system makes nothing new in `/proc`"),
    ],
)
def test_a_folder_that_cannot_be_made(tmp_path: Path, folder: str, says: str):
    (tmp_path / "there").write_text("a file")
    done = run("compile", "swiglu", "-o", "swiglu.py", "--dump", folder)
    assert done.exit_code == 1 and "error[E0030]" in done.stderr and says in done.stderr
    assert not (tmp_path / "swiglu.py").exists()


def test_a_folder_holds_the_stages_of_one_compilation(tmp_path: Path):
    """What an earlier one of more stages left is gone; what is somebody's own stays."""
    (tmp_path / "stages").mkdir()
    for name in ("02-tree.txt", "18-places.txt", "24-source.py", "30-notes.txt", "layer.txt"):
        (tmp_path / "stages" / name).write_text("old")
    done = run("compile", "swiglu", "-o", "swiglu.py", "--backend", "eager", "--dump", "stages")
    assert done.exit_code == 0
    found = {path.name: path.read_text("utf-8") for path in (tmp_path / "stages").iterdir()}
    own = {name for name, text in found.items() if text == "old"}
    assert own == {"30-notes.txt", "layer.txt"}
    stages = sorted({*found} - own)
    assert [int(name[:2]) for name in stages] == [*range(1, len(stages) + 1)]


def test_a_dump_is_of_every_stage():
    for more in (("--check",), ("--emit", "layer")):
        done = run("compile", "swiglu", "-o", "swiglu.py", "--dump", "d", *more)
        assert done.exit_code == 2 and "--dump writes every stage" in done.stderr


def test_a_file_that_imports_its_runtime_and_carries_no_check(tmp_path: Path):
    done = run("compile", "gla", "-o", "gla.py", "--runtime", "import", "--no-check")
    text = (tmp_path / "gla.py").read_text("utf-8")
    assert done.exit_code == 0 and "checks it" not in done.stderr
    assert "archc compile gla -o gla.py --runtime import --no-check" in text
    assert "from archc.runtime.ops import (" in text and "def few(" not in text
    assert "check_values" not in text and "__main__" not in text and "Run this file" not in text
    assert "all outputs and gradients, against the meaning" in " ".join(text.split())
    assert run("compile", "gla", "-o", "g.py", "--runtime", "link").exit_code == 2


@pytest.mark.slow
def test_a_file_that_imports_its_runtime_checks_itself():
    assert run("compile", "swiglu", "-o", "swiglu.py", "--runtime", "import").exit_code == 0
    ran = subprocess.run(
        [sys.executable, "swiglu.py"], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0 and "WRONG" not in ran.stdout and ran.stdout.count("ok") >= 2
