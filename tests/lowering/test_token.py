"""Token regions of every bundled layer, and of odd ones: values and gradients in float64."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from archc.backends.eager.emit import called_first

import archc
from archc.autodiff.reverse import gradient
from archc.compile import for_kernels, lowered, whole_in_kernels
from archc.ir import layer as ir
from archc.ir.plan import Plan, examples
from archc.ir.token_region import Left, TokenRegion
from archc.lowering.token import Lowered, RegionKernels, lower, lower_values
from archc.regions.cut import regions
from archc.regions.gradient import gradient_of
from archc.runtime.layers import top_of
from archc.runtime.philox import factor_of_seed
from archc.specfile import bundled
from archc.tile.language import Apply, Block, For, Load, Reduce, Store, statements
from tests.few import slow
from tests.lowering.regions import Trial, regions_of, resolved, trial

CLOSE = 1e-11


@cache
def trials(spec: str) -> list[Trial]:
    """A trial for each kind of region of a bundled spec: those of equal ops are one."""
    found = dict[tuple, Trial]()
    for layer in called_first(lowered(archc.load(spec).layer)):
        sizes = next(iter(examples(layer, 4)), None)
        for region in regions(layer.graph):
            if isinstance(region, TokenRegion) and sizes is not None:
                key = tuple((n.op, n.operands) for n in named_alike(region))
                found.setdefault(key, Trial(region, {**sizes, "T#": 7, "batch": 2}))
    return [*found.values()]


def named_alike(region: TokenRegion) -> Iterator:
    """The nodes of a region, its inputs by their places alone."""
    for node in region.graph:
        name = str(node.id) if isinstance(node.op, ir.Input) else None
        yield node if name is None else type(node)(node.id, (name, node.type), (), node.type)


MODELS = (
    "deepseek_v3", "dsa", "gemma3", "gpt", "gpt_oss", "kimi_linear", "lfm2", "lm", "mamba2_lm",
    "mhc", "mom", "qwen3_next", "xlstm",
)  # fmt: skip
"""Specs that take longer: of many layers, whose regions others have too, or of long ones."""


NONE = ("alibi", "cross_attention", "linear_attention_simple", "lstm", "slstm", "ssm")
"""Specs with nothing but products with parameters around their memory."""


@pytest.mark.parametrize(
    "spec", [pytest.param(s, marks=[pytest.mark.slow] * (s in MODELS)) for s in bundled()]
)
def test_regions_of_bundled_layers(spec: str) -> None:
    assert bool(trials(spec)) == (spec not in NONE)
    for each in trials(spec):
        errors = each.errors()
        assert {*each.region.makes} <= {*errors} and any(name[:2] == "d." for name in errors)
        assert max(errors.values()) < CLOSE, (each.region.name, errors)


@pytest.mark.default("15")
@pytest.mark.parametrize("T", [1, 3, 15, 63])
def test_tokens_that_no_block_divides(T: int) -> None:
    """Sequences shorter than the convolution, and longer than a program's blocks."""
    each = trial("kda", "q", T=T, d=4, H=2, K=6, V=4, r=2)
    assert max(each.errors().values()) < CLOSE


@pytest.mark.parametrize("K", [60, 100])
def test_dims_that_no_block_divides(K: int) -> None:
    for region in ("q", "y_in", "log_alpha"):
        each = trial("kda", region, B=1, T=5, d=4, H=1, K=K, V=K, r=2)
        assert max(each.errors().values()) < CLOSE


WIDE = '''
layer Wide(d, H, K):
    """A norm after a gate after a convolution of seven tokens."""
    input x[d]
    param W, G[d, H, K]; c[H, K, 7]; gain[K]; w[H]
    u = shortconv(x @ W, c)
    z = rmsnorm[K](sigmoid(x @ G) * u) * gain
    output y[H, K] = z * w + u
'''
PLANE = '''
layer Plane(d, n, m):
    """Reductions over two dims, apart and together."""
    input x[d]
    param W[d, n, m]; a[n]; b[m]
    A = x @ W
    P = exp(A - max[n, m](A))
    Q = P / sum[n, m](P) + a * P / sum[n](P)
    output y[n, m] = Q * b - mean[m](Q)
'''
PARTLY = '''
layer Partly(d, H, K, R):
    """A rotation of the first dims of a head, and a look at the token before the last."""
    input x[d]
    param W[d, H, K]; U[d, H, R]; s[H, R]
    r = rope_half[R](tanh(x @ U) * s, 100)
    u = rope[K](x @ W, 100)
    output y[H, K] = u - u[t-2] * sum[R](r * r)
'''

