"""The tables of a named node, from a small record; and what ``python -m bench.node`` refuses."""

import re

import pytest

from bench import node
from gen.synth import sta

PLACES = ("datasheet", "node", "node memories", "node rivals")
SIZED = {
    "area": 3000.0,
    "period_with_wires_ps": 800.0,
    "leakage_mw": 0.0042,
    "pj_per_byte": 0.125,
    "clock_pj_per_byte": 0.05,
}
SMALL = {"area": 2000.0, "period_ps": 500.0, "period_with_wires_ps": 1000.0, "leakage_mw": 0.002}


def engine(part, **sized):
    row = {"preset": "gpt2-fp32-16x", "part": part, "bus_bytes": 64, "memories": []}
    return row | {"smallest": SMALL, "sized": SIZED | sized}


MEMORIES = [
    {"width": 100, "depth": 32, "reads": 1, "clocked": True},
    {"width": 10, "depth": 4, "reads": 2, "clocked": False},
]
RESULTS = {
    "library": "asap7_x",
    "node": {"name": "ASAP7, predictive", "memory_bit": 0.05},
    "flip_flop_um2": 0.3,
    "tools": {"yosys": "pyosys 1", "opensta": "2"},
    "activity": "arrays.npz",
    "rows": [
        engine("compressor"),
        engine("decompressor", area=1000.0, pj_per_byte=0.25),
        engine("memory engine", pj_per_byte=None, clock_pj_per_byte=None)
        | {"preset": "gpt2-fp32-memory-64", "kge": 60.0, "memories": MEMORIES},
    ],
}


@pytest.fixture
def text(tmp_path, monkeypatch):
    monkeypatch.setattr(node, "FOLDER", tmp_path)
    places = "".join(f"<!-- {name} -->\n<!-- end -->\n" for name in PLACES)
    (tmp_path / "hardware.md").write_text(places)
    node.document(RESULTS)
    return (tmp_path / "hardware.md").read_text()


def test_an_engine_has_areas_clocks_leakage_and_energy(text):
    assert "`asap7_x`, ASAP7, predictive; pyosys 1, OpenSTA 2; activity: arrays.npz." in text
    row = "0.0020 | 2.00 | 1.00 | 0.0030 | 1.25 | 4.2 | 0.125 | 0.050 |"
    assert f"| gpt2-fp32-16x | 64 | compressor | {row}" in text
    assert (
        "| gpt2-fp32-memory-64 | 64 | memory engine | 0.0020 | 2.00 | 1.00 | 0.0030 | 1.25 | 4.2 |  |  |"
        in text
    )


def test_the_first_table_has_what_an_architect_asks(text):
    title = (
        "| engine | bytes a cycle | latency, cycles | logic, kGE | memories, kbit | mm² | GHz | pJ a byte |"
    )
    assert title in text
    figures = r"64 \| 34 \| \d+\.\d \| none \| 0\.0030 \| 1\.25 \| 0\.125 \|"
    assert re.search(rf"\| `gpt2-fp32-16x`, 64 bytes, compressor \| {figures}", text)
    # 3,000 square micrometres of logic and 3,240 bits of 0.05 each.
    assert (
        "| `gpt2-fp32-memory-64`, 64 bytes, memory engine | 64, 64, 64, each way | 3, 8, 11, added to a read "
        "| 60.0 | 3.2 | 0.0032 | 1.25 |  |" in text
    )


def test_memories_are_counted_by_the_rule(text):
    assert "| gpt2-fp32-memory-64 | 60.0 | 0.0030 | 3,240 | 40 | 0.0002 | 0.0010 |" in text
    assert "| gpt2-fp32-16x | 60" not in text


def test_both_engines_stand_beside_the_others(text):
    ours = "| `gpt2-fp32-16x`, both engines | ASAP7 | lossy, 16x, size fixed | 0.004 | 64 | 0.062 | 0.25 |  |"
    assert ours in text
    assert "| 3.8 | 8,000 | 0.475 |  |  |" in text
    assert "| 0.04 | 77 | 0.521 | 0.74 | 21 cycles |" in text


@pytest.mark.parametrize(
    ("liberty", "message"),
    [
        ("", "needs a cell library: set LIBERTY"),
        ("absent.lib", r"LIBERTY must be a cell library's file, not 'absent\.lib'"),
        ("tests/tiny.lib", "LIBERTY must be a library of asap7sc7p5t, not 'tiny'"),
    ],
)
def test_a_wrong_library_is_named(liberty, message, monkeypatch):
    monkeypatch.setenv("LIBERTY", liberty)
    monkeypatch.setattr("sys.argv", ["node"])
    with pytest.raises(SystemExit, match=message):
        node.main()


def test_without_opensta_nothing_is_measured(monkeypatch):
    monkeypatch.setattr(sta, "version", lambda: None)
    monkeypatch.setattr(node, "node_of", lambda texts: ("x", None))
    monkeypatch.setattr("sys.argv", ["node"])
    monkeypatch.setenv("LIBERTY", "tests/tiny.lib")
    with pytest.raises(SystemExit, match="no sta found"):
        node.main()
