"""``python -m cocotb_tests.memory.harness``: random bursts on Verilated memory engines, by the million.

They are made and checked in C++: harness.cpp draws them at random, the other files what random ones seldom
meet, and reference.h says what must come of them. What becomes of a block is golden's word, by the backend
``cpu``.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gen import memory, system
from gen.arguments import at_least, interruptible
from gen.verilog import digest
from golden import Format, HadamardFormat, PlaneFormat
from rtl.memory import MemoryParameters
from torch_bridge import backends
from torch_bridge.backends.dtypes import TORCH_DTYPES

from ..runner import BenchError
from .engines import ENGINES

# Besides those of the benches in cocotb: the least of most sizes, and odd ones.
ODD = {
    "tiny": MemoryParameters(
        formats=(PlaneFormat("bf16", 16, 12),),
        bus_bytes=16,
        memory_bytes=16,
        address_bits=20,
        regions=2,
        buffers=1,
        least_slots=1,
        reads=1,
        bursts=2,
    ),
    "odd-merging": MemoryParameters(
        formats=(PlaneFormat("bf16", 16, 9), HadamardFormat("fp32", 64, 17)),
        bus_bytes=16,
        memory_bytes=4,
        address_bits=25,
        regions=5,
        buffers=3,
        least_slots=3,
        reads=3,
        bursts=2,
        merging=True,
    ),
}
ALL = ENGINES | ODD

# Engines, and which share of the bursts each has.
SHARES = {"small": 0.2, "small-narrow": 0.2}
SHARES |= dict.fromkeys(ODD, 0.05)
SHARES |= dict.fromkeys(("bypass-narrow", "small-quarter", "small-merging", "wide-merging"), 0.1)
SHARES |= dict.fromkeys(memory.PRESETS, 0.1)

_SOURCES_OF_ROWS = ("golden", "rtl", "gen", "cocotb_tests/memory", "torch_bridge/backends")
HARNESS = Path(__file__).with_name("harness.cpp")
SOURCES = [HARNESS, *sorted(HARNESS.parent.glob("*.h"))]
LATENCY = 100  # of the memory, in cycles, when rates are measured
BURST = 1024  # bytes, likewise

_COMPRESS = ctypes.CFUNCTYPE(None, ctypes.c_uint, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)
_DECOMPRESS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)


class _Codec(ctypes.Structure):
    _fields_ = (
        ("original", ctypes.c_uint),
        ("target", ctypes.c_uint),
        ("compress", _COMPRESS),
        ("decompress", _DECOMPRESS),
    )


class _Codecs:
    """What becomes of blocks, as functions that C++ can call."""

    def __init__(self, formats: tuple[Format, ...]) -> None:
        self._backends = [backends.get("cpu", fmt) for fmt in formats]
        compress, decompress = _COMPRESS(self._compress), _DECOMPRESS(self._decompress)
        self.array = (_Codec * len(formats))(
            *(_Codec(fmt.original_bytes, fmt.target, compress, decompress) for fmt in formats)
        )

    def _compress(self, number_of_format: int, number: int, original: int, stored: int) -> None:
        codec = self._backends[number_of_format - 1]
        values = torch.from_numpy(_octets(original, codec.fmt.original_bytes)).view(
            TORCH_DTYPES[codec.fmt.dtype]
        )
        _octets(stored, codec.fmt.target)[:] = codec.compress(values, number)[0].numpy()

    def _decompress(self, number_of_format: int, number: int, stored: int, original: int) -> int:
        codec = self._backends[number_of_format - 1]
        block = torch.from_numpy(_octets(stored, codec.fmt.target)).view(1, -1)
        try:
            values = codec.decompress(block, codec.fmt.block, number)
        except ValueError:
            return 0
        _octets(original, codec.fmt.original_bytes)[:] = values.view(torch.uint8).numpy()
        return 1


def _octets(address: int, count: int) -> np.ndarray:
    return np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(address))


def build(parameters: MemoryParameters, folder: Path) -> Path:
    """The library of an engine's harness; done before for the same sources, it is left as it is."""
    system.build_model(parameters, folder)
    path, stamp = folder / "libharness.so", folder / "harness.digest"
    sources = [*SOURCES, *sorted(system.SOURCES.glob("*.h"))]
    texts = [(folder / "model.digest").read_text(), *(source.read_text() for source in sources)]
    made = hashlib.sha256("\0".join(texts).encode()).hexdigest()
    if not path.exists() or not stamp.exists() or stamp.read_text() != made:
        system.link(HARNESS, folder, path)
        stamp.write_text(made)
    return path


