"""The formats that a saved tensor may have, and which torch dtype is which of their float types."""

from __future__ import annotations

from dataclasses import replace

import torch

from golden import Format, PlaneFormat

from .quant_format import QuantFormat

# golden's formats, and group quantisation, which has no hardware.
AnyFormat = Format | QuantFormat

TORCH_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def float_name(dtype: torch.dtype) -> str | None:
    """The format's name of a torch dtype ("fp32", "bf16", "fp16"), or None if no format has it."""
    return _NAMES.get(dtype)


def format_for(fmt: AnyFormat, dtype: torch.dtype) -> AnyFormat:
    """The format for values of ``dtype`` in the place of ``fmt``.

    Mixed precision saves tensors of two types side by side. Another type than a format's gets the same block
    and as many bits a value; in bit planes a wider type also the same share of a value, for its values have
    more bits that count. A bf16 value in the share that fp32 has would keep half of the bits, and a gradient
    ten times the error.

    Examples:
        >>> format_for(PlaneFormat("fp32", block=64, target=80), torch.bfloat16)
        PlaneFormat(dtype='bf16', block=64, target=80, rounding='nearest')
        >>> format_for(PlaneFormat("bf16", block=64, target=64), torch.float32)
        PlaneFormat(dtype='fp32', block=64, target=128, rounding='nearest')
        >>> format_for(HadamardFormat("fp32", block=128, target=32), torch.bfloat16)
        HadamardFormat(dtype='bf16', block=128, target=32)
    """
    name = _NAMES[dtype]
    if fmt.target is None or name == fmt.dtype:
        return fmt
    if not isinstance(fmt, PlaneFormat):
        return replace(fmt, dtype=name)
    original_bytes = fmt.block * TORCH_DTYPES[name].itemsize
    return replace(
        fmt,
        dtype=name,
        target=min(max(fmt.target * original_bytes // fmt.original_bytes, fmt.target), original_bytes),
    )
