"""How a chunked form is cut into kernels."""

from __future__ import annotations

from pathlib import Path

import pytest
from archc.backends.eager.chunked import without

import archc
from archc.compile import for_kernels, lowered, prepared, with_epilogues
from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.ir.kernel import NARROW, SUMMED, WIDE, Kernels, made_here, warps
from archc.schedule import decisions
from archc.schedule.gate_sums import with_sums
from archc.schedule.outer import with_sums_of_rows
from archc.schedule.partition import partition
from archc.schedule.program import Program, Setting
from archc.show.planned import Conditions, plans_of

OWN = Path(__file__).parents[1] / "backends" / "triton" / "recurrences"
"""Recurrences unlike the bundled ones."""


def recurrence_of(spec: str) -> ir.Recurrence:
    """A spec's one recurrence."""
    layer = lowered(archc.load(spec).layer)
    (recurrence,) = (node.op for node in layer.graph if isinstance(node.op, ir.Recurrence))
    return recurrence


def cut(spec: str, fused: bool = False) -> Kernels:
    """The kernels of a spec's one recurrence, forward; `fused`: with what follows on walks."""
    recurrence = recurrence_of(spec)
    given = recurrence.chunked.forward, "memory", recurrence.stream, recurrence.heads, {}
    return partition(*given, fused=fused)


def without_saved(spec: str) -> Kernels:
    """The same where nothing needs a gradient: walks make what follows on them."""
    recurrence = recurrence_of(spec)
    graph = without(recurrence.chunked.forward, recurrence.chunked.saved)
    given = graph, "memory", recurrence.stream, recurrence.heads, {}
    return partition(*given, fused=True)


def test_a_walk_stands_between_what_is_done_for_every_chunk_at_once() -> None:
    found = cut("kda")
    assert [each.name for each in found.kernels] == [
        "memory_chunk_prepare", "memory_solve_tril", "memory_inter_chunk_scan",
        "memory_chunk_output",
    ]  # fmt: skip
    assert [each.walk is not None for each in found.kernels] == [False, False, True, False]


def test_products_that_heads_share_are_made_once_for_all_heads() -> None:
    """Mamba-2 has one B and C for all heads, and so one product of them for each chunk."""
    layer = with_epilogues(for_kernels(lowered(archc.load("mamba2").layer)))
    (recurrence,) = (n.op for n in layer.graph if isinstance(n.op, ir.Recurrence))
    form = recurrence.chunked
    for graph in (form.forward, form.backward):
        found = partition(graph, "memory", recurrence.stream, recurrence.heads, {})
        shared = []
        for kernel in found.kernels:
            heads = [axis.name for axis in kernel.grid if axis.name in recurrence.heads]
            stored = [graph[id] for id in kernel.stores.values()]
            made = [] if heads else made_here(kernel)
            shared += [n for n in made if isinstance(n.op, ir.Contract) and len(n.operands) == 2]
            assert not heads or all("H" in node.type.names for node in stored), kernel.name
        assert shared


def test_scores_are_made_where_they_are_used() -> None:
    """Unless several levels use them, or a walk would have to make their decays."""
    for spec, fused, stored in (
        ("delta", False, False), ("delta", True, False), ("gated_delta", False, False),
        ("gated_delta", True, True), ("linear_attention_simple", True, False),
        ("mamba2", False, True), ("retention", True, True),
    ):  # fmt: skip
        recurrence = recurrence_of(spec)
        graph = without(recurrence.chunked.forward, recurrence.chunked.saved)
        found = partition(graph, "memory", recurrence.stream, recurrence.heads, {}, fused=fused)
        scores = [b for b in found.buffers if b.type.names[-2:] == ("i", "j")]
        inverse = {id for n in graph if isinstance(n.op, ck.Inverse) for id in [n.id]}
        names = {each for k in found.kernels for each, id in k.stores.items() if id in inverse}
        assert bool({b.name for b in scores} - names) == stored, (spec, fused)


