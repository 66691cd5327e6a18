"""What the documents show is true: specs compile, functions exist, the spec is the bundled one."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from click.testing import CliRunner

import archc
from archc.cli import archc as cli
from archc.compile import text_of
from archc.ir.picture import as_svg

ROOT = Path(__file__).parents[1]
LANGUAGE = (ROOT / "docs" / "language.md").read_text(encoding="utf-8")
TOY = (ROOT / "docs" / "toy.md").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text: str, language: str = "") -> list[str]:
    """Fenced blocks of a document, by what stands behind the fence."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_readme_shows_the_bundled_spec() -> None:
    spec = (ROOT / "specs" / "kda.arch").read_text(encoding="utf-8")
    assert spec in blocks(README)


def test_the_language_page_shows_specs_that_compile() -> None:
    specs = [block for block in blocks(LANGUAGE) if "layer " in block]
    assert specs
    for text in specs:
        archc.parse(text).module(d=8, H=2)


def test_the_language_page_lists_the_library() -> None:
    table = LANGUAGE.split("| function | what it is |")[1].split("\n\n")[0]
    listed = set(re.findall(r"`(\w+)[\[(]", table))
    files = (ROOT / "archc" / "library").glob("*.arch")
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    assert listed == set(re.findall(r"^function (\w+)", text, re.MULTILINE))


@pytest.mark.slow
def test_the_readme_python_runs(tmp_path: Path) -> None:
    """All of it, in order; pictures are drawn where matplotlib is installed."""
    code = "\n".join(blocks(README, "python"))
    if find_spec("matplotlib") is None:
        code = re.sub(r"^figure = .*$", "", code, flags=re.MULTILINE)
    shapes = "\nassert y.shape == (2, 40, 256) and o.shape == (2, 100, 4, 32)\n"
    done = subprocess.run(
        [sys.executable, "-c", code + shapes],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_picture_is_what_the_compiler_draws() -> None:
    """`archc show kda --as svg -o docs/kda.svg` makes it again."""
    picture = (ROOT / "docs" / "kda.svg").read_text(encoding="utf-8")
    assert picture.strip() == as_svg(archc.load("kda").layer).strip()


PAPERS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])


def test_papers_link_to_files_that_exist() -> None:
    for paper in PAPERS:
        text = re.sub(
            r"```.*?```|`[^`\n]*`", "", paper.read_text(encoding="utf-8"), flags=re.DOTALL
        )
        links = re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", text)
        missing = [link for link in links if not (paper.parent / link).is_file()]
        assert not missing, f"{paper.name}: {missing}"


