"""Kernels of bundled recurrences as tile programs, against the graphs that they came from."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch
from archc.backends.triton import addresses, handed_on, nesting, spelling
from archc.backends.triton import printer as printing
from archc.backends.triton.printer import Printer, to_triton

import archc
from archc.compile import text_of
from archc.ir import chunk as ck
from archc.ir.refusal import Refusal
from archc.lowering.kernel_values import made_here
from archc.lowering.kernels import NOT_YET, Lowered
from archc.tile.compose import Composer
from archc.tile.language import For, Program, Value, statements
from tests.few import slow
from tests.lowering.launches import OTHERS, launch, lowered_kernels, plans

OWN = Path(__file__).parents[1] / "backends/triton/recurrences"

SPECS = (
    "delta", "gated_delta", "gated_delta_product", "gla", "kda", "linear_attention",
    "linear_attention_simple", "mamba", "mamba2", "mesa", "mlstm", "mom", "retention",
    "rwkv7", "ssm", "ssm_selective",
)  # fmt: skip
"""Every bundled spec with a recurrence of its own that has a chunked form."""


@pytest.mark.parametrize(
    ("spec", "fused", "tokens"),
    [
        *((spec, True, 37) for spec in SPECS),
        ("mom", False, 37), ("gated_delta_product", True, 32),
        slow((str(OWN / "signed_channels.arch"), True, 37)),
    ],
)  # fmt: skip
def test_every_kernel_stores_what_its_graph_means(spec: str, fused: bool, tokens: int) -> None:
    """`mom` also as the memory alone: half of its tokens are holes, which write with weight 0. Of
    32 tokens every chunk is full."""
    made = 0
    for found in plans(spec, fused, tokens=tokens):
        if found.name.startswith("mom 0"):  # the one that sees every token is that of `gated_delta`
            continue
        for kernel, lowered in lowered_kernels(found):
            if isinstance(lowered, Refusal):
                assert lowered.reason == NOT_YET, lowered
                continue
            made += 1
            assert tree(lowered, Printer) == tree(lowered, Bracketed), kernel.name
            solved = any(isinstance(node.op, ck.Conjugate) for node in made_here(kernel))
            for name, (stored, wanted) in launch(found, kernel, lowered).items():
                told, near = f"{found.name}: `{name}` of {kernel.name}", 1e-5 if solved else 1e-7
                torch.testing.assert_close(
                    stored, wanted.to(stored.dtype), rtol=near, atol=1e-2 * near,
                    msg=lambda m, t=told: f"{t}: {m}",
                )  # fmt: skip
    assert made


def test_what_a_kernel_stores_is_read() -> None:
    """The gradient of a solve was stored under two names of its dim, and read under one."""
    for found in plans("mesa", fused=False):
        made = {kernel.name: low for kernel, low in lowered_kernels(found)}
        graph = found.plan.graph
        read = {*graph.outputs.values()}
        read |= {operand for id in found.plan.fallback for operand in graph[id].operands}
        for kernel in found.plan.kernels:
            low = made[kernel.name]
            assert isinstance(low, Lowered)
            own = {*kernel.stores, *kernel.ends.values()}
            read |= {low.nodes[title] for title, name in low.names.items() if name not in own}
        assert {id for kernel in found.plan.kernels for id in kernel.stores.values()} <= read


def test_rows_of_several_keys_are_stored_at_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside scans of matrices, of which other dims go index by index."""
    monkeypatch.setitem(OTHERS, "R", 2)
    _, found = plans("tests/backends/triton/recurrences/read_at_keys.arch", tokens=18)
    (kernel,) = (each for each in found.plan.kernels if "d.v" in each.stores)
    assert any(isinstance(node.op, ck.Scan) for node in found.plan.graph)
    (lowered,) = (made for each, made in lowered_kernels(found) if each is kernel)
    assert isinstance(lowered, Lowered)
    for stored, wanted in launch(found, kernel, lowered).values():
        torch.testing.assert_close(stored, wanted)


