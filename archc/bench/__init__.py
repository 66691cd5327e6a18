"""Measuring the memory of a spec beside its peers: what `archc bench` does.

subject.py    a spec's memory at one shape, written into a folder with its oracle, and the bytes and
              operations that no form of it can do without
orders.py     the jobs of what was asked for, each made once, several side by side
job.py        the data that a process which measures is given
folders.py    what runs share in a folder that is kept, and what each has for itself
processes.py  which processes run, one after the other or side by side
workers.py    how processes are started, waited for and stopped
worker.py     such a process: first calls, compiling ahead, or the measuring
fill.py       candidates of a peer's autotuners, compiled in shares
contenders.py what is timed side by side, and how each is called
drawn.py      the inputs, as the layer itself would make them
clock.py      paired rounds, medians, memory, what the device can do at most
errors.py     how far outputs and gradients are from the float64 oracle
report.py     a table and JSON;  markdown.py: tables for a README;  chart.py: a plot
"""
