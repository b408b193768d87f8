"""``python -m gen.synth.memory``: the area of a memory engine beyond its codecs and its memories.

It has blocks of 256 bytes in 80, and buses of 64 bytes. In the codecs' stead are some that only count words.
Memories are not counted: they buffer blocks and beats. The codecs of a memory engine have no gearboxes, as
those by themselves have: what that saves of them is subtracted.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

from amaranth import Value
from amaranth.back import verilog
from amaranth.hdl import Elaboratable, Fragment
from amaranth.lib import wiring

from golden import PlaneFormat
from rtl.memory import MemoryEngine, MemoryParameters
from rtl.ports import COMPRESSORS, DECOMPRESSORS, core_of

from ..formal.paths import without_codecs
from ..sizes import add_sizes, sizes
from ..yosys import run_yosys
from .gates import kilogates

FOLDER = Path("build/synth/memory")
_ENGINE = MemoryParameters(formats=(PlaneFormat("fp32", 64, 80),))
_TOP = "memory"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gen.synth.memory", description=__doc__)
    add_sizes(parser)
    try:
        parameters = replace(_ENGINE, **sizes(parser.parse_args()))
    except ValueError as error:
        parser.error(str(error))
    FOLDER.mkdir(parents=True, exist_ok=True)
    engine = MemoryEngine(parameters)
    areas = _areas(without_codecs(engine, None), engine)
    for name, area in sorted(areas.items(), key=lambda item: -item[1]):
        print(f"{area:8.1f} {name}")
    total, saved = sum(areas.values()), _saved_in_codecs(parameters)
    print(f"{total:8.1f} kGE in all")
    print(f"{saved:8.1f} that its codecs are smaller than by themselves")
    print(f"{total - saved:8.1f} kGE beyond codecs by themselves")


def _saved_in_codecs(parameters: MemoryParameters) -> float:
    """kGE that a compressor and a decompressor of each format take more where tensors have several blocks."""
    saved = 0.0
    for fmt in parameters.formats:
        for cores in (COMPRESSORS, DECOMPRESSORS):
            kind = core_of(cores, fmt)
            alone, inside = (kind(fmt, parameters.bus_bytes, single=single) for single in (False, True))
            saved += sum(_areas(alone, alone).values()) - sum(_areas(inside, inside).values())
    return saved


def _areas(design: Elaboratable | Fragment, component: wiring.Component) -> dict[str, float]:
    """kGE of each module of a design with a component's ports, without memories."""
    ports = [Value.cast(value) for *_, value in component.signature.flatten(component)]
    text = verilog.convert(design, name=_TOP, ports=ports, emit_src=False)
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
    return areas


if __name__ == "__main__":
    main()
