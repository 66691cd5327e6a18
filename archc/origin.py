"""The origin of a module, which it keeps: enough to make its class again in another process.

A pickle of a module (`torch.save(module)`, `pickle`, `copy.deepcopy`, a process that is spawned)
carries the text of its spec with what that imports, the sizes, and the backend asked for, never
code: the process that loads it compiles them, as it compiles any spec.
"""

from __future__ import annotations

import copyreg
import sys
import textwrap
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from importlib import metadata
from types import ModuleType
from typing import TYPE_CHECKING, Any

from archc.backends.load import load
from archc.backends.renamed import at_path
from archc.backends.writer import attribute, snake
from archc.compile import elaborated, kernels_of, text_of
from archc.diagnostics import ArchWarning, fail
from archc.ir import layer as ir
from archc.ir.sizes import Number, callee_sizes
from archc.source import Source
from archc.specfile import import_source

if TYPE_CHECKING:
    from torch import nn

BACKENDS = ("auto", "eager", "triton")
"""The backends of a module. `auto`: kernels for tensors on a GPU where torch sees one, and PyTorch
for all others."""


def backend_here(backend: str) -> str:
    """The backend that a choice stands for in this process. The code with kernels takes those for
    tensors on a GPU alone: which they are is looked at in every call."""
    if backend not in BACKENDS:
        known = ", ".join(f'"{name}"' for name in BACKENDS)
        raise ValueError(f"there is no backend {backend!r}: known are {known}")
    if backend != "auto":
        return backend
    import torch  # what is made needs it anyway

    return "triton" if torch.cuda.is_available() else "eager"


MOST = 64
"""Layers of recipes that are kept."""


class Imports:
    """Finds the texts that a spec imports, and keeps them. `known`: all that there are, by the name
    of an import and the digest of the text that has it; nothing is looked for elsewhere then."""

    def __init__(self, known: Mapping[tuple[str, str], Source] | None = None) -> None:
        self.found: dict[tuple[str, str], Source] = {}
        self.known = known

    def __call__(self, name: str, source: Source) -> Source:
        """The text of an import; ArchError E0021 if there is none."""
        if self.known is None:
            made = import_source(name, source)
        elif (name, source.sha256) in self.known:
            made = self.known[name, source.sha256]
        else:
            raise fail("E0021", f"there is no `{name}` among the imports that were kept")
        self.found[name, source.sha256] = made
        return made

    def texts(self) -> tuple[tuple[str, str, str, str], ...]:
        """The name that each is imported by, the digest of the text that does, and name and text of
        what that is."""
        return tuple((*key, made.name, made.text) for key, made in self.found.items())


@dataclass(frozen=True)
class Recipe:
    """The recipe of a class: a spec with its imports, one layer of it, the choices made when it is
    elaborated, the backend asked for, and whether products with parameters are calls of
    `nn.Linear`."""

    spec: tuple[str, str]
    imports: tuple[tuple[str, str, str, str], ...]
    layer: str | None
    given: tuple[tuple[str, Any], ...]
    backend: str
    linear: bool = False
    version: str = field(default_factory=lambda: metadata.version("archc"))


_layers: dict[Recipe, ir.Layer] = {}


def layer_of(recipe: Recipe) -> ir.Layer:
    """The layer that a recipe stands for. Raises ArchError, as for any spec."""
    if recipe not in _layers:
        _keep(recipe, _elaborated(recipe))
    return _layers[recipe]


def _keep(recipe: Recipe, layer: ir.Layer) -> None:
    """Note what a recipe stands for: copies in one process are not compiled again."""
    _layers[recipe] = layer
    while len(_layers) > MOST:
        del _layers[next(iter(_layers))]


def _elaborated(recipe: Recipe) -> ir.Layer:
    texts = Imports({(name, by): Source(own, text) for name, by, own, text in recipe.imports})
    return elaborated(Source(*recipe.spec), recipe.layer, dict(recipe.given), importer=texts)


def compiled(recipe: Recipe, layer: ir.Layer) -> ModuleType:
    """The code of a recipe's layer; what it defines can be pickled, and says what it can do."""
    _keep(recipe, layer)
    made = load(text_of(layer, backend_here(recipe.backend), recipe.linear), snake(layer.name))
    _register(made, recipe)
    return made


def _register(made: ModuleType, recipe: Recipe) -> None:
    """Let pickles of what a generated module defines carry its recipe."""
    from torch import nn

    for kind in vars(made).values():
        if isinstance(kind, type) and kind.__module__ == made.__name__:
            if issubclass(kind, nn.Module):
                copyreg.pickle(kind, _reduced)  # type: ignore[arg-type]
                kind.__repr__ = _shown  # type: ignore[method-assign]
            elif issubclass(kind, tuple):
                copyreg.pickle(kind, partial(_reduced_state, recipe))  # type: ignore[arg-type]


# --- what a module keeps ------------------------------------------------------------------------


