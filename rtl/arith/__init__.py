"""Arithmetic that any engine can be made of."""