@pytest.mark.slow
def test_rows_take_what_was_read_at_the_first_row_of_their_token() -> None:
    """A read before the token is right at its first row alone: its second one writes it, too, so
    that it is a tensor along tokens, which both load."""
    found = next(plans("tests/backends/triton/recurrences/taken_in.arch", tokens=18))
    made = (each for each in lowered_kernels(found) if "saved.M@start" in each[0].stores)
    ((kernel, lowered),) = made
    assert isinstance(lowered, Lowered)
    for stored, wanted in launch(found, kernel, lowered).values():
        torch.testing.assert_close(stored, wanted)


@pytest.mark.default("bf16")
@pytest.mark.parametrize("operand", ["f16", "bf16"])
def test_systems_are_solved_with_operands_of_16_bits(operand: str) -> None:
    """A residual becomes much shorter than the smallest number of float16."""
    far = []
    for found in plans("mesa", fused=False, scales={"q": 1e-3, "k": 0.2}):
        for kernel, lowered in lowered_kernels(found):
            if not any(isinstance(node.op, ck.Conjugate) for node in made_here(kernel)):
                continue
            assert not isinstance(lowered, Refusal)
            for stored, wanted in launch(found, kernel, lowered, operand).values():
                far.append(((stored - wanted).norm() / wanted.norm()).item())
    limit = 3e-3 if operand == "f16" else 3e-2
    assert len(far) > 1 and all(each < limit for each in far), far


def test_sums_of_products_have_16_bits() -> None:
    """Gradients of gates of a channel, of data in bfloat16: as products with ones."""
    far = {}
    for found in plans("gla", fused=False):
        for kernel, lowered in lowered_kernels(found):
            assert not isinstance(lowered, Refusal)
            made = [v.type for s in statements(lowered.program.body) for v in s.results]
            if any("i'" in type.names for type in made):
                for name, (stored, wanted) in launch(found, kernel, lowered, "bf16").items():
                    far[name] = ((stored - wanted).norm() / wanted.norm()).item()
    assert far and all(each < 1e-2 for each in far.values()), far


@pytest.mark.default("dims0")
@pytest.mark.parametrize("dims", [("self", "optional"), ("doc", "strided"), ("name", "dtype")])
def test_dims_may_have_names_of_arguments(dims: tuple[str, str], tmp_path: Path) -> None:
    """What makes buffers and turns tiles takes dims by their names, beside arguments of its own."""
    file = tmp_path / "named.arch"
    file.write_text(NAMED.replace("K", dims[0]).replace("V", dims[1]), encoding="utf-8")
    for found in plans(str(file)):
        for _, lowered in lowered_kernels(found):
            assert isinstance(lowered, Lowered) or lowered.reason == NOT_YET


@pytest.mark.parametrize("turned", [False, True])
def test_a_formula_under_another_name_keeps_its_brackets(turned: bool) -> None:
    """A sum or a product that is cast under other dims is cast whole."""
    k = Composer("brackets", "A product of sums.")
    (x, y) = (k.load(k.buffer(n, i=16, j=16), k.iota("i", 16), k.iota("j", 16)) for n in "xy")
    factor = (x * y).along(j="l", i="j")
    made = x.to("bf16").dot((factor.ordered("l", "j") if turned else factor).to("bf16"))
    k.store(k.buffer("o", i=16, l=16), *(k.iota(n, 16) for n in "il"), value=made)
    assert tree_of(k.done(), Printer) == tree_of(k.done(), Bracketed)


@pytest.mark.default("gated_delta")
@pytest.mark.parametrize(("spec", "infers"), [("gated_delta", True), ("kda", False)])
def test_walks_load_ahead_but_where_they_make_rows_and_what_follows(
    spec: str, infers: bool
) -> None:
    """All that learn do; of those that infer, one that decays by channel has no room for it."""
    text = text_of(archc.load(spec).layer, "triton")
    walks = {
        kind: text.partition(f"def {spec}_memory_{kind}_inter_chunk_scan(")[2]
        for kind in ("kernels", "gradient_kernels", "inference_kernels")
    }
    alone = {kind: walk.partition("\n@kernel(")[0] for kind, walk in walks.items()}
    ahead = {kind: "num_stages=STAGES" in walk for kind, walk in alone.items()}
    assert ahead == {"kernels": True, "gradient_kernels": True, "inference_kernels": infers}


