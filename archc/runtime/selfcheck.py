"""The self-check of generated files: a `Case` says what a file is held against."""

import math
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Case(NamedTuple):
    """The check of a file. `example(sizes, batch, tokens, device, dtype)` gives an instance, its
    inputs by name, and the names of those along its own tokens; of one with these `sizes` and so
    many `tokens`, `expected` has places and values of each output, by the step-by-step meaning of
    the layer, and `slopes` the same of gradients. It is timed with other sizes. Recurrences go by a
    `chunk` of tokens, or one by one where there are fewer than `steps`."""

    title: str
    sizes: dict
    speed_sizes: dict
    tokens: int
    example: Callable
    expected: dict
    slopes: tuple
    chunk: int = 64
    steps: int = 16


def wave(name: str, *shape: int, device=None, dtype=torch.float64) -> Tensor:
    """Numbers between -1 and 1 that look random and are the same everywhere."""
    seed = sum((i + 1) * ord(char) for i, char in enumerate(name))
    count = torch.arange(math.prod(shape), dtype=torch.float64)
    x = 43758.5453 * torch.sin(12.9898 * count + 78.233 * seed)
    return (2 * (x - x.floor()) - 1).reshape(shape).to(device, dtype)


def fill(layer: nn.Module, ranges: dict, share: float = 1.0) -> nn.Module:
    """Parameters between -0.5 and 0.5, or in the range that `ranges` has for `Class.name`: in that
    share of it around its middle."""
    owners = {path: type(module).__name__ for path, module in layer.named_modules()}
    for path, parameter in layer.named_parameters():
        owner, _, name = path.rpartition(".")
        low, high = ranges.get(f"{owners[owner]}.{name}", (-0.5, 0.5))
        noise = wave(path, *parameter.shape, device=parameter.device, dtype=parameter.dtype)
        parameter.data = (low + high) / 2 + share * (high - low) / 2 * noise
    return layer.eval()


def outputs_of(made) -> tuple:
    """The outputs of a forward as a tuple."""
    return made if isinstance(made, tuple) else (made,)


def distance(found: Tensor, wanted: Tensor, least: float = 1e-9) -> float:
    """The largest difference, against the largest value, or the least that counts as one."""
    if wanted.numel() == 0:
        return 0.0
    error = (found - wanted).abs().max() / wanted.abs().max().clamp(min=least)
    return float(error) if error.isfinite() else math.inf


def worst(found: list, wanted: list) -> float:
    """The largest distance of several tensors. One that is small beside the others is measured
    against a thousandth of the largest: a gradient that is 0 but for rounding is right. Where one
    that is wanted is no finite number, as a slope at a corner, those are compared that are finite
    in both: forms that take tokens together have more of them."""
    if not all(bool(y.isfinite().all()) for y in wanted):
        finite = [x.isfinite() & y.isfinite() for x, y in zip(found, wanted, strict=True)]
        found = [x[both] for x, both in zip(found, finite, strict=True)]
        wanted = [y[both] for y, both in zip(wanted, finite, strict=True)]
    least = max((1e-3 * float(y.abs().max()) for y in wanted if y.numel()), default=0.0)
    pairs = zip(found, wanted, strict=True)
    return max((distance(one, other, max(least, 1e-9)) for one, other in pairs), default=0.0)


def check_values(case: Case, device: str) -> float:
    """The whole sequence, against what the step-by-step meaning of the layer gave."""
    layer, inputs, _ = case.example(case.sizes, 2, case.tokens, device, torch.float64)
    errors, wanted = [], case.expected.values()
    for made, (places, values) in zip(outputs_of(layer(**inputs)), wanted, strict=True):
        exact = torch.tensor(values, device=device, dtype=torch.float64)
        errors.append(distance(made.detach().flatten()[list(places)], exact))
    return max(errors)


