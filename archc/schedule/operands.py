"""The operands of products of matrices, and of ops that are computed inside such products."""

from __future__ import annotations

import math
from collections.abc import Iterable

from archc.ir import chunk as ck
from archc.ir import layer as ir
from archc.ir.graph import Node
from archc.schedule.program import Program, Step

PAIRED = (ck.Gram, ck.Mix, ck.GateGradient, ck.JointPairs)
"""Ops on pairs of rows, which are made in products of their own."""


def matrices(node: Node) -> list[int]:
    """The matrices that weigh the pairs of rows of an op, other than a Gram."""
    if isinstance(node.op, ck.JointPairs):
        return [own[0] for _, own in node.op.parts(node.operands)]
    return [node.operands[0]]


def tile_of_rows(program: Program, step: Step) -> tuple[int, int]:
    """The rows of a chunk, and the dims that decay or, of an inverse, the rows again."""
    op = step.node.op
    if isinstance(op, ck.Inverse):
        (rows,) = program.tile([step.node.type.axis(op.row)])
        return rows, rows
    axes = program.steps[step.operands[-1]].node.type.axes
    (rows,) = program.tile(axis for axis in axes if axis.name == op.row)
    return rows, math.prod(program.tile(axis for axis in axes if axis.name != op.row))


def is_product(program: Program, step: Step) -> bool:
    """Whether a Contract is a product of matrices: each factor has a dim of its own, one is
    summed."""
    op = step.node.op
    if not ir.is_product(op):
        return False
    labels = [
        _tiled(program, step.graph[o], ins)
        for ins, o in zip(op.ins, step.node.operands, strict=True)
    ]
    kept = {label for label, _ in op.out}
    summed = {label for each in labels for label in each} - kept
    rows, cols = ([label for label in each if label not in summed] for each in labels)
    return len(summed) == len(rows) == len(cols) == 1 and rows != cols


def summed(step: Step) -> list[frozenset[str]]:
    """Over which axes a product sums each operand."""
    kept = {label for label, _ in step.node.op.out}
    found = []
    for labels, operand in zip(step.node.op.ins, step.node.operands, strict=True):
        axes = zip(labels, step.graph[operand].type.axes, strict=True)
        found.append(frozenset(axis.name for label, axis in axes if label not in kept))
    return found


def _tiled(program: Program, node: Node, labels: Iterable[str]) -> list[str]:
    """The labels of an operand along which a program has a vector."""
    pairs = zip(labels, node.type.axes, strict=True)
    return [label for label, axis in pairs if program.has_dim(axis)]
