"""Verilog for people to read: a module for each component, with its names, its source and its documentation.

Amaranth's own back end leaves the writing to Yosys, whose Verilog has a numbered wire for every operator.
Here operators become expressions again, registers the always blocks that a person would write.
"""

from .verilog import verilog

__all__ = ["verilog"]
