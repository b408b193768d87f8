"""docs/format.md's worked block of the bit-plane format is what the page says, for every codec there is."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from golden import PlaneFormat

from . import reference

PAGE = (Path(__file__).parents[1] / "docs" / "format.md").read_text(encoding="utf-8")
WORKED = PAGE[PAGE.index("## A worked block") : PAGE.index("# The Hadamard format")]
BLOCK = bytes.fromhex(re.search(r"```\n([0-9a-f \n]+)```", WORKED)[1])
N = 16
FORMAT = PlaneFormat("bf16", block=N, target=12, rounding="nearest")
PARAMETERS = reference.Parameters("bf16", N, 12, "nearest")


def number(text):
    return float(text.replace("\N{MINUS SIGN}", "-"))


def rows(columns):
    """The cells of the worked block's table that has that many columns, without its head."""
    tables = [
        [c.strip(" `") for c in line[1:-1].split("|")] for line in WORKED.splitlines() if line[:1] == "|"
    ]
    return [cells for cells in tables if len(cells) == columns and cells[0][:1].isdigit()]


VALUES = rows(10)
PLANES = rows(6)
VALUE = np.array([number(row[1]) for row in VALUES], ml_dtypes.bfloat16)
DECODED = np.array([number(row[8]) for row in VALUES], ml_dtypes.bfloat16)


def decode_bf16(data):
    """One bf16 block of 16 values, decoded as the page says, in floating-point arithmetic."""
    base = data[0]
    flags = [data[1 + j // 8] >> (j % 8) & 1 for j in range(16)]
    values = []
    for i in range(N):
        bits = []
        for j in range(16):
            start = 3 + 2 * sum(flags[:j])
            byte = start + i // 8
            bits.append(data[byte] >> (i % 8) & 1 if flags[j] and byte < len(data) else 0)
        delta = int("".join(map(str, bits[1:9])), 2)
        mantissa = int("".join(map(str, bits[9:])), 2)
        field = (base - 1 + delta) % 256 if delta else 0
        magnitude = (1 + mantissa / 128) * 2.0 ** (field - 127) if field else mantissa * 2.0**-133
        values.append(-magnitude if bits[0] else magnitude)
    return values


def assert_same_values(found, expected):
    """Equal numbers with equal signs, zeros included."""
    for i, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert (float(a), bool(np.signbit(a))) == (float(b), bool(np.signbit(b))), (
            f"value {i} is {a}, not {b}"
        )


def test_the_page_shows_one_whole_block():
    assert len(BLOCK) == FORMAT.target
    assert len(VALUES) == N
    assert VALUE.astype(float).tolist() == [number(row[1]) for row in VALUES], "values that bf16 has"
    assert DECODED.astype(float).tolist() == [number(row[8]) for row in VALUES]


def test_a_decoder_written_from_the_page_reads_the_worked_block():
    assert_same_values(decode_bf16(BLOCK), DECODED)


def test_golden_reads_the_worked_block():
    stored = np.frombuffer(BLOCK, np.uint8).reshape(1, -1)
    assert_same_values(FORMAT.decompress(stored, N), DECODED)


def test_the_reference_reads_the_worked_block():
    assert reference.decode_block(PARAMETERS, BLOCK) == DECODED.view(np.uint16).tolist()


def test_golden_writes_the_worked_block():
    assert FORMAT.compress(VALUE).tobytes().hex(" ") == BLOCK.hex(" ")


def test_the_reference_writes_the_worked_block():
    block = reference.encode_block(PARAMETERS, VALUE.view(np.uint16).tolist())
    assert block.hex(" ") == BLOCK.hex(" ")


@pytest.mark.parametrize("row", VALUES, ids=lambda row: f"value {row[0]}")
def test_every_row_of_the_value_table_is_right(row):
    i = int(row[0])
    sign, field, mantissa = PARAMETERS.split(int(VALUE.view(np.uint16)[i]))
    assert (int(row[2]), int(row[3]), int(row[4], 2)) == (sign, field, mantissa)
    assert int(row[5]) == (field - BLOCK[0] + 1 if field else 0)
    assert int(row[6]) == (8 if i < FORMAT.partial else 16)
    assert PARAMETERS.split(int(DECODED.view(np.uint16)[i])) == (sign, field, int(row[7], 2))


def test_every_row_of_the_plane_table_is_right():
    """The bits, the stored bytes and both flags of each plane."""
    exact = reference.encode_block(reference.Parameters("bf16", N, None), VALUE.view(np.uint16).tolist())
    flagged, in_header = (int.from_bytes(block[1:3], "little") for block in (exact, BLOCK))
    at = 3
    seen = []
    for name, _, flag, bits, stored, header_flag in PLANES:
        first, last = (int(n) for n in (name.split("\N{EN DASH}") * 2)[:2])
        for plane in range(first, last + 1):
            seen.append(plane)
            assert flag.startswith("yes") == bool(flagged >> plane & 1), f"plane {plane}"
            assert header_flag.startswith("1") == bool(in_header >> plane & 1), f"plane {plane}"
        data = bytes.fromhex(stored)
        assert data == BLOCK[at : at + len(data)], f"plane {name}"
        assert "".join(f"{byte:08b}"[::-1] for byte in data) == bits.replace(" ", ""), f"plane {name}"
        at += len(data)
    assert at == len(BLOCK)
    assert seen == list(range(16))