COMPARED = '''
layer Compared(p, P, W):
    """A convolution that is only compared: its taps have gradients of 0."""
    input x[P, p], z[P, p]
    param w[p]; c[P, W]
    u = z / (sigmoid(shortconv(x @ w, c)) + 1)
    output y[P, p] = x - where(sum[P](u) > 0.25, mean[P](x), mean[P](z))
'''

BROAD = '''
layer Broad(H, K, M, N):
    """Values of other dims than those that gains are of: each gain's gradient is summed once."""
    input x[H, K], z[M, N]
    param g[K]; u[N]
    a = rmsnorm[K](x) * g
    output y[H, K] = a; w[M, N] = z * u * sum[H](mean[K](a * a))
'''
CUT = '''
layer Cut(H, K, R, N):
    """A head in two parts, one of which is rotated: the gain's gradient has terms of both."""
    input x[H, K]
    param g[K]
    require K == R + N
    q_t, q_p = rmsnorm[K](x) * g by R, N
    output y[H, K] = join[R, N as K](rope_half[R](q_t, 100), q_p)
'''

TURNED = '''
layer Turned(d, H, K, R, N):
    """Convolutions that are rotated, whole and in part, of a product with another; and one more."""
    input x[d]
    param W, U[d, H, K]; c[H, K, 3]; e[H, K, 2]
    require K == R + N
    u = rope_half[K](silu(shortconv(x @ W, c)), 100)
    v = shortconv(silu(u) * (x @ U), e)
    v_r, v_n = v by R, N
    output y[H, K] = join[R, N as K](rope_half[R](v_r, 100), v_n) + u[t-1]
'''

AT = '''
layer At(d, H, K, R, N, P):
    """A head rotated in two halves of a part, by a table that is read at given positions."""
    input x[d]
    input pos in P
    param W[d, H, K]; C, S[P, R]; g[N]
    require K == 2 * R + N
    a, b, rest = (x @ W) by R, R, N
    c = C[pos]
    s = S[pos]
    output y[H, K] = join[R, R, N as K](a * c - b * s, a * s + b * c, rmsnorm[N](rest) * g)
'''
OWN = Path(__file__).parents[1] / "backends/triton/regions"
HALVES = (OWN / "halves.arch").read_text("utf-8")

SMALL = '''
layer Small(d, n, m, K):
    """Products of small matrices of a token: of what is read, of what is made, with a vector."""
    input x[d]
    param W[d, n, n']; V[d, n, K]; U[d, m, n]; w[d, n]
    A = softmax[n'](x @ W)
    X = x @ V
    Y = rmsnorm[K](A @ X + 0.5 * X)
    z[n] = tanh(x @ w)
    output y[m, K] = sigmoid(x @ U) @ Y + sum[n](A @ z); g[n, n'] = Y @ X.T
'''

GAINED = '''
layer Gained(H, K):
    """Functions of parameters, of all dims, of one and of none."""
    input x[H, K]
    param g[K]; h[H]; m[H, K]; z[]
    output y[H, K] = rmsnorm[K](x) * softplus(g) * tanh(h) + x * exp(-exp(m)) * sigmoid(z)
'''


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        (WIDE, {"d": 3, "H": 2, "K": 5}),
        slow((PLANE, {"d": 3, "n": 3, "m": 5})),
        slow((PARTLY, {"d": 3, "H": 2, "K": 6, "R": 4})),
        (COMPARED, {"p": 3, "P": 2, "W": 2}),
        slow((BROAD, {"H": 2, "K": 4, "M": 2, "N": 3})),
        slow((CUT, {"H": 2, "K": 7, "R": 4, "N": 3})),
        (SMALL, {"d": 3, "n": 3, "m": 5, "K": 6}),
        (GAINED, {"H": 3, "K": 5}),
        slow((AT, {"d": 3, "H": 2, "K": 8, "R": 3, "N": 2, "P": 4})),
        (HALVES, {"d": 3, "H": 2, "K": 7, "R": 4, "N": 3}),
        slow((TURNED, {"d": 3, "H": 2, "K": 6, "R": 4, "N": 2})),
    ],
)
def test_odd_layers(text: str, sizes: dict[str, int]) -> None:
    layer = lowered(archc.parse(text).layer)
    found = regions_of(layer)
    assert found
    for region in found:
        for T in (1, 9):
            each = Trial(region, {**resolved(layer, sizes), "T#": T, "batch": 2})
            errors = each.errors()
            assert max(errors.values()) < CLOSE, (region.name, T, errors)


