"""The generator's command line: what it writes, and what it says to wrong arguments."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gen import library, memory, project, testbench, toolchain, verilog
from gen.__main__ import main
from gen.config import PRESETS, Config
from gen.yosys import run_yosys
from golden import HadamardFormat, PlaneFormat
from rtl import Engine, RuntimeCompressor
from rtl.memory import MemoryParameters
from rtl.stream import word_layout


@pytest.fixture(scope="module")
def small():
    return Config(PlaneFormat("fp16", 16, 20), bus_bytes=16)


def test_any_format_becomes_verilog_that_passes_the_linter(tmp_path, capsys):
    path = tmp_path / "deep" / "x.v"
    main(
        [
            "verilog",
            "--dtype",
            "bf16",
            "--block",
            "32",
            "--target",
            "24",
            "--bus-bytes",
            "16",
            "-o",
            str(path),
        ]
    )
    assert capsys.readouterr().out.strip() == str(path)
    text = path.read_text()
    for part in ("compressor", "decompressor"):
        assert f"module bitstash_{part}_bf16_n32_t24_nearest_b16 (" in text


def test_verilog_names_no_path_of_this_machine(small):
    for text in (verilog.verilog_text(small), verilog.readable_text(small)):
        assert "src =" not in text
        assert not re.search(r"/(home|root|tmp|usr|work)/", text)


@pytest.mark.parametrize(
    "config",
    [
        Config(PlaneFormat("fp16", 16, 20), bus_bytes=16),
        Config(PlaneFormat("fp16", 16, 20), bus_bytes=16, interface="axi"),
        Config(HadamardFormat("bf16", 64, 16), bus_bytes=16, interface="axi"),
    ],
    ids=["planes", "planes-axi", "hadamard-axi"],
)
def test_another_tool_reads_what_is_written(tmp_path, config):
    path = tmp_path / "x.v"
    path.write_text(verilog.readable_text(config))
    top = verilog.module_name(config, "compressor")
    read = run_yosys([f"read_verilog {path}", f"hierarchy -check -top {top}", "stat"], tmp_path / "log")
    assert top in read


@pytest.mark.skipif(not shutil.which("iverilog"), reason="needs the package iverilog")
@pytest.mark.parametrize("standard", ["2005", "2012"])
@pytest.mark.parametrize("fmt", [PlaneFormat("fp16", 16, 20), HadamardFormat("fp16", 64, 13)], ids=str)
def test_benches_pass_in_icarus_as_verilog_and_as_systemverilog(tmp_path, fmt, standard):
    path = tmp_path / "x.v"
    project.write(Config(fmt, bus_bytes=16, interface="axi"), path)
    sources, model = [str(path), str(path.with_name("x_tb.sv"))], str(tmp_path / "x.out")
    toolchain.run(["iverilog", f"-g{standard}", "-o", model, *sources])
    assert ", 0 mismatches" in toolchain.run(["vvp", "-n", model])


RUNTIME = [
    Config(PlaneFormat("fp16", 16, 20), 16, "runtime", (PlaneFormat("fp32", 16, 40, "truncate"),)),
    Config(HadamardFormat("bf16", 64, 16), 16, "runtime", (HadamardFormat("fp32", 64, 32),)),
]


@pytest.mark.skipif(not shutil.which("iverilog"), reason="needs the package iverilog")
@pytest.mark.parametrize("config", RUNTIME, ids=["planes", "hadamard"])
def test_the_bench_of_an_engine_with_a_choice_tries_each_format_and_bypass(config, tmp_path):
    for part in ("compressor", "decompressor"):
        taken, given = testbench.words(config, part)
        chosen = [(word.get("format", 0), word.get("bypass", 0)) for word in taken if "configures" in word]
        assert set(chosen) == {(0, 0), (1, 0), (0, 1)}
        assert len(chosen) == sum(word["last"] for word in taken) == sum(word["last"] for word in given)
    path = tmp_path / "x.v"
    path.write_text(verilog.readable_text(config))
    bench = tmp_path / "x_tb.sv"
    bench.write_text(testbench.testbench(config))
    model = str(tmp_path / "x.out")
    for standard in ("2005", "2012"):
        said = toolchain.run(["iverilog", f"-g{standard}", "-Wall", "-o", model, str(path), str(bench)])
        assert "config_payload" not in said
        assert ", 0 mismatches" in toolchain.run(["vvp", "-n", model])


def test_the_linter_is_not_asleep(tmp_path, small):
    path = tmp_path / "x.v"
    broken = verilog.readable_text(small).replace("endmodule", "wire [3:0] a; assign b = a; endmodule", 1)
    path.write_text(broken)
    path.with_suffix(".vlt").write_text(project.waivers(path))
    with pytest.raises(toolchain.ToolError, match=r"UNDRIVEN|IMPLICIT"):
        project.lint(path)


SMALL = {"planes": PlaneFormat("fp16", 16, 20), "hadamard": HadamardFormat("fp16", 64, 20)}


def ports_in(text, module):
    """Direction and width of each port that a module's Verilog has."""
    header = re.search(rf"^module {module} \((.*?)^\);", text, re.DOTALL | re.MULTILINE)[1]
    found = re.findall(r"^  (input|output) +(?:wire|reg) +(?:\[(\d+):0\] )?(\w+),?$", header, re.MULTILINE)
    return {name: (direction, int(high or 0) + 1) for direction, high, name in found}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("scheme", "interface"),
    [("planes", "stream"), ("planes", "axi"), ("planes", "runtime"), ("hadamard", "axi")],
)
def test_the_manifest_says_what_an_integrator_needs(tmp_path, scheme, interface):
    fmt = SMALL[scheme]
    config = Config(fmt, bus_bytes=16, interface=interface)
    manifest = json.loads(project.write_all(tmp_path, configs=project.writers([config])).read_text())
    assert manifest["lint"]["waivers"] == {rule: list(kinds) for rule, kinds in project.WAIVERS.items()}
    assert (manifest["license"], manifest["version"]) == ("Apache-2.0", project.VERSION)
    (entry,) = manifest["configs"]
    text = (tmp_path / entry["file"]).read_text()
    ratio = fmt.original_bytes / fmt.target
    assert entry["parameters"] | {"ratio": ratio, "interface": interface} == entry["parameters"]
    for engine in entry["engines"].values():
        assert engine["uncompressed_bytes_per_cycle"] == 16
        assert ports_in(text, engine["module"]) == {
            name: (port["direction"], port["width"]) for name, port in engine["ports"].items()
        }


