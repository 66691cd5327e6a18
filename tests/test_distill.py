"""The example that distils: what is transferred, and that every stage learns what it is for."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"
TINY = argparse.Namespace(
    d=8, heads=2, layers=1, batch=2, length=8, steps=2, orient=4, align=8, logits=8
)


@pytest.fixture
def distill(monkeypatch: pytest.MonkeyPatch):
    """The example, as a module."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import distill

    return distill


@pytest.fixture
def models(distill):
    """A teacher and a student."""
    torch.manual_seed(0)
    return distill.models(TINY)[:2]


def test_weights_go_where_shapes_allow(distill, models):
    """Embedding, head, norms, channels, queries, keys, values, outputs; not gates or gains."""
    teacher, student = models
    before = {name: p.clone() for name, p in student.named_parameters()}
    copied, of = distill.transfer(teacher, student)
    theirs = {name.rpartition(".")[2]: p for name, p in teacher.named_parameters()}
    own = dict(student.named_parameters())
    kept = {name.rpartition(".")[2] for name, p in own.items() if torch.equal(p, before[name])}
    assert kept - {"n1", "n2", "n_f"} == {"W_og", "w_i", "w_f", "b_f", "gain"}
    for name, p in own.items():
        short = name.rpartition(".")[2]
        if short in theirs:
            assert torch.equal(p, theirs[short]), name
    assert copied == sum(p.numel() for p in teacher.parameters())
    assert of == sum(p.numel() for p in own.values())


@pytest.mark.slow
def test_each_stage_comes_nearer(distill, models):
    """On what it was trained on; the matrices of attention and of the memory are both causal."""
    teacher, student = models
    distill.transfer(teacher, student)
    teacher.requires_grad_(False)
    tokens = torch.randint(256, (2, 8), generator=torch.Generator().manual_seed(0))
    stages = {
        distill.orientation: lambda: distill.orientation(teacher, student, tokens, True),
        distill.alignment: lambda: distill.alignment(teacher, student, tokens),
        distill.divergence: lambda: distill.divergence(teacher, student, tokens),
    }
    for stage, loss in stages.items():
        first = float(loss().detach())
        distill.learn(student.parameters(), loss, 4, 1e-2)
        assert 0 < float(loss().detach()) < first, stage.__name__


@pytest.mark.slow
def test_a_student_that_is_the_teacher_is_at_no_distance(distill, models):
    teacher, _ = models
    teacher.requires_grad_(False)
    tokens = torch.randint(256, (2, 8), generator=torch.Generator().manual_seed(0))
    assert float(distill.orientation(teacher, teacher, tokens, False)) == 0
    assert float(distill.alignment(teacher, teacher, tokens)) == 0
    assert abs(float(distill.divergence(teacher, teacher, tokens))) < 1e-6
