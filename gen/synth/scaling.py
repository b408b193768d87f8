"""How area and depth grow with the bus and the block: measured points."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from golden import PlaneFormat
from rtl.stream import BUS_BYTES

from ..config import Config
from ..verilog import parts
from . import jobs

PARTS = parts(Config(PlaneFormat()))
RATIO = 3.2
BLOCKS = (16, 32, 64, 128)
BLOCK, WIDTH = 64, 64  # what stays when the other is varied


def measure_scaling(processes: int, out: Path) -> None:
    """Measure fp32 engines of one ratio, each bus with the middle block and each block on the middle bus.

    Args:
        processes: how many engines are measured at a time.
        out: folder of scaling.json.

    Raises:
        gen.toolchain.ToolError: a tool failed.
    """
    sizes = sorted({(BLOCK, width) for width in BUS_BYTES} | {(block, WIDTH) for block in BLOCKS})
    configs = {
        (block, width): Config(PlaneFormat("fp32", block=block, target=round(4 * block / RATIO)), width)
        for block, width in sizes
    }
    found = jobs.run(
        {
            (part, *size): partial(jobs.measure_gates, config, part)
            for size, config in configs.items()
            for part in PARTS
        },
        processes,
    )
    points = [
        {"part": part, "block": block, "bus_bytes": width, "kge": gates.kge, "nand_levels": gates.nand_levels}
        for (part, block, width), gates in found.items()
    ]
    out.mkdir(parents=True, exist_ok=True)
    (out / "scaling.json").write_text(json.dumps(points, indent=2) + "\n")
    print(f"wrote {out / 'scaling.json'}")
