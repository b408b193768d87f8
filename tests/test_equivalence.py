"""Which faults are told to be none, on small engines that have them in their Verilog."""

import pytest

from gen import aiger, equivalence
from gen.netlist import Mutant

STREAMS = """
module top(
  input clk, input rst, input [2:0] mutant,
  input a_valid, output a_ready, input [3:0] a_payload,
  output y_valid, input y_ready, output [3:0] y_payload
);
  reg full = 0, odd = 0; reg [3:0] held = 0;
  assign a_ready = ~full | y_ready, y_valid = full;
  wire takes = a_valid & a_ready;
"""


def judge(tmp_path, body, number, seconds=2):
    path = tmp_path / "engine.v"
    path.write_text(f"{STREAMS}{body}\nendmodule\n")
    return equivalence.judge(path, Mutant(number, "", "", "", "", ""), seconds)


STAGE = """
  assign y_payload = mutant == 1 ? {4{full}} & held : mutant == 2 ? held ^ 1 : held;
  always @(posedge clk) begin
    full <= ~rst & (takes | (full & ~(y_ready | (mutant == 3 & odd))));
    if (takes) held <= mutant == 4 ? a_payload + full : a_payload;
    odd <= ~rst & (mutant == 5) & (odd | (full & ~full));
  end
"""


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, (False, None)),  # a payload does not count while it is not valid
        (2, (True, None)),
        (3, (False, None)),  # a register that is always 0
        (4, (True, None)),
        (5, (False, None)),
        (0, (False, None)),
    ],
)
def test_a_stage(number, expected, tmp_path):
    assert judge(tmp_path, STAGE, number) == expected


WAITS = """
  // The first half of a word, then the second: in between the word stays as it is.
  reg half = 0; reg [3:0] seen = 0;
  assign y_payload = mutant == 1 & half ? seen : a_payload, y_valid = a_valid, a_ready = half & y_ready;
  always @(posedge clk) begin
    half <= ~rst & (a_valid & y_ready ? ~half : half);
    if (a_valid & y_ready & (~half | mutant == 2)) seen <= a_payload;
    full <= 0;
  end
"""


@pytest.mark.parametrize("number", [1, 2])
def test_inputs_keep_the_rules_of_streams(number, tmp_path):
    body = WAITS.replace("assign", "wire unused; assign")
    text = f"{STREAMS.replace('assign a_ready = ~full | y_ready, y_valid = full;', '')}{body}\nendmodule\n"
    path = tmp_path / "engine.v"
    path.write_text(text)
    assert equivalence.judge(path, Mutant(number, "", "", "", "", ""), 5) == (False, None)


def test_what_was_found_is_kept_for_the_same_engine_only(tmp_path, monkeypatch):
    assert judge(tmp_path, STAGE, 2).differs
    with monkeypatch.context() as patched:
        patched.setattr(equivalence, "_compare", None)
        assert judge(tmp_path, STAGE, 2).differs
    assert judge(tmp_path, STAGE.replace("held ^ 1", "held ^ 0"), 2).is_equivalent


def test_a_search_says_how_far_it_came(tmp_path):
    """A counter that no proof comes to the end of, and no search in a second."""
    body = """
  reg [63:0] count = 1;
  assign y_payload = mutant == 1 & &count[63:30] ? ~held : held;
  always @(posedge clk) begin
    count <= count * 64'd6364136223846793005 + 64'd1442695040888963407;
    full <= ~rst & (takes | (full & ~y_ready));
    if (takes) held <= a_payload;
  end
"""
    verdict = judge(tmp_path, body, 1, seconds=1)
    assert not verdict.differs
    assert verdict.cycles > 0


def test_graphs_are_written_and_read_again(tmp_path):
    builder = aiger.Builder(300, 2)
    a, b = builder.inputs[0], builder.inputs[299]
    some = builder.differ(a, builder.both(b, builder.latches[1]))
    builder.graph.latches = [some, builder.any([a, b ^ 1, some])]
    builder.graph.outputs = [some ^ 1, 0, 1]
    aiger.write(tmp_path / "graph.aig", builder.graph)
    assert aiger.read(tmp_path / "graph.aig") == builder.graph


def test_gates_with_constants_are_none():
    builder = aiger.Builder(2, 0)
    a, b = builder.inputs
    assert [builder.both(*pair) for pair in ((a, 0), (1, a), (a, a), (a, a ^ 1))] == [0, a, a, 0]
    assert [builder.any([]), builder.any([b]), builder.differ(a, a), builder.differ(a, 1)] == [0, b, 0, a ^ 1]
    assert builder.both(a, b) == builder.both(b, a)
    assert len(builder.graph.gates) == 1


def test_a_latch_that_does_not_begin_with_0_is_refused(tmp_path):
    (tmp_path / "graph.aig").write_bytes(b"aig 1 0 1 0 0\n2 1\n")
    with pytest.raises(ValueError, match="must begin with 0, not '2 1'"):
        aiger.read(tmp_path / "graph.aig")
