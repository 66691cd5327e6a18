"""`archc bench` on a CPU, where the generated file runs its eager form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands.json_page import as_promised
from tests.console import run

pytestmark = pytest.mark.usefixtures("empty_folder")

SPEC = """
layer Sum(d, H, K, V):
    input x[d]
    param W_q, W_k[d, H, K]; W_v[d, H, V]; W_a[d, H]; W_o[H, V, d]
    q = x @ W_q
    k = l2norm[K](x @ W_k)
    v = x @ W_v
    a = sigmoid(x @ W_a)
    recurrence S[K, V] over H:
        S[t] = a * S[t-1] + k @ v.T
        o    = S[t].T @ q
    output y[d] = o @ W_o
"""

PEERS = """
import torch
from archc.bench.contenders import Peer

def loop(off):
    def step(inputs, states):
        q, k, v, a = (inputs[name][:, 0] for name in ("q", "k", "v", "log_a"))
        new = a.exp()[..., None, None] * states[0] + off * k[..., None] * v[..., None, :]
        return (torch.einsum("bhk,bhkv->bhv", q, new)[:, None],), (new,)

    def sequence(inputs, final):
        states, made = (inputs["q"].new_zeros(1, 2, 8, 8),), []
        for t in range(inputs["q"].shape[1]):
            (o,), states = step({n: x[:, t : t + 1] for n, x in inputs.items()}, states)
            made.append(o)
        return (torch.cat(made, 1),), states

    return Peer(sequence, step)

def refuses(inputs, final):
    if any(x.requires_grad for x in inputs.values()):
        raise RuntimeError("no gradients here")
    return loop(1.0).sequence(inputs, final)

def missing(inputs, final):
    import a_package_that_nobody_has

