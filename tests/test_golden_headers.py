"""golden takes exactly the headers that its encoder produces, and that of cleared memory: docs/format.md."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import PlaneFormat, RaggedBlocks

from . import reference
from .blocks import (
    BLOCKS,
    DTYPES,
    UINTS,
    adversarial,
    as_values,
    blocks_of,
    formats,
    parameters,
    target_range,
)


def header_formats(dtype):
    """Around every boundary between the rules: lossless, specials blocks or none, a plane stored in part
    or none, fewer slots than exponent planes or more."""
    low, high = target_range(dtype, 16)
    targets = (None, low, low + 1, low + 2, low + 3, low + 12, low + 13, high)
    return [PlaneFormat(dtype, 16, target) for target in targets]


def header_id(fmt):
    return f"{fmt.dtype}-{fmt.target or 'lossless'}"


def as_header(p, base, flags):
    return np.frombuffer(bytes([base]) + int(flags).to_bytes(p.width // 8, "little"), np.uint8)


def valid_flags(p):
    """All that a header may say but its mantissa flags: (base, k, s, number of mantissa flags allowed)."""
    for base in range(1, 2**p.e):
        for k in range(p.e + 1):
            in_range = base + 2 ** (k - 1) - 1 <= 2**p.e - 1 if k else base == 1
            for s in (0, 1):
                if p.target is None and in_range:
                    yield base, k, s, p.m
                elif in_range and s + k <= p.slots:
                    yield base, k, s, p.slots + (p.partial > 0) - s - k


def flag_bits(p, k, s, mantissas):
    """Header flags as integers whose bit j is the flag of plane j."""
    exponent = sum(1 << j for j in range(p.e + 1 - k, p.e + 1))
    reversed_mantissas = sum((mantissas >> i & 1) << (p.width - 1 - i) for i in range(p.m))
    return s | exponent | reversed_mantissas


def witnesses(p, base, k, s, mantissas):
    """Blocks whose header is the one given, one for each mantissa mask: int[masks, N].

    A subnormal carries the mantissa flags and the sign, and two values the deltas 1 and 2**(k - 1).
    """
    words = np.zeros((len(mantissas), p.block), np.int64)
    words[:, 3] = s << (p.e + p.m) | mantissas
    if k:
        words[:, 5] = base << p.m
        words[:, 11] = (base + 2 ** (k - 1) - 1) << p.m
    return words


SIXTEEN_BIT = [fmt for dtype in ("bf16", "fp16") for fmt in header_formats(dtype)]


def bases_to_try(fmt):
    """Every byte in lossless mode; in fixed mode, which has the same rule for it, those at its ends."""
    return range(256) if fmt.target is None else [*range(34), 127, 128, *range(247, 256)]


def valid_16_bit_headers(fmt):
    """All valid headers with a base: (base, k, s, mantissa masks, flags)."""
    p = parameters(fmt)
    mantissas = np.arange(2**p.m)
    ones = np.bitwise_count(mantissas)
    for base, k, s, most in valid_flags(p):
        if base in bases_to_try(fmt):
            masks = mantissas[ones <= most]
            yield base, k, s, masks, flag_bits(p, k, s, masks)


@pytest.mark.parametrize("fmt", SIXTEEN_BIT, ids=header_id)
def test_exactly_the_valid_16_bit_headers_are_accepted(fmt):
    p = parameters(fmt)
    valid = np.zeros((256, 1 << 16), bool)
    for base, _, _, _, flags in valid_16_bit_headers(fmt):
        valid[base, flags] = True
    if fmt.target is not None:
        valid[0, 0] = True
        valid[0, 1 | 1 << p.e] = p.slots == 2

    flags = np.arange(1 << 16)
    headers = np.stack([np.zeros_like(flags), flags & 255, flags >> 8], axis=1).astype(np.uint8)
    for base in bases_to_try(fmt):
        headers[:, 0] = base
        accepted = ~fmt.check_headers(headers)
        for i in np.flatnonzero(accepted != valid[base])[:1]:
            verdict = "accepted" if accepted[i] else "refused"
            raise AssertionError(f"{fmt}: the header {headers[i].tobytes().hex(' ')} is {verdict}")


@pytest.mark.parametrize("fmt", SIXTEEN_BIT, ids=header_id)
def test_every_valid_16_bit_header_is_produced(fmt):
    p = parameters(fmt)
    for base, k, s, masks, flags in valid_16_bit_headers(fmt):
        stored = fmt.compress(as_values(fmt, witnesses(p, base, k, s, masks)))
        starts = stored.offsets[:-1] if fmt.target is None else np.arange(len(masks)) * fmt.target
        data = stored.data if fmt.target is None else stored.reshape(-1)
        headers = data[starts[:, None] + np.arange(3)]
        expected = np.stack([np.full_like(flags, base), flags & 255, flags >> 8], axis=1)
        for i in np.flatnonzero((headers != expected).any(axis=1))[:1]:
            header = as_header(p, base, flags[i]).tobytes().hex(" ")
            raise AssertionError(f"{fmt}: {header} expected, {headers[i].tobytes().hex(' ')} produced")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_header_of_a_specials_block_is_produced_and_accepted_only_if_three_planes_do_not_fit(dtype):
    for fmt in header_formats(dtype)[1:]:
        p = parameters(fmt)
        header = as_header(p, 0, 1 | 1 << p.e)
        nans = as_values(fmt, np.full((1, 16), 2**p.width - 1))
        produced = fmt.compress(nans)[0, : p.header]
        tiny = fmt.target < p.header + 3 * fmt.block // 8
        assert (produced.tolist() == header.tolist()) == tiny, f"{fmt}: {produced.tobytes().hex(' ')}"
        assert fmt.check_headers(header[None])[0] != tiny, fmt


@pytest.mark.parametrize("fmt", header_formats("fp32"), ids=header_id)
def test_every_kind_of_valid_fp32_header_is_accepted_and_produced(fmt):
    """Every base, number of exponent planes and sign, with mantissa flags drawn at random."""
    p = parameters(fmt)
    rng = np.random.default_rng(fmt.target)
    cases = list(valid_flags(p))
    words, expected = [], []
    for base, k, s, most in cases:
        planes = rng.permutation(p.m)[: rng.integers(min(most, p.m) + 1)]
        mask = np.array([sum(1 << int(i) for i in planes)])
        words.append(witnesses(p, base, k, s, mask)[0])
        expected.append(as_header(p, base, flag_bits(p, k, s, mask)[0]).tobytes())
    stored = fmt.compress(as_values(fmt, np.array(words)))
    for produced, header, case in zip(stored, expected, cases, strict=True):
        assert produced[: p.header].tobytes().hex(" ") == header.hex(" "), f"{fmt}: base, k, s, most = {case}"
    fmt.decompress(stored, len(words) * 16)
    assert not fmt.check_headers(np.frombuffer(b"".join(expected), np.uint8).reshape(-1, 5)).any()


@st.composite
def formats_and_headers(draw):
    """A format, and a header that is random or one flag or base away from a valid one."""
    fmt = draw(formats())
    p = parameters(fmt)
    base = draw(st.integers(0, 255) | st.sampled_from([0, 1, 2, 2**p.e - 1, 2**p.e & 255]))
    k = draw(st.integers(0, p.e))
    exponent = sum(1 << j for j in range(p.e + 1 - k, p.e + 1))
    some = [draw(st.integers(0, 2**p.width - 1)) for _ in range(3)]
    mantissas = some[0] & some[1] & (some[2] | draw(st.just(0))) & ~(2 ** (p.e + 1) - 1)
    flags = mantissas | exponent | draw(st.integers(0, 1))
    if draw(st.booleans()):
        flags ^= 1 << draw(st.integers(0, p.width - 1))
    if draw(st.integers(0, 9)) == 0:
        flags = some[0]
    return fmt, base, flags


@settings(deadline=None, max_examples=400)
@given(formats_and_headers())
def test_a_header_is_accepted_if_and_only_if_the_page_says_it_is_valid(case):
    fmt, base, flags = case
    p = parameters(fmt)
    valid = reference.is_valid(p, base, [j for j in range(p.width) if flags >> j & 1])
    refused = fmt.check_headers(as_header(p, base, flags)[None])
    assert refused.shape == (1,)
    assert refused[0] != valid, f"{fmt}: {as_header(p, base, flags).tobytes().hex(' ')}"


@settings(deadline=None, max_examples=200)
@given(formats_and_headers(), st.data())
def test_an_invalid_header_is_an_error_that_names_its_block(case, data):
    fmt, base, flags = case
    p = parameters(fmt)
    if reference.is_valid(p, base, [j for j in range(p.width) if flags >> j & 1]):
        flags, base = 0, 2
    header = as_header(p, base, flags)
    words = np.concatenate([data.draw(blocks_of(fmt)) for _ in range(2)])
    bad = data.draw(st.integers(0, len(words) - 1))
    stored = fmt.compress(as_values(fmt, words))
    if fmt.target is None:
        blocks = [row.copy() for row in stored]
        blocks[bad] = np.concatenate([header, np.zeros(int(flags).bit_count() * fmt.block // 8, np.uint8)])
        stored = RaggedBlocks(np.concatenate(blocks), np.cumsum([0, *(len(b) for b in blocks)]))
    else:
        stored[bad, : p.header] = header
    message = f"block {bad}: no encoder produces the header {header.tobytes().hex(' ')}"
    with pytest.raises(ValueError, match=re.escape(message)):
        fmt.decompress(stored, words.shape)


@pytest.mark.parametrize("target", [None, 16])
def test_the_block_that_an_error_names_is_counted_from_the_start_of_the_array(target):
    fmt = PlaneFormat("bf16", 16, target)
    blocks = 3 * (1 << 16) // 16  # golden works in pieces of 2**16 values
    stored = fmt.compress(np.ones(blocks * 16, "bfloat16"))
    for bad in (0, 4095, 4096, 4097, blocks - 1):
        if target:
            tampered = stored.copy()
            tampered[bad, 0] = 0
        else:
            data = stored.data.copy()
            data[stored.offsets[bad]] = 0
            tampered = RaggedBlocks(data, stored.offsets)
        with pytest.raises(ValueError, match=f"^block {bad}: no encoder produces the header 00 00 01$"):
            fmt.decompress(tampered, blocks * 16)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_header_of_zeros_is_never_produced_and_only_accepted_in_fixed_mode(dtype, block):
    low, high = target_range(dtype, block)
    for target in (None, low, low + 1, low + block // 8, (low + high) // 2, high):
        fmt = PlaneFormat(dtype, block, target)
        p = parameters(fmt)
        assert fmt.check_headers(np.zeros((1, p.header), np.uint8)).all() == (target is None)
        for words in adversarial(fmt, 50, seed=target or 0), np.zeros((1, block), UINTS[dtype]):
            for row in fmt.compress(as_values(fmt, words)):
                assert row[: p.header].any(), fmt


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_cleared_memory_reads_as_zeros_whatever_lies_behind_its_header(dtype, block):
    low, high = target_range(dtype, block)
    for target in (low, low + 1, low + block // 8, (low + high) // 2, high):
        fmt = PlaneFormat(dtype, block, target)
        stored = np.zeros((3, target), np.uint8)
        stored[1, fmt.header_bytes :] = 0xFF
        stored[2, -1] = 1
        values = fmt.decompress(stored, (3, block))
        assert not values.view(fmt.float_type.bits).any(), f"{fmt}: {values}"
        for row in stored:
            assert reference.decode_block(parameters(fmt), row.tobytes()) == [0] * block
