from typing import Any

from torch import Tensor

class CausalLMOutputWithPast(dict[str, Any]):
    loss: Tensor | None
    logits: Tensor
    past_key_values: Any
    def __init__(self, **told: Any) -> None: ...

class MoeCausalLMOutputWithPast(CausalLMOutputWithPast):
    aux_loss: Tensor | None
