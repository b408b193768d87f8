"""What becomes of each saved tensor: rules, and the decision by the facts."""

from .decision import Decision, Of
from .default import as_policy
from .policy import Policy
from .rules import Keep, Rule

__all__ = ["Decision", "Keep", "Of", "Policy", "Rule", "as_policy"]
