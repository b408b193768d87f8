"""How fast the CPU backend is beside other codecs, on real activations: ``python -m bench.codec``.

Prints GB of uncompressed values per second each way, the median of several runs, on one thread and on all,
and writes the same rows to build/bench/codec.json. Every codec makes its own output array, as it would in
training, and the memory copy does too. The values are what the default GPT-2 saves, concatenated, without
the tensors that the bridge keeps exact. zfp runs at a fixed rate, in one dimension and on one thread: zfpy
offers no more; it has no bf16, so it gets those values as fp32, converted beforehand. blosc2 is lossless,
at its default level 5, so it has no target.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import blosc2
import numpy as np
import torch
import zfpy
from rich.console import Console
from rich.table import Table

from golden import PlaneFormat
from torch_bridge import backends
from torch_bridge.capture import gpt2_activations
from torch_bridge.dtypes import TORCH_DTYPES

RAW_BYTES = 32 << 20
RUNS = 5
BLOCK = 64
RATIOS = (3.2, 2.0)
OUTPUT = Path("build/bench/codec.json")


class Codec(NamedTuple):
    """One codec on one tensor: ``decompress`` takes what ``compress`` gives, and gives values."""

    name: str
    compress: Callable[[], Any]
    decompress: Callable[[Any], torch.Tensor]
    stored_bytes: Callable[[Any], int] = len


def activations(dtype: str) -> torch.Tensor:
    """At most RAW_BYTES of the values that the bridge would compress."""
    saved = gpt2_activations(dtype, batch=16)
    values = np.concatenate([s.values for s in saved if s.dtype == dtype and s.exact is None])
    octets = values[: RAW_BYTES // values.itemsize].view(np.uint8)
    return torch.from_numpy(octets).view(TORCH_DTYPES[dtype])


def codecs(values: torch.Tensor, dtype: str, threads: int) -> Iterator[Codec]:
    for ratio in RATIOS:
        raw = PlaneFormat(dtype, BLOCK, None).raw_bytes
        planes = backends.get("cpu", PlaneFormat(dtype, BLOCK, int(raw / ratio)))
        yield Codec(
            "planes-cpu",
            lambda planes=planes: planes.compress(values),
            lambda stored, planes=planes: planes.decompress(stored, len(values)),
            torch.Tensor.numel,
        )
        if threads == 1:
            wide = values.float().numpy()
            yield Codec(
                "zfp fixed rate",
                lambda wide=wide, rate=8 * values.itemsize / ratio: zfpy.compress_numpy(wide, rate=rate),
                lambda stored: torch.from_numpy(zfpy.decompress_numpy(stored)),
            )
    octets = values.view(torch.uint8).numpy()

    def unblosc(stored: bytes) -> torch.Tensor:
        decoded = torch.empty_like(values)
        blosc2.decompress2(stored, dst=decoded.view(torch.uint8).numpy(), nthreads=threads)
        return decoded

    for name, codec in (("lz4", blosc2.Codec.LZ4), ("zstd", blosc2.Codec.ZSTD)):
        options = {"codec": codec, "clevel": 5, "filters": [blosc2.Filter.BITSHUFFLE], "nthreads": threads}
        yield Codec(
            f"blosc2 bitshuffle+{name}",
            lambda options=options: blosc2.compress2(octets, typesize=values.itemsize, **options),
            unblosc,
        )
    yield Codec("memcpy", values.clone, torch.Tensor.clone, lambda stored: stored.nbytes)


def gigabytes_per_second(work: Callable[[], object], values: torch.Tensor) -> float:
    """Median over RUNS, after one run to warm up."""
    seconds = []
    for _ in range(RUNS + 1):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return values.nbytes / 1e9 / statistics.median(seconds[1:])


def effective_bits(values: torch.Tensor, decoded: torch.Tensor) -> float:
    """Mean over blocks of 0.5 * log2(variance / mean squared error), at most 24 (Shannon's rate)."""
    whole = len(values) // BLOCK * BLOCK
    exact = values[:whole].double().view(-1, BLOCK)
    error = (decoded[:whole].double().view(-1, BLOCK) - exact).square().mean(1)
    variance = exact.var(1, correction=0)
    bits = 0.5 * torch.log2(variance / error)
    return float(bits.clamp(max=24)[variance > 0].mean())


def measure(values: torch.Tensor, dtype: str, threads: int) -> Iterator[dict[str, str | int | float]]:
    torch.set_num_threads(threads)
    for codec in codecs(values, dtype, threads):
        stored = codec.compress()
        yield {
            "codec": codec.name,
            "dtype": dtype,
            "ratio": values.nbytes / codec.stored_bytes(stored),
            "threads": threads,
            "compress_gbps": gigabytes_per_second(codec.compress, values),
            "decompress_gbps": gigabytes_per_second(lambda c=codec, s=stored: c.decompress(s), values),
            "effective_bits": effective_bits(values, codec.decompress(stored)),
        }


def main() -> None:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    rows = []
    for dtype in ("fp32", "bf16"):
        values = activations(dtype)
        for threads in sorted({1, cores}):
            rows += measure(values, dtype, threads)
    table = Table("codec", title=f"GB/s of uncompressed values, median of {RUNS} runs")
    for heading in ("dtype", "ratio", "threads", "compress", "decompress", "effective bits"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*(f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row.values()))
    Console(width=110).print(table)
    OUTPUT.parent.mkdir(parents=True, exist_ok=True)
    OUTPUT.write_text(json.dumps(rows, indent=2) + "\n")
    print(f"written to {OUTPUT}")


if __name__ == "__main__":
    main()
