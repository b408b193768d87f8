"""Tensors of compiled graphs that are stored as finely as what is measured of them asks for.

These are queries and keys, whose logits may spread widely, softmaxes, which may amplify their errors, and
what may be a mask with infinities. With hooks that is decided for each tensor when it is saved. A graph is
made once; so it holds an operation that chooses when it runs, and whose result has a size of its own each
time. The number of bytes says which format it is in: nothing else goes to the backward pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from math import inf, prod
from typing import Any

import torch

from ..backends.dtypes import TORCH_DTYPES, AnyFormat
from ..internals import new_size
from ..policy.decision import keeps_signs
from ..store import questions
from ..store.attention import Logits
from ..store.softmaxes import amplification
from ..store.verdicts import MOST_ANSWERS, Number
from .operators import blocks_of, codecs, dense, flat, format_of, text_of

# By how much a measure may grow from one step to the next where that of the present step is not waited for.
MARGIN = 2.0
_BETWEEN = ";"


def text_of_all(formats: Sequence[AnyFormat | None]) -> str:
    """Formats that become finer, as the argument of an operation; None is for exact values."""
    return _BETWEEN.join("" if fmt is None else text_of(fmt) for fmt in formats)


def _formats(text: str, row: int) -> list[tuple[AnyFormat | None, int]]:
    """The formats, each with the values of a row that share blocks: 0 where it has no rows."""
    found: list[tuple[AnyFormat | None, int]] = []
    for one in text.split(_BETWEEN):
        fmt = format_of(one) if one else None
        found.append((fmt, 0 if fmt is None or keeps_signs(fmt) else row))
    return found


def sizes_of(formats: str, count: int, row: int) -> list[int]:
    """Bytes that so many values take in each format, which rise.

    A format that takes no fewer bytes than a finer one has the finer one's number, which is then used.

    Args:
        formats: as ``text_of_all`` writes them.
        count: distinct values.
        row: values of memory that share blocks, in formats that mix them.
    """
    found = [inf]
    for fmt, of_rows in reversed(_formats(formats, row)):
        if fmt is None:
            first = format_of(formats.split(_BETWEEN)[0])
            nbytes = count * TORCH_DTYPES[first.dtype].itemsize
        else:
            own = fmt.for_rows(of_rows) if of_rows else fmt
            assert own.target is not None
            nbytes = blocks_of(fmt, count, of_rows) * own.target
        found.append(min(nbytes, found[-1]))
    return [int(one) for one in reversed(found[1:])]


class Choices:
    """What was measured at places in graphs, and what was chosen by that.

    On a CPU the present measure is known. A GPU is waited for the first time only: from then on the last
    answer that is there counts, ``MARGIN`` times, and a warning says where it grew faster than that.
    """

    def __init__(self) -> None:
        self._known: dict[str, float] = {}
        self._awaited: dict[str, tuple[Number, float]] = {}
        self._chosen: dict[str, int] = {}

    def choose(self, place: str, measure: Number, bounds: Sequence[float]) -> int:
        """How many of the bounds, which rise, are too small for the measure at a place in a graph."""
        taken = present = measure.value
        if present is None:
            self._look(place)
            known = self._known.get(place)
            if known is None:
                taken = present = measure.wait()
            else:
                taken = MARGIN * known
        if present is not None:
            self._note(place, present)
        assert taken is not None
        found = sum(not taken <= bound for bound in bounds)
        if present is None:
            self._awaited.setdefault(place, (measure, [*bounds, inf][found]))
        self._chosen[place] = found
        return found

    def chosen(self, place: str) -> int:
        """What was chosen last at a place; 0 if nothing was yet."""
        return self._chosen.get(place, 0)

    def _look(self, place: str) -> None:
        """See whether the measure of a step before is there, and was as it was taken to be."""
        measure, bound = self._awaited.get(place, (None, inf))
        if measure is None or (value := measure.value) is None:
            return
        del self._awaited[place]
        self._note(place, value)
        if not value <= bound:
            warnings.warn(
                f"a tensor that {place.partition('#')[0]!r} saves was kept finely enough for a measure of "
                f"{bound:.3g}, which was {value:.3g} in one step: its gradient has a larger error than is "
                "documented",
                RuntimeWarning,
                stacklevel=2,
            )

    def _note(self, place: str, value: float) -> None:
        if len(self._known) >= MOST_ANSWERS and place not in self._known:
            del self._known[next(iter(self._known))]
        self._known[place] = value


CHOICES = Choices()
"""Of all graphs of the process: operations have no other memory."""


@torch.library.custom_op("bitstash::logit_spread", mutates_args=())
def logit_spread(query: torch.Tensor, key: torch.Tensor, scale: float | None) -> torch.Tensor:
    """How far logits spread, as ``Logits`` has it: fp32, a number.

    Args:
        query, key: [batch, heads, tokens, width].
        scale: that the products have; None for one over the root of the width.
    """
    return Logits([query, key], scale).spread()


@logit_spread.register_fake
def _(query: torch.Tensor, key: torch.Tensor, scale: float | None) -> torch.Tensor:
    return query.new_empty((), dtype=torch.float32)


@torch.library.custom_op("bitstash::softmax_amplification", mutates_args=())
def softmax_amplification(softmax: torch.Tensor) -> torch.Tensor:
    """How much a softmax amplifies its own error, as ``amplification`` has it: fp32, a number."""
    return amplification(softmax)


@softmax_amplification.register_fake
def _(softmax: torch.Tensor) -> torch.Tensor:
    return softmax.new_empty((), dtype=torch.float32)


@torch.library.custom_op("bitstash::largest", mutates_args=())
def largest(values: torch.Tensor, is_filled: bool) -> torch.Tensor:
    """The largest magnitude, as ``questions.largest`` has it: fp32, a number; NaN where there is one."""
    return questions.largest(values, is_filled).float()


@largest.register_fake
def _(values: torch.Tensor, is_filled: bool) -> torch.Tensor:
    return values.new_empty((), dtype=torch.float32)


@torch.library.custom_op("bitstash::compress_measured", mutates_args=())
def compress_measured(
    values: torch.Tensor,
    measure: torch.Tensor,
    place: str,
    formats: str,
    bounds: Sequence[float],
    row: int,
    backend: str,
    order: Sequence[int],
) -> torch.Tensor:
    """Compress a tensor as finely as what is measured of it asks for: uint8[bytes].

    Args:
        values: of the formats' dtype, with any strides: a compiler may have chosen others.
        measure: a number, fp32.
        place: name of the place in the graph; places of the same name share what is known of them.
        formats: as ``text_of_all`` writes them.
        bounds: the largest measure for each format but the last.
        row: values that share blocks, in formats that mix them.
        backend: name of a backend.
        order: in which the dimensions are gone through, the last one fastest.
    """
    level = CHOICES.choose(place, Number(measure), bounds)
    in_order = flat(values, order)
    sizes = sizes_of(formats, len(in_order), row)
    finest = max(at for at, nbytes in enumerate(sizes) if nbytes == sizes[level])
    fmt, of_rows = _formats(formats, row)[finest]
    if fmt is None:
        return in_order.clone().view(torch.uint8)
    return codecs(backend).get(fmt, "values", of_rows or None).compress(in_order).flatten()


@compress_measured.register_fake
def _(
    values: torch.Tensor,
    measure: torch.Tensor,
    place: str,
    formats: str,
    bounds: Sequence[float],
    row: int,
    backend: str,
    order: Sequence[int],
) -> torch.Tensor:
    return values.new_empty(new_size(), dtype=torch.uint8)


@torch.library.custom_op("bitstash::decompress_measured", mutates_args=())
def decompress_measured(
    stored: torch.Tensor, formats: str, row: int, backend: str, size: Sequence[int], order: Sequence[int]
) -> torch.Tensor:
    """The inverse of ``compress_measured``: values of the formats' dtype.

    Args:
        stored: uint8[bytes].
        formats, row, backend: as they were compressed.
        size, order: as of ``decompress``.

    Raises:
        RuntimeError: so many bytes are of none of the formats.
    """
    count = prod(size)
    sizes = sizes_of(formats, count, row)
    found = [at for at, nbytes in enumerate(sizes) if nbytes == len(stored)]
    if not found:
        raise RuntimeError(f"stored must have one of {sizes} bytes, not {len(stored)}")
    fmt, of_rows = _formats(formats, row)[found[-1]]
    if fmt is None:
        values = stored.clone().view(TORCH_DTYPES[format_of(formats.split(_BETWEEN)[0]).dtype])
    else:
        codec = codecs(backend).get(fmt, "values", of_rows or None)
        own = codec.fmt
        assert own.target is not None
        values = codec.decompress(stored.view(-1, own.target), count)
    return values.as_strided(tuple(size), dense(size, order))


@decompress_measured.register_fake
def _(
    stored: torch.Tensor, formats: str, row: int, backend: str, size: Sequence[Any], order: Sequence[int]
) -> torch.Tensor:
    dtype = TORCH_DTYPES[format_of(formats.split(_BETWEEN)[0]).dtype]
    return stored.new_empty_strided(tuple(size), dense(size, order), dtype=dtype)
