"""From the components in rtl/ to files: Verilog, its manifest, and the library that training calls."""
