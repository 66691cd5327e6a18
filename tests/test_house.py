"""The rules of the house: layers of imports, budgets, names, and what no file may contain."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
COMPILER = sorted([*ROOT.glob("archc/**/*.py"), *ROOT.glob("backends/**/*.py")])
PYTHON = sorted(
    [*COMPILER, *ROOT.glob("specs/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("examples/*.py")]
)

ARCHITECTURES = """
    attnres|bitnet|comba|deepseek\\w*|delta_?net|delta_?product|deltarule|dsa|fla|forgetting|
    fox|gated_?delta\\w*|gdn|gla|gpt\\w*|gqa|griffin|hawk|hgrn\\w*|hyena|hyper_?connect\\w*|
    jamba|kda|kimi\\w*|lfm\\w*|linear_?attention|lion|llama\\w*|longformer|lstm|mamba\\w*|
    mesa\\w*|mhc|mixtral|mla|mlstm|moba|moe|mom|mqa|nsa|path_?fox|path_?attention|qwen\\w*|
    retnet|rwkv\\w*|s4|s5|s6|selective_?ssm|slstm|ssm|swiglu|transformers?|ttt|xlstm
"""
NAMED = re.compile(rf"(?<![A-Za-z])({''.join(ARCHITECTURES.split())})(?![A-Za-z])", re.IGNORECASE)
EXAMPLE = re.compile(
    r"`[^`\n]*`|\b\w+\.arch\b|\barchc [a-z].*|\bsource: .*|\benable_gqa\b|"
    r"^(from|import) transformers\b"
)
"""What may name one: what a user types as an example (`archc compile kda`), a cited source, an
argument of torch's that is called so, and the library of that name."""

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")
MACHINE = re.compile(r"(^|[\s\"'(=:])/(work|farm|root|home|tmp|Users)/", re.MULTILINE)
EVALUATES = {"eval", "exec", "__import__"}
VAGUE = {"utils.py", "util.py", "common.py", "helpers.py", "helper.py", "base.py", "misc.py"}


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@cache
def looked_at(path: Path) -> tuple[list[tuple[int, int, str]], list[str]]:
    """The functions of a file, each with its line, length and name; and what it evaluates and
    catches, with the line."""
    functions, found = [], []
    inside = relative(path).startswith("tests")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            functions.append((node.lineno, length, node.name))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            bare = isinstance(node.func, ast.Name)
            called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
            if not inside and (called == "sympify" or (bare and called in EVALUATES)):
                found.append(f"{node.lineno}: {called}")
        elif isinstance(node, ast.ExceptHandler):
            caught = ast.unparse(node.type) if node.type else "everything"
            if caught in ("everything", "Exception", "BaseException"):
                found.append(f"{node.lineno}: catches {caught}")
    return functions, found


def test_ruff_finds_nothing() -> None:
    ruff = [str(Path(sys.executable).parent / "ruff"), "check", "--output-format", "concise", "."]
    done = subprocess.run(ruff, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_imports_follow_the_layers(tmp_path: Path) -> None:
    """import-linter reads packages from one folder, so the tree is laid out as it is installed."""
    for package, source in PYPROJECT["tool"]["setuptools"]["package-dir"].items():
        shutil.copytree(ROOT / source, tmp_path / package.replace(".", "/"), dirs_exist_ok=True)
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run(
        [str(linter), "--no-cache", "--config", str(ROOT / "pyproject.toml")],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", done.stdout), done.stdout


def test_every_package_is_installed() -> None:
    settings = PYPROJECT["tool"]["setuptools"]
    there = set()
    for package, source in settings["package-dir"].items():
        for init in (ROOT / source).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / source).parts
            there.add(".".join((package, *inner)))
    assert there == set(settings["packages"])


def test_no_architecture_is_named_in_the_compiler() -> None:
    files = [*COMPILER, *ROOT.glob("archc/**/*.lark"), *ROOT.glob("archc/**/*.arch")]
    found = []
    for path in files:
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            if NAMED.search(line) and (match := NAMED.search(EXAMPLE.sub("", line))):
                found.append(f"{relative(path)}:{number}: {match[0]}: {line.strip()}")
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("if layer.name == 'KDA':", True),
        ("def fuse_mlstm(graph):", True),
        ("GLA_CHUNK = 64", True),
        ("# as in Mamba-2", True),
        ("  archc compile kda -o kda_kernel.py", False),
        ('"""How blocks overlap. source: NSA, eq. 9"""', False),
        ("replace the flag of a planet", False),
    ],
)
def test_the_word_list_finds_names(line: str, named: bool) -> None:
    assert bool(NAMED.search(EXAMPLE.sub("", line))) is named


def test_files_and_functions_are_short() -> None:
    long = []
    for path in PYTHON:
        lines = path.read_text(encoding="utf-8").split("\n")
        if len(lines) > 601:
            long.append(f"{relative(path)}: {len(lines) - 1} lines, at most 600")
        long += [
            f"{relative(path)}:{number}: {len(line)} columns, at most 100"
            for number, line in enumerate(lines, 1)
            if len(line) > 100
        ]
        for number, length, name in looked_at(path)[0]:
            if length > 40:
                long.append(f"{relative(path)}:{number}: {name}: {length} lines")
    assert not long, "\n".join(long)


def test_nothing_is_evaluated_hidden_or_unfinished() -> None:
    found = []
    for path in PYTHON:
        if path == Path(__file__):
            continue
        text = path.read_text(encoding="utf-8")
        found += [f"{relative(path)}:{each}" for each in looked_at(path)[1]]
        found += [f"{relative(path)}: {match[0]}" for match in UNFINISHED.finditer(text)]
        found += [
            f"{relative(path)}: a machine's path {match[0]}" for match in MACHINE.finditer(text)
        ]
        if path.name in VAGUE:
            found.append(f"{relative(path)}: a name that says nothing")
    assert not found, "\n".join(found)


def test_public_things_say_what_they_are() -> None:
    """Modules, public classes, and public functions that do not fit a glance have a docstring."""
    silent = []
    for path in COMPILER:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if tree.body and not ast.get_docstring(tree):
            silent.append(relative(path))
        for node in tree.body:
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
                continue
            if ast.get_docstring(node):
                continue
            glance = isinstance(node, ast.FunctionDef) and len(ast.unparse(node).split("\n")) <= 12
            if not glance:
                silent.append(f"{relative(path)}:{node.lineno}: {node.name}")
    assert not silent, "\n".join(silent)
