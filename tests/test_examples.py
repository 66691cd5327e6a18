"""The examples: what they train on, and that a stopped run ends like one that ran on."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"
TINY = ("--d", "16", "--heads", "1", "--layers", "1", "--batch", "4", "--save-every", "2")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs an example here, as `python examples/NAME.py --folder FOLDER ...` would."""
    monkeypatch.syspath_prepend(str(EXAMPLES))

    def run(name: str, folder: Path, *flags: str) -> None:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--folder", str(folder), *flags])
        importlib.import_module(name).main()

    return run


@pytest.fixture
def recall(monkeypatch: pytest.MonkeyPatch):
    """The module of the recall example."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train_recall

    return train_recall.recall


def test_recall_asks_for_what_it_told(recall):
    """Every key that was told is asked once, and the target is the value told with it."""
    tokens, targets = recall(torch.Generator().manual_seed(0), 3, 5, 9)
    assert tokens.shape == targets.shape == (3, 20)
    for row, answers in zip(tokens.tolist(), targets.tolist(), strict=True):
        told = dict(zip(row[:10:2], row[1:10:2], strict=True))
        assert len(told) == 5 and max(told) <= 9 < min(told.values())
        assert answers[:10] == [-100] * 10 and answers[11::2] == [-100] * 5
        assert {key: told[key] for key in row[10::2]} == told
        assert answers[10::2] == [told[key] for key in row[10::2]]


def test_a_stopped_run_ends_as_one_that_ran_on(
    run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    """To the bit; a torn checkpoint is refused, and left where it is."""
    flags = (*TINY, "--mixer", "gated_delta", "--pairs", "3", "--words", "4")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    run("train_recall", whole, *flags, "--steps", "4")
    training = importlib.import_module("training")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training.Run, "save", interrupted_after(training.Run.save))
        run("train_recall", stopped, *flags, "--steps", "4")
    run("train_recall", stopped, *flags, "--steps", "4")
    assert "going on from step 2" in capsys.readouterr().err
    losses = [json.loads((folder / "losses.json").read_text()) for folder in (whole, stopped)]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    assert (stopped / "loss.png").read_bytes().startswith(b"\x89PNG")
    torn = (stopped / "checkpoint.pt").read_bytes()[:1000]
    (stopped / "checkpoint.pt").write_bytes(torn)
    with pytest.raises(SystemExit, match="is no checkpoint of this model"):
        run("train_recall", stopped, *flags, "--steps", "6")
    assert (stopped / "checkpoint.pt").read_bytes() == torn


def interrupted_after(save: Callable[[Any], None]) -> Callable[[Any], None]:
    """Ctrl-C right after the first save."""

    def both(run: Any) -> None:
        save(run)
        raise KeyboardInterrupt

    return both


def test_a_language_model_says_something(run: Callable[..., None], tmp_path: Path, capsys):
    run("train_lm", tmp_path, *TINY, "--length", "32", "--steps", "2", "--mixer", "gla")
    said = capsys.readouterr().out
    assert "bits a byte" in said and "The statement" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mixer", "low", "high"), [("kda", 0.95, 1.0), ("linear_attention_simple", 0.0, 0.9)]
)
def test_delta_rules_recall_and_plain_linear_attention_does_not(
    mixer: str, low: float, high: float, run: Callable[..., None], tmp_path: Path
):
    """16 pairs on a CPU, minutes each."""
    run("train_recall", tmp_path, "--mixer", mixer)
    (found,) = json.loads((tmp_path / "accuracy.json").read_text()).values()
    assert low <= found <= high
