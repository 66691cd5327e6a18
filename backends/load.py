"""Source text -> a Python module, without a file on disk."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import sys
from importlib.abc import SourceLoader
from types import ModuleType


class TextLoader(SourceLoader):
    """Loads one text as a module; tracebacks show its lines."""

    def __init__(self, name: str, text: str):
        self.name, self.text = name, text

    def get_filename(self, fullname: str) -> str:
        """The name that tracebacks show."""
        return f"<{self.name}>"

    def get_data(self, path: str) -> bytes:
        """The text; there is no cached bytecode beside it."""
        return self.text.encode("utf-8")

    def path_stats(self, path: str) -> dict[str, float]:
        """Never cached on disk."""
        raise OSError(path)


_loaded: dict[str, ModuleType] = {}


def load(text: str, title: str) -> ModuleType:
    """The module of a generated text; the same text is loaded once per process.

    `title` names it in tracebacks and pickles.
    """
    digest = hashlib.sha256(text.encode("utf-8")).hexdigest()
    if digest not in _loaded:
        name = f"archc_generated_{title}_{digest[:12]}"
        loader = TextLoader(name, text)
        spec = importlib.util.spec_from_loader(name, loader)
        assert spec is not None
        module = importlib.util.module_from_spec(spec)
        filename = loader.get_filename(name)
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        sys.modules[name] = module
        loader.exec_module(module)
        if hasattr(module, "use_tuned"):
            from archc.backends.measured import take  # torch is there by now

            take(module)
        _loaded[digest] = module
    return _loaded[digest]
