"""Plans: a golden of one, every reason in use, and sizes and conditions as they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import archc
from archc.diagnostics import ArchError
from archc.schedule.decisions import REASONS
from archc.show.plan_listing import as_json, as_text
from archc.show.planned import Conditions, conditions, plans_of

GOLDEN = Path(__file__).parents[1] / "golden" / "plan"


def plans(spec: str, **wanted: object) -> list:
    return list(plans_of(archc.load(spec).layer, conditions(wanted)))


def test_the_plan_of_gla(golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN / "gla.txt", as_text(plans("gla")))


def test_lines_are_no_wider_than_a_page() -> None:
    text = as_text(plans("mesa"))
    assert [line for line in text.split("\n") if len(line) > 108] == []


def test_every_decision_has_its_reason_as_data() -> None:
    used = set()
    for spec in ("kda", "mesa"):
        for plan in as_json(plans(spec)):
            for part in plan["parts"]:
                found = [*part["kernels"], *part["buffers"], *part["computed again"]]
                for each in [*found, *part["in PyTorch"]]:
                    reasons = each["why"] if isinstance(each["why"], list) else [each["why"]]
                    assert all(reason["text"] and reason["rule"] in REASONS for reason in reasons)
                    used |= {reason["rule"] for reason in reasons}
    assert {"carries", "free", "waits", "split", "saved", "passed", "narrow", "again"} <= used


def test_a_state_that_stays_a_loop_beside_chunks_waits_at_every_token() -> None:
    """The gain of a scalar variance is no linear recurrence: its walk of tokens is most of it."""
    text = """
layer Gain(H, K, V):
    input q[H, K], k[H, K], v[H, V], r[H]
    recurrence p[], S[K, V] over H:
        g    = p[t-1] / (p[t-1] + softplus(r))
        p[t] = (1 - g) * p[t-1] + 1
        S[t] = S[t-1] + g * k @ (v - S[t-1].T @ k).T
        o    = S[t].T @ q
    output o
"""
    layer = archc.parse(text).layer
    for tokens in (1024, 8192):
        (plan,) = plans_of(layer, conditions({"T": tokens}))
        part = next(part for part in plan.parts if len(part.kernels.kernels) > 1)
        assert part.kernels.kernels and sum(c.expected for c in part.cost.kernels) > tokens * 1e-6


@pytest.mark.slow
def test_what_bounds_tiles_is_said() -> None:
    """The room there is, what each kernel takes of it, and why chunks are not longer."""
    wide = archc.load("mesa", d=512, H=2).layer
    gla, mesa = as_text(plans("gla")), as_text([*plans_of(wide, conditions({}))])
    assert "a program may hold 232 kB of shared memory and 262 kB of registers" in gla
    assert "64 tokens are a chunk: the most that kernels are made for" in gla
    product = as_text(plans("gated_delta_product"))
    assert "32 tokens are a chunk: a token has 2 rows, so that a triangle of them has 64" in product
    assert "holds 32.8 kB of shared memory and" in gla
    assert "32 tokens are a chunk: of 64, `solve_system` needs 65,536 bytes of registers" in mesa


GIVEN = """
layer Token(d):
    input a[], b[d]
    output p[] = a
    output q[d] = b
layer Merge(d):
    input p[], q[d], p'[], q'[d]
    output P[] = p + p'
    output Q[d] = max(q + p', q')
layer Apply(d):
    input p[], q[d], m[d]
    output after[d] = max(m + p, q)
layer Raised(d, H):
    input a[H], b[H, d]
    chunk: law(Token, Merge, Apply)
    recurrence m[d] over H:
        m[t] = max(m[t-1] + a, b)
    output m
