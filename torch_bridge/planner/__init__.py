"""Whether a training fits into a device's memory, before it runs: a step is run dry, with each policy."""

from .dry import DryRunError
from .estimates import DEVICES, DTYPES, OPTIMIZERS, Estimate, Training, estimate
from .models import BUILT_IN, config_of
from .plans import Plan, plan

__all__ = [
    "BUILT_IN",
    "DEVICES",
    "DTYPES",
    "OPTIMIZERS",
    "DryRunError",
    "Estimate",
    "Plan",
    "Training",
    "config_of",
    "estimate",
    "plan",
]
