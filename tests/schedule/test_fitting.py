"""The table of the chunks that fit, by the lengths of tiles."""

from __future__ import annotations

from functools import lru_cache
from itertools import product

import pytest

from archc.schedule.fitting import DTYPES, Table, chunk_for, fitting
from archc.schedule.memory import AHEAD, STAGES
from tests.gpu.memories import SPECS
from tests.schedule.test_memory import SIZES, cut

TABLES = {"delta", "gla", "mlstm", "rwkv7"}
"""Specs of which the whole table is made here."""

OTHERS = {"lstm", "slstm", "mom", "xlstm"}
"""Those that go token by token; and those whose recurrences are other specs', or several."""


@lru_cache
def table(spec: str) -> Table:
    """The table of a spec's recurrence and of its gradient."""
    return fitting(cut(spec))


def test_narrow_data_fits_in_long_chunks() -> None:
    """Nothing is said of what fits in chunks of 64: all of 16 bits up to dims of 256."""
    sizes, rows = table("kda")
    assert sizes == {"K": 16, "V": 16}
    assert not [key for key in rows if key[0] == 2 and max(key[1:]) <= 256]
    assert rows.get((4, 128, 128), 64) <= 64


def test_wide_data_of_long_dims_has_shorter_chunks() -> None:
    """Compiled for sm_90, heads of 256 in float32 need 655,360 bytes in chunks of 64, and less than
    232,448 in chunks of 16."""
    assert table("kda")[1][4, 256, 256] == table("mesa")[1][4, 256] == 16
    assert table("mesa")[1][2, 256] == 32
    assert (4, 128) not in table("mesa")[1] or table("mesa")[1][4, 128] <= 64


def test_two_steps_a_token() -> None:
    """Two steps a token of heads of 256 in float32 fit into chunks of 16. How many steps a layer
    has is not asked: of their axis single places are read."""
    sizes, rows = table("gated_delta_product")
    assert sizes == {"K": 16, "V": 16}
    assert rows[4, 256, 256] == 16 and rows[4, 64, 64] == 32 and (2, 128, 128) not in rows


@pytest.mark.default("delta", "mlstm")
@pytest.mark.parametrize("spec", sorted(TABLES))
def test_heads_of_up_to_256_are_not_refused(spec: str) -> None:
    refused = {key for key, count in table(spec)[1].items() if count > 64}
    assert refused and all(max(key[1:]) > 256 for key in refused)


@pytest.mark.default("kda", "mamba", "mesa", "linear_attention", "ssm")
@pytest.mark.parametrize("spec", sorted({*SPECS} - OTHERS - TABLES))
def test_no_bundled_recurrence_is_too_large(spec: str) -> None:
    """The largest heads, with any others; what fits there fits where they are smaller."""
    for dtype, K, V in product(("float32", "bfloat16", "float16"), (16, 256), (16, 256)):
        sizes = {**SIZES, "K": K, "V": V, "D": max(K, V), "N": K, "P": V}
        assert chunk_for(cut(spec), sizes, dtype) >= 16


@pytest.mark.parametrize("spec", ["kda", "gla", "gated_delta_product", "mesa"])
def test_plans_have_the_chunks_that_files_take(spec: str) -> None:
    """At heads that are alike, and not; more steps a token are for the plan to know."""
    symbols, rows = table(spec)
    for number, K, V in product(DTYPES, (64, 128, 256), (64, 128, 256)):
        sizes = {"K": K, "V": V, "N": K}
        blocks = (sizes[symbol] for symbol in symbols)
        taken = rows.get((number, *blocks), 64)
        assert chunk_for(cut(spec), {**SIZES, **sizes}, DTYPES[number]) == taken, (number, K, V)


def test_longer_chunks_never_fit_where_shorter_dims_do_not() -> None:
    rows = table("kda")[1]
    within = {key: count for key, count in rows.items() if count <= 64}
    assert within
    for (number, K, V), count in within.items():
        assert rows.get((number, K // 2, V), 64) >= count or K == 16


def test_walks_load_ahead_as_their_launches_do() -> None:
    """The estimate counts as many chunks under way as `settings_of` in generated files asks for."""
    torch, pieces = (
        pytest.importorskip("torch"),
        pytest.importorskip("archc.runtime.kernels"),
    )
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for numbers in (64, 4_096, 12_288, 24_576, 32_768, 49_152, 98_304, 200_000):
            wanted = max(1, min(STAGES, AHEAD[dtype.itemsize] // (numbers * dtype.itemsize)))
            loaded = numbers * dtype.itemsize
            assert pieces.settings_of(dtype, 4, loaded)["num_stages"] == wanted
