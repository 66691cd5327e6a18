"""Contenders against the oracle: the eager form is right, and what is off is seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from archc.bench import whole
from archc.bench.contenders import Inputs, Made, Peer, contender
from archc.bench.errors import LIMITS, Oracle
from archc.bench.job import BACKWARD, Job
from archc.bench.subject import Request, subject

SPEC = """layer Two(d, H = 2, K = 4):
    input x[d]
    param W_k[d, H, K]; W_a[d, H]; W_g[d, H]
    k = x @ W_k
    a = sigmoid(x @ W_a)
    g = x @ W_g
    recurrence S[K] over H:
        S[t] = a * S[t-1] + k
        o    = S[t] * k
        r    = g * S[t]
    output y[H, K] = o
    output z[H, K] = r
"""
"""Nothing of the first output depends on g."""


JOINED = """layer Joined(H, N, M = N / 2):
    require 2 * M == N
    input u[H, M], v[H, M]
    recurrence a[M] over H:
        a[t] = a[t-1] + u
        r    = a[t]
    k = join[M, M as N](r, v)
    recurrence S[N, M] over H:
        S[t] = 0.5 * S[t-1] + k[t-1] @ v.T
        o    = S[t].T @ k
    output o
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("two")
    (folder / "two.arch").write_text(SPEC)
    asked = Request(("forward", BACKWARD), (), (3,), None, "cpu", "float64", 1.0, {})
    return subject(str(folder / "two.arch"), (2, 40, 2, 4), asked, folder / "job")


@pytest.fixture(scope="module")
def oracle(job: Job) -> Oracle:
    made = Oracle(job)
    made.sequence()
    return made


def limits(oracle: Oracle, names: Sequence[str]) -> dict[str, float]:
    return {name: oracle.limit(name) for name in names}


def test_the_eager_form_is_right(job: Job, oracle: Oracle) -> None:
    """Outputs, the state, gradients of what the first output depends on, and one token more."""
    eager = contender("eager", job)
    values, slopes = oracle.errors(eager, "forward"), oracle.errors(eager, BACKWARD)
    assert {*values} == {*job.outputs, *job.states} and len(job.outputs) == 2
    entering = {each.name for each in job.enters}
    (unread,) = entering - {name.removeprefix("d ") for name in slopes}
    assert unread in entering and len(slopes) == len(entering) - 1
    inputs = {name: x[:, :1] for name, x in oracle.inputs.items()}
    steps = oracle.step_errors(eager, inputs, oracle.states)
    assert {*steps} == {*values}
    for found in (values, slopes, steps):
        assert all(error < oracle.limit(name) for name, error in found.items()), found


def test_sizes_of_no_input_and_tokens_kept_beside_states(tmp_path: Path) -> None:
    """A memory whose width is the sum of two inputs', and which keeps the token before."""
    (tmp_path / "joined.arch").write_text(JOINED)
    asked = Request(("forward",), (), (3,), None, "cpu", "float64", 1.0, {})
    job = subject(str(tmp_path / "joined.arch"), (2, 5, 2, 4), asked, tmp_path / "job")
    oracle = Oracle(job)
    oracle.sequence()
    found = oracle.errors(contender("eager", job), "forward")
    assert {*found} == {"o", "a", "S"}
    assert all(error < oracle.limit(name) for name, error in found.items()), found


@pytest.mark.parametrize("place", [0, 1])
def test_what_is_off_is_seen(job: Job, oracle: Oracle, place: int) -> None:
    """By one part in a million, in any output; in the gradient, where the first one is."""
    eager = contender("eager", job)

    def sequence(inputs: Inputs, final: bool) -> Made:
        outputs, states = eager.sequence(inputs, final)  # type: ignore[misc]
        return tuple(x * (1 + 1e-6 * (at == place)) for at, x in enumerate(outputs)), states

    off = Peer(sequence)
    found = {**oracle.errors(off, "forward"), **oracle.errors(off, BACKWARD)}
    wrong = {name for name, error in found.items() if not error < oracle.limit(name)}
    slopes = {name for name in found if name.startswith("d ")}
    assert wrong == {job.outputs[place], *(slopes if place == 0 else ())}


def test_what_is_missing_is_infinitely_off(job: Job, oracle: Oracle) -> None:
    def sequence(inputs: Inputs, final: bool) -> Made:
        made: list[Tensor] = [torch.full_like(oracle.outputs[0], torch.nan), oracle.outputs[1][:1]]
        return tuple(made), tuple(oracle.states)

    found = oracle.errors(Peer(sequence), "forward")
    assert [found[name] for name in job.outputs] == [torch.inf, torch.inf]
    assert [found[name] for name in job.states] == [0.0]


def test_gradients_of_gates_may_be_further_off(job: Job) -> None:
    """A number for each head, not a vector; outputs and states are the nearest."""
    given = Oracle(replace(job, dtype="bfloat16"))
    values, gradients, gates = LIMITS["bfloat16"]
    for each in job.enters:
        assert given.limit(f"d {each.name}") == (gates if each.gate else gradients)
    assert sorted(each.gate for each in job.enters) == [False, True, True]
    assert all(given.limit(name) == values for name in (*job.outputs, *job.states))


def test_errors_are_of_fewer_tokens_where_float64_has_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def errors_at(job: Any, tokens: int) -> tuple[whole.Errors, whole.Errors]:
        asked.append(tokens)
        if tokens > most:
            raise torch.OutOfMemoryError
        return {"layer": {"y": 0.0}}, {}

    monkeypatch.setattr(whole, "_errors_at", errors_at)
    job: Any = SimpleNamespace(shape=(2, 4096, 32, 128))
    most = 40
    assert whole.errors_of_ours(job) == (36, {"layer": {"y": 0.0}}, {})
    assert asked == [144, 72, 36]
    most = 0
    with pytest.raises(torch.OutOfMemoryError):
        whole.errors_of_ours(job)


@pytest.mark.parametrize(("eager", "limit"), [(3e-2, 6e-2), (1e-3, 1e-2)])
def test_a_layer_may_be_as_far_off_as_pytorch_is(
    eager: float, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    off, rows = {"layer": {"y": 2e-2}}, []
    monkeypatch.setattr(whole, "_errors_at", lambda job, tokens: (off, {"layer": {"y": eager}}))
    job: Any = SimpleNamespace(shape=(2, 4096, 32, 128), dtype="bfloat16")
    whole._note_errors(job, rows.append)
    *remarks, row = rows
    assert row["errors"] == {"y": 2e-2} and row["limits"] == {"y": pytest.approx(limit)}
    assert [*map(len, remarks)] == ([1] if eager > 1e-2 else [])
