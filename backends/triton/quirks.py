"""Known bugs of compilers and devices, and the workarounds of generated kernels.

Files are the same for every device, so no file runs into any of them, which tests hold by a rule
for each (`tests/backends/triton/breaches.py`); whether a quirk can show on a machine is only said
to its user (`archc doctor`).
"""

from __future__ import annotations

from dataclasses import dataclass

Version = tuple[int, ...]

SUPPORTED: Version = (3, 5)
"""The oldest Triton that kernels are made for."""

CAPABLE: Version = (8, 0)
"""The least compute capability: products of matrices in bfloat16 and tf32."""


@dataclass(frozen=True)
class Quirk:
    """One hazard: where it shows (first and last compute capability and release of Triton, None: no
    end), what goes wrong, what is done instead, and where it was reported."""

    id: str
    devices: tuple[Version, Version | None]
    triton: tuple[Version, Version | None]
    pattern: str
    instead: str
    sources: tuple[str, ...]

    def shows(self, capability: Version | None, triton: Version | None) -> bool:
        """Whether it can show with a device and a Triton; an unknown one may have it."""
        return _within(capability, self.devices) and _within(triton, self.triton)


def _within(version: Version | None, span: tuple[Version, Version | None]) -> bool:
    if version is None:
        return True
    first, last = span
    return version[: len(first)] >= first and (last is None or version[: len(last)] <= last)


# --- the table ------------------------------------------------------------------------------------

Span = tuple[Version, Version | None]
ANY: Span = ((0,), None)
HOPPER: Span = ((9, 0), (9, 0))
PEER = "source: https://github.com/fla-org/flash-linear-attention"
TRITON = "source: https://github.com/triton-lang/triton"

TURNED = Quirk(
    "turned-product", HOPPER, ((3, 4), None),
    "tl.dot(tl.trans(x), y), where x comes from a product of matrices, is wrong: the left factor is"
    " read from registers in the layout of that product",
    "the other factor is turned around, and the product comes out turned; where both come from"
    " products, PyTorch does it",
    (f"{PEER}/issues/640", f"{PEER}/pull/826"),
)  # fmt: skip

QUIRKS: tuple[Quirk, ...] = (
    TURNED,
    Quirk(
        "warps-of-a-setting", HOPPER, ((3, 4), (3, 7)),
        "the gradient of corrections along the rows of a chunk of 64 is wrong, or reads memory that"
        " is not its own, with some numbers of warps",
        "no setting is searched for when a kernel is called: each that there is is held against"
        " float64 on a GPU by `pytest -m gpu`",
        (f"{PEER}/issues/984", f"{PEER}/pull/988"),
    ),
    Quirk(
        "ptxas-12.8", HOPPER, ((3, 5), (3, 6)),
        "ptxas 12.8, Triton's assembler for GPUs before Blackwell, makes wrong addresses of the"
        " matrices of a product: c (a b) in bfloat16 of 64 rows and 16 or 32 columns is wrong, and"
        " larger kernels are wrong or read memory that is not there",
        "a file with kernels takes the newer ptxas that Triton has for Blackwell",
        (f"{PEER}/pull/1262", f"{TRITON}/issues/11366", f"{TRITON}/pull/8983",
         f"{TRITON}/pull/11781"),
    ),
    Quirk(
        "products-and-more", HOPPER, ((3, 4), None),
        "a tile that a loop loads ahead, and that is a factor of a product as well as something"
        " else, has room for one block less than its products take: the last one of a turn reads"
        " while the next block but one is written (gradients 15 to 57 % off, other ones each time)",
        "what is not a product loads the tile once more",
        (f"{TRITON}/blob/main/lib/Dialect/TritonGPU/Transforms/Pipeliner/LowerLoops.cpp",),
    ),
    Quirk(
        "tf32-by-default", ((8, 0), None), ANY,
        "tl.dot of float32 keeps 10 bits of each factor unless it is told otherwise",
        "every product says how exact it is: three products in tf32 for float32 data",
        ("source: https://triton-lang.org/main/python-api/generated/triton.language.dot.html",),
    ),
    Quirk(
        "narrow-programs", ANY, ANY,
        "tl.program_id and what is made from it has 32 bits: places in tensors of more than 2^31"
        " elements wrap around",
        "it has 64 bits before it is multiplied by a stride",
        (f"{PEER}/pull/1082", f"{TRITON}/issues/1058"),
    ),
    Quirk(
        "block-pointers", ANY, ((3, 7), None),
        "tl.make_block_ptr is deprecated, and later removed",
        "addresses are sums of strides",
        (f"{TRITON}/pull/9667",),
    ),
    Quirk(
        "in-place-autograd", ANY, ANY,
        "torch.compile moves what an autograd.Function writes in place to another time",
        "nothing is written in place inside of one that it sees",
        ("source: https://github.com/pytorch/pytorch/issues/154820",),
    ),
)  # fmt: skip
"""Every quirk that is known to reach generated kernels."""
