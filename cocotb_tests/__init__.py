"""Benches that hold the generated Verilog against golden/, bit for bit, in Verilator and Icarus."""
