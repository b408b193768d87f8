"""Backends that simulate the hardware: the Verilated engines, and memories with regions of blocks."""
