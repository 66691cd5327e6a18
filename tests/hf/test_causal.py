"""Specs as models of transformers: saved, loaded, generating, trained."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, DynamicCache, Trainer, TrainingArguments

import archc
import archc.hf
from archc.diagnostics import ArchError
from tests.specs.references import gpt2, lfm2, llama

SIZES: dict[str, dict[str, Any]] = {
    "lm": {"vocab": 17, "d": 16, "H": 2, "L": 2, "f": 24},
    "gpt": {"vocab": 17, "d": 16, "H": 2, "L": 1, "length": 24},
    "lfm2": {"vocab": 17, "d": 16, "H": 2, "G": 1, "L": 2, "f": 24, "attention": [1]},
    "xlstm": {"vocab": 17, "d": 16, "H": 2, "L": 1, "f": 24},
}
MASK = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1], [0, 1, 1, 1, 1]])


def model(spec: str, **others: Any) -> archc.hf.SpecForCausalLM:
    torch.manual_seed(0)
    return archc.hf.model(spec, **SIZES[spec], **others).eval()


def tokens(rows: int = 3, length: int = 5) -> Tensor:
    return torch.randint(1, 17, (rows, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", pytest.param("new", marks=pytest.mark.slow)])
def test_a_saved_folder_is_loaded_in_a_new_process(where: str, tmp_path: Path) -> None:
    """By its `model_type`; a spec of one's own and what it imports go with it, and no file of
    theirs is needed."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "twice.arch").write_text(
        'layer Twice(d):\n    """One map."""\n    input x[d]\n    param W[d, d\']\n'
        "    output y[d] = 2 * (x @ W)\n"
    )
    (tmp_path / "own" / "mine.arch").write_text(
        'import Twice from "twice.arch"\n\nmodel Mine(vocab, d, kinds = [1]):\n'
        '    """A model for this test."""\n    input tokens in vocab\n'
        "    param E[vocab, d]\n    x = E[tokens]\n    repeat 2 as l:\n"
        "        x = x + (Twice(d)(x) if l in kinds else silu(x))\n"
        "    output logits[vocab] = x @ E.T\n"
    )
    ours = archc.hf.model(tmp_path / "own" / "mine.arch", vocab=17, d=8, kinds=[0])
    ours.save_pretrained(tmp_path / "saved")
    for file in (tmp_path / "own").iterdir():
        file.unlink()
    x, saved = torch.arange(6)[None], str(tmp_path / "saved")
    if where == "here":
        there = AutoModelForCausalLM.from_pretrained(saved)(x).logits
    else:
        code = (
            "import sys, torch, archc.hf; from transformers import AutoModelForCausalLM as A\n"
            "m = A.from_pretrained(sys.argv[1]); x = torch.arange(6)[None]\n"
            "torch.save(m(x).logits.detach(), sys.argv[1] + '/logits.pt')"
        )
        root = Path(archc.__file__).parents[1]
        subprocess.run([sys.executable, "-c", code, saved], check=True, cwd=root)
        there = torch.load(tmp_path / "saved" / "logits.pt", weights_only=True)
    assert torch.equal(there, ours(x).logits)
    assert not [*(tmp_path / "saved").glob("*.py")] and not [*(tmp_path / "saved").glob("*.bin")]


@pytest.mark.default("lfm2")
@pytest.mark.parametrize("spec", SIZES)
def test_generates_what_archc_does(spec: str) -> None:
    """Greedily: with padding, and with as many samples of one seed as there are prompts."""
    ours, x = model(spec, dtype=torch.float64), tokens()
    found = ours.generate(x, attention_mask=MASK, max_new_tokens=6, do_sample=False, pad_token_id=0)
    wanted = archc.generate(ours.model, x, 6, attention_mask=MASK, temperature=0)
    assert torch.equal(found, wanted)
    plain = ours.generate(x, max_new_tokens=4, do_sample=False, use_cache=False)
    assert torch.equal(plain, archc.generate(ours.model, x, 4, temperature=0))


def test_samples_are_drawn_from_the_same_chances() -> None:
    ours, x = model("lm"), tokens()
    torch.manual_seed(5)
    found = ours.generate(x, max_new_tokens=5, do_sample=True, top_k=6, top_p=0.8, temperature=0.7)
    torch.manual_seed(5)
    assert torch.equal(found, archc.generate(ours.model, x, 5, temperature=0.7, top=6, top_p=0.8))


def best_of_beams(ours: nn.Module, x: Tensor, beams: int, count: int) -> Tensor:
    """Beam search by its definition: every beam read anew at every step."""
    found = [(0.0, x)]
    for _ in range(count):
        longer = []
        for score, text in found:
            chances = F.log_softmax(ours(text)[:, -1].detach(), -1)[0]
            longer += [
                (score + float(chances[i]), torch.cat([text, torch.tensor([[i]])], 1))
                for i in range(17)
            ]
        found = sorted(longer, key=lambda each: -each[0])[:beams]
    return found[0][1]


