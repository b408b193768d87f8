"""The front end for ``torch.compile``: tensors are compressed inside the compiled graphs."""

from .compile import compile
from .partitioner import Partitioner

__all__ = ["Partitioner", "compile"]
