"""The sizes of a memory engine as options of a command line."""

from __future__ import annotations

import argparse
from typing import Any

from rtl.memory import MemoryParameters

# Parameters besides formats, buses and merging; rtl/memory/parameters.py says what each may be.
SIZES = {
    "address_bits": "bits of an address",
    "id_bits": "bits of an ID at the port",
    "regions": "regions",
    "buffers": "blocks that can be open at once",
    "least_slots": "bursts of writes that can be unanswered at once; a block's words if those are more",
    "reads": "bursts of reads that can be unanswered at once",
    "bursts": "the same at the memory, each way: a power of two from 2 on",
}


def default(name: str) -> int:
    """What a size is if nothing is said of it."""
    return getattr(MemoryParameters, name)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """An option for each."""
    group = parser.add_argument_group("sizes of a memory engine")
    for name, text in SIZES.items():
        option = f"--{name.replace('_', '-')}"
        group.add_argument(option, type=int, metavar="N", help=f"{text} (default: {default(name)})")


def sizes(arguments: argparse.Namespace) -> dict[str, Any]:
    """Those that were given, as arguments of MemoryParameters."""
    given = {name: getattr(arguments, name) for name in SIZES}
    return {name: value for name, value in given.items() if value is not None}
