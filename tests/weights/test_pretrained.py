"""Checkpoints of transformers, saved by it and read by us; then ours, read by it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import Lfm2Config, Lfm2ForCausalLM

import archc
from archc.diagnostics import ArchError
from tests.commands.json_page import EXAMPLES, as_promised, verb
from tests.console import run
from tests.specs.agreement import difference
from tests.specs.references import gpt2, lfm2, llama

MODELS: dict[str, Callable[[], nn.Module]] = {
    "lm": partial(
        llama.language_model, vocab=50, d=32, H=4, G=2, K=8, f=48, L=2, base=5e5, eps=1e-5, seed=1
    ),
    "gpt": partial(gpt2.language_model, vocab=50, d=32, H=4, L=2, length=24, seed=7),
    "lfm2": partial(
        lfm2.language_model, vocab=50, d=32, H=4, G=2, f=48, L=3, attention=[1], width=3, seed=3
    ),
}
TOKENS = torch.arange(34).reshape(2, 17) * 7 % 50


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small Llama, saved by transformers."""
    MODELS["lm"]().save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.mark.parametrize("spec", MODELS)
def test_there_and_back(spec: str, tmp_path: Path):
    """Its logits from its files, in shards; and from what we save, its own module: parameters to
    the bit, logits but for rounding, as memory that is aligned otherwise is summed otherwise."""
    theirs = MODELS[spec]()
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    ours = archc.load(spec).from_pretrained(tmp_path / "theirs")
    assert not ours.training and next(ours.parameters()).dtype == torch.float64
    with torch.no_grad():
        wanted = theirs(TOKENS, use_cache=False).logits
        assert difference(ours(TOKENS), wanted) < 1e-5
        archc.save_pretrained(ours, tmp_path / "ours", shard_bytes=20_000)
        again = type(theirs).from_pretrained(tmp_path / "ours")
        assert all(map(torch.equal, again.parameters(), theirs.parameters()))
        assert difference(again(TOKENS, use_cache=False).logits, wanted) < 1e-13
    assert len(list((tmp_path / "ours").glob("*.safetensors"))) > 5
    for key, value in json.loads((tmp_path / "ours" / "config.json").read_text()).items():
        assert getattr(again.config, key) == value or key in ("dtype", "rope_parameters")


def test_the_length_of_a_tensor(tmp_path: Path):
    """LFM2 as it is published: the width of its SwiGLU is computed from what config.json says."""
    given = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Lfm2Config(
        vocab_size=50, num_hidden_layers=2, block_ff_dim=300, full_attn_idxs=[1], **given
    )
    theirs = Lfm2ForCausalLM(config).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    ours = archc.load("lfm2").from_pretrained(tmp_path / "theirs")
    assert ours.f == 256  # 2 / 3 of 300, to a multiple of 256
    archc.save_pretrained(ours, tmp_path / "ours")
    again = Lfm2ForCausalLM.from_pretrained(tmp_path / "ours")
    assert all(map(torch.equal, again.parameters(), theirs.parameters()))
    with torch.no_grad():
        wanted = theirs(TOKENS, use_cache=False).logits
        assert difference(ours(TOKENS), wanted) < 1e-5
        assert difference(again(TOKENS, use_cache=False).logits, wanted) < 1e-6


def test_bfloat16_stays_and_sizes_can_be_given(folder: Path, tmp_path: Path):
    theirs = MODELS["lm"]().bfloat16()
    theirs.save_pretrained(tmp_path / "bf16")
    ours = archc.load("lm").from_pretrained(tmp_path / "bf16")
    assert {p.dtype for p in ours.parameters()} == {torch.bfloat16}
    assert torch.equal(ours.E, theirs.model.embed_tokens.weight)
    wide = archc.load("lm").from_pretrained(folder, dtype=torch.float32, eps=1e-3)
    assert wide.E.dtype == torch.float32
    plain = archc.load("lm").from_pretrained(folder, dtype=torch.float32)
    assert (wide(TOKENS) - plain(TOKENS)).abs().max() > 1e-5


