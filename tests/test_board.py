"""The self-test for boards, simulated behind a pseudo-terminal, and what the host does with it."""

import json
import re
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
from filelock import FileLock
from rich.progress import Progress

from gen import provenance
from gen.__main__ import main
from gen.board import bitstream, command, simulation
from gen.board.check import Found, check_compression, check_decompression
from gen.board.device import About, Device
from gen.board.files import Compressed, compress_array, decompress_array, read_array, read_compressed
from gen.board.link import Link, LinkError, Request, open_port
from gen.board.selftest import adversarial, selftest, spoil
from gen.board.signature import signature_of
from golden import HadamardFormat, PlaneFormat
from golden.floats import FLOAT_TYPES
from rtl.selftest import Command, Place

PLANES, HADAMARD = PlaneFormat("fp16", 16, 20), HadamardFormat("fp32", 64, 16)
ABOUT = About.of((PLANES, HADAMARD), bus_bytes=16, memory_bytes=2048)
QUIET = Progress(disable=True)


@pytest.fixture(scope="module")
def program(build):
    folder = build / "board"
    with FileLock(folder.with_suffix(".lock")):
        return simulation.build(ABOUT, folder)


@pytest.fixture(scope="module")
def port(program):
    with simulation.running(program) as name, open_port(name) as opened:
        yield opened


@pytest.fixture
def device(port):
    return Device(Link(port, simulation.PATIENCE))


def test_all_blocks_that_go_through_the_board_are_the_golden_models(device, monkeypatch):
    assert device.about == ABOUT
    runs = []

    def run(device, fmt, *given, **of_request):
        verdict = board_run(device, fmt, *given, **of_request)
        runs.append((fmt, verdict.errors))
        return verdict

    board_run = Device.run
    monkeypatch.setattr(Device, "run", run)
    found = selftest(device, 200, QUIET)
    for fmt, of_format in found.items():
        assert any(of_run == fmt and errors for of_run, errors in runs)  # of blocks that no encoder produces
        assert (of_format.mismatches, of_format.blocks >= 200) == (0, True), fmt
        assert of_format.taken / of_format.cycles > 8  # of 16; short runs have to fill the pipeline
    assert device.link.errors == 0


def test_a_block_that_differs_is_counted(device):
    # The host believes in a design that truncates.
    truncating = PlaneFormat("fp16", 16, 20, rounding="truncate")
    device.about = About.of((truncating, HADAMARD), 16, 2048)
    values = np.zeros((8, 16), np.float16)
    values[5] = np.random.default_rng(0).standard_normal(16)
    assert (PLANES.compress(values) != truncating.compress(values)).any(axis=1).tolist() == [
        i == 5 for i in range(8)
    ]
    found = Found()
    check_compression(device, truncating, values, Place.UNCOMPRESSED, found, first=7)
    assert (found.mismatches, found.blocks) == (1, 8)
    byte = found.first_mismatch.pop("byte")
    expected, seen = (fmt.compress(values[5])[0] for fmt in (truncating, PLANES))
    assert found.first_mismatch == {
        "first": 7,
        "memory": "stored",
        "block": 5,
        "expected": expected.tobytes().hex(),
        "seen": seen.tobytes().hex(),
    }
    assert expected[byte] != seen[byte]


def test_what_a_memory_has_not_kept_is_counted_though_the_checker_agrees(device, monkeypatch):
    values = np.random.default_rng(5).standard_normal((6, 64)).astype(np.float32)
    stored = np.asarray(HADAMARD.compress(values))

    def read(device, place, size):
        content = bytearray(board_read(device, place, size))
        if place == Place.UNCOMPRESSED:
            content[-1] ^= 1
        return bytes(content)

    board_read = Device.read
    monkeypatch.setattr(Device, "read", read)
    for check, of_check in (
        (check_compression, (values, Place.UNCOMPRESSED)),
        (check_decompression, (stored, 0)),
    ):
        found = Found()
        check(device, HADAMARD, *of_check, found)
        assert (found.mismatches, found.blocks) == (1, 6)
        where = [found.first_mismatch[name] for name in ("memory", "block", "byte")]
        assert where == ["uncompressed", 5, 255]


