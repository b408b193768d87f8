"""Energy of an engine from a cell library: read as it is written, simulated as it works, counted by hand."""

import gzip
import json
import re
from pathlib import Path

import numpy as np
import pytest

from gen import memory
from gen.config import Config
from gen.synth import energy, gates, traffic
from gen.synth.liberty import expression, parse, read
from gen.verilog import convert, make_component, module_name
from gen.yosys import run_yosys
from golden import PlaneFormat
from golden.bursts import PAGE
from rtl.memory import MemoryParameters

TINY = (Path(__file__).parent / "tiny.lib").read_text()
SMALL = Config(PlaneFormat("bf16", block=16, target=16), bus_bytes=16)

# An inverter of 2 pF and a flip-flop of 3 pF each at data and clock, with tables of energy in pJ.
LIBRARY = """
library (x) { /* of no process */
  capacitive_load_unit (1,pf); leakage_power_unit : "1uW"; nom_voltage : 2
  power_lut_template (e) { variable_1 : total_output_net_capacitance; variable_2 : input_transition_time; }
  cell (INV) { area : 5; cell_leakage_power : 3; pin(A) { direction : input; capacitance : 2; }
    pin(Y) { direction : output; function : "(!A)";
      internal_power() { related_pin : "A";
        rise_power(e) { index_1 ("1, 3"); index_2 ("0.1, 0.9"); values ("10, 90", \\
          "20, 90"); }
        fall_power(e) { index_1 ("1, 3"); index_2 ("0.1, 0.9"); values ("30, 90", "40, 90"); } } } }
  cell (DFF) { area : 7; ff (IQ, IQN) { next_state : "D"; clocked_on : "C"; }
    pin(C) { direction : input; capacitance : 3;
      internal_power() { rise_power(p) { index_1 ("0.1, 0.9"); values ("1, 9"); }
        fall_power(p) { index_1 ("0.1, 0.9"); values ("3, 9"); } } }
    pin(D) { direction : input; capacitance : 3; }
    pin(Q) { direction : output; function : "IQ"; } }
}
"""
# A flip-flop that toggles in every cycle, and one that never does.
NETLIST = {
    "modules": {
        "x": {
            "ports": {"clk": {"bits": [2]}},
            "cells": {
                "a": {"type": "INV", "connections": {"A": [3], "Y": [4]}},
                "b": {"type": "DFF", "connections": {"C": [2], "D": [4], "Q": [3]}},
                "c": {"type": "DFF", "connections": {"C": [2], "D": [5], "Q": [5]}},
            },
        }
    }
}


@pytest.mark.parametrize(
    ("function", "python"),
    [
        ("(!(A B))", "(~({A}&{B}))"),
        ("(!((A B) C))", "(~(({A}&{B})&{C}))"),
        ("(!((S A) + (!S B)))", "(~(({S}&{A})|(~{S}&{B})))"),
        ("(A^B)", "({A}^{B})"),
        ("!(A1*A2)", "~({A1}&{A2})"),
    ],
)
def test_functions_are_read(function, python):
    assert expression(function)[0] == python


def test_a_library_that_breaks_off_is_an_error():
    with pytest.raises(ValueError, match="must end its groups"):
        parse("library (x) { cell (INV) {")
    with pytest.raises(ValueError, match="end its groups once"):
        parse("library (x) { } }")
    with pytest.raises(ValueError, match=r"attributes and groups, not 'area = 3; }'"):
        parse("library (x) { area = 3; }")


def test_attributes_end_with_their_line():
    library = parse('library (x) {\n area : 5\n cell (INV) { area : 7 \n f : "a;b"; }\n one (1,"2, 3")\n }')
    assert library.attributes == {"area": "5", "one": "1 2 3"}
    (cell,) = library.all("cell")
    assert cell.attributes == {"area": "7", "f": "a;b"}


@pytest.mark.parametrize("compressed", [False, True])
def test_a_library_is_read_from_its_file(compressed, tmp_path):
    path = tmp_path / "x.lib"
    path.write_bytes(gzip.compress(LIBRARY.encode()) if compressed else LIBRARY.encode())
    assert read(path) == LIBRARY
    path.write_bytes(path.read_bytes()[:8])
    with pytest.raises(ValueError, match=r"LIBERTY must be a cell library's file, not '.*x\.lib'"):
        read(path)


def test_a_library_of_femtofarads_and_picowatts_says_the_same():
    pico = energy.Library.parse(LIBRARY)
    femto = energy.Library.parse(LIBRARY.replace("(1,pf)", "(1,ff)").replace("1uW", "1pW"))
    assert femto.cells["INV"].capacitances["A"] == pytest.approx(1e-3 * pico.cells["INV"].capacitances["A"])
    assert femto.cells["DFF"].clock_energy == pytest.approx(1e-3 * pico.cells["DFF"].clock_energy)
    # The load of 3 of its units is the table's second row.
    assert femto.cells["INV"].energies["Y"](3e-3) == pytest.approx(1e-3 * pico.cells["INV"].energies["Y"](3))
    assert pico.cells["INV"].leakage == pytest.approx(3e-3)
    assert femto.cells["INV"].leakage == pytest.approx(3e-9)
    with pytest.raises(ValueError, match="numbers of F, not '1furlong'"):
        energy.Library.parse(LIBRARY.replace("(1,pf)", "(1,furlong)"))


