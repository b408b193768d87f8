"""Energy of an engine from a cell library: read as it is written, simulated as it works, counted by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from gen.config import Config
from gen.synth import energy, gates
from gen.synth.liberty import expression, parse
from gen.verilog import convert, make_component, module_name
from golden import PlaneFormat

TINY = (Path(__file__).parent / "tiny.lib").read_text().replace("(1, ff)", "(1, pf)")
SMALL = Config(PlaneFormat("bf16", block=16, target=16), bus_bytes=16)

# An inverter of 2 pF and a flip-flop of 3 pF each at data and clock, with tables of energy in pJ.
LIBRARY = """
library (x) { /* of no process */
  capacitive_load_unit (1,pf); nom_voltage : 2;
  cell (INV) { area : 5; pin(A) { direction : input; capacitance : 2; }
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
    with pytest.raises(ValueError, match=r"capacitances in 1 pF, not '1 ff'"):
        energy.Library.parse(LIBRARY.replace("(1,pf)", "(1,ff)"))


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
    gates.measure_cells(convert(make_component(SMALL, part), top), top, TINY, tmp_path)
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
            whole = np.frombuffer(taken[: len(taken) // fmt.raw_bytes * fmt.raw_bytes], fmt.float_type.array)
            expected = fmt.compress(whole).tobytes()
        else:
            blocks = np.frombuffer(taken, np.uint8).reshape(-1, fmt.target)
            expected = fmt.decompress(blocks, len(blocks) * fmt.block).tobytes()
        common = min(len(seen), len(expected))
        assert common > 40 * size
        assert seen[:common] == expected[:common]
