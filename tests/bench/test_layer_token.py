"""One token through a whole layer, beside that of a peer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from archc.algebra.cut import NoMemory
from archc.bench.job import OURS, Job
from archc.bench.layer_token import everything, measure_tokens, one_token
from archc.bench.processes import Outcome
from archc.bench.report import notes, report
from archc.bench.subject import Request

SPEC = """layer Sum(d, H, K, V):
    input x[d]
    param W_q, W_k[d, H, K]; W_v[d, H, V]; W_o[H, V, d]
    q = x @ W_q
    k = x @ W_k
    v = x @ W_v
    recurrence S[K, V] over H:
        S[t] = 0.9 * S[t-1] + k @ v.T
        o    = S[t].T @ q
    output y[d] = o @ W_o
"""

PEERS = """
from torch import nn
PEERS = {}
LAYERS = {"linear": {"sum": lambda sizes: nn.Linear(sizes["d"], sizes["d"])}}
TOKENS = {"linear": lambda layer, before: layer if before.shape[1] == 64 else None}
"""


def asked(tmp_path: Path) -> Request:
    (tmp_path / "sum.arch").write_text(SPEC)
    (tmp_path / "peers.py").write_text(PEERS)
    peers = str(tmp_path / "peers.py")
    return Request(("token",), ("linear", "nobody"), (1, 3), peers, "cpu", "float32", 0.02, {})


def test_a_token_is_timed_beside_that_of_a_peer_and_held_against_float64(tmp_path: Path) -> None:
    request = asked(tmp_path)
    job = one_token(str(tmp_path / "sum.arch"), (2, 80, 2, 8), request, tmp_path / "job")
    assert Job.read(job.write()) == job and job.whole
    rows = list[dict[str, Any]]()
    measure_tokens(job, rows.append, {})
    found = report([Outcome(job, {}, rows)])
    assert [(case.what, case.shape[:2]) for case in found.cases] == [
        ("layer, one token", (1, 1)), ("layer, one token", (3, 1)),
    ]  # fmt: skip
    for case in found.cases:
        ours, linear, nobody = case.entries
        assert ours.errors["y"] < 1e-5 and not ours.wrong
        assert (linear.contender, nobody.contender) == ("linear", "nobody")
        assert linear.milliseconds and "no form for one token" in nobody.refusal
    # weights of float32 are read once; of each of 2 heads a state of 8 x 8 is read and written
    assert found.cases[1].least.bytes == 4 * 4 * 256 + 3 * 2 * 4 * 2 * 64
    assert any("sum, layer, one token: tokens a second: ours" in line for line in notes(found))
    assert len([*everything(job, OURS)]) == 3


def test_a_layer_that_keeps_every_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoMemory, match="no token of Attention is timed: it keeps every token"):
        one_token("attention", (1, 8, 2, 8), asked(tmp_path), tmp_path)
