"""The ways to save activation memory, by their names: compression and its sisters."""

from .schemes import FORMATS, NAMES, Scheme

__all__ = ["FORMATS", "NAMES", "Scheme"]