def test_several_formats_share_a_memory_engine(tmp_path, capsys, monkeypatch):
    made = []
    monkeypatch.setattr(memory, "write", lambda *arguments: made.append(arguments) or {})
    path = tmp_path / "x.v"
    options = "--dtype bf16 --block 32 --target 24 --bus-bytes 32 --memory-bytes 16 --interface memory"
    further = "--further hadamard:bf16:64:9 --further planes:fp16:64:70:truncate"
    main(["verilog", *options.split(), *further.split(), "-o", str(path)])
    assert capsys.readouterr().out.strip() == str(path)
    formats = (
        PlaneFormat("bf16", 32, 24),
        HadamardFormat("bf16", 64, 9),
        PlaneFormat("fp16", 64, 70, "truncate"),
    )
    assert made == [(MemoryParameters(formats=formats, bus_bytes=32, memory_bytes=16), path)]
    names = "bf16_n32_t24_nearest_or_n64_t9_hadamard_or_fp16_n64_t70_truncate"
    assert memory.module_name(made[0][0]) == f"bitstash_memory_{names}_b32_m16"
    main(["verilog", *options.split(), "--merging", "--regions", "4", "--reads=8", "-o", str(path)])
    ((merging, _),) = made[1:]
    assert (merging.merging, merging.regions, merging.reads) == (True, 4, 8)
    assert memory.module_name(merging).endswith("_m16_regions4_reads8_merging")


