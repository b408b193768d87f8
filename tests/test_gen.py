"""The generator's command line: what it writes, and what it says to wrong arguments."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gen import project, toolchain, verilog
from gen.__main__ import main
from gen.config import PRESETS, Config
from golden import PlaneFormat
from rtl import Engine


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
        assert f"module bitstash_{part}_bf16_n32_t24_nearest_b16(" in text


def test_verilog_names_no_path_of_this_machine(small):
    text = verilog.verilog_text(small)
    assert "src =" not in text
    assert not re.search(r"/(home|root|tmp|usr|work)/", text)


def test_the_linter_is_not_asleep(tmp_path, small):
    path = tmp_path / "x.v"
    broken = verilog.verilog_text(small).replace("endmodule", "wire [3:0] a; assign b = a; endmodule", 1)
    path.write_text(broken)
    path.with_suffix(".vlt").write_text(project.waivers(path))
    with pytest.raises(toolchain.ToolError, match=r"UNDRIVEN|IMPLICIT"):
        project.lint(path)


@pytest.mark.parametrize("interface", ["stream", "axi", "runtime"])
def test_the_manifest_says_what_an_integrator_needs(tmp_path, interface):
    config = Config(PlaneFormat("fp16", 16, 20), bus_bytes=16, interface=interface)
    manifest = json.loads(project.write_presets([config], tmp_path).read_text())
    assert set(manifest["lint"]["waivers"]) == set(project.WAIVERS)
    (entry,) = manifest["configs"]
    text = (tmp_path / entry["file"]).read_text()
    assert entry["parameters"] | {"ratio": 1.6, "interface": interface} == entry["parameters"]
    for engine in entry["engines"].values():
        assert engine["uncompressed_bytes_per_cycle"] == 16
        header = re.search(rf"module {engine['module']}\((.*?)\);(.*?)endmodule", text, re.DOTALL)
        assert set(header[1].split(", ")) == set(engine["ports"])
        for name, port in engine["ports"].items():
            bits = f"[{port['width'] - 1}:0] " if port["width"] > 1 else ""
            assert f"  {port['direction']} {bits}{name};" in header[2], name


def test_presets_have_the_formats_that_their_names_say():
    fmt = PRESETS["gpt2-fp32-3.2x"].fmt
    assert (fmt.dtype, fmt.block, fmt.target) == ("fp32", 64, 80)
    fmt = PRESETS["gpt2-bf16-2x"].fmt
    assert (fmt.dtype, fmt.block, fmt.target) == ("bf16", 64, 64)
    for name in ("gpt2-fp32-3.2x", "gpt2-bf16-2x"):
        axi = PRESETS[f"{name}-axi"]
        assert (axi.fmt, axi.interface) == (PRESETS[name].fmt, "axi")
    fp32, switched = PRESETS["gpt2-fp32-runtime"].formats, PRESETS["gpt2-runtime"].formats
    assert {fmt.dtype for fmt in fp32} == {"fp32"}
    assert {fmt.dtype for fmt in switched} == {"fp32", "bf16", "fp16"}
    assert {fmt.rounding for fmt in fp32} == {"nearest", "truncate"}


def test_several_formats_need_the_interface_that_chooses_between_them():
    further = (PlaneFormat("fp16", 16, 20, "truncate"),)
    with pytest.raises(ValueError, match="interface must be runtime for several formats, not 'axi'"):
        Config(PlaneFormat("fp16", 16, 20), interface="axi", further=further)
    config = Config(PlaneFormat("fp16", 16, 20), interface="runtime", further=further)
    assert [entry["rounding"] for entry in project.manifest_entry(config, Path("x.v"))["formats"]] == [
        "nearest",
        "truncate",
    ]
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
        (["--interface", "wishbone"], "interface must be one of stream, axi, runtime, not 'wishbone'"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(SystemExit) as stop:
        main(["verilog", *arguments])
    assert re.search(message, str(stop.value))


@pytest.mark.parametrize("command", ["verilog", "library", "synth"])
def test_an_unknown_format_is_named(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--scheme", "zip"])
    assert "argument --scheme: invalid choice: 'zip'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["verilog", "synth"])
def test_a_preset_and_a_format_exclude_each_other(command, capsys):
    with pytest.raises(SystemExit):
        main([command, "--preset", "gpt2-fp32-3.2x", "--block", "32"])
    assert "--preset stands for a whole format" in capsys.readouterr().err


def test_a_missing_compiler_is_one_clear_line(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    command = [sys.executable, "-m", "gen", "library", "--target", "81", "-o", "/nonexistent/library.so"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "python -m gen: no C++ compiler found (no-such-compiler): install g++ or clang++"
    )
