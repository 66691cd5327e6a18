"""Files with kernels: what their head says, how they are written, and that they load anywhere."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys

import pytest
import torch
from archc.backends.load import load

import archc
from archc import compile
from archc.algebra import cut
from archc.compile import file_of, function_of, in_kernels, lowered, with_chunks
from tests.backends.triton.texts import layer_text
from tests.few import few


def text_of(spec: str, backend: str = "triton") -> str:
    return compile.text_of(archc.load(spec).layer, backend)


def test_the_head_says_what_runs_where() -> None:
    head = ast.get_docstring(ast.parse(text_of("mesa"))) or ""
    assert "mesa_memory_kernels: 3 kernels" in head
    assert "in PyTorch: Contract, as it is one value for a whole sequence" in head


@pytest.mark.slow
def test_steps_of_a_token_leave_only_parameters_to_the_host() -> None:
    """Their gradients are sums over sequences, times what they are made into."""
    head = ast.get_docstring(ast.parse(text_of("gated_delta_product"))) or ""
    assert "gated_delta_product_memory_gradient_kernels: 3 kernels" in head
    left = [line.strip() for line in head.splitlines() if "in PyTorch: " in line]
    assert left == [
        "in PyTorch: Reduce, as it looks across what different programs have",
        "in PyTorch: Elementwise, as it is one value for a whole sequence",
    ]


@pytest.mark.default("mlstm")
@pytest.mark.parametrize("spec", ["mlstm", "linear_attention"])
def test_no_number_is_copied_to_the_gpu(spec: str) -> None:
    """The host would wait for every kernel before it, as mlstm's gradient did twice."""
    text = text_of(spec)
    assert re.search(r"torch\.full\(\(\), [^\n]*device=q\.device", text)
    assert not re.search(r"torch\.tensor\([^\n]*device=", text)


def test_a_memory_alone_has_the_kernels_of_its_layer() -> None:
    """`archc bench` and `spec.op` take memories out of their layers."""
    layer = archc.load("delta").layer
    whole = layer_text(lowered(layer), in_kernels)
    alone = function_of(cut.op(with_chunks(layer)), "alone", "triton")
    kernels = r"(?ms)^@kernel[^\n]*\ndef \w+_kernels_.*?(?=\n\n\n)"
    found = re.findall(kernels, alone)
    assert found and found == re.findall(kernels, whole)


@pytest.mark.slow
def test_what_enters_a_fused_memory_has_kernels() -> None:
    """`archc bench --fused` and `spec.fused_op`: norms and gates of KDA are token regions, not
    passes of PyTorch; on a CPU the same numbers."""
    fused = cut.fused_op(with_chunks(archc.load("kda").layer))
    text = function_of(fused, "fused", "triton", whole=True)
    body = text[text.index("def fused(") :]
    assert "F." not in body and text.count("@token_region(") == 3
    given = [torch.randn(1, 3, 2, 4) for _ in "qkva"] + [torch.randn(1, 3, 2)]
    given += [torch.randn(2), torch.randn(2, 4)]
    found, wanted = (
        load(source, "fused").fused(*given)[0] for source in (text, function_of(fused, "fused"))
    )
    torch.testing.assert_close(found, wanted)


def test_sums_of_scans_over_channels_hold_no_tile_of_all_channels() -> None:
    """Where a scan of [rows, D, N] is summed over D, programs have a part of D, and one index of N
    after the other: with 512 of D a tile of all asked for 262,144 bytes of shared memory."""
    text = text_of("ssm_selective")
    begin = text.index("_gradient_kernels_chunk_output(")
    kernel = text[begin : text.index("@kernel", begin)]
    scans = re.findall(r"(?m)^( +)\S.* = tl\.associative_scan\(", kernel)
    loops = re.findall(r"(?m)^( +)for N\w* in tl\.range\(0, N\):", kernel)
    assert scans and loops and min(map(len, scans)) > min(map(len, loops))
    assert re.search(r"tl\.arange\(0, (B_)?D\)", kernel) is None


def test_a_file_without_kernels_says_so() -> None:
    plain = archc.parse(
        "layer Plain(d, e):\n    input x[d]\n    param W[d, e]\n    output y[e] = x @ W\n"
    )
    text = layer_text(lowered(plain.layer))
    assert "Nothing here is worth a kernel" in " ".join(text.split())
    assert "triton" not in text


