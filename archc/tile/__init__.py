"""Tile programs: the language that kernels are written in before they are text.

    language.py     values, ops and programs: the whole language, in one screen or two
    compose.py      how a program is written, by hand or by a lowering; handle.py: its values
    verifier.py     what no program may do: reads outside a buffer, double stores; typed.py: types
    resources.py    registers, shared memory, bytes, operations and time, as folds over a program
    interpreter.py  all programs of a launch in lockstep on torch tensors: the oracle of printers
    pretty.py       a listing for a reader

A backend prints a program with one line an op and decides nothing (backends/triton/printer.py).
"""
