"""Arrays in files through the board: .npy to .npz of blocks, and back."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import ml_dtypes
import numpy as np
from rich.progress import Progress

from golden import FORMATS, Format
from rtl.selftest import Place

from .check import Found, batch_blocks, check_compression, check_decompression
from .device import Device


def compress_file(
    device: Device, source: Path, target: Path, scheme: str | None, progress: Progress
) -> Found:
    """Compress an array of a .npy file on the board, in the board's first format for its type.

    Args:
        device: the board.
        source: the array; of bfloat16 as NumPy saves it, two-byte voids.
        target: .npz file of the blocks, "blocks", uint8[blocks, target], and what they are of.
        scheme: which formats to choose from; all by default.
        progress: to be shown.

    Raises:
        ValueError: the file has no array, or the board no format for its type.
        gen.board.link.LinkError: the board does not answer.
    """
    array = np.load(source)
    values = array.view(ml_dtypes.bfloat16) if array.dtype == np.dtype("V2") else array
    fmt = _format_for(device, values.dtype, scheme)
    flat = np.ascontiguousarray(values).reshape(-1)
    flat = np.pad(flat, (0, -len(flat) % fmt.block))
    found, step = Found(), batch_blocks(device, fmt) * fmt.block
    blocks = [
        check_compression(device, fmt, flat[start : start + step], Place.RAW, found, first=start // fmt.block)
        for start in progress.track(range(0, len(flat), step), description=source.name)
    ]
    format_fields = {name: value for name, value in asdict(fmt).items() if value is not None}
    np.savez(
        target,
        blocks=np.concatenate(blocks) if blocks else np.empty((0, fmt.target), np.uint8),
        shape=np.array(values.shape),
        scheme=fmt.scheme,
        **format_fields,
    )
    return found


def decompress_file(device: Device, source: Path, target: Path, progress: Progress) -> Found:
    """Decompress what :func:`compress_file` wrote on the board, to a .npy file.

    Raises:
        ValueError: the file is another one, or a block one that no encoder produces.
        gen.board.link.LinkError: the board does not answer, or has no such format.
    """
    with np.load(source) as saved:
        try:
            blocks, shape = saved["blocks"], tuple(saved["shape"].tolist())
            kind = FORMATS[str(saved["scheme"])]
            others = set(saved.files) - {"blocks", "shape", "scheme"}
            fmt = kind(**{name: saved[name].item() for name in others})
        except (KeyError, TypeError, AttributeError):
            raise ValueError(f"file must be one that compress has written, not {str(source)!r}") from None
    device.format_index(fmt)
    found, step = Found(), batch_blocks(device, fmt)
    pieces = [
        check_decompression(device, fmt, blocks[start : start + step], start, found)
        for start in progress.track(range(0, len(blocks), step), description=source.name)
    ]
    values = np.concatenate(pieces) if pieces else np.empty(0, fmt.float_type.array)
    np.save(target, values[: int(np.prod(shape))].reshape(shape))
    return found


def _format_for(device: Device, dtype: np.dtype, scheme: str | None) -> Format:
    for fmt in device.about.formats:
        if fmt.float_type.array == dtype and scheme in (None, fmt.scheme):
            return fmt
    have = ", ".join(f"{fmt.dtype} in {fmt.scheme}" for fmt in device.about.formats)
    wanted = f"{dtype} in {scheme}" if scheme else str(dtype)
    raise ValueError(f"array must be of a type that the board has, {have}, not {wanted}")
