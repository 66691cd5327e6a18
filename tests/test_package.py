"""The wheel holds the whole package, and works where only the wheel is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {"archc": "archc", "backends": "archc/backends", "specs": "archc/specs"}

LOOK = """
import sys
sys.path.insert(0, sys.argv[1])
import archc, archc.backends.eager, archc.specs
from importlib.resources import files
for package in (archc, archc.backends, archc.specs):
    assert package.__file__.startswith(sys.argv[1]), package.__file__
assert files("archc.specs").joinpath("peers.py").is_file()  # archc bench --against
assert files("archc.specs").joinpath("kda.arch").read_text().startswith("layer KDA")
sys.modules["einops"] = None  # as where the extra `hf` is not installed
from click.testing import CliRunner
from archc.cli import archc as cli, main
said = CliRunner().invoke(cli, ["convert", "lm", "there", "-o", "here.safetensors"])
wanted = "archc.weights needs einops, which is not installed: pip install 'archc[hf]'"
assert said.exit_code == 2 and wanted in said.output, said.output
sys.argv = ["archc", "check", "kda"]
main()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy: building leaves files beside the sources."""
    copy = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", "."]
    subprocess.run([*command, "."], cwd=copy, check=True, capture_output=True, timeout=120)
    (built,) = copy.glob("archc-*.whl")
    return built


def test_every_file_is_in_the_wheel(wheel: Path) -> None:
    packed = set(zipfile.ZipFile(wheel).namelist())
    missing = [
        f"{source}/{path.relative_to(ROOT / source)}"
        for source, target in SOURCES.items()
        for path in sorted((ROOT / source).rglob("*"))
        if path.is_file()
        and "__pycache__" not in path.parts
        and f"{target}/{path.relative_to(ROOT / source)}" not in packed
    ]
    assert not missing, missing


def test_the_wheel_works_alone(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_readme_names_is_in_the_source_distribution() -> None:
    manifest = (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines()
    folders = {line.split()[1] for line in manifest if line.startswith("graft ")}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    named = re.findall(r"(?:\]\(|\s)((?:docs|examples|benchmarks|specs)/[\w./]+)", readme)
    assert len(named) > 8 and all((ROOT / name).exists() for name in named)
    assert {name.split("/")[0] for name in named} <= folders
