"""The memory engine in Verilator: a small one against the model."""

import pytest

from cocotb_tests import memory


@pytest.mark.timeout(900)
def test_the_engine_does_what_the_model_says(build):
    notes = memory.run("bypass", build / "sim", bursts=60, seed=1)
    assert sum(note.get("bursts", 0) for note in notes) > 60
    (rates,) = [note["rates"] for note in notes if "rates" in note]
    assert min(rates["bypass_1024"]["read"], rates["bypass_1024"]["write"]) > 0.98 * 16
    (latency,) = [note["latency"] for note in notes if "latency" in note]
    assert latency["bypass"]["there"] + latency["bypass"]["back"] == 2
