"""The Python face of archc: `archc.load("my.arch").module(d=2304, H=32)`.

A `Spec` is a layer of a spec, ready to become a module, a function, source text or a picture.
"""

from __future__ import annotations

import os
import textwrap
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from archc import specfile
from archc.algebra import cut
from archc.backends.eager.emit import class_name
from archc.backends.load import load as load_text
from archc.backends.renamed import arguments
from archc.backends.writer import snake
from archc.compile import (
    before_chunks,
    elaborated,
    file_of,
    function_of,
    kernels_of,
    with_chunks,
)
from archc.diagnostics import ArchWarning
from archc.elaborate.last import parts_at_the_end
from archc.elaborate.ones import ones
from archc.ir import layer as ir
from archc.ir.picture import as_svg
from archc.ir.sizes import deciding, resolve_sizes
from archc.law import CompositionLaw
from archc.law import of as law_of
from archc.origin import Imports, Origin, Recipe, backend_here, compiled, origin_of, tell
from archc.recurrence.analysis.classify import Class, classify
from archc.recurrence.chunk.loops import loops
from archc.source import Source
from archc.states import state_from

if TYPE_CHECKING:
    import torch


class _Option:
    """An option, which equals one of the same type that is written in the same way."""

    def __init__(self, value: Any):
        self.value, self.key = value, (type(value), repr(value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Option) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


@lru_cache(maxsize=64)
def _of_the_bundle(
    source: specfile.BundledSource, layer: str | None, given: tuple[tuple[str, _Option], ...]
) -> tuple[ir.Layer, Mapping[tuple[str, str], Source]]:
    """A layer of the bundle, which does not change while a process runs, and what it imports:
    elaborated once, however often it is loaded."""
    imports = Imports()
    options = {name: option.value for name, option in given}
    return elaborated(source, layer, options, importer=imports), imports.found


def _frozen(value: Any) -> Any:
    """An option that can be compared by value."""
    return tuple(map(_frozen, value)) if isinstance(value, list | tuple) else value


OPTION = (type(None), bool, str, list, tuple)
"""Values of options that are no numbers."""


def load(spec: str | os.PathLike[str], layer: str | None = None, **given: Any) -> Spec:
    """A layer of a bundled spec, by its name, or of a file (`my.arch`, or a Path); `layer` names
    one of several, the last of the file by default.

    `given` are sizes and options by name, as the spec declares them: they become its defaults, and
    conditions in the spec are decided by them. Raises ArchError for a spec that is missing or
    wrong.
    """
    name, inside = specfile.split(os.fspath(spec))
    return Spec(specfile.read(name), layer or inside, given)


def parse(text: str, layer: str | None = None, **given: Any) -> Spec:
    """The same for the text of a spec."""
    return Spec(Source("<text>", text), layer, given)


def save_pretrained(
    module: torch.nn.Module, folder: str | os.PathLike[str], *, shard_bytes: int = 5 * 10**9
) -> None:
    """Write a module of archc as a public checkpoint, as Hugging Face keeps it: what
    `Spec.from_pretrained` reads, in files of at most `shard_bytes`. Raises ArchError for a spec
    without a table."""
    from archc.weights.pretrained import save

    save(module, Path(folder), shard_bytes)


def as_linear(module: torch.nn.Module) -> torch.nn.Module:
    """A copy of a module of archc that keeps what tokens are multiplied by as `nn.Linear`, as
    `module(..., nn_linear=True)` does."""
    origin, like = origin_of(module), next(module.parameters(), None)
    recipe = replace(origin.recipe, linear=True)
    kind = getattr(compiled(recipe, origin.layer), class_name(origin.layer))
    placed = {} if like is None else {"device": like.device, "dtype": like.dtype}
    made = kind(**arguments(dict(origin.sizes)), **placed)
    made.load_state_dict(module.state_dict())
    tell(made, Origin(origin.layer, origin.sizes, recipe))
    return made.train(module.training)


class Spec:
    """One layer, block or model of a spec. Nothing is computed before it is asked for, but
    mistakes in the spec are found at once."""

    def __init__(
        self,
        source: Source,
        layer: str | None,
        given: Mapping[str, Any],
        imports: Imports | None = None,
    ):
        self.source_file, self._layer_name, self._given = source, layer, dict(given)
        self.imports = imports or Imports()
        self.layer: ir.Layer = self._elaborated(given)
        self._warned = False

    def _elaborated(self, given: Mapping[str, Any]) -> ir.Layer:
        """The layer with these sizes and options; its imports are kept."""
        source, name = self.source_file, self._layer_name
        if not isinstance(source, specfile.BundledSource) or self.imports.known is not None:
            return elaborated(source, name, given, importer=self.imports)
        options = tuple((key, _Option(value)) for key, value in given.items())
        layer, found = _of_the_bundle(source, name, options)
        self.imports.found.update(found)
        return layer

    @property
    def name(self) -> str:
        """The layer's name."""
        return self.layer.name

    def module(
        self,
        /,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        backend: str = "auto",
        nn_linear: bool = False,
        recompute: bool = False,
        **sizes: Any,
    ) -> torch.nn.Module:
        """A module with sizes by name; what is not given takes the spec's default.

        Parameters are named and drawn as in the spec. `module(x)` is the output for a whole
        sequence; `module(x, state=..., return_state=True)` continues one, with any number of
        tokens. Where torch sees a GPU, tensors on it go through generated kernels, in each call;
        `backend="eager"` is PyTorch alone. `nn_linear=True` keeps what tokens are multiplied by as
        `nn.Linear`, for quantisers and adapters: it loads the weights of a module without it.
        `recompute=True` trades time for memory: in training, layers that a `repeat` made (without
        one, the module) keep what enters them alone, and make the rest again in their gradient.
        Printed, a module says what of it has kernels. It can be pickled whole. Raises ArchError for
        sizes that are missing, unknown, no sizes, or break a requirement, ValueError for a backend
        that there is not.
        """
        from archc.recomputed import keep_less  # torch, as the module does

        modules = self._layers_among(sizes)
        layer, given = self._decided(sizes)
        known = resolve_sizes(layer, sizes)
        self._warn(layer)
        spec = (self.source_file.name, self.source_file.text)
        options = tuple((name, _frozen(value)) for name, value in given.items())
        recipe = Recipe(spec, self.imports.texts(), self._layer_name, options, backend, nn_linear)
        made = compiled(recipe, layer)
        if backend == "triton":
            self._warn_where_no_kernel(layer)
        values = arguments({**known, **modules})
        module = getattr(made, class_name(layer))(**values, device=device, dtype=dtype)
        tell(module, Origin(layer, known, recipe))
        return keep_less(module) if recompute else module

    def _warn_where_no_kernel(self, layer: ir.Layer) -> None:
        """Say that code with kernels was asked for, and that it has none."""
        if not kernels_of(layer).launched:
            text = f"no kernel is in the code of `{layer.name}`: {kernels_of(layer)}"
            warnings.warn(text, ArchWarning, stacklevel=3)

    def _layers_among(self, sizes: dict[str, Any]) -> dict[str, Any]:
        """Take the modules that are given for arguments that are layers out of `sizes`."""
        return {
            name: sizes.pop(name) for name in self._arguments_that_are_layers() if name in sizes
        }

    def _arguments_that_are_layers(self) -> list[str]:
        paths = (call.path for _, call in self.layer.calls if call.callee.kind == "argument")
        return list(dict.fromkeys(paths))

    def from_pretrained(
        self,
        folder: str | os.PathLike[str],
        /,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        backend: str = "auto",
        nn_linear: bool = False,
        **given: Any,
    ) -> torch.nn.Module:
        """The module of a public checkpoint (a folder with config.json and safetensors, as
        Hugging Face keeps them), in evaluation mode and the checkpoint's dtype; `given` are sizes
        and options in place of those of config.json. `NAME.weights.toml` beside the spec says
        which tensor is which parameter; several bundled specs have one. Raises ArchError with
        everything that is missing, extra, torn or of another shape; nothing is half loaded. In
        place of a folder, a file that `archc convert` wrote, NAME.safetensors. `nn_linear` is as
        for `module`.
        """
        from archc.weights import pretrained  # safetensors and einops: an extra

        make, place = partial(self.module, backend=backend), Path(folder)
        if place.suffix == ".safetensors":
            made = pretrained.load_own(make, place, dtype=dtype, device=device, **given)
        else:
            spec = (self.source_file.name, self.source_file.text)
            made = pretrained.load(make, spec, place, dtype=dtype, device=device, **given)
        return as_linear(made) if nn_linear else made

    def _decided(self, sizes: Mapping[str, Any]) -> tuple[ir.Layer, Mapping[str, Any]]:
        """The layer for these sizes: elaborated anew if they decide a condition, or are options
        (what is no number always is one, whatever stands in its place by default); and what was
        given to elaborate it."""
        decided = deciding(self.layer)
        options = {arg.name for arg in self.layer.args if arg.symbol is None}
        new = {
            name: value
            for name, value in sizes.items()
            if name in decided | options or isinstance(value, OPTION)
        }
        if not new:
            return self.layer, self._given
        given = {**self._given, **new}
        return self._elaborated(given), given

    def state(self, **values: Any) -> Any:
        """The state that `op` starts from, from tensors of yours: `spec.state(S=S)`, a value for
        each state of the memory by its name, `[B, H, K, V]` as declared. Raises ValueError for a
        name that the memory does not have, one that is missing, and a shape that does not fit."""
        return state_from(cut.op(with_chunks(self.layer)), self.op, values)

    @cached_property
    def op(self) -> Callable[..., Any]:
        """The memory alone: `o, state = spec.op(q, k, v, log_alpha, beta, state=None)`.

        Every memory's has `state`, `chunk` and `cu_seqlens` behind its values, and then, by name,
        options that no shape tells, with the spec's defaults. Values are those that enter the
        memory, by their names in the spec, `[B, T, H, D]`; one that is defined as exp(e) enters as
        e, named `log_...`, one that turns states, as cos(a), as a, and an outer product k * v as k
        and v. The state is a named tuple of the declared states, in float32 at least. Where torch
        sees a GPU, tensors on it go through generated kernels. Raises ValueError for a layer
        without a memory.
        """
        self._warn(self.layer)
        return self._function("op", cut.op(with_chunks(self.layer)))

    @cached_property
    def law(self) -> CompositionLaw:
        """The composition law of the memory: summaries of runs of tokens, with the arguments of
        `op`, their merge, and what they do to a state. `archc.law.split` uses it. Raises ValueError
        for a memory without one."""
        return law_of(self.layer)

    @cached_property
    def fused_op(self) -> Callable[..., Any]:
        """The memory and what is computed token by token before it, from the nearest product with a
        parameter or short convolution on; parameters in between become arguments."""
        return self._function("fused_op", cut.fused_op(with_chunks(self.layer)), whole=True)

    def classify(self) -> tuple[Class, ...]:
        """The kind of memory of each of the layer's recurrences and attends, with the reason."""
        return classify(before_chunks(self.layer))

    def _warn(self, layer: ir.Layer) -> None:
        """Tell, once, of a part that a file ends with, of ones where the identity may be meant, and
        of recurrences that stay a loop though nobody asked for it."""
        if not self._warned:
            self._warned = True
            parts = () if self._layer_name else parts_at_the_end(layer)
            for found in (*parts, *ones(layer), *loops(before_chunks(layer))):
                warnings.warn(found.render(), ArchWarning, stacklevel=3)

    def _function(self, kind: str, layer: ir.Layer, whole: bool = False) -> Callable[..., Any]:
        """A function of the layer's own; where torch sees a GPU it has kernels for one, `whole` for
        what stands around its memory, too."""
        name = f"{snake(self.name)}_{kind}"
        return getattr(load_text(function_of(layer, name, backend_here("auto"), whole), name), name)

    def source(self, backend: str = "auto") -> str:
        """The standalone Python file, as `archc compile` writes it: the same on every machine, so
        that kernels are in it only if they are asked for (`backend="triton"`)."""
        return file_of(self.layer, backend)

    def __repr__(self) -> str:
        args = ", ".join(arg.name for arg in self.layer.args)
        head = f"archc {self.layer.kind} {self.name}({args}) of {self.source_file.name}"
        return f"<{head}\n{textwrap.indent(str(kernels_of(self.layer)), '  ')}>"

    def _repr_html_(self) -> str:
        """The picture that a notebook shows."""
        return as_svg(self.layer)