"""


def test_what_pytorch_makes_for_kernels_is_listed() -> None:
    """Summaries of a law are merged in PyTorch, and a kernel loads the last one of a chunk."""
    layer = archc.parse(GIVEN).layer
    assert "q here.2" in as_text([*plans_of(layer, conditions({}))])


def test_a_walk_of_few_programs_goes_in_segments() -> None:
    """And one of many whole; each says so, with the numbers that decide."""
    layer = archc.load("linear_attention_simple", d=256, H=2).layer
    few = [*plans_of(layer, conditions({"B": 1, "T": 65536}))]
    text = as_text(few)
    assert "in 45 segments of 23 chunks: 4 programs for 132 processors" in text
    assert "that is 2 launches and" in text
    kernels = [k for part in as_json(few)[0]["parts"] for k in part["kernels"]]
    (walk, *_) = (k["segments"] for k in kernels if "segments" in k)
    assert walk["segments"] == 45 and walk["seconds"]["in segments"] < walk["seconds"]["whole"]
    assert "goes whole: 4 programs for 132 processors, 4 chunks" in as_text(
        plans_of(layer, conditions({"B": 1, "T": 256}))
    )


def test_sizes_of_a_layer_that_is_called_are_those_of_the_call() -> None:
    (plan,) = list(plans_of(archc.load("gla_block", d=1024, H=8).layer, Conditions(T=256)))
    assert plan.setting.sizes["V"] == 1024 // 8 and plan.setting.sizes["T#"] == 256


def test_a_loop_is_one_kernel_and_what_has_none_says_so() -> None:
    text = as_text(plans("lstm"))
    assert "token by token: 1 kernel" in text and "so that weights are loaded once" in text
    assert "from token to token, in registers" in text
    assert "step does not fit on chip: its tokens are a loop in PyTorch" in text, "4096 x 4096"
    assert "forward to learn: 1 kernel" in text and "gradient: 1 kernel" in text
    assert "does not fit" not in as_text([*plans("gla"), *plans("slstm")]), "weights of 128 x 128"
    assert "no recurrence" in as_text(plans("swiglu"))


def test_a_loop_that_nobody_asked_for_says_why() -> None:
    spec = archc.parse(
        "layer L(H, K):\n    input q[H, K], k[H, K], u[H, K]\n    recurrence S[K, K'] over H:\n"
        "        S[t] = tanh(S[t-1]) + k @ u.T\n        o = S[t].T @ q\n    output o\n"
    )
    (plan,) = plans_of(spec.layer, conditions({}))
    assert "\n  `S` token by token: `tanh` of a state\n" in as_text([plan])
    assert not plans("lstm")[0].kept, "`chunk: sequential`"


def test_a_loop_without_a_kernel_says_why() -> None:
    spec = archc.parse(
        "layer L(d, R):\n    input x[d]\n    i = (index[d] + index[R]) % size(d)\n"
        "    recurrence h[d]:\n        h[t] = x + tanh(max[R](take[d](h[t-1], i)))\n    output h\n"
    )
    (plan,) = plans_of(spec.layer, Conditions())
    reason = "places that depend on several dims"
    assert f"in PyTorch, as there is no kernel: {reason}" in as_text([plan])


@pytest.mark.slow
def test_a_walk_whose_tiles_spill_is_a_kernel_as_its_launch_decides() -> None:
    """Two states of 128 x 128 that products read in turn, and more than registers hold for them."""
    cell = Path(__file__).parents[1] / "backends/triton/cells/orthogonal.arch"
    for large, refused in ((128, False), (512, True)):
        text = as_text(plans_of(archc.load(str(cell), K=large, V=large).layer, Conditions()))
        assert ("step does not fit on chip" in text) is refused
        assert "more than there are: it spills" in text


def test_states_that_are_matrices_are_made_again_where_they_are_too_many() -> None:
    """4 bytes of 2 states of 128 x 128, 32 heads of 2 sequences, before each of T tokens."""
    spec = Path(__file__).parents[1] / "backends/triton/cells/momentum.arch"
    layer = archc.load(str(spec)).layer
    (many,), (few,) = (list(plans_of(layer, conditions({"T": T}))) for T in (8192, 100))
    text = as_text([many])
    assert "in spans of 128 tokens: the states before each of 8,192 would take 68.7 GB" in text
    assert "the states before each token are kept for the gradient: 839 MB" in as_text([few])
    _, forward, gradient = many.parts
    states = 4 * 2 * 128 * 128 * 32 * 2 * 8192
    assert forward.widths["M[t-1]"] == gradient.widths["M[t-1]"] == 4
    assert not {"M", "P"} & {*forward.kernels.graph.outputs}
    assert forward.cost.bytes > states < gradient.cost.bytes
    assert "spans of 128" in as_json([many])[0]["parts"][1]["states"]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        ({"B": 0}, "`B` must be a whole number above 0, but it is 0"),
        ({"T": 1.5}, "`T` must be a whole number"),
        ({"dtype": "float64"}, "`dtype` is one of `bfloat16`, `float16`, `float32`"),
        ({"device": "H20"}, "did you mean `H200`"),
    ],
)
def test_conditions_are_checked(wanted: dict[str, object], says: str) -> None:
    with pytest.raises(ArchError, match="E0503") as error:
        conditions(wanted)
    assert says in str(error.value)