@pytest.mark.parametrize("spec", ["gated_delta", "gated_delta_product"])
def test_scores_for_a_walk_are_made_beside_a_system_of_the_same_rows(spec: str) -> None:
    """So no two kernels load them; a system of two rows a token leaves no registers for that."""
    found = without_saved(spec)
    inverse = {n.id for n in found.graph if isinstance(n.op, ck.Inverse)}
    (system,) = (each for each in found.kernels if inverse & {*each.stores.values()})
    loaded = {
        each.name: {*each.loads.values()} & {o for n in made_here(each) for o in _names(found, n)}
        for each in found.kernels if each.walk is None
    }  # fmt: skip
    first, *_ = loaded.values()
    beside = spec == "gated_delta"
    assert loaded[system.name] >= ({"q", "k"} if beside else {"k"})
    assert ("q" in loaded[system.name], "q" in first) == (beside, not beside)


def _names(found: Kernels, node: Node) -> set[str]:
    """The names of the inputs among what a node is made of."""
    nodes = map(found.graph.__getitem__, node.operands)
    return {each.op.name for each in nodes if isinstance(each.op, ir.Input)}


def test_an_inverse_begins_a_kernel() -> None:
    """Its rows fill the registers of a program: what it inverts comes from memory."""
    found = cut("kda")
    inverse = next(n for n in found.graph if isinstance(n.op, ck.Inverse))
    assert inverse.operands[0] in found.kernels[1].loads


def test_a_solve_begins_a_kernel() -> None:
    """Its turns fill the registers of a program: its right side comes from memory, and the state in
    its matrix is as narrow as products of matrices take it."""
    recurrence = recurrence_of("mesa")
    back = partition(
        recurrence.chunked.backward, "gradient", recurrence.stream, recurrence.heads, {}
    )
    assert [each.name for each in cut("mesa").kernels] == [
        "memory_chunk_prepare", "memory_inter_chunk_scan", "memory_solve_system",
    ]  # fmt: skip
    assert [each.name for each in back.kernels] == [
        "gradient_chunk_prepare", "gradient_solve_system", "gradient_inter_chunk_scan",
        "gradient_chunk_output",
    ]  # fmt: skip
    solve = next(n for n in back.graph if isinstance(n.op, ck.Conjugate))
    assert solve.operands[0] in back.kernels[1].loads
    widths = {buffer.name: buffer.width for buffer in cut("mesa").buffers}
    assert widths["saved.A@start"] == NARROW


def test_pairs_that_decay_alike_have_one_kernel() -> None:
    """In the gradient of a delta rule some are ready before the walk, and wait: decays are made
    once, and what pairs add is summed in registers. Dims of another name are split all the same,
    and results that have it under that name are stored."""
    for spec, dims, results in (
        ("kda", {"K"}, {"d.q", "d.k", "d.log_alpha"}),
        ("rwkv7", {"K", "K'"}, {"d.r", "d.a", "d.kappa", "d.k", "d.log_w"}),
    ):
        recurrence = recurrence_of(spec)
        graph = with_sums(recurrence.chunked.backward, recurrence.heads)
        found = partition(graph, "memory", recurrence.stream, recurrence.heads, {})
        paired = [n.id for n in graph if isinstance(n.op, ck.Mix | ck.GateGradient)]
        (kernel,) = (each for each in found.kernels if "intra_chunk_scores" in each.name)
        assert kernel.split is not None and {kernel.split.name, *kernel.renamed} == dims
        assert results <= {*kernel.stores}
        assert not {*paired} & kernel.loads.keys() - {*kernel.stores.values()}


def test_pairs_that_decay_have_kernels_of_their_own() -> None:
    """They read the sums of the gates, which an earlier kernel has written."""
    recurrence = recurrence_of("kda")
    graph = with_sums(recurrence.chunked.forward, recurrence.heads)
    found = partition(graph, "memory", recurrence.stream, recurrence.heads, {})
    assert [each.name for each in found.kernels] == [
        "memory_chunk_prepare", "memory_intra_chunk_scores", "memory_solve_tril",
        "memory_inter_chunk_scan", "memory_chunk_output",
    ]  # fmt: skip
    before, pairs = found.kernels[:2]
    (sums,) = {n.operands[-1] for n in graph if isinstance(n.op, ck.Gram)}
    assert sums in before.stores.values() and sums in pairs.loads
    widths = {buffer.name: buffer.width for buffer in found.buffers}
    assert widths[pairs.loads[sums]] == SUMMED
    assert {type(graph[id].op) for id in pairs.stores.values()} == {ck.Gram}


