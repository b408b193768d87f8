"""Faults that users of AXI cores have reported, put into the memory engine: the benches must find each.

``python -m cocotb_tests.memory --faults`` does so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gen.toolchain import ToolError
from rtl.memory import MemoryParameters

__all__ = ["FAULTS", "Fault", "changed", "verilog_of"]

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Fault:
    """Edits of the engine's source.

    Attributes:
        reported: where something like it was.
        edits: file in rtl/memory, what stands there once, and what stands there instead.
        bench: a regular expression for the names of the benches that should find it.
    """

    name: str
    reported: str
    edits: tuple[tuple[str, str, str], ...]
    bench: str = "every_kind"


def _fault(name: str, reported: str, file: str, right: str, wrong: str, bench: str = "every_kind") -> Fault:
    return Fault(name, reported, ((file, right, wrong),), bench)


FAULTS = (
    _fault(
        "a stray beat where a burst ends at a boundary",
        "surf #1429, verilog-axi #12",
        "read/plan.py",
        "stop.eq(mapper.address + size - 1)",
        "stop.eq(mapper.address + size)",
    ),
    _fault(
        "strobes lost at a width change",
        "pulp axi #194",
        "write/writeout.py",
        "self.o.p.strb.eq(strb),",
        "self.o.p.strb.eq(~C(0, size)),",
    ),
    _fault(
        "narrow beats that write all of their word",
        "pulp axi #375",
        "write/gather.py",
        "content_write.en.eq(Mux(takes, beat.strb, 0))",
        "content_write.en.eq(takes.replicate(size))",
    ),
    _fault(
        "a length that overflows at a width change",
        "litex #2477",
        "read/plan.py",
        "length.eq(Cat(C((1 << more) - 1, more), words))",
        "length.eq(Cat(C((1 << more) - 1, more), words)[:7])",
        "masters",
    ),
    _fault(
        "WRAP that does not wrap",
        "pulp axi #429",
        "interface/walker.py",
        "wrapped = at & ~container | following & container",
        "wrapped = following",
    ),
    _fault(
        "EXOKAY to whoever asks",
        "axi_riscv_atomics #44",
        "write/slots.py",
        "Mux((goes & slverr).any(), Response.SLVERR, Response.OKAY)",
        "Mux((goes & slverr).any(), Response.SLVERR, Response.EXOKAY)",
    ),
    Fault(
        "reads and writes that wait for each other",
        "snitch #119, iDMA #115",
        (
            ("engine.py", "write.drain.eq(registers.drain)", "write.drain.eq(registers.drain | ~read.idle)"),
            ("engine.py", "read.drain.eq(registers.drain)", "read.drain.eq(registers.drain | ~write.idle)"),
        ),
        "no_channel_waits",
    ),
    _fault(
        "B that changes while it stalls",
        "a known trap",
        "write/slots.py",
        "may_go.any() & (~self.b.valid | self.b.ready)",
        "may_go.any()",
        "masters",
    ),
    _fault(
        "R that changes while it stalls",
        "a known trap",
        "read/reply.py",
        "advances = ~self.r.valid | self.r.ready",
        "advances = C(1, 1)",
        "masters",
    ),
    _fault(
        "reads lock up after DECERR",
        "verilog-axi #84",
        "read/reply.py",
        "~is_word | (waiting != 0))",
        "is_word & (waiting != 0))",
    ),
    _fault(
        "writes lock up after DECERR",
        "verilog-axi #84",
        "write/path.py",
        "Mux(about.refused, 1, Mux(bypass, cutter.i.ready, gather.i.ready)) & ~merging",
        "Mux(bypass, ~about.refused & cutter.i.ready, gather.i.ready) & ~merging",
    ),
    _fault(
        "B before memory's B",
        "verilog-axi #11",
        "write/path.py",
        "held = packer.held | out.held",
        "held = packer.held",
        "not_bufferable|every_kind",
    ),
    _fault(
        "a reset in the middle of a burst leaves a count",
        "avl-axi #42",
        "codecs/unpack.py",
        "index, words = Signal(range(max(pieces, 2))), Signal(8)",
        "index, words = Signal(range(max(pieces, 2))), Signal(8, reset_less=True)",
        "reset",
    ),
    _fault(
        "W that is held until AW is taken",
        "a known trap",
        "write/writeout.py",
        "self.w.valid.eq(lengths.o.valid & beats.o.valid)",
        "self.w.valid.eq(lengths.o.valid & beats.o.valid & ~self.aw.valid)",
        "no_channel_waits",
    ),
    _fault(
        "an old beat is kept for the next read",
        "coherence with writes",
        "read/plan.py",
        "with m.If(packed.valid & (packed.beat == rest_beat)):",
        "with m.If(packed.valid & (packed.beat == rest_beat) & 0):",
        "shared_beats",
    ),
)


def changed(fault: Fault) -> list[tuple[str, str, str]]:
    """Files in rtl/memory that a fault changes, each as it is and as it becomes.

    Raises:
        ValueError: an edit does not find its place in the source.
    """
    texts = {file: (_ROOT / "rtl" / "memory" / file).read_text() for file, *_ in fault.edits}
    before = dict(texts)
    for file, right, wrong in fault.edits:
        if texts[file].count(right) != 1:
            raise ValueError(f"{right!r} must stand once in {file}, not {texts[file].count(right)} times")
        texts[file] = texts[file].replace(right, wrong)
    return [(file, before[file], text) for file, text in texts.items()]


def verilog_of(fault: Fault, parameters: MemoryParameters, top: str) -> str:
    """The Verilog of an engine with a fault.

    Raises:
        ValueError: an edit does not find its place in the source.
        gen.toolchain.ToolError: what it makes is no engine.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(_ROOT / "rtl", folder / "rtl", ignore=shutil.ignore_patterns("__pycache__"))
        for file, _, text in changed(fault):
            (folder / "rtl" / "memory" / file).write_text(text)
        program = (
            "from gen.verilog import convert; from golden import *; from rtl.memory import *; "
            f"print(convert(MemoryEngine({parameters!r}), {top!r}))"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), str(_ROOT)])},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise ToolError(f"{fault.name}: {done.stderr}")
    return done.stdout
