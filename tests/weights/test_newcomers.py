"""Families of transformers by specs and tables of a user: logits, tokens as they are generated, and
files that transformers reads again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from safetensors.torch import load_file
from torch import Tensor, nn

import archc
from tests.specs.references.families import HEADS, SIZES
from tests.specs.references.weights import randomise

HERE = Path(__file__).parent / "newcomers"
PLAIN: dict[str, Any] = SIZES | HEADS | {"intermediate_size": 48, "eos_token_id": None}


def qwen3_moe() -> nn.Module:
    """One of its layers has no experts."""
    config = t.Qwen3MoeConfig(
        **PLAIN, moe_intermediate_size=12, num_experts=4, num_experts_per_tok=2,
        norm_topk_prob=True, num_hidden_layers=3, mlp_only_layers=[1],
    )  # fmt: skip
    return t.Qwen3MoeForCausalLM(config)


def glm4() -> nn.Module:
    """A quarter of each head is rotated."""
    angles = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    config = t.Glm4Config(**PLAIN, num_hidden_layers=2, attention_bias=True, rope_parameters=angles)
    return t.Glm4ForCausalLM(config)


def cohere2() -> nn.Module:
    config = t.Cohere2Config(
        **PLAIN, num_hidden_layers=4, sliding_window=5, sliding_window_pattern=2, logit_scale=0.25,
        bos_token_id=None,
    )  # fmt: skip
    return t.Cohere2ForCausalLM(config)


def t5() -> nn.Module:
    config = t.T5Config(
        vocab_size=50, d_model=32, d_kv=8, num_heads=4, d_ff=48, num_layers=3, pad_token_id=0,
        num_decoder_layers=2, feed_forward_proj="gated-gelu", relative_attention_num_buckets=8,
        relative_attention_max_distance=20, decoder_start_token_id=0, eos_token_id=None,
    )  # fmt: skip
    return t.T5ForConditionalGeneration(config)


def theirs(made: Callable[[], nn.Module], folder: Path) -> Any:
    """A model with random weights, read from the folder that it is written into."""
    model: Any = randomise(made().float(), 1)
    model.save_pretrained(folder)
    return type(model).from_pretrained(folder).eval()


def back(ours: nn.Module, model: Any, folder: Path, wanted: Tensor, **given: Tensor) -> None:
    """What is saved again has the same tensors, and transformers makes the same logits of it."""
    archc.save_pretrained(ours, folder / "back")
    before, after = (load_file(each / "model.safetensors") for each in (folder, folder / "back"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = type(model).from_pretrained(folder / "back")
    with torch.no_grad():
        torch.testing.assert_close(again(**given, use_cache=False).logits, wanted)


@pytest.mark.default("glm4")
@pytest.mark.parametrize("made", [qwen3_moe, glm4, cohere2])
def test_a_decoder_there_and_back(made: Callable[[], nn.Module], tmp_path: Path) -> None:
    model = theirs(made, tmp_path)
    ours = archc.load(str(HERE / f"{made.__name__}.arch")).from_pretrained(tmp_path).eval()
    tokens = torch.arange(40).reshape(2, 20) * 7 % 49 + 1
    with torch.no_grad():
        wanted = model(tokens, use_cache=False).logits
        torch.testing.assert_close(ours(tokens), wanted, rtol=1e-4, atol=1e-4)
    back(ours, model, tmp_path, wanted, input_ids=tokens)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    how: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 8, "do_sample": False}
    said = model.generate(tokens[:, :6], pad_token_id=0, eos_token_id=None, **how)
    found = archc.generate(ours, tokens[:, :6], 8, attention_mask=mask, temperature=0)
    assert torch.equal(found, said)


@pytest.mark.slow
def test_an_encoder_and_decoder_there_and_back(tmp_path: Path) -> None:
    """Its biases by distance are one table for all layers of each, and its head its embedding."""
    model = theirs(t5, tmp_path)
    ours = archc.load(str(HERE / "t5.arch")).from_pretrained(tmp_path).eval()
    source = torch.arange(60).reshape(2, 30) * 7 % 49 + 1
    tokens = torch.cat([torch.zeros(2, 1, dtype=torch.int64), source[:, :24]], 1)
    with torch.no_grad():
        wanted = model(input_ids=source, decoder_input_ids=tokens, use_cache=False).logits
        torch.testing.assert_close(ours(tokens, source), wanted, rtol=1e-4, atol=1e-4)
    back(ours, model, tmp_path, wanted, input_ids=source, decoder_input_ids=tokens)
    said = model.generate(source, max_new_tokens=25, do_sample=False, eos_token_id=None)
    how = {"beside": {"source": source}, "temperature": 0}
    assert torch.equal(archc.generate(ours, tokens[:, :1], 25, **how), said)