def test_a_signature_is_the_words_as_a_polynomial_modulo_that_of_crc_32():
    def reflected(number):
        return int(f"{number:032b}"[::-1], 2)

    words = np.random.default_rng(6).integers(0, 1 << 32, (40, 4), np.uint32)
    expected = [0] * 4
    for word in words.tolist():
        for lane, bits in enumerate(word):
            product = expected[lane] << 1
            expected[lane] = min(product, product ^ 0x104C11DB7) ^ reflected(bits)
    assert signature_of(words.tobytes(), 16) == tuple(map(reflected, expected))
    for word, lane in np.ndindex(words.shape):
        wrong = words.copy()
        wrong[word, lane] ^= 1 << (5 * word + lane) % 32
        assert signature_of(wrong.tobytes(), 16) != signature_of(words.tobytes(), 16)


@pytest.mark.parametrize("fmt", [PLANES, HADAMARD], ids=lambda fmt: fmt.scheme)
def test_blocks_that_no_encoder_produces_are_zeros_with_errors_on_the_board(device, fmt, monkeypatch):
    rng = np.random.default_rng(4)
    values = adversarial(fmt.float_type, 8 * fmt.block, rng)
    stored, refused = spoil(fmt, fmt.compress(values), rng)
    assert refused.sum() == 1
    for index, block in enumerate(stored):
        if refused[index]:
            with pytest.raises(ValueError, match="no encoder produces"):
                fmt.decompress(block[None], fmt.block)
        else:
            assert (block == fmt.compress(values)[index]).all()
    found = Found()
    given = check_decompression(device, fmt, stored, 0, found, refused).reshape(8, -1)
    assert (found.mismatches, found.blocks) == (0, 8)
    assert not given[refused].view(np.uint8).any()
    assert device.verdict().errors == fmt.original_bytes // 16

    def run(*given, **of_request):
        return replace(board_run(*given, **of_request), errors=0)

    board_run = Device.run
    monkeypatch.setattr(Device, "run", run)  # a board that gives the zeros without saying so
    check_decompression(device, fmt, stored, 0, found, refused)
    assert (found.mismatches, found.blocks) == (1, 16)


@pytest.mark.parametrize("fmt", [PLANES, HADAMARD], ids=lambda fmt: fmt.scheme)
def test_arrays_of_files_come_back_as_the_golden_model_has_them(device, fmt, tmp_path):
    values = np.random.default_rng(1).standard_normal((30, 71)).astype(fmt.float_type.array)
    np.save(tmp_path / "x.npy", values)
    given = read_array(tmp_path / "x.npy")
    found = compress_array(device, given, tmp_path / "x.npz", fmt.scheme, QUIET)
    assert (found.mismatches, found.blocks) == (0, fmt.blocks(values.size))
    found = decompress_array(device, read_compressed(tmp_path / "x.npz"), tmp_path / "y.npy", QUIET)
    assert (found.mismatches, found.blocks) == (0, fmt.blocks(values.size))
    given = np.load(tmp_path / "y.npy").view(values.dtype)
    assert given.tobytes() == fmt.decompress(fmt.compress(values), values.shape).tobytes()


class Noisy:
    """A port that loses a byte of every so many written, and turns a bit of every so many read."""

    def __init__(self, port):
        self._port, self._written, self._read = port, 0, 0

    def write(self, content):
        self._written += 1
        return self._port.write(content[:9] + content[10:] if self._written % 5 == 0 else content)

    def read(self, size=1):
        content = bytearray(self._port.read(size))
        self._read += len(content)
        if content and self._read > 1500:
            self._read = 0
            content[-1] ^= 1
        return bytes(content)


