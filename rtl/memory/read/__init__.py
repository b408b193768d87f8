"""Reads: what they need of memory, and their answers."""
