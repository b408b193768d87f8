"""How area and depth grow with the bus and the block: measured points, and the plot of them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

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
        out: folder of scaling.json and scaling.png.

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
    plot(points, out / "scaling.png")
    print(f"wrote {out / 'scaling.json'} and {out / 'scaling.png'}")


def plot(points: list[dict[str, Any]], path: Path) -> None:
    """Area and depth, over the bus width on the left and over the block size on the right."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(11, 6.4), sharey="row")
    columns = (
        ("bus_bytes", BUS_BYTES, "block", BLOCK, "bytes of a bus word", f"blocks of {BLOCK} values"),
        ("block", BLOCKS, "bus_bytes", WIDTH, "values of a block", f"buses of {WIDTH} bytes"),
    )
    for column, (varied, ticks, fixed, value, label, title) in enumerate(columns):
        for row, (figure_name, unit) in enumerate((("kge", "kGE"), ("nand_levels", "NAND levels"))):
            ax = axes[row, column]
            for part, style in zip(PARTS, ("-", "--"), strict=True):
                line = sorted(
                    (point[varied], point[figure_name])
                    for point in points
                    if point["part"] == part and point[fixed] == value
                )
                ax.plot(*zip(*line, strict=True), style, marker="o", ms=4, lw=1.8, label=part)
            ax.set_xscale("log", base=2)
            ax.set_xticks(ticks, map(str, ticks))
            ax.set_ylim(bottom=0)
            ax.grid(alpha=0.3)
            ax.set_ylabel(unit)
            if row == 0:
                ax.set_title(title)
            else:
                ax.set_xlabel(label)
    axes[0, 0].legend(fontsize=9)
    figure.suptitle(f"fp32 engines of ratio {RATIO}: area and logic depth")
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