def test_frames_that_are_lost_are_sent_again_and_counted(port):
    device = Device(Link(Noisy(port), 2.0))
    before = device.verdict().lost
    values = np.random.default_rng(2).standard_normal((20, 16)).astype(np.float16)
    found = Found()
    for first in range(4):
        check_compression(device, PLANES, values, Place.UNCOMPRESSED, found, first=first)
    assert (found.mismatches, found.blocks) == (0, 80)
    assert device.link.errors >= 3
    assert Device(Link(port, simulation.PATIENCE)).verdict().lost > before


def test_a_run_that_is_asked_for_again_is_not_done_again(device):
    values = np.random.default_rng(3).standard_normal((4, 16)).astype(np.float16)
    device.write(Place.UNCOMPRESSED, values.tobytes())
    device.run(PLANES, Place.UNCOMPRESSED, values.nbytes)
    device.write(Place.UNCOMPRESSED, values.tobytes())
    run = Request(Command.RUN, Place.UNCOMPRESSED, count=8)
    device.link.ask(run)
    once = device.verdict(), device.read(Place.UNCOMPRESSED, values.nbytes)
    device.link._sequence -= 1
    device.link.ask(Request(Command.READ, Place.ABOUT, count=1))
    device.link._sequence -= 1
    device.link.ask(run)  # the sequence number of the frame before
    assert (device.verdict(), device.read(Place.UNCOMPRESSED, values.nbytes)) == once


def test_formats_that_the_board_has_not_are_named(device, tmp_path):
    with pytest.raises(ValueError, match="has, float16, float32, not float64"):
        compress_array(device, np.zeros(3), tmp_path / "x.npz", None, QUIET)
    fmt = PlaneFormat("bf16", 64, 80)
    with pytest.raises(
        ValueError, match="hadamard of 64 fp32 in 16 bytes, not planes of 64 bf16 in 80 bytes"
    ):
        decompress_array(device, Compressed(fmt, np.zeros((1, 80), np.uint8), (64,)), tmp_path / "y", QUIET)
    device.about = replace(device.about, formats=(HADAMARD,))
    with pytest.raises(ValueError, match="--scheme must be one that the board has, hadamard, not 'planes'"):
        compress_array(device, np.zeros(3, np.float32), tmp_path / "x.npz", "planes", QUIET)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_adversarial_values_are_of_every_class(dtype):
    float_type = FLOAT_TYPES[dtype]
    bits = adversarial(float_type, 32_768, np.random.default_rng(0)).view(float_type.bits)
    exponents = bits >> float_type.mantissa_bits & float_type.exponent_max
    mantissas = bits & float_type.mantissa_mask
    for is_class in (exponents == 0, exponents == float_type.exponent_max):
        assert (is_class & (mantissas == 0)).sum() > 5
        assert (is_class & (mantissas != 0)).sum() > 5
    sign = 1 << float_type.width - 1
    assert {sign, 0} == {int(word) & sign for word in bits[(exponents == float_type.exponent_max)]}


