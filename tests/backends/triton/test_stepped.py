"""Kernels that walk tokens, on pools of states, against the eager loop in float64: under Triton's
interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from archc.backends.load import load

import archc
from archc.compile import in_kernels, lowered
from tests.backends.triton.texts import layer_text
from tests.served import ROOT
from tests.served import run as served

pytest.importorskip("triton")

SPECS = (
    "delta", "gated_delta", "gated_delta_product", "gla", "kda", "linear_attention",
    "linear_attention_simple", "lstm", "mamba", "mesa", "mlstm", "mom", "rwkv7", "slstm", "ssm",
    "ssm_selective",
)  # fmt: skip
"""Every bundled spec with a recurrence, but for those that call another's."""

CELLS = Path(__file__).parent / "cells"
"""Recurrences that go token by token, without a chunked form or with one that no program could
hold: nothing in the compiler was written for them."""

LIMIT, ROUNDED = 1e-4, 2e-2
"""How large errors may be in float32, and where what enters and leaves is bfloat16."""


def errors(*checks: str, interpret: bool = True) -> dict[str, float]:
    """The errors of some checks, done in one process."""
    asked = "tests.backends.triton.stepped", ",".join(checks)
    done = served(*asked) if interpret else subprocess.run(
        [sys.executable, "-m", *asked], cwd=ROOT, capture_output=True, text=True, check=False
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.rpartition(": ") for line in done.stdout.splitlines() if ": " in line]
    return {f"{number} {name}": float(error) for number, (name, _, error) in enumerate(lines)}


def wrong(found: dict[str, float], limit: float = LIMIT) -> dict[str, float]:
    assert found
    return {name: error for name, error in found.items() if not error < limit}


def test_rows_of_pools_of_states() -> None:
    """Weights that all sequences share. Rows of the pools in any order, none for one sequence,
    others untouched. Gradients of what has no chunks."""
    assert not wrong(errors("lstm 3 4", "train lstm 3 4"))


@pytest.mark.slow
def test_rows_of_pools_of_several_states() -> None:
    """States that lack the dim that programs share. No token at all. A solve at every token."""
    assert not wrong(errors("mlstm 1 4", "mesa 1 4", "lstm 0 4"))


@pytest.mark.slow
def test_a_system_that_is_solved_by_columns() -> None:
    """The kernel of Gluon, written for Triton: the lines, and where they stand."""
    assert not wrong(errors("columns mesa 1 20"))


@pytest.mark.slow
def test_a_small_system_that_is_solved_by_columns() -> None:
    assert not wrong(errors("columns mesa 1 4"))


def test_a_cell_that_is_spread_over_a_gpu_of_one_program() -> None:
    """Where a program has no room: a barrier at every token, which one program passes alone."""
    assert not wrong(errors("spread lstm 3 4", "spread train lstm 3 4"))


@pytest.mark.slow
def test_a_cell_with_parameters_that_sequences_and_heads_share() -> None:
    """They are no weights of a product: their gradients are sums after the walk."""
    assert not wrong(errors(f"train {CELLS}/behind_a_norm.arch 3 4"))


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_every_bundled_recurrence(spec: str) -> None:
    assert not wrong(errors(f"{spec} 1 4", f"{spec} 3 60"))
    assert not wrong(errors(f"{spec} 3 20 bfloat16"), ROUNDED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("spec", SPECS)
def test_every_bundled_recurrence_on_a_gpu(spec: str) -> None:
    checks = [f"{spec} 1 60", f"{spec} 3 128", f"{spec} 15 20"]
    assert not wrong(errors(*checks, interpret=False))
    assert not wrong(errors(f"{spec} 1 128 bfloat16", interpret=False), ROUNDED)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_system_that_is_solved_by_columns_on_a_gpu() -> None:
    assert not wrong(errors("mesa 1 64", "mesa 1 128", interpret=False))


@pytest.fixture(scope="module")
def module() -> ModuleType:
    """The file of a recurrence with one state."""
    return load(layer_text(lowered(archc.load("gla").layer), in_kernels), "gla_decode")


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["lstm", "slstm"])
def test_gradients_of_recurrences_without_chunks(spec: str) -> None:
    """One token, and dims that are no powers of 2."""
    assert not wrong(errors(f"train {spec} 1 4", f"train {spec} 7 20"))


@pytest.mark.slow
@pytest.mark.parametrize("cell", sorted(CELLS.glob("*.arch")), ids=lambda path: path.stem)
def test_every_other_cell(cell: Path) -> None:
    assert not wrong(
        errors(f"{cell} 1 4", f"{cell} 3 4", f"train {cell} 1 4", f"train {cell} 7 20")
    )


@pytest.mark.slow
def test_a_cell_that_divides_by_its_state_many_times() -> None:
    """Errors of float32 do not grow, as the spec leaves them no way to."""
    assert not wrong(errors(f"{CELLS}/least_squares.arch 65 4"))
    assert not wrong(errors(f"train {CELLS}/least_squares.arch 65 4"))