@dataclass(frozen=True)
class Origin:
    """The layer IR that a module computes, the numbers for its sizes, the recipe of the code, and
    by which calls of the recipe's layer the module stands in it."""

    layer: ir.Layer
    sizes: Mapping[str, Number]
    recipe: Recipe
    path: tuple[str, ...] = ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Origin:
        return self  # nothing changes it: copies of a module share it


def tell(module: nn.Module, origin: Origin) -> None:
    """Let a module, and the layers in it, know what they were made from."""
    vars(module)["_archc"] = origin
    for _, call in origin.layer.calls:
        if call.callee.kind != "argument":
            tell(at_path(module, call.path), _called(origin, call))


def _called(origin: Origin, call: ir.Call) -> Origin:
    """The origin of a layer that another one calls."""
    sizes = callee_sizes(call, origin.sizes)
    return Origin(call.callee, sizes, origin.recipe, (*origin.path, call.path))


def origin_of(module: nn.Module) -> Origin:
    """The origin of a module; ValueError for one that archc has not made."""
    origin = getattr(module, "_archc", None)
    if not isinstance(origin, Origin):
        raise ValueError(f"{type(module).__name__} was not made by `Spec.module`, nor is in one")
    return origin


def blocks_of(module: nn.Module, origin: Origin) -> list[nn.Module]:
    """The layers that a `repeat` of the spec made, in order, as far as they are on this process; of
    those inside one another the outermost."""
    found, here = [], {path for path, _ in module.named_modules()}
    for _, call in origin.layer.calls:
        path = ".".join(p if p.isdigit() else attribute(p) for p in call.path.split("."))
        if path not in here:
            continue
        inner = at_path(module, call.path)
        if call.path.rpartition(".")[2].isdigit():
            found.append(inner)
        elif call.callee.kind != "argument":
            found += blocks_of(inner, origin_of(inner))
    return list(dict.fromkeys(found))


def _shown(module: nn.Module) -> str:
    """A module as nn.Module prints it, and what it can do on a GPU."""
    from torch import nn

    text, origin = nn.Module.__repr__(module), vars(module).get("_archc")
    if origin is None or origin.path:
        return text
    if origin.recipe.backend == "eager":
        lines = 'in PyTorch on every device, by backend="eager"'
    elif origin.recipe.backend == "triton" or _launches(module):
        lines = str(kernels_of(origin.layer))
    else:
        lines = "in PyTorch, as torch saw no GPU when it was made"
    return f"{text}\n{textwrap.indent(lines, '# ')}"


def _launches(module: nn.Module) -> bool:
    """Whether the code of a module has kernels."""
    known = vars(sys.modules[type(module).__module__])
    return not {"triton", "tl", "launch_kernel"}.isdisjoint(known)


# --- pickles ------------------------------------------------------------------------------------


def _reduced(module: nn.Module) -> tuple[Any, ...]:
    """A module as a pickle has it: its recipe, its own sizes, and what it holds."""
    found = dict(vars(module))
    origin = found.pop("_archc", None)
    if origin is None:  # made from the class by hand: as any other
        return copyreg.__newobj__, (type(module),), found  # type: ignore[attr-defined]
    sizes = tuple(origin.sizes.items())
    return _module, (origin.recipe, origin.path, type(module).__name__, sizes), found


def _reduced_state(recipe: Recipe, state: tuple[Any, ...]) -> tuple[Callable[..., Any], tuple]:
    """A state as a pickle has it."""
    return _state, (recipe, type(state).__name__, tuple(state))


def _module(
    recipe: Recipe, path: tuple[str, ...], name: str, sizes: tuple[tuple[str, Number], ...]
) -> nn.Module:
    """A module that holds nothing yet."""
    from torch import nn

    kind: Any = _defined(recipe, name, nn.Module)
    layer = layer_of(recipe)
    for each in path:
        layer = next(call.callee for _, call in layer.calls if call.path == each)
    module = kind.__new__(kind)
    vars(module)["_archc"] = Origin(layer, dict(sizes), recipe, path)
    return module


def _state(recipe: Recipe, name: str, values: tuple[Any, ...]) -> Any:
    return _defined(recipe, name, tuple)(*values)


def _defined(recipe: Recipe, name: str, kind: type) -> type:
    """A class that the code of a recipe defines."""
    _told(recipe.version)
    made = compiled(recipe, layer_of(recipe))
    found = vars(made).get(name)
    if isinstance(found, type) and found.__module__ == made.__name__ and issubclass(found, kind):
        return found
    raise ValueError(f"the code of {recipe.spec[0]} defines no {kind.__name__} `{name}`")


@lru_cache(maxsize=8)
def _told(version: str) -> None:
    """Say once that another version wrote a pickle."""
    here = metadata.version("archc")
    if version != here:
        warnings.warn(
            f"this was pickled by archc {version} and is compiled again by {here}; a state_dict is"
            " what versions have in common",
            ArchWarning,
            stacklevel=5,
        )
