"""`archc show`, and how files are written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from archc.specfile import read, split
from tests.console import BAD, run

pytestmark = pytest.mark.usefixtures("empty_folder")


@pytest.mark.parametrize(
    ("form", "start"),
    [
        ("text", "layer KDA("), ("json", "{"), ("dot", "digraph "), ("mermaid", "flowchart TD"),
        ("svg", "<svg "),
    ],
)  # fmt: skip
def test_show_a_layer(form: str, start: str, tmp_path: Path):
    shown = run("show", "kda", "--as", form)
    assert shown.exit_code == 0
    assert shown.stdout.startswith(start)
    assert run("show", "kda", "--as", form, "-o", "out").stdout == ""
    assert (tmp_path / "out").read_text("utf-8") == shown.stdout


def test_show_a_tree():
    assert run("show", "kda", "--stage", "tree").stdout.startswith("File")
    data = json.loads(run("show", "kda", "--stage", "tree", "--as", "json").stdout)
    assert data["decls"][0]["name"] == "KDA"


def test_show_what_cannot_be_shown():
    done = run("show", "kda", "--stage", "tree", "--as", "svg")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "it can as text, json" in done.stderr
    done = run("show", "kda", "--stage", "kernel")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "'kernel' is not one of 'tree', 'layer'" in done.stderr


def test_nothing_is_half_written(tmp_path: Path):
    """A spec with errors, a folder, a missing folder: the old file stays, and no other appears."""
    (tmp_path / "old").write_text("old")
    (tmp_path / "folder").mkdir()
    assert run("show", "-", "-o", "old", stdin=BAD).exit_code == 1
    for output, says in (("folder", "is a folder"), ("no/such", "no folder"), ("a\0", "null")):
        done = run("show", "kda", "-o", output)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "error[E0030]" in done.stderr and says in done.stderr
    assert (tmp_path / "old").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "old"]


def test_a_replaced_file_keeps_its_mode_and_its_links(tmp_path: Path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    run("show", "kda", "-o", "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text().startswith("layer KDA(")
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640


def test_output_to_a_device():
    assert run("show", "kda", "-o", "/dev/null").exit_code == 0


@pytest.mark.parametrize(
    ("stage", "says"),
    [
        ("normal", "S = S' + k (beta v - (beta k . S'))\n    %15 = (q . S)\n"),
        ("chunk", "-- along the chunks"),
        ("grad", "saved for the gradient, bytes a token in float32:"),
    ],
)
def test_show_a_derivation(stage: str, says: str):
    shown = run("show", "kda", "--stage", stage)
    assert shown.exit_code == 0 and says in shown.stdout
    (data,) = json.loads(run("show", "kda", "--stage", stage, "--as", "json").stdout)
    assert (data["layer"], data["states"], data["where"]) == ("KDA", ["S"], "kda.arch:18")


def test_stages_of_a_chunked_form():
    """What waits stands between what does not, in the form and in its gradient."""
    for stage in ("chunk", "grad"):
        shown = run("show", "kda", "--stage", stage).stdout
        titles = [line.strip() for line in shown.split("\n") if line.startswith("  -- ")]
        assert titles == [
            "-- given", "-- for all chunks at once, before the state", "-- along the chunks",
            "-- for all chunks at once, after",
        ]  # fmt: skip


def test_show_a_plan():
    """Kernels and their costs, for the sizes that are asked for."""
    asked = ("--set", "B=1", "--set", "T=256", "--set", "d=64", "--set", "H=2")
    shown = run("show", "gla", "--stage", "plan", *asked).stdout
    assert shown.startswith("kernels of S in GLA  # gla.arch:")
    assert "on one H200, in bfloat16, in chunks of 64: B=1 T=256 H=2 K=16 V=32" in shown
    (data,) = json.loads(run("show", "gla", "--stage", "plan", *asked, "--as", "json").stdout)
    titles = ["forward", "inference", "gradient", "one token"]
    assert [part["title"] for part in data["parts"]] == titles
    assert data["sizes"]["T"] == 256
    refused = run("show", "gla", "--stage", "plan", "--set", "device=B2")
    assert refused.exit_code == 1 and "error[E0503]" in refused.stderr


def test_sizes_of_a_layer_are_its_own_whatever_their_names():
    text = """
layer Own(H, T):
    input a[H], k[H, T]
    recurrence s[T] over H:
        s[t] = exp(-a * a) * s[t-1] + k
        o = s[t]
    output o
"""
    asked = ("--stage", "plan", "--set", "T=24", "--set", "B=3", "--as", "json")
    (data,) = json.loads(run("show", "-", *asked, stdin=text).stdout)
    assert data["sizes"]["T"] == 24 and data["sizes"]["batch"] == 3
    assert " B=3 T=8192 H=32 T=24" in run("show", "-", *asked[:-2], stdin=text).stdout


def test_a_loop_is_said_to_be_one():
    shown = run("show", "lstm", "--stage", "chunk")
    assert "a loop over the tokens: `c` and `h`, as `sigmoid` of a state" in shown.stdout
    assert shown.stderr == "", "the spec says that it is meant"
    rule = "    chunk: sequential\n    recurrence"
    text = read(split("gla")[0]).text.replace("    recurrence", rule)
    shown = run("show", "-", "--stage", "chunk", stdin=text)
    assert "a loop over the tokens: `S`, as the spec says `chunk: sequential`" in shown.stdout


def test_show_kernels_as_tile_programs():
    shown = run("show", "gla", "--stage", "kernels").stdout
    assert "\ngla_memory_step: " in shown and "\n  for each batch < B\n" in shown
    (line,) = re.findall(r" +alpha_S: .*", shown)
    assert re.fullmatch(r" +alpha_S: f32\[K, V\] = alpha \* S_\d +# gla.arch:17", line)
    shown = run("show", "swiglu", "--stage", "kernels").stdout
    assert shown.startswith("swiglu_y_in_values_kernel: ")
    done = run("show", "gla", "--stage", "assembly")
    assert done.exit_code == 2 and "'kernels'" in done.stderr and "'assembly'" in done.stderr
