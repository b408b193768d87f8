"""Static timing by OpenSTA, which checks the delays of abc: ``apt install opensta``."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from ..toolchain import ToolError, run
from . import liberty

PROGRAM = "sta"
_PERIOD = 10_000.0  # ps, an arbitrary one: the slack says how much is too much


def version() -> str | None:
    """OpenSTA's, or None where there is none."""
    return run([PROGRAM, "-version"]).strip() if shutil.which(PROGRAM) else None


def shortest_period(netlist: Path, top: str, libraries: Sequence[Path], *, clock: str = "clk") -> float:
    """The period of the fastest clock that a netlist allows, ps.

    A path takes a flip-flop's clock-to-output delay, its gates, and the setup time at its end. Inputs come
    with the clock's edge and outputs are taken at the next; the clock arrives everywhere at once.

    Args:
        netlist: Verilog of a library's cells alone; a log and a script are left beside it.
        top: its module.
        libraries: files, not compressed; nets have the wire load that is their default, if any.
        clock: the port.

    Raises:
        gen.toolchain.ToolError: OpenSTA is missing, failed, or found no path.
    """
    if not shutil.which(PROGRAM):
        raise ToolError(f"no {PROGRAM} found: install OpenSTA, for instance with apt install opensta")
    script = netlist.with_suffix(".tcl")
    unit = liberty.time_unit(libraries[0].read_text())
    lines = [
        *(f"read_liberty {path}" for path in libraries),
        f"read_verilog {netlist}",
        f"link_design {top}",
        f"create_clock -name clock -period {_PERIOD / unit} [get_ports {clock}]",
        "set_input_delay 0 -clock clock [all_inputs]",
        "set_output_delay 0 -clock clock [all_outputs]",
        "report_checks -path_delay max -digits 2",
        'puts "slack of the longest path: [worst_slack]"',
        "exit",
    ]
    script.write_text("\n".join(lines) + "\n")
    printed = run([PROGRAM, "-no_splash", "-exit", str(script)], netlist.with_suffix(".sta.log"))
    slack = re.search(r"slack of the longest path: (-?[\d.]+)", printed)
    period = _PERIOD - float(slack[1]) * unit if slack else 0.0
    if period <= 0 or re.search(r"^Error", printed, re.MULTILINE):
        raise ToolError(f"OpenSTA found no longest path; it printed:\n{printed[-4000:]}")
    return round(period, 1)
