"""A spec's model with the arguments and outputs of Hugging Face's library."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedModel,
)
from transformers.modeling_outputs import CausalLMOutputWithPast, MoeCausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from archc.api import Spec, load
from archc.balancing import auxiliary_loss
from archc.diagnostics import fail
from archc.hf.cache import StateCache
from archc.hf.config import SpecConfig
from archc.origin import blocks_of, origin_of
from archc.recomputed import Again
from archc.sampling import TextModel, check_vocabulary, refuse_nan, text_model, zero_or_one
from archc.weights import files


class SpecForCausalLM(PreTrainedModel, GenerationMixin):
    """The model of a spec that makes logits from tokens. `model` is the module that archc made,
    with parameters as the spec names them."""

    config_class = SpecConfig
    base_model_prefix = "model"
    accepts_loss_kwargs = True
    supports_gradient_checkpointing = True
    _is_stateful = True  # what was read is not taken back: no assisted generation

    def __init__(self, config: SpecConfig, module: nn.Module | None = None):
        super().__init__(config)
        self.model = config.module() if module is None else module
        self.text = text_model(self.model)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        """Nothing is left to draw: the module drew its parameters as its spec says."""

    def enable_input_require_grads(self) -> None:
        """Nothing: values that enter a layer learn as the table of embeddings does, and checkpoints
        of torch that are not reentrant need no more."""
        self._require_grads_hooks = []

    def _set_gradient_checkpointing(
        self, enable: bool = True, gradient_checkpointing_func: Callable[..., Any] = checkpoint,
        every_n_layers: int = 1,
    ) -> None:  # fmt: skip
        """Have every so-manieth layer that a `repeat` made compute its values anew for the
        gradient, in training, or keep them again. Raises ValueError where there is no such
        layer."""
        blocks = blocks_of(self.model, origin_of(self.model))
        if not blocks:
            raise ValueError(f"{self.text.name} has no `repeat`: no layers to compute anew")
        for place, block in enumerate(blocks):
            vars(block).pop("forward", None)
            if enable and place % every_n_layers == 0:
                block.forward = Again(block, gradient_checkpointing_func)
        self.gradient_checkpointing = enable

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        """A model has states of its own in place of keys and values."""
        return False

    def get_input_embeddings(self) -> nn.Module:
        """Refused: a table of embeddings is a parameter of the spec, and no module."""
        raise ValueError("tables of embeddings are parameters of the spec: model.model has them")

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Give a generation an empty cache, unless it has one or wants none."""
        mixin: Any = GenerationMixin  # its protocol asks for more than a generation does
        own = (self, generation_config, model_kwargs)
        made = mixin._prepare_cache_for_generation(*own, *args, **kwargs)
        if generation_config.use_cache and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = StateCache()
        return made

    def generate(self, *args: Any, **named: Any) -> Any:
        """As the library's. Raises ValueError for a token that the model does not have, and where
        logits are NaN, of which torch draws none."""
        mixin: Any = GenerationMixin
        bound = inspect.signature(mixin.generate).bind(self, *args, **named)
        given, asked = bound.arguments, named.get("input_ids", bound.arguments.get("inputs"))
        if asked is not None:
            self._known(asked, named.get("attention_mask"))
        nan = partial(_refuse_nan, self.text)
        own = LogitsProcessorList([nan, *(given.get("logits_processor") or ())])
        given["logits_processor"] = own
        return mixin.generate(*bound.args, **bound.kwargs)

    def _known(self, tokens: Tensor, mask: Tensor | None) -> None:
        """Refuse tokens that the model does not have, but where they are padding."""
        shown = mask is not None and mask.shape == tokens.shape
        check_vocabulary(self.text, tokens.masked_fill(mask == 0, 0) if shown else tokens)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: StateCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cu_seqlens: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> CausalLMOutputWithPast | MoeCausalLMOutputWithPast:
        """Logits of tokens [B, T], and the loss of the next tokens where `labels` are given (the
        tokens, -100 where none is wanted), with the losses among the model's outputs, which are
        `aux_loss` as well (`archc.auxiliary_loss`).

        `attention_mask` [B, T], or of all tokens so far: 0 where one is padding, left or right.
        `past_key_values` is what an earlier call returned, and is changed in place; a call in
        training, or with labels, returns none unless `use_cache` says so. `cu_seqlens` are borders
        of sequences that stand one after the other in a batch of 1.
        """
        _some_tokens(input_ids, logits_to_keep)
        if not (input_ids.is_cuda or torch.compiler.is_compiling()):  # a GPU would be waited for
            self._known(input_ids, attention_mask)
        cache = _cache(past_key_values)
        if use_cache is None:
            use_cache = self.config.use_cache and labels is None and not self.training
        made, state = self.model(
            input_ids, state=cache.state, return_state=True, cu_seqlens=cu_seqlens,
            attention_mask=_own_mask(attention_mask, input_ids, cache.seen),
        )  # fmt: skip
        logits, wanted = self.text.logits(made), logits_to_keep
        logits = logits[:, slice(-wanted or None, None) if isinstance(wanted, int) else wanted]
        added = auxiliary_loss(self.model, made)
        loss = self._loss(logits, labels, cu_seqlens, num_items_in_batch, added)
        kept = use_cache or past_key_values is not None
        after: Any = cache.update(state, input_ids.shape[1]) if kept else None
        told = {"loss": loss, "logits": logits, "past_key_values": after}
        if added is None:
            return CausalLMOutputWithPast(**told)
        return MoeCausalLMOutputWithPast(**told, aux_loss=added)

    def _loss(
        self, logits: Tensor, labels: Tensor | None, borders: Tensor | None,
        items: Tensor | int | None, added: Tensor | None,
    ) -> Any:  # fmt: skip
        """The loss of the next tokens, with what is added to it: where several parts of a batch
        make a step, by the share of the tokens asked for that this one has."""
        if labels is None:
            return None
        if borders is not None:  # none is the next token of another sequence
            labels = labels.index_fill(1, borders[1:-1].long(), -100)
        loss = self.loss_function(logits, labels, self.config.vocab_size, num_items_in_batch=items)
        if added is None:
            return loss
        share = 1 if items is None else (labels[:, 1:] != -100).sum() / items
        return loss + added * share

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], *args: Any, **given: Any
    ) -> Any:
        """The model of a folder that `save_pretrained` wrote. Weights come from safetensors alone.
        Raises ArchError for a file that is torn (E0041) and for tensors that are missing, left over
        or of another shape (E0042): nothing is half loaded."""
        told = given.pop("output_loading_info", False)
        others_welcome = given.pop("ignore_mismatched_sizes", False)
        place = Path(pretrained_model_name_or_path)
        if place.is_dir() and not {"subfolder", "variant"} & set(given):
            files.checkpoint(place)
        given["use_safetensors"] = True
        loaded: Any = super().from_pretrained(
            pretrained_model_name_or_path, *args, output_loading_info=True,
            ignore_mismatched_sizes=True, **given,
        )  # fmt: skip
        made, info = loaded
        notes = [f"missing: `{name}`" for name in sorted(info["missing_keys"])]
        notes += [f"extra: `{name}`" for name in sorted(info["unexpected_keys"])]
        if not others_welcome:
            notes += [
                f"`{name}` is {list(there)}, not {list(wanted)}"
                for name, there, wanted in sorted(info["mismatched_keys"])
            ]
        if notes:
            title = f"the checkpoint `{pretrained_model_name_or_path}` does not fit the spec"
            raise fail("E0042", title, notes=tuple(notes))
        return (made, info) if told else made


