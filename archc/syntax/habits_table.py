"""The habits of those who come from PyTorch, NumPy, Python or LaTeX, and what a spec says instead.

One table, read by the diagnostics, shown in docs/from_pytorch.md, and tried by the tests: `wrong`
gets the advice of its row, `right` compiles. In the advice, `{1}` is what a group of the pattern
found; `{x}` is what a function is given and `{d}` its last dim, or these letters if not known.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Habit:
    """`found`: names, or a pattern of text; `write`: the advice; an example of both in `place`."""

    found: str
    write: str
    wrong: str
    right: str
    place: str = "layer"


STEP, READ, FILE = "recurrence", "attend", "file"
"""The block that an example stands in, if not among the statements of a layer."""


@cache
def same() -> frozenset[str]:
    """The functions that have one name and one meaning there and here. Their definitions import
    sympy, which takes a second: only where a mistake is put into words."""
    from archc.functions.definitions import FUNCTIONS

    own = frozenset(name for name, fn in FUNCTIONS.items() if fn.called and fn.arity != 2)
    return own | {"gelu", "elu", "solve"}


MODULES = frozenset(
    "torch nn F np numpy jnp jax lax math tf einops functional scipy linalg special init".split()
)
"""Names of modules that functions are taken from there."""

# fmt: off
NAMES = (
    # --- on each element ---
    Habit("swish SiLU", "`silu({x})`", "z = swish(x)", "z = silu(x)"),
    Habit("sigma", "`sigmoid({x})`", "z = sigma(x)", "z = sigmoid(x)"),
    Habit("relu6 ReLU6", "`min(max({x}, 0), 6)`", "z = relu6(x)", "z = min(max(x, 0), 6)"),
    Habit(
        "clamp clip clamp_min clamp_max hardtanh", "`min(max({x}, low), high)`",
        "z = clamp(x, min=0, max=1)", "z = min(max(x, 0), 1)",
    ),
    Habit(
        "leaky_relu LeakyReLU prelu", "`where({x} > 0, {x}, 0.01 * {x})`",
        "z = leaky_relu(x)", "z = where(x > 0, x, 0.01 * x)",
    ),
    Habit(
        "gelu_new gelu_fast gelu_pytorch_tanh", "`gelu_tanh({x})`; `gelu({x})` is the exact one",
        "z = gelu_new(x)", "z = gelu_tanh(x)",
    ),
    Habit(
        "approximate", "`gelu_tanh({x})`; `gelu({x})` is the exact one",
        'z = gelu(x, approximate = "tanh")', "z = gelu_tanh(x)",
    ),
    Habit(
        "quick_gelu gelu_sigmoid", "`{x} * sigmoid(1.702 * {x})`",
        "z = quick_gelu(x)", "z = x * sigmoid(1.702 * x)",
    ),
    Habit("mish Mish", "`{x} * tanh(softplus({x}))`", "z = mish(x)", "z = x * tanh(softplus(x))"),
    Habit(
        "hardsigmoid hard_sigmoid", "`min(max({x} / 6 + 0.5, 0), 1)`",
        "z = hardsigmoid(x)", "z = min(max(x / 6 + 0.5, 0), 1)",
    ),
    Habit(
        "hardswish hard_swish", "`{x} * min(max({x} / 6 + 0.5, 0), 1)`",
        "z = hardswish(x)", "z = x * min(max(x / 6 + 0.5, 0), 1)",
    ),
    Habit(
        "selu SELU", "`1.0507 * elu({x}, alpha = 1.67326)`",
        "z = selu(x)", "z = 1.0507 * elu(x, alpha = 1.67326)",
    ),
    Habit("relu2 sqrelu", "`squared_relu({x})`", "z = relu2(x)", "z = squared_relu(x)"),
    Habit(
        "glu GLU geglu reglu", "the two halves as two projections: `(x @ W) * sigmoid(x @ V)`",
        "z = glu(x)", "param W, V[d, H]\nz = (x @ W) * sigmoid(x @ V)",
    ),
    Habit("square pow", "`{x} ** 2`", "z = square(x)", "z = x ** 2"),
    Habit("reciprocal", "`1 / {x}`", "z = reciprocal(x)", "z = 1 / x"),
    Habit("neg negative", "`-{x}`", "z = neg(x)", "z = -x"),
    Habit("add sub subtract", "`x + b`, `x - b`", "z = add(x, b)", "z = x + b"),
    Habit("mul multiply", "`x * b`, which broadcasts by name", "z = mul(x, b)", "z = x * b"),
    Habit("div divide true_divide", "`x / b`", "z = div(x, b)", "z = x / b"),
    Habit("maximum", "`max(x, b)`", "z = maximum(x, b)", "z = max(x, b)"),
    Habit("minimum", "`min(x, b)`", "z = minimum(x, b)", "z = min(x, b)"),
    Habit(
        "logaddexp", "`max(x, b) + softplus(-abs(x - b))`",
        "z = logaddexp(x, b)", "z = max(x, b) + softplus(-abs(x - b))",
    ),
    Habit("hypot", "`sqrt(x ** 2 + b ** 2)`", "z = hypot(x, b)", "z = sqrt(x ** 2 + b ** 2)"),
    Habit("lerp", "`x + w * (b - x)`", "z = lerp(x, b, 0.1)", "z = x + 0.1 * (b - x)"),
    Habit("sinh", "`(exp({x}) - exp(-{x})) / 2`", "z = sinh(x)", "z = (exp(x) - exp(-x)) / 2"),
    Habit("cosh", "`(exp({x}) + exp(-{x})) / 2`", "z = cosh(x)", "z = (exp(x) + exp(-x)) / 2"),
    Habit(
        "asinh arcsinh", "`log({x} + sqrt({x} ** 2 + 1))`",
        "z = asinh(x)", "z = log(x + sqrt(x ** 2 + 1))",
    ),
    Habit(
        "acosh arccosh arcosh", "`log({x} + sqrt({x} ** 2 - 1))`",
        "z = acosh(1 + x ** 2)", "z = log(1 + x ** 2 + sqrt((1 + x ** 2) ** 2 - 1))",
    ),
    Habit("erfc", "`1 - erf({x})`", "z = erfc(x)", "z = 1 - erf(x)"),
    Habit("softsign", "`{x} / (1 + abs({x}))`", "z = softsign(x)", "z = x / (1 + abs(x))"),
    Habit("log_sigmoid", "`logsigmoid({x})`", "z = log_sigmoid(x)", "z = logsigmoid(x)"),
    Habit("log1p", "`log(1 + {x})`", "z = log1p(x)", "z = log(1 + x)"),
    Habit("expm1", "`exp({x}) - 1`", "z = expm1(x)", "z = exp(x) - 1"),
    Habit("log2", "`log({x}) / log(2)`", "z = log2(x)", "z = log(x) / log(2)"),
    Habit("log10", "`log({x}) / log(10)`", "z = log10(x)", "z = log(x) / log(10)"),
    Habit("ceil", "`-floor(-{x})`", "z = ceil(x)", "z = -floor(-x)"),
    Habit("round", "`floor({x} + 0.5)`", "z = round(x)", "z = floor(x + 0.5)"),
    Habit("tan", "`sin({x}) / cos({x})`", "z = tan(x)", "z = sin(x) / cos(x)"),
    Habit("heaviside", "`where({x} > 0, 1, 0)`", "z = heaviside(x)", "z = where(x > 0, 1, 0)"),
    Habit(
        "logical_and bitwise_and", "`x > 0 and b > 0`",
        "z = where(logical_and(x > 0, b > 0), x, b)", "z = where(x > 0 and b > 0, x, b)",
    ),
    Habit(
        "logical_or bitwise_or", "`x > 0 or b > 0`",
        "z = where(logical_or(x > 0, b > 0), x, b)", "z = where(x > 0 or b > 0, x, b)",
    ),
    Habit(
        "logical_not", "`not (x > 0)`",
        "z = where(logical_not(x > 0), x, b)", "z = where(not (x > 0), x, b)",
    ),
    Habit(
        "True", "`true`, without a capital",
        "layer L(d, gate = True):\n    input x[d]\n    output y[d] = x if gate else 2 * x",
        "layer L(d, gate = true):\n    input x[d]\n    output y[d] = x if gate else 2 * x", FILE,
    ),
    Habit(
        "False", "`false`, without a capital",
        "layer L(d, gate = False):\n    input x[d]\n    output y[d] = x if gate else 2 * x",
        "layer L(d, gate = false):\n    input x[d]\n    output y[d] = x if gate else 2 * x", FILE,
    ),
    Habit(
        "None", "`none`, without a capital",
        "layer L(d, cap = None):\n    input x[d]\n    output y[d] = x if cap == none else 2 * x",
        "layer L(d, cap = none):\n    input x[d]\n    output y[d] = x if cap == none else 2 * x",
        FILE,
    ),
    Habit("pi", "`3.141592653589793`", "z = sin(pi * x)", "z = sin(3.141592653589793 * x)"),
    Habit("e", "`exp(x)` for e to the x", "z = e ** x", "z = exp(x)"),
    Habit("tensor as_tensor Tensor", "the number itself, `0.5`",
          "z = x * tensor(0.5)", "z = x * 0.5"),
    # --- over dims ---
    Habit(
        "dim axis dims keepdim keepdims",
        "the dim by its name, in brackets: `softmax[d](x)`", "z = dropout(x, dim=1)",
        "z = dropout(x, 0.1)",
    ),
    Habit(
        "softmax Softmax", "`softmax[{d}]({x})` over a dim; `softmax(score)` is for an `attend`",
        "z = x.softmax(-1)", "z = softmax[d](x)",
    ),
    Habit("sum", "`sum[{d}]({x})`: the dim by its name", "z = x.sum(-1)", "z = sum[d](x)"),
    Habit("mean", "`mean[{d}]({x})`: the dim by its name", "z = x.mean(-1)", "z = mean[d](x)"),
    Habit("max amax", "`max[{d}]({x})`: the dim by its name", "z = x.amax(-1)", "z = max[d](x)"),
    Habit("min amin", "`min[{d}]({x})`: the dim by its name", "z = x.amin(-1)", "z = min[d](x)"),
    Habit("prod", "`prod[{d}]({x})`: the dim by its name", "z = x.prod(-1)", "z = prod[d](x)"),
    Habit(
        "var variance", "`mean[{d}](({x} - mean[{d}]({x})) ** 2)`",
        "z = var(x)", "z = mean[d]((x - mean[d](x)) ** 2)",
    ),
    Habit(
        "std", "`sqrt(mean[{d}](({x} - mean[{d}]({x})) ** 2))`",
        "z = std(x)", "z = sqrt(mean[d]((x - mean[d](x)) ** 2))",
    ),
    Habit(
        "logsumexp", "`logsumexp[{d}]({x})` over a dim; `logsumexp(score)` is for an `attend`",
        "z = x.logsumexp(-1)", "z = logsumexp[d](x)",
    ),
    Habit(
        "log_softmax LogSoftmax", "`{x} - logsumexp[{d}]({x})`",
        "z = log_softmax(x)", "z = x - logsumexp[d](x)",
    ),
    Habit("normalize", "`l2norm[{d}]({x})`", "z = normalize(x, dim=-1)", "z = l2norm[d](x)"),
    Habit(
        "norm vector_norm", "`sqrt(sum[{d}]({x} ** 2))`; `l2norm[{d}]({x})` divides by it",
        "z = norm(x)", "z = sqrt(sum[d](x ** 2))",
    ),
    Habit(
        "layer_norm LayerNorm", "`layernorm[{d}]({x}) * gain + bias`, with `param "
        "gain[{d}] = 1; bias[{d}] = 0`",
        "z = LayerNorm(d)(x)", "param gain[d] = 1; bias[d] = 0\nz = layernorm[d](x) * gain + bias",
    ),
    Habit(
        "rms_norm RMSNorm", "`rmsnorm[{d}]({x}) * gain`, with `param gain[{d}] = 1`",
        "z = RMSNorm(x)", "param gain[d] = 1\nz = rmsnorm[d](x) * gain",
    ),
    Habit(
        "group_norm GroupNorm", "a norm over one of two dims: `layernorm[K](q)` with `q[H, K]`",
        "z = group_norm(q)", "z = layernorm[K](q)",
    ),
    Habit(
        "batch_norm BatchNorm1d", "a norm of each token, `layernorm[{d}]({x})`: none looks at the "
        "batch",
        "z = BatchNorm1d(d)(x)", "z = layernorm[d](x)",
    ),
    Habit("argmax", "`top(1, {x})`, which marks the best", "z = where(argmax(x), x, 0)",
          "z = where(top(1, x), x, 0)"),
    Habit("topk", "`top(2, {x})`, which marks the 2 best", "z = where(topk(x, 2), x, 0)",
          "z = where(top(2, x), x, 0)"),
    # --- layers and losses ---
    Habit(
        "Linear Dense linear", "`x @ W + c`, with `param W[d, H]; c[H] = 0`",
        "z = Linear(d, H)(x)", "param W[d, H]; c[H] = 0\nz = x @ W + c",
    ),
    Habit(
        "Embedding embedding", "`E[tokens]`, with `input tokens in vocab` and `param E[vocab, d]`",
        "z = Embedding(H, d)(i)", "param E[H, d]\nz = E[i]",
    ),
    Habit("Dropout", "`dropout(x, 0.1)`", "z = Dropout(0.1)(x)", "z = dropout(x, 0.1)"),
    Habit(
        "Conv1d conv1d causal_conv1d causal_conv1d_fn",
        "`shortconv(x, w)`, with `param w[d, 4]` for 4 tokens",
        "z = conv1d(x)", "param w[d, 4]\nz = shortconv(x, w)",
    ),
    Habit(
        "scaled_dot_product_attention MultiheadAttention sdpa flash_attn_func",
        "a block `attend s <= t over H:` with `o = softmax(q[t].T @ k[s] / sqrt(K)) @ v[s]`",
        "z = scaled_dot_product_attention(q, k, v)",
        "attend s <= t over H:\n    z = softmax(q[t].T @ k[s] / sqrt(K)) @ v[s]",
    ),
    Habit(
        "GRU RNN GRUCell RNNCell", "a block `recurrence h[K] over H:` with the update of `h[t]`",
        "z = RNN(d)(k)", "recurrence z[K] over H:\n    z[t] = tanh(z[t-1] + k)",
    ),
    Habit(
        "Sequential ModuleList", "one statement after the other; `repeat 4 as l:` is a stack",
        "z = Sequential(x)", "z = x\nrepeat 4 as l:\n    z = z + tanh(z)",
    ),
    Habit("Parameter register_buffer", "`param w[d] = 1`", "z = x * Parameter(d)",
          "param w[d] = 1\nz = x * w"),
    Habit(
        "CrossEntropyLoss cross_entropy NLLLoss nll_loss",
        "`cross_entropy[K](logits, i)`, for each token",
        "z = CrossEntropyLoss()(x, i)", "z = cross_entropy[H](a, i)",
    ),
    Habit(
        "MSELoss mse_loss", "`mean[d]((x - b) ** 2)`", "z = mse_loss(x, b)",
        "z = mean[d]((x - b) ** 2)",
    ),
    # --- products ---
    Habit("matmul mm bmm", "`x @ W`", "z = matmul(x, U)", "z = x @ U"),
    Habit(
        "einsum tensordot", "`x @ W` over the dims that both have, or `sum[d](x * b)` over any",
        'z = einsum("d,d->", x, b)', "z = sum[d](x * b)",
    ),
    Habit(
        "dot inner vdot", "`k.T @ q` in a `recurrence` or an `attend`, elsewhere `sum[d](x * b)`",
        "z = dot(x, b)", "z = sum[d](x * b)",
    ),
    Habit(
        "outer ger", "`k @ v.T` in a `recurrence` or an `attend`",
        "S[t] = S[t-1] + outer(k, v)", "S[t] = S[t-1] + k @ v.T", STEP,
    ),
    Habit(
        "transpose permute swapaxes t mT movedim",
        "`v.T` in a `recurrence` or an `attend`; elsewhere dims go by name, in any order",
        "S[t] = S[t-1] + k @ v.transpose(-1, -2)", "S[t] = S[t-1] + k @ v.T", STEP,
    ),
    Habit("eye", "`I`, which takes its size from what it meets",
          "S[t] = (eye(K) - k @ k.T) @ S[t-1] + k @ v.T",
          "S[t] = (I - k @ k.T) @ S[t-1] + k @ v.T", STEP),
    Habit("diag_embed", "`diag(k)`", "S[t] = diag_embed(k) @ S[t-1] + k @ v.T",
          "S[t] = diag(k) @ S[t-1] + k @ v.T", STEP),
    Habit("inv inverse pinv", "`solve(A, b)`, which is the inverse of A times b",
          "S[t] = S[t-1] + k @ v.T\nr = inv(S[t] + I) @ q",
          "S[t] = S[t-1] + k @ v.T\nr = solve(S[t] + I, q)", STEP),
    # --- shapes ---
    Habit(
        "view reshape flatten unflatten rearrange",
        "the dims that you want in the parameter: with `param W[d, H, K]`, `x @ W` is `[H, K]`; a "
        "value is counted by other dims with `split[d as H, K](x)` and `merge[H, K as d](x)`",
        "z = (x @ U).view(H, K)", "param W[d, H, K]\nz = x @ W",
    ),
    Habit(
        "unsqueeze squeeze expand expand_as broadcast_to repeat_interleave tile",
        "leave it out: values meet by the names of their dims, as `a[H]` and `k[H, K]` in `a * k`",
        "z = a.unsqueeze(-1) * k", "z = a * k",
    ),
    Habit(
        "to float half double bfloat16 type contiguous clone cuda cpu",
        "leave it out: the caller's tensors say which dtype and device",
        "z = x.float() * b", "z = x * b",
    ),
    Habit(
        "cat concat concatenate stack hstack",
        "a projection of each, and their sum: `x @ W + b @ V`; or `join[N, R as K](a, b)`",
        "z = cat([x, b])", "param W, V[d, H]\nz = x @ W + b @ V",
    ),
    Habit(
        "split chunk unbind",
        "`f, g = u by 2` with a last dim of size 2, or `f, g = u by N, R`, the dims of the parts",
        "f, g = x.chunk(2)\nz = f * g", "param W[d, H, 2]\nf, g = x @ W by 2\nz = f * g",
    ),
    Habit(
        "zeros zeros_like full empty", "`0`: a number meets any shape, and a state is 0 at first",
        "z = x + zeros(d)", "z = x + 0",
    ),
    Habit("ones ones_like", "`1`: a number meets any shape", "z = ones_like(x) - x", "z = 1 - x"),
    Habit(
        "arange linspace", "`index[d]` along a dim, `position(x)` along the tokens",
        "z = x * arange(d)", "z = x * index[d]",
    ),
    Habit(
        "rand randn randn_like rand_like",
        "a parameter that starts so: `param w[d] = normal(0, 1)`",
        "z = x * randn(d)", "param w[d] = normal(0, 1)\nz = x * w",
    ),
    Habit(
        "xavier_uniform xavier_normal kaiming_uniform kaiming_normal trunc_normal orthogonal",
        "`normal(0, 0.02)`, `uniform(-1, 1)`, or nothing, which is 1/sqrt(size) of a normal",
        "param w[d] = xavier_uniform()\nz = x * w", "param w[d] = normal(0, 0.02)\nz = x * w",
    ),
    Habit(
        "shape size numel ndim len", "the dim itself, which is its size: `x / sqrt(d)`",
        "z = x / sqrt(x.shape)", "z = x / sqrt(d)",
    ),
    Habit(
        "d_k d_head head_dim dk dim_head", "the dim itself, which is its size: `sqrt(K)`",
        "o = softmax(q[t].T @ k[s] / sqrt(d_k)) @ v[s]",
        "o = softmax(q[t].T @ k[s] / sqrt(K)) @ v[s]", READ,
    ),
    Habit("weight", "the parameter itself: `x @ U`", "z = x @ U.weight", "z = x @ U"),
    # --- along the tokens ---
    Habit(
        "cumsum", "a state: `recurrence c[d]:` with `c[t] = c[t-1] + x`",
        "z = cumsum(x)", "recurrence z[d]:\n    z[t] = z[t-1] + x",
    ),
    Habit(
        "cumprod", "a state: `recurrence p[d] = 1:` with `p[t] = p[t-1] * x`",
        "z = cumprod(x)", "recurrence z[d] = 1:\n    z[t] = z[t-1] * x",
    ),
    Habit(
        "cummax cummin", "a state: `recurrence m[d] = -inf:` with `m[t] = max(m[t-1], x)`",
        "z = cummax(x)", "recurrence z[d] = -inf:\n    z[t] = max(z[t-1], x)",
    ),
    Habit(
        "logcumsumexp",
        "a state: `recurrence m[d] = -inf:` with `m[t] = log(exp(m[t-1]) + exp(x))`",
        "z = logcumsumexp(x)", "recurrence z[d] = -inf:\n    z[t] = log(exp(z[t-1]) + exp(x))",
    ),
    Habit(
        "ema", "a state: `recurrence m[d]:` with `m[t] = 0.9 * m[t-1] + 0.1 * x`",
        "z = ema(x)", "recurrence z[d]:\n    z[t] = 0.9 * z[t-1] + 0.1 * x",
    ),
    Habit("roll shift pad", "`x[t-1]`, which is 0 before the first token",
          "z = x - roll(x, 1)", "z = x - x[t-1]"),
    Habit("flip fliplr flipud", "`reversed(x)`, the tokens from the last to the first",
          "z = x + flip(x)", "z = x + reversed(x)"),
    Habit(
        "tril triu mask causal_mask masked_fill attn_mask is_causal causal",
        "leave it out: the range says what is read, `attend s <= t over H:` the past alone",
        "o = softmax(q[t].T @ k[s] + causal_mask) @ v[s]", "o = softmax(q[t].T @ k[s]) @ v[s]",
        READ,
    ),
    Habit(
        "gather index_select take_along_dim", "`take[d](x, i)`, or `E[i]` for rows of a table",
        "z = gather(x, i)", "z = take[d](x, i)",
    ),
    Habit("one_hot", "`where(index[H] == i, 1, 0)`", "z = one_hot(i)",
          "z = where(index[H] == i, 1, 0)"),
    Habit(
        "detach stop_gradient no_grad", "`detach(x)`: the value, through which nothing is trained",
        "z = x.detach() * b", "z = detach(x) * b",
    ),
)
"""By the name of a function, class, method, attribute or argument."""
