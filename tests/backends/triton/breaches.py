"""The places where a generated file would run into a known bug: a rule for each of `QUIRKS`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping

from archc.backends.triton.elementwise import TEXT

from archc.functions.definitions import FUNCTIONS
from archc.tile.language import ROW

DOTS = ("dot", "dot_apart")
"""The words for products of matrices in the text of a kernel."""

SHORT = (".to(tl.float16)", ".to(tl.bfloat16)")

ADDRESSED = (
    "load", "store", "load_tile", "store_tile", "atomic_add", "atomic_max", "atomic_min",
)  # fmt: skip
"""Functions whose first argument is a place in memory."""

TILED = frozenset(("real_power", "real_remainder", "real_quotient"))
"""Functions of these texts that Triton does not have."""

CALLED = TILED | {
    name
    for written, fn in FUNCTIONS.items()
    for name in re.findall(r"tl\.(\w+)\(", TEXT[written](*"xyz"[: fn.arity]))
}
"""Every function that these texts call, of Triton or not."""

Rule = Callable[[ast.Module], Iterator[str]]


def breaches(text: str) -> list[str]:
    """The places where a file runs into a known bug: the bug's id, and the place."""
    tree = ast.parse(text)
    return [f"{id}: {place}" for id, rule in RULES.items() for place in rule(tree)]


# --- rules over a file --------------------------------------------------------------------------


