"""The self-test on an FPGA board: its bitstream, its simulation, and the host that talks to it."""
