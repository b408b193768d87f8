"""Random bursts on a small memory engine, made and checked in C++."""

import argparse

import pytest

from cocotb_tests import __main__ as benches
from cocotb_tests import reports
from cocotb_tests.memory import engines, harness
from gen import memory

from .conftest import MEMORY


@pytest.mark.timeout(900)
def test_random_bursts_become_what_the_reference_says(memory_harness):
    run = harness.Harness(memory_harness, MEMORY.formats, seed=1, latency=12)
    bursts, mismatches = run.run(sequential=800, concurrent=800)
    assert mismatches == [0, 0, 0], run.message
    assert sum(bursts) >= 1600
    assert min(bursts) > 300


@pytest.mark.timeout(900)
def test_a_wrong_bit_of_a_block_is_found(memory_harness, monkeypatch):
    real = harness._Codecs._compress

    def compress(self, number_of_format, number, original, stored):
        real(self, number_of_format, number, original, stored)
        harness._octets(stored, 16)[15] ^= number % 4 == 3

    monkeypatch.setattr(harness._Codecs, "_compress", compress)
    for name in ("sequential", "concurrent"):
        run = harness.Harness(memory_harness, MEMORY.formats, seed=2, latency=3)
        _, mismatches = run.run(**{"sequential": 0, "concurrent": 0, name: 300})
        assert sum(mismatches[:2]) > 0, name
        assert ("memory at 0x" in run.message) or (" in lane " in run.message)


@pytest.mark.timeout(900)
def test_rates_and_latency_are_measured(memory_harness):
    run = harness.Harness(memory_harness, MEMORY.formats, seed=3, latency=harness.LATENCY)
    planes, hadamard, bypass = (run.measure(region) for region in range(3))
    assert bypass["read_bytes_per_cycle"] > 0.98 * 16
    assert bypass["write_bytes_per_cycle"] > 0.98 * 16
    assert bypass["read_latency_added"] == 3
    for row in (planes, hadamard):
        assert 8 < row["write_bytes_per_cycle"] <= 16
        assert row["excess_bytes"] < 0.05
        assert 2 < row["read_latency_added"] < 60


def test_rows_are_kept_until_something_changes(memory_harness, monkeypatch, tmp_path):
    built = []
    monkeypatch.setitem(harness.ALL, "tiny", MEMORY)
    monkeypatch.setattr(harness, "build", lambda parameters, folder: built.append(folder) or memory_harness)
    place = tmp_path / "harness" / "tiny"
    place.mkdir(parents=True)
    rows = [harness.run("tiny", tmp_path, bursts=400, seed=seed) for seed in (1, 1, 2)]
    assert built == [place, place]
    assert rows[0] == rows[1]
    assert rows[0] != rows[2]


def test_bursts_of_both_benches_are_added(monkeypatch, tmp_path):
    regions = {"small": ("planes", "bypass")}
    regions |= dict.fromkeys(memory.PRESETS, ("planes", "hadamard", "bypass"))

    def run(name, folder, *, bursts, seed):
        return [{"config": name, "region": region, "bursts": bursts} for region in regions[name]]

    monkeypatch.setattr(harness, "SHARES", dict.fromkeys(regions, 0.1))
    monkeypatch.setattr(harness, "run", run)
    monkeypatch.setattr(engines, "run_cocotbext", lambda name, folder, *, bursts, seed: [bursts, 2, 3])
    monkeypatch.setattr(benches, "_run_all", lambda calls, jobs, text: [call() for call in calls])
    monkeypatch.setattr(type(reports.MEMORY), "show", lambda report, rows: None)
    rows = benches._sim_memory(argparse.Namespace(blocks=100, seed=1, jobs=1, engines=None), tmp_path)
    assert [row["bursts"] for row in rows] == [1000, 1000, *[1100, 1002, 1003] * len(memory.PRESETS)]
    assert [row["bursts_cocotbext"] for row in rows] == [0, 0, *[100, 2, 3] * len(memory.PRESETS)]
