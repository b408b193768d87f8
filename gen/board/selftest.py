"""The self-test's blocks: made on the chip at full rate, and sent by the host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from rich.progress import Progress

from golden import Format
from golden.floats import FloatType
from rtl.selftest import Place

from .check import Found, batch_blocks, check_compression, check_decompression
from .device import Device
from .generated import generate

_SENT = 10  # of so many batches one comes over the link
_SPOILED = 8  # of so many blocks that are decompressed one has a header that no encoder produces


def selftest(device: Device, blocks: int, progress: Progress) -> dict[Format, Found]:
    """Compress and decompress blocks of each of the board's formats.

    Args:
        device: the board.
        blocks: how many of each format; those that are sent are compressed, decompressed, and counted twice,
            the second time with some that no encoder produces.
        progress: to be shown.

    Raises:
        gen.board.link.LinkError: the board does not answer.
    """
    found = {fmt: Found() for fmt in device.about.formats}
    for fmt, of_format in found.items():
        task = progress.add_task(f"{fmt.scheme} {fmt.dtype}", total=blocks)
        rng = np.random.default_rng(fmt.target)
        batch = done = 0
        while done < blocks:
            count = min(batch_blocks(device, fmt), blocks - done)
            first = int(rng.integers(1 << 32))
            if batch % _SENT == 0:
                values = adversarial(fmt.float_type, count * fmt.block, rng)
                check_compression(device, fmt, values, Place.UNCOMPRESSED, of_format, first=first)
                stored, refused = spoil(fmt, np.asarray(fmt.compress(values, first)), rng)
                check_decompression(device, fmt, stored, first, of_format, refused)
            else:
                _generated(device, fmt, count, first, int(rng.integers(1, 1 << 32)), batch, of_format)
            batch, done = batch + 1, done + count
            progress.update(task, completed=done)
    return found


def spoil(fmt: Format, stored: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Blocks, uint8[blocks, target], some with a header that no encoder produces; and bool[blocks], which."""
    spoiled, refused = stored.copy(), np.zeros(len(stored), bool)
    for index in rng.choice(len(stored), -(-len(stored) // _SPOILED), replace=False):
        while not refused[index]:
            header = rng.integers(0, 256, fmt.header_bytes, np.uint8)
            if rng.integers(2):  # a low number, as the Hadamard format's few invalid ones are
                header[0] &= 15
                header[1:] = 0
            spoiled[index, : fmt.header_bytes] = header
            refused[index] = not _is_readable(fmt, spoiled[index : index + 1])
    return spoiled, refused


def _is_readable(fmt: Format, stored: np.ndarray) -> bool:
    try:
        fmt.decompress(stored, len(stored) * fmt.block)
    except ValueError:
        return False
    return True


def _generated(
    device: Device, fmt: Format, count: int, first: int, seed: int, batch: int, found: Found
) -> None:
    kinds = list(_kinds(fmt.float_type))
    mask, ones = kinds[batch % len(kinds)]
    content = generate(seed, count * fmt.original_bytes, device.bus_bytes, mask, ones)
    values = np.frombuffer(content, fmt.float_type.array)
    request = {"first": first, "seed": seed, "mask": mask, "ones": ones}
    check_compression(device, fmt, values, Place.GENERATED, found, **request)


def _kinds(float_type: FloatType) -> Iterator[tuple[int, int]]:
    """Masks and ones of the generator: values of kinds that random bits hardly ever are."""
    sign, mantissa = 1 << float_type.width - 1, float_type.mantissa_mask
    exponent = sign - 1 ^ mantissa
    few = 3 * (mantissa + 1)  # the exponent's two lowest bits
    middle = exponent // 2 & exponent & ~few
    kinds = (
        (sign | exponent | mantissa, 0),  # anything
        (sign | few | mantissa, middle),  # of about one size
        (sign | few | mantissa & ~(mantissa >> 4), middle),  # with short mantissas
        (few | mantissa, middle // 2 & middle),  # positive, and all small
        (sign | mantissa, 0),  # subnormal
        (sign | mantissa, exponent),  # NaNs
        (sign, exponent),  # infinities
        (sign, 0),  # zeros of both signs
    )
    for kind in kinds:
        mask, ones = (word | word << 16 if float_type.width == 16 else word for word in kind)
        yield mask, ones


def adversarial(float_type: FloatType, count: int, rng: np.random.Generator) -> np.ndarray:
    """Values of all sizes in one block, with zeros, subnormals, infinities and NaNs among them."""
    most = float_type.bias // 2
    values = rng.standard_normal(count) * np.exp2(
        rng.integers(-most, most, count) * rng.integers(0, 2, count)
    )
    bits = values.astype(float_type.array).view(float_type.bits)
    anything = rng.integers(0, 1 << float_type.width, count)
    sign, infinity = 1 << float_type.width - 1, float_type.exponent_max << float_type.mantissa_bits
    bits = np.where(rng.random(count) < 0.1, 0, bits)
    for of_kind in (anything, anything & ~infinity, anything & sign | infinity, anything | infinity):
        bits = np.where(rng.random(count) > 0.9995, of_kind, bits)
    return bits.astype(float_type.bits).view(float_type.array)