@pytest.mark.parametrize("text", [AT, CUT])
def test_parts_of_heads_are_joined_in_their_region(text: str) -> None:
    layer = lowered(archc.parse(text).layer)
    (region,) = regions_of(layer)
    assert not {n.id for n in layer.graph if isinstance(n.op, ir.Join)} - region.members


def test_parts_of_what_is_convolved_are_regions_of_their_own() -> None:
    """Triton picks no more elements of a walk's tile than there are, and a size that is read as a
    number alone is a whole one."""
    layer = lowered(archc.parse(TURNED).layer)
    kinds = [{type(node.op) for node in region.graph} for region in regions_of(layer)]
    assert any(ir.Window in each for each in kinds) and any(ir.Join in each for each in kinds)
    assert not any({ir.Window, ir.Join} <= each for each in kinds)
    plan = Plan(layer)
    assert "float R" not in whole_in_kernels(plan).text(plan)


def test_what_surrounds_a_memory_is_five_regions() -> None:
    """Convolutions with their norms, the gate's softplus, and the gated norm at the end."""
    found = regions_of(lowered(archc.load("kda").layer))
    assert [each.name for each in found] == ["q", "k", "v", "log_alpha", "y_in"]
    reads = {each.name: tuple(each.reads) for each in found}
    assert reads["q"] == ("q_raw", "c_q")
    assert reads["y_in"] == ("g_raw", "o", "gain")
    assert reads["log_alpha"] == ("log_alpha_raw", "dt_bias", "A_log"), "-exp(A_log) takes no pass"
    assert [*found[0].pasts] == ["q_raw_past"]


def test_a_region_reads_nothing_that_is_made_of_it() -> None:
    """The residual stream is read by the norm before a sublayer and added to after it: these are
    two regions, as the sublayer stands between them."""
    layer = lowered(archc.load("transformer").layer)
    found = regions(layer.graph)
    regions_ = [each for each in found if isinstance(each, TokenRegion)]
    assert [each.name for each in regions_] == ["h_in", "h"]
    assert [*regions_[1].makes] == ["h", "made"]
    (left,) = [each for each in found if isinstance(each, Left)]
    assert left.name == "y" and "no kernel is worth" in left.reason


RESIDUAL = """
layer Residual(d, p):
    input x[d], z[d]
    output y[d] = x + dropout(z, p)
"""


def test_gradients_that_are_the_same_are_made_once() -> None:
    """Those of a residual sum, and one that is that of a result: kernels write none of these."""
    for spec, name, alike in (
        (archc.load("transformer"), "h", {"y": "d.x"}),
        (archc.parse(RESIDUAL), "y", {"x": "d.y"}),
    ):
        layer = for_kernels(lowered(spec.layer))
        (region,) = [each for each in regions_of(layer) if each.name == name]
        backward = gradient_of(region, gradient)
        assert backward.alike == alike and not {*alike} & {*backward.wanted}
        sizes = next(iter(examples(layer, 4)))
        errors = Trial(region, {"p": 0.5, **sizes, "T#": 5, "batch": 2}).errors()
        assert {f"d.{each}" for each in alike} <= {*errors}
        assert max(errors.values()) < CLOSE


def test_products_with_parameters_stay_outside() -> None:
    for spec in ("kda", "transformer", "rwkv7", "mamba"):
        found = regions_of(lowered(archc.load(spec).layer))
        assert found
        for region in found:
            ops = [n.op for n in region.graph if isinstance(n.op, ir.Contract)]
            for op in ops:
                labels = {label for each in op.ins for label in each}
                assert any({*each} == labels for each in op.ins), (spec, region.name, op)


LEARNED = (OWN / "learned_angles.arch").read_text("utf-8")
WAVES = """
layer Waves(d, n):
    input x[d]
    param W[d, n]; w[n]; s[]
    c = cos(position(x) * w)
    output y[n] = c * silu(x @ W) + exp(-s * s * position(x)) * tanh(x @ W)
"""


