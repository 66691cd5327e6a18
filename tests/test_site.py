"""The site builds without a warning, and what its guides show runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [
    path
    for path in sorted((ROOT / "docs").rglob("*.md"))
    if BLOCK.search(path.read_text(encoding="utf-8")) and path.name != "toy.md"
]
"""All pages with something to run, but one whose blocks `tests/test_docs.py` runs."""
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "NO_MKDOCS_2_WARNING": "1",
}


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path):
    """Without the network, without a warning, with a page for each error; links lead somewhere."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 0, done.stderr
    codes = {path.stem for path in (ROOT / "archc" / "explain").glob("E*.md")}
    assert codes <= {path.name for path in (tmp_path / "errors").iterdir()}
    assert "https://fonts" not in (tmp_path / "index.html").read_text(encoding="utf-8")
    links = [
        page.parent / link
        for page in tmp_path.rglob("*.html")
        for link in re.findall(r'(?:href|src)="([^"#:?]+)["#?]', page.read_text(encoding="utf-8"))
        if page.name != "404.html"
    ]
    missing = [link for link in links if not link.exists()]
    assert len(links) > 1000 and not missing, missing


@pytest.mark.docs
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_blocks_of_a_guide_run(page: Path, tmp_path: Path):
    """In order, in one folder: commands by a shell, all Python of a page together."""
    code: list[str] = []
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    if any("TinyLlama" in text for _, text in blocks):
        checkpoint(tmp_path / "TinyLlama-1.1B")
    for language, text in blocks:
        if language == "python":
            code.append(text)
            continue
        script = re.sub(r"^\$ ", "", text, flags=re.MULTILINE)
        run(["bash", "-euo", "pipefail", "-c", script], tmp_path)
    run([sys.executable, "-c", "\n".join(code)], tmp_path)


def checkpoint(folder: Path) -> None:
    """A folder as Hugging Face keeps one, of a Llama that is smaller still."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=11, hidden_size=8, intermediate_size=12, **sizes)
    LlamaForCausalLM(config).save_pretrained(folder)


def run(command: list[str], folder: Path) -> None:
    """Run a command in a folder; it ends well."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
