"""The formats of bitstash, in NumPy. Everything else must match them bit for bit."""

from .account import Account
from .hadamard import HadamardFormat
from .plane import PlaneFormat, RaggedBlocks

Format = PlaneFormat | HadamardFormat
# By their names on command lines and in reports.
FORMATS: dict[str, type[Format]] = {kind.scheme: kind for kind in (PlaneFormat, HadamardFormat)}

__all__ = ["FORMATS", "Account", "Format", "HadamardFormat", "PlaneFormat", "RaggedBlocks"]
