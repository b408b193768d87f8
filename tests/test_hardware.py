"""The engines in Verilator against golden/: a slice of what ``make sim`` runs in full."""

import random
import re
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from amaranth import Module, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from cocotb_tests import __main__ as bench_commands
from cocotb_tests import configs, mutation, reports, runner
from cocotb_tests.corners import engine_coverage
from cocotb_tests.coverage import FLOWS
from cocotb_tests.promises import promise
from cocotb_tests.streams import AT_LENGTH, cut_into_words
from gen import equivalence, netlist
from gen.config import Config
from gen.verilog import bytes_per_cycle, convert, geometry, make_component, module_name, parts
from golden import HadamardFormat, PlaneFormat
from rtl import Engine
from rtl.stream import AsyncFifo

DATASHEET = (Path(__file__).parent.parent / "docs" / "hardware.md").read_text()

SLICE = [
    Config(PlaneFormat("fp32", 64, 80), bus_bytes=64),
    Config(PlaneFormat("bf16", 16, 7), bus_bytes=64),
    Config(PlaneFormat("fp16", 32, 37, "truncate"), bus_bytes=16),
    Config(PlaneFormat("fp16", 16, 9), bus_bytes=32, interface="axi"),
    configs.SWITCHED,
]
PLANES = [config for config in configs.ALL if isinstance(config.fmt, PlaneFormat)]
HADAMARD = [config for config in configs.ALL if isinstance(config.fmt, HadamardFormat)]
ENGINES = [
    pytest.param(config, part, id=f"{config.slug}-{part}")
    for config, part in (
        *((config, part) for config in SLICE for part in parts(config)),
        (configs.SWITCHED_HADAMARD, "compressor"),
        (configs.IN_MEMORIES[0], "compressor"),
        (Config(HadamardFormat("fp16", 64, 20), bus_bytes=16, interface="axi"), "decompressor"),
        *((Config(HadamardFormat("fp32", 64, 13), 32), part) for part in ("compressor", "decompressor")),
    )
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("config", "part"), ENGINES)
def test_engine_matches_the_golden_model(config, part, activations, build):
    row = runner.run(config, part, build / "sim", blocks=600, seed=1, activations=activations)
    assert row.blocks >= 600
    assert row.mismatches == 0


def test_what_the_benches_noted_is_kept_for_the_same_engine_and_seed(build, monkeypatch):
    runs = []

    def test(*arguments):
        runs.append(arguments)
        return run_benches(*arguments)

    run_benches = runner._test
    monkeypatch.setattr(runner, "_test", test)
    part, folder = configs.STREAM_PARTS[1], build / "kept"
    first = runner.run_part(part, folder, words=200, seed=1)
    assert runner.run_part(part, folder, words=200, seed=1, keep=True) == first
    assert len(runs) == 1
    runner.run_part(part, folder, words=200, seed=2, keep=True)
    runner.run_part(part, folder, words=201, seed=1, keep=True)
    assert len(runs) == 3
    engine = folder / "verilator" / part.slug / "engine.v"
    engine.write_text(engine.read_text() + "// another engine\n")
    runner.run_part(part, folder, words=200, seed=1, keep=True)
    assert len(runs) == 4
    assert runner.run_part(part, folder, words=200, seed=1) == first
    assert len(runs) == 5


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", ["compressor", "decompressor"])
def test_the_benches_meet_every_corner_of_the_format(part, build):
    row = runner.run(SLICE[1], part, build / "sim", blocks=3000, seed=1)
    assert [(group, name) for group, name, hits in row.coverage if not hits] == []
    assert ("specials block", "a quiet NaN; flowing") in [(group, name) for group, name, _ in row.coverage]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("config", "part"), [(configs.SMALL[0], "compressor"), (configs.SMALL[1], "decompressor")]
)
def test_gates_without_initial_values_match_the_golden_model(config, part, build):
    row = runner.run(config, part, build / "gates", model=runner.GATES, blocks=300, seed=1)
    assert row.mismatches == 0
    gates = build / "gates" / "verilator" / config.slug / part / "engine.v"
    assert "$_DFFE_PP_" in gates.read_text()
    assert not re.search(r"^\s*(reg|initial)\b", gates.read_text(), re.M)


def test_cells_of_gates_have_names_of_their_own(tmp_path):
    (config,) = (config for config in configs.SMALL if config.name == "fp16_n64_t13_hadamard_b16")
    netlist.write_gates(config, "compressor", tmp_path / "engine.v")
    names = re.findall(r"^  \\\$_\w+_ +(\S+)", (tmp_path / "engine.v").read_text(), re.M)
    assert len(names) > 10_000
    assert len(set(names)) == len(names)


