"""The register map: the one place where registers are described.

``python -m gen registers`` writes it as SystemRDL, and what PeakRDL makes of that.
"""

from dataclasses import dataclass

__all__ = [
    "COUNTERS",
    "ERRORS",
    "IDENTITY",
    "MAP_BITS",
    "REGISTERS",
    "TIMEOUT_CYCLES",
    "Field",
    "Group",
    "Register",
    "address_of",
]

# Bits of an address of the register port.
MAP_BITS = 12

IDENTITY = 0x6273746D  # "bstm"

# What the timeout is after a reset.
TIMEOUT_CYCLES = 4096


@dataclass(frozen=True)
class Field:
    """Some bits of a register.

    Attributes:
        low, width: where they are.
        access: "rw", "r", or "w1c": a 1 that is written clears it.
        reset: after a reset; None if that is not the same in every engine.
    """

    name: str
    low: int
    width: int
    access: str
    about: str
    reset: int | None = 0


@dataclass(frozen=True)
class Register:
    """A register of 32 bits.

    Attributes:
        offset: in bytes; in a group that of the first one's.
    """

    name: str
    offset: int
    about: str
    fields: tuple[Field, ...]


@dataclass(frozen=True)
class Group:
    """Registers of which there are several of each.

    Attributes:
        count, stride: how many, and how many bytes lie from one to the next.
    """

    name: str
    count: int
    stride: int
    about: str
    registers: tuple[Register, ...]


# The errors' bits, in the order of golden.memory.ErrorKind.
ERRORS = (
    ("DECODE", "a burst that no region answers for, or two; the address is the burst's"),
    ("REFUSED", "a FIXED write to a format's region; the address is the burst's"),
    ("EVICTED", "an incomplete block was dropped; the address is the block's"),
    ("INVALID", "no encoder produces what is stored of a block; the address is the block's"),
    ("READ", "memory answered a read with an error; the address is the block's, or the word's in bypass"),
    ("WRITE", "memory answered a write with an error; the address is in memory"),
)

COUNTERS = (
    ("READ_BEATS", "beats read by the accelerator"),
    ("READ_BYTES", "their bytes"),
    ("WRITE_BEATS", "beats written by the accelerator"),
    ("WRITE_BYTES", "their bytes, strobed"),
    ("MEMORY_READ_BEATS", "beats read from memory"),
    ("MEMORY_WRITE_BEATS", "beats written to memory"),
    ("MEMORY_WRITE_BYTES", "their bytes, strobed"),
    ("BLOCKS_READ", "blocks decompressed"),
    ("BLOCKS_WRITTEN", "blocks compressed"),
    ("ERRORS_SEEN", "errors of all kinds"),
    ("BUSY", "cycles in which anything was under way but open blocks, and bursts that wait for them"),
    ("READ_STALLED", "cycles in which the accelerator let a beat of R wait"),
    ("WRITE_STALLED", "cycles in which a beat of W waited for the engine"),
    ("MEMORY_READ_STALLED", "cycles in which memory let AR wait"),
    ("MEMORY_WRITE_STALLED", "cycles in which memory let W wait"),
)


def _word(access: str, about: str, reset: int = 0) -> tuple[Field, ...]:
    return (Field("VALUE", 0, 32, access, about, reset),)


def _bits(access: str) -> tuple[Field, ...]:
    return tuple(Field(name, i, 1, access, about) for i, (name, about) in enumerate(ERRORS))


REGISTERS: tuple[Register | Group, ...] = (
    Register("IDENTITY", 0x000, "what this is", _word("r", "0x6273746d", IDENTITY)),
    Register(
        "PARAMETERS",
        0x004,
        "what it was made for",
        (
            Field("FORMATS", 0, 8, "r", "how many formats there are besides bypass", None),
            Field("REGIONS", 8, 8, "r", "how many regions", None),
            Field("BUFFERS", 16, 8, "r", "blocks that can be open at once", None),
            Field("BUS", 24, 4, "r", "bytes of the accelerator's bus, as a power of two", None),
            Field("MEMORY", 28, 4, "r", "bytes of the memory's", None),
        ),
    ),
    Register(
        "TIMEOUT",
        0x008,
        "how long an incomplete block is kept",
        _word("rw", "cycles that a block may be the one that has been open for longest", TIMEOUT_CYCLES),
    ),
    Register("ERRORS", 0x00C, "the kinds of errors that there were", _bits("w1c")),
    Register("INTERRUPTS", 0x010, "which of them raise the interrupt", _bits("rw")),
    Group(
        "ERROR_ADDRESS",
        len(ERRORS),
        8,
        "where the first error of each kind was since it was cleared, in the order of their bits",
        (
            Register("LOW", 0x040, "bits 31 to 0", _word("r", "of the address")),
            Register("HIGH", 0x044, "the bits above", _word("r", "of the address")),
        ),
    ),
    *(
        Register(name, 0x080 + 4 * i, about, _word("r", "counts modulo 2^32"))
        for i, (name, about) in enumerate(COUNTERS)
    ),
    Group(
        "REGION",
        8,
        16,
        "a region",
        (
            Register("BASE", 0x100, "where it begins", _word("rw", "in pages of 4 KiB")),
            Register("SIZE", 0x104, "how much it has", _word("rw", "in pages of 4 KiB")),
            Register("STORED", 0x108, "where its stored bytes begin", _word("rw", "in pages of 4 KiB")),
            Register(
                "CONTROL",
                0x10C,
                "whether it answers, and how",
                (
                    Field("ENABLE", 0, 1, "rw", "it answers; nothing else of it can be changed but LOCK"),
                    Field("LOCK", 1, 1, "rw", "nothing of it can be changed any more, until a reset"),
                    Field("USABLE", 2, 1, "r", "it is enabled, and its stored bytes are no other region's"),
                    Field("MERGE", 3, 1, "rw", "it merges; 0 in an engine that cannot"),
                    Field("FORMAT", 8, 4, "rw", "the number of its format, from 1 on; 0 is bypass"),
                ),
            ),
        ),
    ),
)


def find(name: str) -> tuple[Register, int]:
    """A register, or one of a group's, and how far the group's next one is: "TIMEOUT", "REGION_BASE"."""
    for entry in REGISTERS:
        if isinstance(entry, Register):
            if entry.name == name:
                return entry, 0
            continue
        for register in entry.registers:
            if f"{entry.name}_{register.name}" == name:
                return register, entry.stride
    raise ValueError(f"name must be one of the register map's, not {name!r}")


def address_of(name: str, index: int = 0) -> int:
    """Where a register is, or the one of that index of a group's."""
    register, stride = find(name)
    return register.offset + index * stride
