"""What models with experts add to training: losses among their outputs, and biases that choices
alone read, which no gradient of the task moves."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from archc.backends.renamed import at_path
from archc.backends.writer import attribute
from archc.ir import layer as ir
from archc.ir.graph import Graph
from archc.ir.losses import loss_names, outputs_of_call
from archc.origin import origin_of


def auxiliary_loss(module: nn.Module, outputs: Any) -> Tensor | None:
    """The sum of the losses among the outputs of a module that archc made, to be added to that of
    the task; None if there are none (inputs that they need may be left out). Losses are the outputs
    of one number called `..._loss`, with the weights that the spec gives them."""
    graph = origin_of(module).layer.graph
    every = outputs if isinstance(outputs, tuple) else (outputs,)
    made = outputs_of_call(graph, len(every))
    wanted = [made.index(name) for name in loss_names(graph) if name in made]
    if not wanted:
        return None
    return torch.stack([every[place].float() for place in wanted]).sum()


def choice_biases(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of layers that archc made which choices alone read, and losses: biases of
    scores that experts are chosen by."""
    found: list[nn.Parameter] = []
    for module in model.modules():
        if "_archc" not in vars(module):
            continue
        layer = origin_of(module).layer
        for place, op in layer.params:
            if _is_chosen_by(layer.graph, place):
                found.append(at_path(module, attribute(op.name)))
    return list({id(parameter): parameter for parameter in found}.values())


def _is_chosen_by(graph: Graph, parameter: int) -> bool:
    """Whether a choice looks at a parameter, and no output but losses has a gradient for it."""
    reached, waiting, chosen = {parameter}, [parameter], False
    while waiting:
        for user in graph.users(waiting.pop()):
            chosen = chosen or isinstance(graph[user].op, ir.Top)
            if graph[user].type.dtype == "real" and user not in reached:
                reached.add(user)
                waiting.append(user)
    losses = {graph.outputs[name] for name in loss_names(graph)}
    return chosen and not ({*graph.outputs.values()} - losses) & reached


def balance(model: nn.Module, optimizer: torch.optim.Optimizer, rate: float = 1e-3) -> Any:
    """Have each step of an optimizer move the biases of choices by `rate` against the sign of their
    gradients, whatever the optimizer does with others; the handle of the hook, whose `remove()`
    ends that.

    The gradient is that of a loss such as the sum of `bias * (share - mean share)`, where `share`
    is that of the tokens which an expert is sent: so one that has more than the mean is chosen
    less, and one that has fewer more (arXiv 2408.15664, algorithm 1). It has been summed over
    processes and parts of a batch when the step begins. Raises ValueError for a rate that is not
    above 0.
    """
    if not rate > 0:
        raise ValueError(f"`rate` must be above 0, got {rate}")
    biases = choice_biases(model)

    @torch.no_grad()
    def move(*_: Any) -> None:
        for bias in biases:
            if bias.grad is not None:
                bias.sub_(bias.grad.sign(), alpha=rate)
                bias.grad = None  # the optimizer leaves it alone

    return optimizer.register_step_pre_hook(move)
