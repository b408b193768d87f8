"""The compressors and decompressors in the way of blocks."""