def _some_tokens(tokens: Tensor, wanted: int | Tensor) -> None:
    """Refuse to look behind the last of no tokens."""
    if not tokens.shape[1] and isinstance(wanted, int) and wanted:
        raise ValueError("logits behind the last token are asked for, and there is none: a prompt "
                         "has one token at least")  # fmt: skip


def _refuse_nan(text: TextModel, tokens: Tensor, logits: Tensor) -> Tensor:
    """The logits as they came."""
    refuse_nan(text, logits, tokens)
    return logits


def _cache(given: Any) -> StateCache:
    """The cache given as `past_key_values`, or an empty one."""
    if given is not None and not isinstance(given, StateCache):
        got = type(given).__name__
        raise TypeError(f"`past_key_values` must be an archc.hf.StateCache, got {got}")
    return StateCache() if given is None else given


def _own_mask(mask: Tensor | None, tokens: Tensor, seen: int) -> Tensor | None:
    """The columns of a mask that are of these tokens; None where none of them is padding."""
    if mask is None:
        return None
    if mask.dim() == 2 and mask.shape[1] == seen + tokens.shape[1]:
        mask = mask[:, seen:]
    if not seen and not mask.is_floating_point():  # those are refused by the model
        zero_or_one(mask)
    return None if mask.shape == tokens.shape and bool(mask.all()) else mask


def model(spec: str | os.PathLike[str] | Spec, layer: str | None = None, **sizes: Any) -> Any:
    """A model of a spec, its parameters drawn as the spec says: `spec` is what `archc.load` takes,
    or what it gives; sizes and options by name, and `device`, `dtype`, `nn_linear` of
    `Spec.module`. Raises ValueError for a spec that makes no logits from tokens."""
    found = spec if isinstance(spec, Spec) else load(spec, layer)
    return wrap(found.module(**sizes))


def wrap(module: nn.Module) -> SpecForCausalLM:
    """The model around a module that `Spec.module` or `Spec.from_pretrained` made, which keeps its
    parameters, dtype, device and mode."""
    like = next(module.parameters())
    config = SpecConfig.of(module, dtype=like.dtype)
    return SpecForCausalLM(config, module).train(module.training)


def register() -> None:
    """Let the library's Auto classes know the model by its `model_type`."""
    AutoConfig.register(SpecConfig.model_type, SpecConfig, exist_ok=True)
    AutoModelForCausalLM.register(SpecConfig, SpecForCausalLM, exist_ok=True)
