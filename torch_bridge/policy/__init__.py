"""Which saved tensors are compressed, and how far."""

from .policy import LOG_SOFTMAX, SIGNS_AND_ZEROS, SQUASHED, Keep, Of, Policy, Rule

__all__ = ["LOG_SOFTMAX", "SIGNS_AND_ZEROS", "SQUASHED", "Keep", "Of", "Policy", "Rule"]
