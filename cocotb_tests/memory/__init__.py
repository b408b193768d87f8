"""The memory engine's benches: against the model of the map, in cocotb and in C++."""
