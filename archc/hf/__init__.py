"""Specs as models of Hugging Face's library: `AutoModelForCausalLM`, `generate`, `Trainer`.

SpecConfig       config.py   a spec's text, what it imports, and sizes, as config.json keeps them
SpecForCausalLM  causal.py   the model: arguments and outputs as everywhere in that library
StateCache       cache.py    what a model remembers, where that library has `past_key_values`

`import archc.hf` registers both, so that a folder which `save_pretrained` wrote is loaded by its
`model_type`, "archc". A config is data: its text is compiled as any spec is, and nothing in a
folder is run.
"""

from archc.hf.cache import StateCache as StateCache
from archc.hf.causal import SpecForCausalLM as SpecForCausalLM
from archc.hf.causal import model as model
from archc.hf.causal import register, wrap
from archc.hf.config import SpecConfig as SpecConfig

__all__ = ["SpecConfig", "SpecForCausalLM", "StateCache", "model", "wrap"]

register()
