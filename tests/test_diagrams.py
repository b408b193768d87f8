"""docs/hardware.md shows what the engines do."""

import pytest

from gen import diagrams


@pytest.mark.parametrize("name", diagrams.SCENARIOS)
def test_the_timing_diagram_is_what_the_engine_does(name):
    source = diagrams.record(diagrams.SCENARIOS[name])
    assert (diagrams.FOLDER / f"{name}.json").read_text() == source, "out of date: make diagrams"
    assert (diagrams.FOLDER / f"{name}.svg").read_text() == diagrams.render(source), (
        "out of date: make diagrams"
    )
