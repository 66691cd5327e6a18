"""The definitions that a generated file takes from the runtime (`archc/runtime`), embedded or
imported.

The runtime is plain modules. Which definitions a text needs follows from its names: those that it
reads and that it neither defines nor takes from Python (`symtable` knows), then those that these
definitions read in turn, each where its own module has it from. A file embeds the definitions or
imports them; what they and the file import from elsewhere stands at its head.
"""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple

from archc.backends.lines import laid_out
from archc.backends.writer import INDENT, PACKAGE, runtime_modules

from archc.diagnostics import InternalError

OF_GLUON = (
    "gluon", "gl", "fence_async_shared", "mbarrier", "tma", "warpgroup_mma", "warpgroup_mma_wait",
)  # fmt: skip
OPTIONAL = ("triton", "tl", *OF_GLUON)
"""Names that may be None: modules of Triton, and of its Gluon."""

TRITON = """try:
    import triton
    import triton.language as tl
except ImportError:  # what is done without a GPU needs none
    triton = tl = None"""

GLUON = """try:
    import triton.experimental.gluon as gluon
    import triton.experimental.gluon.language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared, mbarrier, tma, warpgroup_mma, warpgroup_mma_wait,
    )
except ImportError:  # not every Triton has it
    gluon = gl = fence_async_shared = mbarrier = tma = warpgroup_mma = warpgroup_mma_wait = None"""

LATER = "from __future__ import annotations"
"""At the head of a file whose functions have Triton's types, which may be missing."""


@dataclass(frozen=True, order=True)
class Import:
    """`from module import name as local`; without a name `import module as local`."""

    module: str
    name: str = ""
    local: str = ""

    @property
    def standard(self) -> bool:
        """Whether Python comes with it."""
        return self.module.partition(".")[0] in sys.stdlib_module_names


@dataclass(frozen=True)
class Definition:
    """A function, a class or a constant of the runtime: its module, text, and the names it
    reads."""

    name: str
    module: str
    text: str
    reads: frozenset[str]


@dataclass(frozen=True)
class Module:
    """A module of the runtime: what it defines, in order, and what its imports stand for."""

    name: str
    definitions: tuple[Definition, ...]
    imports: dict[str, Import]


@cache
def modules() -> dict[str, Module]:
    """The modules of the runtime by name, each after those that it imports."""
    found = {f"{PACKAGE}.{name}": each for name, each in runtime_modules().items()}
    read = {name: _module(name, *found[name]) for name in found if not name.endswith(".optional")}
    ordered: dict[str, Module] = {}

    def visit(name: str) -> None:
        for each in sorted({i.module for i in read[name].imports.values()} & {*read}):
            visit(each)
        ordered.setdefault(name, read[name])

    for name in read:
        visit(name)
    return ordered


def _module(name: str, text: str, tree: ast.Module) -> Module:
    """A module, read."""
    lines, found, imports = text.splitlines(), [], dict[str, Import]()
    for node in tree.body:
        match node:
            case ast.Import(names):
                imports |= {a.asname or a.name: Import(a.name, "", a.asname or "") for a in names}
            case ast.ImportFrom(names=names):
                own = node.module or ""
                imports |= {a.asname or a.name: Import(own, a.name, a.asname or "") for a in names}
            case ast.FunctionDef() | ast.ClassDef():
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                found.append(_definition(name, node.name, lines[first - 1 : node.end_lineno]))
            case ast.Assign(targets=[ast.Name(id=constant)]):
                found.append(_definition(name, constant, lines[node.lineno - 1 : node.end_lineno]))
    return Module(name, tuple(found), imports)


def _definition(module: str, name: str, lines: Sequence[str]) -> Definition:
    text = "\n".join(lines)
    return Definition(name, module, text, frozenset(names_read(text) - {name}))


def names_read(*texts: str) -> set[str]:
    """The names that texts of one file read but do not define: not those of Python."""
    found = [_names(text) for text in texts]
    read, defined = set[str](), {*dir(builtins), "__name__"}
    return read.union(*(each.read for each in found)).difference(
        defined, *(each.defined for each in found)
    )


