"""The payloads of the memory engine's streams: what travels from one part to another."""

import operator
from collections.abc import Callable
from functools import reduce

from amaranth import C, Cat, Mux, Value
from amaranth.lib import data

from golden import HadamardFormat
from golden.bursts import PAGE

from ..stream import NUMBER_BITS, word_layout
from .parameters import PAGE_BITS, MemoryParameters

__all__ = [
    "TAG_BITS",
    "address_of_place",
    "beat_layout",
    "block_layout",
    "block_number_bits",
    "burst_layout",
    "by_format",
    "cut_layout",
    "error_layout",
    "format_number_bits",
    "found_layout",
    "merged_layout",
    "origin_layout",
    "page_tag",
    "place_layout",
    "probe_layout",
    "probes",
    "range_layout",
    "read_layout",
    "region_layout",
    "run_layout",
    "stored_layout",
]

# Of a page's tag: all that is compared of a page by who asks whether something of it is on its way. Where two
# pages have the same, a read may wait for a write that does not concern it, and no write for a read.
TAG_BITS = 6


def format_number_bits(parameters: MemoryParameters) -> int:
    """Of the number of a format, from 1 on; 0 is bypass."""
    return len(parameters.formats).bit_length() or 1


def by_format(parameters: MemoryParameters, number: Value, of: Callable[[int], Value]) -> Value:
    """What belongs to a format's number; that of the first where there is none, for that takes no gates."""
    result = of(0)
    for i in range(1, len(parameters.formats)):
        result = Mux(number == i + 1, of(i), result)
    return result


def block_number_bits(parameters: MemoryParameters) -> int:
    """Of the number of a block in its region: what a Hadamard block's sign pattern follows from."""
    return NUMBER_BITS if any(isinstance(fmt, HadamardFormat) for fmt in parameters.formats) else 0


def region_layout(parameters: MemoryParameters) -> data.StructLayout:
    """What is known of all regions at once; places in pages of 4 KiB.

    Members:
        base, end: of its addresses, the latter behind the last one; they hold while it is enabled.
        format: its number, 0 for bypass.
        merge: evicted blocks are merged.
        enabled: it answers for its addresses.
        usable: and shares no stored bytes with another one.
    """
    pages = parameters.page_bits
    return data.StructLayout(
        {
            "base": pages,
            "end": pages + 1,
            "format": format_number_bits(parameters),
            "merge": 1,
            "enabled": 1,
            "usable": 1,
        }
    )


def origin_layout(parameters: MemoryParameters) -> data.StructLayout:
    """Where a region begins, and where its stored bytes do, in pages."""
    return data.StructLayout({"base": parameters.page_bits, "stored": parameters.page_bits})


def found_layout(parameters: MemoryParameters) -> data.StructLayout:
    """What is known of a burst's page.

    Members:
        hit: one region answers for it.
        region: which.
        format: its number, 0 for bypass.
    """
    return data.StructLayout(
        {"hit": 1, "region": range(parameters.regions), "format": format_number_bits(parameters)}
    )


def burst_layout(about: data.Layout | int) -> data.StructLayout:
    """A burst within its page of 4 KiB, which AXI4 does not let it leave.

    Members:
        low: address within the page.
        len, size, kind: as on AXI's address channels.
        about: what else goes along with it.
    """
    return data.StructLayout({"low": PAGE_BITS, "len": 8, "size": 3, "kind": 2, "about": about})


def place_layout(parameters: MemoryParameters) -> data.StructLayout:
    """Which block: the number of its page, and where in the page it begins, in smallest blocks."""
    return data.StructLayout({"page": parameters.page_bits, "unit": PAGE_BITS - parameters.unit_bits})


def address_of_place(place) -> Value:
    """Of a block's first byte."""
    return Cat(C(0, PAGE_BITS - len(place.unit)), place.unit, place.page)


