"""The engines in Verilator against golden/: a slice of what ``make sim`` runs in full."""

import pytest

from cocotb_tests import configs, runner
from gen.config import Config
from golden import PlaneFormat
from rtl import Engine

SLICE = [
    Config(PlaneFormat("fp32", 64, 80), bus_bytes=64),
    Config(PlaneFormat("bf16", 16, 7), bus_bytes=64),
    Config(PlaneFormat("fp16", 32, 37, "truncate"), bus_bytes=16),
]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("part", ["compressor", "decompressor"])
@pytest.mark.parametrize("config", SLICE, ids=lambda config: config.slug)
def test_engine_matches_the_golden_model(config, part, activations, build):
    row = runner.run(
        config,
        part,
        build / "sim",
        blocks=600,
        seed=1,
        simulator="verilator",
        waves=False,
        activations=activations,
    )
    assert row.blocks == 600
    assert row.mismatches == 0


@pytest.mark.timeout(900)
def test_a_waveform_is_left_on_request(build):
    config = SLICE[-1]
    runner.run(
        config,
        "compressor",
        build / "waves",
        blocks=100,
        seed=1,
        simulator="verilator",
        waves=True,
        activations=None,
    )
    (wave,) = (build / "waves" / "verilator" / config.slug / "compressor").glob("*.fst")
    assert wave.stat().st_size > 1000


def test_the_spread_has_every_dtype_block_bus_and_rounding():
    formats = [config.fmt for config in configs.ALL]
    assert {fmt.dtype for fmt in formats} == {"fp32", "bf16", "fp16"}
    assert {fmt.block for fmt in formats} == {16, 32, 64, 128}
    assert {fmt.rounding for fmt in formats} == {"nearest", "truncate"}
    assert {config.bus_bytes for config in configs.ALL} == {16, 32, 64, 128}
    assert any(fmt.has_specials_blocks for fmt in formats)
    assert any(fmt.target == fmt.raw_bytes for fmt in formats)


def test_wrong_parameters_are_named():
    with pytest.raises(ValueError, match="fmt must have a fixed target, not None"):
        Engine(PlaneFormat(target=None), 64)
    with pytest.raises(ValueError, match=r"bus_bytes must be one of \(16, 32, 64, 128\), not 48"):
        Engine(PlaneFormat(), 48)
