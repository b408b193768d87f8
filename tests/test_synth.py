"""Synthesis: whole rows or an error, nothing measured twice, and figures that mean what they say."""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from amaranth import ClockDomain, ClockSignal, DomainRenamer, Module, Signal
from amaranth.back import verilog
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from amaranth.sim import Simulator

from gen.__main__ import main
from gen.config import Config
from gen.synth import ecp5, gates, jobs, report, scaling, sta, wires
from gen.synth import node as known
from gen.synth.paths import Netlist
from gen.toolchain import ToolError
from gen.yosys import run_yosys
from golden import PlaneFormat

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = ROOT / "tests" / "tiny.lib"
SMALL = Config(PlaneFormat("bf16", block=16, target=16), bus_bytes=16)

# Two registers, an AND of four bits between them, and a memory of 4 words.
TINY = """
module tiny(
  input clk, input rst, input en, input [3:0] a, input [1:0] at, output reg y, output reg [7:0] word
);
  reg [3:0] q;
  reg [7:0] words [0:3];
  always @(posedge clk) begin
    if (rst) q <= 0; else if (en) q <= a;
    y <= &q;
    if (en) words[at] <= {a, q};
    word <= words[at];
  end
endmodule
"""


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder without results of earlier runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def test_an_engine_makes_whole_rows_once(elsewhere, monkeypatch, capsys):
    rows = report.synthesise([SMALL], 2, libraries=[LIBRARY])
    printed = capsys.readouterr().out
    assert all(f"{row['kge']:.1f}" in printed and f"{row['area']:.0f}" in printed for row in rows)
    assert rows == json.loads(Path("build/synth/report.json").read_text())
    assert [row["part"] for row in rows] == ["compressor", "decompressor"]
    for row in rows:
        assert row["bus_bytes"] == 16
        assert 5 < row["kge"] < 20
        assert row["kge_per_byte_per_cycle"] == pytest.approx(row["kge"] / 16, abs=1e-3)
        assert 500 < row["flip_flops"] < 2000
        assert row["memory_bits"] == 0
        assert 10 < row["nand_levels"] < 100
        assert row["ecp5_luts"] is row["ecp5_mhz"] is None
        # No library of these cells is smaller than its flip-flops, or faster than its levels of inverters.
        assert row["area"] > 18 * row["flip_flops"]
        assert row["delay_ps"] > 100
    for detail in json.loads(Path("build/synth/details.json").read_text()):
        assert detail["plain_kge"] > 0
        assert sum(detail["modules"].values()) > 5
        assert [path["levels"] for path in detail["paths"]] == sorted(
            (path["levels"] for path in detail["paths"]), reverse=True
        )

    monkeypatch.setattr(jobs, "run", lambda todo, processes: {name: job() for name, job in todo.items()})
    monkeypatch.setattr(gates, "run_yosys", lambda *_: pytest.fail("measured a second time"))
    monkeypatch.setenv("LIBERTY", str(LIBRARY))
    Path("build/synth/report.json").unlink()
    main(["synth", "--dtype", "bf16", "--block", "16", "--target", "16", "--bus-bytes", "16"])
    assert json.loads(Path("build/synth/report.json").read_text()) == rows


def test_gates_are_counted_as_the_table_says(tmp_path):
    found = gates.measure_gates(TINY, "tiny", tmp_path)
    assert found.flip_flops == 4 + 1 + 32 + 8
    assert found.memory_bits == 32
    cells = json.loads((tmp_path / "gates.json").read_text())["design"]["num_cells_by_type"]
    count = cells["$_NAND_"] + 0.67 * cells["$_NOT_"] + 6 * found.flip_flops
    assert found.kge == pytest.approx(count / 1000, abs=1e-3)
    plain = json.loads((tmp_path / "plain.json").read_text())["design"]["num_cells_by_type"]
    assert set(plain) == {"$_NAND_", "$_NOT_", "$_DFF_P_"}
    assert found.plain_kge > found.kge
    assert found.modules == {"top": pytest.approx(found.kge, rel=0.1)}


