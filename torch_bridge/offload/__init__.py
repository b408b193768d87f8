"""Saved tensors on an SSD, or in the host's memory, from the forward pass to the backward pass.

After Wu et al., "SSDTrain: An Activation Offloading Framework to SSDs for Faster Large Language Model
Training" (arXiv 2408.10013). What the forward pass saves first is needed last: it is written while the
forward pass goes on, and read back shortly before the backward pass needs it. Every tensor has a checksum.
"""

from .file import OffloadError
from .offload import Offload
from .step import Handle, Step

__all__ = ["Handle", "Offload", "OffloadError", "Step"]
