"""The habits of `habits_table.py` that show in how a text looks."""

from __future__ import annotations

from archc.syntax.habits_table import FILE, READ, STEP, Habit

GREEK = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|mu|nu|xi|pi|rho|sigma|tau|phi|chi|"
    "psi|omega"
)

# fmt: off
TEXTS = (
    # --- the tokens between two ---
    Habit(
        r"\bin *\[ *s *\+ *1 *, *t *\]", "`in (s, t]`",
        "o = exp(sum r in [s + 1, t]: a[r]) @ v[s]", "o = exp(sum r in (s, t]: a[r]) @ v[s]", READ,
    ),
    Habit(
        r"\bin *\[ *s *, *t *\]", "`a[s] + sum r in (s, t]: a[r]`, with the token read",
        "o = exp(sum r in [s, t]: a[r]) @ v[s]",
        "o = exp(a[s] + sum r in (s, t]: a[r]) @ v[s]", READ,
    ),
    Habit(
        r"\bin *\[ *s *, *t *\)",
        "`sum r in (s, t]: before[r]`, with `before = a[t-1]` above the block",
        "layer L(K):\n    input a[], v[K]\n    before = a[t-1]\n    attend s <= t:\n"
        "        o = exp(sum r in [s, t): before[r]) @ v[s]\n    output o",
        "layer L(K):\n    input a[], v[K]\n    before = a[t-1]\n    attend s <= t:\n"
        "        o = exp(sum r in (s, t]: before[r]) @ v[s]\n    output o", FILE,
    ),
    Habit(
        r"\bin *\( *s *, *t *\)", "`sum r in (s, t]: where(r < t, a[r], 0)`, without the reader's",
        "o = exp(sum r in (s, t): a[r]) @ v[s]",
        "o = exp(sum r in (s, t]: where(r < t, a[r], 0)) @ v[s]", READ,
    ),
    # --- lines ---
    Habit(
        r"^[ ]*for\b.*", "`repeat 4 as l:` for a stack; a loop over the tokens is a `recurrence`",
        "z = x\nfor l in range(4):\n    z = z + tanh(z)",
        "z = x\nrepeat 4 as l:\n    z = z + tanh(z)",
    ),
    Habit(
        r"^[ ]*while\b.*", "`repeat 4 as l:`: how often must be known when compiling",
        "z = x\nwhile d > 2:\n    z = z + tanh(z)",
        "z = x\nrepeat 4 as l:\n    z = z + tanh(z)",
    ),
    Habit(
        r"^[ ]*(?:if|elif|else)\b.*",
        "`z = a if K > 2 else b` for sizes and options, `z = where(x > 0, a, b)` for each token",
        "if x > 0:\n    z = x", "z = where(x > 0, x, b)",
    ),
    Habit(
        r"^[ ]*(?:async +)?def\b.*", "`layer Name(d):`, or `function name(x):`",
        "def L(d):\n    input x[d]\n    output y[d] = x",
        "layer L(d):\n    input x[d]\n    output y[d] = x", FILE,
    ),
    Habit(
        r"^[ ]*class\b.*", "`layer Name(d):`, with the sizes as arguments",
        "class L(Module):\n    input x[d]\n    output y[d] = x",
        "layer L(d):\n    input x[d]\n    output y[d] = x", FILE,
    ),
    Habit(
        r"^[ ]*(?:from\b.*\bimport|import)\b(?!.*\bfrom\s*\").*",
        '`import Name from "file.arch"` for a layer of another file; functions need none',
        "import torch\nlayer L(d):\n    input x[d]\n    output y[d] = x",
        "layer L(d):\n    input x[d]\n    output y[d] = x", FILE,
    ),
    Habit(
        r"^[ ]*@[ ]*[A-Za-z_].*", "leave it out: a layer has no decorators",
        "@compile\nlayer L(d):\n    input x[d]\n    output y[d] = x",
        "layer L(d):\n    input x[d]\n    output y[d] = x", FILE,
    ),
    Habit(r"^[ ]*assert\b.*", "`require d % H == 0`", "assert d % H == 0\nz = x",
          "require d % H == 0\nz = x"),
    Habit(
        r"^[ ]*(?:print|raise|pass|with|try|del|global)\b.*",
        "leave it out: a spec only says what is computed; `archc show` prints its stages",
        "print(x)\nz = x", "z = x",
    ),
    Habit(
        r"^[ ]*(?:parameters?|params|weights?|buffers?)\b.*", "`param w[d]`",
        "weights w[d]\nz = x * w", "param w[d]\nz = x * w",
    ),
    Habit(r"^[ ]*(?:let|const|var)\b.*", "`z = x`, without a word in front", "let z = x", "z = x"),
    Habit(
        r"^[ ]*param\b[^~\n]*\] *~.*", "`param w[d] = normal(0, 0.02)`: `=` for what is drawn, too",
        "param w[d] ~ normal(0, 0.02)\nz = x * w", "param w[d] = normal(0, 0.02)\nz = x * w",
    ),
    Habit(
        r"^[ ]*(?:param|input|output)\b(?:[^=(\n]|=[^;\n]*;)*(?P<at>\b\w+ *\([^)\n]*\)?).*",
        "`param w[d]`: dims stand in square brackets",
        "param w[d] = 1; u(d)\nz = x * w * u", "param w[d] = 1; u[d]\nz = x * w * u",
    ),
    Habit(
        r"^[ ]*(?:param|input|output)\b[^=:\n]*\b(\w+) *: *\w*\[.*",
        "`{1}[d]`: dims stand right behind the name",
        "param w: Tensor[d]\nz = x * w", "param w[d]\nz = x * w",
    ),
    Habit(
        r"^[ ]*(?P<names>\w+(?: *, *\w+)+) *=(?!=|.*\bby\b)(?P<values>.*,.*)",
        "a statement for each: `{each}`",
        "f, g = tanh(x), b\nz = f + g", "f = tanh(x); g = b\nz = f + g",
    ),
    Habit(
        r"^[ ]*input\b[^;\n]*\](?P<at>;(?= *\w+ *\[)).*", "`,` between two inputs",
        "layer L(d):\n    input x[d]; b[d]\n    output y[d] = x + b",
        "layer L(d):\n    input x[d], b[d]\n    output y[d] = x + b", FILE,
    ),
    Habit(
        r"^(?:layer|block|model) +\w+ *(?:\[.*\])? *:.*",
        "`layer L(d):`: sizes stand in round brackets",
        "layer L[d]:\n    input x[d]\n    output y[d] = x",
        "layer L(d):\n    input x[d]\n    output y[d] = x", FILE,
    ),
    Habit(
        r"^[ ]*repeat\b(?!.*\bas\b).*", "`repeat 4 as l:`",
        "z = x\nrepeat 4:\n    z = z + tanh(z)", "z = x\nrepeat 4 as l:\n    z = z + tanh(z)",
    ),
    Habit(
        r"^[ ]*blocks\b(?!.*\bevery\b).*", "`blocks j of 4 every 4:`",
        "blocks j of 4:\n    m = x[j]\nz = x",
        "blocks j of 4 every 4:\n    m = x[j]\nz = x",
    ),
    Habit(
        r"^[ ]*chunk *:(?: *\d.*| *size *[=:(].*|[ ]*$)", "`chunk: size 64`",
        "chunk: size = 64\nz = x", "chunk: size 64\nz = x",
    ),
    Habit(r"^[ ]*require\b[^=<>!]*=(?!=).*", "`require H == 4`, with two signs",
          "require H = 4\nz = x", "require H == 4\nz = x"),
    Habit(
        r"^[ ]*attend\b(?:(?!\bover\b).)*(?:,|\band\b).*",
        "one chain: `attend t - 64 < s <= t over H:`",
        "attend s <= t, s > t - 64 over H:\n    z = softmax(q[t].T @ k[s]) @ v[s]",
        "attend t - 64 < s <= t over H:\n    z = softmax(q[t].T @ k[s]) @ v[s]",
    ),
    Habit(
        r"^[ ]*(?:attend|recurrence)\b.*\bfor\b.*", "`over H`; that it is for each token is clear",
        "recurrence z[K] for H:\n    z[t] = z[t-1] + k",
        "recurrence z[K] over H:\n    z[t] = z[t-1] + k",
    ),
    Habit(
        r"^[ ]*attend +(?:(?!all\b)\w+ *(?::|over\b|in\b|grouped\b)|(?:all +)?(?::|over\b)).*",
        "the range of tokens that are read: `attend s <= t over H:`, `attend t - 64 < s <= t over "
        "H:` or `attend all m over H:`",
        "attend s over H:\n    z = softmax(q[t].T @ k[s]) @ v[s]",
        "attend s <= t over H:\n    z = softmax(q[t].T @ k[s]) @ v[s]",
    ),
    Habit(
        r"^[ ]*recurrence +\w+ *(?::|over\b|,).*|^[ ]*recurrence *:.*",
        "the state with its dims: `recurrence z[K] over H:`, or `z[]` for a single number",
        "recurrence z over H:\n    z[t] = z[t-1] + k",
        "recurrence z[K] over H:\n    z[t] = z[t-1] + k",
    ),
    Habit(
        r"^[ ]*recurrence\b.*\bover\b[^:=\n]*(?P<at>=[^:\n]*).*",
        "the value at first behind the state: `recurrence z[K] = 1 over H:`",
        "recurrence z[K] over H = 1:\n    z[t] = z[t-1] + k",
        "recurrence z[K] = 1 over H:\n    z[t] = z[t-1] + k",
    ),
    Habit(
        r"^[ ]*recurrence\b.*(?P<at>\bchunk\b[^:\n]*).*", "a line of its own: `chunk: size 64`",
        "recurrence z[K] over H, chunk 64:\n    z[t] = z[t-1] + k",
        "chunk: size 64\nrecurrence z[K] over H:\n    z[t] = z[t-1] + k",
    ),
    Habit(
        r"^[ ]*output +\w+(?:\[[^]]*\])? *(?:=(?:[^,(\[]|\([^()]*\)|\[[^][]*\])*)?(?P<at>,.*)",
        "a statement for each: `output y = x; output z = b`",
        "output y, z = x, b", "output y = x; output z = b",
    ),
    Habit(
        r"^[ ]*input\b(?:\[[^]]*\]|[^,;\n\[])*\bin\b[^,;\n]*(?P<at>[,;].*)",
        "a line for each: `input a in n`, `input b in n`",
        "layer L(n, d):\n    input a in n, b in n\n    param W[n, d]\n    output y = W[a] + W[b]",
        "layer L(n, d):\n    input a in n\n    input b in n\n    param W[n, d]\n"
        "    output y = W[a] + W[b]", FILE,
    ),
    Habit(r"^[ ]*\w+ *==.*", "`z = x`, with one sign", "z == x", "z = x"),
    Habit(
        r"f(?:\"[^\"\n]*\"?|'[^'\n]*'?)", 'a docstring in `"""`, or a text in `"`, without an f',
        'layer L(d):\n    f"""of {d}"""\n    input x[d]\n    output y[d] = x',
        'layer L(d):\n    """of d"""\n    input x[d]\n    output y[d] = x', FILE,
    ),
    Habit(
        r"'''(?:.*''')?", 'a docstring in `"""`',
        "layer L(d):\n    '''A layer.'''\n    input x[d]\n    output y[d] = x",
        'layer L(d):\n    """A layer."""\n    input x[d]\n    output y[d] = x', FILE,
    ),
    Habit(
        r"(?<!\w)'[^'\n]*'", 'a text in `"`',
        "layer L(d, gate = 'exp'):\n    input x[d]\n    output y[d] = x",
        'layer L(d, gate = "exp"):\n    input x[d]\n    output y[d] = x',
        FILE,
    ),
    Habit(
        r"\*\*? *(?:kwargs|args|options|opts)\b",
        "every argument by its name, with a default: `layer L(d, eps = 1e-5):`",
        "layer L(d, **kwargs):\n    input x[d]\n    output y[d] = x",
        "layer L(d, eps = 1e-5):\n    input x[d]\n    output y[d] = x", FILE,
    ),
    Habit(
        r"\w+ *: *(?:int|float|bool|str|Tensor|Optional|list|List|tuple)\b",
        "the name alone: sizes are whole numbers, options say by their default what they are",
        "layer L(d: int):\n    input x[d]\n    output y[d] = x",
        "layer L(d):\n    input x[d]\n    output y[d] = x", FILE,
    ),
    Habit(
        r"->.*(?=:)|->", "leave it out: `output y[d] = ...` says what comes out",
        "layer L(d) -> y:\n    input x[d]\n    output y[d] = x",
        "layer L(d):\n    input x[d]\n    output y[d] = x", FILE,
    ),
    Habit(
        r"\blambda\b[^:\n]*:?", "a function of the file: `function f(u):` with `return 2 * u`",
        "f = lambda u: 2 * u\nz = f(x)", "z = 2 * x",
    ),
    # --- operators ---
    Habit(
        r"([A-Za-z_]\w*)(?:\[t\])? *(?:\*\*|//|[-+*/@%])=",
        "what it becomes: `S[t] = S[t-1] + ...` for a state; any other name has one value only",
        "S += k @ v.T", "S[t] = S[t-1] + k @ v.T", STEP,
    ),
    Habit(r":=|<-|←", "`=`", "z := x", "z = x"),
    Habit(
        r"\^ *(?:\{ *)?(?:T\b|\\top|⊤|\\intercal)(?: *\})?|⊤", "`.T` for the transpose: `k @ v.T`",
        "S[t] = S[t-1] + k @ v^T", "S[t] = S[t-1] + k @ v.T", STEP,
    ),
    Habit(r"\.(?:\*\*?|/|\^)", "the operator alone: `*` is for each element, `@` for matrices",
          "z = x .* b", "z = x * b"),
    Habit(r"\^", "`**` for a power: `x ** 2`", "z = x^2", "z = x ** 2"),
    Habit(
        r"\bgrouped +by\b *\w*", "`grouped H`, without `by`",
        "recurrence z[K] over H grouped by H:\n    z[t] = z[t-1] + k",
        "recurrence z[K] over H grouped H:\n    z[t] = z[t-1] + k",
    ),
    Habit(
        r"\bnot +in\b *", "`not (d in [4, 8])`",
        "layer L(d = 8):\n    input x[d]\n    output y[d] = x if d not in [4, 8] else 2 * x",
        "layer L(d = 8):\n    input x[d]\n    output y[d] = x if not (d in [4, 8]) else 2 * x",
        FILE,
    ),
    Habit(r"\b\d+_[\d_]*", "the digits alone: `1000`", "z = x * 1_000", "z = x * 1000"),
    Habit(r"\b0[xXbBoO][\dA-Fa-f]*", "the number in decimal digits: `16`",
          "z = x * 0x10", "z = x * 16"),
    Habit(r"(?<![\[:, ])\.\.\.|(?<!\[)\.\.\.(?!\])|…", "all of it: nothing is filled in",
          "z = x + ... + b", "z = x + b"),
    Habit(r"&&?", "`and`", "z = where(x > 0 && b > 0, x, b)", "z = where(x > 0 and b > 0, x, b)"),
    Habit(r"(?<=[-=(*+/,@ ])\|[^|\n]+\|", "`abs(x)`", "z = |x + b|", "z = abs(x + b)"),
    Habit(r"\|\|?", "`or`", "z = where(x > 0 || b > 0, x, b)", "z = where(x > 0 or b > 0, x, b)"),
    Habit(r"!(?!=)|~", "`not`", "z = where(!(x > 0), x, b)", "z = where(not (x > 0), x, b)"),
    Habit(
        r"\?[^:\n]*:?", "`x if K > 2 else b` for sizes, `where(x > 0, x, b)` for each token",
        "z = x > 0 ? x : b", "z = where(x > 0, x, b)",
    ),
    Habit(r"//[^\n]*", "`#` before a comment; `//` divides", "z = x // a remark",
          "z = x # a remark"),
    Habit(r"/\*.*", "`#` before a comment", "/* a remark */\nz = x", "# a remark\nz = x"),
    Habit(
        r"\[[^\[\]\n]*(?::|\.\.\.)[^\[\]\n]*\]?",
        "the dim by its name: `take[d](x, 0)` is entry 0 of d; batch and time are never written",
        "z = x[:, 0]", "z = take[d](x, 0)",
    ),
    Habit(
        r"\b([A-Za-z]\w*)\((t|s)( *- *\d+)?\)", "`{1}[{2}{3}]`: a token stands in square brackets",
        "S(t) = S(t-1) + k @ v.T", "S[t] = S[t-1] + k @ v.T", STEP,
    ),
    Habit(
        r"\b([A-Za-z]\w*)_\{ *([a-z])( *- *\d+)? *\}",
        "`{1}[{2}{3}]`; at the token at hand, a value stands without an index",
        "S[t] = S_{t-1} + k @ v.T", "S[t] = S[t-1] + k @ v.T", STEP,
    ),
    # --- LaTeX ---
    Habit(r"\\sigma\s*\\?[({]", "`sigmoid(`", r"z = \sigma(x)", "z = sigmoid(x)"),
    Habit(rf"\\(?:var)?({GREEK})(?![A-Za-z])", "`{1}`, or the letter itself",
          r"S[t] = \alpha * S[t-1] + k @ v.T", "S[t] = alpha * S[t-1] + k @ v.T", STEP),
    Habit(r"\\lambda(?![A-Za-z])", "`lam`, or `λ`", r"z = \lambda * x", "lam = 2\nz = lam * x"),
    Habit(r"\\d?frac(?![A-Za-z]).*", "`a / b`", r"z = \frac{x}{2}", "z = x / 2"),
    Habit(r"\\(?:cdot|times|odot|circ)(?![A-Za-z])|[×·∙⋅∘]",
          "`*` for each element, `@` for matrices, `.T @` for two vectors",
          r"z = x \odot b", "z = x * b"),
    Habit(r"\\otimes(?![A-Za-z])|⊗", "`k @ v.T` for an outer product",
          r"S[t] = S[t-1] + k \otimes v", "S[t] = S[t-1] + k @ v.T", STEP),
    Habit(r"\\sqrt(?![A-Za-z]).*", "`sqrt(x)`", r"z = \sqrt{x ** 2 + 1}", "z = sqrt(x ** 2 + 1)"),
    Habit(r"\\sum(?![A-Za-z]).*", "`sum[d](x)`", r"z = \sum_i x", "z = sum[d](x)"),
    Habit(r"\\(?:exp|log|tanh|max|min|sin|cos)(?![A-Za-z])", "the name without the backslash",
          r"z = \exp(x)", "z = exp(x)"),
    Habit(r"\\[A-Za-z]+", "plain names and operators: LaTeX is not read",
          r"z = \mathbf{x}", "z = x"),
    # --- characters ---
    Habit(r"(?<=[\w\])]) +\. +(?=[A-Za-z(])",
          "`.T @` for the product of two vectors: `q[t].T @ k[s]`",
          "o = softmax(q[t] . k[s]) @ v[s]", "o = softmax(q[t].T @ k[s]) @ v[s]", READ),
    Habit("÷", "`/`", "z = x ÷ b", "z = x / b"),
    Habit(
        r"([A-Za-z\u0370-\u03ff]\w*?)(?:ₜ|ᵢ)(?:₋₁)?",
        "`{1}[t-1]` for the token before; at the token at hand, a value stands without an index",
        "S[t] = Sₜ₋₁ + kₜ @ v.T", "S[t] = S[t-1] + k @ v.T", STEP,
    ),
    Habit(r"([A-Za-z\u0370-\u03ff]\w*?)[₀-₉]+", "`{1}_1`: names have no subscripts",
          "x₁ = 2 * x\nz = x₁", "x_1 = 2 * x\nz = x_1"),
    Habit("²", "`** 2`", "z = x²", "z = x ** 2"),
    Habit("³", "`** 3`", "z = x³", "z = x ** 3"),
    Habit("[–—]", "`-`", "z = x – b", "z = x - b"),
    Habit(
        "[“”„].*", 'a text in `"`',
        "layer L(d, gate = “exp”):\n    input x[d]\n    output y[d] = x",
        'layer L(d, gate = "exp"):\n    input x[d]\n    output y[d] = x',
        FILE,
    ),
    Habit(r"‖.*‖", "`sqrt(sum[d](x ** 2))`, or `abs(x)`", "z = ‖x‖",
          "z = sqrt(sum[d](x ** 2))"),
    Habit(r"[{}]", "round brackets around expressions, square ones around dims",
          "z = {x + b} * 2", "z = (x + b) * 2"),
    Habit(r"= *\([^()\n]*,[^()\n]*\)", "a statement for each value: there are no tuples",
          "f = (x, b)\nz = f", "f = x; g = b\nz = f + g"),
    Habit(r";[ ]*$", "leave it out: `;` stands between two statements", "z = x;", "z = x"),
)
"""By how a part of a line looks, the first that fits; {1} is what a group of the pattern found."""
