"""Runs of DRAMsim3 (https://github.com/umd-memsys/DRAMsim3), which has to be there, built."""

from __future__ import annotations

import configparser
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gen.toolchain import ToolError, cxx, run

DRIVER = Path(__file__).with_name("driver.cpp")
LIBRARY = "libdramsim3.so"


@dataclass(frozen=True)
class Memory:
    """One of DRAMsim3's configurations.

    Attributes:
        name: for the table.
        path: its file.
        burst: bytes of a request.
        channels: each with a queue of its own.
        clock: ns.
    """

    name: str
    path: Path
    burst: int
    channels: int
    clock: float

    @classmethod
    def read(cls, name: str, path: Path) -> Memory:
        """Raises ValueError if there is no such file, or it is no configuration."""
        parser = configparser.ConfigParser()
        try:
            read = parser.read(path)
            structure, system = parser["dram_structure"], parser["system"]
            burst = system.getint("bus_width") // 8 * structure.getint("BL")
            return cls(name, path, burst, system.getint("channels"), parser["timing"].getfloat("tCK"))
        except (configparser.Error, KeyError, TypeError) as error:
            what = "has none" if not read else f"is none: {error!r}"
            raise ValueError(
                f"a memory needs a configuration of DRAMsim3, but {str(path)!r} {what}"
            ) from None

    @property
    def peak(self) -> float:
        """Bandwidth, GB/s: a burst takes half as many cycles as it has transfers."""
        parser = configparser.ConfigParser()
        parser.read(self.path)
        return parser["system"].getint("bus_width") / 8 * 2 / self.clock * self.channels


@dataclass(frozen=True)
class Run:
    """What a trace took.

    Attributes:
        requests, nanoseconds: until the last of them was answered.
        millijoules: of the devices: activation, bursts, refresh, standby. No interface is in it.
        row_hits: share of the requests that found their row open.
    """

    requests: int
    nanoseconds: float
    millijoules: float
    row_hits: float


class DramSim3:
    """A build of DRAMsim3.

    Args:
        folder: of its repository, with its library.
        work: an empty folder, for the driver and its results.

    Attributes:
        commit: that was built.

    Raises:
        ValueError: there is no built library.
        gen.toolchain.ToolError: the driver does not compile.
    """

    def __init__(self, folder: Path, work: Path) -> None:
        if not (folder / LIBRARY).is_file():
            raise ValueError(f"DRAMSIM3 must be a folder with {LIBRARY}, not {str(folder)!r}")
        self._folder, self._work = folder.resolve(), work
        self._driver = work / "driver"
        command = [*cxx().split(), "-O2", "-std=c++17", "-I", str(self._folder / "src"), str(DRIVER)]
        command += [str(self._folder / LIBRARY), f"-Wl,-rpath,{self._folder}", "-o", str(self._driver)]
        run(command, work / "driver.log")

    @property
    def commit(self) -> str:
        if not shutil.which("git"):
            return "unknown"
        command = ["git", "-C", str(self._folder), "rev-parse", "HEAD"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.stdout.strip() or "unknown"

    def memory(self, name: str, config: str) -> Memory:
        """One of its own configurations; raises as :meth:`Memory.read`."""
        return Memory.read(name, self._folder / "configs" / f"{config}.ini")

    def run(self, memory: Memory, trace: Path) -> Run:
        """Run a trace to its end.

        Raises:
            gen.toolchain.ToolError: the simulator failed.
        """
        printed = run(
            [str(self._driver), str(memory.path), str(trace), str(memory.channels), str(self._work)]
        )
        return result(memory, printed.splitlines()[-1], (self._work / "dramsim3.json").read_text())


def result(memory: Memory, summary: str, statistics: str) -> Run:
    """What the driver's last line and DRAMsim3's statistics say.

    Raises:
        gen.toolchain.ToolError: the statistics are of other requests.
    """
    whole, channels = json.loads(summary), json.loads(statistics).values()
    reads, writes = (sum(channel[f"num_{kind}_done"] for channel in channels) for kind in ("reads", "writes"))
    if reads + writes != whole["requests"]:
        raise ToolError(f"DRAMsim3 must have answered {whole['requests']} requests, not {reads + writes}")
    hits = sum(channel["num_read_row_hits"] + channel["num_write_row_hits"] for channel in channels)
    # Its energies are powers in mW, summed over cycles.
    picojoules = sum(channel["total_energy"] for channel in channels) * memory.clock
    return Run(
        requests=whole["requests"],
        nanoseconds=whole["cycles"] * memory.clock,
        millijoules=picojoules * 1e-9,
        row_hits=hits / whole["requests"],
    )