def test_without_a_gpu_pools_go_through_the_eager_loop(module: ModuleType) -> None:
    q, k, g = (torch.randn(2, 1, 3, 4) for _ in range(3))
    v, pool = torch.randn(2, 1, 3, 5), torch.randn(6, 3, 4, 5)
    index, before = torch.tensor([4, 1]), pool.clone()
    o, S = module.gla_memory(q, k, v, -g.abs(), before[index])
    made, same = module.gla_memory_decode(q, k, v, -g.abs(), pool, index)
    assert same is pool and torch.equal(made, o) and torch.equal(pool[index], S)
    assert torch.equal(pool[[0, 2, 3, 5]], before[[0, 2, 3, 5]])


def test_what_does_not_fit_is_refused(module: ModuleType) -> None:
    q, v, pool = torch.randn(2, 1, 3, 4), torch.randn(2, 1, 3, 5), torch.randn(6, 3, 4, 5)
    with pytest.raises(TypeError, match=r"`S`, a pool, must hold real numbers, got torch\.int32"):
        module.gla_memory_decode(q, q, v, q, pool.int())
    with pytest.raises(ValueError, match="a pool of 1 states"):
        module.gla_memory_decode(q, q, v, q, pool[:1])
    with pytest.raises(ValueError, match="a row for each of 2 sequences"):
        x, bounds = q[:1].expand(1, 9, 3, 4), torch.tensor([0, 4, 9])
        module.gla_memory(x, x, v[:1].expand(1, 9, 3, 5), x, pool[:3], cu_seqlens=bounds)
    with pytest.raises(ValueError, match="no gradient"):
        module.gla_memory_decode(q.requires_grad_(), q, v, q, pool)


POOL = torch.zeros(6, 3, 4, 5)
ROWS = torch.tensor([1, 0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"index": ROWS[:1]}, r"`index` must be integers \[2\], got torch.int64 of shape \[1\]"),
        ({"index": [1, 0]}, "`index` must be a tensor, got list"),
        ({"index": ROWS + 5}, "`index` must be below 6, the rows of `S`, got 6"),
        ({"into": POOL}, "`into` must be a tuple of pools, one for each of S; got Tensor"),
        ({"into": (POOL, POOL)}, "`into` must be a tuple .* got 2 of them"),
        ({"into": (None,)}, r"`into\[0\]` must be a tensor, got NoneType"),
        ({"into": (POOL.int(),)}, r"`into\[0\]`, a pool, must hold real numbers"),
        ({"into": (POOL.to("meta"),)}, r"`into\[0\]`, a pool, is on meta, not on cpu"),
        ({"into": (POOL.mT,)}, r"`into\[0\]`, .* must be \[rows, 3, 4, 5\], got \[6, 3, 5, 4\]"),
        ({"into": (POOL[:1],)}, r"without `index_after`, `into\[0\]` is a pool of 1 states for 2"),
        ({"into": (POOL,), "index_after": ROWS.int()[:1]}, r"`index_after` must be integers \[2\]"),
        ({"into": (POOL[:1],), "index_after": ROWS}, "`index_after` must be below 1, .* `into"),
    ],
)  # fmt: skip
def test_what_pools_and_rows_cannot_be(
    module: ModuleType, options: dict[str, Any], words: str
) -> None:
    q, v = torch.zeros(2, 1, 3, 4), torch.zeros(2, 1, 3, 5)
    with pytest.raises((TypeError, ValueError), match=f"gla_memory_decode: .*{words}"):
        module.gla_memory_decode(q, q, v, q, POOL, **options)


class Kernel:
    """In place of a kernel of Triton, and of its machine code."""

    metadata = SimpleNamespace(shared=0)
    n_regs, n_spills = 64, 0
    arg_names: Sequence[str] = ("x_p", "x_t", "y_p", "T", "K")

    def __init__(self, log: list[tuple], code: Kernel | None = None):
        self.log, self.code = log, code

    def warmup(self, *given: object, **named: object) -> Kernel | None:
        """Its machine code."""
        self.log.append(("compiled", len(given), sorted(named)))
        return self.code

    def __getitem__(self, grid: tuple) -> Callable[..., None]:
        return lambda *given: self.log.append(("launched", grid, len(given)))


