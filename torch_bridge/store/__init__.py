"""Where saved tensors go: exact, compressed, as bits, recomputed, offloaded."""
