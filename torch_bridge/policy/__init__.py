"""Which saved tensors are compressed, and how far."""

from .policy import AGAIN, LOG_SOFTMAX, SIGNS_AND_ZEROS, SQUASHED, Keep, Of, Policy, Rule

__all__ = ["AGAIN", "LOG_SOFTMAX", "SIGNS_AND_ZEROS", "SQUASHED", "Keep", "Of", "Policy", "Rule"]
