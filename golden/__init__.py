"""The formats of bitstash, in NumPy. Everything else must match them bit for bit."""

from .account import Account
from .plane import PlaneFormat, RaggedBlocks

Format = PlaneFormat
# By their names on command lines and in reports.
FORMATS: dict[str, type[Format]] = {kind.scheme: kind for kind in (PlaneFormat,)}

__all__ = ["FORMATS", "Account", "Format", "PlaneFormat", "RaggedBlocks"]
