"""What becomes of each saved tensor: rules, and the decision by the facts."""

from .decision import Decision, Of
from .policy import Policy
from .rules import Keep, Rule

__all__ = ["Decision", "Keep", "Of", "Policy", "Rule"]
