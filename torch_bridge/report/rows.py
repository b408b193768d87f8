"""What a report says of saved tensors, kind by kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

COMPRESSED, BITS, RECOMPUTED = "compressed", "bits", "recomputed"
# Of what was copied so that others can be recomputed from it.
INPUT = "recomputation input"
# Of masks that formats which mix the values of a block would make NaNs or zeros of.
INFINITIES = "infinities, or numbers in their place"
# Of what takes as many bytes with its rows in blocks of their own.
SHORT_ROWS = "rows of few values"
# Of a norm's input that has elements of its memory more than once.
REPEATED = "repeated values that a norm reads"
# Of queries and keys, of a softmax, and of an angle that no format is fine enough for.
SPREAD = "logits that spread too widely"
PEAKED = "a softmax with nearly all in one place"
LARGE_ANGLE = "a large angle"


@dataclass(frozen=True)
class Row:
    """Saved tensors that are alike: same operation, shape, dtype, treatment and module.

    Attributes:
        op: operation that produced them, "" if it was not seen.
        saved_by: operation or ``autograd.Function`` that saved the first of them; "" if that is not known.
        shape, dtype: of the tensor that was saved first.
        kept: "compressed", "bits" (of a tensor with two values), "recomputed" (from others), or the reason
            why the tensor stayed exact.
        counted: whether the totals count it; parameters and buffers are in neither.
        tensors: how many there are, each storage and version counted once.
        original_bytes: bytes of all of them as they were.
        stored_bytes: bytes of all of them as they are kept.
        seconds: that were spent so far to compute them anew.
        module: in whose forward pass the first of them was saved; "" is the model itself.
    """

    op: str
    shape: tuple[int, ...]
    dtype: str
    kept: str
    counted: bool
    tensors: int
    original_bytes: int
    stored_bytes: int
    seconds: float = 0.0
    module: str = ""
    saved_by: str = ""


def merged(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows with all modules together."""
    return tuple(sum_up(replace(row, module="") for row in rows))


def sum_up(rows: Iterable[Row]) -> Iterable[Row]:
    """One row for those that differ in numbers alone."""
    found: dict[tuple[object, ...], Row] = {}
    for row in rows:
        key = row.op, row.saved_by, row.shape, row.dtype, row.kept, row.counted, row.module
        one = found.get(key)
        found[key] = row if one is None else _sum(one, row)
    return found.values()


def _sum(one: Row, other: Row) -> Row:
    return replace(
        one,
        tensors=one.tensors + other.tensors,
        original_bytes=one.original_bytes + other.original_bytes,
        stored_bytes=one.stored_bytes + other.stored_bytes,
        seconds=one.seconds + other.seconds,
    )
