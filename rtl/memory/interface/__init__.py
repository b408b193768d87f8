"""AXI's channels as streams, and its bursts taken apart."""
