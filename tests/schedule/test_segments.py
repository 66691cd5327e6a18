"""Which walks go in segments, and what stands between these."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import archc
from archc.compile import for_kernels, lowered, prepared
from archc.ir import layer as ir
from archc.ir.kernel import Kernel, Segments
from archc.schedule.partition import partition
from archc.schedule.segments import chunks_of_segment, segments

OWN = Path(__file__).parents[1] / "backends/triton/recurrences"


@lru_cache(maxsize=16)
def walks(
    spec: str, backward: bool = False, ready: bool = True
) -> Mapping[str, tuple[Kernel, Segments | str]]:
    """The walks of a spec's one recurrence by the states that they carry, in segments; those that
    kernels would make token by token too, unless the layer is `ready` for kernels."""
    layer = lowered(archc.load(spec).layer)
    layer = for_kernels(layer) if ready else layer
    (recurrence,) = (node.op for node in layer.graph if isinstance(node.op, ir.Recurrence))
    form = recurrence.chunked
    graph = prepared(form.backward if backward else form.forward, recurrence.heads)
    found = {}
    for kernel in partition(graph, "memory", recurrence.stream, recurrence.heads, {}).kernels:
        if kernel.walk is not None:
            states = kernel.graph[kernel.walk].op.states
            found[" ".join(s.name for s in states)] = kernel, segments(kernel, recurrence.stream)
    return found


def buffers(found: Segments | str) -> dict[str, str]:
    """What stands between the kernels of a walk in segments, with its axes."""
    assert isinstance(found, Segments), found
    return {each.name: " ".join(each.type.names) for each in found.buffers}


def test_a_state_that_is_scaled_goes_in_segments() -> None:
    """What a segment leaves of it has the axes of the decay, not those of the state."""
    walk, found = walks("gla")["S"]
    assert buffers(found) == {
        "S.ends": "batch H K V", "S.kept": "batch H K", "S.starts": "batch H K V",
    }  # fmt: skip
    assert isinstance(found, Segments)
    assert found.starts == {"S[0]": "S.starts"} and found.lasts == {"S[T]": "S.ends"}
    (ends,) = found.ends
    assert not ends.stores, "results are for the walk itself"
    read = {*ends.loads.values()}
    assert read - {*walk.loads.values()} == {"S.ends", "S.kept"}


def test_a_state_that_is_only_added_to_leaves_all_of_it() -> None:
    _, found = walks("linear_attention_simple")["S"]
    assert [*buffers(found)] == ["S.ends", "S.starts"]


def test_a_gradient_is_carried_backwards_in_segments_too() -> None:
    _, found = walks("gla", backward=True)["d.S.carried"]
    assert isinstance(found, Segments)
    for each in (*found.ends, found.join):
        assert each.walk is not None and each.graph[each.walk].op.reverse


def test_states_that_decay_alike_share_what_is_left_of_them() -> None:
    """And a running maximum has a rule of its own."""
    found = walks("mlstm")
    assert [n for n in buffers(found["C n"][1]) if n.endswith("kept")] == ["C.kept"]
    _, largest = found["m"]
    assert buffers(largest)["m.kept"] == "batch H"
    assert isinstance(largest, Segments) and largest.join.walk is not None
    body = largest.join.graph[largest.join.walk].op.body
    assert body[body.outputs["m"]].op == ir.Elementwise("max")


def test_a_matrix_that_is_applied_to_a_state_is_made_by_a_walk_of_its_own() -> None:
    """From the columns of one, in the place of the columns of the state, without what is added."""
    walk, found = walks("kda")["S"]
    assert buffers(found)["S.kept"] == "batch H K K_from"
    assert isinstance(found, Segments)
    _, turn = found.ends
    assert turn.split is not None and turn.split.name == "K_from"
    assert turn.walk is not None and found.join.exact
    captured = {*turn.graph[turn.walk].op.captures}
    assert captured == {*walk.graph[walk.walk or 0].op.captures} - {"U0.0_rows", "U0.0_scale"}


def test_a_walk_that_makes_its_first_state_is_written_again() -> None:
    """From states that are given; what else is loaded once for a sequence, each segment gets."""
    walk, found = walks("mesa")["A G"]
    assert isinstance(found, Segments) and found.again is not None and not found.rows
    assert {*found.starts} == {"A.starts", "G.starts"} <= {*found.again.loads.values()}
    assert {**found.again.stores} == {**walk.stores}
    _, same = walks("gla")["S"]
    assert isinstance(same, Segments) and same.again is None


def test_which_walks_are_their_own_first_kernel() -> None:
    """From 0: what a segment makes of 0 is what it writes. What is left of a state is made beside
    it, or starts elsewhere, in a kernel of its own. So it is where a walk does not store what its
    state is in the end, as something else makes the last one."""
    dense = str(OWN / "dense_mix.arch")
    (walk, found), *_ = walks(dense).values()
    assert not walk.ends and isinstance(found, Segments) and found.from_one is None
    starts_alone = {"kda": True, "linear_attention_simple": True, "gla": False, dense: False}
    for spec, alone in starts_alone.items():
        (_, found), *_ = walks(spec).values()
        assert isinstance(found, Segments) and found.from_zero == alone
    _, largest = walks("mlstm")["m"]
    assert isinstance(largest, Segments) and not largest.from_zero


def test_which_walks_make_what_becomes_of_their_state(tmp_path: Path) -> None:
    """From 1, where all that is added is made of what they load along their columns: of products
    among that nothing is made. Not where something else depends on how many columns there are."""
    for spec, backward, products in (("kda", False, 0), ("kda", True, 2), ("delta", True, 2)):
        (_, found), *_ = walks(spec, backward).values()
        assert isinstance(found, Segments) and found.from_one is not None
        assert found.from_one.row == found.applied and len(found.from_one.products) == products
    text = (OWN.parents[3] / "specs/delta.arch").read_text()
    (tmp_path / "by_columns.arch").write_text(text.replace("I - beta *", "I - beta / V *"))
    for spec in ("linear_attention_simple", "gla", "mesa", str(tmp_path / "by_columns.arch")):
        (_, found), *_ = walks(spec).values()
        assert isinstance(found, Segments) and found.from_one is None, spec


def test_what_goes_whole_says_why() -> None:
    assert "no dim of these is free of it" in str(walks("ssm")["h"][1])
    linked = walks(str(OWN.parents[2] / "newcomers/titans.arch"))
    assert "several states meet" in str(linked["M S"][1])
    cascade = walks(str(OWN.parent / "cells/cascade.arch"), ready=False)
    assert "does not walk chunks" in str(cascade["S"][1])


def test_segments_are_for_few_programs_and_many_chunks() -> None:
    """A GPU of 132 processors: 64 tokens a chunk, two programs a head."""
    assert chunks_of_segment(128, 1 << 20, 132) == 0
    assert chunks_of_segment(67, 1 << 20, 132) == 0
    assert chunks_of_segment(66, 1024, 132) == 256
    assert chunks_of_segment(8, 1024, 132) == 32
    assert chunks_of_segment(8, 64, 132) == 0
    assert chunks_of_segment(8, 1024, 132, 3, 4) == 38
    assert chunks_of_segment(8, 1024, 0) == chunks_of_segment(0, 0, 0) == 0
    for programs in range(1, 70):
        for chunks in (16, 100, 128, 1000, 4096, 16384):
            length = chunks_of_segment(programs, chunks, 132)
            assert length == 0 or -(-chunks // length) * programs <= 2 * 132
