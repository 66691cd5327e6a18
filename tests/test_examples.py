"""The examples: what they train on, and that a stopped run ends like one that ran on."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


FORGETS = """
layer Forgets(d, H):
    input x[d]
    recurrence h[d]:
        h[t] = 0.5 * h[t-1] + x
    output y[d] = dropout(h, 0.5)
"""


def test_a_stopped_run_ends_as_one_that_ran_on(
    run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    """To the bit, dropout too; a torn or damaged checkpoint and other flags are refused, and the
    file is left as it is."""
    (tmp_path / "forgets.arch").write_text(FORGETS)
    flags = (*TINY, "--mixer", str(tmp_path / "forgets.arch"), "--pairs", "3", "--words", "4")
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
    ends = [torch.load(folder / "checkpoint.pt")["model"] for folder in (whole, stopped)]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    assert (stopped / "loss.png").read_bytes().startswith(b"\x89PNG")

    file = stopped / "checkpoint.pt"
    good = file.read_bytes()
    with pytest.raises(SystemExit, match="of another run: --batch 4\n"):
        run("train_recall", stopped, *flags, "--batch", "5", "--steps", "6")
    at = good.index(ends[1]["embedding.weight"].numpy().tobytes())
    flipped = good[:at] + bytes([good[at] ^ 255]) + good[at + 1 :]
    for bad in (b"", good[:1000], good[:-100], flipped):
        file.write_bytes(bad)
        with pytest.raises(SystemExit, match="is torn or no checkpoint"):
            run("train_recall", stopped, *flags, "--steps", "6")
        assert file.read_bytes() == bad


def test_cross_entropy_keeps_no_logits(monkeypatch: pytest.MonkeyPatch):
    """The loss and gradients of all logits at once, of which only parts are ever there."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    training = importlib.import_module("training")
    monkeypatch.setattr(training, "LOGITS_AT_ONCE", 64)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 20, 3, generator=generator, requires_grad=True)
    head = torch.randn(16, 3, generator=generator, requires_grad=True)
    targets = torch.randint(16, (2, 20), generator=generator)
    targets[:, ::3] = -100
    with Largest() as seen:
        loss = training.cross_entropy(x, head, targets)
        found = torch.autograd.grad(loss, (x, head))
    assert seen.elements <= 2 * 20 * 3
    whole = torch.nn.functional.cross_entropy((x @ head.T).flatten(0, 1), targets.flatten())
    torch.testing.assert_close(loss, whole)
    torch.testing.assert_close(found, torch.autograd.grad(whole, (x, head)))


