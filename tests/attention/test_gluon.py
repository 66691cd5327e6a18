"""Folds by warps of three kinds: their machine code for compute capability 9, without a GPU, and
what is left to Triton alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from archc.backends.load import load as loaded
from archc.backends.triton.fold_op import has_special
from archc.backends.triton.gluon_printer import SUFFIX, to_gluon

import archc
from archc.compile import text_of
from archc.ir.refusal import Refusal
from archc.lowering.attention_forward import forward
from archc.lowering.attention_gradient import by_readers, by_tokens
from archc.runtime import gluon_kernels
from archc.runtime.gluon_kernels import are_specialized
from archc.tile import language as lang
from archc.tile.compose import Composer, ceil_div
from tests.attention.cases import launch
from tests.attention.test_folds import SCORES
from tests.backends.triton.programs_in_files import scaled_rows
from tests.tile.programs import capped_attention

pytest.importorskip("triton")

BLOCKS = {"": (128, 128), "_readers": (128, 128), "_tokens": (64, 128)}


@cache
def module() -> Any:
    """The file of an attention whose gates are sums between tokens."""
    layer = archc.load("fox").layer
    return loaded(text_of(layer, "triton"), layer.name)


def kernels(kind: str) -> tuple[Any, Any]:
    """The kernel of Triton, and that of Gluon."""
    name = f"fox_memory_sum{kind}_kernel"
    return getattr(module(), name), getattr(module(), f"{name}{SUFFIX}")


def argument(name: str, rows: int, columns: int) -> tuple[str, Any, bool]:
    """The type of an argument, what it is where that is known, and whether 16 divides it."""
    import triton.language as tl

    fixed: dict[str, Any] = {"borders_p": None, "IO": tl.bfloat16, "PRECISION": "tf32x3"}
    fixed |= {"BLOCK_T": rows, "BLOCK_S": columns, "BLOCK_K": 128, "COPIED": 1}
    ones = ("_d_K", "_to_t", "_before_s")
    if name in fixed or name.endswith(ones):
        return "constexpr", fixed.get(name, 1), False
    if name.endswith("_p"):
        wide = any(part in name for part in ("sum_log_f", "lse", "delta"))
        return "*fp32" if wide else "*bf16", None, True
    return ("fp32", None, False) if name == "N0" else ("i32", None, name[0] not in "TSPB")


def machine_code(kernel: Any, argument: Callable[[str], tuple[str, Any, bool]]) -> Any:
    """A kernel of Gluon for compute capability 9: `argument` says of a name its type, what it is
    where that is known, and whether 16 divides it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon._runtime import GluonASTSource

    given = {name: argument(name) for name in kernel.arg_names}
    signature = {name: type for name, (type, _, _) in given.items()}
    fixed = {name: value for name, (type, value, _) in given.items() if type == "constexpr"}
    whole = {(n,): [["tt.divisibility", 16]] for n, each in enumerate(given.values()) if each[2]}
    source = GluonASTSource(kernel, signature, fixed, whole)
    return triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": 4})


@pytest.mark.parametrize("kind", BLOCKS)
def test_kernels_are_called_alike_and_compile(kind: str) -> None:
    """With all registers of a processor given out, in its shared memory."""
    first, second = kernels(kind)
    assert second.arg_names == first.arg_names
    made = machine_code(second, partial(argument, rows=BLOCKS[kind][0], columns=BLOCKS[kind][1]))
    assert made.metadata.num_warps == 12
    assert made.metadata.shared <= 232_448
    assert made.asm["ptx"].count("wgmma.mma_async") >= 32
    assert "setmaxnreg.dec.sync.aligned.u32 \t40" in made.asm["ptx"]


def test_a_launch_chooses_one_of_both() -> None:
    text = " ".join(text_of(archc.load("fox").layer, "triton").split())
    for kind in BLOCKS:
        name = f"fox_memory_sum{kind}_kernel"
        assert f"({name}{SUFFIX} if special else {name})" in text
    assert text.count("special = are_specialized(") == len(BLOCKS)
    assert text_of(archc.load("path").layer, "triton").count(", spans=True)") == len(BLOCKS)


