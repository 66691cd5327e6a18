"""Generated files whose attends launch kernels."""

from __future__ import annotations

import ast
from collections import Counter
from importlib import resources

from archc.backends.writer import PIECES


def test_no_two_pieces_have_one_name():
    """Files are put together from functions by name: the later of two would be both."""
    names: Counter[str] = Counter()
    for package in (*PIECES, "archc.runtime"):
        for file in resources.files(package).iterdir():
            if file.name.endswith("pieces.py") or package == "archc.runtime":
                if not file.name.endswith(".py"):
                    continue
                body = ast.parse(file.read_text("utf-8")).body
                defined = [n.name for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
                names.update(name for name in defined if name != "__getattr__")
    assert not [name for name, count in names.items() if count > 1]