@pytest.mark.parametrize("spec", ["lfm2", "xlstm"])
def test_beams_keep_their_states(spec: str) -> None:
    ours, x = model(spec, dtype=torch.float64), tokens(2, 4)
    found = ours.generate(x, max_new_tokens=4, num_beams=3, do_sample=False, pad_token_id=0)
    for row, prompt in zip(found, x, strict=True):
        assert torch.equal(row, best_of_beams(ours.model, prompt[None], 3, 4)[0])


THEIRS = {
    "lm": (llama, {"H": 4, "G": 2, "K": 4, "f": 24, "base": 1e4, "eps": 1e-5}),
    "gpt": (gpt2, {"H": 2, "length": 24}),
    "lfm2": (lfm2, {"H": 2, "G": 1, "f": 24, "attention": [1], "width": 3}),
}


@pytest.mark.parametrize("spec", THEIRS)
@pytest.mark.parametrize("beams", [1, 3])
def test_generates_what_transformers_does(spec: str, beams: int, tmp_path: Path) -> None:
    """Its weights converted, prompts of three lengths."""
    made, sizes = THEIRS[spec]
    theirs = made.language_model(vocab=17, d=16, L=2, **sizes, seed=3)
    theirs.save_pretrained(tmp_path)
    ours = archc.hf.wrap(archc.load(spec).from_pretrained(tmp_path))
    how = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    given = {"attention_mask": MASK, "num_beams": beams, **how}
    theirs.generation_config.bos_token_id = None
    assert torch.equal(ours.generate(tokens(), **given), theirs.generate(tokens(), **given))