def test_a_table_of_constants_is_no_memory(tmp_path):
    entries = "".join(f"{n}: q <= {n * n % 251}; " for n in range(64))
    ports = "input clk, input [5:0] n, output reg [7:0] q"
    verilog = f"module top({ports}); always @(posedge clk) case (n) {entries}endcase endmodule"
    found = gates.measure_gates(verilog, "top", tmp_path)
    assert found.memory_bits == 0
    assert found.flip_flops == 8
    assert found.kge > 0.1


def test_levels_are_those_of_yosys_ltp(tmp_path):
    found = gates.measure_gates(TINY, "tiny", tmp_path)
    assert found.nand_levels == max(Netlist(tmp_path / "flat.json").levels().values())
    printed = run_yosys([f"read_json {tmp_path}/flat.json", "ltp -noff"], tmp_path / "ltp.log")
    assert f"(length={found.nand_levels})" in printed
    (into_y,) = (path for path in found.paths if path.end == "y")
    assert into_y.start.startswith("q[")


def test_nets_get_their_names_back(tmp_path):
    source = """
    module named(input clk, input [7:0] a, input [7:0] b, output reg [7:0] y);
      wire [7:0] sum = a + b;
      wire is_even = ~(^sum);
      always @(posedge clk) y <= is_even ? sum : 8'd0;
    endmodule
    """
    paths = gates.measure_gates(source, "named", tmp_path).paths
    (into_reset,) = (path for path in paths if path.end.endswith(", reset"))  # a choice between y and 0
    assert into_reset.nets[-1][1].removeprefix("not ") == "is_even"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("module tiny(; endmodule", "syntax error"),
        ("module other; endmodule", "Module `tiny' not found"),
        ("module tiny(input a, output y); absent x(a, y); endmodule", "absent"),
    ],
)
def test_a_failing_flow_is_an_error(source, message, tmp_path):
    with pytest.raises(ToolError, match=message):
        gates.measure_gates(source, "tiny", tmp_path)


def test_a_flow_that_dies_in_the_middle_is_an_error(tmp_path, monkeypatch):
    script = gates.nand_script("tiny", tmp_path)
    monkeypatch.setattr(gates, "nand_script", lambda *_: [*script[:8], "exec -- kill -9 $PPID", *script[8:]])
    with pytest.raises(ToolError, match="status -9"):
        gates.measure_gates(TINY, "tiny", tmp_path)


def test_a_library_that_lacks_a_cell_is_an_error(tmp_path):
    text = LIBRARY.read_text()
    with pytest.raises(ToolError, match="DFF"):
        gates.measure_cells(TINY, "tiny", [text[: text.index("  cell (DFF)")] + "}"], tmp_path)


# A NAND between two registers, and a memory between two others.
PATH = """
module path(input clk, input a, output reg q, input [7:0] d, input [1:0] at, output reg [7:0] word);
  reg p; reg [7:0] words [0:3];
  always @(posedge clk) begin p <= a; q <= ~(p & q); words[at] <= d; word <= words[at]; end
endmodule
"""


def test_memories_may_stay_and_are_told(tmp_path):
    found = gates.measure_cells(
        PATH, "path", [LIBRARY.read_text()], tmp_path, gates.Mapping(keep_memories=True)
    )
    (kept,) = gates.memories(tmp_path / "netlist.json")
    assert (kept.width, kept.depth, kept.bits, kept.reads) == (8, 4, 32, 1)
    # Two flip-flops of a bit, and eight more if the memory does not take the register behind it.
    assert found["area"] - 18 * (2 if kept.clocked else 10) < 20
    (tmp_path / "beside").mkdir()
    assert gates.measure_beside_memories(PATH, "path", tmp_path / "beside") < 0.1
    (tmp_path / "all").mkdir()
    assert gates.measure_cells(PATH, "path", [LIBRARY.read_text()], tmp_path / "all")["area"] > 18 * 32


def test_a_library_may_be_several_files(tmp_path):
    text = LIBRARY.read_text()
    at = text.index("  cell (DFF)")
    head = text[: text.index("  cell (BUF)")]
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = gates.measure_cells(TINY, "tiny", [text], tmp_path / "one")
    assert gates.measure_cells(TINY, "tiny", [text[:at] + "}", head + text[at:]], tmp_path / "two") == one


