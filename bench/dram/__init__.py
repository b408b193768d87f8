"""A training step in front of a simulated DRAM, with and without the engine: ``python -m bench.dram``."""
