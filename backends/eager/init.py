"""Initial values of parameters: `Init` -> the lines of `reset_parameters`."""

from __future__ import annotations

from collections.abc import Mapping

import sympy
from archc.backends.eager.file import File
from archc.backends.eager.parts import Parts
from archc.backends.expression import Text, call, number
from archc.backends.writer import Writer, attribute

from archc.ir import layer as ir

FUNCTIONS = {
    "exp": "torch.exp",
    "log": "torch.log",
    "neg": "-",
    "inverse_softplus": "inverse_softplus",
    "logit": "torch.logit",
}


def reset(writer: Writer, parts: Parts, names: Mapping[str, str]) -> None:
    """Lines that fill the layer's own parameters, those with the same start in one loop."""
    groups: dict[str, list[str]] = {}
    for id, param in parts.layer.params:
        name = f"self.{attribute(param.name)}{'.weight' * (id in parts.linear)}"
        groups.setdefault(fill(parts.file, param.init, names), []).append(name)
    for line, params in groups.items():
        if len(params) == 1:
            _fill_line(writer, line, params[0])
        else:
            writer.call("for weight in (", params, "):")
            writer.depth += 1
            _fill_line(writer, line, "weight")
            writer.depth -= 1


def _fill_line(writer: Writer, line: str, param: str) -> None:
    """One parameter filled; where that is too long, drawn first and copied then."""
    text = line.format(p=param)
    if len(text) > writer.room and "torch.empty_like" in text:
        draw = text.removeprefix(f"{param}.copy_(").removesuffix(")")
        inner = draw[draw.rindex("torch.empty_like") :].rstrip(")")
        inner += ")" * (inner.count("(") - inner.count(")"))
        writer.line(f"draw = {inner}")
        text = text.replace(inner, "draw")
    writer.line(text)


def fill(file: File, init: ir.Init, names: Mapping[str, str]) -> str:
    """The line that fills one parameter, `{p}` standing for it."""
    if init.fn == "default":
        return f"nn.init.normal_({{p}}, std={number(1 / sympy.sqrt(init.args[0]), names)})"
    if init.fn in ("normal", "uniform"):
        low, high = (number(arg, names) for arg in init.args)
        return f"nn.init.{init.fn}_({{p}}, {low}, {high})"
    if init.fn == "value":
        known = {0: "zeros_({p})", 1: "ones_({p})"}.get(init.args[0])
        return f"nn.init.{known or 'constant_({p}, ' + str(number(init.args[0], names)) + ')'}"
    return f"{{p}}.copy_({drawn(file, init, names)})"


def drawn(file: File, init: ir.Init, names: Mapping[str, str]) -> Text:
    """A fresh tensor like the parameter, drawn as `init` says."""
    empty = "torch.empty_like({p})"
    if init.fn == "value":
        return call("torch.full_like", "{p}", number(init.args[0], names))
    if init.fn in ("normal", "uniform"):
        return call(f"{empty}.{init.fn}_", *(number(arg, names) for arg in init.args))
    if init.fn == "default":
        return call(f"{empty}.normal_", "0", number(1 / sympy.sqrt(init.args[0]), names))
    if init.fn == "loguniform":
        low, high = (call("math.log", number(arg, names)) for arg in init.args)
        return call("torch.exp", call(f"{empty}.uniform_", low, high))
    return call(FUNCTIONS[init.fn], drawn(file, init.args[0], names))