def test_sums_of_gates_are_made_once() -> None:
    """exp of plain sums reads the same sums as the pairs do."""
    recurrence = recurrence_of("kda")
    graph = with_sums(recurrence.chunked.forward, recurrence.heads)
    forward = [n.op for n in graph if isinstance(n.op, ck.Sums) and not n.op.reverse]
    assert [op.gates for op in forward] == [True]


def test_every_program_has_one_chunk_or_walks_them_all() -> None:
    before, _, walk, _ = cut("kda").kernels
    assert [axis.kind for axis in before.grid] == ["batch", "stream", "dim"]
    assert [axis.kind for axis in walk.grid] == ["batch", "dim"]
    assert walk.split is not None and walk.split.name == "V"


def test_what_is_read_was_written_before() -> None:
    """In the order of the launches: inputs, PyTorch's values, and buffers of earlier kernels."""
    for spec in ("kda", "mesa", "rwkv7"):
        found = cut(spec)
        written = {name for each in found.kernels for name in (*each.stores, *each.ends.values())}
        assert {buffer.name for buffer in found.buffers} == written


def test_a_walk_of_tokens_reads_what_stands_by_chunks_from_memory() -> None:
    """A decay made of another state, which has chunks: at one token there is no chunk to make it
    of."""
    recurrence = recurrence_of(str(OWN.with_name("cells") / "tired.arch"))
    graph = recurrence.chunked.backward
    found = partition(graph, "memory", recurrence.stream, recurrence.heads, {})
    (walk,) = (k for k in found.kernels if k.walk and graph[k.walk].op.stream == recurrence.stream)
    steps = Program(walk).steps.values()
    assert not [s for s in steps if s.load is None and isinstance(s.node.op, ck.Tokens)]
    assert any(isinstance(n.op, ck.Tokens) for n in graph)


def test_a_walk_makes_what_follows_on_it_but_no_matrix_for_every_row() -> None:
    """Where no gradient needs its states they do not go through memory: the walk writes outputs. A
    state for every row would be a tile of three dims there: it is made of chunks at once."""
    *_, last = without_saved("kda").kernels
    assert last.walk is not None and "o" in last.stores
    walk, after = cut("mamba", fused=True).kernels[1:]
    stored = [walk.graph[id].type.axes for id in walk.stores.values()]
    assert walk.walk is not None and after.walk is None and "o" in after.stores
    assert [[axis.name for axis in axes] for axes in stored] == [["batch", "n", "D", "N"]]


@pytest.mark.parametrize("spec", ["linear_attention_simple", "retention", "gla"])
def test_a_walk_that_only_adds_makes_what_follows_though_states_are_saved(spec: str) -> None:
    found = cut(spec, fused=True).kernels
    assert [{"o", "saved.S@start"} <= {*each.stores} for each in found if each.walk] == [True]


def test_what_follows_on_other_walks_is_made_of_saved_states() -> None:
    """Those that correct rows have no registers for more, nor those that scale what heads share;
    states go through memory in any case."""
    for spec in ("kda", "gated_delta_product", "mamba2"):
        recurrence = recurrence_of(spec)
        graph = prepared(recurrence.chunked.forward, recurrence.heads)
        given = graph, "memory", recurrence.stream, recurrence.heads, {}
        found = partition(*given, fused=True).kernels
        assert any(name.startswith("saved.S") for name in graph.outputs)
        assert ["o" in each.stores for each in found if each.walk is not None] == [False]


def test_sums_of_inputs_have_a_kernel_to_themselves() -> None:
    """The gradient of a weight that only multiplies an input: elsewhere it would take registers."""
    (recurrence,) = (
        node.op for node in with_epilogues(lowered(archc.load("ssm_selective").layer)).graph
        if isinstance(node.op, ir.Recurrence)
    )  # fmt: skip
    graph = with_sums_of_rows(recurrence.chunked.backward, recurrence.heads)
    found = partition(graph, "memory", recurrence.stream, recurrence.heads, {})
    names = [each.name for each in found.kernels]
    assert names == [
        "memory_chunk_prepare", "memory_inter_chunk_scan", "memory_chunk_output",
        "memory_chunk_output_2",
    ]  # fmt: skip
    (stored,) = found.kernels[-1].stores.values()
    (user,) = graph.users(stored)
    assert graph.outputs["d.skip"] == user and user in found.fallback
    assert found.kernels[-1].split.name == "D"