def test_what_is_written_has_the_name_it_is_given_and_replaces_a_file_when_whole(
    device, tmp_path, monkeypatch
):
    values = np.arange(64, dtype=np.float16)
    target = tmp_path / "out.bin"
    compress_array(device, values, target, None, QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["out.bin"]
    before = target.read_bytes()

    def breaks(file, **arrays):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr(np, "savez", breaks)
    with pytest.raises(OSError, match="no space"):
        compress_array(device, values, target, None, QUIET)
    assert [path.name for path in tmp_path.iterdir()] == ["out.bin"]
    assert target.read_bytes() == before


def test_reports_say_what_they_were_made_with(device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    built = {"luts": 9, "luts_of": 100, "block_rams": 4, "block_rams_of": 20, "mhz": 60.0, "clock_mhz": 50.0}
    monkeypatch.setattr(bitstream, "build", lambda *_: built)
    main(["board", "build", "ulx3s-85f"])

    @contextmanager
    def connected(port, about):
        yield device

    monkeypatch.setattr(command, "connected", connected)
    for port, name in (("/dev/none", "selftest-on-board"), ("simulation", "selftest")):
        main(["board", "--port", port, "selftest", "--blocks", "1"])
        assert json.loads((command.ROOT / f"{name}.json").read_text())["simulated"] == (port == "simulation")
    for name in ("ulx3s-85f.json", "selftest.json", "selftest-on-board.json"):
        written = command.ROOT / name
        assert json.loads(written.read_text())
        assert provenance.read(written).keys() == {"commit", "tools"}


def test_a_selftest_that_breaks_off_leaves_no_report_of_the_one_before(device, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command.ROOT.mkdir(parents=True)
    names = ("selftest-on-board-64-hadamard", "selftest-on-board", "selftest-64-hadamard")
    of_board, *of_others = (command.ROOT / f"{name}.json" for name in names)
    for path in (of_board, *of_others):
        path.write_text('{"mismatches": 0}')
    device.about = About.of((HADAMARD,), 64, 2048)

    @contextmanager
    def silent(port, about):
        raise LinkError("the self-test has not answered")
        yield

    @contextmanager
    def connected(port, about):
        yield device

    def breaks_off(*_):
        raise LinkError("the port must stay open")

    monkeypatch.setattr(command, "connected", silent)
    with pytest.raises(SystemExit, match="has not answered"):
        main(["board", "selftest", "--port", "/dev/none"])
    assert of_board.exists()  # no board has answered
    monkeypatch.setattr(command, "connected", connected)
    monkeypatch.setattr(command, "selftest", breaks_off)
    with pytest.raises(SystemExit, match="must stay open"):
        main(["board", "selftest", "--port", "/dev/none"])
    assert not of_board.exists()
    assert all(path.exists() for path in of_others)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--bus-bytes 64", "--bus-bytes must be the board's, 16, not 64"),
        ("--engines planes", "--engines must be the board's, planes and hadamard, not 'planes'"),
    ],
)
def test_engines_that_the_board_has_not_are_named(device, options, message, tmp_path, monkeypatch):
    @contextmanager
    def connected(port, about):
        yield device

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "connected", connected)
    with pytest.raises(SystemExit) as stop:
        main(["board", "--port", "/dev/none", "selftest", *options.split()])
    assert str(stop.value) == f"python -m gen: {message}"
    assert not [*tmp_path.iterdir()]


def test_the_commands_reach_the_board_behind_a_port(program, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "FORMATS", ABOUT.formats)
    values = np.random.default_rng(7).standard_normal((5, 70)).astype(np.float32)
    np.save("x.npy", values)
    with simulation.running(program) as port:
        for line in ("selftest --blocks 20", "compress x.npy", "decompress x.npz"):
            main(["board", "--port", port, *line.split()])
            *_, verdict = capsys.readouterr().out.splitlines()
            assert re.fullmatch(r"0 mismatches in \d+ blocks, 0 frames sent again", verdict)
    given = np.load("x.out.npy")
    assert given.tobytes() == HADAMARD.decompress(HADAMARD.compress(values), values.shape).tobytes()


def test_a_block_that_is_wrong_ends_the_command_and_is_told(program, tmp_path, monkeypatch, capsys):
    def read(device, place, size):
        content = bytearray(board_read(device, place, size))
        if place == Place.STORED:
            content[3] ^= 0x10
        return bytes(content)

    board_read = Device.read
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Device, "read", read)
    np.save("x.npy", np.ones(64, np.float32))
    with simulation.running(program) as port, pytest.raises(SystemExit) as stop:
        main(["board", "--port", port, "compress", "x.npy"])
    assert stop.value.code == 1
    *_, verdict, where = capsys.readouterr().out.splitlines()
    assert verdict == "1 mismatches in 1 blocks, 0 frames sent again"
    assert where.startswith(
        "the first of them: block 0 behind the first, 0, byte 3 in memory 'stored': it must"
    )
