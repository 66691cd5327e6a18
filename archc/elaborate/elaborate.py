"""Tree -> layer IR: look names up, check shapes, say everything in the few ops of the layer IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from typing import Any

import sympy

from archc.diagnostics import ArchError, Refused, Report, did_you_mean
from archc.dims import Undefined, at
from archc.elaborate import attend, calls, expr, index, select
from archc.elaborate.body import elaborate_layer
from archc.elaborate.scope import Module, Session, option
from archc.elaborate.statements import DEFINE
from archc.ir import layer as ir
from archc.source import Source
from archc.syntax import tree
from archc.syntax.parse import parse

Importer = Callable[[str, Source], Source]
"""Finds the text of an import: (file name as written, source that imports it) -> source."""

MAX_IMPORTS = 20
"""Longest chain of files that import one another."""

RULES: Mapping[type, Callable] = {
    tree.Name: expr.name,
    tree.Number: expr.number,
    tree.Text: expr.text,
    tree.ListOf: expr.list_of,
    tree.Unary: expr.unary,
    tree.Binary: expr.binary,
    tree.Compare: expr.compare,
    tree.Choice: expr.choice,
    tree.Transpose: expr.transpose,
    tree.Index: index.index,
    tree.Call: calls.call,
    tree.Along: attend.along,
    tree.OnBlocks: select.on_blocks,
}


def elaborate(
    file: tree.File, name: str | None, given: Mapping[str, object], importer: Importer
) -> ir.Layer:
    """The layer IR of one declaration of a file (None: the last layer of the file).

    `given` are sizes and options that decide conditions; other sizes stay symbols. Raises ArchError
    with every finding.
    """
    report = Report()
    session = Session(report, RULES, DEFINE, library())
    try:
        module = _Loader(importer, report).load(file)
        decl = choose(file, name, report)
        values = {key: option(value) for key, value in given.items()}
        unknown = sorted(set(values) - {parameter.name for parameter in decl.params})
        if unknown:
            known = [parameter.name for parameter in decl.params]
            raise report.error(
                "E0405",
                f"`{decl.name}` has no argument `{unknown[0]}`",
                decl.header,
                helps=did_you_mean(unknown[0], known) or [f"it has {', '.join(known) or 'none'}"],
            )
        layer = elaborate_layer(session, module, decl, values, symbolic=set())
        _check_requirements(layer, report)
    except Refused:
        report.check()
        raise
    report.check()
    return layer


def _check_requirements(layer: ir.Layer, report: Report) -> None:
    """Refuse sizes, given or by default, that break a condition of the layer."""
    values: dict[str, sympy.Expr] = {}
    for arg in layer.args:
        if arg.symbol is not None and arg.default is not None:
            values[arg.name] = _known(arg.default, values)
    for requirement in layer.requirements:
        if _known(requirement.condition, values) is sympy.false:
            names = sorted(str(symbol) for symbol in requirement.condition.free_symbols)
            known = [f"`{name}` is {values[name]}" for name in names if name in values]
            report.error(
                "E0401",
                f"`{requirement.text}` does not hold",
                requirement.span,
                "required here",
                notes=[", ".join(known)],
            )


def _known(value: Any, values: Mapping[str, sympy.Expr]) -> Any:
    """An expression or condition with the sizes put in that are known; as it was if that fails."""
    try:
        return at(value, values)
    except Undefined:
        return value


def choose(file: tree.File, name: str | None, report: Report) -> tree.Decl:
    """The declaration to elaborate: by name, or the last layer, block or model of the file."""
    layers = [decl for decl in file.decls if decl.kind != "function"]
    if name is None:
        if not layers:
            raise report.error("E0010", "the spec declares no layer", file.decls[-1].header)
        return layers[-1]
    for decl in layers:
        if decl.name == name:
            return decl
    raise report.error(
        "E0204",
        f"no layer `{name}` in {file.span.source.name}",
        helps=[
            *did_you_mean(name, [d.name for d in layers]),
            "it has " + ", ".join(d.name for d in layers),
        ],
    )


@dataclass
class _Loader:
    """Reads what files import, each file once."""

    importer: Importer
    report: Report
    loading: list[tuple[str, str]] = field(default_factory=list)
    loaded: dict[tuple[str, str], Module] = field(default_factory=dict)

    def load(self, file: tree.File) -> Module:
        """The declarations a file sees, with those it imports."""
        source = file.span.source
        module = Module(source, {})
        key = _identity(source)
        self.loading.append(key)
        for decl in file.decls:
            if decl.name in module.decls:
                self.report.error(
                    "E0210",
                    f"`{decl.name}` is declared twice",
                    decl.header,
                    "again here",
                    others=[(module.decls[decl.name].header, "first here")],
                )
            module.decls[decl.name] = decl
        for node in file.imports:
            self._bind(module, node)
        self.loading.pop()
        self.loaded[key] = module
        return module

    def _bind(self, module: Module, node: tree.Import) -> None:
        """The names of one import statement."""
        other = self._imported(module.source, node)
        for name in node.names:
            if name not in other.decls:
                raise self.report.error(
                    "E0219",
                    f"no `{name}` in {node.path}",
                    node.span,
                    helps=did_you_mean(name, other.decls),
                )
            if name in module.decls:
                raise self.report.error(
                    "E0210", f"`{name}` is declared twice", node.span, "imported here"
                )
            module.decls[name] = other.decls[name]
            module.homes[name] = other.homes.get(name, other)

    def _imported(self, source: Source, node: tree.Import) -> Module:
        """The module of one import statement; imports may not go round in a circle."""
        try:
            text = self.importer(node.path, source)
        except ArchError as error:
            first = error.diagnostics[0]
            raise self.report.error(
                first.code, first.message, node.span, helps=first.helps
            ) from None
        key = _identity(text)
        if key in self.loading:
            ways = " and ".join(name for name, _ in self.loading[self.loading.index(key) :])
            raise self.report.error(
                "E0219", f"{node.path} imports itself, by way of {ways}", node.span
            )
        if len(self.loading) >= MAX_IMPORTS:
            raise self.report.error(
                "E0219", f"more than {MAX_IMPORTS} files import one another", node.span
            )
        return self.loaded.get(key) or self.load(parse(text))


def _identity(source: Source) -> tuple[str, str]:
    """The key by which sources are one: a bundled spec may be called as a file beside this one."""
    return source.name, source.sha256


@lru_cache(maxsize=1)
def library() -> Mapping[str, tree.Decl]:
    """The library functions by name."""
    functions: dict[str, tree.Decl] = {}
    for path in sorted(resources.files("archc.library").iterdir(), key=lambda path: path.name):
        if path.name.endswith(".arch"):
            file = parse(Source(f"library/{path.name}", path.read_text("utf-8")))
            functions |= {decl.name: decl for decl in file.decls}
    return functions