def test_programs_of_a_walk_without_products_have_a_part_of_the_first_dim() -> None:
    """The last may be short, as N = 16 of a state [D, N] is: one program would have all of D."""
    splits = [each.split for each in cut("mamba").kernels]
    assert {axis.name for axis in splits if axis is not None} == {"D"} and len(splits) == 3
    (walk,) = (each for each in cut("gla").kernels if each.walk is not None)
    assert walk.split is not None and walk.split.name == "V"


def test_a_matrix_for_every_row_that_all_chunks_share_is_multiplied_outside() -> None:
    """Powers of a constant matrix: no program could hold them, and every one would read them. The
    gradient of the matrix is a product too, with no matrix for every token."""
    recurrence = recurrence_of("ssm")
    for graph in (recurrence.chunked.forward, recurrence.chunked.backward):
        found = partition(graph, "memory", recurrence.stream, recurrence.heads, {})
        shared = [id for id, why in found.fallback.items() if why.startswith("all chunks share")]
        assert [type(graph[id].op) for id in shared] == [ir.Contract]
        held = [n for each in found.kernels for n in Program(each).steps.values()]
        assert max(len(step.node.type.axes) for step in held) == 4  # batch n i D
        assert max(len(node.type.axes) for node in graph) == 4
    again = decisions.of_kernel(found, found.kernels[-1])
    assert str(again[0]) == "every chunk at once, with what `memory_inter_chunk_scan` found at each"


def test_a_vector_is_kept_as_it_is_a_matrix_may_be_narrow() -> None:
    """One that only enters products is multiplied and summed in float32: the weights of keys that a
    normaliser adds up to would show how they were rounded."""
    recurrence = recurrence_of("mlstm")
    graph = without(recurrence.chunked.forward, recurrence.chunked.saved)
    found = partition(graph, "memory", recurrence.stream, recurrence.heads, {}, fused=True)
    widths = {b.type.names: b.width for b in found.buffers}
    assert widths["batch", "n", "H", "K"] == WIDE
    assert widths["batch", "n", "H", "K", "V"] == NARROW


def test_what_a_walk_only_multiplies_is_narrow() -> None:
    """What it scales a state by, what it adds, and the state that it leaves are not."""
    found = cut("kda")
    (walk,) = (each for each in found.kernels if each.walk is not None)
    said = str(decisions.of_kernel(found, walk)[0])
    assert said == "carries `S` from chunk to chunk, one after the other"
    widths = {b.name: b.width for b in found.buffers}
    assert {widths[name] for name in ("X0", "saved.W0", "saved.inverse")} == {NARROW}
    assert {widths[name] for name in ("key decay", "saved.U0.0", "scores.2", "S[T]")} == {WIDE}


def test_what_needs_no_earlier_kernel_is_in_the_first() -> None:
    """Also where walks make what follows on them, before which all else is done."""
    found = without_saved("kda")
    first, *others, _ = found.kernels
    before = {*first.stores.values()}
    later = [id for each in others for id in each.stores.values()]
    assert before and later and all(before & {*found.graph.ancestors(id)} for id in later)
    steps = without_saved("gated_delta_product").buffers
    assert SUMMED not in {each.width for each in steps}  # no sums of gates were asked for


def test_an_inverse_is_applied_where_the_state_is_read() -> None:
    """The walk reads nothing that the inverse was multiplied with before."""

    def images(layer: ir.Layer) -> list[int]:
        (op,) = (node.op for node in layer.graph if isinstance(node.op, ir.Recurrence))
        graph = op.chunked.forward
        made = {user for n in graph if isinstance(n.op, ck.Inverse) for user in graph.users(n.id)}
        return [
            o for n in graph if isinstance(n.op, ir.Recurrence) for o in n.operands if o in made
        ]

    layer = lowered(archc.load("delta").layer)
    assert images(layer) and not images(for_kernels(layer))


