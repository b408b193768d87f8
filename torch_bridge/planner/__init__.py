"""Whether a training fits into a device's memory, before it runs: a step is run dry, with each policy."""

from .compiled import estimate_compiled
from .dry import DryRunError
from .estimates import COMPILERS, DEVICES, DTYPES, OPTIMIZERS, Estimate, Training, estimate
from .models import BUILT_IN, config_of
from .plans import Plan, plan

__all__ = [
    "BUILT_IN",
    "COMPILERS",
    "DEVICES",
    "DTYPES",
    "OPTIMIZERS",
    "DryRunError",
    "Estimate",
    "Plan",
    "Training",
    "config_of",
    "estimate",
    "estimate_compiled",
    "plan",
]