@pytest.mark.timeout(900)
def test_the_benches_find_mutants(build, monkeypatch):
    options = {"count": 20, "blocks": 300, "seed": 11, "keep": True}
    found = mutation.run(configs.SMALL[0], "decompressor", build / "mutants", **options)
    assert [finding.mutant.number for finding in found] == [*range(1, 21)]
    # No bench was written for this seed. What survives is proven to be no fault, or a bench is missing.
    assert [finding for finding in found if finding.fate not in ("killed", "equivalent")] == []
    assert sum(finding.fate == "killed" for finding in found) >= 15
    assert all((finding.killed_by is None) == (finding.fate == "equivalent") for finding in found)
    nowhere = [finding.mutant for finding in found if not finding.mutant.source.startswith("rtl/")]
    assert [mutant for mutant in nowhere if not mutant.cell.startswith("$auto$")] == []
    monkeypatch.setattr(equivalence, "_compare", None)  # what was found is kept
    assert mutation.run(configs.SMALL[0], "decompressor", build / "mutants", **options) == found


def test_mutants_of_a_table_can_be_selected(tmp_path):
    """One of a memory's contents could not."""
    (config,) = (config for config in configs.SMALL if config.name == "fp16_n64_t13_hadamard_b16")
    netlist.write_mutants(config, "compressor", tmp_path / "engine.v", 2, seed=7)
    base = (tmp_path / "engine.il").read_text()
    assert "cell $pmux" in base or "cell $bmux" in base
    assert "cell $mem" not in base


def test_bits_that_never_change_are_told_beside_tables(tmp_path):
    cases = " ".join(f"{i}: square = {i * i % 256};" for i in range(32))
    source = tmp_path / "engine.v"
    source.write_text(f"""
        module top(input clk, input [4:0] a, output reg [7:0] y);
          reg [7:0] square; reg never = 0;
          always @* case (a) {cases} endcase
          always @(posedge clk) begin y <= square + never; never <= never & a[0]; end
        endmodule
    """)
    found = netlist.variable_bits(source, "top", ["square", "never"])
    found = {(name, bit) for name, bit in found if name != "y"}
    assert found == {("square", bit) for bit in (0, 2, 3, 4, 5, 6, 7)}  # a square is 0 or 1 more than fours


def test_long_runs_pause_in_every_pattern():
    """Alone, for long, every other cycle and not at all, so that all that is inside stands and moves on."""
    paused = "".join("-+"[pause] for pause in islice(AT_LENGTH["changing"](random.Random(5)), 20_000))
    assert 0.2 < paused.count("+") / len(paused) < 0.5
    assert "-" * 50 in paused, "nothing pauses for long enough that blocks pass"
    assert "+" * 20 in paused, "a pause that fills all that is inside"
    assert re.search("-{30}[+]-{30}", paused), "one cycle by itself"
    assert re.search("(?:-{1,2}[+]{1,2}){6}", paused), "changes of mind"


class StuckError(wiring.Component):
    """A decompressor whose ``error`` is always the same."""

    def __init__(self, engine, error):
        self._engine, self._error = engine, error
        super().__init__(engine.signature)

    def elaborate(self, platform):
        m = Module()
        m.submodules.engine = engine = self._engine
        for name, member in self.signature.members.items():
            port, inner = getattr(self, name), getattr(engine, name)
            source, sink = (port, inner) if member.flow == In else (inner, port)
            m.d.comb += [
                sink.valid.eq(source.valid),
                source.ready.eq(sink.ready),
                Value.cast(sink.payload).eq(source.payload),
            ]
        m.d.comb += self.o.p.error.eq(self._error)
        return m


@pytest.mark.timeout(900)
@pytest.mark.parametrize("error", [0, 1])
def test_the_benches_find_an_error_that_is_stuck(error, build):
    def write(config, part, path):
        component = StuckError(make_component(config, part), error)
        path.write_text(convert(component, module_name(config, part)))
        return []

    further = (PlaneFormat("bf16", 16, 9, "truncate"),)
    config = Config(PlaneFormat("fp16", 16, 7), bus_bytes=16, interface="runtime", further=further)
    model = runner.Model(f"error stuck at {error}", write)
    with pytest.raises(runner.BenchError, match="invalid_headers_give_zeros_and_an_error"):
        runner.run(config, "decompressor", build / f"stuck{error}", model=model, blocks=100, seed=1)


