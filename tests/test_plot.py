"""Pictures of what a layer mixes: what is drawn is the matrix."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from matplotlib.figure import Figure

import archc
from tests.specs.cases import SMALL


def picture(name: str, T: int = 6, **sizes: int) -> tuple[Figure, torch.Tensor]:
    given = {**SMALL[name], **sizes}
    layer = archc.load(name, **given).module()
    x = torch.randn(2, T, given["d"], generator=torch.Generator().manual_seed(0))
    return archc.plot.mixer(layer, x), archc.mixer_matrix(layer, x).data


def panels(figure: Figure) -> list:
    return [axes for axes in figure.axes if axes.images]


def test_a_panel_a_head_shows_the_matrix() -> None:
    figure, data = picture("attention")
    assert [axes.get_title() for axes in panels(figure)] == ["H = 0", "H = 1", "H = 2", "H = 3"]
    for head, axes in enumerate(panels(figure)):
        (image,) = axes.images
        assert numpy.array_equal(image.get_array(), data[0, head].numpy())
        assert image.get_extent() == [-0.5, 5.5, 5.5, -0.5]  # t runs down
        assert image.norm.vmin == 0
    assert figure.get_supxlabel().endswith("token s") and figure.get_supylabel().endswith("token t")
    assert "o[t] = sum over s of M[t, s] v[s]" in figure.get_suptitle()


def test_negative_numbers_have_a_colour_of_their_own() -> None:
    figure, data = picture("gla")
    norm = panels(figure)[0].images[0].norm
    assert norm.vmin == -norm.vmax == -float(data[0].abs().max())
    middle = panels(figure)[0].images[0].cmap(0.5)
    assert min(middle) > 0.95


def test_at_most_eight_panels() -> None:
    figure, data = picture("ssm_selective", D=9)
    assert data.shape[1] == 9 and len(panels(figure)) == 8
    assert "8 of 9 shown" in figure.get_suptitle()


def test_one_matrix_without_heads(tmp_path: Path) -> None:
    figure, _ = picture("lstm", T=1)
    assert [axes.get_title() for axes in panels(figure)] == [""]
    assert "|d h[t] / d x[s]|" in figure.get_suptitle()


@pytest.mark.default("png")
@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_a_picture_is_saved(tmp_path: Path, ending: str) -> None:
    layer = archc.load("lstm").module(d=3)
    archc.plot.mixer(layer, torch.randn(1, 4, 3), path=tmp_path / f"a.{ending}")
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    assert (tmp_path / f"a.{ending}").read_bytes().startswith(start)


def test_no_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        picture("lstm", T=0)


def test_matplotlib_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=re.escape("pip install 'archc[plot]'")):
        picture("lstm")


@pytest.mark.slow
def test_matplotlib_is_imported_for_a_picture_alone() -> None:
    program = "import sys, archc.plot; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