def kernels_of(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    """The functions of a file that Triton compiles."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            names = {ast.unparse(each).partition("(")[0] for each in node.decorator_list}
            if names & {"kernel", "triton.jit"}:
                yield node


def _calls(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def _in_kernels(rule: Callable[[ast.FunctionDef], Iterator[str]]) -> Rule:
    """A rule for each kernel."""

    def found(tree: ast.Module) -> Iterator[str]:
        for kernel in kernels_of(tree):
            yield from (f"{kernel.name}: {place}" for place in rule(kernel))

    return found


def _without_precision(kernel: ast.FunctionDef) -> Iterator[str]:
    """Products that do not say how exact they are, unless a factor has 16 bits by its text."""
    for call in _calls(kernel):
        said = "input_precision" in {each.arg for each in call.keywords}
        short = any(ast.unparse(each).endswith(SHORT) for each in call.args[:2])
        if called(call) in DOTS and not said and not short:
            yield ast.unparse(call)


def _narrow_programs(kernel: ast.FunctionDef) -> Iterator[str]:
    """Products in addresses of what `tl.program_id` makes, where nothing has 64 bits."""
    narrow, wide = set[str](), set[str]()
    for line in ast.walk(kernel):
        if isinstance(line, ast.Assign):
            made = [each.id for each in ast.walk(line.targets[0]) if isinstance(each, ast.Name)]
            by = called(line.value) if isinstance(line.value, ast.Call) else ""
            if by == "table_row":
                wide |= {made[ROW.index("sequence")], made[ROW.index("row")]}
            elif _is_wide(line.value, wide):
                wide |= {*made}
            elif _is_narrow(line.value, narrow) and (by == "grid_place" or len(made) == 1):
                narrow |= {*made}
    for address in _addresses(kernel):
        for product in _products(address):
            if _is_narrow(product, narrow) and not _is_wide(product, wide):
                yield ast.unparse(product)


def _products(value: ast.expr) -> Iterator[ast.BinOp]:
    """The products in an expression that are in no other: what is in one is a place, no offset."""
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        yield value
        return
    for part in ast.iter_child_nodes(value):
        if isinstance(part, ast.expr):
            yield from _products(part)


def _is_wide(value: ast.expr, wide: Collection[str]) -> bool:
    """Whether something in an index has 64 bits, and so has the index; or it is one of a tile: its
    places are near each other."""
    names = {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}
    casts = any(
        "tl.int64" in map(ast.unparse, call.args) or called(call) in ("arange", "along")
        for call in _calls(value)
    )
    return casts or bool(names & {*wide})


def _addresses(kernel: ast.FunctionDef) -> Iterator[ast.expr]:
    """Places in memory: of loads and stores, and lines that say where a tile begins."""
    for call in _calls(kernel):
        if called(call) in ADDRESSED:
            yield call.args[0]
    for line in ast.walk(kernel):
        if isinstance(line, ast.Assign | ast.AugAssign):
            target = line.target if isinstance(line, ast.AugAssign) else line.targets[0]
            if isinstance(target, ast.Name) and re.search(r"^at_|_at(_\d+)?$", target.id):
                yield line.value


def _is_narrow(value: ast.expr, narrow: Collection[str]) -> bool:
    """Whether an index is made from a program's place in the grid and has 32 bits."""
    calls = [*_calls(value)]
    if isinstance(value, ast.Compare) or any(called(call) == "load" for call in calls):
        return False
    names = {each.id for each in ast.walk(value) if isinstance(each, ast.Name)}
    return bool(names & {*narrow}) or any(
        called(call) in ("program_id", "grid_place") for call in calls
    )


def _factors_and_more(kernel: ast.FunctionDef) -> Iterator[str]:
    """Tiles that are loaded in a loop, factors of products there, and anything else as well."""
    for loop in ast.walk(kernel):
        if not isinstance(loop, ast.For | ast.While) or _loads_for_itself(loop):
            continue
        lines = [each for each in ast.walk(loop) if isinstance(each, ast.Assign)]
        loaded = {
            target.id for line in lines for target in line.targets
            if isinstance(line.value, ast.Call) and isinstance(target, ast.Name)
            and called(line.value) in ("load", "load_tile")
        }  # fmt: skip
        products = [call for call in _calls(loop) if called(call) in DOTS]
        factors = [_factor(each) for call in products for each in call.args[:2]]
        names = [n.id for n in ast.walk(loop)
                 if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]  # fmt: skip
        for name in sorted(loaded):
            if 0 < factors.count(name) < names.count(name):
                yield name


def _loads_for_itself(loop: ast.For | ast.While) -> bool:
    """Whether a loop says that no turn of it loads for another."""
    turns = loop.iter if isinstance(loop, ast.For) else None
    given = turns.keywords if isinstance(turns, ast.Call) else []
    return any(each.arg == "num_stages" and ast.unparse(each.value) == "1" for each in given)


def _factor(value: ast.expr) -> str:
    """The name of a factor, turned around or not."""
    while isinstance(value, ast.Call) and called(value) == "trans":
        value = value.args[0]
    return value.id if isinstance(value, ast.Name) else ""


def _block_pointers(kernel: ast.FunctionDef) -> Iterator[str]:
    for call in _calls(kernel):
        if called(call) in ("make_block_ptr", "advance"):
            yield ast.unparse(call)


def _searches(tree: ast.Module) -> Iterator[str]:
    """Settings that are chosen when a kernel is first called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in ("autotune", "heuristics"):
            yield ast.unparse(node)


def _old_assembler(tree: ast.Module) -> Iterator[str]:
    """Kernels that are made without a choice of the assembler."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            own = "triton.jit" in map(ast.unparse, node.decorator_list)
            makes = node.name == "kernel" and "newer_assembler" not in map(called, _calls(node))
            if own or makes:
                yield node.name


UNSEEN = ("ProductsOf",)
"""Functions of autograd that torch.compile never sees: `torch_alone` keeps them from it."""


def _in_place(tree: ast.Module) -> Iterator[str]:
    """Methods such as `x.add_(y)` in what tells autograd of a gradient, and the compiler sees."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef) or node.name in UNSEEN:
            continue
        if any("autograd.Function" in ast.unparse(base) for base in node.bases):
            for call in _calls(node):
                name = called(call)
                if name.endswith("_") and not name.startswith("_"):
                    yield f"{node.name}: {ast.unparse(call)}"


# --- products turned around ---


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


RULES: Mapping[str, Rule] = {
    "turned-product": _in_kernels(turned_products),
    "warps-of-a-setting": _searches,
    "ptxas-12.8": _old_assembler,
    "products-and-more": _in_kernels(_factors_and_more),
    "tf32-by-default": _in_kernels(_without_precision),
    "narrow-programs": _in_kernels(_narrow_programs),
    "block-pointers": _in_kernels(_block_pointers),
    "in-place-autograd": _in_place,
}
"""The rule of each quirk by its id."""
