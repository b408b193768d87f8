"""Arrays in files through the board: .npy to .npz of blocks, and back."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import BadZipFile

import ml_dtypes
import numpy as np
from rich.progress import Progress

from golden import FORMATS, Format
from golden.blocks import as_shape
from rtl.selftest import Place

from .check import Found, batch_blocks, check_compression, check_decompression
from .device import Device, describe

# What NumPy raises for files that are empty, cut off, damaged or not its own.
_BROKEN = (ValueError, EOFError, BadZipFile, zlib.error)


def read_array(source: Path) -> np.ndarray:
    """The array of a .npy file; of bfloat16 as NumPy saves it, two-byte voids.

    Raises:
        ValueError: the file cannot be read, or has no array.
    """
    array = _load(source)
    if not isinstance(array, np.ndarray):
        raise ValueError(f"file must be a .npy of one array, not {str(source)!r}")
    return array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array


@dataclass(frozen=True, eq=False)
class Compressed:
    """What :func:`compress_array` writes: blocks, uint8[blocks, target], and what they are of."""

    fmt: Format
    blocks: np.ndarray
    shape: tuple[int, ...]


def read_compressed(source: Path) -> Compressed:
    """What :func:`compress_array` has written.

    Raises:
        ValueError: the file cannot be read, is another one, or has a block that no encoder produces.
    """
    found = _load(source)
    try:
        with found as saved:
            blocks, shape = saved["blocks"], as_shape(tuple(saved["shape"].tolist()))
            kind = FORMATS[str(saved["scheme"])]
            others = set(saved.files) - {"blocks", "shape", "scheme"}
            fmt = kind(**{name: saved[name].item() for name in others})
        if blocks.dtype != np.uint8 or blocks.shape != (fmt.blocks(prod(shape)), fmt.target):
            raise ValueError("blocks of another shape")
        np.broadcast_to(fmt.float_type.array.type(0), shape)  # raises if no array can be of it
    except (*_BROKEN, KeyError, TypeError, AttributeError):
        raise ValueError(f"file must be one that compress has written, not {str(source)!r}") from None
    try:
        fmt.decompress(blocks, len(blocks) * fmt.block)
    except ValueError as error:
        written = f"file must be one that compress has written, not {str(source)!r}"
        raise ValueError(f"{written}: {error}") from None
    return Compressed(fmt, blocks, shape)


def _load(source: Path) -> Any:
    """What NumPy finds in a file; raises ValueError if it cannot be read."""
    try:
        return np.load(source)
    except OSError as error:
        why = error.strerror or "it is no file of NumPy"
        raise ValueError(f"file must be one that can be read, not {str(source)!r}: {why}") from None
    except _BROKEN:  # NumPy's own messages are about pickles
        raise ValueError(f"file must be NumPy's, with arrays of numbers, not {str(source)!r}") from None


def compress_array(
    device: Device, values: np.ndarray, target: Path, scheme: str | None, progress: Progress
) -> Found:
    """Compress an array on the board, in the board's first format for its type.

    Args:
        device: the board.
        values: the array.
        target: .npz file to write, as :func:`read_compressed` reads it.
        scheme: which formats to choose from; all by default.
        progress: to be shown.

    Raises:
        ValueError: the board has no such scheme, or no format for the array's type.
        gen.board.link.LinkError: the board does not answer.
    """
    fmt = format_for(device.about.formats, values.dtype, scheme)
    flat = np.ascontiguousarray(values).reshape(-1)
    flat = np.pad(flat, (0, -len(flat) % fmt.block))
    found, step = Found(), batch_blocks(device, fmt) * fmt.block
    blocks = [
        check_compression(
            device, fmt, flat[start : start + step], Place.UNCOMPRESSED, found, first=start // fmt.block
        )
        for start in progress.track(range(0, len(flat), step), description=target.name)
    ]
    format_fields = {name: value for name, value in asdict(fmt).items() if value is not None}
    with _replacing(target) as file:
        np.savez(
            file,
            blocks=np.concatenate(blocks) if blocks else np.empty((0, fmt.target), np.uint8),
            shape=np.array(values.shape, np.int64),
            scheme=fmt.scheme,
            **format_fields,
        )
    return found


def decompress_array(device: Device, source: Compressed, target: Path, progress: Progress) -> Found:
    """Decompress on the board what :func:`read_compressed` has read, to a .npy file.

    Raises:
        ValueError: the board has no such format.
        gen.board.link.LinkError: the board does not answer.
    """
    fmt, blocks, shape = source.fmt, source.blocks, source.shape
    check_format(device.about.formats, fmt)
    found, step = Found(), batch_blocks(device, fmt)
    pieces = [
        check_decompression(device, fmt, blocks[start : start + step], start, found)
        for start in progress.track(range(0, len(blocks), step), description=target.name)
    ]
    values = np.concatenate(pieces) if pieces else np.empty(0, fmt.float_type.array)
    with _replacing(target) as file:
        np.save(file, values[: prod(shape)].reshape(shape))
    return found


@contextmanager
def _replacing(target: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of another one when all of it is written."""
    part = target.with_name(f"{target.name}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def format_for(formats: Sequence[Format], dtype: np.dtype, scheme: str | None) -> Format:
    """The first of some formats for an array's type.

    Args:
        formats: to choose from.
        dtype: the array's.
        scheme: of the format; any by default.

    Raises:
        ValueError: there is none.
    """
    of_scheme = [fmt for fmt in formats if scheme in (None, fmt.scheme)]
    if not of_scheme:
        have = ", ".join(dict.fromkeys(fmt.scheme for fmt in formats))
        raise ValueError(f"--scheme must be one that the board has, {have}, not {scheme!r}")
    for fmt in of_scheme:
        if fmt.float_type.array == dtype:
            return fmt
    have = ", ".join(dict.fromkeys(np.dtype(fmt.float_type.array).name for fmt in of_scheme))
    found = str(dtype) if dtype.isnative else f"{dtype.name} with its bytes in the other order"
    raise ValueError(f"array must be of a type that the board has, {have}, not {found}")


def check_format(formats: Sequence[Format], fmt: Format) -> None:
    """Raises ValueError if a format is none of these."""
    if fmt not in formats:
        have = ", ".join(map(describe, formats))
        raise ValueError(f"file must be of a format that the board has, {have}, not {describe(fmt)}")
