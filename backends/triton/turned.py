"""Finds products of matrices that are turned around to be the left factor of another."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from archc.backends.triton.elementwise import CALLED

DOTS = ("dot", "dot_apart")
"""The words for products of matrices in the text of a kernel."""


def turned_products(kernel: ast.FunctionDef) -> Iterator[str]:
    """Each `tl.dot(tl.trans(x), y)` of a kernel in which x comes from a product."""
    found = _Values()
    found.run(kernel.body)
    yield from dict.fromkeys(found.places)


class _Values:
    """The names that come from products, and those that are one turned around."""

    def __init__(self) -> None:
        self.products: set[str] = set()
        self.turned: set[str] = set()
        self.places: list[str] = []

    def run(self, body: list[ast.stmt]) -> None:
        """Follow the lines of a kernel in order."""
        for line in body:
            for _ in range(2):  # what a loop carries comes from products of the step before
                self.run(getattr(line, "body", []))
            self.run(getattr(line, "orelse", []))
            if isinstance(line, ast.Assign | ast.AugAssign):
                self._look(line.value)
                targets = line.targets if isinstance(line, ast.Assign) else [line.target]
                for target in targets:
                    self._assign(target, line.value, isinstance(line, ast.AugAssign))

    def _look(self, value: ast.expr) -> None:
        for call in ast.walk(value):
            if (
                isinstance(call, ast.Call)
                and called(call) in DOTS
                and self._is_turned(call.args[0])
            ):
                self.places.append(ast.unparse(call))

    def _assign(self, target: ast.expr, value: ast.expr, added: bool) -> None:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            for one, other in zip(target.elts, value.elts, strict=True):
                self._assign(one, other, added)
        elif isinstance(target, ast.Name):
            for names, holds in (
                (self.products, self._from_product(value)),
                (self.turned, self._is_turned(value)),
            ):
                if holds:
                    names.add(target.id)
                elif not added:
                    names.discard(target.id)

    def _is_turned(self, value: ast.expr) -> bool:
        """Whether a value is a product turned around, whatever its dtype."""
        if isinstance(value, ast.Name):
            return value.id in self.turned
        if not isinstance(value, ast.Call):
            return False
        if called(value) == "to" and isinstance(value.func, ast.Attribute):
            return self._is_turned(value.func.value)
        return called(value) == "trans" and self._from_product(value.args[0])

    def _from_product(self, value: ast.expr) -> bool:
        """Whether a value is a product, or made from one element by element."""
        if isinstance(value, ast.Name):
            return value.id in self.products
        if isinstance(value, ast.BinOp):
            return self._from_product(value.left) or self._from_product(value.right)
        if isinstance(value, ast.UnaryOp):
            return self._from_product(value.operand)
        if not isinstance(value, ast.Call):
            return False
        name = called(value)
        if name == "to" and isinstance(value.func, ast.Attribute):
            return self._from_product(value.func.value)
        if name in CALLED:  # laid out as its operands are
            return any(map(self._from_product, value.args))
        return name in DOTS


def called(call: ast.Call) -> str:
    """The last name of what is called: `dot` of `tl.dot(a, b)`."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
