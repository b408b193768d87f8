"""Signatures of the words that pass: whether they are the expected ones, without keeping them."""

from amaranth import Cat, Mux, Value
from amaranth.lib import data

__all__ = ["POLYNOMIAL", "signature_layout", "with_word"]

_LANE_BITS = 32
# CRC-32's, x**32 + x**26 + ... + 1, the bit of x**31 lowest.
POLYNOMIAL = 0xEDB88320


def signature_layout(bus_bytes: int) -> data.ArrayLayout:
    """A signature: a register for each lane of four bytes, that of the first bytes first; at first 0."""
    return data.ArrayLayout(_LANE_BITS, 8 * bus_bytes // _LANE_BITS)


def with_word(signature: data.View, word: Value) -> Value:
    """What a signature becomes with one more word, as the usual registers of self-tests have it (MISR).

    Each lane's register moves on by one bit, as a CRC-32 does, and takes in the lane's bits of the word: a
    LUT a bit, and no wires between lanes; a CRC of wide words has both in plenty. Words that are wrong at
    random are missed with a probability of 2**-32 or less.
    """
    return Cat(
        Cat(register[1:], 0) ^ Mux(register[0], POLYNOMIAL, 0) ^ word.word_select(lane, _LANE_BITS)
        for lane, register in enumerate(signature)
    )
