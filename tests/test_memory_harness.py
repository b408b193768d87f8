"""Random bursts on a small memory engine, made and checked in C++."""

import pytest

from cocotb_tests.memory import harness

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

    def compress(self, number_of_format, number, raw, stored):
        real(self, number_of_format, number, raw, stored)
        harness._octets(stored, 16)[15] ^= number == 3

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
    assert bypass["read_latency_added"] == 2
    for row in (planes, hadamard):
        assert 8 < row["write_bytes_per_cycle"] <= 16
        assert row["excess_bytes"] < 0.05
        assert 2 < row["read_latency_added"] < 60
