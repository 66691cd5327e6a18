"""archc: a compiler for sequence-model layers. A paper's equations in, a correct PyTorch layer out.

    Source        source.py    the text of a spec, and spans of it
      -> tree     syntax/      what it says, nothing looked up
      -> layer IR elaborate/   names, shapes and the one meaning of `@`; few ops (ir/layer.py)
      -> layer IR algebra/     equal values for less work; the memory of a layer alone (cut.py)
      -> Plan     compile.py   THE pipeline; file_check.py holds a small instance against meaning.py
      -> text     backends/    a standalone Python file
      -> module   api.py       `archc.load("my.arch").module(d=2304, H=32)`

Read in this order: source.py, dims.py, syntax/tree.py, ir/layer.py, elaborate/elaborate.py,
compile.py, api.py. Public names are resolved when they are first used, so that `import archc`
costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from archc import law, plot, serving, slots
    from archc.api import Spec, load, parse, save_pretrained
    from archc.balancing import auxiliary_loss, balance
    from archc.diagnostics import ArchError, ArchWarning
    from archc.mixer import MixerMatrix, mixer_matrix
    from archc.nan_search import FirstNaN, first_nan
    from archc.sampling import generate, stream
    from archc.speculation import speculative
    from archc.weight_decay import parameter_groups

__all__ = [
    "ArchError", "ArchWarning", "FirstNaN", "MixerMatrix", "Spec", "auxiliary_loss", "balance",
    "first_nan", "generate", "law", "load", "mixer_matrix", "parameter_groups", "parse", "plot",
    "save_pretrained", "serving", "slots", "speculative", "stream",
]  # fmt: skip

_HOMES = {
    "ArchError": "archc.diagnostics",
    "ArchWarning": "archc.diagnostics",
    "MixerMatrix": "archc.mixer",
    "Spec": "archc.api",
    "auxiliary_loss": "archc.balancing",
    "balance": "archc.balancing",
    "generate": "archc.sampling",
    "load": "archc.api",
    "FirstNaN": "archc.nan_search",
    "first_nan": "archc.nan_search",
    "mixer_matrix": "archc.mixer",
    "parameter_groups": "archc.weight_decay",
    "parse": "archc.api",
    "save_pretrained": "archc.api",
    "speculative": "archc.speculation",
    "stream": "archc.sampling",
}


def __getattr__(name: str) -> Any:
    """The public name, from the module that has it."""
    if name == "__version__":
        return import_module("importlib.metadata").version("archc")
    if name in ("law", "plot", "serving", "slots"):
        return import_module(f"archc.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module `archc` has no attribute `{name}`")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