def test_a_library_may_be_several_files():
    head, inverter, flip_flop = LIBRARY.partition("cell (INV)")[0], *_cells(LIBRARY)
    both = energy.Library.parse(head + inverter + "}", head + flip_flop + "}")
    assert both.cells.keys() == energy.Library.parse(LIBRARY).cells.keys()
    assert both.voltage == 2


def _cells(library):
    at, end = library.index("cell (DFF)"), library.rindex("}")
    return library[library.index("cell (INV)") : at], library[at:end]


def test_a_table_may_have_the_slew_first():
    turned = LIBRARY.replace("variable_1 : total_output_net_capacitance", "variable_1 : x")
    turned = turned.replace(
        'index_1 ("1, 3"); index_2 ("0.1, 0.9")', 'index_1 ("0.1, 0.9"); index_2 ("1, 3")'
    )
    turned = turned.replace('"10, 90", \\\n          "20, 90"', '"10, 20", "90, 90"')
    turned = turned.replace('"30, 90", "40, 90"', '"30, 40", "90, 90"')
    assert turned != LIBRARY
    for load in (1, 3):
        expected = energy.Library.parse(LIBRARY).cells["INV"].energies["Y"](load)
        assert energy.Library.parse(turned).cells["INV"].energies["Y"](load) == pytest.approx(expected)


RAILS = """
library (x) { capacitive_load_unit (1,ff); voltage_unit : "1V"; leakage_power_unit : "1pW"; nom_voltage : 0.5;
  cell (DFFN) { area : 2
    pg_pin (VDD) { pg_type : primary_power; } pg_pin (VSS) { pg_type : primary_ground; }
    leakage_power () { value : 8; when : "D"; related_pg_pin : VDD; }
    leakage_power () { value : 6; related_pg_pin : VDD; }
    leakage_power () { value : 100; related_pg_pin : VSS; }
    ff (IQN, IQNN) { next_state : "!D"; clocked_on : "C"; }
    pin(C) { direction : input; capacitance : 1; }
    pin(D) { direction : input; capacitance : 1; }
    pin(QN) { direction : output; function : "IQN"; internal_power () { related_pg_pin : VDD;
        rise_power (scalar) { values ("4"); } fall_power (scalar) { values ("2"); } }
      internal_power () { related_pg_pin : VSS;
        rise_power (scalar) { values ("50"); } fall_power (scalar) { values ("50"); } } } }
}
"""


def test_of_two_rails_the_power_rail_counts():
    cell = energy.Library.parse(RAILS).cells["DFFN"]
    assert cell.leakage == pytest.approx(6e-9)
    assert cell.energies["QN"](0) == pytest.approx(3e-3)


def test_a_flip_flop_may_give_its_data_inverted(tmp_path):
    path = tmp_path / "netlist.json"
    loop = {"C": [2], "D": [3], "QN": [3]}  # toggles in every cycle, since it inverts
    module = {"ports": {"clk": {"bits": [2]}}, "cells": {"a": {"type": "DFFN", "connections": loop}}}
    path.write_text(json.dumps({"modules": {"x": module}}))
    library = energy.Library.parse(RAILS)
    found = energy.Netlist(path, library).run(lambda cycle, output: {})
    assert found.switching == pytest.approx(3e-3 + 0.5**2 / 2 * 1e-3)
    assert energy.leakage(path, library) == pytest.approx(6e-9)
    wired = energy.Netlist(path, library, wire=2e-3).run(lambda cycle, output: {})
    assert wired.switching - found.switching == pytest.approx(0.5**2 / 2 * 2e-3)
    assert wired.clock - found.clock == pytest.approx(2 * 0.5**2 / 2 * 2e-3)


def test_energy_is_what_is_counted_by_hand(tmp_path):
    path = tmp_path / "netlist.json"
    path.write_text(json.dumps(NETLIST))
    found = energy.Netlist(path, energy.Library.parse(LIBRARY)).run(lambda cycle, output: {})
    # Half of C V^2 is twice the capacitance; the clock has two edges, of 1 and 3 pJ inside.
    assert found.clock == pytest.approx(2 * (2 * 2 * 3 + 4))
    # The inverter's input of 2 pF and the flip-flop's of 3 pF toggle; inside, 20 and 40 pJ at 3 pF.
    assert found.switching == pytest.approx(2 * 2 + 2 * 3 + 30)


def test_a_cell_that_the_library_lacks_is_named(tmp_path):
    path = tmp_path / "netlist.json"
    path.write_text(json.dumps(NETLIST).replace("INV", "NAND9"))
    with pytest.raises(ValueError, match="must be the library's, not 'NAND9'"):
        energy.Netlist(path, energy.Library.parse(LIBRARY))


