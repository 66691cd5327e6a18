"""Whole models against transformers, in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import archc
from tests.specs.agreement import agree
from tests.specs.references import apart, gpt2, kimi


@pytest.mark.parametrize("options", [{"tied": False, "tanh": True}, {"tied": True, "tanh": False}])
def test_gpt_with_other_heads_and_activations(options: dict[str, bool]) -> None:
    sizes = {"vocab": 50, "d": 32, "H": 4, "L": 2, "length": 24}
    reference = gpt2.language_model(**sizes, **options, seed=7)
    model = archc.load("gpt", **options).module(**sizes, dtype=torch.float64).eval()
    model.load_state_dict(gpt2.model_weights(reference, H=4))
    tokens = torch.randint(0, 50, (2, 17), generator=torch.Generator().manual_seed(1))
    targets = tokens.roll(1, dims=1)
    logits, loss = model(tokens, targets)
    theirs, their_loss = gpt2.logits_and_loss(reference, tokens, targets)
    how = ", ".join(f"{name} = {str(value).lower()}" for name, value in options.items())
    agree("gpt", f"transformers gpt2, {how}", logits, theirs)
    agree("gpt", f"transformers gpt2, {how}, loss", loss, their_loss)


def test_gpt_drops_what_its_reference_drops() -> None:
    """Training with one seed: the same four places, in one order, so the same numbers are drawn."""
    sizes = {"vocab": 50, "d": 32, "H": 4, "L": 2, "length": 24}
    reference = gpt2.language_model(**sizes, seed=7).train()
    reference.set_attn_implementation("eager")
    model = archc.load("gpt", tanh=True, p=0.1).module(**sizes, dtype=torch.float64).train()
    model.load_state_dict(gpt2.model_weights(reference, H=4))
    tokens = torch.randint(0, 50, (2, 17), generator=torch.Generator().manual_seed(1))
    torch.manual_seed(3)
    logits = model(tokens)
    torch.manual_seed(3)
    theirs, _ = gpt2.logits_and_loss(reference, tokens, tokens)
    agree("gpt", "transformers gpt2 in training, with one seed", logits, theirs)


@pytest.mark.slow
def test_kimi_linear(tmp_path: Path) -> None:
    """A dense first layer, experts in the others, and attention in one of them."""
    sizes = {"vocab": 50, "d": 32, "L": 3, "H": 2, "experts": 6, "active": 2, "f": 12, "dense": 24}
    theirs = kimi.model(tmp_path, B=2, T=20, seed=1, full=[1], **sizes)
    model = archc.load("kimi_linear").module(**sizes, full=[1], dtype=torch.float64)
    model.load_state_dict(theirs["weights"])
    agree("kimi_linear", "transformers kimi_linear", model(theirs["tokens"]), theirs["logits"])


CAPS, UNCAPPED = {"cap": 15, "top": 30}, {"cap": None, "top": None}


@pytest.mark.slow
@pytest.mark.parametrize("caps", [CAPS, pytest.param(UNCAPPED, marks=pytest.mark.slow)])
def test_xlstm(tmp_path: Path, caps: dict) -> None:
    sizes = {"vocab": 50, "d": 32, "H": 2, "L": 2, "f": 40}
    theirs = apart.run("xlstm_model", tmp_path, B=2, T=32, seed=2, **sizes, **caps)
    model = archc.load("xlstm", **caps).module(**sizes, K=16, dtype=torch.float64)
    model.load_state_dict(theirs["weights"])
    how = "with" if caps["cap"] else "without"
    against = f"transformers xlstm, {how} soft caps"
    agree("xlstm", against, model(theirs["tokens"]), theirs["logits"])