def test_token_regions_are_listed_and_called() -> None:
    """Both norms of a block are called where the spec has them, with PyTorch for what is no GPU."""
    text = text_of("swiglu")
    head = ast.get_docstring(ast.parse(text)) or ""
    assert "each of these is one kernel" in head
    assert "    swiglu_y_in" in head
    assert "x_W_gate, x_W_in = products_of(x, self.W_gate, self.W_in)" in text
    assert "swiglu_y_in(x_W_gate, x_W_in)" in text
    assert "y = weighed(1, self.W_out, x_W_gate_x_W_in)" in text
    assert "= in_turn(products_of, u, self.W_r, self.W_B, self.W_C)" in text_of("mamba")
    assert "if by_token_kernels(" in text


@pytest.mark.parametrize(
    ("more", "made", "in_place"),
    [
        ("", "rmsnorm[f](h * silu(h)) * h", True),
        ("B[d, f]", "h * tanh(x @ B)", True),
        ("B[d, f]", "h + silu(x @ B)", False),  # the gradient of h is what arrives
        ("B[d, H, f]", "tanh(h) * sum[H](silu(x @ B))", False),  # programs share what arrives
        ("", "rope_half[f](h * tanh(h), 10000)", False),  # what arrives is read half a head away
    ],
)
def test_a_value_made_again_stands_where_its_gradient_stood(
    more: str, made: str, in_place: bool
) -> None:
    """Only if the program that writes a number is the one that reads the other, at that place."""
    spec = archc.parse(
        f"layer Made(d, f{', H' * ('H' in more)}):\n    input x[d]\n"
        f"    param A[d, f]; W[f, d]{'; ' * bool(more)}{more}\n"
        f"    h = x @ A\n    output y[d] = ({made}) @ W\n"
    )
    text = layer_text(lowered(spec.layer))
    assert "weighed(" in text
    assert ("in_place=True)" in text) == in_place


def test_the_eager_file_has_none_of_it() -> None:
    assert "triton" not in text_of("gla", "eager")


@pytest.mark.default("gla")
@pytest.mark.parametrize(
    "spec", few(["gla", "rwkv7", "gated_delta_product", "mamba"], ["gla", "mamba"])
)
def test_files_are_readable_and_always_the_same(spec: str) -> None:
    layer = lowered(archc.load(spec).layer)
    text = layer_text(layer)
    assert text == layer_text.__wrapped__(layer)
    assert not [line for line in text.split("\n") if len(line) > 100]
    assert "((row +" not in text and "((row -" not in text
    rules = ["check", "--isolated", "--select", "E,F", "--line-length", "100", "-"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *rules], input=text, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_without_a_gpu_the_eager_form_runs() -> None:
    import torch

    layer = archc.load("gla").module(d=8, H=2, K=4, V=4, backend="triton")
    other = archc.load("gla").module(d=8, H=2, K=4, V=4)
    other.load_state_dict(layer.state_dict())
    x = torch.randn(1, 70, 8)
    assert torch.equal(layer(x), other(x))


def test_where_torch_sees_a_gpu_an_op_has_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the same arguments; of tensors on a CPU it makes the same."""
    import torch

    plain = archc.load("gla").op
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr("archc.backends.measured.tables", dict)  # of GPUs by their names
    fast = archc.load("gla").op
    monkeypatch.undo()
    assert "launch_kernel" in fast.__globals__ and "launch_kernel" not in plain.__globals__
    assert list(inspect.signature(plain).parameters) == list(inspect.signature(fast).parameters)
    q, k, v = (torch.randn(2, 70, 3, 4) for _ in range(3))
    gate = -torch.rand(2, 70, 3, 4)
    (o, state), (same, end) = plain(q, k, v, gate), fast(q, k, v, gate)
    assert torch.equal(o, same) and torch.equal(state.S, end.S)


CLOCK = """
layer Clock(d, V):
    input x[d]
    param W_v[d, V]; f[d] = 0
    v = x @ W_v
    n = position(x)
    a = exp(-f / (1 + n))
    recurrence S[d, V]:
        S[t] = diag(a) @ S[t-1] + x @ v.T
        o = S[t].T @ x
    output o
"""
SPIKES = """
layer Spikes(d):
    input x[d]
    param leak[d] = 2
    a = sigmoid(leak)
    chunk: sequential
    recurrence m[d], s[d]:
        p = a * m[t-1] * (1 - s[t-1]) + x
        s[t] = where(p > 1, 1, 0)
        m[t] = p
    output s
"""
NAMES = """
layer Names(d, K, F):
    input x[d]
    param A_0[K, F]; W_k[d, K]; S_0[K, F] = 0; T_0[d, F]
    k = x @ W_k
    u = x @ T_0
    chunk: sequential
    recurrence S[K, F]:
        S[t] = tanh((S[t-1] + A_0) * S_0) + k @ u.T
        o = S[t].T @ k
    output o
