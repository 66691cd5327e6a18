from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

def can_return_tuple(forward: F) -> F: ...