def walk(
    ahead: int = 0, inside: str = "in_s", fill: float = 0.0, function: str = "exp2",
    size: str = "S", own: str = "T",
) -> lang.Program:  # fmt: skip
    """The sum over s of exp2(q . k) v, as one loop; of options, one thing that is otherwise."""
    k = Composer("walk", "o = the sum over s of exp2(q . k) v.")
    (IO,) = k.dtypes("IO")
    T, S, H, E = k.sizes("T", "S", "H", "E")
    BLOCK_T, BLOCK_S, BLOCK_K = k.lengths("BLOCK_T", "BLOCK_S", "BLOCK_K")
    q = k.buffer("q", h=H, t=T, d=BLOCK_K, dtype="IO")
    keys, v = (k.buffer(n, h=H, s=S, d=BLOCK_K, dtype="IO") for n in ("k", "v"))
    o = k.buffer("o", h=H, t=T, d=BLOCK_K, dtype="IO")
    h, d = k.program("h", H), k.iota("d", BLOCK_K)
    t = k.program("block", ceil_div(T, BLOCK_T)) * BLOCK_T + k.iota("t", BLOCK_T)
    in_t = (t >= 3) if own == "odd" else t < {"T": T, "E": E}[own]
    b_q = k.load(q, h, t, d, where=[in_t], wide=False)
    start = k.full(0.0, lang.Dim("t", BLOCK_T), lang.Dim("d", BLOCK_K))
    with k.loop(0, ceil_div(S, BLOCK_S), start) as turn:
        s = turn.index * BLOCK_S + k.iota("s", BLOCK_S)
        masks = {"in_s": [s + ahead < {"S": S, "E": E}[size]], "none": [], "odd": [s >= 3]}[inside]
        b_k = k.load(keys, h, s, d, where=masks, fill=fill, wide=False)
        b_v = k.load(v, h, s, d, where=masks, fill=fill, wide=False)
        p = k.apply(function, b_q.dot(b_k))
        turn.next(p.to(IO).dot(b_v, turn.carried[0]))
    k.store(o, h, t, d, value=turn.results[0], where=[in_t])
    return k.done()


def test_sums_are_a_turn_late_where_they_are_carried_alone() -> None:
    """What is walked last is weighed behind the loops; a gradient's sums are added at once."""
    text = text_of(archc.load("fox").layer, "triton")
    names = [f"def fox_memory_sum{kind}_kernel{SUFFIX}_weigh(" for kind in ("", "_readers")]
    weighs = [text.split(name)[1].split("\ndef ")[0] for name in names]
    assert weighs[0].count("late_sum = warpgroup_mma(") == 1
    assert weighs[0].count("late_going = warpgroup_mma(") == 2
    assert "late_sum" not in weighs[1]


def test_a_mask_is_the_end_of_what_the_copy_engine_reads() -> None:
    """What it has not is 0: of the tensor, or of a descriptor that ends before."""
    whole, before = (
        made if isinstance(made, Refusal) else " ".join(made.split())
        for made in (to_gluon(walk()), to_gluon(walk(size="E")))
    )
    assert isinstance(whole, str)
    assert isinstance(before, str)
    assert "[S, BLOCK_K], [BLOCK_K, 1], [BLOCK_S, BLOCK_K]," in whole
    assert "[E, BLOCK_K], [BLOCK_K, 1], [BLOCK_S, BLOCK_K]," in before