PEERS = {
    "right": {"sum": loop(1.0)}, "wrong": {"*": loop(1.01)}, "refuses": {"sum": Peer(refuses)},
    "missing": {"sum": Peer(missing)}, "other": {"another_spec": loop(1.0)},
}
"""


def test_ours_and_peers_in_one_run(tmp_path: Path) -> None:
    Path("sum.arch").write_text(SPEC)
    Path("peers.py").write_text(PEERS)
    done = run(
        "bench", "sum.arch", "--device", "cpu", "--shapes", "1,40,2,8", "--peers", "peers.py",
        "--against", "right,wrong,refuses,missing,other", "--what", "forward,backward,decode",
        "--batches", "1", "--seconds", "0.02", "--no-first-call", "-o", "out.json",
        "--plot", "p.png",
    )  # fmt: skip
    assert done.exit_code == 0, done.stdout + done.stderr
    for told in (
        "sum, forward, wrong: WRONG: o is off by",
        "sum, forward + backward, wrong: WRONG: d q is off by",
        "sum, forward, wrong: o is 1.0e-02 apart from ours at the full shape",
        "sum, decode, wrong: WRONG: o is off by",
        "sum, forward + backward, refuses: refused: RuntimeError: no gradients here",
        "missing: refused: ModuleNotFoundError: No module named 'a_package_that_nobody_has'",
        "other has nothing for sum",
    ):
        assert told in done.stdout, done.stdout
    assert "right: WRONG" not in done.stdout and "ours: WRONG" not in done.stdout
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    data = json.loads((tmp_path / "out.json").read_text())
    assert {"command", "commit", "date", "machine", "versions"} <= {*data}
    forward, both, decode = data["cases"]
    assert [case["what"] for case in data["cases"]] == ["forward", "forward + backward", "decode"]
    by = {entry["contender"]: entry for entry in forward["entries"]}
    assert 0 < by["ours"]["low"] <= by["ours"]["milliseconds"] <= by["ours"]["high"]
    assert by["right"]["ours_faster"] > 0 and by["right"]["errors"]["o"] < 1e-6
    assert {*both["entries"][0]["errors"]} == {"d q", "d k", "d v", "d log_a"}
    assert {*decode["entries"][0]["errors"]} == {"o", "S"}
    # q, k, v read, o written, in 4 bytes: 40 tokens, 2 heads, dims of 8; the gates; the last state
    assert forward["least"]["bytes"] == 4 * (40 * 2 * (4 * 8 + 1) + 2 * 8 * 8)
    whole = json.loads(run("bench", "--again", "out.json", "--json").stdout)
    assert as_promised("bench mine.arch --json", whole)
    again = run("bench", "--again", "out.json")
    assert again.exit_code == 0 and "wrong: WRONG" in again.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("swiglu", "--device", "cpu"), "no recurrence or attention"),
        (("gla", "--what", "sideways"), "`sideways` is none of forward, backward, decode"),
        (("gla", "--shapes", "1,2,3"), "has 3 numbers"),
        (("gla", "--shapes", "1,2,3,0"), "is not B,T,H,D"),
        ((), "Give a SPEC"),
        (("gla", "--prepare"), "name it with --keep"),
        (("no_such_row", "--all", "--device", "cpu"), "has no such row"),
        (("mlstm", "--all", "--other-shapes", "--device", "cpu"), "has no such row"),
        (("gla", "--other-shapes"), "--other-shapes chooses rows of --all"),
    ],
)
def test_wrong_use(arguments: tuple[str, ...], told: str) -> None:
    done = run("bench", *arguments)
    assert done.exit_code == 2 and told in done.stderr, done.stderr


@pytest.mark.slow
def test_what_is_prepared_is_measured_later(tmp_path: Path) -> None:
    Path("sum.arch").write_text(SPEC)
    Path("peers.py").write_text(PEERS)
    asked = (
        "bench", "sum.arch", "--device", "cpu", "--shapes", "1,16,2,8", "--peers", "peers.py",
        "--against", "right,eager", "--what", "forward", "--keep", "kept", "--no-first-call",
        "--seconds", "0.02", "--commit", "abc", "-o", "out.json",
    )  # fmt: skip
    assert run(*asked, "--prepared").exit_code == 0 and not (tmp_path / "out.json").exists()
    made = run(*asked, "--prepare", "--jobs", "2")
    assert made.exit_code == 0 and "compiling what 2 contenders of 1 rows launch" in made.stderr
    assert run(*asked, "--prepared", "--within", "1").exit_code == 0
    data = json.loads((tmp_path / "out.json").read_text())
    (case,) = data["cases"]
    assert {each["contender"] for each in case["entries"]} == {"ours", "right", "eager"}
    assert data["commit"] == "abc" and len(data["done"]) == 1
    again = run(*asked, "--prepared")
    assert "out.json has 1 of them; 0 are left" in again.stderr


LAYERS = """
import torch
from torch import nn

class Other(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.inner = nn.Linear(d, d)

    def forward(self, x):
        return self.inner(x), None

PEERS = {}
LAYERS = {"linear": {"sum": lambda sizes: Other(sizes["d"])}}
"""


@pytest.mark.slow
def test_a_whole_layer_beside_that_of_a_peer(tmp_path: Path) -> None:
    Path("sum.arch").write_text(SPEC)
    Path("peers.py").write_text(LAYERS)
    done = run(
        "bench", "sum.arch", "--device", "cpu", "--shapes", "2,80,2,8", "--peers", "peers.py",
        "--against", "eager,linear,nobody", "--what", "layer", "--seconds", "0.02",
        "--no-first-call", "-o", "out.json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stdout + done.stderr
    assert "sum, layer: tokens a second: ours" in done.stdout
    assert "nobody has no layer for sum" in done.stdout
    forward, both = json.loads((tmp_path / "out.json").read_text())["cases"]
    assert (forward["what"], both["what"]) == ("layer", "layer + backward")
    assert {e["contender"] for e in both["entries"]} == {"ours", "eager", "linear"}
    assert forward["entries"][0]["errors"]["y"] < 1e-5
    assert both["entries"][0]["errors"]["d x"] < 1e-5
    # 2 x 80 tokens; W_q, W_k, W_v, W_o of 16 x 16 and W_a of 16 x 2, a multiply and an add each
    assert forward["least"]["flops"] == 2 * 80 * 2 * (4 * 256 + 32)