@pytest.mark.parametrize("text", [LEARNED, WAVES])
def test_tables_that_learn_have_gradients(text: str) -> None:
    """Cosines of learned angles, and decays that are the same for all dims too."""
    layer = lowered(archc.parse(text).layer)
    (region,) = regions_of(layer)
    learned = [n for n, id in region.reads.items() if "batch" not in layer.graph[id].type.names]
    assert len(learned) >= 2 and not region.tables
    sizes = {"d": 3, "H": 2, "K": 6} if text == LEARNED else {"d": 3, "n": 6}
    for T in (1, 9):
        errors = Trial(region, {**resolved(layer, sizes), "T#": T, "batch": 3}).errors()
        assert {f"d.{name}" for name in learned} <= {*errors}
        assert max(errors.values()) < CLOSE, (T, errors)


def test_tables_of_positions_have_none() -> None:
    (region,) = [r for r in regions_of(lowered(archc.parse(PARTLY).layer)) if r.tables]
    wanted = gradient_of(region, gradient).wanted
    assert len(region.tables) >= 2 and not {*region.tables} & {*wanted}


def test_what_is_only_compared_has_no_gradient() -> None:
    """Zeros where nothing else enters. Programs of gradients have no buffers of inputs that they do
    not read."""
    layer = lowered(archc.parse((OWN / "compared.arch").read_text("utf-8")).layer)
    found = regions_of(layer)
    assert len(found) == 2
    for region in found:
        made = lower(region, gradient_of(region, gradient))
        assert isinstance(made, RegionKernels)
        program = made.gradient.program
        assert {*made.gradient.buffers.values()} == {each.name for each in program.buffers}
        sizes = resolved(layer, {"d": 3, "n": 5})
        errors = Trial(region, {**sizes, "T#": 9, "batch": 2}).errors()
        learns = [name for name in errors if name.startswith("d.")]
        assert learns == ["d.y_raw" if "y" in errors else "d.u"]
        assert max(errors.values()) < CLOSE, errors


INTS = """
layer Ints(d, n):
    input x[d]
    input k in d
    param V[n, d]
    h = where(k > 3, 0.9, 0.3) * where(k < 1, 2, 1) + index[n] * where(k == 2, 1, 0)
    output y[d] = h @ V + x
"""


NOISY = """
layer Noisy(H, K, p):
    input x[H, K]
    param g[H, K]; c[H, K, 3]
    u = dropout(silu(x) * g, 0.1)
    v = dropout(shortconv(dropout(u, p), c) + x, p)
    output y[H, K] = rmsnorm[K](v + u[t-1])
"""


@pytest.mark.default("2")
@pytest.mark.parametrize(
    ("K", "training", "last"),
    [
        (3, True, "rmsnorm[K](v + u[t-1])"), (3, False, "rmsnorm[K](v + u[t-1])"),
        (2, True, "v + u[t-1]"), slow((16, True, "v + u[t-1]")), (6, True, "rope[K](u, 10) + v"),
    ],
)  # fmt: skip
def test_dropout_has_its_random_numbers_in_the_kernel(K: int, training: bool, last: str) -> None:
    """Three of them, one before a convolution and one after it, of dims that eights fill or do not,
    in blocks, and rotated: the gradient makes the factors of the values again. Without seeds
    nothing is dropped."""
    text = NOISY.replace("rmsnorm[K](v + u[t-1])", last)
    layer = for_kernels(lowered(archc.parse(text).layer))
    (region,) = regions_of(layer)
    assert len(region.seeds) == 3
    for T in (1, 7):
        each = Trial(region, {**resolved(layer, {"H": 2, "K": K, "p": 0.4}), "T#": T, "batch": 2})
        errors = each.errors(seeded=training)
        assert {"y", "d.x", "d.g", "d.c"} <= {*errors}
        assert max(errors.values()) < CLOSE, errors


def test_as_many_are_dropped_as_it_says() -> None:
    factor = factor_of_seed(torch.tensor(3), (200, 50, 10), 0.3, torch.ones(()).double())
    assert {*factor.unique().tolist()} == {0.0, 65536 / (65536 - 19660)}, "in 65536ths"
    assert abs((factor == 0).double().mean() - 0.3) < 0.01
    other = factor_of_seed(torch.tensor(4), (200, 50, 10), 0.3, torch.ones(()))
    assert 0.4 < ((other == 0) == (factor == 0)).double().mean() < 0.6, "another seed is another"
    assert (factor_of_seed(torch.tensor(3), (9,), 1.0, torch.ones(())) == 0).all()


