"""`archc fmt`: the same tree, the same comments, and nothing left to change."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from archc.diagnostics import ArchError
from archc.source import Source
from archc.syntax import tree
from archc.syntax.format import format_source
from archc.syntax.parse import parse

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.arch"))
GAP = re.compile(r'"""(?s:.)*?"""|"[^"\n]*"|#[^\n]*|(?<=\S) +(?=\S)')
COMMENT = re.compile(r'"""(?s:.)*?"""|"[^"\n]*"|(#[^\n]*)')


def formatted(text: str, unicode: bool = False) -> str:
    return format_source(Source("test.arch", text), unicode)


def meaning(value: Any) -> Any:
    """A tree without its spans."""
    if isinstance(value, tree.Node):
        kept = [f.name for f in fields(value) if f.name not in ("span", "header")]
        return (type(value).__name__, *(meaning(getattr(value, name)) for name in kept))
    return tuple(map(meaning, value)) if isinstance(value, tuple) else value


def meaning_of(text: str) -> Any:
    return meaning(parse(Source("test.arch", text)))


def comments_of(text: str) -> list[str]:
    return sorted(found.rstrip() for found in COMMENT.findall(text) if found)


def spec(body: str) -> str:
    return "layer L(d):\n" + "".join(f"    {line}\n" for line in dedent(body).strip().split("\n"))


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_bundled_specs_are_in_standard_form(path: Path):
    text = path.read_text("utf-8")
    assert formatted(text) == text


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_unicode_is_the_same_spec(path: Path):
    text = path.read_text("utf-8")
    symbols = formatted(text, unicode=True)
    assert meaning_of(symbols) == meaning_of(text)
    assert formatted(symbols, unicode=True) == symbols
    assert formatted(symbols).split() == text.split()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SPECS), st.randoms(use_true_random=False))
def test_any_spacing_comes_back(path: Path, random: Any):
    """Other gaps, indents, blank lines and comments: the tree and the comments stay."""

    def gap(match: re.Match[str]) -> str:
        return " " * random.randint(1, 4) if match[0].isspace() else match[0]

    width = random.choice((1, 2, 3, 8))
    lines: list[str] = []
    quoted = False
    for line in GAP.sub(gap, path.read_text("utf-8")).split("\n"):
        bare = line.lstrip(" ")
        levels, rest = divmod(len(line) - len(bare), 4)
        inside, quoted = quoted, quoted ^ (line.count('"""') % 2 == 1)
        indent = " " * (levels * (4 if inside or rest else width) + rest)
        remark = f"  # remark {len(lines)}   " if bare and random.random() < 0.2 else ""
        lines.append(indent + bare + ("" if inside or quoted else remark))
        if not quoted and random.random() < 0.1:
            lines += ["", " " * random.randint(0, 9) + f"# alone {len(lines)}", "", ""]
    text = "\n".join(lines)
    once = formatted(text)
    assert meaning_of(once) == meaning_of(text)
    assert comments_of(once) == comments_of(text)
    assert formatted(once) == once


CASES = {
    "operators": ("y=x@W+b*c-d**2//e%f", "y = x @ W + b * c - d ** 2 // e % f"),
    "minus": ("y=-x*( -1)-f(-x,- 2)", "y = -x * (-1) - f(-x, -2)"),
    "time": ("y = x[t - 1] + x[ t-i ]", "y = x[t-1] + x[t - i]"),
    "call": ("y = l2norm [K] ( x , eps=1e-6 )", "y = l2norm[K](x, eps = 1e-6)"),
    "transpose": ("y = k @ k .T", "y = k @ k.T"),
    "list": ("y = A(full=[3,7])if l in[3]else x", "y = A(full = [3, 7]) if l in [3] else x"),
    "statements": ("q = x@W;k = x@V", "q = x @ W ; k = x @ V"),
    "params": ("param W,V [d] ;b[ ]=0", "param W, V[d]; b[] = 0"),
    "along": ("y = sum r in( s , t ] :f[r]", "y = sum r in (s, t]: f[r]"),
    "route": (
        "route e in top(n,p)weight(p):\n  z=x",
        "route e in top(n, p) weight (p):\n    z = x",
    ),
    "symbols": ("y = β ⊙ kᵀ − √(α)", "y = beta * k.T - sqrt(alpha)"),
    "law": ("chunk:law( A,B(d) ,apply=C ),size 8", "chunk: law(A, B(d), apply = C), size 8"),
    "attend": ("attend t-w<s≤t over H:\n  o=v", "attend t - w < s <= t over H:\n    o = v"),
}


@pytest.mark.parametrize("name", CASES)
def test_spacing(name: str):
    before, after = CASES[name]
    assert formatted(spec(before)) == spec(after)


def test_aligned_signs_and_comments_stay_aligned():
    text = spec("""
        alpha   = exp( -x )     # forget
        beta    = sigmoid(x)    # write
        gamma = x  # other
        y = x        # same
    """)
    assert formatted(text) == spec("""
        alpha = exp(-x)     # forget
        beta  = sigmoid(x)  # write
        gamma = x           # other
        y = x               # same
    """)


def test_comments_keep_the_column_they_share():
    text = spec("y = x         # one\nzz = x        # two")
    assert formatted(text) == text


@pytest.mark.parametrize("between", ["\n", "\nz = x\n", "\n\n"])
def test_comments_of_neighbours_alone_share_a_column(between: str):
    """Not with what follows a blank line, or a line that has none."""
    text = formatted(spec(f"y = x   # one{between}wide = x + x  # two"))
    columns = [line.index("#") for line in text.split("\n") if "#" in line]
    assert columns == ([18, 18] if between == "\n" else [12, 18])


def test_comments_keep_to_their_block():
    text = dedent("""\
        # about the file
        layer L(d):
            recurrence S[d]:
                S[t] = x
                # of the recurrence
            # of the layer
            y = x

        # about M
        layer M(d): # header
            y = x
        # the end
    """)
    expected = text.replace("): # header", "):  # header")
    assert formatted(text) == expected.replace("# the end", "\n# the end")


def test_lines_in_brackets_stand_below_the_bracket():
    text = "layer L(d, H = 2,\n  K = 3):\n    y = f(\n  x, # first\n   z)\n"
    assert formatted(text) == (
        "layer L(d, H = 2,\n        K = 3):\n    y = f(\n        x,  # first\n        z)\n"
    )


def test_blank_lines():
    text = "\n\nlayer L(d):\n    y = x\n\n\n\n    z = x\nlayer M(d):\n    y = x\n\n\n\n\n"
    assert formatted(text) == ("layer L(d):\n    y = x\n\n    z = x\n\nlayer M(d):\n    y = x\n")


def test_a_spec_with_errors_is_left_alone():
    with pytest.raises(ArchError, match="E00"):
        formatted("layer L(d):\n    y = = x\n")
