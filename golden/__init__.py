"""The formats of bitstash, in NumPy. Everything else must match them bit for bit."""

from .account import Account
from .plane import PlaneFormat, RaggedBlocks
from .step import StepAccount, StepFormat

Format = PlaneFormat | StepFormat

__all__ = ["Account", "Format", "PlaneFormat", "RaggedBlocks", "StepAccount", "StepFormat"]