CHOOSING = """
layer Choosing(N, M, n):
    input x[N, M]
    param bias[N, M]; g[M]
    s = x + bias
    p = sigmoid(x * g)
    c = top(n, s)
    u = where(c, p, 0)
    output y[N, M] = u / (sum[M](u) + 1) - where(top(1, sum[M](u)), x, 2)
"""
SCORES = {
    "ties": lambda x: (2 * x).round() / 2,
    "without some": lambda x: torch.where(x > 0, x, -torch.inf),
    "infinite": lambda x: torch.where(x > 0.5, torch.inf, torch.where(x < -1, -torch.inf, x)),
}


@pytest.mark.default("5-2")
@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize(("M", "n"), [(1, 1), (5, 2), (8, 3), (6, 9)])
def test_choices_in_regions(scores: str, M: int, n: int) -> None:
    """Of equals the first; never -inf. What reads a choice is another region, so that a gradient
    never chooses anew."""
    layer = lowered(archc.parse(CHOOSING).layer)
    found = regions_of(layer)
    counts = [sum(isinstance(node.op, ir.Top) for node in region.graph) for region in found]
    assert counts == [1, 1, 0]

    class Scored(Trial):
        def drawn(self, node, extra, dtype=torch.float64):
            x = super().drawn(node, extra, dtype)
            return SCORES[scores](x) if node.op.name == "x" and x.is_floating_point() else x

    for region in found:
        each = Scored(region, {**resolved(layer, {"N": 3, "M": M, "n": n}), "T#": 5, "batch": 2})
        errors = each.errors()
        assert max(errors.values()) < CLOSE, (region.name, errors)


def test_what_is_no_number_is_as_torch_has_it_in_a_choice() -> None:
    """It is the largest, before infinity."""
    layer = lowered(archc.parse(CHOOSING).layer)
    each = Trial(regions_of(layer)[0], {"N": 2, "M": 6, "n": 2, "T#": 7, "batch": 1})
    values = lower_values(each.region)
    assert isinstance(values, Lowered)
    x = torch.tensor([1.0, torch.inf, 2.0, torch.nan, 2.0, -torch.inf]).double()
    x = torch.stack([x[torch.randperm(6)] for _ in range(14)]).reshape(1, 7, 2, 6)
    made = each.ran(values, {"x": x, "bias": torch.zeros(2, 6).double()}, {"c": x.shape})
    best = x.sort(dim=-1, descending=True, stable=True).indices[..., :2]
    assert torch.equal(made["c"], torch.zeros_like(x).scatter(-1, best, 1.0))
    assert torch.equal(made["c"], top_of(x, 2, -1).double())


def test_a_region_of_whole_numbers_stays_in_pytorch() -> None:
    layer = lowered(archc.parse(INTS).layer)
    (left,) = [each for each in regions(layer.graph) if each.name == "h"]
    assert isinstance(left, Left) and "nothing but whole numbers" in left.reason
    plan = Plan(layer)
    assert "def ints_h" not in whole_in_kernels(plan).text(plan)


NORM = """
layer Norm(d):
    input x[d]
    param g[d]
    output y[d] = x * rsqrt(mean[d](x * x) + 1e-6) * sigmoid(g * x)
"""


@pytest.mark.parametrize("d", [1, 10_000])
def test_a_dim_of_one_and_of_many(d: int) -> None:
    (region,) = regions_of(lowered(archc.parse(NORM).layer))
    errors = Trial(region, {"d": d, "T#": 2, "batch": 1}).errors()
    assert max(errors.values()) < CLOSE