@pytest.mark.parametrize("own", ["T", "E", "odd"])
def test_what_is_owned_comes_and_goes_by_the_copy_engine(own: str) -> None:
    """A factor of products, and what is made of it through its room, if their masks are ends."""
    text = to_gluon(walk(own=own))
    assert isinstance(text, str)
    text = " ".join(text.split())
    told = f"[{own}, BLOCK_K], [BLOCK_K, 1], [BLOCK_T // 2, BLOCK_K],"
    moved = [text.count(t) for t in (told, "own_ready, q_held", "async_copy_shared_to_global")]
    assert moved == ([0, 0, 0] if own == "odd" else [2, 2, 1])
    assert ("gl.load((q_p" in text, "gl.store(" in text) == (own == "odd", own == "odd")
    assert text.count("mbarrier.wait(own_ready, 0)") == (own != "odd")


def test_a_factor_that_is_read_besides_is_read_from_its_room() -> None:
    """What arrives is a factor of products, and one of delta."""
    text = text_of(archc.load("fox").layer, "triton")
    weighs = text.split(f"def fox_memory_sum_readers_kernel{SUFFIX}_weigh(")[1].split("\ndef ")[0]
    assert "b_d_o = b_d_o_held.index(W).load(of_d_K)" in weighs
    assert "(d_o_p" not in weighs


@pytest.mark.parametrize(
    "program, why",
    [
        (scaled_rows(), "blocks or vectors that Triton's kernel is not told of"),
        (capped_attention(), "a product of other factors"),
        (walk(ahead=1), "a tile with a mask of other places"),
        (walk(inside="odd"), "a tile with another mask than its end"),
        (walk(fill=1.0), "a tile that is filled with another number than 0"),
        (walk(function="softplus"), "the function softplus"),
    ],
)
def test_another_kind_of_program_is_refused(program: lang.Program, why: str) -> None:
    assert to_gluon(program) == Refusal(None, why)


@pytest.mark.parametrize(
    "score, kinds",
    [
        ("forgetting", ["forward", "readers", "tokens"]),
        ("capped", ["forward", "readers"]),
        ("window, sink", []),
        ("softmax over another product, of blocks", []),
    ],
)
def test_kernels_are_there_where_they_take_less_time(score: str, kinds: list[str]) -> None:
    """A cap's gradients of tokens read took longer, a window walks few blocks, and of two products
    there is no room for all that is walked."""
    text, sizes = SCORES[score]
    fold = launch(text, 64, H=4, K=16, V=16, **sizes).fold
    makes = {"forward": forward, "readers": by_readers, "tokens": by_tokens}
    assert [kind for kind, make in makes.items() if has_special(fold, make(fold), kind)] == kinds


def test_they_are_launched_on_hopper_alone() -> None:
    x = torch.zeros(1, 2048, 1, 128, dtype=torch.bfloat16)
    assert not are_specialized(2048, None, x, x, x)


def test_they_are_launched_of_many_readers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of as many tokens in fewer heads programs of Triton fill the GPU better."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.version, "hip", None)

    def asked(
        heads: int, walked: int = 4096, wide: int = 128, dtype: torch.dtype = torch.bfloat16,
        spans: bool = False,
    ) -> bool:  # fmt: skip
        x = SimpleNamespace(
            dtype=dtype, device=torch.device("cuda"), shape=(2, 4096, heads, wide),
            numel=lambda: 2 * 4096 * heads * wide,
        )  # fmt: skip
        monkeypatch.setattr(gluon_kernels, "is_copied", lambda x: True)
        monkeypatch.setattr(gluon_kernels, "fence_async_shared", object())
        monkeypatch.setattr(gluon_kernels, "triton", SimpleNamespace(__version__="3.6.0"))
        return are_specialized(walked, None, cast(torch.Tensor, x), spans=spans)

    assert [asked(32), asked(16), asked(32, 512)] == [True, False, False]
    assert [asked(32, wide=wide) for wide in (64, 32, 256)] == [True, False, False]
    kinds = (torch.float16, torch.float32)
    assert [asked(32, dtype=kind) for kind in kinds] == [True, False]
    few = [asked(32, spans=True), asked(32, wide=64, spans=True)]
    assert [*few, asked(32, dtype=torch.float16, spans=True)] == [True, False, False]