def test_a_memory_engine_has_its_files_and_its_place_in_the_manifest(tmp_path):
    parameters = MemoryParameters(
        bus_bytes=16, memory_bytes=16, regions=2, buffers=2, least_slots=4, reads=4, bursts=4
    )
    path = tmp_path / "x.v"
    written = project.write_all(tmp_path, configs=[("x.v", partial(memory.write, parameters))])
    assert "memory engine: bypass; 16-byte port, 16-byte memory" in path.read_text()
    core = path.with_suffix(".core").read_text()
    assert f"toplevel: {memory.module_name(parameters)}" in core
    assert "bench" not in core
    assert "get_ports aclk" in path.with_suffix(".sdc").read_text()
    (entry,) = json.loads(written.read_text())["configs"]
    engine = entry["engines"]["memory"]
    assert ports_in(path.read_text(), engine["module"]).keys() == engine["ports"].keys()
    assert entry["parameters"].items() >= {"interface": "memory", "memory_bytes": 16, "regions": 2}.items()
    preset = memory.manifest_entry(memory.PRESETS["gpt2-fp32-memory-16"], path)
    assert [(fmt["target"], fmt["ratio"]) for fmt in preset["formats"]] == [(80, 3.2), (32, 16)]
    assert preset["name"] == "gpt2-fp32-memory-16"
    assert entry["name"] == memory.slug(parameters)
    assert preset["engines"]["memory"]["uncompressed_bytes_per_cycle"] == [16, 51.2, 64]
    assert preset["engines"]["memory"]["latency_cycles"] == [3, 8, 11]


@pytest.mark.parametrize("fmt", SMALL.values(), ids=SMALL)
def test_the_library_reads_payloads_where_the_engines_write_them(fmt):
    header = library.layout_header(Config(fmt, bus_bytes=16))
    assert len(re.findall("struct (Dec|C)ompressorLayout", header)) == 2
    numbered = fmt.scheme == "hadamard"
    layout = word_layout(16, first=numbered)
    for name in ("last", "empty", *(["first"] if numbered else [])):
        field = layout[name]
        assert header.count(f"i_{name}{{{field.offset}, {field.width}}}") == 2
    assert header.count("i_first{0, 0}") == (0 if numbered else 2)
    error = word_layout(16, error=True)["error"]
    assert header.count(f"o_error{{{error.offset}, {error.width}}}") == 1


