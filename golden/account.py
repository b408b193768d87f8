"""Where the bits of compressed blocks go, counted in the paper's way: part by part."""

from __future__ import annotations

from dataclasses import dataclass

PARTS = ("sign", "exponent", "mantissa")


@dataclass(frozen=True)
class Account:
    """Stored bits of an array, part by part.

    Attributes:
        values: values counted, the padding of the tail block included.
        original: bits of each part before compression: sign, exponent, mantissa.
        stored: bits of each part's planes, and of "header" and "padding" (the unused end of a
            fixed-size block). The sum is what is stored.
        header: the header's bits by the part they serve: the base and the exponent flags belong to
            the exponent, each other flag to its plane's part.
        plain_exponent: lossless bits that the exponents and their share of the header would take in plain
            base-delta, whose base is the smallest field and which has no code for zero.
    """

    values: int
    original: dict[str, int]
    stored: dict[str, int]
    header: dict[str, int]
    plain_exponent: int

    @property
    def ratio(self) -> dict[str, float]:
        """Original bits over stored bits, headers included: each part, and "whole"."""
        return self._ratios({part: self.stored[part] + self.header[part] for part in PARTS})

    @property
    def plain_ratio(self) -> dict[str, float]:
        """The same with plain base-delta for the exponents, without the zero code: for the lossless mode."""
        parts = {part: self.stored[part] + self.header[part] for part in PARTS}
        return self._ratios(parts | {"exponent": self.plain_exponent})

    def _ratios(self, parts: dict[str, int]) -> dict[str, float]:
        ratios = {part: _ratio(self.original[part], bits) for part, bits in parts.items()}
        whole = sum(parts.values()) + self.stored["padding"]
        return ratios | {"whole": _ratio(sum(self.original.values()), whole)}

    def __add__(self, other: Account) -> Account:
        def add(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
            return {key: a[key] + b[key] for key in a}

        return Account(
            self.values + other.values,
            add(self.original, other.original),
            add(self.stored, other.stored),
            add(self.header, other.header),
            self.plain_exponent + other.plain_exponent,
        )


def _ratio(original: int, stored: int) -> float:
    return original / stored if stored else float("nan")
