"""Bitstreams of the self-test: clocks, pins, what a build leaves, loading; without place and route."""

import pytest

from gen.__main__ import main
from gen.board import bitstream
from gen.board.device import About
from gen.toolchain import ToolError
from golden import HadamardFormat, PlaneFormat

ABOUT = About.of(
    (PlaneFormat("fp16", 16, 20), HadamardFormat("fp32", 64, 16)), bus_bytes=16, memory_bytes=2048
)


def report(achieved, constraint=50.0):
    clock = {"achieved": achieved, "constraint": constraint}
    used = {"TRELLIS_COMB": {"used": 9, "available": 100}, "DP16KD": {"used": 4, "available": 20}}
    return {"fmax": {"clk": clock}, "utilization": used}


def test_a_clock_that_is_missed_is_an_error():
    assert bitstream.summary(report(60.04), 50e6) == {
        "luts": 9,
        "luts_of": 100,
        "block_rams": 4,
        "block_rams_of": 20,
        "mhz": 60.0,
        "clock_mhz": 50.0,
    }
    assert [bitstream.meets(report(mhz)) for mhz in (50, 49.9)] == [True, False]
    with pytest.raises(ToolError, match=r"clock clk must reach 50\.0 MHz, not 49\.9 MHz"):
        bitstream.summary(report(49.9), 50e6)
    with pytest.raises(ToolError, match=r"a clock must be constrained to 50\.0 MHz"):
        bitstream.summary(report(60, 12), 50e6)


@pytest.mark.parametrize(
    ("board", "bus_bytes", "expected"),
    [
        *((25e6, 16, 50e6), (100e6, 16, 50e6), (12e6, 16, 48e6), (30e6, 16, 50e6)),
        *((25e6, 64, 25e6), (100e6, 64, 25e6), (12e6, 64, 24e6), (25e6, 32, 25e6)),
    ],
)
def test_the_clock_is_made_of_the_boards(board, bus_bytes, expected):
    multiplier, divisor, hz = bitstream.clock_of(board, bus_bytes)
    assert hz == board * multiplier / divisor == expected
    assert board / divisor >= 10e6


def test_boards_have_the_pins_of_amaranth_boards():
    platform = bitstream.platform_of("ulx3s-85f")
    constraints = platform.prepare(bitstream.Board(ABOUT), "board").files["board.lpf"]
    constraints = constraints if isinstance(constraints, str) else constraints.decode()
    for pin, site in (("uart_0__rx__io", "M1"), ("uart_0__tx__io", "L4"), ("clk25_0__io", "G2")):
        assert f'LOCATE COMP "{pin}" SITE "{site}"' in constraints
    assert "25000000.0 HZ" in constraints
    with pytest.raises(ValueError, match=r"board must be one of ulx3s-85f, .*, not 'arty'"):
        bitstream.platform_of("arty")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "make board BOARD=ulx3s-85f$"),
        ("--bus-bytes 16", "make board BOARD=ulx3s-85f$"),
        ("--bus-bytes 64", "make board BOARD=ulx3s-85f ARGS='--bus-bytes 64'$"),
        ("--engines planes", "make board BOARD=ulx3s-85f ARGS='--engines planes'$"),
        ("--engines hadamard --bus-bytes 64", "ARGS='--bus-bytes 64 --engines hadamard'$"),
    ],
)
def test_to_load_names_the_command_that_builds_what_is_missing(options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=said):
        main(["board", *options.split(), "load", "ulx3s-85f"])


def test_a_failed_build_leaves_no_bitstream_to_load(tmp_path, monkeypatch):
    def packs(folder, config, name):
        (folder / name).write_bytes(b"new")

    monkeypatch.setattr(bitstream, "run_yosys", lambda commands, log: None)
    monkeypatch.setattr(bitstream, "run_ecppack", packs)
    monkeypatch.setattr(bitstream, "run_nextpnr", lambda *_: report(60))
    bitstream.build("ulx3s-85f", ABOUT, tmp_path)
    assert [path.name for path in tmp_path.glob("*.bit*")] == ["board.bit"]
    monkeypatch.setattr(bitstream, "run_nextpnr", lambda *_: report(40))
    with pytest.raises(ToolError, match="clock clk must reach"):
        bitstream.build("ulx3s-85f", ABOUT, tmp_path)
    assert not [*tmp_path.glob("*.bit*")]


@pytest.mark.parametrize("board", bitstream.BOARDS)
def test_every_board_is_loaded_by_openfpgaloader(board, tmp_path, monkeypatch):
    (tmp_path / "board.bit").touch()
    (tmp_path / "loader").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/said\n')
    (tmp_path / "loader").chmod(0o755)
    monkeypatch.setenv("OPENFPGALOADER", str(tmp_path / "loader"))
    bitstream.load(board, tmp_path)
    *_, writes, path = (tmp_path / "said").read_text().split()
    assert (writes, path) == ("-m", str(tmp_path / "board.bit"))
    bitstream.load(board, tmp_path, cable="ft4232")
    assert (tmp_path / "said").read_text().split() == ["-c", "ft4232", "-m", str(tmp_path / "board.bit")]


def test_a_loader_that_lacks_the_systems_libraries_says_which(tmp_path, monkeypatch):
    (tmp_path / "board.bit").touch()
    (tmp_path / "loader").write_text("#!/bin/sh\nexit 127\n")
    (tmp_path / "loader").chmod(0o755)
    monkeypatch.setenv("OPENFPGALOADER", str(tmp_path / "loader"))
    with pytest.raises(ToolError, match=r"on Debian: apt install libusb-1\.0-0 libftdi1-2$"):
        bitstream.load("ulx3s-85f", tmp_path)