def test_the_same_arguments_are_looked_up_at_once(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machine code is launched with every argument by place; another stride asks Triton again."""
    log: list[tuple] = []
    kernel, x = Kernel(log, Kernel(log)), torch.zeros(2, 32, dtype=torch.bfloat16)
    room = SimpleNamespace(get_device_properties=lambda device: {"max_shared_mem": 1})
    active = SimpleNamespace(utils=room, get_current_device=lambda: 0)
    driver = SimpleNamespace(driver=SimpleNamespace(active=active))
    monkeypatch.setattr(module, "triton", SimpleNamespace(JITFunction=Kernel, runtime=driver))
    for tokens, width in ((17, 8), (33, 8), (17, 4), (1 << 40, 8)):
        module.launch_kernel(kernel, 5, [x, width, None], [tokens], {"K": 4}, {"num_warps": 1})
    asked = ("compiled", 4, ["K", "grid", "num_warps"])
    launched = ("launched", (5, 1, 1), 5)
    assert log == [asked, launched, launched, asked, launched, asked, launched]


class OnGPU(torch.Tensor):
    """A tensor on a CPU that says it is on a GPU."""

    is_cuda = True

    def get_device(self) -> int:
        return 0 if self.device.type == "cpu" else -1


@pytest.fixture
def launched(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """What a kernel is launched of that stands in for that of the module, on a GPU that is none."""
    log: list[tuple] = []
    room = SimpleNamespace(get_device_properties=lambda device: {"max_shared_mem": 1})
    active = SimpleNamespace(utils=room, get_current_device=lambda: 0)
    driver = SimpleNamespace(driver=SimpleNamespace(active=active))
    triton = SimpleNamespace(JITFunction=Arguments, runtime=driver)
    monkeypatch.setattr(module, "triton", triton)
    step = Arguments(log)
    step.arg_names = module.gla_memory_step.arg_names
    monkeypatch.setattr(module, "gla_memory_step", step)
    monkeypatch.setattr(module, "on_gpu", lambda *given: True)
    monkeypatch.setattr(module, "PLAIN", {OnGPU})
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return log


class Arguments(Kernel):
    """In place of a kernel and its machine code: keeps the addresses that it is launched of."""

    def warmup(self, *given: object, **named: object) -> Arguments:
        return self

    def __getitem__(self, grid: tuple) -> Callable[..., None]:
        def launch(*given: Any) -> None:
            where = [x.data_ptr() if isinstance(x, torch.Tensor) else x for x in given]
            self.log.append((grid, *where))

        return launch


def step_inputs(batch: int = 2, gaps: int = 1) -> list[torch.Tensor]:
    """What `gla_memory_decode` is given: q, k, v, a log gate, a pool; every `gaps`-th key."""
    shapes = [(batch, 1, 3, 4), (batch, 1, 3, 4 * gaps), (batch, 1, 3, 8), (batch, 1, 3, 4)]
    q, k, v, g, pool = (torch.zeros(shape) for shape in (*shapes, (6, 3, 4, 8)))
    return [x.as_subclass(OnGPU) for x in (q, k[..., ::gaps], v, g, pool)]


@torch.no_grad()
def test_a_call_like_one_before_is_launched_at_once(
    module: ModuleType, launched: list[tuple], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its own tensors, and into new ones, without asking anything of them again; a call unlike
    it is asked everything."""
    decode, refused = module.gla_memory_decode, AssertionError("asked again")
    calls = [step_inputs() for _ in range(2)]
    first, _ = decode(*calls[0])

    def never(*given: Any) -> None:
        raise refused

    with monkeypatch.context() as patched:
        patched.setattr(module, "check_shapes", never)
        o, pool = decode(*calls[1])
        for other in (step_inputs(batch=3), step_inputs(gaps=2)):
            with pytest.raises(AssertionError, match="asked again"):
                decode(*other)
        with pytest.raises(AssertionError, match="asked again"):
            decode(*calls[1], torch.tensor([1, 0]).as_subclass(OnGPU))
    assert pool is calls[1][-1] and o.shape == first.shape and o.dtype == first.dtype
    renamed = {x.data_ptr(): y.data_ptr() for x, y in zip(*calls, strict=True)}
    renamed[first.data_ptr()] = o.data_ptr()
    assert len(renamed) == 6 and o.data_ptr() != first.data_ptr()
    assert launched[1] == tuple(renamed.get(x, x) for x in launched[0])


def test_what_is_refused_is_refused_after_a_call_like_it(
    module: ModuleType, launched: list[tuple]
) -> None:
    given = step_inputs()
    with torch.no_grad():
        module.gla_memory_decode(*given)
    given[0].requires_grad_()
    with pytest.raises(ValueError, match="no gradient"):
        module.gla_memory_decode(*given)
    q, k, v, g, pool = step_inputs()
    with pytest.raises(ValueError, match="a pool of 1 states"):
        module.gla_memory_decode(q, k, v, g, pool[:1])
    with pytest.raises(ValueError, match="shapes must be"):
        module.gla_memory_decode(q, k, v[..., :2, :], g, pool)
    with pytest.raises(ValueError, match="`S`, a pool, is on cpu, not on meta"):
        module.gla_memory_decode(q.to("meta"), k, v, g, pool)
    for place, name in enumerate(["q", "k", "v", "log_alpha", "S"]):
        others = [*(q, k, v, g, pool)[:place], None, *(q, k, v, g, pool)[place + 1 :]]
        with pytest.raises(TypeError, match=f"`{name}` must be a tensor, got NoneType"):
            module.gla_memory_decode(*others)
    assert len(launched) == 1