@pytest.mark.parametrize("config", PLANES, ids=lambda config: config.name)
def test_the_promises_are_those_of_the_datasheet_and_the_manifest(config):
    rows = re.findall(rf"^\| {re.escape(config.name)} \| (\w+) \|(.*)\|$", DATASHEET, re.M)
    measured = {part: cells.split("|") for part, cells in rows if "verilator" in cells}
    assert measured.keys() == parts(config).keys()
    for part, cells in measured.items():
        promises = [promise(part, fmt, config.formats, config.bus_bytes) for fmt in config.formats]
        latencies = [made.latency for made in promises]
        assert (int(cells[-3]), int(cells[-1])) == (min(latencies), max(latencies))
        slowest = config.bus_bytes // max(made.word_cycles for made in promises)
        assert slowest <= float(cells[-5]) < 1.02 * slowest
        assert bytes_per_cycle(config) == slowest
        assert parts(config)[part].latency(geometry(config)) >= max(latencies)


@pytest.mark.parametrize("config", HADAMARD, ids=lambda config: config.name)
def test_hadamard_engines_are_as_quick_as_the_datasheet_promises(config):
    for fmt in config.formats:
        latencies = {
            part: promise(part, fmt, config.formats, config.bus_bytes).latency for part in parts(config)
        }
        if config.bus_bytes == 64 and fmt.block == 128:
            assert latencies["compressor"] <= 40
            assert latencies["decompressor"] <= 20
        for part, core in parts(config).items():
            assert core.latency(geometry(config)) >= latencies[part]


def test_a_corner_that_cannot_occur_is_no_bin():
    roomy = engine_coverage(PlaneFormat("bf16", 16, 32), "compressor", 16, [], [])
    tight = engine_coverage(PlaneFormat("bf16", 16, 8), "compressor", 16, [], [])
    assert ("specials block", "a quiet NaN; flowing") in tight.hits
    assert ("specials block", "a quiet NaN; flowing") not in roomy.hits
    assert ("flushed", "to 1 exponent planes; flowing") in tight.hits
    assert not any(group == "flushed" for group, _ in roomy.hits)
    assert not any(group == "header" for group, _ in tight.hits)


def test_rounding_is_no_corner_of_a_decompressor():
    coverage = engine_coverage(PlaneFormat("bf16", 16, 12), "decompressor", 16, [], [])
    assert not any(group.startswith("rounding") for group, _ in coverage.hits)
    assert ("header", "of cleared memory; flowing") in coverage.hits


def words_at(data, size, cycle):
    """The words of a tensor at a port, one a cycle from a cycle on."""
    words = cut_into_words(data, size)
    return [word._replace(offered=cycle + i, cycle=cycle + i) for i, word in enumerate(words)]


def test_coverage_sees_what_a_block_holds():
    fmt = PlaneFormat("bf16", 16, 12)  # the worked block of docs/format.md
    values = [0, 1, -1.25, 1.1875, 2.125, -2.25, 1.4375, 0.578125]
    values += [1.125, 1.1875, 1.375, -0.625, -0.0, 2.5, 0, 0]
    block = np.array(values, fmt.float_type.array)
    taken, given = words_at(block.tobytes(), 16, 0), words_at(fmt.compress(block).tobytes(), 16, 9)
    hits = engine_coverage(fmt, "compressor", 16, taken, given).hits
    assert hits["delta width", "2 bits; flowing"] == 1
    assert hits["flags", "some, side by side, signs; flowing"] == 1
    assert hits["fit", "planes dropped; flowing"] == 1
    assert hits["rounding, early values", "a tie, up to even; flowing"] == 1  # value 3
    assert hits["rounding, early values", "a tie, down to even; flowing"] == 1  # value 4
    assert hits["rounding, early values", "saturates below a zero plane; flowing"] == 1  # value 6
    assert hits["rounding, early values", "down; flowing"] == 1  # value 7
    assert hits["rounding, late values", "a tie, down to even; flowing"] == 1  # value 8
    assert hits["rounding, late values", "up; flowing"] == 1  # value 9
    assert hits["rounding, late values", "saturates below a zero plane; flowing"] == 1  # value 10
    assert hits["end of a tensor", "in cycle 1 of a block; flowing"] == 1


