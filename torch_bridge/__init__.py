"""Training through the compressor: saved-tensor hooks that stash compressed bytes, and their backends."""

from .checksum import CorruptionError
from .offload import Offload, OffloadError
from .policy import Policy, Rule
from .quant import QuantFormat
from .report import Report, Row
from .stash import Stash, compress_activations, keep_activations

__all__ = [
    "CorruptionError",
    "Offload",
    "OffloadError",
    "Policy",
    "QuantFormat",
    "Report",
    "Row",
    "Rule",
    "Stash",
    "compress_activations",
    "keep_activations",
]