def test_scans_of_two_dims_have_few_indices_of_one() -> None:
    """All of the other is there for every row, if it is short; which it is, calls decide. Where
    nothing learns a scan is done twice, and nothing is kept of any token."""
    recurrence = recurrence_of("mamba")
    before, _, after = cut("mamba").kernels
    assert [(k.split.name, k.second_split.name) for k in (before, after)] == [("D", "N")] * 2
    sizes = {axis.size.name: 2048 for axis in (before.split, recurrence.stream)}
    short, long = (
        Program(before, Setting({**sizes, "N": N, "batch": 1, ck.CHUNK.name: 64})).most
        for N in (16, 80)
    )  # fmt: skip
    assert (short, long) == (4, 64)
    graph = without(recurrence.chunked.forward, recurrence.chunked.saved)
    found = partition(graph, "memory", recurrence.stream, recurrence.heads, {}, fused=True)
    tokens = [b.name for b in found.buffers if {"i", "t"} & {*b.type.names}]
    assert tokens == ["o"]
    assert all(each.second_split is None for each in cut("gla").kernels)


def test_what_follows_on_a_number_does_not_wait_for_its_turn() -> None:
    """The walk of a stabiliser, a number a head, makes nothing else: chunks after it are done at
    once."""
    (plan,) = plans_of(archc.load("mlstm").layer, Conditions())
    kernels = next(part.kernels for part in plan.parts if part.title == "inference").kernels
    walks = [kernel for kernel in kernels if kernel.walk is not None]
    assert set(walks[0].stores) == {"m@start"}


def test_a_kernel_with_too_many_products_is_cut_where_half_of_them_have_followed() -> None:
    """The gradient of a memory with momentum: 22 products after the walk, four of them in a row."""
    file = str(Path(__file__).parents[1] / "newcomers" / "titans.arch")
    layer = with_epilogues(for_kernels(lowered(archc.load(file).layer)))
    (recurrence,) = (n.op for n in layer.graph if isinstance(n.op, ir.Recurrence))
    given = recurrence.chunked.backward, "memory", recurrence.stream, recurrence.heads, {}
    names = [each.name for each in partition(*given).kernels]
    assert names == ["memory_chunk_prepare", "memory_inter_chunk_scan", "memory_chunk_output",
                     "memory_chunk_output_2"]  # fmt: skip


def test_pairs_of_rows_of_several_keys_are_no_dims() -> None:
    """Scans for pairs of rows go beside the others; of a dim a kernel then has more than four."""
    recurrence = recurrence_of(str(OWN / "momentum_of_keys.arch"))
    given = recurrence.chunked.forward, "memory", recurrence.stream, recurrence.heads, {}
    assert all(each.second_split is None for each in partition(*given).kernels)


@pytest.mark.slow
def test_walks_that_correct_rows_and_load_little_have_fewer_columns() -> None:
    """Two programs run at once then. KDA's loads rows under two scales, for which there is no room;
    others only add to their states, and wait for nothing."""
    found = {}
    for spec in ("delta", "kda", "gla"):
        (plan,) = plans_of(archc.load(spec).layer, Conditions())
        for part in plan.parts:
            walks = [each for each in part.kernels.kernels if each.walk is not None]
            found[spec, part.title] = [each.most for each in walks if len(each.grid) == 2]
    assert found["delta", "forward"] == [32]
    assert {most for key, each in found.items() if key[0] != "delta" for most in each} == {64}
    assert found["delta", "gradient"] == found["delta", "inference"] == [64]


@pytest.mark.parametrize("steps", [2, 3])
def test_steps_of_a_token_are_rows_of_its_chunk(steps: int) -> None:
    """So a system among them is solved by as many warps as any, of scores that it makes of the keys
    as they entered: neither those nor keys by chunks are in memory."""
    layer = for_kernels(lowered(archc.load("gated_delta_product", n=steps).layer))
    (op,) = (n.op for n in layer.graph if isinstance(n.op, ir.Recurrence))
    graph = prepared(op.chunked.forward, op.heads)
    found = partition(graph, "memory", op.stream, op.heads, {})
    (solve,) = (each for each in found.kernels if "saved.inverse" in each.stores)
    read = {o for node in made_here(solve) for o in node.operands} & {*solve.loads}
    assert "k" in {solve.loads[id] for id in read}
    axes = [graph[id].type.names[-2:] for id in read]
    assert ("u", "u'") not in axes and ("u", "K") not in axes
    stored = [each.name for each in found.buffers if each.type.names[-2:] == ("u", "u'")]
    assert stored == ["saved.inverse"]
    matrices = [node.type for node in graph if node.type.names[-2:] == ("u", "K")]
    assert matrices and warps(solve, matrices, False) == 4
