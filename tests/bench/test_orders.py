"""Jobs that are made side by side, each once; the rows of a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import archc
from archc.bench import orders
from archc.bench.contenders import Row, borders, rows_of
from archc.bench.orders import Order, make
from archc.bench.record import peers_file
from archc.bench.report import title_of
from archc.bench.subject import Request, sizes_at
from tests.bench.test_report import JOB

SPEC = """
layer Sum(d, H, K, V):
    input x[d]
    param W_q, W_k[d, H, K]; W_v[d, H, V]
    q = l2norm[K](x @ W_q)
    k = x @ W_k
    v = x @ W_v
    recurrence S[K, V] over H:
        S[t] = S[t-1] + k @ v.T
        o    = S[t].T @ q
    output o
"""
ASKED = Request(("forward",), (), (1,), None, "cpu", "float32", 1.0, {})
SHAPE = (1, 8, 2, 4)


@pytest.fixture(name="order")
def order_of(tmp_path: Path) -> Order:
    """An order of a spec that is there."""
    (tmp_path / "sum.arch").write_text(SPEC)
    return Order(str(tmp_path / "sum.arch"), SHAPE, ASKED)


def test_what_was_made_is_made_once(order: Order, tmp_path: Path) -> None:
    job = order.job(tmp_path)
    before = (Path(job.folder) / "ours.py").stat().st_mtime_ns
    later = replace(order, asked=replace(ASKED, against=("left",), seconds=3.0))
    again = later.job(tmp_path)
    assert again == replace(job, against=("left",), seconds=3.0)
    assert (Path(job.folder) / "ours.py").stat().st_mtime_ns == before


@pytest.mark.parametrize("what", ["spec", "shape", "fused", "given", "compiler", "import"])
def test_what_changes_a_job_makes_it_anew(
    what: str, order: Order, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = order.place(tmp_path)
    if what == "spec":
        Path(order.spec).write_text(SPEC.replace("l2norm[K](x @ W_q)", "x @ W_q"))
    elif what == "import":
        (tmp_path / "other.arch").write_text(SPEC)
    elif what == "compiler":
        monkeypatch.setattr(orders, "compiler", lambda: "another")
    elif what == "shape":
        order = replace(order, shape=(2, 8, 2, 4))
    else:
        asked = replace(ASKED, fused=True) if what == "fused" else replace(ASKED, given={"K": 3})
        order = replace(order, asked=asked)
    assert order.place(tmp_path) != before


@pytest.mark.slow
def test_side_by_side_and_as_written(order: Order, tmp_path: Path) -> None:
    fused = replace(order, asked=replace(ASKED, fused=True, packed=2))
    said: list[str] = []
    make([order, fused], tmp_path, said.append, 2)
    assert said == ["compiling 2 specs"] and order.made(tmp_path) and fused.made(tmp_path)
    job = fused.job(tmp_path)
    assert (job.title, job.called, job.packed) == ("sum fused", "sum fused packed 2", 2)
    assert title_of(job) == "sum fused packed 2 1x8x2x4 float32"


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        ("slstm", {"d": 2048, "H": 4, "D": 512}), ("lstm", {"d": 2048, "D": 2048}),
        ("kda", {"d": 2048, "H": 4, "K": 512, "V": 512}),
    ],
)  # fmt: skip
def test_sizes_of_heads_and_of_channels(spec: str, sizes: dict[str, int]) -> None:
    found = sizes_at(archc.load(spec).layer, (16, 1024, 4, 512), {})
    assert {name: found[name] for name in sizes} == sizes


def test_borders_are_those_of_so_many_sequences() -> None:
    job = replace(JOB, packed=5)
    found = borders(job, 40)
    assert found is borders(job, 40) and len(found) == 6
    assert found[0] == 0 and found[-1] == 40 and bool((found.diff() > 0).all())


def test_rows_of_a_table_and_of_a_file_without_one(tmp_path: Path) -> None:
    (tmp_path / "peers.py").write_text("PEERS = {'a': {'x': 1, '*': 1}, 'b': {'x': 1, 'y': 1}}")
    found = rows_of(str(tmp_path / "peers.py"), ("b", "a"), ("forward", "layer"))
    assert [(row.spec, row.what, row.beside) for row in found] == [
        ("x", ("forward",), ("b", "a")), ("y", ("forward",), ("b",))
    ]  # fmt: skip
    rows = rows_of(peers_file(), ("fla", "flash_qla"), ("forward", "backward", "decode"))
    first = {row.title: row.beside for row in reversed(rows) if row.shape is None}
    assert first["gated_delta"] == ("fla", "flash_qla", "fla-unguarded")
    assert first["kda fused"] == ("fla",) and first["lstm"] == ("cudnn",)
    assert Row("kda", what=("decode",), batches=(64, 256), beside=("fla",)) in rows
    layers = rows_of(peers_file(), ("fla", "compile"), ("layer",))
    assert {row.what for row in layers} == {("layer",)}
    assert all("compile" in row.beside for row in layers)
