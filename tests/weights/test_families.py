"""Families of public models: their files as modules with their logits, and back to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import archc
from archc.diagnostics import ArchError
from archc.weights import files
from tests.few import but
from tests.specs.references import apart, families

HERE, APART = (
    ["lm", "gemma3", "deepseek_v3", "gpt_oss"],
    ["mamba2_lm", "qwen3_next", "kimi_linear", "xlstm"],
)
UNSAID = {
    "_attn_implementation", "_sliding_window_pattern", "architectures", "dtype", "pad_token_id",
    "transformers_version",
}  # fmt: skip


def agrees(spec: str, folder: Path) -> None:
    """Logits within 1e-4 in float32; written again, every tensor is what it was, and what
    config.json says as well."""
    ours = archc.load(spec).from_pretrained(folder / spec)
    tokens, wanted = torch.load(folder / spec / "reference.pt")
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens), wanted, rtol=1e-4, atol=1e-4)
    archc.save_pretrained(ours, folder / "back")
    before, after = (
        load_file(each / "model.safetensors") for each in (folder / spec, folder / "back")
    )
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name], tensor, rtol=0, atol=1e-6)
    config, said = (files.checkpoint(each).config for each in (folder / spec, folder / "back"))
    wrong = {
        key: (value, config[key])
        for key, value in said.items()
        if key in config and config[key] != value
    }
    assert wrong.keys() <= UNSAID, wrong


@pytest.mark.default("lm", "gemma3")
@pytest.mark.parametrize("spec", HERE)
def test_there_and_back(spec: str, tmp_path: Path) -> None:
    """transformers loads what is written, and makes its own logits of it."""
    families.write(tmp_path, spec)
    agrees(spec, tmp_path)
    tokens, wanted = torch.load(tmp_path / spec / "reference.pt")
    again = type(families.MADE[spec]()).from_pretrained(tmp_path / "back")
    with torch.no_grad():
        torch.testing.assert_close(again(tokens, use_cache=False).logits, wanted)


@pytest.mark.slow
def test_there_and_back_without_their_kernels(tmp_path: Path) -> None:
    """Models that call GPU code of other packages where these are installed."""
    apart.run("families", tmp_path, folder=str(tmp_path), names=APART)
    for spec in APART:
        agrees(spec, tmp_path)


def test_queries_without_a_latent(tmp_path: Path) -> None:
    """`null` in config.json is 0 in the spec."""
    families.randomise(families.deepseek_v3(None), 1).save_pretrained(tmp_path / "theirs")
    ours = archc.load("deepseek_v3").from_pretrained(tmp_path / "theirs")
    archc.save_pretrained(ours, tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["q_lora_rank"] is None


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"rope_scaling": {"rope_type": "llama3"}}, "is 'default', and at another place 'llama3'"),
        ({"hidden_act": "gelu"}, "its `hidden_act` is 'gelu'; the spec can only 'silu'"),
        ({"num_key_value_heads": 1}, "its `num_key_value_heads` is 1; the spec has `H` = 2 there"),
    ],
)
def test_what_a_spec_cannot_say_is_refused(changed: dict, says: str, tmp_path: Path) -> None:
    families.deepseek_v3().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(ArchError, match=says):
        archc.load("deepseek_v3").from_pretrained(tmp_path)


def test_an_older_config_says_its_base_elsewhere(tmp_path: Path) -> None:
    """As most files do that were written before version 5: `rope_theta` by itself."""
    families.llama().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": 5e5}))
    assert "base=500000" in repr(archc.load("lm").from_pretrained(tmp_path))


SLOWED = {
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
    "llama3": {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 40,
    },
    "yarn": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0, "beta_fast": 4.0, "beta_slow": 0.5,
        "original_max_position_embeddings": 40, "attention_factor": 1.3, "truncate": False,
    },
}  # fmt: skip
"""Positions for longer texts, of which some angles turn less than once in those of training, some
more than four times, and some between."""


def there_and_back(spec: str, model: Any, tokens: torch.Tensor, folder: Path) -> tuple[Any, Any]:
    """Ours of a checkpoint in a folder, and transformers' of what ours saves: all have the logits
    of the model."""
    ours = archc.load(spec).from_pretrained(folder)
    archc.save_pretrained(ours, folder / "back")
    again = type(model).from_pretrained(folder / "back")
    with torch.no_grad():
        wanted = model(tokens, use_cache=False).logits
        torch.testing.assert_close(ours(tokens), wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(again(tokens, use_cache=False).logits, wanted)
    return ours, again


@pytest.mark.default("linear", "yarn-True")
@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("kind", SLOWED)
def test_positions_for_longer_texts(kind: str, older: bool, tmp_path: Path) -> None:
    """As transformers has them, there and back; an older config.json says them elsewhere."""
    model = families.randomise(families.llama(rope_parameters=SLOWED[kind]), 1)
    model.save_pretrained(tmp_path)
    if older:
        config = json.loads((tmp_path / "config.json").read_text())
        config["rope_scaling"] = config.pop("rope_parameters")
        config["rope_theta"] = config["rope_scaling"].pop("rope_theta")
        (tmp_path / "config.json").write_text(json.dumps(config))
    _, again = there_and_back("lm", model, torch.randint(50, (2, 70)), tmp_path)
    assert again.config.rope_parameters == SLOWED[kind]


DEEP = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 40.0, "beta_fast": 32.0, "beta_slow": 1.0,
    "mscale": 1.0, "mscale_all_dim": 0.7, "original_max_position_embeddings": 20,
}  # fmt: skip
OTHERS: dict[str, dict[str, Any]] = {
    "deepseek_v3": DEEP,
    "deepseek_v3, one scale": {**DEEP, "mscale": 0.7, "mscale_all_dim": 0.0},
    "gpt_oss": {**SLOWED["yarn"], "truncate": True},
    "gemma3": {"full_attention": SLOWED["linear"], "sliding_attention": {"rope_type": "default"}},
}


@pytest.mark.default("gemma3")
@pytest.mark.parametrize("case", but(OTHERS, ["deepseek_v3, one scale", "gpt_oss"]))
def test_positions_for_longer_texts_of_others(case: str, tmp_path: Path) -> None:
    """There and back as transformers has them; greedy tokens are the same."""
    spec = case.partition(",")[0]
    model = families.randomise(families.MADE[spec](rope_parameters=dict(OTHERS[case])), 1)
    model.save_pretrained(tmp_path)
    tokens = torch.randint(50, (2, 60))
    ours, _ = there_and_back(spec, model, tokens, tmp_path)
    said = model.generate(tokens, max_new_tokens=10, do_sample=False, eos_token_id=None)
    assert torch.equal(archc.generate(ours, tokens, 10, temperature=0), said)


@pytest.mark.parametrize(
    ("rope", "says"),
    [
        ({"rope_type": "yarn", "factor": 2.0}, "'yarn', and it lacks .*original_max_position"),
        ({"type": "dynamic", "factor": 2.0}, "'dynamic': angles change with the length of the wh"),
        ({"rope_type": "longrope", "factor": 2.0}, "'longrope': angles change with the length"),
        ({"rope_type": "axial"}, "'axial'; the spec can only 'default', 'linear', 'llama3', 'ya"),
        ({"rope_type": "yarn", "type": "linear"}, "'yarn', and at another place 'linear'"),
        ({"rope_type": "default", "mscale_all_dim": 1.0}, "mscale_all_dim` is 1.0; the spec has"),
        ({"rope_type": "llama3", "factor": 2.0}, "'llama3', and it lacks .*original_max_position"),
    ],
)
def test_positions_that_a_spec_lacks_are_refused(rope: dict, says: str, tmp_path: Path) -> None:
    families.llama().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_scaling": rope}))
    with pytest.raises(ArchError, match=says):
        archc.load("lm").from_pretrained(tmp_path)


def test_a_stack_that_lacks_one_is_refused(tmp_path: Path) -> None:
    """An expert in the middle, whose neighbours are there."""
    families.deepseek_v3().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.experts.3.up_proj.weight"
    save_file({k: v for k, v in tensors.items() if k != name}, tmp_path / "model.safetensors")
    with pytest.raises(ArchError, match=f"missing: `{name}`"):
        archc.load("deepseek_v3").from_pretrained(tmp_path)