def test_presets_have_the_formats_that_their_names_say():
    fmt = PRESETS["gpt2-fp32-3.2x"].fmt
    assert (fmt.dtype, fmt.block, fmt.target) == ("fp32", 64, 80)
    fmt = PRESETS["gpt2-bf16-2x"].fmt
    assert (fmt.dtype, fmt.block, fmt.target) == ("bf16", 64, 64)
    for name in ("gpt2-fp32-3.2x", "gpt2-bf16-2x"):
        axi = PRESETS[f"{name}-axi"]
        assert (axi.fmt, axi.interface) == (PRESETS[name].fmt, "axi")
    for name, values in {
        "gpt2-fp32-16x": ("fp32", 512, 32),
        "gpt2-fp32-8x": ("fp32", 512, 64),
        "gpt2-bf16-8x": ("bf16", 256, 32),
    }.items():
        fmt = PRESETS[name].fmt
        assert (fmt.scheme, fmt.dtype, fmt.original_bytes, fmt.target) == ("hadamard", *values)
    axi = PRESETS["gpt2-fp32-16x-axi"]
    assert (axi.fmt, axi.interface) == (PRESETS["gpt2-fp32-16x"].fmt, "axi")
    rates = PRESETS["gpt2-fp32-hadamard-runtime"].formats
    assert {(fmt.dtype, 8 * fmt.target // fmt.block) for fmt in rates} == {("fp32", n) for n in (1, 2, 3, 4)}
    assert {fmt.dtype for fmt in PRESETS["gpt2-hadamard-runtime"].formats} == {"fp32", "bf16", "fp16"}
    fp32, switched = PRESETS["gpt2-fp32-runtime"].formats, PRESETS["gpt2-runtime"].formats
    assert {fmt.dtype for fmt in fp32} == {"fp32"}
    assert {fmt.dtype for fmt in switched} == {"fp32", "bf16", "fp16"}
    assert {fmt.rounding for fmt in fp32} == {"nearest", "truncate"}


def test_names_of_modules_are_as_long_as_tools_take_them():
    tops = [
        *(verilog.module_name(config, "decompressor") for config in PRESETS.values()),
        *(memory.module_name(parameters) for parameters in memory.PRESETS.values()),
    ]
    assert len(set(tops)) == len(tops)
    assert max(map(len, tops)) < 128  # cocotb finds no top of more, which Verilator names by a hash


def test_so_are_those_of_engines_of_many_formats(small):
    further = tuple(PlaneFormat("bf16", 128, target, "truncate") for target in range(100, 115))
    configs = [replace(small, interface="runtime", further=further[i:]) for i in range(2)]
    names = [verilog.module_name(config, "decompressor") for config in configs]
    assert names[0] != names[1]
    assert max(map(len, names)) < 110, "with room for the modules in it"
    assert memory.slug(MemoryParameters()) == "memory_b64_m64", "of bypass alone"


def test_memory_presets_have_both_formats_behind_memories_of_two_widths():
    for parameters in memory.PRESETS.values():
        ratios = [fmt.original_bytes / fmt.target for fmt in parameters.formats]
        assert (ratios, parameters.bus_bytes) == ([3.2, 16], 64)
    assert [parameters.memory_bytes for parameters in memory.PRESETS.values()] == [64, 16]


def test_several_formats_need_the_interface_that_chooses_between_them():
    further = (PlaneFormat("fp16", 16, 20, "truncate"),)
    with pytest.raises(ValueError, match="interface must be runtime for several formats, not 'axi'"):
        Config(PlaneFormat("fp16", 16, 20), interface="axi", further=further)
    config = Config(PlaneFormat("fp16", 16, 20), interface="runtime", further=further)
    assert [entry["rounding"] for entry in project.manifest_entry(config, Path("x.v"))["formats"]] == [
        "nearest",
        "truncate",
    ]
    with pytest.raises(ValueError, match="formats must all be of scheme planes, not 'hadamard'"):
        RuntimeCompressor((PlaneFormat("fp16", 64, 20), HadamardFormat("fp16", 64, 20)))
    with pytest.raises(ValueError, match="formats must all have a block of 16, not 32"):
        Engine((PlaneFormat("fp16", 16, 20), PlaneFormat("fp16", 32, 40)), 64)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dtype", "fp8"], "dtype must be one of fp32, bf16, fp16, not 'fp8'"),
        (["--block", "48"], r"block must be one of \(16, 32, 64, 128\), not 48"),
        (["--target", "20"], "target must be from 21 .* to 256 bytes .*, not 20"),
        (["--rounding", "up"], "rounding must be one of nearest, truncate, not 'up'"),
        (["--bus-bytes", "48"], r"bus_bytes must be one of \(16, 32, 64, 128\), not 48"),
        (["--scheme", "hadamard", "--rounding", "nearest"], "rounding must not be given for hadamard, not "),
        (
            ["--further", "planes:fp32:64"],
            "--further must be SCHEME:DTYPE:BLOCK:TARGET.*, not 'planes:fp32:64'",
        ),
        (["--further", "planes:fp32:64:81", "--interface", "axi"], "interface must be runtime for several "),
        (
            ["--further", "hadamard:fp32:128:32:up", "--interface", "memory"],
            "rounding must not be given for ",
        ),
        (["--further", "planes:fp32:64:²"], "target must be a number of bytes or None, not '²'"),
        (["--output", "a,b.v"], "--output must have letters, digits and .* in its name, not 'a,b.v'"),
        (["--output", "bitstash_delay_memory.v"], "--output must not be bitstash_delay_memory.v"),
        (["--memory-bytes", "16"], "--memory-bytes is of --interface memory, not stream"),
        (["--memory-bytes", "8", "--interface", "memory"], r"memory_bytes must be one of .*, not 8"),
        (["--memory-bytes", "0", "--interface", "memory"], r"memory_bytes must be one of .*, not 0"),
        (["--regions", "9", "--interface", "memory"], "regions must be from 1 to 8, not 9"),
        (["--regions", "4"], "--regions is of --interface memory, not stream"),
        (["--bus-bytes", "0"], r"bus_bytes must be one of \(16, 32, 64, 128\), not 0"),
        (["--part", "FullSlice", "--width", "0"], "width must be at least one bit, not 0"),
        (
            ["--part", "AsyncFifo", "--width", "8", "--depth", "0"],
            "depth must be a power of two from 4 on, not 0",
        ),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(SystemExit) as stop:
        main(["verilog", *arguments])
    assert re.search(message, str(stop.value))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--preset gpt2-fp32-memory-16 --merging", "--merging must not be given with --preset gpt2-fp32-mem"),
        ("--preset gpt2-fp32-memory-16 --memory-bytes 32", "--memory-bytes must not be given with --preset "),
        (
            "--preset gpt2-fp32-memory-16 --memories",
            "--memories must not be given with --preset gpt2-fp32-me",
        ),
        ("--preset gpt2-fp32-3.2x --merging", "--merging is of --interface memory, not --preset gpt2-fp32-3"),
        ("--interface axi --merging", "--merging is of --interface memory, not axi"),
        ("--interface memory --memories", "--memories must not be given with --interface memory"),
        ("--part FullSlice --width 5 --preset gpt2-fp32-3.2x", "--preset must not be given with --part"),
        ("--part FullSlice --width 5 --dtype bf16", "--dtype must not be given with --part"),
        ("--part FullSlice --width 5 --memories", "--memories must not be given with --part"),
    ],
)
def test_an_option_that_would_be_ignored_is_an_error(arguments, message, tmp_path):
    with pytest.raises(SystemExit, match=re.escape(message)):
        main(["verilog", *arguments.split(), "-o", str(tmp_path / "x.v")])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["a.sdc", "x.core", "s_3.2x"])
