"""The functions that generated files call when they run: plain modules, which import torch and one
another.

    layers.py      what layers call: checks, windows, attention; packed.py: packed sequences;
                   one_token.py: one token of each of several sequences; paged.py: in pages;
                   onward.py: attention of tokens that go on after others
    loops.py       loops over the tokens, which torch.export writes down as scans
    chunks.py      what chunked forms in PyTorch call; ops.py: ops of torch around them
    jit.py         functions as kernels of Triton; tiles.py: functions that kernels call
    launch.py      launches; together.py: the first; again.py: one like the last; tuned.py: tuned
    programs.py    launches of tile programs
    kernels.py     launches by chunks; steps.py: token by token; folds.py: attentions
    tokens.py      token regions
    selfcheck.py   the check at the end of a file

A file embeds the definitions that it needs, which `archc.backends.embedding` finds from the
imports and the names of these modules, or imports them (`archc compile --runtime import`). So each
module has functions, classes and constants alone, no two of which have one name, and nothing here
sees what compiles. Only this folder of archc imports Triton, and does without where there is none
(`optional.py`).
"""
