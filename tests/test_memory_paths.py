"""No path leads from an input of a memory engine's AXI ports to an output without a register."""

import re

import pytest
from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from cocotb_tests.memory.engines import ENGINES, TOP
from gen.verilog import convert
from gen.yosys import run_yosys
from rtl.memory import MemoryEngine


def inputs_with_a_path(design: wiring.Component, top: str, folder) -> set[str]:
    """Names of ports from which one leads to an output."""
    (folder / "engine.v").write_text(convert(design, top))
    script = [
        f"read_verilog {folder}/engine.v",
        f"hierarchy -top {top}",
        *(
            "proc",
            "flatten",
            "setattr -unset init w:*",
            "opt -fast",
            "memory -nomap",
            "opt -fast",
            "techmap",
            "simplemap",
            "opt -fast",
        ),
        "splitnets -ports",
        "delete t:$_*DFF* t:$mem_v2",
        f"select -write {folder}/inputs.txt o:* %ci* i:* %i",
    ]
    run_yosys(script, folder / "yosys.log")
    return set(re.findall(rf"{top}/(\w+)", (folder / "inputs.txt").read_text()))


@pytest.mark.parametrize("name", ["bypass-narrow", "small-narrow", "small-merging"])
def test_no_path_leads_through_a_memory_engine(tmp_path, name):
    # While the reset is low nothing is offered or taken, in the same cycle.
    assert inputs_with_a_path(MemoryEngine(ENGINES[name]), TOP, tmp_path) == {"aresetn"}


class Through(wiring.Component):
    """From one of two inputs a path leads to an output."""

    through: In(1)
    kept: In(1)
    o: Out(1)

    def elaborate(self, platform):
        m = Module()
        kept = Signal()
        m.d.sync += kept.eq(self.kept)
        m.d.comb += self.o.eq(kept ^ self.through)
        return m


def test_a_path_is_found(tmp_path):
    assert inputs_with_a_path(Through(), "top", tmp_path) == {"through"}
