"""Which saved tensors are compressed, and how far."""

from .policy import LOG_SOFTMAX, Keep, Policy, Rule

__all__ = ["LOG_SOFTMAX", "Keep", "Policy", "Rule"]