class _Names(NamedTuple):
    """The names that a text reads from around its functions, and those that it defines there."""

    read: frozenset[str]
    defined: frozenset[str]


@lru_cache(maxsize=512)
def _names(text: str) -> _Names:
    """The names of a text; of one that a file is put together from several times only once."""
    table = symtable.symtable(text, "<text>", "exec")
    defined = {s.get_name() for s in table.get_symbols() if s.is_assigned() or s.is_imported()}
    return _Names(frozenset(_read(table)), frozenset(defined))


def _read(table: symtable.SymbolTable) -> Iterator[str]:
    """The global names that a scope and those inside it read."""
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (table.get_type() == "module" or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from _read(inner)


@cache
def exported() -> dict[str, Definition]:
    """Every definition of the runtime by its name."""
    found: dict[str, Definition] = {}
    for module in modules().values():
        for each in module.definitions:
            assert each.name not in found, f"two definitions of `{each.name}` in the runtime"
            found[each.name] = each
    return found


@cache
def imported() -> dict[str, Import]:
    """The runtime's imports from elsewhere, by their names there and in files."""
    found: dict[str, Import] = {}
    for module in modules().values():
        for name, each in module.imports.items():
            if not each.module.startswith(PACKAGE) and each.module != "__future__":
                assert found.setdefault(name, each) == each, f"two imports are called `{name}`"
    return found


# --- a file -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Needs:
    """The needs of texts: definitions of the runtime in order, and names of imports."""

    definitions: tuple[Definition, ...]
    imports: frozenset[str]


def needs_of(texts: Iterable[str], embedded: bool) -> Needs:
    """The needs of texts that stand together in a file; of definitions that are not embedded those
    alone that the texts name."""
    read, known = names_read(*texts), exported().keys()
    waiting, wanted = sorted(read & known), set[str]()
    outside = read - known
    while waiting:
        name = waiting.pop()
        if name not in wanted:
            wanted.add(name)
            within = exported()[name].reads if embedded else frozenset[str]()
            waiting += sorted(within & known)
            outside |= within - known
    missing = outside - {*imported(), *OPTIONAL}
    if missing:
        raise InternalError(f"a generated file reads {sorted(missing)}, which nothing defines")
    ordered = (d for module in modules().values() for d in module.definitions)
    return Needs(tuple(d for d in ordered if d.name in wanted), frozenset(outside))


def imports_of(needs: Needs, embedded: bool) -> list[str]:
    """The lines of the imports at the head of a file."""
    found = {imported()[name] for name in needs.imports - {*OPTIONAL}}
    optional = sorted(needs.imports & {*OPTIONAL})
    groups: list[list[str]] = [
        [LATER] if optional else [],
        _lines(each for each in found if each.standard),
        _lines([Import("torch"), *(each for each in found if not each.standard)]),
    ]
    if embedded:
        groups.append([*TRITON.splitlines()] if optional else [])
        groups.append([*GLUON.splitlines()] if {*optional} & {*OF_GLUON} else [])
    else:
        own = [Import(each.module, each.name) for each in needs.definitions]
        groups.append(_lines([*own, *(Import(f"{PACKAGE}.optional", name) for name in optional)]))
    lines: list[str] = []
    for group in filter(None, groups):
        lines += [*([""] if lines else []), *group]
    return lines


def _lines(found: Iterable[Import]) -> list[str]:
    """Import lines: whole modules first."""
    every = sorted({*found})
    lines = [
        f"import {each.module}{f' as {each.local}' if each.local else ''}"
        for each in every
        if not each.name
    ]
    for module in sorted({each.module for each in every if each.name}):
        names = [
            f"{each.name} as {each.local}" if each.local else each.name
            for each in every
            if each.module == module and each.name
        ]
        line = f"from {module} import {', '.join(names)}"
        if len(line) <= 100:
            lines.append(line)
        else:
            lines += [f"from {module} import (", *laid_out(names, INDENT, 96), ")"]
    return lines