def test_wires_make_a_path_longer_and_sizes_know_it(tmp_path):
    text = LIBRARY.read_text()
    sized = gates.Mapping(driver="BUF")
    delays = []
    for length in (0.001, 5.0):
        folder = tmp_path / f"{length}"
        folder.mkdir()
        wired = wires.with_wires(text, wires.Wire(resistance=0.01, capacitance=2.0), length)
        delays.append(gates.measure_cells(TINY, "tiny", [wired], folder, sized)["delay_ps"])
    assert delays[1] > 1.5 * delays[0]


def test_donath_grows_as_the_square_root_does_and_less():
    # Four cells in a square: four neighbours at 1, two diagonals at 2; the rule's mean is of that order.
    assert 0.5 < wires.donath(4) < 1.5
    means = [wires.donath(4**level) for level in range(2, 10)]
    assert all(1 < larger / smaller < 2 for smaller, larger in itertools.pairwise(means))
    assert wires.length_per_sink(400.0, 1000) == pytest.approx(2 * wires.length_per_sink(100.0, 1000))
    with pytest.raises(ValueError, match="at least 4, not 3"):
        wires.donath(3)


@pytest.mark.skipif(sta.version() is None, reason="OpenSTA is not installed")
def test_a_period_has_flip_flop_gates_and_setup(tmp_path):
    text = LIBRARY.read_text()
    ports = "input clk, input a, output reg q"
    source = f"module one({ports}); reg p; always @(posedge clk) begin p <= a; q <= ~p; end endmodule"
    gates.measure_cells(source, "one", [text], tmp_path)
    # 30 ps from the clock and 1 for each fF, an inverter of 10 and 1 for each fF, 7 of setup.
    period = sta.shortest_period(tmp_path / "netlist.v", "one", [tmp_path / "cells0.lib"])
    assert period == pytest.approx(30 + 1 + 10 + 1 + 7, abs=0.2)
    (tmp_path / "wired.lib").write_text(wires.with_wires(text, wires.Wire(1e-6, 0.5), 2.0))
    wired = sta.shortest_period(tmp_path / "netlist.v", "one", [tmp_path / "wired.lib"])
    assert wired == pytest.approx(period + 2, abs=0.2)
    with pytest.raises(ToolError, match="no longest path"):
        sta.shortest_period(tmp_path / "netlist.v", "other", [tmp_path / "cells0.lib"])


def test_without_opensta_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert sta.version() is None
    with pytest.raises(ToolError, match="no sta found"):
        sta.shortest_period(tmp_path / "netlist.v", "one", [])


def test_a_node_is_known_by_its_library():
    name, node = known.node_of(["library (asap7sc7p5t_RVT_TT) {"])
    assert (name, node.name.partition(",")[0]) == ("asap7sc7p5t_RVT_TT", "ASAP7")
    with pytest.raises(ValueError, match="LIBERTY must be a library of asap7sc7p5t, not 'tiny'"):
        known.node_of([LIBRARY.read_text()])


@pytest.mark.skipif(sta.version() is None, reason="OpenSTA is not installed")
def test_a_node_is_measured_without_and_with_wires(tmp_path):
    node = replace(known.NODES["asap7sc7p5t"], dont_use=("NOR2",), driver="BUF")
    driven = lambda texts, folder, wire: {"pj_per_byte": wire}  # noqa: E731
    design = known.Design("x", "part", 16, lambda: PATH, "path", driven, has_memories=True)
    found = known.measure(design, PATH, [LIBRARY.read_text()], node, tmp_path)
    assert found["smallest"]["period_with_wires_ps"] > found["smallest"]["period_ps"] > 30
    assert found["sized"]["period_with_wires_ps"] > 30
    assert found["sized"]["pj_per_byte"] > 0
    assert [memory["width"] * memory["depth"] for memory in found["memories"]] == [32]
    assert "NOR2" not in (tmp_path / "sized" / "netlist.v").read_text()


class Inverter(wiring.Component):
    i: In(4)
    o: Out(4)

    def elaborate(self, platform):
        m = Module()
        state = Signal(4)
        m.d.sync += state.eq(~self.i)
        m.d.comb += self.o.eq(state ^ self.i)
        return m