def test_an_output_whose_neighbours_would_have_its_name_is_an_error(name, tmp_path):
    with pytest.raises(SystemExit, match=r"--output must end in \.v, not "):
        main(["verilog", "--part", "FullSlice", "--width", "4", "-o", str(tmp_path / name)])
    assert list(tmp_path.iterdir()) == []


def test_what_is_made_alone_has_its_part_of_the_manifest(tmp_path):
    main(["verilog", "--part", "HalfSlice", "--width", "4", "-o", str(tmp_path / "x.v")])
    entry = json.loads((tmp_path / "x.json").read_text())
    assert entry["file"] == "x.v"
    assert (entry["license"], entry["version"]) == ("Apache-2.0", project.VERSION)
    assert f"module {entry['module']} (" in (tmp_path / "x.v").read_text()
    assert entry["ports"]["i_payload"] == {"direction": "input", "width": 4}


def test_a_file_that_cannot_be_written_is_one_clear_line(tmp_path):
    (tmp_path / "x.v").mkdir()
    with pytest.raises(SystemExit, match=r"python -m gen: .*x\.v"):
        main(["verilog", "--part", "FullSlice", "--width", "4", "-o", str(tmp_path / "x.v")])


def test_an_engine_too_large_for_yosys_is_one_clear_line(monkeypatch, small):
    def fails(*arguments, **options):
        raise verilog.verilog.YosysError("libc++abi: bad_alloc was thrown\nTraceback ...")

    monkeypatch.setattr(verilog.verilog, "convert", fails)
    with pytest.raises(toolchain.ToolError, match=r"made no Verilog of bitstash_compressor_.*: .* 4 GiB"):
        verilog.engines_text(replace(small, bus_bytes=128))


def test_an_unknown_interface_is_named_with_those_of_the_command(capsys):
    with pytest.raises(SystemExit):
        main(["verilog", "--interface", "memroy"])
    said = capsys.readouterr().err.replace("'", "")
    assert "argument --interface: invalid choice: memroy (choose from stream, axi, runtime, memory)" in said


@pytest.mark.parametrize("interface", ["wishbone", "memory"])
def test_a_config_has_an_interface_of_engines_that_stream(interface):
    with pytest.raises(ValueError, match=f"interface must be one of stream, axi, runtime, not '{interface}'"):
        Config(interface=interface)


@pytest.mark.parametrize("command", ["verilog", "library", "synth"])
def test_an_unknown_format_is_named(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--scheme", "zip"])
    assert "argument --scheme: invalid choice: 'zip'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        "verilog --preset gpt2-fp32-3.2x --block 32",
        "synth --preset gpt2-fp32-3.2x --block 32",
        "library --preset gpt2-fp32-memory-16 --bus-bytes 32",
    ],
)
def test_a_preset_and_a_format_exclude_each_other(arguments, capsys):
    with pytest.raises(SystemExit):
        main(arguments.split())
    assert "must not be given with --preset, which stands for all of an engine" in capsys.readouterr().err


def test_a_missing_compiler_is_one_clear_line(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    command = [sys.executable, "-m", "gen", "library", "--target", "81", "-o", "/nonexistent/library.so"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "python -m gen: no C++ compiler found (no-such-compiler): install g++ or clang++"
    )