def test_arrays_are_cut_into_blocks(tmp_path):
    path = tmp_path / "arrays.npz"
    block = SMALL.fmt.block
    np.savez(path, one=np.full((3, block), 1, np.float32), two=np.full(2 * block + 5, 2, np.float32))
    words = energy.stimulus(SMALL, "compressor", path)
    content = b"".join(word.to_bytes(SMALL.bus_bytes, "little") for stream in words for word in stream)
    blocks = np.frombuffer(content, SMALL.fmt.float_type.array).reshape(-1, block).astype(float)
    assert (blocks == blocks[:, :1]).all()
    assert set(blocks[:, 0]) == {1, 2}


@pytest.mark.parametrize("content", [b"", b"not one", {}, {"short": np.zeros(3)}])
def test_a_file_without_blocks_is_refused(content, tmp_path):
    path = tmp_path / "arrays.npz"
    if isinstance(content, dict):
        np.savez(path, **content)
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"ACTIVITY must .*arrays\.npz"):
        energy.stimulus(SMALL, "compressor", path)


@pytest.mark.parametrize("part", ["compressor", "decompressor"])
def test_the_simulated_netlist_gives_the_golden_models_words(part, tmp_path):
    top = module_name(SMALL, part)
    gates.measure_cells(convert(make_component(SMALL, part), top), top, [TINY], tmp_path)
    netlist = energy.Netlist(tmp_path / "netlist.json", energy.Library.parse(TINY))
    words, given = energy.stimulus(SMALL, part), []
    columns = [energy.columns(column, len(netlist.ports["i_payload"])) for column in zip(*words, strict=True)]
    mask, index = (1 << energy.STREAMS) - 1, 0

    def drive(cycle, output):
        nonlocal index
        if cycle > 0 and output("i_ready")[0]:
            index += 1
        if cycle > 0 and output("o_valid")[0]:
            given.append(output("o_payload"))
        runs = mask * (cycle >= 0)
        driven = {"rst": [mask - runs], "i_valid": [runs], "o_ready": [runs]}
        return driven | {"i_payload": columns[index % len(columns)]}

    netlist.run(drive)
    assert len(given) > 50
    fmt, size = SMALL.fmt, SMALL.bus_bytes
    for stream in range(0, energy.STREAMS, 9):
        taken = b"".join(
            (words[stream][i % len(words[stream])]).to_bytes(size, "little") for i in range(index)
        )
        bits = [[column >> stream & 1 for column in word[: 8 * size]] for word in given]
        seen = np.packbits(np.array(bits, np.uint8), bitorder="little").tobytes()
        if part == "compressor":
            whole = np.frombuffer(
                taken[: len(taken) // fmt.original_bytes * fmt.original_bytes], fmt.float_type.array
            )
            expected = fmt.compress(whole).tobytes()
        else:
            blocks = np.frombuffer(taken, np.uint8).reshape(-1, fmt.target)
            expected = fmt.decompress(blocks, len(blocks) * fmt.block).tobytes()
        common = min(len(seen), len(expected))
        assert common > 40 * size
        assert seen[:common] == expected[:common]


@pytest.mark.timeout(600)
def test_a_memory_engine_is_busy_both_ways_and_gives_the_golden_models_bytes(tmp_path, monkeypatch):
    """Its netlist of cells, with the memories that stay; mapped in haste, for the test's sake."""
    fmt = PlaneFormat("bf16", block=16, target=16)
    sizes = {
        "bus_bytes": 16,
        "memory_bytes": 16,
        "address_bits": 16,
        "id_bits": 1,
        "regions": 1,
        "buffers": 2,
    }
    parameters = MemoryParameters(formats=(fmt,), least_slots=4, reads=4, bursts=4, **sizes)
    top, files = memory.module_name(parameters), gates.write_libraries([TINY], tmp_path)
    (tmp_path / "source.v").write_text(memory.verilog_text(parameters))
    script = gates.library_script(top, tmp_path, files, gates.Mapping(keep_memories=True))
    script = [re.sub(r"(?<=-script ).*", "+strash;&get,-n;&nf;&put", step) for step in script]
    run_yosys(script, tmp_path / "yosys.log")
    netlist = energy.Netlist(tmp_path / "netlist.json", energy.Library.parse(TINY))
    made = []

    class Seen(traffic.Traffic):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(traffic, "Traffic", Seen)
    monkeypatch.setattr(traffic, "_WARM_UP", 200)
    monkeypatch.setattr(traffic, "_MEASURED", 200)
    _, bytes_per_cycle = traffic.energy_of_beats(netlist, parameters, 1)
    assert bytes_per_cycle > 0.8 * 2 * 16
    (seen,) = made
    data = b"".join(beat.to_bytes(16, "little") for _, beat in seen.read)
    half = traffic._PAGES * PAGE
    assert data == seen.content[half : half + len(data)]
    blocks = len(seen.written) * 16 // fmt.original_bytes - 20  # the last are under way
    assert blocks > 70
    stored = np.frombuffer(bytes(seen.memory[2 * half :][: blocks * fmt.target]), np.uint8).reshape(
        blocks, -1
    )
    values = fmt.decompress(stored, blocks * fmt.block).tobytes()
    assert values == seen.content[: len(values)]
