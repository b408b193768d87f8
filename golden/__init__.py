"""The formats of bitstash, in NumPy. Everything else must match them bit for bit."""

from .account import Account
from .hadamard import HadamardFormat
from .plane import PlaneFormat, RaggedBlocks

Format = PlaneFormat | HadamardFormat

__all__ = ["Account", "Format", "HadamardFormat", "PlaneFormat", "RaggedBlocks"]