"""

SLOTS = """
layer Slots(d, M, K, V):
    input x[d]
    param W_k[d, K]; W_v[d, V]; W_a[d, M]
    k = x @ W_k
    v = x @ W_v
    a = sigmoid(x @ W_a)
    chunk: sequential
    recurrence A[M, K], B[M, V]:
        A[t] = diag(a) @ A[t-1] + (1 - a) @ k.T
        B[t] = diag(a) @ B[t-1] + (1 - a) @ v.T
        o = B[t].T @ softmax[M](A[t] @ k)
    output o
"""

UNREAD = """
layer Unread(d, V, K, flag = true):
    input x[d]
    param k[K]; v[V]; n[d, K]
    q = x @ n
    recurrence S[K, V]:
        S[t] = S[t-1] + k @ tanh(v).T
        o = S[t].T @ where(q > 0, q, 0.5 * q)
    output y[d] = x * (sum[K, V](S) if flag else sum[V](o))
"""


@pytest.mark.filterwarnings("ignore::archc.diagnostics.ArchWarning")
@pytest.mark.parametrize("spec", [CLOCK, SPIKES, NAMES, SLOTS, UNREAD])
def test_what_is_rare(spec: str) -> None:
    """Decays without sequences, states of whole numbers that nothing is learned through, values
    that are called as states are before the first token, states that tell two lengths, a sequence
    that only a result reads which nothing reads."""
    layer = archc.parse(spec).layer
    text = file_of(layer, "triton", "")
    assert "_decode(" in text


def read_after(function: ast.FunctionDef, name: str, line: int) -> bool:
    """Whether a name is read in a function after a line."""
    return any(
        isinstance(each, ast.Name) and each.id == name and each.lineno > line
        for each in ast.walk(function) if not isinstance(getattr(each, "ctx", None), ast.Del)
    )  # fmt: skip


@pytest.mark.parametrize("spec", few(["kda", "gla"], ["gla"]))
def test_memory_of_intermediates_is_given_back(spec: str) -> None:
    """What no later launch reads is let go of before the next results have their room."""
    tree = ast.parse(function_of(cut.op(with_chunks(archc.load(spec).layer)), "alone", "triton"))
    functions = [f for f in tree.body if isinstance(f, ast.FunctionDef)]
    functions = [f for f in functions if f.name.endswith("_kernels")]
    both = [f for f in functions if "keep" in [each.arg for each in f.args.args]]
    assert len(functions) + len(both) == 3, "the inference is a branch where it begins alike"
    gone = set()
    for function in functions:
        lines = [s for s in function.body if isinstance(s, ast.Assign)]
        rooms = [s for s in lines if ast.unparse(s.value).startswith("torch.empty(")]
        for room in rooms:
            name = ast.unparse(room.targets[0])
            later = [s for s in rooms if not read_after(function, name, s.lineno - 1)]
            gone_at = [s for s in function.body if isinstance(s, ast.Delete)]
            left = [s.lineno for s in gone_at if name in map(ast.unparse, s.targets)]
            assert bool(left) == bool(later), (function.name, name)
            assert all(line < later[0].lineno for line in left), (function.name, name)
            gone |= {name} if left else set()
    assert "key_decay" in gone


SOLVED = """layer Solved(H, K, V):
    input q[H, K], k[H, K], v[H, V], g[H]
    param lam[H, K]
    a = sigmoid(g)
    recurrence A[K, K'], G[K, V], z[K], n[] over H:
        A[t] = a * A[t-1] + k @ k.T
        G[t] = a * G[t-1] + k @ v.T
        z[t] = a * z[t-1] + k
        n[t] = a * n[t-1] + 1
        p    = solve(A[t] + diag(softplus(lam)), q, iterations = 20)
        o    = (G[t].T @ p) / (n[t] + abs(z[t].T @ p))
    output o
"""


@pytest.mark.slow
def test_a_system_may_stand_beside_states_of_any_dims() -> None:
    """Threads have the columns of the system; vectors and numbers have none."""
    text = compile.text_of(archc.parse(SOLVED).layer, "triton")
    assert "options = token_options(step_block(K))" in text
    assert "T == 1 and step_block(K) <= 128:" in text


SQUARE = """layer Delta(H, K):
    input k[H, K], q[H, K], v[H, K], f[H], b[H]
    recurrence S[K, K'] over H:
        S[t] = sigmoid(f) * S[t-1] + sigmoid(b) * k @ (v - S[t-1].T @ k).T
        o    = S[t].T @ q
    output o
"""


def test_a_square_state_asks_for_the_room_of_both_its_dims() -> None:
    """The product of two equal blocks is a power, whose base is known to the function."""
    text = compile.text_of(archc.parse(SQUARE).layer, "triton")
    assert "block_of(K) * block_of(K) <= " in text
