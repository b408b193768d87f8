"""Verilog for people: what it says of its source, and that it is the design that Amaranth writes."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from amaranth import C, Cat, Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from gen import netlist, readable, toolchain, verilog
from gen.config import Config
from gen.readable import sources
from gen.yosys import run_yosys
from golden import HadamardFormat, PlaneFormat

ROOT = Path(__file__).parent.parent
PLANES = Config(PlaneFormat("fp16", 16, 20), bus_bytes=16)
HADAMARD = Config(HadamardFormat("fp16", 64, 13), bus_bytes=16)


class Everything(wiring.Component):
    """Has what the engines have little of. And a second sentence.

    Members:
        key: which case.
        a, b: numbers.
    """

    key: In(3)
    a: In(8)
    b: In(8)
    cases: Out(8)
    shifted: Out(8)
    part: Out(4)
    moved: Out(8)
    less: Out(1)
    read: Out(8)
    word: Out(8)
    looked_up: Out(8)
    state: Out(3)
    nothing: Out(2)

    def elaborate(self, platform):
        m = Module()
        m.submodules.words = words = memory.Memory(shape=8, depth=8, init=[1, 2, 255])
        write = words.write_port(granularity=4)
        later = words.read_port(transparent_for=(write,))
        now = words.read_port(domain="comb")
        m.submodules.table = table = memory.Memory(shape=8, depth=8, init=[3, 1, 4, 1, 5])
        entry = table.read_port(domain="comb")
        state = Signal(3, init=5)
        with m.Switch(self.key):
            with m.Case(0):
                m.d.comb += self.cases.eq(self.a)
            with m.Case(1, 2):
                m.d.comb += self.cases[4:].eq(self.b)
            with m.Case("1-0"):
                m.d.comb += self.cases.eq(self.a + self.b)
                with m.If(self.a[0]):
                    m.d.comb += self.cases[:2].eq(3)
            with m.Default():
                m.d.comb += self.cases.eq(0x5A)
        with m.If(self.a[1]):
            m.d.sync += state.eq(state + 1)
        with m.Elif(self.a[2]):
            m.d.sync += state[1:].eq(self.key)
        with m.Else():
            m.d.sync += state.eq(Mux(self.b[0], self.key, state))
        m.d.comb += [
            self.state.eq(state),
            self.shifted.eq(Cat(self.a << self.key) >> self.b[:2]),
            self.part.eq(Cat(self.a, self.b).bit_select(self.key, 4)),
            self.moved.eq(self.a.as_signed() >> self.key),
            self.less.eq((self.a.as_signed() < self.b.as_signed()) ^ (self.a < self.b)),
            write.addr.eq(self.key),
            write.data.eq(self.a),
            write.en.eq(self.b[:2]),
            later.addr.eq(self.b),
            later.en.eq(self.a[0]),
            self.read.eq(later.data),
            now.addr.eq(self.b[1:]),
            self.word.eq(now.data),
            entry.addr.eq(self.key),
            self.looked_up.eq(entry.data),
            self.nothing.eq(Cat(Cat().all(), Cat().any() | C(0, 1))),
        ]
        return m


def is_equal(one: str, other: str, top: str, folder: Path) -> bool:
    """Whether ABC proves two designs to give the same for all time."""
    aiger = folder / "miter.aig"
    commands = []
    for name, text in (("one", one), ("other", other)):
        path = folder / f"{name}.v"
        path.write_text(text)
        commands += [f"read_verilog {path}", f"hierarchy -top {top}", "proc -norom", "flatten", "memory_map"]
        commands += ["opt_clean", f"rename {top} {name}_top", f"design -stash {name}"]
    commands += [f"design -copy-from {name} -as {name} {name}_top" for name in ("one", "other")]
    commands += [
        "miter -equiv -flatten one other miter",
        "hierarchy -top miter",
        "opt",
        "simplemap",
        "techmap",
    ]
    commands += ["opt", "dfflegalize -cell $_DFF_P_ 0", "setundef -zero", "aigmap", "opt_clean -purge"]
    run_yosys([*commands, f"write_aiger {aiger}"], folder / "miter.log")
    sweep = f"&r {aiger}; &put; lcorr; scorr; print_stats; pdr -T 60"
    said = toolchain.run([str(netlist.ABC), "-q", sweep], folder / "abc.log")
    # No gate is left if the sweep merged the two.
    return "Property proved" in said or re.search(r"and =\s+0\b", said) is not None


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("config", "part"), [(PLANES, "compressor"), (PLANES, "decompressor"), (HADAMARD, "decompressor")]
)
def test_it_is_proven_to_be_what_amaranth_writes(config, part, tmp_path):
    top = verilog.module_name(config, part)
    written = verilog.readable_text(config, part), verilog.verilog_text(config, part)
    assert is_equal(*written, top, tmp_path)


def test_so_is_a_component_of_everything(tmp_path):
    written = [convert(Everything(), "top") for convert in (verilog.convert_readable, verilog.convert)]
    assert is_equal(*written, "top", tmp_path)


def test_the_proof_finds_another_constant(tmp_path):
    text = verilog.convert_readable(Everything(), "top")
    assert "8'd5;" in text
    assert not is_equal(text, text.replace("8'd5;", "8'd6;"), "top", tmp_path)


def test_a_module_says_what_it_is_and_where_it_comes_from():
    text = verilog.readable_text(PLANES, "compressor")
    modules = text.split("endmodule\n")[:-1]
    assert len(modules) == text.count("\nmodule ") + text.startswith("module ") == 8
    for module in modules:
        head = r"// (\w+): .*\n(?:// .*\n)*?// Source: (\S+):\d+\nmodule "
        title, source = re.search(head, module).groups()
        assert f"class {title}(" in (ROOT / source).read_text()
    assert "// Scanner: Quiets NaNs, keeps the words for later" in text
    assert "  // the compressed blocks end to end. The next tensor starts on a new word.\n" in text
    assert "// i_payload: data [127:0], last [128], empty [132:129]\n" in text


def test_statements_follow_a_line_of_their_source():
    text = verilog.readable_text(PLANES, "compressor")
    places = Counter(re.findall(r"^  // (\S+\.py):(\d+)$", text, re.MULTILINE))
    assert len(places) > 50
    for file, line in places:
        assert int(line) <= len((ROOT / file).read_text().splitlines())


def test_nothing_has_a_number_for_a_name():
    text = verilog.readable_text(PLANES, "compressor")
    assert not re.findall(r"\bn\d+\b|\\|\$(?!signed|unsigned)", text)
    assert "nan3" in text


def test_combinational_logic_needs_no_event_to_begin():
    """Some simulators wake each ``always @*`` at the beginning, others do not."""
    for config in (PLANES, HADAMARD):
        text = verilog.readable_text(config, "decompressor")
        assert set(re.findall(r"always @\((\w+)", text)) == {"posedge"}


def test_it_is_the_same_in_every_process_and_folder(tmp_path):
    command = (
        "from tests.test_readable_verilog import *; print(verilog.readable_text(PLANES, 'decompressor'))"
    )
    texts = set()
    for seed, folder in (("1", ROOT), ("2", tmp_path)):
        done = subprocess.run(
            [sys.executable, "-c", command],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        texts.add(done.stdout)
    assert len(texts) == 1
    assert texts.pop().strip() == verilog.readable_text(PLANES, "decompressor").strip()


def test_a_docstring_gives_its_first_sentence_and_its_members():
    line = next(
        n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if "m = Module" in text
    )
    found = sources.component(f"{ROOT}/tests/test_readable_verilog.py:{line}")
    assert (found.name, found.summary) == ("Everything", "Has what the engines have little of.")
    assert found.member("b") == "numbers."
    assert found.member("other") == ""


def test_a_cell_that_it_does_not_know_is_named():
    text = "module \\top\nwire width 1 output 0 \\y\ncell $pow $1\nconnect \\Y \\y\nend\nend\n"
    with pytest.raises(ValueError, match=r"cell must be one that .*, not '\$pow'"):
        readable.verilog(text)
