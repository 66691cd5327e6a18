"""Kernels of attends as machine code for sm_90, ahead of time, without a GPU:

python -m tests.attention.compiled capped sloped chosen latent

Prints registers, bytes spilled and shared memory of each; 1 if one has no room.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from archc.backends.load import load
from archc.backends.triton import printer
from archc.backends.triton.arguments import arguments as names_of
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource
from triton.compiler import compile as compiled_for

from archc.api import load as load_layer
from archc.attention.recognise import folds
from archc.attention.scores import scores_of
from archc.attention.weighted_sum import WeightedSum
from archc.compile import lowered, slopes_of
from archc.ir import layer as ir
from archc.ir.choices import chooses
from archc.ir.rewrite import rewrite
from archc.lowering.attention import BORDERS
from archc.lowering.attention_chosen import by_choice, of_choosers, of_chosen
from archc.lowering.attention_forward import forward
from archc.lowering.attention_gradient import by_readers, by_tokens
from archc.lowering.attention_heads import by_parts, turned
from archc.lowering.attention_scores import of_pairs
from archc.lowering.attention_singly import of_singly
from archc.lowering.attention_turns import in_turns
from archc.runtime.folds import by_addresses, fold_blocks, part_blocks, turn_blocks, turned_around
from archc.runtime.listings import choice_blocks, entry_precision, readers_beside
from archc.runtime.paged import PAGE
from archc.schedule.choosing import choices_within
from archc.tile.language import Program
from archc.verify.fold_trial import FoldTrial
from tests.attention.cases import Launch, launch
from tests.attention.test_chosen import SCORE, launched
from tests.attention.test_folds import SCORES
from tests.attention.test_singly import Picked
from tests.tile.launched import HEAD, compiled_in

PROGRAMS = {"forward": forward, "readers": by_readers, "tokens": by_tokens, "parts": by_parts}
CHOSEN = {
    "chosen forward": by_choice, "chosen readers": of_choosers, "chosen tokens": of_chosen,
}  # fmt: skip
LATENT = {"forward": by_choice, "readers": of_singly}
ROOM, SPILLED = 232_448, 1024


def compiled(score: str, kind: str, wide: int = 128, packed: bool = False) -> dict[str, int]:
    """One program on bfloat16, with the blocks that files launch it with; for batches, or for
    packed sequences."""
    if kind in CHOSEN:
        case: Launch = launched(SCORE, 1, 64, K=wide, V=wide, H=32)
        case.dtype = torch.bfloat16
        heads = 16 * readers_beside(8192, 16)
        blocks = choice_blocks(kind.rsplit(maxsplit=1)[-1], torch.bfloat16, heads, 64, wide)
        return assembled_for(CHOSEN[kind](case.fold), case, *blocks)
    text, sizes = SCORES[score]
    case = launch(text, 256, B=1, dtype=torch.bfloat16, H=4, K=wide, V=wide, **sizes)
    if kind in ("parts", "slots", "pages"):
        cpu = torch.device("cpu")
        rows, columns, _, options = part_blocks(torch.bfloat16, 8, 1, 8192, cpu, wide)
    else:
        rows, columns, options = fold_blocks(kind, torch.bfloat16, wide)
    if kind in ("slots", "pages"):
        fold = replace(case.fold, ragged=True, paged=kind == "pages")
        options = by_addresses(options) if fold.paged else options
        return assembled_for(by_parts(fold), case, rows, columns, options, packed=True)
    if kind == "turns":
        blocks = turn_blocks(torch.bfloat16, 8192, 128, 8, torch.device("cpu"), wide)
        assert blocks is not None
        return assembled_for(in_turns(case.fold), case, *blocks)
    case = replace(case, copied=1)
    program = PROGRAMS[kind](replace(case.fold, packed=True, copied=kind != "parts"))
    return assembled_for(program, case, rows, columns, options, packed)


def compiled_latent(kind: str, heads: int, dtype: torch.dtype = torch.bfloat16) -> dict[str, int]:
    """The same of tokens that readers of a layer of latent attention have chosen one by one, of
    its own sizes, and of the scores that they choose by."""
    graph = rewrite(lowered(load_layer("dsa").layer), [choices_within]).graph
    attends = [node.op for node in graph if isinstance(node.op, ir.Attend)]
    known: dict[str, float] = {"T#": 64, "T_seen#": 64, "batch": 1, "H": heads}
    known |= {"n": 2048, "HI": 64, "KI": 128}
    known |= {"K": 128, "R": 64, "V": 128, "C": 512}
    if kind == "scores":
        (op,) = (op for op in attends if chooses(op))
        scores = scores_of(op)
        assert scores is not None
        trial = FoldTrial(scores.fold, op, known, {}, dtype=dtype)
        return assembled_for(of_pairs(scores), trial, *fold_blocks("scores", dtype, 128))
    op = next(op for op in attends if op.decode is not None)
    op = replace(op, body=op.decode, decode=None)
    (fold,) = folds(op, slopes_of)
    assert isinstance(fold, WeightedSum)
    case = Picked(fold, op, known, {}, dtype=dtype)
    case.more = {"MOST": 2048}
    blocks = choice_blocks(kind, dtype, heads, 1, 512, 64)
    return assembled_for(LATENT[kind](fold), case, *blocks)


def compiled_rows(paged: bool) -> dict[str, int]:
    """The same of the kernel for few readers of latents, 128 heads at once, that is turned around:
    there is room for two blocks of what is read, and not for three."""
    graph = lowered(load_layer("mla").layer).graph
    op = next(node.op for node in graph if isinstance(node.op, ir.Attend))
    (fold,) = folds(replace(op, body=op.decode, decode=None), slopes_of)
    assert isinstance(fold, WeightedSum)
    known: dict[str, float] = {"T#": 1, "T_seen#": 8192, "batch": 64}
    known |= {"H": 128, "K": 128, "R": 64, "V": 128, "C": 512}
    case = FoldTrial(fold, op, known, {}, dtype=torch.bfloat16)
    cpu = torch.device("cpu")
    rows, columns, _, options = part_blocks(torch.bfloat16, 128, 64, 8192, cpu, 512, 64)
    options = turned_around(options)
    options = by_addresses(options) if paged else options
    program = turned(replace(fold, ragged=paged, paged=paged))
    return assembled_for(program, case, rows, columns, options, packed=paged)


def assembled_for(
    program: Program, case: FoldTrial, rows: int, columns: int, options: dict[str, int],
    packed: bool = False,
) -> dict[str, int]:  # fmt: skip
    """What machine code of a program takes."""
    program = replace(program, warps=options["num_warps"])
    kernel = getattr(load(HEAD + printer.to_triton(program), program.name), program.name)
    lengths = {**case.constants, "BLOCK_T": rows, "BLOCK_S": columns, "BLOCK_PAGE": PAGE}
    lengths["PRECISION"] = "tf32x3"
    lengths |= {name: int(case.sizes[name]) for name in program.constants if name in case.sizes}
    if any(buffer.name.startswith("each_") for buffer in program.buffers):
        lengths["PRECISION"] = entry_precision(case.dtype, 512)
    signature, fixed, even = arguments(program, case.dtype)
    if not packed:
        signature[f"{BORDERS}_p"], fixed[f"{BORDERS}_p"] = "constexpr", None
    fixed |= compiled_in(program, lengths)
    place, named = kernel.arg_names.index, {*kernel.arg_names}
    source = ASTSource(
        kernel,
        {name: signature[name] for name in kernel.arg_names},
        {(place(name),): value for name, value in fixed.items() if name in named},
        {(place(name),): [["tt.divisibility", 16]] for name in even if name in named},
    )
    made = compiled_for(source, target=GPUTarget("cuda", 90, 32), options=options)
    ptx = made.asm["ptx"]
    return {**assembled(ptx), "shared": made.metadata.shared, "waits": waits(ptx)}


def waits(ptx: str) -> bool:
    """Whether every product is waited for, and then all warps for one another, before the next
    block is loaded: only then may that be written over the last one."""
    found = re.findall(r"(?:wgmma\.|bar\.|cp\.async\.)(mma|wait|sync|cg)", ptx)
    order = "".join({"mma": "m", "wait": "w", "sync": "s", "cg": "l"}[word] for word in found)
    return not re.search("m[^w]*l|w[^s]*l", order)


def arguments(
    program: Program, data: torch.dtype
) -> tuple[dict[str, str], dict[str, Any], list[str]]:
    """Types of arguments, those that are known, and those that 16 divides: as of tensors that lie
    in one piece."""
    signature: dict[str, str] = {}
    fixed: dict[str, Any] = {}
    even: list[str] = []
    pointers = {"IO": "*bf16" if data == torch.bfloat16 else "*fp32", "i32": "*i32"}
    strides = names_of(program).strides
    for buffer in program.buffers:
        signature[f"{buffer.name}_p"] = pointers.get(buffer.dtype, "*fp32")
        even.append(f"{buffer.name}_p")
        for axis in buffer.steps:
            name = strides[buffer.name, axis]
            signature[name] = "i32"
            if axis == "part" or axis.startswith("d_"):
                fixed[name], signature[name] = 1, "constexpr"
            elif buffer.dtype == "IO":
                even.append(name)
    signature |= {s.name: "i32" if s.is_integer else "fp32" for s in program.sizes}
    even += [s.name for s in program.sizes if s.name in ("N_K", "N_V", "N_C", "N_R", "N_KI")]
    return signature | dict.fromkeys(program.constants, "constexpr"), fixed, even


def assembled(ptx: str) -> dict[str, int]:
    """Registers and spilled bytes, as the assembler tells them."""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        command = [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", file.name, "-o", "/dev/null"]
        told = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    found = {"registers": r"Used (\d+) registers", "spilled": r"(\d+) bytes spill stores"}
    return {name: int(re.findall(pattern, told)[0]) for name, pattern in found.items()}


def main() -> int:
    """Every program of every score that is asked for."""
    wrong = False
    kinds = [*product(PROGRAMS, (False,)), ("forward", True), ("tokens", True)]
    kinds += [("slots", True), ("pages", True)]
    names = sys.argv[1:] or ["capped", "chosen", "latent"]
    for kind, heads in product((*LATENT, "scores"), (16, 128) if "latent" in names else ()):
        found = compiled_latent(kind, heads)
        far = found["shared"] > ROOM or found["spilled"] > SPILLED
        wrong |= far
        print(f"latent, {kind}, {heads} heads: {found}{' TOO MUCH' if far else ''}", flush=True)
    for paged in (False, True) if "latent" in names else ():
        found = compiled_rows(paged)
        wrong |= found["shared"] > ROOM or found["spilled"] > SPILLED or not found["waits"]
        print(f"latent, rows{', pages' * paged}: {found}", flush=True)
    for kind in ("forward", "readers") if "latent" in names else ():
        found = compiled_latent(kind, 16, torch.float32)
        far = found["shared"] > ROOM
        wrong |= far
        print(f"latent, {kind}, in float32: {found}{' TOO MUCH' if far else ''}", flush=True)
    for score in [name for name in names if name != "latent"]:
        turns = [("turns", False)] if score == "capped" else []
        for kind, packed in [*kinds, *turns] if score in SCORES else product(CHOSEN, (False,)):
            found = compiled(score, kind, packed=packed)
            far = found["shared"] > ROOM or found["spilled"] > SPILLED
            wrong |= far
            title = f"{score}, {kind}{', packed' * packed}"
            print(f"{title}: {found}{' TOO MUCH' if far else ''}", flush=True)
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
