"""Formal proofs about rtl/: the stream contract, order, number, latency, and what comes back of a block."""

from .proofs import all_proofs
from .runner import Proof, Result, prove, report

__all__ = ["Proof", "Result", "all_proofs", "prove", "report"]
