"""Yosys, from the pyosys wheel, in a process of its own: should it crash, only the child ends."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from .toolchain import ToolError, run

_DONE = "every Yosys command was done"
_CHILD = """
import sys
from pyosys import libyosys
design = libyosys.Design()
for command in open(sys.argv[1]).read().splitlines():
    libyosys.run_pass(command, design)
print(sys.argv[2], flush=True)
"""


def run_yosys(commands: Iterable[str], log: Path) -> str:
    """Run Yosys commands one after the other and return what they printed, which is also left in ``log``.

    Args:
        commands: one Yosys command each, such as ``"synth -flatten -top top"``.
        log: a file; the commands are left beside it.

    Raises:
        gen.toolchain.ToolError: a command failed, or Yosys ended before the last of them was done.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    script = log.with_suffix(".ys")
    script.write_text("\n".join(commands) + "\n")
    printed = run([sys.executable, "-c", _CHILD, str(script), _DONE], log)
    if not printed.rstrip().endswith(_DONE):
        raise ToolError(f"Yosys ended before the last command of {script}; it printed:\n{printed[-4000:]}")
    return printed
