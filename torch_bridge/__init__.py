"""Training through the compressor: saved-tensor hooks that stash compressed bytes, and their backends."""

from .report import Report, Row
from .stash import Stash, compress_activations

__all__ = ["Report", "Row", "Stash", "compress_activations"]
