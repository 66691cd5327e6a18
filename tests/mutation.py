"""Mistakes of one line that someone might make in the compiler: its code, and the text of generated
files that its strings hold.

No mutant is made where it would mean the same, or nothing at all:

- in docstrings, annotations, imports, decorators (sizes of caches, frozen classes), assertions;
- in what `raise` and warnings say, and in `strict=` of a `zip` of equal lengths;
- in the order of arguments that may have any (`max`, `minimum`);
- in the text of strings outside of `backends/`, and there in prose;
- where the tree of the file stays the same.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import sha256
from pathlib import Path

SWAPPED = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"),
}  # fmt: skip
"""Comparisons, and what each becomes."""

IN_STRINGS = (
    (r" < ", " <= "), (r" <= ", " < "), (r" > ", " >= "), (r" >= ", " > "), (r" == ", " != "),
    (r" \+ ", " - "), (r" - ", " + "), (r" & ", " | "), (r" \* ", " + "), (r" // ", " % "),
    (r"\b0\.0\b", "1.0"), (r"(?<![\w.])0(?![\w.])", "1"), (r"(?<![\w.])1(?![\w.])", "2"),
    (r"\.amax\(", ".amin("), (r"\bTrue\b", "False"), (r"\bFalse\b", "True"), (r" not ", " "),
)  # fmt: skip
"""Text of generated code, and what each match becomes."""

PROSE = re.compile(r"[A-Za-z]{2,},? [a-z]{2,} [a-z]{2,}|^#|^\s*$")
TELLING = {"warn", "fail", "InternalError", "Refused", "compile", "Decision"}
"""Calls whose strings are for a reader."""

ANY_ORDER = {"max", "min", "maximum", "minimum", "gcd", "lcm", "add", "mul", "union", "isdisjoint"}
"""Functions of whose arguments any may be the first."""


@dataclass(frozen=True)
class Mutant:
    """One line of a file, and what stands there instead."""

    file: str
    line: int
    kind: str
    before: str
    after: str
    drawn_in: str = ""
    """Its file at first, if the line has moved to another since."""

    @cached_property
    def id(self) -> str:
        """The same wherever the line moves to."""
        text = "\0".join([self.drawn_in or self.file, self.before.strip(), self.after.strip()])
        return sha256(text.encode()).hexdigest()[:12]

    def __str__(self) -> str:
        return f"{self.file}:{self.line}  {self.kind}: {self.before.strip()}  ->  {self.changed}"

    @property
    def changed(self) -> str:
        """The new line, as it reads."""
        return self.after.strip()


class Mutator(ast.NodeVisitor):
    """All mutants of a file."""

    def __init__(self, root: Path, file: str):
        self.file = file
        self.lines = (root / file).read_text("utf-8").split("\n")
        self.strings = file.startswith("backends/")
        self.found: list[Mutant] = []
        self.visit(ast.parse("\n".join(self.lines)))

    # --- text ---

    def text(self, node: ast.AST) -> str:
        return self.between(node, node.col_offset, node.end_col_offset)

    def between(self, node: ast.AST, first: int, end: int) -> str:
        """Columns of ast are bytes."""
        return self.lines[node.lineno - 1].encode()[first:end].decode()

    def add(self, kind: str, line: int, first: int, end: int, new: str) -> None:
        """A mutant that has `new` in place of some columns of a line."""
        old = self.lines[line - 1]
        raw = old.encode()
        after = raw[:first].decode() + new + raw[end:].decode()
        if after != old:
            self.found.append(Mutant(self.file, line, kind, old, after))

    def replace(self, kind: str, node: ast.AST, new: str) -> None:
        if node.lineno == node.end_lineno:
            self.add(kind, node.lineno, node.col_offset, node.end_col_offset, new)

    def gap(self, kind: str, left: ast.AST, right: ast.AST, old: str, new: str) -> None:
        """What stands between two nodes of a line, with another operator."""
        if left.end_lineno == right.lineno:
            text = self.lines[right.lineno - 1].encode()[left.end_col_offset : right.col_offset]
            swapped = text.decode().replace(old, new, 1)
            self.add(kind, right.lineno, left.end_col_offset, right.col_offset, swapped)

    # --- what is left alone ---

    def generic_visit(self, node: ast.AST) -> None:
        for name, value in ast.iter_fields(node):
            if name in ("decorator_list", "annotation", "returns", "type_params"):
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    self.visit(each)

    def body(self, node: ast.AST) -> None:
        """Everything but a docstring."""
        for each in node.body:
            if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)):
                self.visit(each)

    def visit_Module(self, node: ast.Module) -> None:
        self.body(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.body(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self.visit(node.args)
        self.body(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        """What is asserted holds already."""

    def visit_Raise(self, node: ast.Raise) -> None:
        """What is said is for a reader; whether it is said is the condition before it."""

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg not in ("strict", "stacklevel"):
            self.generic_visit(node)

    def visit_arguments(self, node: ast.arguments) -> None:
        for each in (*node.defaults, *filter(None, node.kw_defaults)):
            self.visit(each)

    def visit_If(self, node: ast.If) -> None:
        if self.text(node.test) in ("TYPE_CHECKING", '__name__ == "__main__"'):
            return
        self.negate(node.test)
        self.generic_visit(node)

    # --- operators ---

    def negate(self, test: ast.AST) -> None:
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            return  # its `not` is removed
        self.replace("negated condition", test, f"not ({self.text(test)})")

    def visit_While(self, node: ast.While) -> None:
        self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self.negate(node.test)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.replace("dropped condition", test, "True")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self.replace("negated condition", node, f"({self.text(node.operand)})")
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            self.replace("off by one", node, str(ast.literal_eval(node) + 1))
        else:
            self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        old, new = SWAPPED[type(node.ops[0])]
        self.gap("swapped comparison", node.left, node.comparators[0], old, new)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        for left, right in zip(node.values, node.values[1:], strict=False):
            self.gap("and for or", left, right, old, new)
            if left.end_lineno == right.end_lineno:
                first, end = left.end_col_offset, right.end_col_offset
                rest = self.between(right, first, end)
                if rest.count("(") == rest.count(")"):
                    self.add("dropped condition", right.lineno, first, end, "")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        text = (ast.JoinedStr, ast.List, ast.ListComp)
        sides = (node.left, node.right)
        plain = not any(
            isinstance(x, text) or (isinstance(x, ast.Constant) and isinstance(x.value, str))
            for x in sides
        )
        if isinstance(node.op, ast.Add | ast.Sub) and plain:
            old, new = ("+", "-") if isinstance(node.op, ast.Add) else ("-", "+")
            self.gap("plus for minus", *sides, old, new)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.replace("another flag", node, str(not node.value))
        elif isinstance(node.value, int):
            self.replace("off by one", node, str(node.value + 1))
        elif isinstance(node.value, str) and self.strings:
            self.visit_text(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else self.text(node.func)
        if name in TELLING:
            return
        args = node.args[:2]
        starred = any(isinstance(each, ast.Starred) for each in args)
        if len(args) == 2 and not starred and name not in ANY_ORDER:
            one, other = args
            if one.lineno == other.end_lineno and one.lineno == one.end_lineno:
                middle = self.between(one, one.end_col_offset, other.col_offset)
                swapped = self.text(other) + middle + self.text(one)
                where = one.lineno, one.col_offset, other.end_col_offset
                self.add("swapped arguments", *where, swapped)
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.replace("removed line", node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.replace("removed line", node, "pass")
        self.generic_visit(node)

    def visit_Continue(self, node: ast.Continue) -> None:
        self.replace("removed line", node, "pass")

    def visit_Assign(self, node: ast.Assign) -> None:
        target = node.targets[0]
        if isinstance(target, ast.Name):
            used = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
            if target.id == "__all__":
                return
            if target.id in used:
                self.replace("removed line", node, "pass")
        self.generic_visit(node)

    # --- the text of generated files ---

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        if self.strings:
            self.visit_text(node)

    def visit_text(self, node: ast.Constant | ast.JoinedStr) -> None:
        """A string on one line: what is between its quotes, without what is filled in."""
        if node.lineno != node.end_lineno:
            return
        raw = self.text(node)
        inner = without_fields(raw) if isinstance(node, ast.JoinedStr) else raw
        if PROSE.search(inner.strip("frb\"'").strip()) or not re.search(r"[^\w\s]", inner[1:-1]):
            return
        for pattern, new in IN_STRINGS:
            for match in re.finditer(pattern, inner):
                start = match.start()
                changed = raw[:start] + new + raw[match.end() :]
                self.replace(f"in text: `{match[0].strip()}`", node, changed)


def without_fields(text: str) -> str:
    """An f-string with every field blotted out, as long as it was."""
    out, depth = [], 0
    for at, letter in enumerate(text):
        double = text[at : at + 2] in ("{{", "}}") or text[at - 1 : at + 1] in ("{{", "}}")
        depth += 0 if double else (letter == "{") - (letter == "}")
        out.append("@" if depth or letter in "{}" else letter)
    return "".join(out)


def mutants_of(root: Path, file: str) -> dict[int, list[Mutant]]:
    """Those of a file, by line."""
    lines: dict[int, list[Mutant]] = {}
    for each in dict.fromkeys(Mutator(root, file).found):
        lines.setdefault(each.line, []).append(each)
    return lines


def home_of(text: str, line: int) -> str:
    """The class and the function that a line stands in, by name: `Class.function`."""
    return ".".join(name for first, last, name in homes(text) if first <= line <= last)


@lru_cache(maxsize=1024)
def homes(text: str) -> list[tuple[int, int, str]]:
    """All classes and functions: the first line, the last, and the name."""
    kinds = (ast.ClassDef, ast.FunctionDef)
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    return sorted((node.lineno, node.end_lineno or 0, node.name) for node in found)


def mutated(text: str, mutant: Mutant) -> str:
    """The text of its file with the mutant in it."""
    lines = text.split("\n")
    assert lines[mutant.line - 1] == mutant.before
    lines[mutant.line - 1] = mutant.after
    return "\n".join(lines)


def is_another(text: str, mutant: Mutant) -> bool:
    """Whether Python takes it, and it is another program."""
    try:
        tree = ast.parse(mutated(text, mutant))
    except SyntaxError:
        return False
    return ast.dump(tree) != ast.dump(ast.parse(text))
