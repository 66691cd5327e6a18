"""The configuration of a model, as config.json keeps it: a spec's text, its imports, and sizes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, ClassVar

from torch import nn
from transformers import PreTrainedConfig

from archc.api import Spec
from archc.origin import Imports, origin_of
from archc.sampling import text_model
from archc.source import Source


class SpecConfig(PreTrainedConfig):
    """A spec and its sizes.

    `spec`: `name`, `text`, `layer` (which of its layers, None: the last) and `imports`, each with
    the `name` it is imported by, the digest `by` of the text that does, and `file` and `text` of
    what that is. `sizes`: sizes and options by name.
    """

    model_type = "archc"
    keys_to_ignore_at_inference: ClassVar = ["past_key_values"]  # Trainer adds to a list alone

    def __init__(
        self,
        spec: Mapping[str, Any] | None = None,
        sizes: Mapping[str, Any] | None = None,
        vocab_size: int = 0,
        nn_linear: bool = False,
        use_cache: bool = True,
        **others: Any,
    ):
        self.spec, self.sizes = dict(spec or {}), dict(sizes or {})
        self.vocab_size, self.nn_linear, self.use_cache = vocab_size, nn_linear, use_cache
        others.setdefault("is_decoder", True)
        others["tie_word_embeddings"] = False  # a spec ties what it ties in its own text
        super().__init__(**others)

    @classmethod
    def of(cls, module: nn.Module, **others: Any) -> SpecConfig:
        """The config of a module that `Spec.module` made; ValueError for one that reads no text."""
        origin = origin_of(module)
        recipe = origin.recipe
        name, text = recipe.spec
        imports = [
            {"name": each, "by": by, "file": PurePath(file).name, "text": imported}
            for each, by, file, imported in recipe.imports
        ]
        spec = {
            "name": PurePath(name).name, "text": text, "layer": recipe.layer, "imports": imports,
        }  # fmt: skip
        sizes = {**dict(recipe.given), **origin.sizes}
        vocab = text_model(module).vocab
        return cls(spec, sizes, vocab, recipe.linear, **others)

    def module(self) -> nn.Module:
        """The module, its parameters drawn as the spec says. Raises ArchError for a text that is
        wrong, as for any spec, ValueError for a config that holds none."""
        kept = self.spec
        try:
            imports = Imports(
                {(i["name"], i["by"]): Source(i["file"], i["text"]) for i in kept["imports"]}
            )
            source, layer = Source(PurePath(kept["name"]).name, kept["text"]), kept["layer"]
        except (KeyError, TypeError) as error:
            why = f"`spec` has no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"the config holds no spec: {why}") from None
        spec = Spec(source, layer, {}, imports)
        return spec.module(nn_linear=self.nn_linear, **self.sizes)
