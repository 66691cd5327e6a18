"""Known bugs of compilers and devices, and the workarounds of generated kernels.

Each quirk has a rule over the text of a generated file, which finds where the text would run into
it. Files are the same for every device, so every rule holds for every file; whether a quirk can
show on a machine is only said to its user (`archc doctor`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from archc.backends.triton.turned import DOTS, called, turned_products

from archc.tile.language import ROW

Version = tuple[int, ...]

SUPPORTED: Version = (3, 5)
"""The oldest Triton that kernels are made for."""

CAPABLE: Version = (8, 0)
"""The least compute capability: products of matrices in bfloat16 and tf32."""

SHORT = (".to(tl.float16)", ".to(tl.bfloat16)")

ADDRESSED = (
    "load", "store", "load_tile", "store_tile", "atomic_add", "atomic_max", "atomic_min",
)  # fmt: skip
"""Functions whose first argument is a place in memory."""

Rule = Callable[[ast.Module], Iterator[str]]


@dataclass(frozen=True)
class Quirk:
    """One hazard: where it shows (first and last compute capability and release of Triton, None: no
    end), what goes wrong, what is done instead, where it was reported, and the rule that finds it
    in a file."""

    id: str
    devices: tuple[Version, Version | None]
    triton: tuple[Version, Version | None]
    pattern: str
    instead: str
    sources: tuple[str, ...]
    found: Rule

    def shows(self, capability: Version | None, triton: Version | None) -> bool:
        """Whether it can show with a device and a Triton; an unknown one may have it."""
        return _within(capability, self.devices) and _within(triton, self.triton)


def _within(version: Version | None, span: tuple[Version, Version | None]) -> bool:
    if version is None:
        return True
    first, last = span
    return version[: len(first)] >= first and (last is None or version[: len(last)] <= last)


def breaches(text: str) -> list[str]:
    """The places where a file runs into a known bug: the bug's id, and the place."""
    tree = ast.parse(text)
    return [f"{quirk.id}: {place}" for quirk in QUIRKS for place in quirk.found(tree)]


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


# --- the table ------------------------------------------------------------------------------------

Span = tuple[Version, Version | None]
ANY: Span = ((0,), None)
HOPPER: Span = ((9, 0), (9, 0))
PEER = "source: https://github.com/fla-org/flash-linear-attention"
TRITON = "source: https://github.com/triton-lang/triton"

TURNED = Quirk(
    "turned-product", HOPPER, ((3, 4), None),
    "tl.dot(tl.trans(x), y), where x comes from a product of matrices, is wrong: the left factor is"
    " read from registers in the layout of that product",
    "the other factor is turned around, and the product comes out turned; where both come from"
    " products, PyTorch does it",
    (f"{PEER}/issues/640", f"{PEER}/pull/826"),
    _in_kernels(turned_products),
)  # fmt: skip

QUIRKS: tuple[Quirk, ...] = (
    TURNED,
    Quirk(
        "warps-of-a-setting", HOPPER, ((3, 4), (3, 7)),
        "the gradient of corrections along the rows of a chunk of 64 is wrong, or reads memory that"
        " is not its own, with some numbers of warps",
        "no setting is searched for when a kernel is called: each that there is is held against"
        " float64 on a GPU by `pytest -m gpu`",
        (f"{PEER}/issues/984", f"{PEER}/pull/988"),
        _searches,
    ),
    Quirk(
        "ptxas-12.8", HOPPER, ((3, 5), (3, 6)),
        "ptxas 12.8, Triton's assembler for GPUs before Blackwell, makes wrong addresses of the"
        " matrices of a product: c (a b) in bfloat16 of 64 rows and 16 or 32 columns is wrong, and"
        " larger kernels are wrong or read memory that is not there",
        "a file with kernels takes the newer ptxas that Triton has for Blackwell",
        (f"{PEER}/pull/1262", f"{TRITON}/issues/11366", f"{TRITON}/pull/8983",
         f"{TRITON}/pull/11781"),
        _old_assembler,
    ),
    Quirk(
        "products-and-more", HOPPER, ((3, 4), None),
        "a tile that a loop loads ahead, and that is a factor of a product as well as something"
        " else, has room for one block less than its products take: the last one of a turn reads"
        " while the next block but one is written (gradients 15 to 57 % off, other ones each time)",
        "what is not a product loads the tile once more",
        (f"{TRITON}/blob/main/lib/Dialect/TritonGPU/Transforms/Pipeliner/LowerLoops.cpp",),
        _in_kernels(_factors_and_more),
    ),
    Quirk(
        "tf32-by-default", ((8, 0), None), ANY,
        "tl.dot of float32 keeps 10 bits of each factor unless it is told otherwise",
        "every product says how exact it is: three products in tf32 for float32 data",
        ("source: https://triton-lang.org/main/python-api/generated/triton.language.dot.html",),
        _in_kernels(_without_precision),
    ),
    Quirk(
        "narrow-programs", ANY, ANY,
        "tl.program_id and what is made from it has 32 bits: places in tensors of more than 2^31"
        " elements wrap around",
        "it has 64 bits before it is multiplied by a stride",
        (f"{PEER}/pull/1082", f"{TRITON}/issues/1058"),
        _in_kernels(_narrow_programs),
    ),
    Quirk(
        "block-pointers", ANY, ((3, 7), None),
        "tl.make_block_ptr is deprecated, and later removed",
        "addresses are sums of strides",
        (f"{TRITON}/pull/9667",),
        _in_kernels(_block_pointers),
    ),
    Quirk(
        "in-place-autograd", ANY, ANY,
        "torch.compile moves what an autograd.Function writes in place to another time",
        "nothing is written in place inside of one that it sees",
        ("source: https://github.com/pytorch/pytorch/issues/154820",),
        _in_place,
    ),
)  # fmt: skip
"""Every quirk that is known to reach generated kernels."""
