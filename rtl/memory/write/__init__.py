"""Writes: from bursts to whole blocks, and to memory."""
