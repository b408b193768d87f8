"""What coverage says of the places that benches did not reach."""

import pytest

from cocotb_tests.code_coverage import CodeCoverage, waiver
from gen.config import PRESETS


def test_a_row_counts_what_was_missed_by_its_reason():
    found = CodeCoverage(
        "gpt2-fp32-16x",
        "compressor",
        lines=200,
        lines_reached=199,
        toggles=1000,
        toggles_reached=900,
        constant=7,
        missed={"aligner.a": 1, "scaler.b": 2, "scaler.c.d": 3},
        waived={"aligner.a": "of a borrow"},
    )
    row = found.as_row()
    assert row["lines_percent"] == 99.5
    assert row["toggles_percent"] == 90
    assert row["missed"] == "1 of a borrow; 5 without a reason, in scaler"
    assert found.complaints() == [
        "gpt2-fp32-16x compressor: 90.0 % reached",
        "gpt2-fp32-16x compressor: scaler.b was not reached",
        "gpt2-fp32-16x compressor: scaler.c.d was not reached",
    ]


@pytest.mark.parametrize(
    ("preset", "place", "reason"),
    [
        ("gpt2-fp32-16x", "quantiser.threshold_of3_6", "of a threshold's highest bit"),
        ("gpt2-fp32-16x", "aligner.below6_inverse", "of a difference's borrow"),
        ("gpt2-fp32-16x", "quantiser.found", None),
        ("gpt2-fp32-16x", "scaler.undivided.rest", "of a dividend's lowest bits"),
        ("gpt2-bf16-8x", "aligner.rounded3_carry7", "of a rounding's carry"),
        ("gpt2-bf16-8x", "aligner.rounded3_carry6", None),
        ("gpt2-fp32-16x", "aligner.rounded3_carry7", None),
        ("gpt2-bf16-2x", "coder.planes[1]", "of delta bits"),
        ("gpt2-bf16-2x", "quantiser.threshold_of3_6", None),
    ],
)
def test_only_places_of_its_own_format_have_a_reason(preset, place, reason):
    found = waiver(PRESETS[preset], "compressor", place)
    assert (found or "").startswith(reason or "")
    assert (found is None) == (reason is None)
