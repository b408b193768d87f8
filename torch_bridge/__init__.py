"""Training through the compressor: saved-tensor hooks that stash compressed bytes, and their backends."""

from .checksum import CorruptionError
from .policy import Policy, Rule
from .report import Report, Row
from .stash import Stash, compress_activations

__all__ = ["CorruptionError", "Policy", "Report", "Row", "Rule", "Stash", "compress_activations"]
