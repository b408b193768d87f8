"""Place and route on an ECP5: how large and how fast an engine is in a real FPGA."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amaranth import ClockDomain, ClockSignal, DomainRenamer, Module, ResetSignal, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from ..nextpnr import run_nextpnr
from ..yosys import run_yosys

# The largest ECP5 at its fastest speed grade. The package does not matter: no port gets a pin.
DEVICE = ("--85k", "--speed", "8", "--package", "CABGA756", "--out-of-context")
SEEDS = (1, 2, 3)
OPTIONS = ("--freq", "120", "--timing-allow-fail")
PLACERS = {
    # The default weight of timing is for sparser designs: with 10 the compressor is a tenth slower.
    "heap": ("--placer-heap-timingweight", "25"),
    # Does not weigh timing, but has shorter wires where there are too many to be routed.
    "static": ("--placer", "static"),
}
TOP = "behind_registers"
FLOW = Path(__file__).read_text()


class BehindRegisters(wiring.Component):
    """A component with a register at each port, its reset included, so that every path in it is timed.

    Args:
        component: one with a reset in the domain ``sync``, or with a clock of its own, ``aclk``.
    """

    def __init__(self, component: wiring.Component):
        self._component = component
        super().__init__(component.signature)

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.domains.inner = inner = ClockDomain(local=True)
        m.submodules.component = DomainRenamer("inner")(self._component)
        m.d.comb += inner.clk.eq(ClockSignal())
        reset = Signal(reset_less=True)
        m.d.sync += reset.eq(ResetSignal())
        m.d.comb += inner.rst.eq(reset)
        ports = zip(self.signature.flatten(self), self.signature.flatten(self._component), strict=True)
        for (path, member, outer), (_, _, port) in ports:
            if path == ("aclk",):  # the registers' clock as well: behind one of them it would be another
                m.d.comb += port.eq(ClockSignal())
                continue
            register = Signal(member.shape, name="__".join(map(str, path)) + "_register", reset_less=True)
            source, sink = (outer, port) if member.flow == In else (port, outer)
            m.d.sync += register.eq(source)
            m.d.comb += sink.eq(register)
        return m


def ecp5_script(read: str, top: str, netlist: Path) -> list[str]:
    """The Yosys commands that map a design to the ECP5.

    All adders are short: carry chains, and multiplexers of LUTs, would only tie what can be placed freely.
    The LUTs are made by ABC itself, for depth, since the flow's ABC9 fails an assertion on some engines.

    Args:
        read: the command that reads it.
        top: its top module.
        netlist: where the result is to be.
    """
    synth = f"synth_ecp5 -noccu2 -nowidelut -top {top} -run"
    abc = "+strash;&get,-n;&fraig,-x;&put;scorr;&get,-n;&synch2;&if,-K,4;&put;mfs2"
    return [
        read,
        f"{synth} begin:map_luts",
        *(f"abc -lut 4 -script {abc}", "clean"),
        f"{synth} map_cells: -json {netlist}",
    ]


def place(verilog: str, folder: Path, seeds: Sequence[int] = SEEDS, placer: str = "heap") -> dict[str, Any]:
    """Place and route a design with each of some seeds.

    Args:
        verilog: source of :data:`TOP`.
        folder: an empty one to work in.
        seeds: of the placer.
        placer: one of :data:`PLACERS`.

    Returns:
        "luts" and "mhz", medians of the seeds, "mhz_of_seeds", and of the median's longest path
        "path": each net's delay in ns until the end of the routing, and its name.

    Raises:
        gen.toolchain.ToolError: Yosys or nextpnr failed.
    """
    (folder / "source.v").write_text(verilog)
    commands = ecp5_script(f"read_verilog {folder}/source.v", TOP, folder / "ecp5.json")
    run_yosys(commands, folder / "yosys.log")
    reports = []
    for seed in seeds:
        options = [*DEVICE, *OPTIONS, *PLACERS[placer], "--json", "ecp5.json", "--seed", f"{seed}"]
        reports.append(run_nextpnr(folder, f"{seed}.json", options))
    reports.sort(key=_mhz)
    median = reports[len(reports) // 2]
    return {
        "luts": statistics.median(report["utilization"]["TRELLIS_COMB"]["used"] for report in reports),
        "mhz": round(_mhz(median), 1),
        "mhz_of_seeds": [round(_mhz(report), 1) for report in reports],
        "path": _path(median),
    }


def _mhz(report: dict[str, Any]) -> float:
    (clock,) = report["fmax"].values()
    return clock["achieved"]


def _path(report: dict[str, Any]) -> list[tuple[float, str]]:
    """Where the longest path between registers is after each of its wires."""
    (longest,) = (path for path in report["critical_paths"] if path["from"] == path["to"])
    reached, nets = 0.0, []
    for step in longest["path"]:
        reached += step["delay"]
        if step["type"] == "routing":
            nets.append((round(reached, 2), step["net"]))
    return nets