def in_pieces(layer: nn.Module, inputs: dict, own: tuple, counts: list) -> list[Tensor]:
    """The outputs that run along tokens, from pieces of so many tokens, one after the other."""
    parts, state, start = [], None, 0
    for count in counts:
        now = {name: x[:, start : start + count] for name, x in inputs.items() if name in own}
        if state is None:
            now |= {name: x for name, x in inputs.items() if name not in own}
        made, state = layer(**now, state=state, return_state=True)
        parts.append(outputs_of(made))
        start += count
    outputs = zip(*parts, strict=True)
    return [torch.cat(part, 1) if part[0].dim() > 1 else part[0] for part in outputs]


def check_pieces(case: Case, device: str) -> float:
    """A prompt, then 3 tokens, none, 1 and 1, against the whole sequence."""
    layer, inputs, own = case.example(case.sizes, 2, case.tokens, device, torch.float64)
    counts = [case.tokens - 5, 3, 0, 1, 1]
    parts, whole = in_pieces(layer, inputs, own, counts), outputs_of(layer(**inputs))
    pairs = [(part, y) for part, y in zip(parts, whole, strict=True) if y.dim() > 1]
    return max(distance(found.detach(), y.detach()) for found, y in pairs)


def check_chunks(case: Case, device: str) -> float:
    """Outputs and gradients of more tokens than fit into a chunk, against one token after the
    other, as a few tokens at a time are done."""
    layer, inputs, own = case.example(case.sizes, 1, case.chunk + 5, device, torch.float64)
    values = [x for x in [*inputs.values(), *layer.parameters()] if x.is_floating_point()]
    for value in values:
        value.requires_grad_()
    tokens = case.chunk + 5
    few = max(1, min(case.steps - 1, tokens))
    counts = [few] * (tokens // few) + [tokens % few]
    found = []
    for made in (outputs_of(layer(**inputs)), in_pieces(layer, inputs, own, counts)):
        along = [y for y in made if y.dim() > 1]
        found.append(([y.detach() for y in along], gradients_of(along, values)))
    return max(worst(one, other) for one, other in zip(*found, strict=True))


def gradients_of(outputs: tuple | list, values: list) -> list[Tensor]:
    """The gradients of a fixed sum of the outputs; 0 for a value that they do not depend on."""
    like = enumerate(outputs)
    parts = [(y * wave(f"y{i}", *y.shape, device=y.device, dtype=y.dtype)).sum() for i, y in like]
    learns = [part for part in parts if part.requires_grad]
    if not learns:
        return [torch.zeros_like(x) for x in values]
    found = torch.autograd.grad(learns, values, allow_unused=True)
    return [torch.zeros_like(x) if g is None else g for g, x in zip(found, values, strict=True)]


def slopes(gradients: list) -> list[float]:
    """How steep it is along three directions in which all values move. A slope at a corner, which
    is no finite number, is left out."""
    found = []
    for turn in range(3):
        slope = 0.0
        for i, gradient in enumerate(gradients):
            along = wave(f"{turn} {i}", *gradient.shape, device=gradient.device)
            slope += float((gradient.nan_to_num(0.0, 0.0, 0.0) * along).sum())
        found.append(slope)
    return found


def check_gradients(case: Case, device: str) -> float:
    """Gradients of everything that is real along three directions, beside the steepest of them,
    against what the step-by-step meaning of the layer gave."""
    layer, inputs, _ = case.example(case.sizes, 2, case.tokens, device, torch.float64)
    values = [x for x in [*inputs.values(), *layer.parameters()] if x.is_floating_point()]
    for value in values:
        value.requires_grad_()
    found = slopes(gradients_of(outputs_of(layer(**inputs)), values))
    apart = max(abs(one - other) for one, other in zip(found, case.slopes, strict=True))
    return apart / max(1e-3, *map(abs, case.slopes)) if math.isfinite(apart) else math.inf


def check_kernels(case: Case, device: str) -> float:
    """Outputs and gradients by kernels, in float32, against the eager form in float64."""
    return by_kernels_against_eager(case, device, case.chunk + 5)


def check_token_kernels(case: Case, device: str) -> float:
    """The same of a file in which nothing is done by chunks."""
    return by_kernels_against_eager(case, device, 37)


def by_kernels_against_eager(case: Case, device: str, tokens: int) -> float:
    """The largest error of outputs and gradients in float32, against float64."""
    found = []
    for dtype in (torch.float64, torch.float32):
        layer, inputs, _ = case.example(case.sizes, 2, tokens, device, dtype)
        values = [x for x in [*inputs.values(), *layer.parameters()] if x.is_floating_point()]
        for value in values:
            value.requires_grad_()
        made = outputs_of(layer(**inputs))
        both = made, gradients_of(made, values)
        found.append([[y.detach().double() for y in every] for every in both])
    exact, narrow = found
    return max(worst(one, other) for one, other in zip(narrow, exact, strict=True))


@torch.no_grad()
def check_steps(case: Case, device: str) -> float:
    """Outputs of few tokens by kernels, in float32, against the eager form in float64."""
    found = []
    for dtype in (torch.float64, torch.float32):
        layer, inputs, _ = case.example(case.sizes, 2, 9, device, dtype)
        found.append([y.double() for y in outputs_of(layer(**inputs))])
    exact, narrow = found
    return max(distance(one, other) for one, other in zip(narrow, exact, strict=True))


def checks(case: Case, forms: list, device: str = "cpu") -> list:
    """Every form: its name, its error, and the largest error that is right."""
    return [(name, function(case, device), limit) for name, function, limit in forms]


def speed(case: Case, device: str) -> tuple[int, float, float]:
    """Tokens of each of two sequences, as many as run within seconds, and how many tokens a second
    are done: forward alone, and forward with backward."""
    for tokens in (16, 128):
        alone, both = timed(case, tokens, device)
        if both > 0.5:
            break
    return tokens, 2 * tokens / alone, 2 * tokens / both


def timed(case: Case, tokens: int, device: str) -> tuple[float, float]:
    """Seconds of a forward, and of one with its backward."""
    layer, inputs, _ = case.example(case.speed_sizes, 2, tokens, device, torch.float32)
    for x in inputs.values():
        x.requires_grad_(x.is_floating_point())

    def forward() -> Tensor:
        first, *others = (y.sum() for y in outputs_of(layer(**inputs)))
        return sum(others, first)

    with torch.no_grad():
        alone = seconds(forward, device)
    return alone, seconds(lambda: forward().backward(), device)


def seconds(run: Callable, device: str) -> float:
    """How long a run takes: the shortest of three or more, as many as fit in a moment, after one
    that does not count. Whatever else a machine does only makes runs longer."""
    times = []
    for _ in range(50):
        start = time.perf_counter()
        run()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        if len(times) > 3 and sum(times[1:]) > 0.3:
            break
    return min(times[1:])


def main(case: Case, forms: list) -> None:
    """Check every form, show how fast they are, and leave with status 3 if a number is wrong."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shown = ", ".join(f"{name} = {size}" for name, size in case.sizes.items())
    print(f"{case.title} with {shown}")
    print("on the GPU" if device == "cuda" else "no GPU here: the eager form runs on the CPU")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the instance is small: more would only wait for one another
    rows = checks(case, forms, device)
    torch.set_num_threads(threads)
    for name, error, limit in rows:
        print(f"  {name:<54} {error:8.1e}  {'ok' if error <= limit else 'WRONG'}")
    shown = ", ".join(f"{name} = {size}" for name, size in case.speed_sizes.items())
    tokens, alone, both = speed(case, device)
    print(f"speed in float32, 2 sequences of {tokens} tokens, {shown}")
    print(f"  forward            {alone:12,.0f} tokens/s")
    print(f"  forward, backward  {both:12,.0f} tokens/s")
    if any(not error <= limit for _, error, limit in rows):
        sys.exit(3)
