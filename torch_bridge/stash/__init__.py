"""The hooks: compressed bytes in place of the tensors that autograd saves."""

from .opt_out import keep_activations
from .report import Report
from .rows import Row
from .stash import Stash, compress_activations

__all__ = ["Report", "Row", "Stash", "compress_activations", "keep_activations"]