@pytest.mark.parametrize(
    ("late_in", "late_out", "expected"),
    [
        ((), (), [1, 0, 0]),
        ((1,), (), [0, 1, 0]),
        ((), (0,), [0, 0, 1]),
        ((1,), (0, 1), [0, 1, 1]),
    ],
)
def test_coverage_sees_how_a_block_flows(late_in, late_out, expected):
    fmt = PlaneFormat("bf16", 16, 20)
    block = np.ones(16, fmt.float_type.array)
    taken, given = words_at(block.tobytes(), 16, 0), words_at(fmt.compress(block).tobytes(), 16, 9)
    late = [5 * i * (i in late_in) for i in range(len(taken))]
    taken = [
        w._replace(offered=i + by, cycle=i + by) for i, (w, by) in enumerate(zip(taken, late, strict=True))
    ]
    given = [w._replace(cycle=w.cycle + 5 * (i in late_out)) for i, w in enumerate(given)]
    hits = engine_coverage(fmt, "compressor", 16, taken, given).hits
    assert [hits["values", f"nothing but normal; {flow}"] for flow in FLOWS] == expected


def test_the_report_of_mutants_counts_faults_only():
    fates = ["killed"] * 8 + ["equivalent"] * 2 + ["undecided"] * 2
    rows = reports.mutants([{"config": "x", "part": "compressor", "fate": fate} for fate in fates])
    (row,) = rows
    assert (row["mutants"], row["killed"], row["killed_percent"]) == (12, 8, 80)


@pytest.mark.parametrize("command", ["sim", "coverage", "netlist", "xsafety", "mutate"])
def test_commands_begin_with_the_seed_that_their_help_says(command, capsys, monkeypatch):
    begun = []
    monkeypatch.setattr(bench_commands, f"_{command}", begun.append)
    bench_commands.main([command])
    with pytest.raises(SystemExit):
        bench_commands.main([command, "--help"])
    assert f"of what is random (default: {begun[0].seed})" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", ["sim", "coverage", "netlist", "xsafety", "mutate"])
def test_workers_find_what_commands_give_them(command, monkeypatch):
    """They import no ``__main__``."""
    given = []

    def run_all(calls, jobs, text):
        given.extend(calls)
        sys.exit(text)

    monkeypatch.setattr(bench_commands, "_run_all", run_all)
    with pytest.raises(SystemExit):
        bench_commands.main([command])
    assert given
    assert all(call.func.__module__ != bench_commands.__name__ for call in given)


@pytest.mark.timeout(900)
def test_a_waveform_is_left_on_request(build):
    config, part = configs.SMALL[0], "decompressor"
    runner.run(config, part, build / "waves", blocks=100, seed=1, waves=True)
    (wave,) = (build / "waves" / "verilator" / config.slug / part).glob("*.fst")
    assert wave.stat().st_size > 1000


def test_the_spread_has_every_dtype_block_bus_and_rounding():
    formats = [config.fmt for config in configs.ALL]
    assert {fmt.dtype for fmt in formats} == {"fp32", "bf16", "fp16"}
    assert {fmt.block for fmt in formats} == {16, 32, 64, 128, 256}
    planes = [fmt for fmt in formats if isinstance(fmt, PlaneFormat)]
    assert {fmt.rounding for fmt in planes} == {"nearest", "truncate"}
    assert {config.bus_bytes for config in configs.ALL} == {16, 32, 64, 128}
    assert any(fmt.has_specials_blocks for fmt in planes)
    assert any(fmt.target == fmt.original_bytes for fmt in planes)
    coefficients = [fmt.widths for fmt in formats if isinstance(fmt, HadamardFormat)]
    assert {int(width) for widths in coefficients for width in widths} == {0, 1, 2, 3, 4}


def test_wrong_parameters_are_named():
    with pytest.raises(ValueError, match="fmt must have a fixed target, not None"):
        Engine(PlaneFormat(target=None), 64)
    with pytest.raises(ValueError, match=r"bus_bytes must be one of \(16, 32, 64, 128\), not 48"):
        Engine(PlaneFormat(), 48)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", configs.STREAM_PARTS, ids=lambda part: part.slug)
def test_parts_of_the_streams_keep_their_promises(part, build):
    row = runner.run_part(part, build / "sim", words=600, seed=1)
    assert row.words >= 600
    assert row.mismatches == 0


def test_a_depth_that_a_fifo_cannot_have_is_named():
    for depth in (0, 2, 5, -8):
        with pytest.raises(ValueError, match=f"depth must be a power of two from 4 on, not {depth}"):
            AsyncFifo(8, depth)