class Harness:
    """An engine with random bursts.

    Args:
        path: of its library.
        formats: that it has; behind their regions there is one in bypass.
        seed: of what is random.
        latency: of the memory, in cycles.
        mutant: of a library of mutants, the number of the one to have.

    Raises:
        BenchError: the engine breaks before its first burst.
    """

    def __init__(
        self, path: Path, formats: tuple[Format, ...], seed: int, latency: int, mutant: int = 0
    ) -> None:
        library = self._library = ctypes.CDLL(str(path.resolve()))
        library.bitstash_harness_new.restype = ctypes.c_void_p
        library.bitstash_harness_message.restype = ctypes.c_char_p
        self._codecs = _Codecs(formats)
        self._count = len(formats) + 1
        new = library.bitstash_harness_new
        self._handle = ctypes.c_void_p(
            new(self._codecs.array, ctypes.c_size_t(len(formats)), ctypes.c_uint64(seed), latency, mutant)
        )
        if not self._handle:
            raise BenchError("no region answers")

    def __del__(self) -> None:
        if self._handle:
            self._library.bitstash_harness_delete(self._handle)

    def run(self, sequential: int, concurrent: int) -> tuple[list[int], list[int]]:
        """So many bursts one after the other and of several masters at once; then all regions are locked.

        Returns:
            bursts and mismatches of each region; those that hit none are the last one's.

        Raises:
            BenchError: the engine hangs, or breaks a rule of AXI.
        """
        self._check(
            self._library.bitstash_harness_run(
                self._handle, ctypes.c_uint64(sequential), ctypes.c_uint64(concurrent)
            )
        )
        bursts, mismatches = (ctypes.c_uint64 * 9)(), (ctypes.c_uint64 * 9)()
        self._library.bitstash_harness_counts(self._handle, bursts, mismatches)
        return tuple([*n[: self._count - 1], n[self._count - 1] + n[8]] for n in (bursts, mismatches))

    def measure(self, region: int) -> dict[str, float]:
        """Rates of bursts of :data:`BURST` bytes read and written at once, and of reads of single words; what
        such a read adds.
        """
        five = (ctypes.c_double * 5)()
        self._check(self._library.bitstash_harness_measure(self._handle, region, BURST, five))
        read, write, excess, latency, words = five
        return {
            "read_bytes_per_cycle": read,
            "write_bytes_per_cycle": write,
            "excess_bytes": excess,
            "read_latency_added": int(latency),
            "word_read_bytes_per_cycle": words,
        }

    @property
    def message(self) -> str:
        """What went wrong first."""
        return self._library.bitstash_harness_message(self._handle).decode()

    def _check(self, status: int) -> None:
        if status:
            raise BenchError(self.message)


def run(name: str, folder: Path, *, bursts: int, seed: int) -> list[dict[str, Any]]:
    """Rows of an engine: one for each of its formats, and one of bypass.

    Those that were found before, from the same sources and with the same options, are returned.

    Args:
        name: of :data:`SHARES`.
        bursts: random ones, half of them one after the other.

    Raises:
        BenchError: a burst became something else than it must, the engine hangs, or breaks a rule of AXI.
    """
    formats = ALL[name].formats
    place = folder / "harness" / name
    kept = place / f"rows-{digest((ALL[name], bursts, seed), _SOURCES_OF_ROWS)[:16]}.json"
    if kept.exists():
        return json.loads(kept.read_text())
    path = build(ALL[name], place)
    harness = Harness(path, formats, seed, latency=12)
    counted, wrong = harness.run(bursts // 2, bursts - bursts // 2)
    if any(wrong):
        raise BenchError(f"{name}, seed {seed}: {sum(wrong)} of {sum(counted)} bursts\n{harness.message}")
    measured = Harness(path, formats, seed, LATENCY)
    regions = [*(fmt.scheme for fmt in formats), "bypass"]
    rows = [
        {"config": name, "part": "memory", "region": region, "bursts": counted[i], "mismatches": wrong[i]}
        | measured.measure(i)
        for i, region in enumerate(regions)
    ]
    kept.write_text(json.dumps(rows))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cocotb_tests.memory.harness", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SHARES)} (default: all)")
    text = "of all together, or of each that is named (default: 100000)"
    parser.add_argument("--bursts", type=at_least(1), default=100_000, help=text)
    parser.add_argument("--seed", type=at_least(0), default=1, help="of what is random (default: 1)")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in SHARES:
            parser.error(f"names must be of {', '.join(SHARES)}, not {name!r}")
    shares = dict.fromkeys(arguments.names, 1.0) or SHARES
    with interruptible():
        for name, share in shares.items():
            bursts = max(1, round(arguments.bursts * share))
            for row in run(name, Path("build/sim"), bursts=bursts, seed=arguments.seed):
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
