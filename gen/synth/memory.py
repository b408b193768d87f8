"""``python -m gen.synth.memory``: the area of a memory engine beyond its codecs and its memories.

In the codecs' stead are some that only count words. Memories are not counted: they buffer blocks and beats.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from amaranth.back import verilog

from golden import PlaneFormat
from rtl.memory import MemoryEngine, MemoryParameters

from ..formal.paths import without_codecs
from ..yosys import run_yosys
from .gates import kilogates

FOLDER = Path("build/synth/memory")
_FULL = MemoryParameters(formats=(PlaneFormat("fp32", 64, 80),))
# As it is by default, and with half of the regions and a quarter of the bursts each way.
ENGINES = {
    "full": _FULL,
    "smaller": replace(_FULL, regions=4, buffers=4, least_slots=8, reads=8, bursts=8),
}
_TOP = "memory"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gen.synth.memory", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default="full", help="default: full")
    parameters = ENGINES[parser.parse_args().engine]
    FOLDER.mkdir(parents=True, exist_ok=True)
    engine = MemoryEngine(parameters)
    ports = [getattr(engine, name) for name in engine.signature.members]
    text = verilog.convert(without_codecs(engine, None), name=_TOP, ports=ports, emit_src=False)
    (FOLDER / "source.v").write_text(text)
    script = [
        f"read_verilog {FOLDER}/source.v",
        f"hierarchy -check -top {_TOP}",
        *(
            "proc",
            "opt_expr",
            "opt_clean",
            "opt -nodffe -nosdff",
            "wreduce",
            "peepopt",
            "opt_clean",
            "alumacc",
        ),
        *("share", "opt", "memory -nomap", "opt_clean", "opt -fast -full", "opt -undriven -fine"),
        *(
            "techmap",
            "opt -fast",
            "abc -g NAND",
            "opt_clean -purge",
            f"tee -q -o {FOLDER}/modules.json stat -json",
        ),
    ]
    run_yosys(script, FOLDER / "yosys.log")
    modules = json.loads((FOLDER / "modules.json").read_text())["modules"]
    areas = {}
    for name, module in modules.items():
        cells = {cell: n for cell, n in module["num_cells_by_type"].items() if not cell.startswith("$mem")}
        areas[name.removeprefix(f"\\{_TOP}").removeprefix(".") or "top"] = kilogates(cells)
    for name, area in sorted(areas.items(), key=lambda item: -item[1]):
        print(f"{area:8.1f} {name}")
    print(f"{sum(areas.values()):8.1f} kGE in all")


if __name__ == "__main__":
    main()