def test_a_design_is_placed_behind_registers(tmp_path):
    found = ecp5.place(verilog.convert(ecp5.BehindRegisters(Inverter()), name=ecp5.TOP), tmp_path)
    assert 0 < found["luts"] < 50
    assert found["mhz"] == sorted(found["mhz_of_seeds"])[1] > 100
    assert found["path"]
    netlist = (tmp_path / "ecp5.json").read_text()
    assert netlist.count('"type": "TRELLIS_FF"') == 4 + 4 + 4 + 1  # state, i, o, reset


class ClockedInverter(wiring.Component):
    aclk: In(1)
    i: In(4)
    o: Out(4)

    def elaborate(self, platform):
        m = Module()
        m.domains.axis = ClockDomain(local=True, reset_less=True)
        m.d.comb += ClockSignal("axis").eq(self.aclk)
        m.submodules.inverter = inverter = DomainRenamer("axis")(Inverter())
        m.d.comb += [inverter.i.eq(self.i), self.o.eq(inverter.o)]
        return m


def test_a_design_with_a_clock_of_its_own_is_placed_with_one_clock(tmp_path):
    found = ecp5.place(verilog.convert(ecp5.BehindRegisters(ClockedInverter()), name=ecp5.TOP), tmp_path, [1])
    assert found["mhz"] > 100
    assert (tmp_path / "ecp5.json").read_text().count('"type": "TRELLIS_FF"') == 4 + 4 + 4


def test_registers_around_a_design_delay_it_by_two_cycles():
    dut = ecp5.BehindRegisters(Inverter())

    async def testbench(ctx):
        given = [3, 9, 0, 15, 6]
        seen = []
        for value in given:
            ctx.set(dut.i, value)
            await ctx.tick()
            seen.append(ctx.get(dut.o))
        assert seen[3:] == [~given[k - 1] % 16 ^ given[k] for k in (2, 3)]

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["--bus-bytes", "48"], {}, r"bus_bytes must be one of \(16, 32, 64, 128\), not 48"),
        (["--jobs", "0"], {}, "2"),
        (["--scheme", "planes", "--target", "1"], {}, "target must be .*, not 1"),
        ([], {"LIBERTY": "absent.lib"}, "LIBERTY must be a cell library's file, not 'absent.lib'"),
        ([], {"LIBERTY": __file__}, "LIBERTY must be a cell library's file, not '.*test_synth.py'"),
        ([], {"ACTIVITY": "absent.npz"}, "ACTIVITY must be a file of arrays, not 'absent.npz'"),
        ([], {"ACTIVITY": __file__}, "ACTIVITY is for the energy of a cell library"),
    ],
)
def test_wrong_arguments_are_named(arguments, environment, message, monkeypatch, elsewhere):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit, match=message):
        main(["synth", *arguments])
    assert not Path("build").exists()


def test_a_wrong_preset_is_named(capsys):
    with pytest.raises(SystemExit):
        main(["synth", "--preset", "gpt3"])
    assert "invalid choice: 'gpt3'" in capsys.readouterr().err


def working_in(folder):
    """The processes whose working directory this is."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):  # it has just ended, or is somebody else's
            if path.samefile(folder):
                found.append(int(path.parent.name))
    return found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_that_was_started(how, elsewhere):
    command = [sys.executable, "-m", "gen", "synth", "--gates-only"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not list(Path("build").glob("synth/work-*/*/yosys.ys")):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(how)
    assert process.communicate(timeout=20)[1].strip().splitlines()[-1] == "interrupted"
    assert process.returncode == 130
    assert not list(Path("build").glob("synth/work-*"))
    assert working_in(elsewhere) == [os.getpid()]


def test_scaling_covers_widths_and_blocks(elsewhere, monkeypatch):
    measured = []

    def run(todo, processes):
        measured.extend(todo)
        found = gates.Gates(1.0, 1.0, 1, 0, 10, {}, [])
        return {(part, *size): replace(found, kge=size[0] * size[1]) for part, *size in todo}

    monkeypatch.setattr(jobs, "run", run)
    scaling.measure_scaling(1, Path("docs"))
    sizes = {(64, 16), (64, 32), (64, 64), (64, 128), (16, 64), (32, 64), (128, 64)}
    assert set(measured) == {(part, *size) for part in ("compressor", "decompressor") for size in sizes}
    points = json.loads(Path("docs/scaling.json").read_text())
    assert {(point["part"], point["block"], point["bus_bytes"]) for point in points} == set(measured)