@pytest.mark.default(
    "rmsnorm[d](shortconv(z, c)) * exp(x)",
    "softmax[d](x) * z",
    "max[d](x) * z - min[d](z) * sigmoid(x)",
)
@pytest.mark.parametrize(
    "made",
    [
        "x * rsqrt(mean[d](x * x) + 1e-6) * sigmoid(g * x)", "rmsnorm[d](x) * g * silu(z)",
        "layernorm[d](x) * g + z", "l2norm[d](z) * sigmoid(x)", "softmax[d](x) * z",
        "z * exp(x) * g", "-softplus(-x) + z * g", "max[d](x) * z - min[d](z) * sigmoid(x)",
        "shortconv(sigmoid(x) * z, c) * g", "rmsnorm[d](shortconv(z, c)) * exp(x)",
    ],
)  # fmt: skip
def test_zeros_and_infinities_are_what_pytorch_makes_of_them(made: str) -> None:
    """Norms over zeros, and -inf through gates: values, and gradients, which are no numbers where
    the meaning has none."""
    kinds = {"x": "input x[d]", "z": "input z[d]", "c": "param c[d, 3]", "g": "param g[d]"}
    lines = [kinds[name] for name in kinds if re.search(rf"\b{name}\b", made)]
    text = "\n    ".join(["layer Odd(d):", *lines, f"output y[d] = {made}\n"])
    layer = lowered(archc.parse(text).layer)
    (region,) = regions_of(layer)

    class Odd(Trial):
        def drawn(self, node, extra, dtype=torch.float64):
            x = super().drawn(node, extra, dtype)
            if node.op.name in ("x", "z"):
                x[0, 1 + extra] = 0.0
            if node.op.name == "x":
                x[1, 2 + extra, 0] = float("-inf")
                x[1, 3 + extra] = float("-inf")
            return x

    each = Odd(region, {"d": 5, "T#": 6, "batch": 2})
    assert max(each.errors().values()) < CLOSE


def test_sums_over_tokens_stay_in_registers() -> None:
    """Each token of a block has sums of its own, which are added up after the last block."""
    for name, count in (("q", 1), ("y_in", 1), ("log_alpha", 2)):
        region = next(r for r in regions_of(lowered(archc.load("kda").layer)) if r.name == name)
        made = lower(region, gradient_of(region, gradient))
        assert isinstance(made, RegionKernels)
        body = made.gradient.program.body
        turns = [s for s in body.statements if isinstance(s.op, For)]
        inside = [s.op for each in turns for s in statements(each.blocks[0])]
        assert not [op for op in inside if isinstance(op, Reduce) and op.dim == "t"], name
        after = [s.op for s in body.statements if isinstance(s.op, Reduce) and s.op.dim == "t"]
        assert len(after) == count, name


def test_a_turn_of_a_walk_loads_each_token_once() -> None:
    """The gradient of a convolution is one program: what a token looks back on is carried, the taps
    are loaded before the first turn, and what was kept before the first token in turns before. What
    is of tokens and what is of those kept are told apart by where they are written."""
    (region,) = [r for r in regions_of(lowered(archc.load("kda").layer)) if r.name == "q"]
    made = lower(region, gradient_of(region, gradient))
    assert isinstance(made, RegionKernels)
    values = made.values, ["q_raw"], For(ahead=3, together=2)
    for program, wanted, turn in (values, (made.gradient, ["d_q", "q_raw"], For(ahead=4))):
        body = program.program.body
        turns = [s for s in body.statements if isinstance(s.op, For)]
        read = [_read(each.blocks[0]) for each in turns]
        assert read[-1] == wanted and turns[-1].op == turn
        assert all("q_raw_past" in each for each in read[:-1])
        assert _read(body, within=False) == ["c_q"]
        choices = {s.results[0] for s in statements(body) if s.op == Apply("where")}
        written = [s for s in statements(turns[-1].blocks[0]) if isinstance(s.op, Store)]
        assert written and not any(choices.intersection(s.operands) for s in written)


def _read(block: Block, within: bool = True) -> list[str]:
    """The buffers that a block reads."""
    found = statements(block) if within else block.statements
    return sorted(s.op.buffer.name for s in found if isinstance(s.op, Load))


COPIES = """
layer Copies(d, n):
    input x[d]
    X[n, d] = tanh(x) + 0 * index[n]
    output Y[n, d] = X
"""


def test_neighbours_of_a_tile_are_neighbours_in_memory() -> None:
    """Dims are in another order before the last op, which only turns them around."""
    layer = lowered(archc.parse(COPIES).layer)
    (region,) = regions_of(layer)
    made = lower_values(region)
    assert isinstance(made, Lowered) and made.space.split is not None
    assert made.space.split.name == "d" and [axis.name for axis in made.space.grid] == ["n"]


def test_halves_of_a_head_are_read_as_they_lie() -> None:
    """Where (i + c) mod K is a division, compilers read number by number what is one vector."""
    for region in regions_of(lowered(archc.parse(HALVES).layer)):
        made = lower(region, gradient_of(region, gradient))
        assert isinstance(made, RegionKernels)
        ops = [s.op for each in made.programs for s in statements(each.program.body)]
        assert not any(op == Apply("mod") for op in ops)
