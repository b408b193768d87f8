"""What was kept of saved tensors: rows, a table, a page of plots."""

from .report import Report
from .rows import Row

__all__ = ["Report", "Row"]
