"""Training through the compressor: saved-tensor hooks that stash compressed bytes, and their backends."""

from .backends.checksum import CorruptionError
from .backends.quant_format import QuantFormat
from .calibration import calibrate
from .offload import Offload, OffloadError
from .policy import Policy, Rule
from .stash import Report, Row, Stash, compress_activations, keep_activations

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
    "calibrate",
    "compress_activations",
    "keep_activations",
]
