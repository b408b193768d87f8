"""The codecs as operations of torch, which a compiled graph can contain.

``bitstash::compress`` and ``bitstash::decompress`` run a backend, ``bitstash::pack_bits`` and
``bitstash::unpack_bits`` store booleans as bits. All that decides the bytes is a plain argument, so that a
graph that is saved needs nothing else, and the bytes are those of the golden model. None of them has a
derivative: they stand between the two passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache
from math import prod
from typing import Any, cast

import torch

from golden import FORMATS

from ..backends.bits import BitsCodec
from ..backends.dtypes import TORCH_DTYPES, AnyFormat
from ..backends.quant_format import QuantFormat
from ..policy import Of, Policy
from ..store.codecs import Codecs

_SCHEMES: dict[str, type[Any]] = {**FORMATS, QuantFormat.scheme: QuantFormat}
_BITS_A_BLOCK = 8 * BitsCodec.BLOCK_BYTES


def text_of(fmt: AnyFormat) -> str:
    """A format as the argument of an operation.

    Examples:
        >>> text_of(HadamardFormat("bf16", block=128, target=32))
        'hadamard,bf16,128,32'
    """
    return ",".join([fmt.scheme, *(str(getattr(fmt, field.name)) for field in fields(fmt))])


@cache
def format_of(text: str) -> AnyFormat:
    """The format that ``text_of`` made a text of.

    Raises:
        ValueError: it is none.
    """
    scheme, *values = text.split(",")
    kind = _SCHEMES.get(scheme)
    if kind is None or len(values) != len(fields(kind)):
        raise ValueError(f"format must be a scheme and its parameters, not {text!r}")
    fmt = kind(*(int(value) if value.isdigit() else value for value in values))
    return cast(AnyFormat, fmt)


@cache
def codecs(backend: str) -> Codecs:
    """What compresses with a backend, for the whole process."""
    return Codecs(Policy(()), backend)


def blocks_of(fmt: AnyFormat, count: Any, row: int) -> Any:
    """Blocks that so many values take, which may be a symbol.

    Args:
        fmt: the format that is asked for; rows may get smaller blocks of it.
        count: distinct values.
        row: values of a row with blocks of its own, 0 where there are no rows.
    """
    if row:
        fmt = fmt.for_rows(row)
        return count // row * (fmt.padded_width(row) // fmt.block)
    return (count + fmt.block - 1) // fmt.block


def _target(fmt: AnyFormat, row: int) -> int:
    target = (fmt.for_rows(row) if row else fmt).target
    assert target is not None
    return target


@torch.library.custom_op("bitstash::compress", mutates_args=())
def compress(
    values: torch.Tensor, format: str, of: str, row: int, backend: str, order: Sequence[int]
) -> torch.Tensor:
    """Compress the values of a tensor: uint8[blocks, target].

    Args:
        values: of the format's dtype, with any strides: a compiler may have chosen others.
        format: as ``text_of`` writes it.
        of: "values", or which inverse of them: "logit" or "atanh".
        row: values that share blocks, 0 where there are no rows.
        backend: name of a backend.
        order: in which the dimensions are gone through, the last one fastest.
    """
    codec = codecs(backend).get(format_of(format), cast(Of, of), row or None)
    return codec.compress(flat(values, order))


@compress.register_fake
def _(
    values: torch.Tensor, format: str, of: str, row: int, backend: str, order: Sequence[int]
) -> torch.Tensor:
    fmt = format_of(format)
    return values.new_empty(blocks_of(fmt, values.numel(), row), _target(fmt, row), dtype=torch.uint8)


@torch.library.custom_op("bitstash::decompress", mutates_args=())
def decompress(
    stored: torch.Tensor,
    format: str,
    of: str,
    row: int,
    backend: str,
    size: Sequence[int],
    order: Sequence[int],
) -> torch.Tensor:
    """The inverse of ``compress``: values of the format's dtype.

    Args:
        stored: uint8[blocks, target].
        format, of, row, backend: as they were compressed.
        size: of the tensor.
        order: its dimensions, that with the largest stride first. The result has no gaps.
    """
    codec = codecs(backend).get(format_of(format), cast(Of, of), row or None)
    values = codec.decompress(stored, prod(size))
    return values.as_strided(tuple(size), dense(size, order))


@decompress.register_fake
def _(
    stored: torch.Tensor,
    format: str,
    of: str,
    row: int,
    backend: str,
    size: Sequence[int],
    order: Sequence[int],
) -> torch.Tensor:
    dtype = TORCH_DTYPES[format_of(format).dtype]
    return stored.new_empty_strided(tuple(size), dense(size, order), dtype=dtype)


@torch.library.custom_op("bitstash::pack_bits", mutates_args=())
def pack_bits(values: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """Booleans as bits: uint8[blocks, 64], 512 values a block; the order is as of ``compress``."""
    bits = flat(values, order)
    codec = BitsCodec.of(bits)
    assert codec is not None
    return codec.compress(bits)


@pack_bits.register_fake
def _(values: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    blocks = (values.numel() + _BITS_A_BLOCK - 1) // _BITS_A_BLOCK
    return values.new_empty(blocks, BitsCodec.BLOCK_BYTES, dtype=torch.uint8)


@torch.library.custom_op("bitstash::unpack_bits", mutates_args=())
def unpack_bits(stored: torch.Tensor, size: Sequence[int], order: Sequence[int]) -> torch.Tensor:
    """The inverse of ``pack_bits``; sizes and order as of ``decompress``."""
    codec = BitsCodec(torch.empty(0), torch.bool)
    return codec.decompress(stored, prod(size)).as_strided(tuple(size), dense(size, order))


@unpack_bits.register_fake
def _(stored: torch.Tensor, size: Sequence[int], order: Sequence[int]) -> torch.Tensor:
    return stored.new_empty_strided(tuple(size), dense(size, order), dtype=torch.bool)


def flat(values: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    """The values one after the other, the last dimension of the order fastest."""
    return values.permute(tuple(order)).reshape(-1)


def dense(size: Sequence[Any], order: Sequence[int]) -> tuple[Any, ...]:
    """Strides without gaps, the last dimension of the order having 1."""
    strides, step = [1] * len(size), 1
    for dimension in reversed(order):
        strides[dimension] = step
        step = step * size[dimension]
    return tuple(strides)
