"""The self-test in Verilator, behind a pseudo-terminal that a host opens as it opens a board's port."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rtl.selftest import SelfTest

from .. import toolchain
from ..verilog import convert, digest
from .device import About

_SOURCE = Path(__file__).with_suffix(".cpp")
DIVISOR = 4  # cycles of a bit: a UART as fast as it can be
PATIENCE = 60.0  # seconds that the host waits for an answer: a simulation may have to share its processor


def build(about: About, folder: Path) -> Path:
    """Build a simulator in a folder and return its path; built from the same sources, it is left as it is.

    Raises:
        gen.toolchain.ToolError: there is no C++ compiler, or a tool failed.
    """
    toolchain.cxx()
    program, stamp = folder / "Vselftest", folder / "digest"
    made_from = digest(about)
    if program.exists() and stamp.exists() and stamp.read_text() == made_from:
        return program
    folder.mkdir(parents=True, exist_ok=True)
    design = SelfTest(about.formats, about.bus_bytes, DIVISOR, about.text(), about.memory_bytes)
    source = folder / "selftest.v"
    source.write_text(convert(design, "selftest"))
    options = ["--exe", "-o", program.name, "-CFLAGS", f"-DDIVISOR={DIVISOR}", str(_SOURCE)]
    toolchain.verilate(source, "selftest", folder, optimise="-O1", options=options, log=folder / "build.log")
    stamp.write_text(made_from)
    return program


@contextmanager
def running(program: Path) -> Iterator[str]:
    """The name of the port behind which a simulator runs, until the context ends."""
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdin
        try:
            name = process.stdout.readline().strip()
            if not name:
                raise toolchain.ToolError(f"{program} ended before it had a pseudo-terminal")
            yield name
        finally:
            process.stdin.close()
            process.terminate()