class Largest(TorchDispatchMode):
    """The size of the largest tensor that an operation makes."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        self.elements = max(self.elements, *(x.numel() for x in tree_leaves(made) if x is not None))
        return made


def test_bfloat16_leaves_states_and_the_loss_in_float32(
    run: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    model, dtypes = importlib.import_module("training").Model, set()
    features, loss = model.features, model.loss

    def noted(self, *args):
        x, states, added = features(self, *args)
        recurrent = [state.S.dtype for _, state in states]
        dtypes.update(recurrent)
        return x, states, added

    monkeypatch.setattr(model, "features", noted)
    monkeypatch.setattr(model, "loss", lambda *a: dtypes.add((found := loss(*a)).dtype) or found)
    run("train_recall", tmp_path, *TINY, "--mixer", "gated_delta", "--pairs", "3", "--words", "4",
        "--steps", "1", "--bf16")  # fmt: skip
    assert dtypes == {torch.float32}


def test_what_cannot_be_trained_is_said(run: Callable[..., None], tmp_path: Path):
    with pytest.raises(SystemExit, match="neither a bundled spec nor a file"):
        run("train_recall", tmp_path / "none", *TINY, "--mixer", "nosuch")
    assert not (tmp_path / "none").exists()


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


def test_outputs_of_a_mixer_are_added_to_the_loss(run: Callable[..., None], tmp_path: Path):
    found = []
    for more in ("", "\n    output x_loss = mean[batch, t](0 * x[0]) + 3"):
        spec = tmp_path / f"m{len(more)}.arch"
        spec.write_text(f"layer M(d, H):\n    input x[d]\n    output y = tanh(x){more}\n")
        run("train_lm", tmp_path / f"r{len(more)}", *TINY, "--length", "8", "--steps", "1",
            "--mixer", str(spec))  # fmt: skip
        found += json.loads((tmp_path / f"r{len(more)}" / "losses.json").read_text())
    assert found[1] - found[0] == pytest.approx(3, abs=1e-5)


def test_a_step_is_no_graph_without_a_gpu(run: Callable[..., None], tmp_path: Path):
    with pytest.raises(SystemExit, match="--graph needs an NVIDIA GPU, not --device cpu"):
        run("train_lm", tmp_path / "none", *TINY, "--graph", "--device", "cpu")
    assert not (tmp_path / "none").exists()


@pytest.mark.gpu
@pytest.mark.parametrize("more", [(), ("--bf16",), ("--mixer", "attention")], ids=str)
def test_a_step_as_a_graph(more: tuple[str, ...], run: Callable[..., None], tmp_path: Path):
    """The same losses, to rounding, with batches of two shapes."""
    flags = (*TINY, "--pairs", "8", "--words", "9", "--steps", "8", *more)
    run("train_recall", tmp_path / "launches", *flags)
    run("train_recall", tmp_path / "graph", *flags, "--graph")
    found = [json.loads((tmp_path / n / "losses.json").read_text()) for n in ("launches", "graph")]
    assert found[1] == pytest.approx(found[0], rel=2e-2 if "--bf16" in more else 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train_recall", "train_lm"])
def test_examples_run_compiled(name: str, run: Callable[..., None], tmp_path: Path):
    """The same losses, to rounding."""
    for way in ((), ("--compile",)):
        run(name, tmp_path / str(len(way)), *TINY, "--steps", "3", *way)
    eager, compiled = (json.loads((tmp_path / n / "losses.json").read_text()) for n in "01")
    assert compiled == pytest.approx(eager, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mixer", "low", "high"),
    [
        ("kda", 0.95, 1.0),
        ("gated_delta", 0.95, 1.0),
        ("attention", 0.95, 1.0),
        ("linear_attention_simple", 0.0, 0.95),
    ],
)
def test_delta_rules_and_attention_recall_and_plain_linear_attention_does_not(
    mixer: str, low: float, high: float, run: Callable[..., None], tmp_path: Path
):
    """16 pairs on a CPU, minutes each."""
    run("train_recall", tmp_path, "--mixer", mixer)
    (found,) = json.loads((tmp_path / "accuracy.json").read_text()).values()
    assert low <= found <= high


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("demo.py", "tokens/s"),
        ("own_layer.py --steps 3", "100 tokens, beside the equations: [0-9]e-1[0-9] away"),
        ("generate.py --count 8", "3: "),
        ("generate.py --count 8 --spec lm", "3: "),
    ],
)
def test_a_script_runs_where_a_user_stands(command: str, said: str, tmp_path: Path):
    """In a folder that is empty; the others are trained above."""
    script, *flags = command.split()
    out = printed([sys.executable, str(EXAMPLES / script), *flags], tmp_path)
    assert re.search(said, out), out


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path):
    """Its code cells in order, in one process; a cell is kept without what it gave."""
    book = json.loads(path.read_text(encoding="utf-8"))
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in book["cells"]}) == len(book["cells"])
    code = [cell for cell in book["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in code)
    text = "\n".join("".join(cell["source"]) for cell in code)
    assert "o[t] = sum over s" in printed([sys.executable, "-c", text], tmp_path)


def printed(command: list[str], folder: Path) -> str:
    """What a command prints in a folder; it ends well."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