class Bracketed(Printer):
    """Formulas with brackets around every part."""

    def bound(self, value: Value, least: int = 9) -> str:
        text = self.name(value)
        return text if text.isidentifier() else f"({text})"


def tree(lowered: Lowered, printer: type[Printer]) -> str:
    return tree_of(lowered.program, printer)


def tree_of(program: Program, printer: type[Printer]) -> str:
    """What Python reads in the text of a program, in lines as long as they want to be."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (printing, handed_on, spelling):
            patch.setattr(module, "WIDTH", 10**6)
        patch.setattr(addresses, "LONG", 10**6)
        patch.setattr(addresses, "SHORT", 10**6)
        for name in ("PART", "WHOLE"):
            patch.setattr(nesting, name, 10**6)
        return ast.dump(ast.parse(to_triton(program, printer)))


NAMED = """layer L(H, K, V):
    input k [H, K], v [H, V], a [H, K]
    recurrence S[K, V] over H:
        S[t] = diag(sigmoid(a)) @ S[t-1] + k @ v.T
        o = S[t].T @ k
    output o
"""


def test_no_buffer_of_a_chunk_has_strides() -> None:
    for found in plans("gla"):
        for _, lowered in lowered_kernels(found):
            if isinstance(lowered, Lowered):
                assert not any(buffer.steps for buffer in lowered.program.buffers)
                assert _stored(found) & {*lowered.names.values()}


def test_docstrings_have_formulas_and_dims() -> None:
    docs = "\n".join(
        lowered.program.doc for found in plans("gla") for _, lowered in lowered_kernels(found)
        if isinstance(lowered, Lowered)
    )  # fmt: skip
    state = "S = ((S[t-1] * middle decay) + sum[i](k_scaled * v)) * rest decay  [batch H K V]"
    assert f"\n{state}" in docs
    assert "\nmiddle = middle[i](sums[i, gates](log_alpha))  [batch n H K]" in docs


def _stored(found: object) -> set[str]:
    plan = found.plan  # type: ignore[attr-defined]
    return {name for each in plan.kernels for name in (*each.stores, *each.ends.values())}


COLUMNS = """
layer MomentumByColumns(H, K, V, R = 2):
    input q[H, K], k[H, K, R], v[H, R, V], a[H], e[H], th[H, R]
    kn = l2norm[K](k)
    alpha = sigmoid(a)
    eta   = sigmoid(e)
    theta = sigmoid(th)
    recurrence M[K, V], S[K, V] over H:
        S[t] = eta * S[t-1] - kn @ diag(theta) @ (kn.T @ M[t-1] - v)
        M[t] = alpha * M[t-1] + S[t]
        o    = M[t].T @ q
    output o
"""


@pytest.mark.slow
def test_rows_of_several_keys_a_token_are_no_dim_to_go_along(tmp_path: Path) -> None:
    """Rows of a chunk are R a token: they were taken for a dim beside the rows, so that scans of
    pairs of them went column by column of K, 128 turns in place of one product."""
    path = tmp_path / "columns.arch"
    path.write_text(COLUMNS)
    for found in plans(str(path)):
        for kernel, lowered in lowered_kernels(found):
            assert isinstance(lowered, Lowered), lowered
            for name, (stored, wanted) in launch(found, kernel, lowered).items():
                torch.testing.assert_close(
                    stored, wanted.to(stored.dtype), rtol=1e-7, atol=1e-9,
                    msg=lambda m, name=name: f"{name}: {m}",
                )  # fmt: skip
            loops = [s for s in statements(lowered.program.body) if isinstance(s.op, For)]
            names = [each.blocks[0].arguments[0].name for each in loops]
            assert not any(name.startswith("K") for name in names), kernel.name
