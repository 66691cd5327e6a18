"""A language model of 350M parameters trained for some steps on one GPU, as fla makes it and as a
spec does: tokens a second, and the share of the GPU's peak that the model's products are.

    python -m benchmarks.language_model ours fla -o benchmarks/results/language_model.json

Both have the same sizes: 24 layers of KDA and SwiGLU, d 1024, 8 heads of 128, a vocabulary of
32,000 whose embedding is the head as well. Weights are in bfloat16, beside a copy in float32 that
AdamW changes; a step reads 8 windows of 4,096 words. fla's model is put together of fla's own
blocks as its `KDAForCausalLM` is, and both are drawn as that is. The text is the manual that comes
with Python. Both need some thousand launches a step: with `--graph` the host gives out one.
"""

from __future__ import annotations

import re
import sys
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn

import archc
from benchmarks.rows import Record, arguments, kernels, prepare_fla, with_fla

SPEC = """
import KDA from "kda.arch"
import SwiGLU from "swiglu.arch"

model Words(vocab, d, L, H, f, K = 128, eps = 1e-6):
    input tokens in vocab
    param E[vocab, d] = normal(0, 0.02); n_f[d] = 1
    x = E[tokens]
    repeat L as l:
        param n1, n2[d] = 1
        h = x + KDA(d, H, K, K, K, eps = eps)(rmsnorm[d](x, eps) * n1)
        x = h + SwiGLU(d, f)(rmsnorm[d](h, eps) * n2)
    output y[d] = rmsnorm[d](x, eps) * n_f
"""
"""What comes before the head, which is the embedding."""

SIZES = {"vocab": 32000, "d": 1024, "L": 24, "H": 8, "f": 2816, "K": 128}
SMALL = {"vocab": 512, "d": 32, "L": 2, "H": 2, "f": 64, "K": 16}
PEAK = 989e12
"""Operations a second that an H200 does at most in bfloat16."""

ROWS = 8192
"""Tokens whose logits stand in memory at a time."""


class Loss(torch.autograd.Function):
    """Mean cross entropy of `x @ head.T`: x [tokens, d], head [vocab, d], targets [tokens]. Parts
    of the tokens go one after the other, and their gradients are made with the value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, head: Tensor, targets: Tensor) -> Tensor:
        total = torch.zeros((), device=x.device)
        d_x, d_head = torch.empty_like(x), torch.zeros_like(head, dtype=torch.float32)
        for part, at, to in zip(x.split(ROWS), targets.split(ROWS), d_x.split(ROWS), strict=True):
            logs = torch.log_softmax(part @ head.T, -1, dtype=torch.float32)
            total -= logs.gather(1, at[:, None]).sum()
            slope = logs.exp_().scatter_add_(1, at[:, None], torch.full_like(logs[:, :1], -1.0))
            slope = slope.to(x.dtype)
            torch.mm(slope, head, out=to)
            d_head += slope.T @ part
        ctx.save_for_backward(d_x, d_head.to(head.dtype))
        return total / len(x)

    @staticmethod
    def backward(ctx: Any, *arriving: Tensor) -> Any:
        (d,) = arriving
        d_x, d_head = ctx.saved_tensors
        share = d / len(d_x)
        return d_x * share.to(d_x.dtype), d_head * share.to(d_head.dtype), None


def ours(sizes: Mapping[str, int], device: str) -> tuple[nn.Module, Callable[..., Tensor]]:
    """The spec's module, and the loss of tokens [B, T + 1]."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    layers = {"L": sizes["L"]}
    rest = {name: size for name, size in sizes.items() if name != "L"}
    model = archc.parse(SPEC, **layers).module(**rest, device=device, dtype=dtype)

    def loss(tokens: Tensor) -> Tensor:
        y = model(tokens[:, :-1])
        return Loss.apply(y.flatten(0, 1), model.E, tokens[:, 1:].flatten())

    return model, loss