def test_the_loss_is_that_of_the_next_tokens() -> None:
    ours, x = model("gpt"), tokens()
    labels = x.masked_fill(MASK == 0, -100)
    made = ours(x, attention_mask=MASK, labels=labels)
    wanted = F.cross_entropy(made.logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
    torch.testing.assert_close(made.loss, wanted)
    assert made.past_key_values is None
    assert ours(x, return_dict=False)[0].shape == (3, 5, 17)
    assert ours(x, logits_to_keep=2).logits.shape == (3, 2, 17)


def test_packed_sequences_have_the_loss_of_a_batch() -> None:
    ours, x = model("lfm2"), tokens()
    packed = ours(
        x.reshape(1, -1), labels=x.reshape(1, -1), cu_seqlens=torch.tensor([0, 5, 10, 15])
    )
    torch.testing.assert_close(packed.loss, ours(x, labels=x).loss)


def test_goes_on_from_past_key_values() -> None:
    """In pieces, with the mask of all tokens so far or of those given; as fla's models take it."""
    ours, x = model("lfm2", dtype=torch.float64), tokens()
    whole = ours(x, attention_mask=MASK, use_cache=False)
    assert whole.past_key_values is None
    first = ours(x[:, :2], attention_mask=MASK[:, :2], use_cache=True)
    past = first.past_key_values
    assert past.get_seq_length() == 2
    second = ours(x[:, 2:4], attention_mask=MASK[:, :4], past_key_values=past)
    third = ours(x[:, 4:], attention_mask=MASK[:, 4:], past_key_values=second.past_key_values)
    made = torch.cat([first.logits, second.logits, third.logits], 1)
    torch.testing.assert_close(made, whole.logits)
    with pytest.raises(ValueError, match="must be 0 where a token is padding and 1 elsewhere"):
        ours(x, attention_mask=MASK + 1)  # the numbers of sequences that stand in one row
    with pytest.raises(TypeError, match=r"must be an archc.hf.StateCache, got DynamicCache"):
        ours(x, past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="a prompt has one token at least"):
        ours.generate(torch.zeros(1, 0, dtype=torch.int64), max_new_tokens=2, pad_token_id=0)
    with pytest.raises(ValueError, match="cannot be cut back"):
        third.past_key_values.crop(-1)


def test_a_cache_is_kept_between_generations() -> None:
    ours, x = model("lfm2"), tokens()
    cache = archc.hf.StateCache()
    how = {"max_new_tokens": 3, "do_sample": False, "past_key_values": cache}
    some = ours.generate(x, **how)
    more = ours.generate(some, **how)
    assert torch.equal(more, archc.generate(ours.model, x, 6, temperature=0))
    assert cache.get_seq_length() == more.shape[1] - 1


def test_layers_are_computed_anew() -> None:
    """The loss and all gradients are the same; what they are made of is kept of no layer, in
    training alone."""
    ours, x, found = model("lfm2", dtype=torch.float64).train(), tokens(), []
    calls: list[nn.Module] = []
    inner = [m for m in ours.model.modules() if type(m).__name__ == "SwiGLU"]
    for each in inner:
        each.register_forward_pre_hook(lambda module, given: calls.append(module))
    for function in (ours.activation_checkpointing_disable, ours.activation_checkpointing_enable):
        function()
        calls.clear()
        ours(x, labels=x).loss.backward()
        found.append([len(calls), *(p.grad.clone() for p in ours.parameters())])
        ours.zero_grad()
    assert found[1][0] == 2 * found[0][0] == 2 * len(inner)
    assert all(map(torch.equal, found[0][1:], found[1][1:]))
    ours.eval()(x, labels=x).loss.backward()
    assert len(calls) == 3 * len(inner)
    with pytest.raises(ValueError, match="Bare has no `repeat`: no layers to compute anew"):
        archc.hf.model(archc.parse(BARE), vocab=5, d=4).activation_checkpointing_enable()


BARE = """
model Bare(vocab, d):
    input tokens in vocab
    param E[vocab, d]
    output logits[vocab] = E[tokens] @ E.T
"""


def test_trainer_trains_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """The steps are those of AdamW by hand."""
    pytest.importorskip("accelerate")
    rows = [{"input_ids": row, "labels": row} for row in tokens(8, 6)]
    ours, by_hand = model("lfm2"), model("lfm2")
    arguments = TrainingArguments(
        str(tmp_path), max_steps=3, per_device_train_batch_size=8, learning_rate=0.01, save_steps=3,
        lr_scheduler_type="constant", report_to=[], disable_tqdm=True, use_cpu=True,
    )  # fmt: skip
    trainer = Trainer(ours, arguments, train_dataset=rows, eval_dataset=rows)
    trainer.train()
    optimizer = torch.optim.AdamW(by_hand.parameters(), 0.01, weight_decay=0.0)
    for _ in range(3):
        loss = by_hand(tokens(8, 6), labels=tokens(8, 6)).loss
        loss.backward()
        nn.utils.clip_grad_norm_(by_hand.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    for one, other in zip(ours.parameters(), by_hand.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-3")
    assert torch.equal(again(tokens()).logits, ours.eval()(tokens()).logits)
    loss = ours(tokens(8, 6), labels=tokens(8, 6)).loss
    torch.testing.assert_close(torch.tensor(trainer.evaluate()["eval_loss"]), loss.detach().cpu())
    bare = trainer.predict([{"input_ids": row} for row in tokens(8, 6)]).predictions
    torch.testing.assert_close(torch.from_numpy(bare), ours(tokens(8, 6)).logits.detach())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small model, saved."""
    model("lm").save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def refused(folder: Path, match: str) -> None:
    with pytest.raises((ArchError, RuntimeError), match=match):
        AutoModelForCausalLM.from_pretrained(folder)


def test_what_does_not_fit_is_named(folder: Path) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    without = {name: x for name, x in tensors.items() if name != "model.n_f"}
    save_file(without, file, {"format": "pt"})
    refused(folder, "missing: `model.n_f`")
    save_file(tensors | {"model.more": torch.ones(2)}, file, {"format": "pt"})
    refused(folder, "extra: `model.more`")
    save_file(tensors | {"model.n_f": torch.ones(2)}, file, {"format": "pt"})
    refused(folder, r"`model.n_f` is \[2\], not \[16\]")
    save_file(tensors, file, {"format": "pt"})
    file.write_bytes(file.read_bytes()[:-9])
    refused(folder, "cannot read the checkpoint .*model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    file.unlink()
    refused(folder, "cannot read the checkpoint")


def test_a_config_is_data(folder: Path) -> None:
    """A wrong spec is told as any other; an import reaches no file."""
    config = json.loads((folder / "config.json").read_text())
    alone = 'model M(vocab):\n    """One."""\n    input tokens in vocab\n    output a = F[t]\n'
    for key, value, says in (
        ("text", alone, "E0201"),
        ("imports", [], "no `transformer.arch` among the imports that were kept"),
    ):
        changed = config | {"spec": config["spec"] | {key: value}}
        (folder / "config.json").write_text(json.dumps(changed))
        refused(folder, says)
    (folder / "config.json").write_text(json.dumps(config | {"spec": {}}))
    with pytest.raises(ValueError, match="the config holds no spec: `spec` has no 'imports'"):
        AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(ValueError, match="a model of text takes tokens"):
        archc.hf.model("swiglu", d=4, f=4)


def test_unknown_tokens_and_nan_are_told() -> None:
    """torch ends a GPU's process for the one, and says of the other that chances are not numbers.
    What is padding may be any token."""
    ours = model("lm")
    vocab, x = ours.config.vocab_size, tokens()
    for call in (ours, ours.generate):
        with pytest.raises(
            ValueError, match=f"has {vocab} tokens, from 0 on, and is given {vocab}"
        ):
            call(torch.full((1, 2), vocab))
    padded = x.masked_fill(MASK == 0, vocab)
    greedy: dict[str, Any] = {"max_new_tokens": 2, "do_sample": False, "attention_mask": MASK}
    assert torch.equal(ours.generate(padded, **greedy)[:, -2:], ours.generate(x, **greedy)[:, -2:])
    with torch.no_grad():
        ours.model.n_f[0] = torch.nan
    for more in ({"do_sample": True}, {"do_sample": False}, {"num_beams": 2}):
        with pytest.raises(
            ValueError, match=r"logits are NaN at token 4 of row 0: archc.first_nan"
        ):
            ours.generate(x, max_new_tokens=2, **more)
