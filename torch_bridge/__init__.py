"""Training through the compressor: saved-tensor hooks that keep compressed bytes, and their backends."""

from .backends.checksum import CorruptionError
from .backends.quant_format import QuantFormat
from .calibration import calibrate
from .compiled import Partitioner, compile
from .compressor import Compressor
from .keep import keep_activations
from .offload import Offload, OffloadError
from .policy import Policy, Rule
from .report import Report, Row
from .trainers.attach import attach

__all__ = [
    "Compressor",
    "CorruptionError",
    "Offload",
    "OffloadError",
    "Partitioner",
    "Policy",
    "QuantFormat",
    "Report",
    "Row",
    "Rule",
    "attach",
    "calibrate",
    "compile",
    "keep_activations",
]
