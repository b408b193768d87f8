"""The formal proofs: the plain description agrees with golden/, and a slice of the proofs ends as it must."""

import json
from dataclasses import replace
from fnmatch import fnmatch

import numpy as np
import pytest
from amaranth import Module, Signal
from amaranth.sim import Simulator

from gen.__main__ import main
from gen.formal import all_proofs, prove
from gen.formal.faults import FAULTS
from gen.formal.hadamard import PlainBlock, TinyHadamard
from gen.formal.headers import is_valid
from gen.formal.plain import Plain
from gen.formal.roundtrip import TinyFormat
from golden import PlaneFormat

FORMATS = [
    fmt
    for rounding in ("nearest", "truncate")
    for fmt in (
        *(TinyFormat(block=8, target=target, rounding=rounding) for target in (4, 5, 6, 8)),
        *(TinyFormat(block=16, target=target, rounding=rounding) for target in (6, 7, 9, 11, 14, 16)),
        PlaneFormat("bf16", 16, 12, rounding),
        PlaneFormat("fp16", 16, 7, rounding),
        PlaneFormat("fp32", 16, 21, rounding),
    )
]


def blocks(fmt, count, seed):
    """Random blocks in which some bits are the same in all values, so that planes are dropped."""
    ft = fmt.float_type
    rng = np.random.default_rng(seed)
    bits, free, ones = (rng.integers(0, 1 << ft.width, (count, n), dtype=ft.bits) for n in (fmt.block, 1, 1))
    free |= rng.integers(0, 1 << ft.width, (count, 1), dtype=ft.bits)
    return bits & free | ones & ~free


def plainly(fmt, words):
    """What the plain description says comes back."""
    plain = Plain(fmt)
    rows = []

    async def process(context):
        for row in words:
            context.set(plain.x, [int(word) for word in row])
            rows.append([int(word) for word in context.get(plain.y)])

    simulator = Simulator(plain)
    simulator.add_testbench(process)
    simulator.run()
    return np.array(rows, fmt.float_type.bits)


@pytest.mark.parametrize("fmt", FORMATS, ids=repr)
def test_the_plain_description_says_what_golden_does(fmt):
    words = blocks(fmt, 100, seed=fmt.target)
    values = words.view(fmt.float_type.array)
    golden = fmt.decompress(fmt.compress(values), values.shape).view(fmt.float_type.bits)
    assert (plainly(fmt, words) == golden).all()


@pytest.mark.parametrize("fmt", FORMATS, ids=repr)
def test_the_plain_rule_of_headers_is_goldens(fmt):
    words = blocks(fmt, 300, seed=fmt.target)
    headers = fmt.compress(words.view(fmt.float_type.array))[:, : fmt.header_bytes]
    rng = np.random.default_rng(0)
    headers = np.concatenate([headers, headers ^ (1 << rng.integers(0, 16, headers.shape)).astype(np.uint8)])
    headers[-1] = 0
    header, valid = Signal(8 * fmt.header_bytes), Signal()
    m = Module()
    m.d.comb += valid.eq(is_valid(fmt, header))
    found = []

    async def process(context):
        for row in headers:
            context.set(header, int.from_bytes(row.tobytes(), "little"))
            found.append(bool(context.get(valid)))

    simulator = Simulator(m)
    simulator.add_testbench(process)
    simulator.run()
    assert 0 < sum(found) < len(found)
    assert found == (~fmt.check_headers(headers)).tolist()


def test_tiny_formats_are_held_to_what_they_have_room_for():
    with pytest.raises(ValueError, match=r"block must be one of \(8,\), not 16"):
        TinyHadamard(block=16)
    with pytest.raises(ValueError, match=r"target must be from 2 \(the header\) to 4 bytes .*, not 1"):
        TinyHadamard(target=1)


@pytest.mark.parametrize("fmt", [TinyHadamard("bf16"), TinyHadamard("fp16", target=4)], ids=repr)
def test_the_plain_description_of_a_hadamard_block_is_goldens(fmt):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 256, (100, fmt.target), dtype=np.uint8)
    rows[:20] = np.c_[np.arange(20), rows[:20, 1] & 0xF0, rows[:20, 2:]]  # zeros, specials, invalid headers
    numbers = rng.integers(0, 1 << 32, len(rows)).tolist()
    plain = PlainBlock(fmt)
    found, errors = [], []

    async def process(context):
        for row, number in zip(rows, numbers, strict=True):
            context.set(plain.stored, int.from_bytes(row.tobytes(), "little"))
            context.set(plain.number, number)
            found.append([int(word) for word in context.get(plain.y)])
            errors.append(bool(context.get(plain.error)))

    simulator = Simulator(plain)
    simulator.add_testbench(process)
    simulator.run()
    assert errors == [2 <= i < 16 for i in range(20)] + errors[20:]
    for row, number, words, error in zip(rows, numbers, found, errors, strict=True):
        if error:
            with pytest.raises(ValueError, match="no encoder produces the header"):
                fmt.decompress(row[None], fmt.block, number)
        else:
            values = fmt.decompress(row[None], fmt.block, number)
            assert words == values.view(fmt.float_type.bits).tolist()


def test_something_looks_for_every_fault():
    sought = {proof.parameters for proof in all_proofs() if proof.finds}
    assert not set(FAULTS.values()) - sought


@pytest.mark.parametrize(
    "names",
    [
        ["contract-*-bf16_n16*-prove", "contract-*bytes-prove"],
        ["*-Stage-*", "every_x-*held_against_nearest-bmc", "every_header-*-1_3_4_bits*"],
        ["order-Joiner-*", "never_hangs-Decompressor-fp16_*"],
        ["contract-AsyncFifo-*", "order-AsyncFifo-*ahead*", "order-*Slice-*", "number*AsyncFifo-*"],
        ["every_block-HadamardTransform-*"],
    ],
    ids=["contracts", "faults", "all time", "stream parts", "Hadamard"],
)
def test_proofs_end_as_they_must(names, build):
    proofs = [proof for proof in all_proofs() if any(fnmatch(proof.name, name) for name in names)]
    results = prove(proofs, build / "formal", jobs=1)
    assert len(results) >= len(names)
    assert not [result for result in results if not result.is_good]


def test_what_was_proven_of_the_same_harness_is_kept(tmp_path):
    (proof, *_) = (proof for proof in all_proofs() if fnmatch(proof.name, "contract-Splitter-*-prove"))
    (first,) = prove([proof], tmp_path)
    log = tmp_path / proof.name / "log"
    log.unlink()
    assert prove([proof], tmp_path, keep=True) == [first]
    assert not log.exists()
    assert prove([replace(proof, depth=proof.depth + 1)], tmp_path, keep=True)[0].is_good
    assert log.exists()
    log.unlink()
    prove([proof], tmp_path)
    assert log.exists()


def test_the_report_says_what_was_proven_and_how_far(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    main(["formal", "contract-Splitter-*"])
    rows = json.loads((tmp_path / "build/formal/report.json").read_text())
    extents = {row["extent"]: row["status"] for row in rows}
    assert extents == {"inductive, k = 2": "PASS", "reached within 16 cycles": "PASS"}
    assert "Splitter" in capsys.readouterr().out


def test_a_name_that_no_proof_has_is_an_error():
    with pytest.raises(SystemExit, match="name must be of a proof, not 'contract-Nothing'"):
        main(["formal", "contract-Nothing"])
