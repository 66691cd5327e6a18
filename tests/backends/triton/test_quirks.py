"""Quirks: each rule finds what it is for, generated files break none, and where they show."""

from __future__ import annotations

import pytest
from archc.backends.triton.quirks import QUIRKS

import archc
from archc.compile import in_kernels, lowered
from archc.specfile import bundled
from tests.backends.triton.breaches import breaches
from tests.backends.triton.texts import layer_text

KERNEL = "@kernel\ndef f(p, ROWS: tl.constexpr):\n"
EXACT = "input_precision=PRECISION"

BROKEN = {
    "turned-product": f"""{KERNEL}
    a = tl.dot(x, y, {EXACT})
    b = tl.where(mask, a * scale, 0.0)
    b_t = tl.trans(b)
    c = tl.dot(b_t.to(DOT), q.to(DOT), {EXACT})
""",
    "warps-of-a-setting": "@triton.autotune(configs=[], key=[])\ndef f(p):\n    pass\n",
    "ptxas-12.8": "def kernel(function):\n    return triton.jit(function)\n",
    "products-and-more": f"""{KERNEL}
    for n in tl.range(0, N):
        x = load_tile(x_at + n, i, 1, None, j, None)
        square = tl.sum(x.to(tl.float32) * x.to(tl.float32), 1)
        a = tl.dot(y, tl.trans(x), {EXACT})
""",
    "tf32-by-default": f"{KERNEL}    a = tl.dot(x, y)\n",
    "narrow-programs": f"{KERNEL}    p = tl.program_id(0)\n    x = tl.load(x_p + p * x_row)\n",
    "block-pointers": f"{KERNEL}    p = tl.make_block_ptr(x, (T,), (1,), (0,), (64,), (0,))\n",
    "in-place-autograd": """
class F(torch.autograd.Function):
    def forward(ctx, x):
        return x.add_(1)
""",
}


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: quirk.id)
def test_its_rule_finds_it(quirk) -> None:
    found = breaches(BROKEN[quirk.id])
    assert [each.partition(":")[0] for each in found] == [quirk.id], found


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: quirk.id)
def test_it_says_what_is_done_and_where_it_was_reported(quirk) -> None:
    assert quirk.pattern and quirk.instead and quirk.sources
    assert all(each.startswith("source: https://") for each in quirk.sources)


@pytest.mark.parametrize("place", ["p = tl.program_id(0)", "n, p = grid_place(H)"])
@pytest.mark.parametrize("line", ["x = load_tile(x_p + p * x_row, i)", "at_row = (p * 2) * 3"])
def test_addresses_of_tiles_are_wide(line: str, place: str) -> None:
    """Where a helper function is given them, and where several share what they begin with."""
    assert len(breaches(f"{KERNEL}    {place}\n    {line}\n")) >= 1


@pytest.mark.parametrize(
    "text",
    [
        f"    a = tl.dot(x, y, {EXACT})\n    c = tl.dot(q, tl.trans(a), {EXACT})\n",  # on the right
        f"    a = tl.load(p)\n    c = tl.dot(tl.trans(a), y, {EXACT})\n",  # no product
        f"    a = tl.dot(x, y, {EXACT})\n    a = p + 1\n    c = tl.dot(tl.trans(a), y, {EXACT})\n",
        "    program = tl.program_id(0).to(tl.int64)\n",
        "    h = tl.program_id(0)\n    x_at = x_p + tl.cast(h, tl.int64) * x_h\n",
    ],
)
def test_what_is_right_is_not_found(text: str) -> None:
    assert breaches(KERNEL + text) == []


def test_a_turn_that_loads_for_itself_may_read_a_factor_twice() -> None:
    found = BROKEN["products-and-more"]
    assert breaches(found) and not breaches(found.replace("N):", "N, num_stages=1):"))


def test_what_a_loop_carries_comes_from_its_products() -> None:
    text = f"""{KERNEL}
    S = tl.load(p)
    for step in range(CHUNKS):
        o = tl.dot(tl.trans(S), q, {EXACT})
        S = S * decay + tl.dot(k, v, {EXACT})
"""
    assert len(breaches(text)) == 1


@pytest.mark.default("linear_attention")
@pytest.mark.parametrize("spec", ["delta", "linear_attention"])
def test_generated_files_run_into_none(spec: str) -> None:
    """Gradients of these turn products that are masked and scaled."""
    text = layer_text(lowered(archc.load(spec).layer), in_kernels)
    assert "@kernel" in text and breaches(text) == []


FEW_ROWS = pytest.mark.xfail(
    strict=True, reason="products of 32 rows at most are none of Hopper's, of which the quirk is"
)
"""Gradients of tokens chosen singly turn products of a reader's heads."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec", [pytest.param(s, marks=FEW_ROWS if s == "dsa" else ()) for s in bundled()]
)
def test_no_bundled_spec_runs_into_one(spec: str) -> None:
    assert breaches(layer_text(lowered(archc.load(spec).layer), in_kernels)) == []


def test_where_a_quirk_shows() -> None:
    (turned,) = (quirk for quirk in QUIRKS if quirk.id == "turned-product")
    assert turned.shows((9, 0), (3, 6, 0)) and turned.shows(None, None)
    assert not turned.shows((8, 0), (3, 6, 0)) and not turned.shows((9, 0), (3, 3, 1))
    (setting,) = (quirk for quirk in QUIRKS if quirk.id == "warps-of-a-setting")
    assert setting.shows((9, 0), (3, 7, 1)) and not setting.shows((9, 0), (3, 8, 0))


def test_where_a_tile_begins_is_an_address() -> None:
    text = f"{KERNEL}    h = tl.program_id(0)\n    x_at = x_p + h * x_h\n    x = tl.load(x_at)\n"
    assert [each.partition(":")[0] for each in breaches(text)] == ["narrow-programs"]
