"""A memory in a netlist of cells whose mapping left it as it is, simulated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["Bit", "KeptMemory"]

Bit = int | str


class KeptMemory:
    """A memory that a mapping kept, of one clock, each read of which takes a cycle: what it gives, but not
    what it takes of energy.

    Args:
        instance: a cell ``$mem_v2``, as Yosys' ``write_json`` leaves it.
    """

    def __init__(self, instance: dict[str, Any]):
        sizes = {
            name: int(text, 2) for name, text in instance["parameters"].items() if re.fullmatch("[01]+", text)
        }
        pins, width, self._words = instance["connections"], sizes["WIDTH"], dict[int, list[int]]()
        assert sizes["RD_CLK_ENABLE"] == (1 << sizes["RD_PORTS"]) - 1, "a read must take a cycle"

        def ports(kind: str, size: int) -> list[list[Bit]]:
            return [pins[kind][start : start + size] for start in range(0, len(pins[kind]), size)]

        self._zeros = [0] * width
        addresses, data = (
            ports(f"RD_{name}", size) for name, size in (("ADDR", sizes["ABITS"]), ("DATA", width))
        )
        self._reads = list(zip(pins["RD_EN"], addresses, data, strict=True))
        names = (("ADDR", sizes["ABITS"]), ("DATA", width), ("EN", width))
        self._writes = list(zip(*(ports(f"WR_{name}", size) for name, size in names), strict=True))
        self._transparent = sizes["RD_TRANSPARENCY_MASK"]
        self.outputs: list[Bit] = pins["RD_DATA"]
        self.inputs = [
            bit for name in ("RD_ADDR", "RD_EN", "WR_ADDR", "WR_DATA", "WR_EN") for bit in pins[name]
        ]

    def edge(self, values: Mapping[Bit, int]) -> dict[Bit, int]:
        """What its outputs are from a clock edge on, from all values before it."""

        def address(bits: list[Bit]) -> int:
            return sum(values[bit] << place for place, bit in enumerate(bits))

        old = {
            port: self._words.get(address(where), self._zeros)
            for port, (_, where, _) in enumerate(self._reads)
        }
        for where, data, enables in self._writes:
            if any(values[enable] for enable in enables):
                place = address(where)
                word = self._words.get(place, self._zeros)
                pairs = zip(word, data, enables, strict=True)
                self._words[place] = [values[bit] if values[enable] else was for was, bit, enable in pairs]
        found: dict[Bit, int] = {}
        for port, (enable, where, data) in enumerate(self._reads):
            if values[enable]:
                ports = len(self._writes)
                is_transparent = self._transparent >> port * ports & (1 << ports) - 1
                word = self._words.get(address(where), self._zeros) if is_transparent else old[port]
                found.update(zip(data, word, strict=True))
        return found