class Block(nn.Module):
    """A block of fla's model, with its fused norms."""

    def __init__(self, sizes: Mapping[str, int], place: int):
        from fla.layers.kda import KimiDeltaAttention
        from fla.modules import GatedMLP, RMSNorm

        super().__init__()
        d = sizes["d"]
        self.attn_norm, self.mlp_norm = RMSNorm(d, eps=1e-6), RMSNorm(d, eps=1e-6)
        self.attn = KimiDeltaAttention(
            hidden_size=d, head_dim=sizes["K"], num_heads=sizes["H"], layer_idx=place, norm_eps=1e-6
        )
        self.mlp = GatedMLP(hidden_size=d, intermediate_size=sizes["f"])

    def forward(self, x: Tensor) -> Tensor:
        mixed, *_ = self.attn(self.attn_norm(x))
        normed, x = self.mlp_norm(mixed, x, True)
        return x + self.mlp(normed)


class Model(nn.Module):
    """fla's model but for its head."""

    def __init__(self, sizes: Mapping[str, int]):
        from fla.modules import RMSNorm

        super().__init__()
        self.E = nn.Embedding(sizes["vocab"], sizes["d"])
        nn.init.normal_(self.E.weight, std=0.02)
        self.layers = nn.ModuleList(Block(sizes, at) for at in range(sizes["L"]))
        self.norm = RMSNorm(sizes["d"], eps=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.E(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


def fla(sizes: Mapping[str, int], device: str) -> tuple[nn.Module, Callable[..., Tensor]]:
    """The same of fla, with its fused loss."""
    from fla.modules import FusedLinearCrossEntropyLoss

    with torch.device(device):
        model = Model(sizes).to(torch.bfloat16)
    entropy = FusedLinearCrossEntropyLoss()

    def loss(tokens: Tensor) -> Tensor:
        return entropy(model(tokens[:, :-1]), tokens[:, 1:].contiguous(), model.E.weight)

    return model, loss


@torch.no_grad()
def draw(model: nn.Module) -> None:
    """Draw what tokens are multiplied by, taps of convolutions and the embedding as fla's
    `KDAForCausalLM` does, whose biases begin at 0: gates of both models are as far from 1 then."""
    for name, p in model.named_parameters():
        last = name.rpartition(".")[2]
        if last == "E" or last.startswith(("W_", "c_")) or (last == "weight" and p.dim() > 1):
            p.normal_(0, 0.02)
        elif last == "bias":
            p.zero_()


class Step:
    """One step of AdamW on weights in float32, of which the model has copies."""

    def __init__(self, model: nn.Module):
        self.weights = [*model.parameters()]
        self.wide = [p.detach().float().clone().requires_grad_() for p in self.weights]
        fused = self.wide[0].is_cuda
        self.optimizer = torch.optim.AdamW(self.wide, lr=3e-4, betas=(0.9, 0.95), fused=fused)
        for wide in self.wide:
            wide.grad = torch.empty_like(wide)

    @torch.no_grad()
    def __call__(self) -> None:
        given = [weight.grad for weight in self.weights if weight.grad is not None]
        torch._foreach_copy_([wide.grad for wide in self.wide if wide.grad is not None], given)
        torch.nn.utils.clip_grad_norm_(self.wide, 1.0)
        self.optimizer.step()
        torch._foreach_copy_(self.weights, self.wide)


def plain(model: nn.Module, loss: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    """The loss of tokens, and the gradients of weights."""

    def run(tokens: Tensor) -> Tensor:
        for p in model.parameters():
            p.grad = None
        made = loss(tokens)
        made.backward()
        return made.detach()

    return run


def recorded(
    model: nn.Module, loss: Callable[..., Tensor], like: Tensor
) -> Callable[[Tensor], Tensor]:
    """The same, as a CUDA graph of tokens as many as `like`: the host gives out one launch."""
    tokens, once, stream = like.clone(), plain(model, loss), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            once(tokens)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = once(tokens)

    def run(given: Tensor) -> Tensor:
        tokens.copy_(given)
        graph.replay()
        return made.clone()

    return run


def words(vocab: int) -> Tensor:
    """The manual as numbers of its words, the most frequent first; all rare ones are the last."""
    text = re.findall(r"\w+|\s+|.", "\n\n".join(topics[name] for name in sorted(topics)))
    known = {word: at for at, (word, _) in enumerate(Counter(text).most_common(vocab - 1))}
    return torch.tensor([known.get(word, vocab - 1) for word in text])


def sizes_of(given: Namespace) -> dict[str, int]:
    """The sizes that are asked for."""
    sizes = SMALL if given.small else SIZES
    return {**sizes, "L": given.layers or sizes["L"]}


def trained(which: str, given: Namespace) -> dict[str, Any]:
    """What is found of one model: seconds are those of all steps but for the first ones."""
    sizes = sizes_of(given)
    torch.manual_seed(0)
    model, loss = {"ours": ours, "fla": fla}[which](sizes, given.device)
    draw(model.train())
    text, generator = words(sizes["vocab"]).to(given.device), torch.Generator().manual_seed(0)
    step, losses, ends = Step(model), list[Tensor](), list[float]()
    if given.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    first = min(20, given.steps // 2)
    wait = torch.cuda.synchronize if given.device == "cuda" else (lambda: None)
    like = text[: given.batch * (given.length + 1)].view(given.batch, -1)
    run = recorded(model, loss, like) if given.graph else plain(model, loss)
    for number in range(given.steps):
        if number in (0, first):
            wait()
            ends.append(time.monotonic())
        starts = torch.randint(len(text) - given.length - 1, (given.batch, 1), generator=generator)
        at = (starts + torch.arange(given.length + 1)).to(given.device, non_blocking=True)
        losses.append(run(text[at]))
        step()
    wait()
    seconds = time.monotonic() - ends[1]
    tokens = (given.steps - first) * given.batch * given.length
    count = sum(p.numel() for p in model.parameters())
    return {
        "model": which, "graph": given.graph, **sizes, "B": given.batch, "T": given.length,
        "steps": given.steps, "parameters": count, "first_s": ends[1] - ends[0], "seconds": seconds,
        "tokens_a_second": tokens / seconds, "utilisation": 6 * count * tokens / seconds / PEAK,
        "MiB": torch.cuda.max_memory_allocated() / 2**20 if given.device == "cuda" else None,
        "losses": [round(x, 4) for x in torch.stack(losses).tolist()],
    }  # fmt: skip


def profiled(which: str, given: Namespace) -> list[tuple[str, float, int]]:
    """What takes the GPU longest in a step."""
    sizes = sizes_of(given)
    model, loss = {"ours": ours, "fla": fla}[which](sizes, given.device)
    draw(model.train())
    step = Step(model)
    tokens = words(sizes["vocab"])[: given.batch * (given.length + 1)].to(given.device)

    run = plain(model, loss)

    def once() -> None:
        run(tokens.view(given.batch, -1))
        step()

    once()
    return kernels(once)


def main() -> int:
    """Each model in its turn, written as it comes."""
    parser = with_fla(arguments(__doc__))
    parser.add_argument("models", nargs="+", choices=["ours", "fla"])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--layers", type=int, help="fewer or more than 24")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--graph", action="store_true", help="loss and gradients as a CUDA graph")
    parser.add_argument("--small", action="store_true", help="sizes for a look without a GPU")
    parser.add_argument("--profile", action="store_true", help="the kernels of a step as well")
    given = parser.parse_args()
    prepare_fla(given)
    made = Record(given, by=("model", "graph"))
    for which in sorted(given.models):  # fla's first: files of archc choose an assembler for all
        found = trained(which, given)
        if given.profile:
            found["kernels"] = profiled(which, given)
        shown = {k: v for k, v in found.items() if k not in ("losses", "kernels")}
        print(shown, found["losses"][::20], flush=True)
        made.add(found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
