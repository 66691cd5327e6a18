"""The search: what is right is timed, what is wrong or fails is left out with its reason."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from archc.bench.workers import Workers
from archc.commands.bench import SHAPES
from archc.commands.tune import told
from archc.tune.candidates import Candidate
from archc.tune.search import Found, SearchFailed, search
from tests.bench.test_report import JOB
from tests.console import run

WORKER = """
    import json, os, pathlib, signal, sys
    mode, path, out, *rest = sys.argv[1:]
    shipped = json.loads(pathlib.Path(path).with_name("shipped.json").read_text())
    rows = []
    threads = os.environ["OMP_NUM_THREADS"]
    assert threads == ("1" if mode == "check" else "several"), "checks go side by side"
    if mode == "check":
        for name in rest:
            if name == "16:1":
                os.kill(os.getpid(), signal.SIGABRT)
            wrong = shipped if name == "shipped" else ["o: 1.0e-01"] if name == "8:1" else []
            rows.append({"candidate": name, "wrong": wrong})
            if name == "2:1":
                rows[-1] = {"candidate": name, "refused": "OutOfResources: shared memory"}
    elif mode == "time":
        taken = {"shipped": [2.0], "4:1": [1.0], "8:1": [0.1], "16:1": [0.1], "2:1": [0.1]}
        times = {"walk": {"few": {name: taken[name] for name in rest}}}
        rows = [{"times": times, "sources": {"walk": "aa"}, "machine": {"device": "a GPU"}}]
    else:
        table = json.loads(pathlib.Path(rest[0]).read_text())
        assert table == {"walk": {"few": {"num_warps": 4, "num_stages": 1}}}
        together = json.loads(pathlib.Path(path).with_name("together.json").read_text())
        rows = [{"wrong": [], "faster": together}]
    pathlib.Path(out).write_text("".join(json.dumps(row) + chr(10) for row in rows))
"""


FASTER = {"forward": 1.5, "backward": 0.997}


def found_by(
    monkeypatch: pytest.MonkeyPatch, folder: Path, shipped_wrong: list[str],
    together: Mapping[str, float] = FASTER,
) -> Found:  # fmt: skip
    (folder / "together.json").write_text(json.dumps(together))
    (folder / "a_searching_worker.py").write_text(textwrap.dedent(WORKER))
    (folder / "shipped.json").write_text(json.dumps(shipped_wrong))
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("OMP_NUM_THREADS", "several")
    start = Workers.__init__
    monkeypatch.setattr(
        Workers, "__init__", lambda self, where, module: start(self, where, "a_searching_worker")
    )
    candidates = [Candidate(warps, 1) for warps in (2, 4, 8, 16)]
    return search(replace(JOB, folder=str(folder)), lambda text: None, 20.0, candidates, cores=5)


def test_the_best_of_those_that_are_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = found_by(monkeypatch, tmp_path, [])
    assert found.settings == {("walk", "few"): Candidate(4, 1)}
    assert found.left_out == {
        "2:1": "OutOfResources: shared memory",
        "8:1": "wrong: o: 1.0e-01",
        "16:1": "its process was ended by signal 6",
    }
    lines = "\n".join(told(found))
    assert "2000.000 ms as shipped, 1000.000 ms with {'num_warps': 4, 'num_stages': 1}" in lines
    assert "forward together: 1.50 times" in lines and "8:1 (warps:stages): wrong" in lines


@pytest.mark.parametrize("times", [(1.2, 0.99), (1.004, 1.0)])
def test_what_is_not_faster_together_is_dropped(
    times: tuple[float, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = found_by(monkeypatch, tmp_path, [], dict(zip(FASTER, times, strict=True)))
    assert not found.settings and found.faster["forward"] == times[0]
    assert "not faster together: the shipped settings stay" in "\n".join(told(found))


def test_shipped_settings_that_are_wrong_end_the_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SearchFailed, match=r"the shipped settings: wrong: d q: 1\.0e\+00"):
        found_by(monkeypatch, tmp_path, ["d q: 1.0e+00"])


@pytest.mark.parametrize(
    ("asked", "tried"),
    [([], [SHAPES["cuda"]]), (["1,64,2,16", "2,32,2,16"], [(1, 64, 2, 16), (2, 32, 2, 16)])],
)
def test_shapes_that_are_asked_for_or_those_of_the_benchmark(
    asked: list[str], tried: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that finds nothing, in place of one on a GPU."""
    found = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("archc.bench.subject.subject", lambda spec, shape, *rest: shape)
    monkeypatch.setattr("archc.tune.search.search", lambda shape, *rest: found.append(shape))
    monkeypatch.setattr("archc.commands.tune.told", lambda each: [])
    monkeypatch.setattr("archc.commands.tune._write", lambda *given: None)
    options = [word for shape in asked for word in ("--shapes", shape)]
    assert run("tune", "gla", *options).exit_code == 0 and found == tried