def block_layout(parameters: MemoryParameters) -> data.StructLayout:
    """What goes along with a block.

    Members:
        place: see above.
        region, format: its region's number and its format's.
        waiting: the slots of the bursts that wait for it.
    """
    return data.StructLayout(
        {
            "place": place_layout(parameters),
            "region": range(parameters.regions),
            "format": format_number_bits(parameters),
            "waiting": parameters.slots,
        }
    )


def merged_layout(parameters: MemoryParameters) -> data.StructLayout:
    """A word of a block in memory; if it cannot be read, the answer for that, and whether it is invalid."""
    return data.StructLayout({"data": 8 * parameters.bus_bytes, "last": 1, "resp": 2, "invalid": 1})


def probe_layout(parameters: MemoryParameters) -> data.StructLayout:
    """Blocks of a page: the units in which the first and the last of them begin."""
    unit = PAGE_BITS - parameters.unit_bits
    return data.StructLayout({"page": parameters.page_bits, "first": unit, "last": unit})


def probes(probe, place) -> Value:
    """Whether a block is among those of a probe."""
    return (place.page == probe.page) & (place.unit >= probe.first) & (place.unit <= probe.last)


def beat_layout(parameters: MemoryParameters) -> data.StructLayout:
    """A beat to memory: its address in beats, its bytes and strobes, and the slots that wait for it."""
    size = parameters.memory_bytes
    return data.StructLayout(
        {
            "beat": parameters.address_bits - parameters.beat_bits,
            "data": 8 * size,
            "strb": size,
            "waiting": parameters.slots,
        }
    )


def stored_layout(parameters: MemoryParameters) -> data.StructLayout:
    """A word of a compressed block: ``empty`` of its bytes do not belong to it; where the block is stored."""
    return data.StructLayout(
        {
            "data": 8 * parameters.bus_bytes,
            "empty": range(parameters.bus_bytes),
            "first": 1,
            "address": parameters.address_bits,
            "waiting": parameters.slots,
        }
    )


def page_tag(page: Value) -> Value:
    """Of the number of a page: its bits, folded."""
    folds = [page[i : i + TAG_BITS] for i in range(0, len(page), TAG_BITS)]
    return reduce(operator.xor, folds)[:TAG_BITS]


def range_layout(parameters: MemoryParameters) -> data.StructLayout:
    """Some beats of a page of memory: its number, and those of the first and the last within it."""
    beat = PAGE_BITS - parameters.beat_bits
    return data.StructLayout({"page": parameters.page_bits, "first": beat, "last": beat})


def read_layout(parameters: MemoryParameters) -> data.StructLayout:
    """What goes along with a read burst.

    Members:
        id, page: of the burst.
        hit: there is a region for it.
        format: its number, 0 for bypass.
        kept: the first block is the one that the burst before ended in.
    """
    return data.StructLayout(
        {
            "id": parameters.id_bits,
            "page": parameters.page_bits,
            "hit": 1,
            "format": format_number_bits(parameters),
            "kept": 1,
        }
    )


def run_layout(parameters: MemoryParameters) -> data.StructLayout:
    """What memory was asked for: blocks that lie one behind the other, or words in bypass.

    Members:
        format: of the blocks, 0 for words.
        count: of blocks or words, less one.
        skip: bytes of the first beat before the first block.
        number: of the first block.
        beats: that come of blocks.
        continues: the first block begins with what the run of blocks before left of its last beat.
    """
    return data.StructLayout(
        {
            "format": format_number_bits(parameters),
            "count": 8,
            "skip": range(max(parameters.memory_bytes, 2)),
            "number": block_number_bits(parameters),
            "beats": range(2 * PAGE // parameters.memory_bytes + 1),
            "continues": 1,
        }
    )


def cut_layout(parameters: MemoryParameters) -> data.StructLayout:
    """A word of a block that was cut from beats: see :class:`Unpacker`."""
    word = word_layout(parameters.bus_bytes, first=block_number_bits(parameters) > 0)
    return data.StructLayout({"word": word, "format": format_number_bits(parameters), "resp": 2})


def error_layout(parameters: MemoryParameters) -> data.StructLayout:
    """An error of one kind, with its address."""
    return data.StructLayout({"valid": 1, "address": parameters.address_bits})
