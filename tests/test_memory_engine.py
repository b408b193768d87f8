"""The memory engine in Verilator: a small one behind a narrower memory, against the model."""

import re

import pytest
from amaranth.back import rtlil

from cocotb_tests.memory import engines as memory
from cocotb_tests.memory.faults import FAULTS, changed
from gen import diagrams, memories, memory_diagrams
from gen.memory import PRESETS
from gen.yosys import run_yosys
from rtl.memory import MemoryEngine, MemoryParameters

from .conftest import ROOT


def test_what_merges_has_formats():
    with pytest.raises(ValueError, match="merging must be False where there are no formats, not True"):
        MemoryParameters(merging=True)


@pytest.mark.timeout(900)
def test_the_engine_does_what_the_model_says(build):
    notes = memory.run("small-quarter", build / "sim", bursts=80, seed=1)
    planes, bypass = memory.rows("small-quarter", notes)
    assert planes["bursts"] > 300
    assert {response for note in notes for *_, response, _ in note.get("responses", [])} == {
        "OKAY",
        "SLVERR",
        "DECERR",
    }
    for row, limit in ((planes, 4 * 64 / 21), (bypass, 4)):
        rates = row["read_bytes_per_cycle"], row["write_bytes_per_cycle"]
        assert min(rates) > 0.95 * min(16, limit), row
        assert row["excess_bytes"] < 0.01, row
    assert bypass["read_latency_added"] == 3
    assert planes["read_latency_added"] == 4 + 4  # of the decompressor
    found = [memory.run_cocotbext("small-quarter", build / "sim", bursts=64, seed=1) for _ in range(2)]
    assert sum(found[0]) == 64
    assert min(found[0]) > 0
    assert found[0] == found[1]  # which was kept


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_an_edit_of_the_source(fault):
    for file, before, after in changed(fault):
        assert before != after, file


@pytest.mark.parametrize("name", memory_diagrams.DIAGRAMS)
def test_the_timing_diagram_is_what_the_engine_does(name):
    source = memory_diagrams.DIAGRAMS[name]()
    assert (diagrams.FOLDER / f"{name}.json").read_text() == source, "out of date: make diagrams"
    assert (diagrams.FOLDER / f"{name}.svg").read_text() == diagrams.render(source), (
        "out of date: make diagrams"
    )


@pytest.mark.parametrize("name", ["bypass-narrow", "small-narrow", "small-merging"])
def test_every_memory_has_a_port_of_each_kind_that_reads_with_the_clock(name):
    found = memories.memories_of(MemoryEngine(memory.ENGINES[name]))
    assert len(found) > 8
    for one in found:
        assert (one.reads, one.writes, one.synchronous) == (1, 1, True), one


@pytest.mark.parametrize("style", ["distributed", "block"])
def test_an_ecp5_holds_every_memory_in_ram_of_either_style(style, tmp_path):
    """Yosys maps each one, and refuses one that has no place in RAM of the style that it is asked for."""
    engine = MemoryEngine(memory.ENGINES["bypass"])
    source = tmp_path / "engine.il"
    source.write_text(rtlil.convert(engine, name="engine", emit_src=False))
    printed = run_yosys(
        [
            f"read_rtlil {source}",
            *("hierarchy -top engine", "proc", "flatten", "opt_expr", "opt_clean", "memory -nomap"),
            f'setattr -set ram_style "{style}" t:$mem_v2',
            "synth_ecp5 -top engine -run map_ram:map_ffram",
            "select -assert-none t:$mem_v2",
        ],
        tmp_path / "yosys.log",
    )
    mapped = dict(re.findall(r"mapping memory engine\.(\S+) via (\S+)", printed))
    kinds = {"distributed": {"$__TRELLIS_DPR16X4_"}, "block": {"$__DP16KD_", "$__PDPW16KD_"}}
    assert len(mapped) == len(memories.memories_of(engine))
    assert set(mapped.values()) <= kinds[style]


def test_the_page_has_the_table_of_memories():
    found = memories.memories_of(MemoryEngine(PRESETS["gpt2-fp32-memory-64"]))
    assert memories.table(found) in (ROOT / "docs" / "memory.md").read_text()
