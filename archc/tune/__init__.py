"""Finding how kernels are launched best on one device: what `archc tune` does, and nothing else.

candidates.py  what is tried, and how the best is chosen from times
search.py      candidates compiled and held against the oracle side by side, then timed alone
settings_worker.py  a process that does so
store.py       the file that generated files read when they are told to
"""
