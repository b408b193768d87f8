"""account() counts what compress() stores, and what plain base-delta would."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import Account, PlaneFormat

from .blocks import DTYPES, adversarial, as_values, formats_and_blocks, parameters


def counted(fmt, stored):
    """The bits of compressed blocks, part by part, read off their headers and their lengths."""
    p = parameters(fmt)
    bits = dict.fromkeys(("header", "sign", "exponent", "mantissa", "padding"), 0)
    for block in stored:
        flags = int.from_bytes(block[1 : p.header].tobytes(), "little")
        room = 8 * (len(block) - p.header)
        bits["header"] += 8 * p.header
        for plane in range(p.width):
            if flags >> plane & 1:
                part = "sign" if plane == 0 else "exponent" if plane <= p.e else "mantissa"
                bits[part] += min(fmt.block, room)
                room -= min(fmt.block, room)
        bits["padding"] += room
    return bits


def plain_base_delta(fmt, words):
    """Exponent bits of base-delta without a zero code: base, flags, and all deltas as wide as the widest."""
    p = parameters(fmt)
    bits = 0
    for row in words.tolist():
        fields = [p.split(word)[1] for word in row]
        bits += 8 + p.e + fmt.block * (max(fields) - min(fields)).bit_length()
    return bits


@settings(deadline=None, max_examples=200)
@given(formats_and_blocks())
def test_the_parts_are_what_is_stored_to_the_bit(case):
    fmt, words = case
    p = parameters(fmt)
    stored = fmt.compress(as_values(fmt, words))
    account = fmt.account(as_values(fmt, words))
    assert account.stored == counted(fmt, stored)
    assert sum(account.stored.values()) == 8 * stored.nbytes
    blocks = len(words)
    assert account.values == words.size
    assert account.original == {
        "sign": words.size,
        "exponent": p.e * words.size,
        "mantissa": p.m * words.size,
    }
    assert account.header == {"sign": blocks, "exponent": (8 + p.e) * blocks, "mantissa": p.m * blocks}
    assert sum(account.header.values()) == account.stored["header"]
    assert account.plain_exponent == plain_base_delta(fmt, words)


@settings(deadline=None, max_examples=100)
@given(formats_and_blocks())
def test_ratios_are_original_bits_over_stored_bits_with_headers_and_padding(case):
    fmt, words = case
    p = parameters(fmt)
    values = as_values(fmt, words)
    stored = counted(fmt, fmt.compress(values))
    blocks = len(words)
    parts = {
        "sign": (1, stored["sign"] + blocks),
        "exponent": (p.e, stored["exponent"] + (8 + p.e) * blocks),
        "mantissa": (p.m, stored["mantissa"] + p.m * blocks),
    }
    expected = {part: float(Fraction(bits * words.size, total)) for part, (bits, total) in parts.items()}
    expected["whole"] = p.width * words.size / sum(stored.values())
    account = fmt.account(values)
    assert account.ratio == pytest.approx(expected, rel=1e-12)

    plain = plain_base_delta(fmt, words)
    expected["exponent"] = p.e * words.size / plain
    with_plain = sum(stored.values()) - parts["exponent"][1] + plain
    expected["whole"] = p.width * words.size / with_plain
    assert account.plain_ratio == pytest.approx(expected, rel=1e-12)


def test_the_whole_ratio_of_a_fixed_target_is_the_uncompressed_block_over_the_target():
    for fmt in PlaneFormat("fp32", 64, 80), PlaneFormat("bf16", 64, 64), PlaneFormat("fp16", 128, 41):
        account = fmt.account(as_values(fmt, adversarial(fmt, 30, seed=6)))
        assert account.ratio["whole"] == pytest.approx(fmt.original_bytes / fmt.target, rel=1e-12), fmt


@settings(deadline=None, max_examples=50)
@given(formats_and_blocks(), st.integers(0, 2**32 - 1))
def test_accounts_of_whole_blocks_add_up(case, seed):
    fmt, words = case
    more = adversarial(fmt, 2, seed)
    apart = fmt.account(as_values(fmt, words)) + fmt.account(as_values(fmt, more))
    assert apart == fmt.account(as_values(fmt, np.concatenate([words, more])))


@pytest.mark.parametrize("target", [None, 80])
def test_a_tail_counts_as_the_block_it_is_padded_to(target):
    fmt = PlaneFormat("fp32", 64, target)
    values = np.linspace(1, 2, 70, dtype=np.float32)
    account = fmt.account(values)
    assert account.values == 128
    assert account == fmt.account(np.pad(values, (0, 58)))
    assert sum(account.stored.values()) == 8 * fmt.compress(values).nbytes


def test_a_long_array_is_counted_whole():
    """Also where golden cuts it into pieces of 2**16 values."""
    fmt = PlaneFormat("fp16", 16, None)
    words = adversarial(fmt, 40, seed=8)
    once, often = fmt.account(as_values(fmt, words)), fmt.account(as_values(fmt, np.tile(words, (250, 1))))
    assert often.values == 250 * once.values
    assert often.stored == {part: 250 * bits for part, bits in once.stored.items()}
    assert often.plain_exponent == 250 * once.plain_exponent


@pytest.mark.parametrize("target", [None, 40])
@pytest.mark.parametrize("dtype", DTYPES)
def test_an_empty_array_has_nothing_to_count_and_no_ratio(dtype, target):
    fmt = PlaneFormat(dtype, 32, target)
    account = fmt.account(as_values(fmt, np.zeros((0, 32))))
    assert isinstance(account, Account)
    assert account.values == sum(account.original.values()) == sum(account.stored.values()) == 0
    for ratios in account.ratio, account.plain_ratio:
        assert list(ratios) == ["sign", "exponent", "mantissa", "whole"]
        assert all(math.isnan(ratio) for ratio in ratios.values())


def test_one_zero_in_a_block_costs_plain_base_delta_all_exponent_planes_and_the_zero_code_none():
    """One binade and a zero, N = 64: one delta plane, base and flags against 7 planes, base and flags."""
    fmt = PlaneFormat("fp32", 64, None)
    values = np.full(64, 1.5, np.float32)
    values[10] = 0
    account = fmt.account(values)
    assert account.ratio["exponent"] == 8 * 64 / (64 + 16)
    assert account.plain_ratio["exponent"] == 8 * 64 / (7 * 64 + 16)