def test_convert_writes_parameters_and_brings_them_back(folder: Path, tmp_path: Path):
    own, back = tmp_path / "own.safetensors", tmp_path / "back"
    told = json.loads(run("convert", "lm", str(folder), "-o", str(own), "--json").stdout)
    (promised,) = (each for each in EXAMPLES if verb(each) == "convert")
    assert as_promised(promised, told) and told["layer"] == "LM"
    assert told["parameters"] == sum(each.numel() for each in load_file(own).values())
    assert {"E", "layers.1.transformer.attention.W_q"} <= set(load_file(own))
    assert run("convert", "lm", str(own), "-o", str(back)).exit_code == 0
    ours, theirs = (load_file(each / "model.safetensors") for each in (back, folder))
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)
    done = run("convert", "lm", str(folder), "-o", str(own))
    assert done.exit_code == 1 and "E0031" in done.stderr
    assert run("convert", "lm", str(folder), "-o", str(tmp_path / "other")).exit_code == 2


def without(name: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in tensors.items() if key != name}


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: without(UP, t), f"missing: `{UP}`, for the parameter"),
        (lambda t: t | {"model.more": t[UP].clone()}, "extra: `model.more`"),
        (lambda t: t | {UP: t[UP][:-1]}, f"`{UP}` is [47, 32]: `layers.1.transformer.swiglu.W_in`"),
        (lambda t: t | {UP: t[UP][0]}, f"`{UP}` is [32], not `f d`"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_loaded(
    change: Callable[[dict], dict], says: str, folder: Path
):
    save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors")
    with pytest.raises(ArchError) as found:
        archc.load("lm").from_pretrained(folder)
    (diagnostic,) = found.value.diagnostics
    assert diagnostic.code == "E0042" and any(note.startswith(says) for note in diagnostic.notes)


def test_every_misfit_is_told_at_once(folder: Path):
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if "layers.0" in name]:
        del tensors[name]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ArchError) as found:
        archc.load("lm").from_pretrained(folder)
    assert len(found.value.diagnostics[0].notes) == 9


def test_torn_files_and_other_models_are_refused(folder: Path):
    whole = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArchError, match=r"E0041.*cannot read"):
        archc.load("lm").from_pretrained(folder)
    (folder / "model.safetensors").write_bytes(whole)
    with pytest.raises(ArchError, match="it is a `llama`, not a `gpt2`"):
        archc.load("gpt").from_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention_bias": True}))
    with pytest.raises(ArchError, match="its `attention_bias` is True; the spec can only False"):
        archc.load("lm").from_pretrained(folder)


MINE = """
layer Mine(d, N, K, V, L = 1, on = [0], off = [], s = 1, g = 1):
    input x[d]
    param W[N, d, d']; W_k[d, K]; W_v[d, V]; a[d]
    z = sum[N](W @ x) + exp(a) + ((x @ W_k) @ W_k.T) + ((x @ W_v) @ W_v.T)
    repeat L as l:
        z = z * (g if l in on else s + (1 if l in off else 0))
    output y[d] = z
"""
TABLE = """
model_type = "mine"
architecture = "Mine"
[sizes]
d = "d"
N = "n"
K = "k"
V = "v"
s = "m.scales.0"
g = "m.scales.1"
on = { indices = "words", of = "a", other = "b" }
off = { indices = "words", of = "c", other = "b" }
[tensors]
"W" = { from = "experts.{e}.w", as = "e o d -> e d o" }
"W_k" = { from = "kv", as = "kv d -> d kv", part = "kv[:K]" }
"W_v" = { from = "kv", as = "kv d -> d kv", part = "kv[K:K+V]" }
"a" = { from = "A", map = "neg_exp" }
"""


