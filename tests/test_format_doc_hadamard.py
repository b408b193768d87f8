"""docs/format.md's tables and worked block of the Hadamard format are what the codecs have."""

import re

import numpy as np
import pytest

from golden import HadamardFormat
from golden import hadamard as golden

from . import hadamard_blocks
from . import hadamard_reference as reference
from .test_format_doc import PAGE

SECTION = PAGE.split("\n# The Hadamard format\n")[1].replace("\N{MINUS SIGN}", "-")
WORKED = SECTION.split("## A worked block of the Hadamard format")[1]
TABLES = re.findall(r"```\n(.*?)```", WORKED, re.S)
SIXTEENTHS, TRANSFORM, COEFFICIENTS, BYTES = (table.split() for table in TABLES)
VALUE = np.array(SIXTEENTHS, np.float32) / 16
BLOCK = bytes.fromhex("".join(BYTES))
NUMBER = 5
FORMAT = HadamardFormat("fp32", 64, 16)
PARAMETERS = reference.Parameters("fp32", 64, 16)


def rows(section, columns):
    """The cells of a section's table rows that have that many columns and begin with a digit."""
    tables = [line[1:-1].split("|") for line in section.splitlines() if line[:1] == "|"]
    cells = [[cell.strip() for cell in row] for row in tables if len(row) == columns]
    return [row for row in cells if row[0][:1].isdigit()]


def integers(text):
    return [int(number) for number in re.findall(r"-?\d+", text.replace(",", " "))]


def says(text):
    """Whether the worked block says so."""
    return text in WORKED


def test_the_tables_of_levels_and_thresholds_are_those_of_both_codecs():
    table = rows(SECTION.split("## The sign pattern")[0], 3)
    assert [int(row[0]) for row in table] == list(golden.LEVELS) == list(golden.THRESHOLDS)
    for width, levels, thresholds in table:
        width = int(width)
        assert integers(levels) == list(golden.LEVELS[width]) == reference.LEVELS[width]
        assert integers(thresholds) == list(golden.THRESHOLDS[width]) == reference.THRESHOLDS[width]


@pytest.mark.parametrize(("width", "least"), [(1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497)])
def test_the_levels_are_near_to_those_of_lloyd_and_max(width, least):
    """Their error for a Gaussian is within 3 % of the least (Max, "Quantizing for Minimum Distortion")."""
    x = np.linspace(-6, 6, 100_001)
    weight = np.exp(-x * x / 2)
    index = np.searchsorted(np.array(golden.THRESHOLDS[width]) / 32, abs(x))
    q = np.array(golden.LEVELS[width])[index] * np.sign(x)
    error = 1 - np.average(x * q, weights=weight) ** 2 / np.average(q * q, weights=weight)
    assert error == pytest.approx(least, rel=0.03)


def test_the_parameters_and_headers_of_the_page_are_golden_s():
    blocks = next(row for row in SECTION.splitlines() if row.startswith("| `block`, `N`"))
    assert tuple(integers(blocks)) == golden.BLOCKS == hadamard_blocks.BLOCKS
    for block in golden.BLOCKS:
        low, high = hadamard_blocks.target_range(block)
        assert (HadamardFormat("bf16", block, low).min_target, low) == (block // 8, block // 8)
        assert (HadamardFormat("bf16", block, high).max_target, high) == (block // 2, block // 2)
    headers = rows(SECTION.split("## The sign pattern")[0], 2)
    assert [integers(row[0]) for row in headers if "to" in row[0]][-2:] == [[2, 15], [16, 4095]]
    invalid = FORMAT.check_headers(np.arange(4096))
    assert np.flatnonzero(invalid).tolist() == list(range(2, 16))


def test_the_page_shows_one_whole_block():
    assert len(BLOCK) == FORMAT.target
    assert len(VALUE) == len(TRANSFORM) == len(COEFFICIENTS) == FORMAT.block
    assert [int(text) for text in SIXTEENTHS] == [7 * i * i % 64 - 20 for i in range(64)]
    assert (PARAMETERS.b, PARAMETERS.more) == (1, 52)
    assert says("116 bits are left for fields, so `b` = 1 and `more` = 52")
    assert says(f"the block's number is {NUMBER}:")


def test_golden_writes_the_worked_block():
    assert FORMAT.compress(VALUE, first=NUMBER).tobytes().hex(" ") == BLOCK.hex(" ")


def test_the_reference_writes_the_worked_block():
    words = VALUE.view(np.uint32).tolist()
    assert reference.encode_block(PARAMETERS, words, NUMBER).hex(" ") == BLOCK.hex(" ")


def test_golden_and_the_reference_read_the_worked_block():
    decoded = FORMAT.decompress(np.frombuffer(BLOCK, np.uint8)[None], 64, first=NUMBER)
    assert decoded.view(np.uint32).tolist() == reference.decode_block(PARAMETERS, BLOCK, NUMBER)
    first = [float(number) for number in re.findall(r"-?\d+\.\d+", WORKED.split("and the values ")[1])]
    assert len(first) == 4
    assert decoded[:4].tolist() == first
    sums = [float(value) * 2**10 / 19 for value in decoded[:4]]
    assert says("the scale, 19 · 2^-10. Its first sums are {:.0f}, {:.0f}, {:.0f} and {:.0f},".format(*sums))


def test_the_steps_between_values_and_bytes_are_as_the_page_says():
    pattern = FORMAT.signs(np.array([NUMBER], np.uint32))[0]
    halves = [sum(int(sign < 0) << i for i, sign in enumerate(half)) for half in pattern.reshape(2, 32)]
    assert says("`u`₀ = {:08x}, `u`₁ = {:08x}".format(*halves))
    assert pattern.tolist() == reference.pattern(64, NUMBER)

    aligned = np.array([int(text) * 32 for text in SIXTEENTHS])
    assert says("`top` = 128, and the unit of the `a` is 1/512: the `a` are 32 times")
    z = golden.transform((aligned * pattern)[None])[0]
    assert z.tolist() == [int(text) for text in TRANSFORM]

    energy, product = int(np.square(aligned).sum()), int(abs(z) @ abs(np.array(COEFFICIENTS, np.int64)))
    assert says(f"`energy` = {energy:,}, so `p` = 12, `x` = ⌊`energy` / 4^9⌋ = {energy // 4**9}")
    root = int(16 * (energy // 4**9) ** 0.5)
    assert says(f"`root` = ⌊16 · √{energy // 4**9}⌋ = {root}")
    assert says(f"⌊31 · {root} · 2^12 / 2^12⌋ = {31 * root}")
    assert says(f"`product` = {product:,}, and `energy` / `product` = {energy / product:.4f}")
    assert says(f"⌊{2 * energy / product:.4f} + 1/2⌋ = 19")

    encoded = FORMAT.encode(VALUE.view(np.uint32)[None], np.array([NUMBER], np.uint32))
    levels = np.where(np.arange(64) < 52, np.where(abs(z) > 31 * root, 20, 6), 10)
    assert [int(text) for text in COEFFICIENTS] == (np.where(z < 0, -1, 1) * levels).tolist()
    widths = np.array(PARAMETERS.widths)
    assert encoded.fields[0].tolist() == ((z < 0) * 2 ** (widths - 1) + (levels == 20)).tolist()
    header = int(encoded.header[0])
    assert says(f"16 · (128 - 127 + 121 - 1) + 3 = {header}, or {header:x}₁₆")
    assert int.from_bytes(BLOCK[:2], "little") & 0xFFF == header == 16 * (128 - 127 + 121 - 1) + 3