def test_papers_say_everything_once() -> None:
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/*.md")):
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        heads = re.findall(r"^## .*$", text, re.MULTILINE)
        assert len(heads) == len({*heads}), f"{page.name}: headings stand there twice: {heads}"
        assert "@@" not in text, f"{page.name}: a place that was to be filled in"


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200


def test_measurements_name_their_records() -> None:
    """Every record is spoken of, and every one that is spoken of is there."""
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    records = {path.name for path in (ROOT / "benchmarks" / "results").iterdir()}
    assert set(re.findall(r"(\w+\.(?:json|txt))`", text)) == records


SHOWN = re.compile(r"`archc (show [^`]+?)`:\n\n```\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def with_toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds the spec of docs/toy.md, where commands run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy.arch").write_text(blocks(TOY)[0], encoding="utf-8")
    return tmp_path


@pytest.mark.default("docs/toy.md")
@pytest.mark.parametrize("paper", ["docs/toy.md", "ARCHITECTURE.md"])
def test_papers_show_what_is_printed(paper: str, with_toy: Path) -> None:
    """Each line of a box, in order; `...` stands for lines that are left out."""
    shown = SHOWN.findall((ROOT / paper).read_text(encoding="utf-8"))
    assert len(shown) >= 5
    for command, box in shown:
        done = CliRunner().invoke(cli, shlex.split(command))
        assert done.exit_code == 0, done.output
        printed = iter(done.stdout.splitlines())
        for line in box.splitlines():
            assert line == "..." or any(line == each for each in printed), f"{command}: {line}"


@pytest.mark.slow
def test_the_toy_is_right_by_hand_and_compiles_as_shown(with_toy: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(blocks(TOY, "python"))],
        cwd=with_toy,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = text_of(archc.load("toy.arch").layer, "triton")
    after = TOY.split("## 7.")[1]
    assert len(blocks(after)) == 2
    for box in blocks(after):
        assert box in text


def test_who_may_import_whom_is_what_is_checked() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    layers = " > ".join(contracts[0]["layers"]).replace("archc.", "")
    assert layers in [" ".join(block.split()) for block in blocks(text)]


def test_commits_of_recipes_are_in_the_history() -> None:
    if not (ROOT / ".git").exists() or not shutil.which("git"):
        pytest.skip("no history here")
    git = ["git", "-C", str(ROOT)]
    whole = [*git, "rev-parse", "--is-shallow-repository"]
    if subprocess.run(whole, capture_output=True, check=False).stdout.strip() != b"false":
        pytest.skip("no whole history here")
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    commits = set(re.findall(r"\b(?=[a-f]*\d)[0-9a-f]{7}\b", text))
    assert len(commits) >= 8
    for commit in sorted(commits):
        there = [*git, "merge-base", "--is-ancestor", commit, "HEAD"]
        assert subprocess.run(there, capture_output=True, check=False).returncode == 0, commit


@pytest.mark.parametrize("paper", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_papers_name_files_and_tables_that_exist(paper: str) -> None:
    """A path in backticks is there from the root; a name alone, in a folder of the same paper. A
    name in capitals, in a row of a table or before "of" a file, is a table of that file."""
    text = re.sub(r"```.*?```", "", (ROOT / paper).read_text(encoding="utf-8"), flags=re.DOTALL)
    quoted = set(re.findall(r"`([^`\s]+)`", text))
    named = {each for each in quoted if re.fullmatch(r"[\w./-]+(/|\.(py|md|toml|lark|arch))", each)}
    folders = {ROOT, *(ROOT / each for each in quoted if (ROOT / each).is_dir())}
    folders |= {(ROOT / each).parent for each in named}
    missing = [each for each in named if not any((folder / each).exists() for folder in folders)]
    for row in re.findall(r"^\|.*\|$", text, re.MULTILINE):
        files = [ROOT / each for each in re.findall(r"`([\w/.]+\.py)`", row)]
        source = "\n".join(each.read_text(encoding="utf-8") for each in files if each.is_file())
        tables = re.findall(r"`([A-Z_]{4,})`", row)
        missing += [each for each in tables if not re.search(rf"^{each}\b", source, re.MULTILINE)]
    for name, path in re.findall(r"`([A-Z_]{4,})`[\s\w]* of\s+`([\w/.]+\.py)`", text):
        source = (ROOT / path).read_text(encoding="utf-8")
        missing += [] if re.search(rf"^{name}\b", source, re.MULTILINE) else [f"{name} of {path}"]
    assert not missing, missing


def test_words_of_the_glossary_are_those_of_the_code() -> None:
    """Each word is in every file that its row or line names, as it is written there."""
    missing, words = [], 0
    for line in (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").splitlines():
        row = re.match(r"[|-] `([^`]+)`( \||:)", line)
        if row is None:
            continue
        files = re.findall(r"`([\w/.]+\.(?:py|md))`", line)
        assert files or row[2] == ":", line
        words += 1
        for name in files:
            text = " ".join((ROOT / name).read_text(encoding="utf-8").split())
            if not re.search(rf"(?<!\w){re.escape(row[1])}(?!\w)", text):
                missing.append(f"{row[1]}: {name}")
    assert words > 40
    assert not missing, missing


def test_words_that_the_glossary_drops_are_gone() -> None:
    """A line `- not "a", "b": ...` names words: no file of the compiler and no paper has one."""
    glossary = ROOT / "docs" / "glossary.md"
    lines = re.findall(r"^- not (.*?):", glossary.read_text(encoding="utf-8"), re.MULTILINE)
    words = [word for line in lines for word in re.findall(r'"([^"]+)"', line)]
    assert len(words) >= len(lines) > 0
    dropped = re.compile(rf"(?<![A-Za-z0-9.])({'|'.join(map(re.escape, words))})(?![A-Za-z0-9])")
    assert dropped.search(f"not {words[0]}, but") and dropped.search(f"is_{words[-1]}(x)")
    papers = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("archc/explain/*.md")]
    code = [path for folder in ("archc", "backends") for path in ROOT.glob(f"{folder}/**/*.py")]
    found = [
        f"{path.relative_to(ROOT)}: {each[1]}"
        for path in {*papers, *code} - {glossary}
        for each in dropped.finditer(path.read_text(encoding="utf-8"))
    ]
    assert not found, found
