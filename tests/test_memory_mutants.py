"""Mutants of what has memories, on a queue: which of them are proven to be no fault."""

import re
from dataclasses import replace

import pytest
from amaranth import Module
from amaranth.back import rtlil
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from cocotb_tests.memory import mutants
from gen import cut, netlist
from rtl.memory.queue import Queue

COUNT = 60


@pytest.fixture
def queue(tmp_path):
    path = tmp_path / "engine.v"
    mutants._write_mutants(rtlil.convert(Queue(4, 4), name="queue"), "queue", path, COUNT, seed=5)
    return path


def test_mutants_are_in_the_memory_and_around_it_and_one_is_selected(queue):
    found = netlist.read_mutants(queue)
    assert [mutant.number for mutant in found] == [*range(1, COUNT + 1)]
    assert {mutant.port.partition("[")[0] for mutant in found} >= {"DATA", "EN", "Y", "Q"}
    assert re.search(r"input \[5:0\] mutant;", queue.read_text())


def test_no_mutant_is_in_a_codec_whatever_its_number(tmp_path):
    class TwoQueues(wiring.Component):
        i: In(stream.Signature(4))
        o: Out(stream.Signature(4))

        def elaborate(self, platform):
            m = Module()
            m.submodules.compressor1 = first = Queue(4, 4)
            m.submodules.second = second = Queue(4, 4)
            wiring.connect(m, wiring.flipped(self.i), first.i)
            wiring.connect(m, first.o, second.i)
            wiring.connect(m, second.o, wiring.flipped(self.o))
            return m

    path = tmp_path / "engine.v"
    mutants._write_mutants(rtlil.convert(TwoQueues(), name="top"), "top", path, COUNT, seed=5)
    found = (tmp_path / "engine.mutations").read_text()
    assert "second" in found
    assert "compressor1" not in found


def test_what_changes_nothing_is_proven_equal(queue):
    (first, *_) = netlist.read_mutants(queue)
    assert cut.is_equivalent(queue.with_suffix(".mutants.il"), replace(first, number=0))


def test_another_engine_in_the_same_place_is_compared_anew(queue):
    """What was found of an engine says nothing of the next one of the same ports."""
    path, (first, *_) = queue.with_suffix(".mutants.il"), netlist.read_mutants(queue)
    before = cut._model(path, path.read_text()).key
    path.write_text(path.read_text() + "\n")
    assert cut._model(path, path.read_text()).key != before
    assert cut.is_equivalent(path, replace(first, number=0))


def test_a_fault_at_each_port_of_the_memory_is_seen(queue):
    inverting = [mutant for mutant in netlist.read_mutants(queue) if mutant.mode == "inv"]
    found = {mutant.port.partition("[")[0]: mutant for mutant in inverting}
    for port in ("DATA", "EN"):
        assert not cut.is_equivalent(queue.with_suffix(".mutants.il"), found[port]), port


def test_a_payload_counts_only_while_it_is_offered():
    outputs = ["m_axi_awvalid", "m_axi_awaddr", "s_axi_awready", "a.o__payload", "a.o__valid", "irq"]
    outputs += ["q.memory.WR_EN", "q.memory.WR_DATA", "q.memory.RD_EN", "q.memory.RD_ADDR"]
    when = {name: [*cut._when(name, outputs)] for name in outputs}
    assert when["m_axi_awaddr"] == ["m_axi_awvalid"]
    assert when["a.o__payload"] == ["a.o__valid"]
    assert when["q.memory.WR_DATA"] == ["q.memory.WR_EN"]
    assert when["q.memory.RD_ADDR"] == ["q.memory.RD_EN"]
    for name in ("m_axi_awvalid", "s_axi_awready", "irq", "q.memory.WR_EN"):
        assert when[name] == []