def test_a_spec_of_ones_own_has_its_table_beside_it(tmp_path: Path):
    """Stacked tensors, parts between sizes, functions, lists: read, and written back."""
    (tmp_path / "mine.arch").write_text(MINE)
    (tmp_path / "mine.weights.toml").write_text(TABLE)
    tensors = {f"experts.{e}.w": torch.randn(4, 4) for e in range(3)}
    tensors |= {"kv": torch.randn(5, 4), "A": torch.rand(4)}
    there = tmp_path / "there"
    there.mkdir()
    save_file(tensors, there / "model.safetensors")
    config = {"model_type": "mine", "d": 4, "n": 3, "k": 2, "v": 3}
    config |= {"m": {"scales": [2, 3]}, "words": ["b", "a", "c"]}
    (there / "config.json").write_text(json.dumps(config))
    module = archc.load(tmp_path / "mine.arch").from_pretrained(there)
    assert torch.equal(module.W[2], tensors["experts.2.w"].T)
    assert torch.equal(module.W_v, tensors["kv"][2:].T)
    assert torch.equal(module.a, -tensors["A"].exp())
    archc.save_pretrained(module, tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == tensors.keys()
    assert all(torch.allclose(back[name], tensors[name], atol=1e-6) for name in back)
    said = json.loads((tmp_path / "back" / "config.json").read_text())
    assert {**said, **config} == said and "L=3" in repr(module)
    (there / "config.json").write_text(json.dumps(config | {"words": ["a", "d"]}))
    with pytest.raises(ArchError, match="its `words` has 'd'; the spec can only 'a' or 'c' or 'b'"):
        archc.load(tmp_path / "mine.arch").from_pretrained(there)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("model_type = 1 2", "Expected newline"),
        ('model_type = "x"', "no architecture"),
        ('model_type = "x"\narchitecture = "y"\nother = 1\n[tensors]', "it has other"),
        ('model_type = "x"\narchitecture = "y"\n[tensors]\n"W" = { to = "w" }', "`W` is a tensor"),
        (
            'model_type = "x"\narchitecture = "y"\n[tensors]\n"W" = { from = "w", part = "q" }',
            "the part of `W`",
        ),
        (
            'model_type = "x"\narchitecture = "y"\n[tensors]\n"W" = { from = "w", map = "sin" }',
            "a `map` that is none of",
        ),
        (
            'model_type = "x"\narchitecture = "y"\n[tensors]\n"W" = { from = "w.{e}" }',
            "`W` needs `as`",
        ),
        (
            'model_type = "x"\narchitecture = "y"\n[tensors]\n[sizes]\nd = "all.1"',
            "it has `all.1`, and not the place before it",
        ),
    ],
)
def test_a_wrong_table_is_refused(text: str, says: str, tmp_path: Path):
    (tmp_path / "mine.arch").write_text(
        'layer Mine(d):\n    """One."""\n    input x[d]\n    param W[d, d\']\n'
        "    output y[d] = x @ W\n"
    )
    (tmp_path / "mine.weights.toml").write_text(text)
    with pytest.raises(ArchError) as found:
        archc.load(tmp_path / "mine.arch").from_pretrained(tmp_path)
    (diagnostic,) = found.value.diagnostics
    assert diagnostic.code == "E0040" and any(says in note for note in diagnostic.notes)


def test_a_folder_stays_as_it_was_where_the_next_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full at the third shard, and then it is not."""
    modules = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        modules.append(archc.load("lm", L=2).module(vocab=20, d=16, H=2, f=16))
    archc.save_pretrained(modules[0], tmp_path / "kept")
    before, written = sorted(each.name for each in (tmp_path / "kept").iterdir()), []

    def full(*given: Any, **rest: Any) -> None:
        written.append(given[1])
        if len(written) == 3:
            raise OSError("No space left on device")
        save_file(*given, **rest)

    monkeypatch.setattr("archc.weights.files.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        archc.save_pretrained(modules[1], tmp_path / "kept", shard_bytes=3000)
    assert sorted(each.name for each in (tmp_path / "kept").iterdir()) == before
    again = archc.load("lm", L=2).from_pretrained(tmp_path / "kept")
    assert all(map(torch.equal, again.parameters(), modules[0].parameters()))
    archc.save_pretrained(modules[1], tmp_path / "kept", shard_bytes=3000)
    again = archc.load("lm", L=2).from_pretrained(tmp_path / "kept")
    assert all(map(torch.equal, again.parameters(), modules[1].parameters()))
    assert not [*(tmp_path / "kept").glob("*.new")]
    assert "model.safetensors" not in {each.name for each in (tmp_path / "kept").iterdir()}
