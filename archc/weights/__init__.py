"""Public checkpoints in and out: a table says which tensor of theirs is which parameter of ours.

Table        table.py       read from `NAME.weights.toml` beside a spec
  parameters convert.py     tensors -> parameters and back, by the table
  files      files.py       safetensors, whole or in shards, and config.json
  modules    pretrained.py  a folder -> a module, a module -> a folder
"""

from archc.extras import needs

needs("hf", "archc.weights", "einops", "safetensors")
